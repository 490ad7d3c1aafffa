"""A command that prints the key of the model service: one run for all calls, again after a time and after a refusal."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import pytest
from tests.adapters.models.anthropic_wire import Exchange, hello, model_at, request, run_service

from callboard.adapters.models.anthropic.client import AnthropicModel
from callboard.adapters.models.anthropic.credentials import TTL_VARIABLE, KeyCommand
from callboard.ports.model import CallFault
from callboard.types.errors import CredentialsMissing
from callboard.types.records import Fault

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


class Counter:
    """A command that prints `key-N` at its run N."""

    def __init__(self, folder: Path, ttl_ms: str = "") -> None:
        self.file = folder / "runs"
        command = f"echo run >> {self.file}; echo key-$(wc -l < {self.file} | tr -d ' ')"
        self.command = KeyCommand(command, {"PATH": "/usr/bin:/bin", **({TTL_VARIABLE: ttl_ms} if ttl_ms else {})})

    @property
    def runs(self) -> int:
        return len(self.file.read_text().splitlines()) if self.file.exists() else 0


async def failure(model: AnthropicModel) -> Fault:
    with pytest.raises(CallFault) as caught:
        await model.complete(request(), lambda delta: None)
    return caught.value.fault


def keys(exchange: Exchange) -> tuple[str, str]:
    """Return the key and the bearer token of a request."""
    head = exchange.head.decode()
    values = [re.search(rf"(?mi)^{name}: (.*?)\r$", head) for name in ("x-api-key", "authorization")]
    key, bearer = (match[1] if match else "" for match in values)
    return key, bearer


async def test_the_command_runs_once_for_many_calls_and_its_key_is_in_both_headers(tmp_path: Path) -> None:
    counter = Counter(tmp_path)

    async def answer(exchange: Exchange) -> None:
        await exchange.stream(hello())

    async with (
        run_service(answer) as wire,
        model_at(wire.url, api_key=None, key_command=counter.command) as model,
        anyio.create_task_group() as group,
    ):
        for _ in range(5):
            group.start_soon(model.complete, request(), lambda delta: None)
    assert counter.runs == 1
    assert [keys(exchange) for exchange in wire.requests] == [("key-1", "Bearer key-1")] * 5


async def test_a_refused_key_of_a_command_is_replaced_once(tmp_path: Path) -> None:
    counter = Counter(tmp_path)

    async def answer(exchange: Exchange) -> None:
        if keys(exchange)[0] in ("key-1", "key-3", "key-4"):
            await exchange.error("401 Unauthorized", "authentication_error", f"invalid {keys(exchange)[0]}")
        else:
            await exchange.stream(hello())

    async with run_service(answer) as wire, model_at(wire.url, api_key=None, key_command=counter.command) as model:
        reply = await model.complete(request(), lambda delta: None)
        assert reply.stop_reason == "end_turn"
        assert [keys(exchange)[0] for exchange in wire.requests] == ["key-1", "key-2"]
        await model.complete(request(), lambda delta: None)
        assert keys(wire.requests[-1])[0] == "key-2"
        assert await counter.command.key(refused="key-2") == "key-3"
        fault = await failure(model)
    assert (fault.kind, counter.runs) == ("credentials", 4), "a second refusal in a row is a fault, not a loop"
    assert "key-4" not in fault.message


async def test_a_key_is_replaced_after_its_time(tmp_path: Path) -> None:
    counter = Counter(tmp_path, ttl_ms="1")

    async def answer(exchange: Exchange) -> None:
        await exchange.stream(hello())

    async with run_service(answer) as wire, model_at(wire.url, api_key=None, key_command=counter.command) as model:
        for _ in range(2):
            await model.complete(request(), lambda delta: None)
            await anyio.sleep(0.01)  # longer than the key lives
    assert [keys(exchange)[0] for exchange in wire.requests] == ["key-1", "key-2"]


async def test_a_key_of_the_environment_takes_precedence(tmp_path: Path) -> None:
    counter = Counter(tmp_path)

    async def answer(exchange: Exchange) -> None:
        await exchange.stream(hello())

    async with run_service(answer) as wire, model_at(wire.url, api_key="mine", key_command=counter.command) as model:
        await model.complete(request(), lambda delta: None)
    assert (keys(wire.requests[0]), counter.runs) == (("mine", "Bearer mine"), 0)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("echo no vault >&2; exit 3", "ended with exit code 3: no vault"),
        ("true", "printed nothing on its standard output"),
        ("echo your key: abc", "printed more than a key"),
        ("yes", "printed more than 16,384 bytes"),
        ("kill -9 $$", "was ended by a signal"),
    ],
)
async def test_a_command_without_a_key_is_a_fault_that_says_what_it_did(command: str, reason: str) -> None:
    keys_of = KeyCommand(command, {"PATH": "/usr/bin:/bin"}, "settings.json:3: apiKeyHelper")
    with pytest.raises(CredentialsMissing, match=rf"the command in settings.json:3: apiKeyHelper {reason}"):
        await keys_of.key()
    async with model_at("http://127.0.0.1:9", api_key=None, key_command=keys_of) as model:
        fault = await failure(model)
    assert fault.kind == "credentials"
    assert reason in fault.message
