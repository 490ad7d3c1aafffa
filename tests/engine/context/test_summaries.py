"""Summaries in a world of memory: when they are asked for, interrupted, killed and refused, and what stands after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo, texts, tools
from tests.engine.team.team_world import team_world

from callboard.core.agent.apply import fold
from callboard.core.context.view.conversation import render
from callboard.core.context.view.invariants import invariants
from callboard.core.context.view.transcript import load_transcript
from callboard.core.keys import journal
from callboard.core.reports.transcript_pages import TranscriptProgress
from callboard.engine import transcripts
from callboard.engine.recall import events_of, unedited_messages
from callboard.ports.model import CallFault, ModelRequest, OnDelta, Reply
from callboard.testing import HostedSession, Played, ScriptedModel, SteadyClock, World, fault, say, use
from callboard.types import events as ev
from callboard.types.records import Fault, Json

pytestmark = pytest.mark.anyio


async def long_result(given: Json) -> str:
    return f"{'word ' * 1_000} {given.get('text', '')}"


class Summarising(ScriptedModel):
    """Answers summaries too, by `summary`; `held` holds them up until it is set."""

    def __init__(self, script: Sequence[Played], summary: Callable[[ModelRequest], Reply | Fault]) -> None:
        super().__init__({"lead": script})
        self.summary, self.held, self.asked = summary, anyio.Event(), anyio.Event()
        self.held.set()
        self.summaries: list[ModelRequest] = []

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        if request.purpose == "turn":
            return await super().complete(request, on_delta)
        self.summaries.append(request)
        self.asked.set()
        await self.held.wait()
        answer = self.summary(request)
        if isinstance(answer, Fault):
            raise CallFault(answer)
        return answer


def fine(request: ModelRequest) -> Reply:
    return say("- so it was")


def working(
    steps: int = 6, summary: Callable[[ModelRequest], Reply | Fault] = fine, turns: int = 1, **spec: Any
) -> tuple[World, Summarising]:
    script = [*(use("echo", {"text": f"marker-{n}"}) for n in range(steps)), say("THE END")] * turns
    model = Summarising(script, summary)
    base: Json = {"context_limit": 3_000, "pipeline": ({"stage": "summarize_all"},)}
    return World(model, tools(Echo(act=long_result)), spec={**base, **spec}), model


async def events(world: World, kind: type[Any]) -> list[Any]:
    return [one for one in await events_of(world.store, journal("s1", "lead", 1)) if isinstance(one, kind)]


async def prompted(team: HostedSession, text: str = "go") -> None:
    await team.prompt(text)
    await team.quiet()
    assert invariants(team.state("lead").context.conversation.messages, sent=False) == []


def refused(request: ModelRequest) -> Fault:
    return fault("invalid", status=400)


# Interrupts, kills


async def test_an_interrupt_ends_a_summary_at_once_and_the_turn_with_it() -> None:
    world, model = working()
    model.held = anyio.Event()
    async with world.session() as team:
        await team.prompt("go")
        await model.asked.wait()
        await team.command("interrupt")
        await team.quiet()
        assert team.state("lead").turns.last_reason == "interrupted"
        assert [one.why for one in await events(world, ev.SummaryFailed)] == ["interrupted"]
        assert team.state("lead").compaction.summary is None


async def test_an_interrupt_between_turns_ends_the_summary_that_compact_asked_for() -> None:
    world, model = working(steps=2, context_limit=None)
    async with world.session() as team:
        await prompted(team)
        model.held, model.asked = anyio.Event(), anyio.Event()
        await team.command("compact")
        await model.asked.wait()
        await team.command("interrupt")
        await team.quiet()
        assert team.state("lead").compaction.count == 0
        assert team.state("lead").compaction.focus is None
        model.held.set()
        await team.command("compact")
        await team.quiet()
        assert team.state("lead").compaction.count == 1


async def test_a_summary_whose_process_is_killed_is_made_again_by_the_next() -> None:
    world, model = working()
    model.held = anyio.Event()
    async with world.session() as team:
        await team.prompt("go")
        await model.asked.wait()
    first = model.summaries[0]
    model.held.set()
    async with world.session(resume=True) as team:
        await team.quiet()
        assert team.state("lead").turns.last_text == "THE END"
        began = await events(world, ev.SummaryBegan)
        again = [one for one in model.summaries[1:] if one.ordinal == first.ordinal]
        assert [b"".join(one.messages) for one in again] == [b"".join(first.messages)]
        assert [one.revision for one in began].count(0) == 1
        assert "- so it was" in texts(world)


async def test_the_waits_of_a_summary_and_the_models_it_goes_through_are_events() -> None:
    def answer(request: ModelRequest) -> Reply | Fault:
        return fault("server", status=500, message="no") if request.model == "small" else fine(request)

    world, model = working(summary=answer, small_model="small", models={"small": {"cache_minimum": 100_000}})
    async with world.session() as team:
        await prompted(team)
        assert team.state("lead").turns.last_text == "THE END"
    retries = [one for one in await events(world, ev.RetryPlanned) if one.purpose == "summary"]
    assert [(one.attempt, one.why) for one in retries[:2]] == [(1, "server 500: no"), (2, "server 500: no")]
    assert all(one.until - one.at >= 0.5 for one in retries)
    switched = (await events(world, ev.ModelSwitched))[0]
    assert (switched.purpose, switched.model, switched.why) == ("summary", "scripted", "server 500: no")
    assert {r.model for r in model.requests} == {"scripted"}, "the turn's own model is as it was"


async def test_a_crash_in_the_wait_of_a_summary_waits_for_what_is_left_of_it() -> None:
    world, model = working(summary=lambda request: fault("rate_limited", status=429, retry_after=50))
    async with world.session() as team:
        await team.prompt("go")
        while not await events(world, ev.RetryPlanned):
            await anyio.lowlevel.checkpoint()
    (planned,) = await events(world, ev.RetryPlanned)
    waited: list[float] = []

    class Jumping(SteadyClock):
        def now(self) -> float:
            return max(planned.at + 20, *waited, 0.0)

        async def sleep_until(self, when: float) -> None:
            waited.append(when)

    asked = len(model.summaries)
    model.summary, world.clock = fine, Jumping()
    async with world.session(resume=True) as team:
        await team.quiet()
        assert team.state("lead").turns.last_text == "THE END"
    assert waited[0] == planned.until
    assert len(model.summaries) > asked


# What is asked, and when no more


@pytest.mark.slow(keep=1)
async def test_a_long_chain_of_failing_summaries_ends_well() -> None:
    world, _ = working(steps=30, summary=refused, turns=3)
    async with world.session() as team:
        for number in range(3):
            await prompted(team, f"go {number}")
            assert team.state("lead").turns.last_text == "THE END"
        assert len(await events(world, ev.SummaryFailed)) == 9
        edited = [one for one in await events(world, ev.ContextEdited) if one.edits]
        assert {one.stage for one in edited} == {"truncate_oldest"}
        assert all(one.tokens_after < one.tokens_before for one in edited)


async def test_a_long_chain_of_summaries_that_come_back_larger_ends_well() -> None:
    world, model = working(steps=30, summary=lambda request: say("- more and more of it\n" * 4_000))
    async with world.session() as team:
        await prompted(team)
        assert team.state("lead").turns.last_text == "THE END"
        whys = {one.why for one in await events(world, ev.SummaryFailed)}
        assert whys == {"it would not make the conversation smaller"}
        assert len(model.summaries) == 3
        assert team.state("lead").context.conversation.tokens < 8_000


@pytest.mark.slow
async def test_a_long_chain_of_good_summaries_ends_well_and_stays_within_its_bounds() -> None:
    world, model = working(steps=60, summary=lambda request: say("- " + "found " * 200))
    async with world.session() as team:
        await prompted(team)
        assert team.state("lead").turns.last_text == "THE END"
        edited = [one for one in await events(world, ev.ContextEdited) if one.edits]
        assert len(edited) > 10
        assert all(one.tokens_after < one.tokens_before for one in edited)
        rebuilt = [one for one in await events(world, ev.SummaryBegan) if one.wanted.message == 0]
        assert rebuilt, "summaries that hold too much of the budget are created again from the history"
        told = b"".join(m for one in model.summaries for m in one.messages).decode()
        assert all(f"marker-{number}" in told for number in range(50)), "chunks that cover all of it"


@pytest.mark.parametrize(("limit", "rejections", "ends"), [("per_success", 2, "end"), ("per_turn", 2, "overflow")])
async def test_how_often_a_refused_prompt_is_compacted(limit: str, rejections: int, ends: str) -> None:
    refused = fault("too_long", status=400, message="prompt is too long: 9 tokens > 8 maximum")
    work = [use("echo", {"text": "a"}), use("echo", {"text": "b"})]
    script: list[Played] = [*work, refused, *work, refused, say("THE END")]
    model = Summarising(script, fine)
    world = World(model, tools(Echo(act=long_result)), spec={"react_limit": limit})
    async with world.session() as team:
        await prompted(team)
        assert team.state("lead").turns.last_reason == ends
        reacted = [one for one in await events(world, ev.ContextEdited) if one.trigger == "reactive" and one.edits]
        assert len(reacted) == (2 if ends == "end" else 1)
        assert "[Reactive compact]" in texts(world)


async def test_two_rejections_in_a_row_are_an_overflow_and_a_short_history_does_not_grow() -> None:
    refused = fault("too_long", status=400, message="prompt is too long: 9 tokens > 8 maximum")
    model = Summarising([refused, refused], fine)
    world = World(model, {})
    async with world.session() as team:
        await prompted(team)
        assert team.state("lead").turns.last_reason == "overflow"
        assert [one for one in await events(world, ev.ContextEdited) if one.edits] == []
        assert model.summaries == []


async def test_a_reached_limit_is_not_passed_for_a_summary() -> None:
    world, model = working(limits={"steps": 3})
    async with world.session() as team:
        await prompted(team)
        assert team.state("lead").turns.last_reason == "limit"
        assert len(model.summaries) <= 1


# What stands after


async def test_todos_requests_and_tasks_stand_after_each_kind_of_compaction() -> None:
    todo = ("todo_write", {"todos": [{"content": "ship the parser", "status": "in_progress"}]})
    begin = use("create_task", {"subject": "the roof"}, todo, ("ask_person", {"question": "slate or tile?"}))
    steps = [use("read_file", {"text": f"marker-{n}"}) for n in range(4)]
    for summary in (fine, refused):
        model = Summarising([begin, *steps, say("THE END")], summary)
        world = team_world(model, Echo(name="read_file", act=long_result))
        world.spec = {**world.spec, "context_limit": 3_000, "pipeline": ({"stage": "summarize_all"},)}
        async with world.session() as team:
            await prompted(team, "Mend it. Never touch the chimney.")
            assert team.state("lead").compaction.count
            sent = texts(world)
            for words in ("Never touch the chimney", "[in_progress] ship the parser", "slate or tile?", "the roof"):
                assert words in sent, words


@pytest.mark.parametrize(("after", "asked"), [("continue", 3), ("end_turn", 2)])
async def test_what_follows_the_compaction_that_the_tool_asked_for(after: str, asked: int) -> None:
    work = use("read_file", {"text": "a"})
    model = Summarising(
        [work, use("compact", {"focus": "paths"}, ("read_file", {"text": "b"}), text="x"), say("THE END")], fine
    )
    world = team_world(model, Echo(name="read_file", act=long_result))
    world.spec = {**world.spec, "after_compact": after}
    async with world.session() as team:
        await prompted(team)
        state = team.state("lead")
        assert state.compaction.count == 1
        assert state.turns.last_reason == "end"
        assert len(model.requests) == asked
        assert state.turns.last_text == ("THE END" if after == "continue" else "x")
        assert "keep what matters for this: paths" in b"".join(model.summaries[0].messages).decode()
        await prompted(team, "and now?")
        sent = texts(world)
        assert "[Compaction follows]" in sent
        assert 'word  b"' in sent, "the calls beside it have run, and their results stand"


# Transcripts


async def test_a_transcript_grows_with_each_summary_and_renders_to_the_same_messages() -> None:
    world, _ = working(steps=20)
    async with world.session() as team:
        await prompted(team)
        began = await events(world, ev.SummaryBegan)
        assert len(began) > 2
        (path,) = {one.transcript for one in began}
        loaded = load_transcript(world.archive.files[path].encode())
        journalled = list(enumerate(await events_of(world.store, journal("s1", "lead", 1)), 1))
        for seq in [seq for seq, one in journalled if isinstance(one, ev.SummaryBegan)]:
            told = [event for _, event in journalled[:seq]]
            *older, newest = unedited_messages(journalled[:seq])
            assert loaded[: len(older)] == tuple(older), "all but the newest message, which may still grow"
            edits = [edit for one in told if isinstance(one, ev.ContextEdited) for edit in one.edits]
            rendered = render((*loaded[: len(older)], newest), edits)
            assert rendered == fold(told).context.conversation.messages
        assert loaded == tuple(unedited_messages(journalled))[: len(loaded)]


async def test_another_process_goes_on_with_the_transcript_of_the_one_before() -> None:
    world, _ = working(steps=20)
    async with world.session() as team:
        await prompted(team)
        agent = team.team.agent("lead")
        assert agent is not None
        path = await transcripts.write(agent)
        whole = world.archive.files[path]
        world.archive.files[path] = "".join(whole.splitlines(keepends=True)[:3])
        agent.written = TranscriptProgress()
        await transcripts.write(agent)
        assert world.archive.files[path] == whole
        agent.written = TranscriptProgress()
        await transcripts.write(agent)
        assert world.archive.files[path] == whole, "no line is written twice"
