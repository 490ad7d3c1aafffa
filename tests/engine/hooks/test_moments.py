"""The moments at which hooks are asked, in running sessions: who is told, what an answer changes, what it does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo, texts, tools
from tests.engine.approvals.plan_world import planner, reported
from tests.engine.context.test_summaries import working
from tests.engine.scheduling.test_schedules import add, prompts, row
from tests.engine.team.team_world import spawn, team_world

from callboard.testing import AllowAll, ScriptedModel, World, fault, say, use
from callboard.types import hook_answers as hk
from callboard.types.hook_answers import AddContext, Deny, GoOn, Halt
from callboard.types.records import Budget

pytestmark = pytest.mark.anyio

Said = Callable[[Any], object]
LOOK = ("task", {"description": "d", "prompt": "find it", "agent_type": "explore"})
TASK = ("create_task", {"subject": "Write it", "description": "all of it"})


@pytest.fixture
def anyio_backend() -> object:
    """Virtual time only; hooks are async functions, since a virtual clock jumps while threads run."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


def listen(world: World, *events: str, says: Said = lambda event: None) -> list[Any]:
    """Register a hook for these events; what it was told."""
    heard: list[Any] = []

    async def hear(event: Any) -> Any:
        heard.append(event)
        said = says(event)
        return await cast("Awaitable[object]", said) if isinstance(said, Awaitable) else said

    for event in events:
        world.hooks.add(event, hear)
    return heard


def once(answer: object) -> Said:
    """The answer at the first time, then nothing."""
    left = [answer]
    return lambda event: left.pop() if left else None


async def told(heard: list[Any], count: int = 1) -> None:
    """Wait until so many events were heard: those that only inform are waited for by nobody."""
    with anyio.fail_after(600):
        while len(heard) < count:
            await anyio.sleep(0.1)


async def run(world: World, prompt: str = "go") -> None:
    async with world.session() as team:
        await team.prompt(prompt)
        await team.quiet()


# Beginnings and ends


async def test_each_kind_of_agent_begins_and_ends_with_its_own_moments() -> None:
    script = {"lead": [use(*spawn("alice")), use(*LOOK), say("done")], "alice": [say("did it")]}
    world = team_world(ScriptedModel(script, end="found"))
    heard = listen(world, "SessionStart", "SubagentStart", "Stop", "SubagentStop", "TeammateIdle")
    await run(world)
    seen = {(type(one).__name__, one.by.kind) for one in heard}
    assert seen == {
        ("SessionStart", "lead"),
        ("SessionStart", "teammate"),
        ("SubagentStart", "subagent"),
        ("Stop", "lead"),
        ("Stop", "teammate"),
        ("SubagentStop", "subagent"),
        ("TeammateIdle", "teammate"),
    }
    assert {one.source for one in heard if isinstance(one, hk.SessionStart)} == {"startup"}


async def test_what_a_beginning_adds_stands_before_the_first_words() -> None:
    world = team_world(ScriptedModel({"lead": [use(*LOOK), say("done")]}, end="found"))
    listen(world, "SessionStart", says=lambda event: AddContext("the sprint ends today"))
    listen(world, "SubagentStart", says=lambda event: AddContext(f"{event.by.agent_type} must be quick"))
    await run(world)
    lead, *_ = [one for one in world.model.requests if one.agent == "lead"]
    sent = b"".join(lead.messages).decode()
    assert sent.index("the sprint ends today") < sent.index('"go"')
    (sub,) = [one for one in world.model.requests if one.agent not in ("lead", "alice")]
    assert "explore must be quick" in b"".join(sub.messages).decode()


async def test_a_resume_says_that_it_is_one_and_a_new_conversation_too() -> None:
    world = World(ScriptedModel({}, end="yes"))
    heard = listen(world, "SessionStart", "SessionEnd")
    await run(world)
    async with world.session(resume=True) as team:
        await team.prompt("again")
        await team.quiet()
        await team.command("new")
        await told(heard, 5)
    assert [getattr(one, "source", None) or one.reason for one in heard] == [
        *("startup", "prompt_input_exit", "resume", "clear", "clear", "prompt_input_exit")
    ]


async def test_a_subagent_and_an_idle_teammate_are_kept_at_work_with_the_reason() -> None:
    script = {"lead": [use(*spawn("alice")), use(*LOOK), say("done")], "alice": [say("did it"), say("did more")]}
    world = team_world(ScriptedModel(script, end="found"))
    listen(world, "SubagentStop", says=once(GoOn("look in tests too")))
    listen(world, "TeammateIdle", says=once(GoOn("write the changelog")))
    await run(world)
    asked = [b"".join(one.messages).decode() for one in world.model.requests if one.agent not in ("lead", "alice")]
    assert len(asked) == 2
    assert "look in tests too" in asked[-1]
    assert "write the changelog" in texts(world, "alice")


async def test_an_idle_teammate_may_be_ended() -> None:
    world = team_world(ScriptedModel({"lead": [use(*spawn("alice")), say("done")]}, end="idle"))
    listen(world, "TeammateIdle", says=lambda event: Halt("that is enough"))
    async with world.session() as team:
        await team.prompt("go")
        with anyio.fail_after(600):
            while (found := team.team.runtime.rows.agent("alice")) is None or found[0].life != "stopped":
                await anyio.sleep(1)
        assert "stop_asked" in await team.journal("alice")


async def test_a_hook_that_hangs_at_the_end_holds_nobody_for_long() -> None:
    world = World(ScriptedModel({}, end="yes"))
    heard = listen(world, "SessionEnd", says=lambda event: anyio.sleep_forever())
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        before = anyio.current_time()
    assert len(heard) == 1
    assert anyio.current_time() - before <= 5.5


# Prompts


async def test_an_interrupt_while_a_hook_looks_at_the_prompt_drops_it() -> None:
    world = World(ScriptedModel({"lead": [say("the second")]}, end="never"))
    heard = listen(world, "UserPromptSubmit", says=lambda event: anyio.sleep_forever() if event.text == "one" else None)
    async with world.session() as team:
        await team.prompt("one")
        await told(heard)
        await team.command("interrupt")
        await team.quiet()
        assert team.state("lead").turns.last_reason == "interrupted"
        assert not world.model.requests
        await team.prompt("two")
        await team.quiet()
        assert team.state("lead").turns.last_text == "the second"
    assert [event.text for event in heard] == ["one", "two"], "no hook looks at a prompt twice"


# Calls


async def test_a_batch_is_told_whole_and_may_stop_the_loop() -> None:
    calls = use("echo", {"text": "one"}, ("echo", {"text": "two"}), ("nothing", {}))
    world = World(ScriptedModel({"lead": [calls, say("never")]}), tools(Echo()))
    heard = listen(world, "PostToolBatch", says=lambda event: Deny("too many words"))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        (batch,) = heard
        assert [one.call.name for one in batch.calls] == ["echo", "echo", "nothing"]
        assert [one.result.is_error for one in batch.calls] == [False, False, True]
        assert len(world.model.requests) == 1
        state = team.state("lead")
        assert state.turns.last_reason == "interrupted"
        assert not state.calls, "the results stand in the conversation, so that the next turn can go on"


async def test_a_batch_may_be_told_more() -> None:
    world = World(ScriptedModel({"lead": [use("echo", {"text": "x"}), say("ok")]}), tools(Echo()))
    listen(world, "PostToolBatch", says=lambda event: AddContext("now run the linter"))
    await run(world)
    assert "now run the linter" in texts(world)


async def test_a_failed_call_is_told_as_one_and_a_success_is_not() -> None:
    async def boom(given: Any) -> str:
        if given.get("text") == "bad":
            raise ValueError("by nought")
        return "fine"

    script = [use("echo", {"text": "good"}), use("echo", {"text": "bad"}), say("ok")]
    world = World(ScriptedModel({"lead": script}), tools(Echo(act=boom)))
    heard = listen(world, "PostToolUseFailure", says=lambda event: AddContext(f"seen: {event.error}"))
    await run(world)
    assert [one.call.input for one in heard] == [{"text": "bad"}]
    assert "seen: ValueError: by nought" in texts(world)


# Tasks and plans


async def test_a_task_that_a_hook_refuses_never_was() -> None:
    world = team_world(ScriptedModel({"lead": [use(*TASK), use(*TASK), say("ok")]}))
    heard = listen(world, "TaskCreated", says=once(Deny("tasks need a ticket")))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert [one.subject for one in heard] == ["Write it", "Write it"]
        assert heard[0].description == "all of it"
        assert len(team.team.runtime.rows.tasks()) == 1
        assert "tasks need a ticket" in texts(world)


async def test_a_completion_that_a_hook_refuses_leaves_the_task_open() -> None:
    def claim(request: Any) -> Any:
        return use("claim_task", {"task_id": teams[0].team.runtime.rows.tasks()[0].id})

    def finish(request: Any) -> Any:
        task = next(iter(teams[0].team.runtime.rows.tasks())).id
        return use("complete_task", {"task_id": task, "result": "all written"})

    script = {
        "lead": [use(*TASK), use(*spawn("alice")), say("ok")],
        "alice": [claim, finish, finish, say("done")],
    }
    world = team_world(ScriptedModel(script, end="ok"))
    seen: list[str] = []
    teams: list[Any] = []

    def guard(event: Any) -> Any:
        seen.append(teams[0].team.runtime.rows.tasks()[0].status)
        return Deny("run the tests first") if len(seen) == 1 else None

    heard = listen(world, "TaskCompleted", says=guard)
    async with world.session() as team:
        teams.append(team)
        await team.prompt("go")
        await team.quiet()
        claimed = [one for one in heard if one.by.name == "alice"]
        assert [one.result for one in claimed] == ["all written", "all written"]
        assert seen == ["in_progress", "in_progress"], "a hook is asked before the board says so"
        assert "run the tests first" in texts(world, "alice")
        assert team.team.runtime.rows.tasks()[0].status == "completed"


async def test_a_plan_that_a_policy_rejects_is_put_to_nobody_and_the_gate_stays() -> None:
    world = team_world(planner(reported()))
    heard = listen(world, "PlanSubmitted", says=lambda event: Deny("name the tests that you will write"))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert heard
        assert [one for one in team.team.runtime.rows.requests() if one.kind == "plan"] == []
        name = heard[0].by.name
        assert team.state(name).work.gate.gate == "required"
        assert "name the tests" in texts(world, name)


# Compaction


async def test_a_compaction_is_skipped_while_the_conversation_fits_and_done_when_it_would_not() -> None:
    early = ({"stage": "summarize_all", "params": {"over": 0.6}},)
    world, _ = working(steps=6, context_limit=5_000, pipeline=early)
    heard = listen(world, "PreCompact", says=lambda event: Deny("not now"))
    after = listen(world, "PostCompact")
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        await told(after)
        kinds = await team.journal("lead")
    refused, done = kinds.count("summary_failed"), kinds.count("summary_began")
    assert refused
    assert done
    assert len(heard) >= refused + done
    first = kinds.index("summary_began")
    assert "summary_failed" in kinds[:first], "the premise: it was refused while the view still fitted"
    assert after[0].summary
    assert {one.trigger for one in (*heard, *after)} == {"auto"}
    assert team.state("lead").turns.last_text == "THE END"


async def test_a_compaction_by_hand_may_be_refused_and_a_beginning_follows_one_that_is_not() -> None:
    world, _ = working(steps=2, context_limit=None)
    heard = listen(world, "PreCompact", says=once(Deny("not now")))
    starts = listen(world, "SessionStart", says=lambda event: AddContext(f"again: {event.source}"))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        await team.command("compact", text="the markers")
        await team.quiet()
        assert "summary_began" not in await team.journal("lead")
        await team.command("compact", text="the markers")
        await team.quiet()
        assert "summary_began" in await team.journal("lead")
        await team.prompt("and now?")
        await team.quiet()
    assert [(one.trigger, one.instructions) for one in heard] == [("manual", "the markers")] * 2
    assert [one.source for one in starts] == ["startup", "compact"]
    assert "again: compact" in texts(world)


# What is told


async def test_mail_is_told_as_it_enters_and_may_be_told_beside() -> None:
    world = team_world(ScriptedModel({"lead": [use(*spawn("alice", "say hi")), say("ok")]}, end="hi"))
    heard = listen(world, "EnvelopeDelivered", says=lambda event: AddContext(f"mail of {event.sender}"))
    await run(world)
    assert {(one.type, one.sender, one.by.name) for one in heard} >= {
        ("prompt", "person", "lead"),
        ("result", "alice", "lead"),
    }
    assert "mail of alice" in texts(world) or "mail of lead" in texts(world, "alice")


async def test_answers_questions_and_reports_are_told() -> None:
    person_waits = {"ask_deadline": 60.0}
    world = World(
        ScriptedModel({"lead": [use("echo", {"text": "x"}), say("ok")]}),
        tools(Echo()),
        judge=AllowAll(ask=["echo"]),
        spec=person_waits,
    )
    heard = listen(world, "RequestAnswered", "Notification")
    async with world.session() as team:
        await team.prompt("go")
        await told(heard, 3)
    kinds = [getattr(one, "notification_type", None) or one.status for one in heard]
    assert kinds == ["permission_prompt", "expired", "idle_prompt"]
    assert heard[1].kind == "permission"
    assert "echo" in heard[0].message
    assert heard[0].request_id == heard[1].id


async def test_a_turn_that_fails_and_a_budget_that_is_reached_are_told() -> None:
    world = World(ScriptedModel({"lead": [fault("credentials", status=401)]}))
    heard = listen(world, "StopFailure")
    async with world.session() as team:
        await team.prompt("go")
        await told(heard)
    assert (heard[0].error, "ANTHROPIC_API_KEY" in heard[0].details) == ("authentication_failed", True)
    world = World(ScriptedModel({}, end="yes"), budget=Budget(steps=1))
    heard = listen(world, "BudgetReached")
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        await team.prompt("again")
        await told(heard)
    assert (heard[0].budget, heard[0].kind, heard[0].by.name) == ("session", "steps", "lead")


async def test_a_fire_that_a_hook_refuses_is_skipped_and_its_schedule_says_so() -> None:
    world = World(ScriptedModel({}, end="looked"))
    heard = listen(world, "ScheduleFired", says=once(Deny("not on Sundays")))
    async with world.session() as team:
        await add(world)
        await anyio.sleep(2 * 3600 + 120)
        await team.quiet()
        assert [one.prompt for one in heard] == ["look around"] * 2
        assert prompts(world) == 1
        assert (row(team).fires, row(team).skips) == (1, 1)
        assert "not on Sundays" in row(team).skipped_why
