"""The service counts a request's tokens: it gets the same bytes, and one that cannot count gives a typed error."""

from __future__ import annotations

import json
from typing import Any, cast

import anyio
import pytest
from tests.adapters.models.anthropic_wire import Exchange, model_at, request, run_service
from tests.adapters.models.rehearsal_wire import run_emulator
from tests.engine.agent.test_one_agent import Echo, tools

from callboard.adapters.models.anthropic.http import body_pieces
from callboard.adapters.models.rehearsal.replies import SimulatedReply, text, tool_use
from callboard.ports.model import CannotCount, ModelRequest
from callboard.testing import World

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def counting(**changes: Any) -> ModelRequest:
    return request(purpose="count", shared_system=b'[{"type":"text","text":"s"}]', tools=b'[{"name":"t"}]', **changes)


async def test_what_is_counted_are_the_bytes_of_the_call_without_its_output() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.answer("200 OK", b'{"input_tokens": 2095}', "content-type: application/json")

    async with run_service(answer) as wire, model_at(wire.url) as model:
        assert await model.count(counting()) == 2_095
        assert wire.requests[0].head.startswith(b"POST /v1/messages/count_tokens ")
    call = json.loads(b"".join(body_pieces(request(shared_system=counting().system, tools=counting().tools))))
    assert json.loads(wire.requests[0].body) == {k: v for k, v in call.items() if k not in ("max_tokens", "stream")}


@pytest.mark.parametrize("status", ["404 Not Found", "405 Method Not Allowed", "429 Slow", "500 Oops", "413 Large"])
async def test_a_service_that_cannot_is_a_typed_no(status: str) -> None:
    async def refuse(exchange: Exchange) -> None:
        await exchange.error(status, "not_found_error", "no such thing for sk-test-0123456789")

    async with run_service(refuse) as wire, model_at(wire.url) as model:
        with pytest.raises(CannotCount, match=status[:3]) as caught:
            await model.count(counting())
        assert len(wire.requests) == 1, "not retried"
    assert "sk-test" not in str(caught.value)
    assert caught.value.fault is not None, "the fault shows if a retry makes sense"
    assert (caught.value.fault.status, "sk-test" in caught.value.fault.message) == (int(status[:3]), False)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"input_tokens": "5"}', b'{"input_tokens": -1}', b"<html>"])
async def test_an_answer_without_a_count_is_a_no(body: bytes) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.answer("200 OK", body, "content-type: application/json")

    async with run_service(answer) as wire, model_at(wire.url) as model:
        with pytest.raises(CannotCount):
            await model.count(counting())


async def test_a_lost_connection_and_silence_are_a_no() -> None:
    async def leave(exchange: Exchange) -> None:
        exchange.reset()

    async def wait(exchange: Exchange) -> None:
        await anyio.sleep_forever()

    async with run_service(leave) as wire, model_at(wire.url) as model:
        with pytest.raises(CannotCount) as lost:
            await model.count(counting())
    async with run_service(wait) as wire, model_at(wire.url) as model:
        with pytest.raises(CannotCount, match="no answer") as silent:
            await model.count(counting(total_timeout=0.05))
    assert [no.value.fault and no.value.fault.kind for no in (lost, silent)] == ["connection", "silence"]


async def test_a_session_over_http_counts_once_and_the_strict_service_takes_it() -> None:
    replies = [tool_use("echo", {"text": "x"}), text("done")]

    async def long(given: dict[str, Any]) -> str:
        return "word" * 40_000

    spec = {"model": "rehearsal", "models": {"rehearsal": {"window": 50_000, "max_output": 8_000}}}
    async with (
        run_emulator(lambda asked: SimulatedReply((replies[int(asked.ordinal) - 1],))) as emulator,
        model_at(emulator.url) as model,
    ):
        world = World(cast("Any", model), tools(Echo(act=long)), spec=spec)
        async with world.session() as team:
            await team.prompt("go")
            await team.quiet()
            assert team.state("lead").turns.last_text == "done"
            assert not team.state("lead").model.uncountable
            assert (await team.journal("lead")).count("tokens_counted") == 1
    counts = [logged for logged in emulator.log if logged.path == "/v1/messages/count_tokens"]
    assert [logged.status for logged in counts] == [200]
