"""Summary calls over real HTTP: what the service does to them, and that the loop goes on whatever it is."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.engine.context.summary_world import JumpingClock, Talk, events, over_http, text_of

from callboard.adapters.models.rehearsal.api import ApiError, ModelSpec, of_status
from callboard.adapters.models.rehearsal.replies import (
    SimulatedFault,
    SimulatedReply,
    SimulatedRequest,
    say,
    text,
    tool_use,
)
from callboard.core.context.view.invariants import invariants
from callboard.testing import HostedSession
from callboard.types import events as ev

pytestmark = pytest.mark.anyio

SUMMARY = "- the markers were seen"


@pytest.fixture
def anyio_backend() -> str:
    """The service's transport runs on asyncio alone."""
    return "asyncio"


def fine(request: SimulatedRequest) -> SimulatedReply:
    return say(SUMMARY)


async def turn(team: HostedSession) -> str:
    """A whole turn; what it said in the end."""
    await team.prompt("go")
    await team.quiet()
    state = team.state("lead")
    assert state.turns.last_reason == "end", state.turns.last_why
    assert invariants(state.context.conversation.messages, sent=False) == []
    return state.turns.last_text


async def test_the_final_answer_is_shown_after_a_compaction_and_the_summary_stands_in_the_view() -> None:
    talk = Talk(fine)
    async with over_http(talk) as (world, team, _):
        assert await turn(team) == "THE FINAL ANSWER"
        assert talk.summaries
        assert SUMMARY in text_of(talk.turns[-1])
        edited = [one for one in await events(world, ev.ContextEdited) if one.edits]
        assert all(one.tokens_after < one.tokens_before for one in edited)
        await team.command("compact")
        await team.quiet()
        assert team.state("lead").turns.last_text == "THE FINAL ANSWER"


@pytest.mark.parametrize(
    "fault",
    [SimulatedFault(status=529, times=2), SimulatedFault(status=500, times=2), SimulatedFault(drop="mid_stream")],
)
async def test_what_passes_is_tried_again_with_its_own_waits(fault: SimulatedFault) -> None:
    talk = Talk(lambda request: SimulatedReply((text(SUMMARY),), faults=(fault,)))
    async with over_http(talk) as (world, team, _):
        assert await turn(team) == "THE FINAL ANSWER"
        assert SUMMARY in text_of(talk.turns[-1])
        failed = await events(world, ev.CallFailed)
        assert {one.purpose for one in failed} == {"summary"}
        assert [one.attempt for one in failed[:2]] == [1, 2][: fault.times]
        planned = [(one.attempt, one.until - one.at) for one in await events(world, ev.RetryPlanned)]
        assert [attempt for attempt, _ in planned[: fault.times]] == [1, 2][: fault.times]
        assert all(attempt * 0.5 <= round(wait, 3) <= attempt * 0.625 for attempt, wait in planned)
        clock = world.clock
        assert isinstance(clock, JumpingClock)
        assert max(clock.waits) <= 1.3, "a busy machine makes waits shorter, never longer"
        assert await events(world, ev.SummaryFailed) == []


async def test_the_wait_that_the_service_asks_for_is_kept() -> None:
    talk = Talk(lambda request: SimulatedReply((text(SUMMARY),), faults=(SimulatedFault(status=429, retry_after=7),)))
    async with over_http(talk) as (world, team, _):
        assert await turn(team) == "THE FINAL ANSWER"
        clock = world.clock
        assert isinstance(clock, JumpingClock)
        assert any(6.5 <= one <= 7.0 for one in clock.waits)


async def test_an_hour_is_not_waited_for_what_does_not_fit_is_dropped_instead() -> None:
    talk = Talk(lambda request: SimulatedReply((), faults=(SimulatedFault(status=429, retry_after=3_600, times=99),)))
    async with over_http(talk) as (world, team, _):
        await team.prompt("go")
        while (agent := team.team.agent("lead")) is None:
            await anyio.sleep(0)
        with anyio.fail_after(20):
            while not agent.state.compaction.count:
                await agent.change()
        assert [one.why[:34] for one in await events(world, ev.SummaryFailed)] == ["the service asks for a wait of 3,6"]
        assert [one.stage for one in await events(world, ev.ContextEdited) if one.edits] == ["truncate_oldest"]
        assert len(talk.summaries) == 1


SMALL = {
    "rehearsal": ModelSpec("rehearsal", min_cache=100_000),
    "small": ModelSpec("small"),
}


def by_small(fault: SimulatedFault) -> Talk:
    def answer(request: SimulatedRequest) -> SimulatedReply:
        return SimulatedReply((text(SUMMARY),), faults=(fault,) if request.model == "small" else ())

    return Talk(answer)


async def test_a_small_model_that_fails_gives_way_to_the_agents_own() -> None:
    talk = by_small(SimulatedFault(status=529, times=99))
    async with over_http(talk, SMALL, small_model="small") as (world, team, _):
        assert await turn(team) == "THE FINAL ANSWER"
        assert [one.model for one in talk.summaries][:4] == ["small", "small", "small", "rehearsal"]
        assert await events(world, ev.SummaryFailed) == []


async def test_a_small_model_that_the_service_does_not_know_gives_way_at_once() -> None:
    talk = Talk(fine)
    async with over_http(talk, SMALL, small_model="no-such-model") as (_, team, emulator):
        assert await turn(team) == "THE FINAL ANSWER"
        asked = [one.model for one in emulator.calls("lead", "summary")]
        assert asked[:2] == ["no-such-model", "rehearsal"]
        assert SUMMARY in text_of(talk.turns[-1])


async def test_what_is_too_long_for_the_model_that_summarises_reaches_it_in_smaller_pieces_all_of_it() -> None:
    models = {**SMALL, "small": ModelSpec("small", window=1_700)}
    talk = Talk(fine, steps=6)
    # What the runtime believes of the model is wrong: its window is smaller than it was told.
    told_of = {"rehearsal": {"cache_minimum": 100_000}, "small": {"window": 200_000}}
    spec: Any = {"small_model": "small", "context_limit": 6_000, "models": told_of}
    async with over_http(talk, models, **spec) as (world, team, emulator):
        assert await turn(team) == "THE FINAL ANSWER"
        refused = [one for one in emulator.calls("lead", "summary") if one.status == 400]
        assert refused
        assert all("prompt is too long" in one.error for one in refused)
        first = [one for one in talk.summaries if "This is part" in text_of(one)]
        told = "".join(text_of(one) for one in first)
        assert [f"marker-{number}." in told for number in range(1, 4)] == [True] * 3
        assert "go" in told
        assert "The summary of the parts before" in text_of(first[1])
        assert {one.model for one in talk.summaries} == {"small"}
        assert await events(world, ev.SummaryFailed) == []


async def test_an_output_limit_that_the_service_states_to_a_summary_is_learned_and_the_summary_is_made() -> None:
    models = {**SMALL, "small": ModelSpec("small", max_output=300)}
    told_of = {"rehearsal": {"cache_minimum": 100_000}, "small": {"window": 200_000}}
    spec: Any = {"small_model": "small", "models": told_of}
    async with over_http(Talk(fine), models, **spec) as (world, team, emulator):
        assert await turn(team) == "THE FINAL ANSWER"
        asked = [(one.model, one.status) for one in emulator.calls("lead", "summary")]
        assert asked[:2] == [("small", 400), ("small", 200)]
        assert {status for _, status in asked[1:]} == {200}, "it is learned once"
        (learned,) = await events(world, ev.LimitsLearned)
        assert (learned.model, learned.max_output) == ("small", 300)
        assert team.state("lead").me.limits_of("small").max_output == 300
        assert await events(world, ev.SummaryFailed) == []


def no_summary(request: SimulatedRequest) -> SimulatedReply:
    """What is none, by turns: a call, an empty text, a refusal."""
    asked = int(request.ordinal) // 10_000
    kinds = (
        SimulatedReply((text("I look"), tool_use("echo", {}))) if request.tools else SimulatedReply(()),
        SimulatedReply((text(" \n"),)),
        SimulatedReply((text("no"),), stop_reason="refusal"),
    )
    return kinds[asked % 3]


async def test_an_answer_that_is_no_summary_counts_as_failed_and_never_ends_the_loop() -> None:
    talk = Talk(no_summary, steps=12)
    async with over_http(talk) as (world, team, _):
        assert await turn(team) == "THE FINAL ANSWER"
        whys = [one.why for one in await events(world, ev.SummaryFailed)]
        assert "(empty summary)" in whys
        assert "the reply stopped with refusal" in whys
        assert len(whys) == 3, "the breaker: three failed in a row, and no more in this turn"
        edited = [one for one in await events(world, ev.ContextEdited) if one.edits]
        assert {one.stage for one in edited} == {"truncate_oldest"}
        assert "dropped: no summary could be made. Transcript: /data/transcripts/lead.jsonl" in text_of(talk.turns[-1])
        failures = len(talk.summaries)
        await team.prompt("again")
        await team.quiet()
        assert len(talk.summaries) > failures, "the next turn asks again"


async def test_summaries_that_the_service_always_fails_cost_a_turn_little_time() -> None:
    talk = Talk(lambda request: of_status(500, "no summary today"), steps=12)
    async with over_http(talk, attempts=10) as (world, team, _):
        assert await turn(team) == "THE FINAL ANSWER"
        failed = await events(world, ev.SummaryFailed)
        assert [one.why for one in failed] == ["api_error 500: no summary today"] * 3
        assert len(talk.summaries) <= 2 * 4 + 2 * 2
        waits = [one.until - one.at for one in await events(world, ev.RetryPlanned)]
        assert sum(waits) < 30


async def test_a_call_of_a_tool_in_a_riding_answer_is_asked_for_again_without_tools() -> None:
    def answer(request: SimulatedRequest) -> SimulatedReply:
        return SimulatedReply((tool_use("echo", {}),)) if request.tools else say(SUMMARY)

    talk = Talk(answer)
    async with over_http(talk) as (world, team, _):
        assert await turn(team) == "THE FINAL ANSWER"
        assert [bool(one.tools) for one in talk.summaries][:2] == [True, False]
        assert await events(world, ev.SummaryFailed) == []
        assert await events(world, ev.ToolStarted) != []
        assert SUMMARY in text_of(talk.turns[-1])


async def test_a_summary_that_is_cut_at_its_limit_ends_with_a_whole_line_and_says_so() -> None:
    talk = Talk(lambda request: say("- a whole line\n" + "- and much more " * 4_000))
    async with over_http(talk) as (_, team, _):
        assert await turn(team) == "THE FINAL ANSWER"
        stands = text_of(talk.turns[-1])
        assert "- a whole line\\n(this summary was cut at its limit; the transcript has the rest)" in stands
        most = {int(str(one.body["max_tokens"])) for one in talk.summaries}
        assert max(most) <= 2_000


@pytest.mark.parametrize("kind", ["credentials", "too large"])
async def test_what_nobody_can_mend_is_not_tried_again(kind: str) -> None:
    error = of_status(401) if kind == "credentials" else ApiError("invalid_request_error", "no", 400)
    talk = Talk(lambda request: error, steps=5)
    async with over_http(talk) as (world, team, _):
        await team.prompt("go")
        await team.quiet()
        failed = await events(world, ev.SummaryFailed)
        assert failed
        if kind == "credentials":  # the key is refused: nobody calls with it again, the turn ends
            assert "the key was refused" in team.state("lead").turns.last_why
            assert len(talk.summaries) == 1
        else:
            assert team.state("lead").turns.last_text == "THE FINAL ANSWER"
        clock = world.clock
        assert isinstance(clock, JumpingClock)
        assert clock.waits == []


async def test_a_summary_by_the_agents_own_model_rides_on_the_cached_prefix() -> None:
    talk = Talk(fine)
    async with over_http(talk) as (_, team, emulator):
        assert await turn(team) == "THE FINAL ANSWER"
        (first, *_) = emulator.calls("lead", "summary")
        read = int(str(first.usage["cache_read_input_tokens"]))
        assert read > 1_000, first.usage
        assert first.usage["cache_creation_input_tokens"] == 0, "what it would write nobody would read"
        body = talk.summaries[0].body
        assert body["tools"] == talk.turns[0].body["tools"]
        assert body["system"] == talk.turns[0].body["system"]
        assert "tool_choice" not in body
        assert "The conversation above is about to be replaced by a summary" in text_of(talk.summaries[0])


async def test_a_cheap_small_model_is_asked_instead_and_a_dear_one_is_not() -> None:
    models = {"rehearsal": ModelSpec("rehearsal", min_cache=256), "small": ModelSpec("small")}
    for price, asked in ((0.1, "small"), (30.0, "rehearsal")):
        talk = Talk(fine)
        prices = {"price_input": price, "price_output": 5 * price, "price_read": price / 10}
        limits = {"rehearsal": {"cache_minimum": 256}, "small": prices}
        async with over_http(talk, models, small_model="small", models=limits) as (_, team, _):
            assert await turn(team) == "THE FINAL ANSWER"
            assert talk.summaries[0].model == asked
            assert bool(talk.summaries[0].tools) == (asked == "rehearsal")
