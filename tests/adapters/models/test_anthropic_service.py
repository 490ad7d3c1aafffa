"""The way to a service: its URL, the headers of every request, real proxies, and what is loaded for it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anthropic
import anyio
import pytest
from tests.adapters.models.anthropic_wire import (
    HEAD,
    Exchange,
    RecordedDeltas,
    hello,
    model_at,
    request,
    respond_with,
    run_service,
)

from callboard.adapters.models.anthropic.client import AnthropicModel
from callboard.ports.model import CallFault, ModelRequest
from callboard.types.errors import SettingsError
from callboard.types.records import Fault

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def headers_of(exchange: Exchange) -> dict[str, str]:
    lines = exchange.head.decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}


async def sent_with(asked: ModelRequest | None = None, **options: object) -> list[dict[str, str]]:
    """Return the headers of two calls."""
    async with run_service(respond_with(hello())) as wire, model_at(wire.url, **options) as model:
        for _ in range(2):
            await model.complete(asked or request(), RecordedDeltas())
    return [headers_of(one) for one in wire.requests]


# Headers.


@pytest.mark.parametrize("given", [{"api_key": "k-1"}, {"api_key": None, "auth_token": "t-1"}], ids=["key", "token"])
async def test_requests_name_the_sdks_version_and_carry_the_key_as_the_sdk_does(
    given: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Team: Tools\n\nanthropic-beta: one-2026-01-01")
    async with run_service(respond_with(hello())) as wire:
        async with anthropic.AsyncAnthropic(base_url=wire.url, max_retries=0, **given) as sdk:
            asked: list[anthropic.types.MessageParam] = [{"role": "user", "content": "hi"}]
            events = await sdk.messages.create(model="m-1", max_tokens=100, messages=asked, stream=True)
            assert "message_stop" in [one.type async for one in events]
        async with model_at(wire.url, **given) as model:
            for _ in range(2):
                await model.complete(request(), RecordedDeltas())
    theirs, *ours = (headers_of(one) for one in wire.requests)
    names = ("authorization", "anthropic-version", "accept", "content-type", "x-team", "anthropic-beta")
    for headers in ours:
        assert {name: headers.get(name) for name in names} == {name: theirs.get(name) for name in names}
        assert headers.get("x-api-key") == given.get("api_key"), "which many gateways read, and the SDK does not send"


async def test_betas_of_a_call_are_added_to_those_of_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "anthropic-beta: one-2026-01-01, context-1m-2025-08-07")
    sent = await sent_with(request(model="claude-test[1m]"))
    assert [headers["anthropic-beta"] for headers in sent] == ["one-2026-01-01,context-1m-2025-08-07"] * 2


async def test_headers_of_settings_precede_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Team: Tools")
    sent = await sent_with(variables={"ANTHROPIC_CUSTOM_HEADERS": "X-Team: Ours\nUser-Agent: gateway-1"})
    assert [(headers["x-team"], headers["user-agent"]) for headers in sent] == [("Ours", "gateway-1")] * 2


async def test_a_path_user_and_password_of_the_url_are_used() -> None:
    async with run_service(respond_with(hello())) as wire:
        url = wire.url.replace("//", "//me:p%40ss@") + "/gateway/"
        async with model_at(url) as model:
            await model.complete(request(), RecordedDeltas())
    assert wire.requests[0].head.startswith(b"POST /gateway/v1/messages HTTP/1.1\r\n")
    assert headers_of(wire.requests[0])["authorization"] == "Basic bWU6cEBzcw=="
    assert headers_of(wire.requests[0])["x-api-key"], "the password replaces the bearer, not the key"
    assert headers_of(wire.requests[0])["host"] == wire.url.removeprefix("http://")


async def test_an_error_without_end_is_read_in_part_and_its_connection_closed() -> None:
    async def without_end(exchange: Exchange) -> None:
        exchange.writer.write(b"HTTP/1.1 500 No\r\ntransfer-encoding: chunked\r\n\r\n")
        while not exchange.writer.is_closing():
            await exchange.chunk(b"x" * 100_000)

    async with run_service(without_end) as wire, model_at(wire.url) as model:
        fault = await failure(model)
        assert (fault.kind, fault.status) == ("server", 500)
        await wire.requests[0].disconnected.wait()


async def test_an_answer_with_long_headers_is_read() -> None:
    async def with_long_header(exchange: Exchange) -> None:
        exchange.writer.write(HEAD.replace(b"\r\n\r\n", b"\r\nx-gateway: " + b"x" * 60_000 + b"\r\n\r\n"))
        await exchange.chunk(hello())
        exchange.writer.write(b"0\r\n\r\n")

    async with run_service(with_long_header) as wire, model_at(wire.url) as model:
        assert (await model.complete(request(), RecordedDeltas())).stop_reason == "end_turn"


# Proxies.


@dataclass
class Proxy:
    """A proxy that forwards plain requests, opens tunnels, or refuses with a status."""

    url: str = ""
    heads: list[str] = field(default_factory=list)
    refusal: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.heads.append(head)
        if self.refusal:
            writer.write(f"HTTP/1.1 {self.refusal}\r\ncontent-length: 0\r\n\r\n".encode())
            writer.close()
            return
        method, target, _ = head.split(" ", 2)
        address = target if method == "CONNECT" else target.split("/")[2]
        host, _, port = address.rpartition(":")
        there = await asyncio.open_connection(host, int(port))
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            there[1].write(head.replace(f"http://{address}", "", 1).encode("latin-1"))
        await asyncio.gather(_copied(reader, there[1]), _copied(there[0], writer))


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return  # the other side is gone
    finally:
        writer.close()


@asynccontextmanager
async def run_proxy(refusal: str = "") -> AsyncGenerator[Proxy]:
    proxy = Proxy(refusal=refusal)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()


async def failure(model: AnthropicModel) -> Fault:
    with pytest.raises(CallFault) as caught:
        await model.complete(request(), RecordedDeltas())
    return caught.value.fault


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("of_settings", [True, False], ids=["settings", "process"])
async def test_calls_go_through_the_proxy_that_is_named(
    variable: str, *, of_settings: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_proxy() as proxy, run_service(respond_with(hello())) as wire:
        with_password = proxy.url.replace("//", "//me:secret@")
        if not of_settings:
            monkeypatch.setenv(variable, with_password)
        variables = {variable: with_password} if of_settings else {}
        async with model_at(wire.url, variables=variables) as model:
            for _ in range(2):
                assert (await model.complete(request(), RecordedDeltas())).stop_reason == "end_turn"
    assert len(wire.requests) == 2
    assert proxy.heads[0].startswith(f"POST {wire.url}/v1/messages HTTP/1.1\r\n")
    assert "\r\nProxy-Authorization: Basic bWU6c2VjcmV0\r\n" in proxy.heads[0]


@pytest.mark.parametrize("excepted", ["*", "127.0.0.1", "other.example, 127.0.0.1", ".0.0.1"])
async def test_a_service_of_no_proxy_is_called_directly(excepted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", excepted)
    assert len(await sent_with()) == 2


async def test_a_service_with_its_port_in_no_proxy_is_called_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    async with run_service(respond_with(hello())) as wire:
        monkeypatch.setenv("NO_PROXY", wire.url.removeprefix("http://"))
        async with model_at(wire.url) as model:
            await model.complete(request(), RecordedDeltas())
    assert len(wire.requests) == 1


async def test_a_proxy_that_refuses_is_a_lost_connection_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_proxy("407 Proxy Authentication Required") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", "//me:secret@"))
        async with model_at("https://service.invalid") as model:
            fault = await failure(model)
    assert (fault.kind, fault.may_bill) == ("connection", False)
    assert fault.message == "the proxy refused the connection: HTTP 407 Proxy Authentication Required"
    assert proxy.heads[0].startswith("CONNECT service.invalid:443 HTTP/1.1\r\n")


def test_a_proxy_of_another_kind_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(SettingsError, match=r"'socks5' is not supported: set HTTPS_PROXY"):
        AnthropicModel(base_url="https://service.invalid", api_key="k")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    AnthropicModel(base_url="https://service.invalid", api_key="k")


# Imports.


RUN = """
import sys
from callboard.__main__ import main
code = main(['run', *sys.argv[1:], 'Hi.'])
print('loaded' if 'anthropic' in sys.modules else 'spared', code)
"""


async def run_session(tmp_path: Path, *arguments: str, **variables: str) -> list[str]:
    """Return the lines of a run in a process of its own."""
    work = tmp_path / "work"
    work.mkdir()
    places = {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("STATE", "DATA", "CONFIG", "CACHE")}
    command = [sys.executable, "-c", RUN, *arguments]
    ran = await anyio.run_process(command, check=False, cwd=work, env={**os.environ, **places, **variables})
    return ran.stdout.decode().splitlines() or [ran.stderr.decode()]


@pytest.mark.slow
async def test_a_session_with_a_key_loads_no_sdk(tmp_path: Path) -> None:
    async with run_service(respond_with(hello())) as wire:
        lines = await run_session(tmp_path, ANTHROPIC_API_KEY="k", ANTHROPIC_BASE_URL=wire.url)
    assert lines == ["Hello", "spared 0"]


@pytest.mark.slow
async def test_a_rehearsal_loads_no_sdk_and_uses_no_proxy(tmp_path: Path) -> None:
    scenario = tmp_path / "s.yaml"
    scenario.write_text("name: s\nagents:\n  lead:\n    - otherwise: true\n      reply: Hello.\n", encoding="utf-8")
    lines = await run_session(tmp_path, "--model", f"rehearsal:{scenario}", HTTP_PROXY="http://127.0.0.1:1")
    assert lines == ["Hello.", "spared 0"]
