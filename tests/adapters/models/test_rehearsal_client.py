"""A rehearsal in the same process works without the SDK, and a service sees no relevant difference."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.adapters.models.anthropic_wire import (
    HEAD,
    Exchange,
    RecordedDeltas,
    Respond,
    hello,
    model_at,
    request,
    respond_with,
    run_service,
    start,
    text,
)

from callboard.adapters.models.anthropic.http import HttpModel
from callboard.adapters.models.rehearsal.client import Loopback
from callboard.ports.model import CallFault, CannotCount, ModelRequest
from callboard.types.records import Fault

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def open_model(url: str) -> AsyncGenerator[HttpModel, None]:
    model = HttpModel(Loopback(url))
    try:
        yield model
    finally:
        await model.aclose()


async def fault_in(model: HttpModel, asked: ModelRequest) -> Fault:
    with pytest.raises(CallFault) as raised:
        await model.complete(asked, RecordedDeltas())
    return raised.value.fault


async def test_its_calls_say_all_that_a_service_wants_to_hear() -> None:
    async with run_service(respond_with(hello())) as wire, open_model(wire.url) as model:
        replies = [await model.complete(request(ordinal=number), RecordedDeltas()) for number in (1, 2)]
    assert [reply.blocks for reply in replies] == [({"type": "text", "text": "Hello"},)] * 2
    for sent in wire.requests:
        head = sent.head.lower()
        assert head.startswith(b"post /v1/messages http/1.1\r\n")
        for line in (b"anthropic-version: 2023-06-01", b"x-api-key: ", b"content-type: application/json"):
            assert b"\r\n" + line in head
    assert wire.requests[0].body == wire.requests[1].body


async def overloaded(exchange: Exchange) -> None:
    await exchange.error("529 Overloaded", "overloaded_error", "Overloaded", "retry-after: 3")


async def cut(exchange: Exchange) -> None:
    exchange.writer.write(HEAD)
    await exchange.chunk(start() + text(0, "Hel"))
    exchange.reset()


@pytest.mark.parametrize("say", [overloaded, cut])
async def test_a_fault_is_of_the_kind_that_it_has_through_the_sdk_in_every_call(say: Respond) -> None:
    async with run_service(say) as wire, open_model(wire.url) as ours, model_at(wire.url) as sdk:
        faults = [await fault_in(model, request(ordinal=n)) for model in (ours, sdk) for n in (1, 2)]
    told = {(fault.kind, fault.status, fault.retry_after) for fault in faults}
    assert len(told) == 1
    assert {fault.kind for fault in faults} <= {"overloaded", "connection"}


async def test_a_service_that_is_gone_and_a_client_that_is_closed_are_faults_of_the_connection() -> None:
    gone = HttpModel(Loopback("http://127.0.0.1:1"))
    assert (await fault_in(gone, request())).kind == "connection"
    with pytest.raises(CannotCount):
        await gone.count(request(purpose="count"))
    await gone.aclose()
    assert (await fault_in(gone, request())).kind == "connection"


def test_a_rehearsal_loads_no_sdk(tmp_path: Path) -> None:
    scenario = tmp_path / "s.yaml"
    scenario.write_text("name: s\nagents:\n  lead:\n    - otherwise: true\n      reply: Hello.\n")
    code = (
        "import sys\nfrom callboard.__main__ import main\n"
        f"code = main(['run', '--model', 'rehearsal:{scenario}', 'Hi.'])\n"
        "print('loaded' if 'anthropic' in sys.modules else 'spared', code)"
    )
    places = {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("STATE", "DATA", "CONFIG", "CACHE")}
    work = tmp_path / "work"
    work.mkdir()
    code = f"import os\nos.environ.update({places!r})\n{code}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=work, check=False)
    assert ran.stdout.splitlines() == ["Hello.", "spared 0"], ran.stderr
