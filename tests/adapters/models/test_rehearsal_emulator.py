"""The emulator over real HTTP: replies, streams, faults, and limits look to clients like those of the API."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import pytest
from tests.adapters.models.rehearsal_wire import HEADERS, body, events, post, run_emulator, sdk

from callboard.adapters.models.rehearsal.api import ModelSpec
from callboard.adapters.models.rehearsal.emulator import Emulator, EmulatorOptions, serve
from callboard.adapters.models.rehearsal.replies import (
    SimulatedReply,
    SimulatedRequest,
    call,
    say,
    text,
    thinking,
    tool_use,
)
from callboard.adapters.models.rehearsal.scenario import Scenario
from callboard.adapters.models.rehearsal.scenario_file import load_scenario

pytestmark = pytest.mark.anyio

Json = dict[str, Any]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_the_sdk_reads_a_streamed_reply_with_every_kind_of_block() -> None:
    reply = SimulatedReply(
        (thinking("let me see"), text("I will read it. " * 9), tool_use("read", {"path": "ä.py", "n": [1]}))
    )
    async with (
        run_emulator(lambda _: reply) as emulator,
        sdk(emulator) as client,
        client.messages.stream(**body(thinking={"type": "adaptive"})) as stream,
    ):
        kinds = [event.type async for event in stream]
        message = await stream.get_final_message()
    assert message.stop_reason == "tool_use"
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[1].text == "I will read it. " * 9
    assert message.content[2].input == {"path": "ä.py", "n": [1]}
    assert message.usage.output_tokens > 40
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"


async def test_a_stream_has_the_events_of_the_api_in_its_order() -> None:
    async with run_emulator(lambda _: SimulatedReply((text("hi"), tool_use("read", {"path": "x" * 100})))) as emulator:
        seen = await events(emulator, body())
    assert [name for name, _ in seen] == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert all(data["type"] == name for name, data in seen)
    assert seen[0][1]["message"]["stop_reason"] is None
    assert seen[0][1]["message"]["usage"]["output_tokens"] == 1
    pieces = [data["delta"]["partial_json"] for name, data in seen[6:9]]
    assert pieces[0] == ""
    assert json.loads("".join(pieces)) == {"path": "x" * 100}
    assert seen[5][1]["content_block"]["input"] == {}
    assert seen[-2][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None, "stop_details": None}
    assert seen[-2][1]["usage"]["output_tokens"] > 25


async def test_the_input_of_a_call_is_cut_at_the_limit_of_the_request() -> None:
    lengths = list[int]()
    async with run_emulator(lambda _: call("read", {"path": "x" * 100_000})) as emulator:
        for limit in (1_000, 2_000):
            seen = await events(emulator, body(max_tokens=limit))
            pieces = [data["delta"]["partial_json"] for name, data in seen if name == "content_block_delta"]
            lengths.append(len("".join(pieces)))
            assert seen[-2][1]["delta"]["stop_reason"] == "max_tokens"
            assert seen[-2][1]["usage"]["output_tokens"] == limit
    assert 3_000 < lengths[0] < 4_000
    assert 7_000 < lengths[1] < 8_000


async def test_a_reply_that_does_not_stream_is_one_message() -> None:
    async with run_emulator(lambda _: call("read", {"path": "a"})) as emulator, sdk(emulator) as client:
        message = await client.messages.create(**body())
    assert message.content[0].type == "tool_use"
    assert message.stop_reason == "tool_use"
    assert message.id.startswith("msg_01")


async def test_a_whole_tool_loop_goes_back_and_forth() -> None:
    def answer(request: SimulatedRequest) -> SimulatedReply:
        if len(request.messages) < 20:
            return SimulatedReply(
                (thinking(f"step {len(request.messages)}"), tool_use("read", {"n": len(request.messages)}))
            )
        return say("done")

    conversation: list[Any] = [{"role": "user", "content": "go"}]
    async with run_emulator(answer) as emulator, sdk(emulator) as client:
        while True:
            request = body(messages=conversation, thinking={"type": "adaptive"})
            async with client.messages.stream(**request) as stream:
                message = await stream.get_final_message()
            if message.stop_reason != "tool_use":
                break
            conversation.append(
                {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in message.content]}
            )
            results = [b.id for b in message.content if b.type == "tool_use"]
            conversation.append(
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": i, "content": "ok"} for i in results],
                }
            )
    assert len(conversation) == 21
    assert [logged.error for logged in emulator.log] == [""] * 11


async def test_dropped_thinking_is_refused_over_the_wire() -> None:
    reply = SimulatedReply((thinking("why"), tool_use("read", {"n": 1})))
    async with run_emulator(lambda _: reply) as emulator:
        request = body(thinking={"type": "adaptive"})
        _, message = await post(emulator, request)
        answer = [{"type": "tool_result", "tool_use_id": message["content"][1]["id"], "content": "ok"}]
        history = [*request["messages"], {"role": "assistant", "content": message["content"]}]
        history.append({"role": "user", "content": answer})
        assert (await post(emulator, {**request, "messages": history}))[0] == 200
        history[1] = {"role": "assistant", "content": message["content"][1:]}
        status, refused = await post(emulator, {**request, "messages": history})
    assert status == 400
    assert "cannot be modified" in refused["error"]["message"]


# Refusals.


@pytest.mark.parametrize(
    ("request_body", "headers", "status", "kind"),
    [
        (body(), {"x-api-key": ""}, 401, "authentication_error"),
        (body(), {"anthropic-version": ""}, 400, "invalid_request_error"),
        (body(model="none"), {}, 404, "not_found_error"),
        (b"{not json", {}, 400, "invalid_request_error"),
        (b"[]", {}, 400, "invalid_request_error"),
        (b"x" * (33 * 1024 * 1024), {}, 413, "request_too_large"),
        (body(messages=[]), {}, 400, "invalid_request_error"),
    ],
)
async def test_a_refusal_has_the_status_and_shape_of_the_api(
    request_body: Json | bytes, headers: dict[str, str], status: int, kind: str
) -> None:
    async with run_emulator(lambda _: say("x")) as emulator:
        got, error = await post(emulator, request_body, **headers)
    assert (got, error["type"], error["error"]["type"]) == (status, "error", kind)
    assert error["request_id"].startswith("req_")
    assert emulator.log[0].status == status


async def test_only_given_keys_are_taken_when_keys_are_given() -> None:
    async with run_emulator(lambda _: say("x"), keys=frozenset({"good"})) as emulator:
        assert (await post(emulator, body()))[0] == 401
        assert (await post(emulator, body(), **{"x-api-key": "good"}))[0] == 200


async def test_a_prompt_over_the_window_is_too_long_in_the_words_of_the_api() -> None:
    scenario = Scenario.from_callable(lambda _: say("x"), models={"tiny": ModelSpec("tiny", window=200)})
    async with run_emulator(scenario) as emulator:
        long = [{"role": "user", "content": "word " * 300}]
        status, error = await post(emulator, body(model="tiny", messages=long))
    assert status == 400
    assert error["error"]["message"].startswith("prompt is too long: ")
    assert error["error"]["message"].endswith(" tokens > 200 maximum")


async def test_unknown_paths_and_methods_are_refused() -> None:
    async with run_emulator(lambda _: say("x")) as emulator:
        assert (await post(emulator, body(), "/v1/complete"))[0] == 404
        assert (await post(emulator, body(), "/v1/models"))[0] == 405


async def test_a_bug_of_a_model_in_code_is_a_500_and_not_a_hang() -> None:
    def broken(_: SimulatedRequest) -> SimulatedReply:
        raise ZeroDivisionError

    async with run_emulator(broken) as emulator:
        assert (await post(emulator, body()))[0] == 500


# Models, tokens, cache.


async def test_models_are_listed_and_told_one_by_one() -> None:
    async with run_emulator(lambda _: say("x")) as emulator, sdk(emulator) as client:
        names = [model.id async for model in client.models.list()]
        one = await client.models.retrieve("rehearsal")
        with pytest.raises(anthropic.NotFoundError):
            await client.models.retrieve("none")
    assert "rehearsal" in names
    assert (one.max_input_tokens, one.max_tokens) == (200_000, 64_000)


async def test_counted_tokens_are_those_of_the_usage() -> None:
    async with run_emulator(lambda _: say("x")) as emulator, sdk(emulator) as client:
        request = body()
        counted = await client.messages.count_tokens(**{n: v for n, v in request.items() if n != "max_tokens"})
        message = await client.messages.create(**request)
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.count_tokens(model="rehearsal", messages=[])
    assert counted.input_tokens == message.usage.input_tokens


async def test_a_fan_out_reads_the_cache_only_after_the_first_reply_began() -> None:
    system = [{"type": "text", "text": "long " * 2_000, "cache_control": {"type": "ephemeral"}}]
    scenario = Scenario.from_callable(lambda _: say("x"), latency_ms=30)
    async with run_emulator(scenario) as emulator:
        request = body(system=system)
        both = await asyncio.gather(post(emulator, request), post(emulator, request))
        _, later = await post(emulator, request)
    assert [reply["usage"]["cache_read_input_tokens"] for _, reply in both] == [0, 0]
    assert later["usage"]["cache_read_input_tokens"] > 2_000


# Clients, and the state that the emulator keeps.


async def test_headers_tell_who_asks_for_which_call() -> None:
    scenario = load_scenario("agents:\n  alice: [{reply: a}]\n  '*': [{reply: b}, {reply: c}]\n")
    async with run_emulator(scenario) as emulator:
        alice = {"x-callboard-agent": "s1/alice", "x-callboard-call": "7", "x-callboard-purpose": "turn"}
        assert (await post(emulator, body(), **alice))[1]["content"][0]["text"] == "a"
        assert (await post(emulator, body(), **alice))[1]["content"][0]["text"] == "a"
        assert (await post(emulator, body()))[1]["content"][0]["text"] == "b"
        bob = {"x-callboard-agent": "s1/team/bob", "x-callboard-call": "1"}
        assert (await post(emulator, body(), **bob))[1]["content"][0]["text"] == "b"
        summary = {**alice, "x-callboard-purpose": "summary"}
        assert (await post(emulator, body(), **summary))[1]["content"][0]["text"].startswith("Summary of 1 messages")
    logged = emulator.calls("alice")
    assert [(one.session, one.ordinal, one.attempt) for one in logged] == [("s1", "7", 1), ("s1", "7", 2)]
    assert emulator.calls("team/bob")[0].body == body()
    assert emulator.calls("alice", purpose="summary")


async def test_a_scenario_that_leads_nowhere_is_a_400_that_says_so() -> None:
    async with run_emulator(load_scenario("name: short\nagents: {lead: [{reply: one}]}\n")) as emulator:
        await post(emulator, body(), **{"x-callboard-call": "1"})
        status, error = await post(emulator, body(), **{"x-callboard-call": "2"})
    assert status == 400
    assert "the scenario 'short' has no step for agent 'lead', call 2" in error["error"]["message"]


async def test_the_log_keeps_only_as_many_bodies_as_it_was_told(tmp_path: Path) -> None:
    async with run_emulator(lambda _: say("x"), keep_bodies=2, log_file=tmp_path / "log") as emulator:
        for _ in range(4):
            await post(emulator, body())
    assert [logged.body is not None for logged in emulator.log] == [False, False, True, True]
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["status"] for line in lines] == [200] * 4
    assert "k" not in [value for logged in emulator.log for value in logged.headers.values()]


async def test_many_callers_are_served_at_once() -> None:
    scenario = Scenario.from_callable(lambda request: say(request.agent), latency_ms=200)
    async with (
        run_emulator(scenario) as emulator,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):

        async def one(number: int) -> str:
            headers = {**HEADERS, "x-callboard-agent": f"s/a{number}"}
            async with session.post(emulator.url + "/v1/messages", json=body(), headers=headers) as response:
                return (await response.json())["content"][0]["text"]

        replies = await asyncio.gather(*(one(n) for n in range(60)))
    assert replies == [f"a{n}" for n in range(60)]
    assert emulator.most_in_flight > 30


async def test_closing_cuts_what_is_in_flight_and_closing_twice_is_fine() -> None:
    started = asyncio.Event()

    async def never(_: SimulatedRequest) -> SimulatedReply:
        started.set()
        await asyncio.Event().wait()
        return say("x")

    emulator = await serve(Scenario.from_callable(never))
    asking: Awaitable[Any] = asyncio.ensure_future(post(emulator, body()))
    await started.wait()
    await asyncio.wait_for(emulator.aclose(), 5)
    await emulator.aclose()
    with pytest.raises(aiohttp.ClientError):
        await asking


@pytest.mark.slow
async def test_as_a_process_it_says_where_it_listens_and_remembers_over_a_kill(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("name: p\nagents: {lead: [{reply: one}, {reply: two}]}\n")
    command = [sys.executable, "-m", "callboard.adapters.models.rehearsal", str(tmp_path / "s.yaml")]

    async def ask(ordinal: int) -> str:
        process = await asyncio.create_subprocess_exec(
            *command, "--state", str(tmp_path / "state"), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        emulator = Emulator(Scenario("only its url"), EmulatorOptions())
        emulator.url = line.removeprefix("listening on ").strip()
        try:
            return (await post(emulator, body(), **{"x-callboard-call": str(ordinal)}))[1]["content"][0]["text"]
        finally:
            process.kill()
            await process.wait()

    assert [await ask(1), await ask(1), await ask(2)] == ["one", "one", "two"]


@pytest.mark.slow
async def test_as_a_process_it_refuses_a_bad_scenario_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("agents: {lead: [{replay: one}]}\n")
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "callboard.adapters.models.rehearsal", str(tmp_path / "s.yaml")],
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 3
    assert "s.yaml:1: agents.lead[0].replay: is not a field here" in errors.decode()


@pytest.mark.parametrize(
    ("option", "content", "message"),
    [
        ("--state", '{"session": "s"}\n', ":1: is not a record of a reply"),
        ("--state", "\n", ":1: is not a record of a reply"),
        ("--state", None, ": cannot be written: No such file or directory"),
        ("--log", None, ": cannot be written: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_at_the_start(
    option: str, content: str | None, message: str, tmp_path: Path
) -> None:
    scenario, file = tmp_path / "s.yaml", tmp_path / "file"
    scenario.write_text("agents: {lead: [{reply: one}]}\n")
    if content is None:
        file = tmp_path / "missing" / "file"
    else:
        file.write_text(content)
    command = [sys.executable, "-m", "callboard", "rehearse", "serve", str(scenario), option, str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr.startswith(f"callboard: {file}{message}")) == (3, True), ran.stderr


def test_ctrl_c_ends_it_like_other_commands(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("agents: {lead: [{reply: one}]}\n")
    command = [sys.executable, "-m", "callboard", "rehearse", "serve", str(tmp_path / "s.yaml")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")


async def test_over_its_rate_a_client_is_told_when_to_come_back() -> None:
    now = [1_000.0]
    scenario = load_scenario("rate: {requests: 2}\nagents: {lead: [{reply: x, repeat: forever}]}\n")
    async with run_emulator(scenario, clock=lambda: now[0]) as emulator, sdk(emulator) as client:
        first = await client.messages.with_raw_response.create(**body())
        assert first.headers["anthropic-ratelimit-requests-remaining"] == "1"
        assert first.headers["anthropic-ratelimit-requests-reset"] == "1970-01-01T00:17:40Z"
        now[0] += 50
        await client.messages.create(**body())
        with pytest.raises(anthropic.RateLimitError) as caught:
            await client.messages.create(**body())
        assert caught.value.response.headers["retry-after"] == "10"
        assert caught.value.response.headers["anthropic-ratelimit-requests-remaining"] == "0"
        now[0] += 10
        await client.messages.create(**body())
