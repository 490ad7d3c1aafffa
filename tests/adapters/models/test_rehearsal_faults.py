"""A client sees the emulator's faults as it sees those of the real service."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import anthropic
import httpx2
import pytest
from tests.adapters.models.rehearsal_wire import body, completes, events, faulty_reply, post, run_emulator, sdk

from callboard.adapters.models.rehearsal.chaos import Chaos
from callboard.adapters.models.rehearsal.replies import SimulatedFault, SimulatedReply, say, text, tool_use
from callboard.adapters.models.rehearsal.scenario_file import load_scenario

pytestmark = pytest.mark.anyio

Json = dict[str, Any]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (SimulatedFault(status=529), anthropic.APIStatusError),
        (SimulatedFault(status=500), anthropic.InternalServerError),
        (SimulatedFault(status=403), anthropic.PermissionDeniedError),
        (SimulatedFault(status=429, retry_after=7), anthropic.RateLimitError),
        (SimulatedFault(html=502), anthropic.InternalServerError),
        (SimulatedFault(error_event="overloaded_error"), anthropic.APIStatusError),
        (SimulatedFault(drop="before_headers"), anthropic.APIConnectionError),
    ],
)
async def test_a_fault_is_met_once_and_then_the_reply_comes(fault: SimulatedFault, error: type[Exception]) -> None:
    async with run_emulator(faulty_reply(fault)) as emulator, sdk(emulator) as client:
        with pytest.raises(error):
            async with client.messages.stream(**body()) as stream:
                await stream.get_final_message()
        async with client.messages.stream(**body()) as stream:
            message = await stream.get_final_message()
    assert message.stop_reason == "tool_use"
    assert [logged.attempt for logged in emulator.log] == [1, 2]
    assert emulator.log[0].fault == str(fault)


async def test_a_rate_limit_says_when_to_come_back_and_a_spend_limit_says_what_it_is() -> None:
    spend = SimulatedFault(status=429, code="spend_limit_reached", message="You have reached your limit")
    async with (
        run_emulator(faulty_reply(SimulatedFault(status=429, retry_after=7), spend)) as emulator,
        sdk(emulator) as client,
    ):
        with pytest.raises(anthropic.RateLimitError) as first:
            await client.messages.create(**body())
        with pytest.raises(anthropic.RateLimitError) as second:
            await client.messages.create(**body())
    assert first.value.response.headers["retry-after"] == "7"
    assert second.value.body["error"]["details"] == {"error_code": "spend_limit_reached"}


@pytest.mark.parametrize("drop", ["after_headers", "mid_stream"])
async def test_a_lost_connection_is_a_broken_stream(drop: str) -> None:
    async with run_emulator(faulty_reply(SimulatedFault(drop=drop))) as emulator:
        with pytest.raises(aiohttp.ClientError):
            await post(emulator, body(stream=True))


async def test_a_stream_cut_before_its_stop_ends_cleanly_with_half_a_call() -> None:
    async with run_emulator(faulty_reply(SimulatedFault(drop="before_stop"))) as emulator:
        seen = await events(emulator, body())
        assert seen[-1][0] == "content_block_delta"
        pieces = [
            d["delta"]["partial_json"] for n, d in seen if n == "content_block_delta" and "partial_json" in d["delta"]
        ]
        with pytest.raises(json.JSONDecodeError):
            json.loads("".join(pieces))
        assert (await events(emulator, body()))[-1][0] == "message_stop"


async def test_silence_outlasts_a_read_time_out_and_pings_do_not_break_it() -> None:
    async with run_emulator(faulty_reply(SimulatedFault(silence_s=30))) as emulator, sdk(emulator) as client:
        with pytest.raises(httpx2.ReadTimeout):
            async with client.with_options(timeout=httpx2.Timeout(180, read=0.2)).messages.stream(**body()) as stream:
                await stream.get_final_message()
    async with run_emulator(faulty_reply(SimulatedFault(pings_s=0.4))) as emulator:
        names = [name for name, _ in await events(emulator, body())]
    assert names.count("ping") == 3
    assert names[-1] == "message_stop"


async def test_bad_json_and_a_wrong_shape_reach_the_client() -> None:
    async with run_emulator(faulty_reply(SimulatedFault(bad_json=True), SimulatedFault(wrong_shape=True))) as emulator:
        with pytest.raises(json.JSONDecodeError):
            await events(emulator, body())
        assert await post(emulator, body()) == (200, {"ok": True, "data": None})


async def test_a_reply_cut_at_max_tokens_holds_half_a_call() -> None:
    async with run_emulator(lambda _: SimulatedReply((text("ok"), tool_use("read", {"path": "x" * 900})))) as emulator:
        seen = await events(emulator, body(max_tokens=40))
    assert seen[-2][1]["delta"]["stop_reason"] == "max_tokens"
    assert seen[-2][1]["usage"]["output_tokens"] == 40
    pieces = [d["delta"].get("partial_json", "") for n, d in seen if n == "content_block_delta"]
    with pytest.raises(json.JSONDecodeError):
        json.loads("".join(pieces))


async def test_a_model_can_write_bad_json_into_a_call() -> None:
    steps = 'agents: {lead: [{reply: [{tool_use: {name: read, raw_input: \'{"a": 1, "a": 2\'}}]}]}'
    async with run_emulator(load_scenario(steps)) as emulator:
        seen = await events(emulator, body())
        _, whole_message = await post(emulator, body())
    assert (
        "".join(d["delta"].get("partial_json", "") for n, d in seen if n == "content_block_delta") == '{"a": 1, "a": 2'
    )
    assert seen[1][1]["content_block"].keys() == {"type", "id", "name", "input"}
    assert whole_message["content"][0]["input"] == {}


async def test_under_chaos_every_call_goes_through_in_the_end() -> None:
    chaos = Chaos(3, {"overloaded": 0.3, "lost_mid_stream": 0.3, "truncated": 0.2}, at_most=2)
    async with run_emulator(lambda _: say("word " * 40), chaos=chaos) as emulator:
        for ordinal in range(12):
            headers = {"x-callboard-agent": "s/lead", "x-callboard-call": str(ordinal)}
            tries = [await completes(emulator, headers) for _ in range(3)]
            assert tries[-1], f"call {ordinal} did not succeed in three attempts"
    assert {logged.fault for logged in emulator.log} >= {"", "status 529", "drop mid_stream"}
