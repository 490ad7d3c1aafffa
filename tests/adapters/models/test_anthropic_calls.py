"""Successful calls: the request, the reply, the use of connections, and the cost of many at once."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from types import FrameType

import anyio
import pytest
from tests.adapters.models.anthropic_wire import (
    HEAD,
    Exchange,
    RecordedDeltas,
    call,
    end,
    event,
    hello,
    model_at,
    request,
    respond_with,
    run_service,
    start,
    text,
)

from callboard.adapters.models.anthropic.client import AnthropicModel
from callboard.adapters.models.anthropic.http import body_pieces
from callboard.adapters.models.rehearsal.emulator import serve
from callboard.adapters.models.rehearsal.replies import SimulatedReply, thinking, tool_use
from callboard.adapters.models.rehearsal.replies import text as said
from callboard.adapters.models.rehearsal.scenario import Scenario
from callboard.ports.model import CallFault, ModelRequest
from callboard.types.errors import CredentialsMissing, SettingsError
from callboard.types.rate_limits import Allowance, Rates

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # aiohttp runs only on asyncio


async def say_hello(exchange: Exchange) -> None:
    await exchange.stream(hello())


async def test_a_reply_comes_back_whole_and_streams_on_the_way() -> None:
    shown = RecordedDeltas()
    async with run_service(say_hello) as wire, model_at(wire.url) as model:
        reply = await model.complete(request(), shown)
    assert reply.blocks == ({"type": "text", "text": "Hello"},)
    assert (reply.stop_reason, reply.model, reply.message_id) == ("end_turn", "m-1", "msg_1")
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cost_usd) == (10, 7, 0.0)
    assert [delta.text for delta in shown.deltas if delta.kind != "event"] == ["Hel", "lo"]
    events = [delta.event["type"] for delta in shown.deltas if delta.event is not None]
    assert (events[0], events[-1]) == ("message_start", "message_stop")


async def test_the_body_is_what_was_ready_and_the_headers_say_who_asks() -> None:
    asked = request(
        agent="alice",
        ordinal=42,
        purpose="summary",
        shared_system=b'[{"type":"text","text":"You \xe2\x86\x92 read."}]',
        tools=b'[{"name":"bash","input_schema":{"type":"object"}}]',
        messages=[b'{"role":"user","content":"a"}', b'{"role":"assistant","content":"b"}'],
    )
    async with run_service(say_hello) as wire, model_at(wire.url) as model:
        await model.complete(asked, RecordedDeltas())
    sent = wire.requests[0]
    body = json.loads(sent.body)
    assert list(body) == ["model", "max_tokens", "stream", "system", "tools", "messages"]
    assert (body["model"], body["max_tokens"], body["stream"]) == ("claude-test", 100, True)
    assert asked.system in sent.body
    assert b",".join(asked.messages) in sent.body
    head = sent.head.lower()
    assert head.startswith(b"post /v1/messages http/1.1")
    for line in (
        b"x-callboard-agent: s1/alice",
        b"x-callboard-call: 42",
        b"x-callboard-purpose: summary",
        b"authorization: bearer sk-test-0123456789",
        b"x-api-key: sk-test-0123456789",
        b"anthropic-version: ",
        b"content-type: application/json",
    ):
        assert b"\r\n" + line in head


def lines_of(head: bytes) -> set[bytes]:
    return {line for line in head.lower().split(b"\r\n")[1:] if line}


async def test_every_call_has_the_headers_of_the_first() -> None:
    async with run_service(respond_with(hello())) as wire, model_at(wire.url) as model:
        await model.complete(request(ordinal=1), RecordedDeltas())
        await model.complete(request(ordinal=2, agent="ä/b", max_tokens=7), RecordedDeltas())
    first, second = (one.head for one in wire.requests)
    assert first.splitlines()[0] == second.splitlines()[0] == b"POST /v1/messages HTTP/1.1"
    size = len(wire.requests[1].body)
    assert lines_of(second) - lines_of(first) == {
        b"content-length: %d" % size,
        b"x-callboard-agent: s1/%c3%a4/b",
        b"x-callboard-call: 2",
    }
    assert {line.split(b":")[0] for line in lines_of(first)} == {line.split(b":")[0] for line in lines_of(second)}
    assert any(b"sk-test-0123456789" in line for line in lines_of(second))
    assert json.loads(wire.requests[1].body)["max_tokens"] == 7


@pytest.mark.parametrize("calls_before", [0, 1])
async def test_a_call_after_the_end_is_a_fault(calls_before: int) -> None:
    async with run_service(respond_with(hello())) as wire, model_at(wire.url) as model:
        for _ in range(calls_before):
            await model.complete(request(), RecordedDeltas())
        await model.aclose()
        with pytest.raises(CallFault) as caught:
            await model.complete(request(), RecordedDeltas())
    assert caught.value.fault.kind == "connection"


async def test_empty_tools_and_system_are_left_out() -> None:
    body = json.loads(b"".join(body_pieces(request())))
    assert set(body) == {"model", "max_tokens", "stream", "messages"}


async def test_a_body_of_many_megabytes_arrives_whole() -> None:
    big = json.dumps({"role": "user", "content": "x" * 3_000_000}).encode()
    async with run_service(say_hello) as wire, model_at(wire.url) as model:
        await model.complete(request(messages=[big]), RecordedDeltas())
    assert json.loads(wire.requests[0].body)["messages"] == [json.loads(big)]
    assert b"content-length: %d\r\n" % len(wire.requests[0].body) in wire.requests[0].head.lower()


async def test_an_auth_token_goes_out_as_a_bearer() -> None:
    async with run_service(say_hello) as wire, model_at(wire.url, api_key=None, auth_token="tok") as model:
        await model.complete(request(), RecordedDeltas())
    assert b"\r\nauthorization: bearer tok\r\n" in wire.requests[0].head.lower()
    assert b"x-api-key" not in wire.requests[0].head.lower()


@pytest.mark.parametrize("key", [None, "", "  ", "two words", "line\nbreak", "schlüssel"])
def test_without_a_usable_key_it_says_which_variables_to_set(key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "from the environment, which settings read and adapters do not")
    with pytest.raises(CredentialsMissing, match="ANTHROPIC_API_KEY") as caught:
        AnthropicModel(base_url="http://127.0.0.1:1", api_key=key)
    assert not key or not key.strip() or key.strip() not in str(caught.value)


@pytest.mark.parametrize("url", ["localhost:80", "ftp://x", "http://", "::", "http://[1", "http://h:x"])
def test_a_base_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(SettingsError, match="URL"):
        AnthropicModel(base_url=url, api_key="k")


@pytest.mark.parametrize("url", ["", "  ", "api.example.com"])
def test_an_unusable_base_url_of_the_environment_is_refused_by_name(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
    with pytest.raises(SettingsError, match="ANTHROPIC_BASE_URL"):
        AnthropicModel(base_url=None, api_key="k")
    AnthropicModel(base_url="http://127.0.0.1:1", api_key="k")


async def test_calls_share_one_connection_one_after_the_other() -> None:
    async with run_service(say_hello) as wire, model_at(wire.url) as model:
        for _ in range(5):
            await model.complete(request(), RecordedDeltas())
    assert (len(wire.requests), wire.connections) == (5, 1)


async def test_the_reply_does_not_wait_for_the_end_of_the_connection() -> None:
    async def say(exchange: Exchange) -> None:
        exchange.writer.write(HEAD)
        await exchange.chunk(hello())
        await exchange.reader.read()  # the last chunk never comes

    async with run_service(say) as wire, model_at(wire.url) as model:
        with anyio.fail_after(180):
            reply = await model.complete(request(), RecordedDeltas())
    assert reply.stop_reason == "end_turn"


async def test_cancelling_ends_the_connection_and_leaves_the_pool_whole() -> None:
    stuck = True

    async def say(exchange: Exchange) -> None:
        if not stuck:
            await exchange.stream(hello())
            return
        exchange.writer.write(HEAD)
        await exchange.chunk(start() + text(0, "half"))
        await exchange.reader.readexactly(1)  # returns when the client leaves

    async with run_service(say) as wire, model_at(wire.url) as model:
        streaming = asyncio.Event()
        for _ in range(20):
            streaming.clear()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(model.complete, request(), lambda _: streaming.set())
                await streaming.wait()
                tasks.cancel_scope.cancel()
        with anyio.fail_after(180):
            for exchange in wire.requests:
                await exchange.disconnected.wait()
        stuck = False
        reply = await model.complete(request(), RecordedDeltas())
    assert reply.stop_reason == "end_turn"


async def test_rate_headers_are_told_as_the_head_of_an_answer_comes_and_with_a_refusal() -> None:
    told: list[Rates] = []
    left = b"".join(
        b"Anthropic-RateLimit-Requests-%s: %s\r\n" % pair
        for pair in ((b"Limit", b"10"), (b"Remaining", b"9"), (b"Reset", b"2026-01-01T00:00:06Z"))
    )
    date = b"Date: Thu, 01 Jan 2026 00:00:00 GMT\r\n"

    async def say(exchange: Exchange) -> None:
        if len(wire.requests) == 1:
            exchange.writer.write(HEAD.replace(b"request-id", date + left + b"request-id"))
            await exchange.chunk(hello())
            exchange.writer.write(b"0\r\n\r\n")
            return
        headers = (date + left.replace(b": 9", b": 0")).decode().split("\r\n")[:-1]
        await exchange.error("429 Slow", "rate_limit_error", "slow", *headers)

    async with run_service(say) as wire, model_at(wire.url) as model:
        await model.complete(replace(request(), on_head=told.append), RecordedDeltas())
        assert told == [{"requests": Allowance(10, 9, 6)}]
        with pytest.raises(CallFault, match="slow") as refused:
            await model.complete(replace(request(), on_head=told.append), RecordedDeltas())
    assert refused.value.rates == {"requests": Allowance(10, 0, 6)}
    assert len(told) == 1, "a refusal is reported once, with its fault"


async def test_against_the_emulator_every_kind_of_block_comes_back_fit_to_be_sent_again() -> None:
    def answer(asked: object) -> SimulatedReply:
        if getattr(asked, "ordinal", "") == "2":
            return SimulatedReply((said("done"),))
        return SimulatedReply(
            (thinking("hm → ok"), said("Let me look."), tool_use("look", {}), tool_use("look", {"p": "ü🙂"}))
        )

    emulator = await serve(Scenario.from_callable(answer))
    look = {"name": "look", "input_schema": {"type": "object"}}
    model_id = emulator.scenario.default_model
    history = [{"role": "user", "content": "go"}]
    try:
        async with model_at(emulator.url) as model:
            asked = request(model=model_id, tools=json.dumps([look]).encode(), max_tokens=4000)
            first = await model.complete(request(**_next_request(asked, history, 1)), RecordedDeltas())
            history.append({"role": "assistant", "content": list(first.blocks)})
            calls = [b for b in first.blocks if b["type"] == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": b["id"], "content": "ok"} for b in calls]
            history.append({"role": "user", "content": results})
            second = await model.complete(request(**_next_request(asked, history, 2)), RecordedDeltas())
    finally:
        await emulator.aclose()
    assert first.stop_reason == "tool_use"
    assert [b["input"] for b in calls] == [{}, {"p": "ü🙂"}]
    assert second.blocks == ({"type": "text", "text": "done"},)


def _next_request(asked: ModelRequest, history: list[dict[str, object]], ordinal: int) -> dict[str, object]:
    return {
        "model": asked.model,
        "tools": asked.tools,
        "max_tokens": asked.max_tokens,
        "ordinal": ordinal,
        "messages": [json.dumps(message).encode() for message in history],
    }


@pytest.mark.slow
async def test_two_hundred_calls_at_once_wait_for_the_service_once() -> None:
    asked, all_asked = 0, asyncio.Event()

    async def say(exchange: Exchange) -> None:
        nonlocal asked
        asked += 1
        if asked == 200:
            all_asked.set()
        await all_asked.wait()  # answered only when all requests are in, so no call may wait for another
        await exchange.stream(hello())

    async with run_service(say) as wire, model_at(wire.url) as model:
        replies = 0

        async def one(number: int) -> None:
            nonlocal replies
            await model.complete(request(agent=f"mate-{number}"), RecordedDeltas())
            replies += 1

        with anyio.fail_after(180):
            async with anyio.create_task_group() as tasks:
                for number in range(200):
                    tasks.start_soon(one, number)
    assert replies == 200


async def test_a_call_costs_little_and_no_more_when_the_history_is_long() -> None:
    message = json.dumps({"role": "user", "content": "x" * 2_000}).encode()

    async def calls_of(length: int) -> float:
        """Return the function calls in this thread, client and server, for a call with a history of this length."""
        asked = request(messages=[message] * length)
        for _ in range(3):
            await model.complete(asked, RecordedDeltas())
        made = 0

        def count(frame: FrameType, event: str, arg: object) -> None:
            nonlocal made
            made += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            for _ in range(5):
                await model.complete(asked, RecordedDeltas())
        finally:
            sys.setprofile(None)
        return made / 5

    async with run_service(say_hello) as wire, model_at(wire.url) as model:
        short, long = await calls_of(1), await calls_of(200)
        wire.requests.clear()
    assert long - short < 5 * 200, f"{short:.0f}, then {long:.0f}: too much work for each of 200 messages"
    assert short < 4_000


async def test_calls_of_many_blocks_keep_their_places() -> None:
    parts = start() + text(0, " ", "\n") + call(1, "", '{"a"', ": 1}") + text(2, "x") + end("tool_use")

    async def say(exchange: Exchange) -> None:
        await exchange.stream(event("ping"), parts, event("ping"))

    async with run_service(say) as wire, model_at(wire.url) as model:
        reply = await model.complete(request(), RecordedDeltas())
    assert [b["type"] for b in reply.blocks] == ["tool_use", "text"]
    assert reply.blocks[0]["input"] == {"a": 1}
