"""Calls that fail in a life of an agent: what is shown, who is told what, and what a crash leaves of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo, texts, tools
from tests.engine.context.summary_world import all_events, events
from tests.engine.team.team_world import spawn, team_world

from callboard.core.context.view.invariants import invariants
from callboard.core.recovery.retry_policy import MAX_PAUSES
from callboard.ports.model import CallFault, Delta, ModelRequest, OnDelta, Reply
from callboard.testing import ScriptedModel, SteadyClock, World, fault, say, use
from callboard.types import events as ev
from callboard.types.records import Envelope, Json

pytestmark = pytest.mark.anyio


@dataclass
class Screen:
    """What was streamed and what was told of it, in order."""

    seen: list[str] = field(default_factory=list[str])

    def on_event(self, agent: str, seq: int, event: ev.Event) -> None:
        self.seen.append(event.t)

    def on_delta(self, agent: str, delta: Delta) -> None:
        self.seen.append(f"{delta.kind}: {delta.text}")

    def on_mail(self, envelope: Envelope) -> None:
        """Not looked at."""


class Breaking(ScriptedModel):
    """Streams some words before each fault that it plays, and says nothing of dropping them."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        try:
            return await super().complete(request, on_delta)
        except CallFault:
            on_delta(Delta("text", "half a"))
            raise


def stopped(reply: Reply, reason: str, *more: Json) -> Reply:
    return Reply((*reply.blocks, *more), reason, reply.usage, reply.model)


# Partial text is marked as dropped whatever follows


@pytest.mark.parametrize(
    ("script", "spec", "follows"),
    [
        ([fault("connection"), say("whole")], {}, "retry_planned"),
        ([fault("overloaded"), fault("overloaded"), say("whole")], {"fallback_models": ("two",)}, "model_switched"),
        ([fault("too_long"), say("whole")], {}, "react_asked"),
        ([fault("credentials")], {}, "turn_ended"),
    ],
)
async def test_partial_text_is_marked_as_dropped_whatever_follows(script: Any, spec: Json, follows: str) -> None:
    screen = Screen()
    world = World(Breaking({"lead": script}), spec=spec, observers=[screen])
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
    faults = sum(not isinstance(one, Reply) for one in script)
    assert sum(one.startswith("dropped: ") for one in screen.seen) == faults
    for place, one in enumerate(screen.seen):
        if one == "text: half a":
            assert screen.seen[place + 1].startswith("dropped: ")
            assert screen.seen[place + 2] == "call_failed"
    assert follows in screen.seen


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded"])
async def test_a_whole_reply_that_is_void_is_marked_as_dropped_too(reason: str) -> None:
    screen = Screen()
    world = World(ScriptedModel({"lead": [stopped(say("cut"), reason), say("whole")]}), observers=[screen])
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_text == ("whole" if reason == "max_tokens" else "cut")
    place = screen.seen.index("text: cut")
    assert screen.seen[place + 1].startswith("dropped: ")


@pytest.mark.parametrize("before", [[], [stopped(say("First,"), "pause_turn")]])
async def test_the_text_of_a_reply_that_a_full_window_cut_is_kept_if_the_turn_ends_by_it(before: list[Reply]) -> None:
    full = stopped(say("what I found"), "model_context_window_exceeded")
    world = World(ScriptedModel({"lead": [*before, full, full, say("more")]}))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        state = team.state("lead")
        assert (state.turns.last_reason, state.turns.last_text.split()[-3:]) == ("overflow", ["what", "I", "found"])
        assert state.turns.last_text.startswith("First,") is bool(before)
        newest = state.context.conversation.messages[-1]
        assert (newest.role, b"what I found" in newest.wire) == ("assistant", True)
        assert invariants(state.context.conversation.messages, sent=False) == []
        assert state.model.recovery.cut_text == ""


async def test_a_fault_before_any_word_drops_nothing() -> None:
    screen = Screen()
    world = World(ScriptedModel({"lead": [fault("server"), say("whole")]}), observers=[screen])
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
    assert not any(one.startswith("dropped") for one in screen.seen)


# Replies that are no plain end


@pytest.mark.parametrize("reason", ["pause_turn", "compaction"])
async def test_a_paused_reply_goes_back_as_it_stands_and_the_turn_goes_on(reason: str) -> None:
    odd: Json = {"type": "compaction", "content": "what was said so far"}
    model = ScriptedModel({"lead": [stopped(say("I look"), reason, odd), say("found")]})
    world = World(model)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_text == "I look\nfound"
        sent = b",".join(model.requests[-1].messages)
        assert sent.endswith(
            b'{"type":"text","text":"I look"},{"type":"compaction","content":"what was said so far"}]}'
        )
        (whole,) = [one for one in team.state("lead").context.conversation.messages if one.role == "assistant"]
        assert len(whole.blocks) == 3


async def test_a_reply_that_is_paused_for_ever_ends_the_turn_and_the_next_one_goes_on() -> None:
    pauses = [stopped(say(f"part {n}"), "pause_turn") for n in range(MAX_PAUSES + 1)]
    world = World(ScriptedModel({"lead": [*pauses, say("done")]}))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        state = team.state("lead")
        assert (state.turns.last_reason, len(world.model.requests)) == ("limit", MAX_PAUSES + 1)
        assert "paused its reply 11 times in a row" in state.turns.last_why
        await team.prompt("go on")
        await team.quiet()
        assert team.state("lead").turns.last_text == "done"
        assert invariants(team.state("lead").context.conversation.messages, sent=False) == []


async def test_a_stop_reason_that_nobody_knows_is_treated_by_the_blocks_of_the_reply() -> None:
    echo = Echo()
    script = [stopped(use("echo", {"text": "x"}), "a_new_reason"), stopped(say("done"), "another_one")]
    world = World(ScriptedModel({"lead": script}), tools(echo))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert echo.ran == [{"text": "x"}]
        assert (team.state("lead").turns.last_reason, team.state("lead").turns.last_text) == ("end", "done")


# The chain of models


@pytest.mark.parametrize("first", [[fault("server")] * 3, [fault("not_found", status=404)]])
async def test_a_fallback_takes_over_until_the_turn_ends_and_the_next_begins_with_the_first(first: list[Any]) -> None:
    model = ScriptedModel({"lead": [*first, use("echo"), say("by two"), say("by one")]})
    world = World(model, tools(Echo()), spec={"fallback_models": ("two",)})
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_text == "by two"
        await team.prompt("again")
        await team.quiet()
        assert [r.model for r in model.requests] == ["scripted"] * len(first) + ["two", "two", "scripted"]
        (switched,) = await events(world, ev.ModelSwitched)
        assert (switched.model, switched.purpose) == ("two", "turn")


async def test_a_model_that_cannot_take_over_is_passed_over_and_asked_for_no_more_than_it_can_write() -> None:
    limits = {
        "scripted": {},
        "mute": {"tools": False},
        "tiny": {"window": 5_000},
        "modest": {"max_output": 4_000, "window": 50_000},
    }
    model = ScriptedModel({"lead": [fault("overloaded"), fault("overloaded"), say("done")]})
    world = World(model, tools(Echo()), spec={"fallback_models": ("mute", "tiny", "modest"), "models": limits})
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert (model.requests[-1].model, model.requests[-1].max_tokens) == ("modest", 4_000)
        (switched,) = await events(world, ev.ModelSwitched)
        assert [one.split(":")[0] for one in switched.skipped] == ["mute", "tiny"]


async def test_thinking_of_the_first_model_is_not_sent_to_the_fallback_nor_back() -> None:
    def thinking(by: str) -> Json:
        return {"type": "thinking", "thinking": f"thought by {by}", "signature": by}

    one, two = use("echo", {"text": "1"}), use("echo", {"text": "2"})
    first = Reply((thinking("one"), *one.blocks), "tool_use", one.usage, "scripted")
    second = Reply((thinking("two"), *two.blocks), "tool_use", two.usage, "two")
    over = [fault("overloaded")] * 2
    model = ScriptedModel({"lead": [first, *over, second, say("by two"), say("by one")]})
    world = World(model, tools(Echo()), spec={"fallback_models": ("two",)})
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        await team.prompt("again")
        await team.quiet()
    sent = {number: b",".join(r.messages) for number, r in enumerate(model.requests)}
    assert [b"thought by one" in sent[n] for n in (1, 3, 4, 5)] == [True, False, False, True]
    assert [b"thought by two" in sent[n] for n in (4, 5)] == [True, False]
    replies = [one for one in await all_events(world) if isinstance(one, ev.ModelReplied)]
    kept = [block["thinking"] for one in replies for block in one.blocks if block["type"] == "thinking"]
    assert kept == ["thought by one", "thought by two"], "the journal keeps it"


# Who is told what


async def test_the_person_reads_what_failed_how_often_how_long_and_what_to_do() -> None:
    script = [fault("server", status=503, message="no upstream"), *[fault("server", status=503)] * 2]
    world = World(ScriptedModel({"lead": script}))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        state = team.state("lead")
        assert state.turns.last_reason == "failed"
        assert "model unavailable: 3 attempts in" in state.turns.last_why
        assert "(server 503)" in state.turns.last_why
        assert "send a message to try again" in state.turns.last_why
        assert state.turns.last_text == ""


@pytest.mark.parametrize("last", [fault("not_found", status=404), fault("server")])
async def test_a_teammate_whose_call_fails_tells_the_lead_and_never_that_it_is_done(last: Any) -> None:
    def told(request: ModelRequest) -> Reply:
        return say("I see: alice failed")

    faults = [last] * (3 if last.kind == "server" else 1)
    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice")), say("waiting"), told],
            "alice": [use("list_tasks", text="I begin."), *faults],
        }
    )
    world = team_world(model)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        lead = texts(world)
        assert 'type=\\"error\\"' in lead
        assert "alice could not continue: " in lead
        assert "Its last words: I begin." in lead
        assert "Done" not in lead
        assert team.state("lead").turns.last_text == "I see: alice failed"


@pytest.mark.parametrize("words", ["", "I begin."])
async def test_a_subagent_whose_call_fails_is_an_error_to_its_caller_with_the_reason(words: str) -> None:
    class Sub(ScriptedModel):
        """The subagent's name follows from the call: whoever is not the lead."""

        def _entry(self, request: ModelRequest) -> Any:
            if request.agent != "lead":
                begins = request.ordinal == 1 and words
                return (
                    use("list_tasks", text=words) if begins else fault("invalid", status=400, message="no such field")
                )
            return super()._entry(request)

    task = ("task", {"description": "look", "prompt": "look", "agent_type": "explore"})
    world = team_world(Sub({"lead": [use(*task), say("it failed")]}))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        lead = texts(world)
        assert '"is_error":true' in lead
        assert "[status: failed] The subagent failed" in lead
        assert "the service refused the request as invalid" in lead
        assert (f"Its last words: {words}" in lead) == bool(words)


# Crashes


class Noting(SteadyClock):
    """Time that only the test moves on."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0

    def now(self) -> float:
        return 1_800_000_000.0 + self.ahead


async def test_a_crash_in_a_back_off_waits_only_for_what_is_left_of_it() -> None:
    """The first process fails twice and dies in the wait; the next finds it half over."""
    model = ScriptedModel({"lead": [fault("server"), say("made it")]})
    clock = Noting()
    world = World(model, clock=clock)
    async with world.session() as team:
        await team.prompt("go")
        while not await events(world, ev.RetryPlanned):
            await anyio.lowlevel.checkpoint()
    (planned,) = await events(world, ev.RetryPlanned)
    assert planned.until - clock.now() >= 0.5
    assert len(model.requests) == 1
    clock.ahead = 0.4
    async with world.session(resume=True) as team:
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        assert len(model.requests) == 1, "it is not over yet"
        assert await events(world, ev.RetryPlanned) == [planned], "nothing is decided anew"
        clock.ahead = 0.7
        team.team.agent("lead").wake()
        await team.quiet()
        assert team.state("lead").turns.last_text == "made it"
    assert [r.attempt for r in model.requests] == [1, 2]


async def test_a_call_whose_process_died_is_made_again_and_says_that_the_first_may_be_billed() -> None:
    model = ScriptedModel({"lead": [say("made it")]}, delay=10)
    world = World(model)
    async with world.session() as team:
        await team.prompt("go")
        while not model.requests:
            await anyio.lowlevel.checkpoint()
        await team.team.agent("lead").flush()
    model._delay = 0
    async with world.session(resume=True) as team:
        await team.quiet()
        assert team.state("lead").turns.last_text == "made it"
    (failed,) = await events(world, ev.CallFailed)
    assert (failed.fault.kind, failed.fault.may_bill) == ("lost", True)
    (planned,) = await events(world, ev.RetryPlanned)
    assert planned.why.endswith("the attempt may be billed")
