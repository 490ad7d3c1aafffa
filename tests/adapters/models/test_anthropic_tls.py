"""A real TLS server with a self-signed certificate: unknown to the machine, then named in SSL_CERT_FILE."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from tests.adapters.models.anthropic_wire import Exchange, RecordedDeltas, Wire, hello, model_at, request

from callboard.ports.model import CallFault, CannotCount
from callboard.testing import World

OPENSSL = shutil.which("openssl")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed, so there is no certificate"),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with the key and the self-signed certificate of `localhost`."""
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    assert OPENSSL is not None, "tests without openssl are skipped"
    named = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    files = ["-keyout", str(key), "-out", str(cert)]
    made = [OPENSSL, "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files, *named]
    subprocess.run(made, check=True, capture_output=True)
    (folder / "both.pem").write_bytes(key.read_bytes() + cert.read_bytes())
    return folder / "both.pem"


@asynccontextmanager
async def over_tls(certificate: Path) -> AsyncGenerator[Wire]:
    """Serve a short reply over TLS."""

    async def say(exchange: Exchange) -> None:
        await exchange.stream(hello())

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    wire = Wire(say)
    server = await asyncio.start_server(wire.serve, "localhost", 0, ssl=context)
    wire.url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
    try:
        yield wire
    finally:
        server.close()


async def test_a_certificate_that_nobody_trusts_is_named_and_neither_key_nor_words_are_sent(certificate: Path) -> None:
    async with over_tls(certificate) as wire, model_at(wire.url) as model:
        with anyio.fail_after(180):
            with pytest.raises(CallFault) as caught:
                await model.complete(request(), RecordedDeltas())
            with pytest.raises(CannotCount, match=r"(?i)certificate"):
                await model.count(request(purpose="count"))
        assert wire.requests == []
    fault = caught.value.fault
    assert fault.kind == "connection"
    assert "certificate verify failed" in fault.message.lower()
    assert "SSL_CERT_FILE" in fault.message, "the message names the remedy"
    assert fault.retry is False
    assert not fault.may_bill


async def test_one_that_is_named_in_the_environment_is_trusted(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.with_name("cert.pem")))
    async with over_tls(certificate) as wire, model_at(wire.url) as model:
        with anyio.fail_after(180):
            assert (await model.complete(request(), RecordedDeltas())).stop_reason == "end_turn"
            assert (await model.complete(request(), RecordedDeltas())).stop_reason == "end_turn"
        assert len(wire.requests) == 2


async def test_a_turn_ends_with_the_certificate_as_its_reason_and_is_not_tried_again(certificate: Path) -> None:
    async with over_tls(certificate) as wire, model_at(wire.url) as model:
        world = World(cast("Any", model), spec={"attempts": 5})
        async with world.session() as team:
            await team.prompt("go")
            with anyio.fail_after(180):
                await team.quiet()
            state = team.state("lead")
            assert state.turns.last_reason == "failed"
            assert "1 attempt in" in state.turns.last_why
            assert "SSL_CERT_FILE" in state.turns.last_why
            assert "certificate verify failed" in state.turns.last_why.lower()
        assert wire.requests == []
