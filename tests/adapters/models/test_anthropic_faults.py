"""Every way in which a model service can fail, as the adapter reports it: on a real connection, byte by byte.

The rows of docs/model.md, "What can go wrong". The adapter raises nothing but `CallFault`.
"""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from tests.adapters.models.anthropic_wire import (
    HEAD,
    Exchange,
    RecordedDeltas,
    call,
    end,
    event,
    fault_of,
    hello,
    model_at,
    request,
    respond_with,
    run_service,
    start,
    text,
)

from callboard.adapters.models.anthropic.client import AnthropicModel
from callboard.ports.model import CallFault, Reply
from callboard.types.records import Fault

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # aiohttp runs only on asyncio


HALF = (
    start(cache_read_input_tokens=500)
    + text(0, "Half a ")
    + event("content_block_start", index=1, content_block={"type": "text", "text": "re"})
)
"""A reply that ends in the middle of its second block."""


# A stream that ended early.


@pytest.mark.parametrize("cut", [start(), HALF, start() + call(0, '{"command": "rm -r'), start() + text(0, "all")])
async def test_a_stream_that_ends_before_message_stop_is_a_lost_connection(cut: bytes) -> None:
    fault = (await fault_of(respond_with(cut))).fault
    assert fault.kind == "connection"
    assert fault.usage is not None, "tokens were counted, so they may be billed"


@pytest.mark.parametrize("depth", [150, 900, 5_000, 100_000])
async def test_an_input_that_is_nested_too_deeply_is_an_error_of_the_call(depth: int) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    async with (
        run_service(respond_with(start() + call(0, deep) + end("tool_use"))) as wire,
        model_at(wire.url) as model,
    ):
        reply = await model.complete(request(), RecordedDeltas())
    assert reply.blocks[0]["input"] == {}
    assert "nested too deeply" in reply.bad_inputs[0]


async def test_a_call_cut_at_the_token_limit_is_marked_as_unusable() -> None:
    cut = start() + call(0, '{"command": "rm -r') + end("max_tokens")
    async with run_service(respond_with(cut)) as wire, model_at(wire.url) as model:
        reply = await model.complete(request(), RecordedDeltas())
    assert reply.stop_reason == "max_tokens"
    assert reply.blocks[0]["input"] == {}
    assert "not valid JSON" in reply.bad_inputs[0]
    assert reply.cut_call == ("bash", len('{"command": "rm -r'))


@pytest.mark.parametrize("reason", [None, "tool_use", "a_new_reason"])
async def test_a_whole_reply_with_an_odd_stop_reason_is_a_reply_and_an_empty_one_is_not(reason: str | None) -> None:
    whole = respond_with(start() + text(0, "x") + end(reason))
    async with run_service(whole) as wire, model_at(wire.url) as model:
        reply = await model.complete(request(), RecordedDeltas())
    assert (reply.stop_reason, reply.blocks) == (reason or "", ({"type": "text", "text": "x"},))
    if reason != "a_new_reason":
        assert (await fault_of(respond_with(start() + end(reason)))).fault.kind == "bad_reply"


# Errors in the middle of a stream.


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("overloaded_error", "overloaded"),
        ("api_error", "server"),
        ("rate_limit_error", "rate_limited"),
        ("timeout_error", "server"),
        ("authentication_error", "credentials"),
        ("permission_error", "credentials"),
        ("billing_error", "payment"),
        ("not_found_error", "not_found"),
        ("request_too_large", "too_long"),
        ("invalid_request_error", "invalid"),
        ("something_new", "server"),
        ("", "server"),
    ],
)
async def test_an_error_event_is_classed_by_its_type_not_by_the_status_200(kind: str, expected: str) -> None:
    shown = RecordedDeltas()
    error = event("error", error={"type": kind, "message": "429 is only a number here"})
    caught = await fault_of(respond_with(HALF + error), shown=shown)
    fault = caught.fault
    assert (fault.kind, fault.type, fault.status, fault.request_id) == (expected, kind, 200, "req_1")
    assert fault.may_bill
    assert fault.usage is not None
    assert fault.usage.cache_read_input_tokens == 500
    assert caught.partial == "Half a re"
    assert expected in shown.of("dropped"), "the shown text is void, and the screen is notified"


@pytest.mark.parametrize("sent", [b"", start()[:40], HALF, HALF[:-10]])
async def test_a_reset_anywhere_is_a_lost_connection(sent: bytes) -> None:
    async def say(exchange: Exchange) -> None:
        if sent:
            exchange.writer.write(HEAD)
            await exchange.chunk(sent)
            await asyncio.sleep(0.01)  # so that the bytes are sent before the reset
        exchange.reset()

    assert (await fault_of(say)).fault.kind == "connection"


@pytest.mark.parametrize("clean", [False, True])
async def test_a_service_that_closes_the_connection_before_it_answers_may_have_billed_the_call(clean: bool) -> None:
    async def say(exchange: Exchange) -> None:
        if clean:
            exchange.writer.close()
        else:
            exchange.reset()

    fault = (await fault_of(say)).fault
    assert (fault.kind, fault.may_bill) == ("connection", True)
    assert fault.message == "the service closed the connection before it answered"


EVENTS = [
    one + b"\n\n" for one in (start() + text(0, "Hel", "lo") + call(1, '{"a":', "1}") + end("tool_use")).split(b"\n\n")
][:-1]


@pytest.mark.parametrize("whole", range(len(EVENTS)))
async def test_a_reset_before_or_inside_of_each_event_is_a_lost_connection_and_may_be_billed(whole: int) -> None:
    for inside in (0, len(EVENTS[whole]) // 2):
        sent = b"".join(EVENTS[:whole]) + EVENTS[whole][:inside]

        async def say(exchange: Exchange, sent: bytes = sent) -> None:
            exchange.writer.write(HEAD)
            await exchange.chunk(sent)
            await asyncio.sleep(0.01)  # so that the bytes are sent before the reset
            exchange.reset()

        shown = RecordedDeltas()
        caught = await fault_of(say, shown=shown)
        assert (caught.fault.kind, caught.fault.may_bill) == ("connection", True)
        assert (caught.fault.usage is None) == (whole == 0)
        assert bool(shown.of("dropped")) == (whole > 1), "the shown text is void"


async def test_a_connection_that_closes_inside_a_chunk_is_lost() -> None:
    async def say(exchange: Exchange) -> None:
        exchange.writer.write(HEAD + b"ffff\r\n" + HALF)
        await exchange.writer.drain()
        exchange.writer.close()

    assert (await fault_of(say)).fault.kind == "connection"


async def test_a_service_that_is_not_there_is_a_lost_connection() -> None:
    async with model_at("http://127.0.0.1:1") as model:
        with pytest.raises(CallFault) as caught:
            await model.complete(request(), RecordedDeltas())
    assert (caught.value.fault.kind, caught.value.fault.may_bill) == ("connection", False)
    assert caught.value.fault.message == "cannot connect to 127.0.0.1:1: Connection refused"


async def test_a_name_that_nobody_knows_is_a_lost_connection_and_cannot_be_billed() -> None:
    async with model_at("http://no-such-service.invalid") as model:
        with pytest.raises(CallFault) as caught:
            await model.complete(request(), RecordedDeltas())
    assert (caught.value.fault.kind, caught.value.fault.may_bill) == ("connection", False)
    assert caught.value.fault.message.startswith("cannot connect to no-such-service.invalid:80: ")


async def test_a_proxy_that_is_not_there_is_a_lost_connection_and_cannot_be_billed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    async with model_at("https://service.invalid") as model:
        with pytest.raises(CallFault) as caught:
            await model.complete(request(), RecordedDeltas())
    assert (caught.value.fault.kind, caught.value.fault.may_bill) == ("connection", False)
    assert "127.0.0.1" in caught.value.fault.message


async def test_plain_http_on_a_tls_url_is_a_lost_connection() -> None:
    async def say_plainly(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 The plain HTTP request was sent to HTTPS port\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(say_plainly, "127.0.0.1", 0)
    async with model_at(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}") as model:
        with pytest.raises(CallFault) as caught:
            await model.complete(request(), RecordedDeltas())
    server.close()
    assert (caught.value.fault.kind, caught.value.fault.may_bill) == ("connection", False)


@pytest.mark.parametrize(
    "garbage",
    [b"\x00\xff\x16\x03garbage\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\nx" + b"y" * 99_999],
)
async def test_garbage_instead_of_http_is_a_lost_connection(garbage: bytes) -> None:
    async def say(exchange: Exchange) -> None:
        exchange.writer.write(garbage)
        await exchange.writer.drain()
        exchange.writer.close()

    assert (await fault_of(say)).fault.kind == "connection"


# Silence.


async def hang(exchange: Exchange) -> None:
    await exchange.reader.read(1)  # until the client leaves


async def test_no_first_byte_is_silence() -> None:
    caught = await fault_of(hang, request(first_byte_timeout=0.1))
    assert (caught.fault.kind, caught.fault.type, caught.fault.may_bill) == ("silence", "first_byte", True)
    assert "no reply within 0.1 s" in caught.fault.message


async def test_silence_in_the_middle_is_noticed() -> None:
    async def say(exchange: Exchange) -> None:
        exchange.writer.write(HEAD)
        await exchange.chunk(HALF)
        await hang(exchange)

    caught = await fault_of(say, request(idle_timeout=0.1))
    assert (caught.fault.kind, caught.fault.type) == ("silence", "idle")
    assert "no content for 0.1 s in the middle" in caught.fault.message
    assert caught.partial == "Half a re"


@pytest.mark.parametrize("before", [b"", HALF])
async def test_pings_for_ever_are_silence_too(before: bytes) -> None:
    async def say(exchange: Exchange) -> None:
        exchange.writer.write(HEAD)
        await exchange.chunk(before)
        while not exchange.writer.is_closing():
            await exchange.chunk(event("ping") + b": a comment\n\n")
            await asyncio.sleep(0.02)

    caught = await fault_of(say, request(first_byte_timeout=0.2, idle_timeout=0.2))
    assert (caught.fault.kind, caught.fault.type) == ("silence", "idle" if before else "first_byte")


async def test_a_trickle_that_never_ends_runs_into_the_total_time() -> None:
    async def say(exchange: Exchange) -> None:
        exchange.writer.write(HEAD)
        await exchange.chunk(HALF)
        while not exchange.writer.is_closing():
            delta = {"type": "text_delta", "text": "."}
            await exchange.chunk(event("content_block_delta", index=1, delta=delta))
            await asyncio.sleep(0.02)

    caught = await fault_of(say, request(idle_timeout=1.0, total_timeout=0.3))
    assert (caught.fault.kind, caught.fault.type) == ("silence", "total")
    assert "longer than 0.3 s" in caught.fault.message


async def test_the_idle_limit_counts_from_the_last_content() -> None:
    ended = 0.0

    async def say(exchange: Exchange) -> None:
        nonlocal ended
        exchange.writer.write(HEAD)
        await exchange.chunk(HALF)
        for _ in range(20):
            delta = {"type": "text_delta", "text": "."}
            await exchange.chunk(event("content_block_delta", index=1, delta=delta))
            await asyncio.sleep(0.05)
        ended = time.monotonic()
        await hang(exchange)

    caught = await fault_of(say, request(idle_timeout=0.6))
    waited = time.monotonic() - ended
    assert (caught.fault.kind, caught.fault.type) == ("silence", "idle")
    assert caught.partial == "Half a re" + "." * 20, "one second of content, longer than the limit"
    assert waited >= 0.6 - 0.05 - 0.01, "the last content came before the last pause"


async def test_calls_at_the_same_time_have_their_own_limits() -> None:
    limits = {"first": 1.0, "second": 0.05, "third": 0.3}
    order: list[str] = []

    async def ask(model: AnthropicModel, name: str) -> None:
        with pytest.raises(CallFault) as caught:
            await model.complete(request(agent=name, first_byte_timeout=limits[name]), RecordedDeltas())
        assert caught.value.fault.message == f"no reply within {limits[name]:g} s"
        order.append(name)

    async with run_service(hang) as wire, model_at(wire.url) as model, asyncio.TaskGroup() as group:
        for name in limits:
            group.create_task(ask(model, name))
    assert order == ["second", "third", "first"]


async def test_pings_between_contents_do_not_hurt() -> None:
    async def say(exchange: Exchange) -> None:
        await exchange.stream(event("ping"), start(), event("ping"), text(0, "a"), event("ping"), end())

    async with run_service(say) as wire, model_at(wire.url) as model:
        assert (await model.complete(request(), RecordedDeltas())).blocks[0]["text"] == "a"


# Malformed answers.


@pytest.mark.parametrize("body", [b'{"ok": true}', b"<html></html>", b"null"])
async def test_a_200_that_is_no_stream_is_a_bad_reply(body: bytes) -> None:
    async def say(exchange: Exchange) -> None:
        await exchange.answer("200 OK", body, "content-type: application/json")

    assert (await fault_of(say)).fault.kind == "bad_reply"


async def test_a_200_with_nothing_is_a_lost_connection() -> None:
    async def say(exchange: Exchange) -> None:
        await exchange.answer("200 OK", b"")

    assert (await fault_of(say)).fault.kind == "connection"


def raw(data: str) -> bytes:
    return f"data: {data}\n\n".encode()


OPEN = event("content_block_start", index=0, content_block={"type": "text", "text": ""})


@pytest.mark.parametrize(
    "parts",
    [
        start() + raw('{"type": "content_block_delta", "index": 0, "del'),
        start() + raw("[1]"),
        start() + raw("[" * 100_000),
        raw('{"type": "message_start"}'),
        raw('{"type": "message_start", "message": null}'),
        raw('{"type": "message_start", "message": {"usage": {"input_tokens": "many"}}}'),
        raw('{"type": "message_start", "message": {"usage": {"input_tokens": -1}}}'),
        start() + start(),
        text(0, "before the start"),
        start() + text(1, "a place is missing"),
        start() + event("content_block_delta", index=0, delta={"type": "text_delta", "text": "x"}),
        start() + OPEN + event("content_block_delta", index=0, delta={"type": "text_delta", "text": 5}),
        start() + OPEN + event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": ""}),
        start() + OPEN + event("content_block_delta", index=True, delta=[]),
        start() + OPEN + end(),
        start() + event("content_block_stop", index=0),
        start() + event("content_block_start", index=0, content_block={"type": "text"}),
        start() + event("content_block_start", index=0, content_block={"type": None}),
        start() + event("content_block_start", index=0, content_block={"type": "tool_use", "id": "a", "name": 1}),
        start() + call(0, name="bash; rm") + end("tool_use"),
        start() + call(0, call_id="") + end("tool_use"),
        start() + call(0) + call(1) + end("tool_use"),
        start() + event("message_delta", delta={"stop_reason": 5}) + event("message_stop"),
    ],
)
async def test_events_of_a_wrong_shape_are_a_bad_reply(parts: bytes) -> None:
    assert (await fault_of(respond_with(parts))).fault.kind == "bad_reply"


async def test_unknown_events_are_passed_over() -> None:
    odd = (
        event("a_new_kind", x=1) + raw('{"no": "type"}') + raw('{"type": ["list"]}') + b"id: 4\nretry: 5\nevent: x\n\n"
    )

    async with (
        run_service(respond_with(odd + start() + odd + text(0, "ok") + odd + end())) as wire,
        model_at(wire.url) as model,
    ):
        reply: Reply = await model.complete(request(), RecordedDeltas())
    assert reply.blocks == ({"type": "text", "text": "ok"},)


async def test_a_foreign_encoding_that_does_not_decode_is_a_lost_connection() -> None:
    async def say(exchange: Exchange) -> None:
        await exchange.answer("200 OK", hello(), "content-encoding: gzip", "content-type: text/event-stream")

    assert (await fault_of(say)).fault.kind == "connection"


async def test_a_fault_is_a_value_that_loads_again() -> None:
    async def say(exchange: Exchange) -> None:
        await exchange.error("429 Slow", "rate_limit_error", "x", "retry-after: 3")

    fault = (await fault_of(say)).fault
    assert Fault.model_validate(json.loads(fault.encode())) == fault
