"""What the supervisor does: restarts with back-off, parking and resuming, stalls and kills; nothing is orphaned."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import anyio
import pytest
from structlog.testing import capture_logs
from tests.engine.team_world import TeamWorld, spawn, team_world
from tests.engine.test_background import Commands, Starts
from tests.engine.test_one_agent import Echo
from tests.simulation.virtual import run_virtual

from callboard.adapters.memory import MemoryStore
from callboard.core.names import journal, orders_key
from callboard.engine.host import Host
from callboard.engine.memory import events_of
from callboard.engine.orders import Given, Order, give_order
from callboard.ports.model import ModelRequest, Reply
from callboard.ports.store import Append, Fence, Put, Write
from callboard.ports.tool import Folders, ToolSpec
from callboard.ports.world import Ruling
from callboard.testing import AllowAll, HostedSession, ScriptedModel, say, use
from callboard.words import events as ev
from callboard.words.rates import RateNotice
from callboard.words.specs import AgentSpec
from callboard.words.values import AgentRow, Cause, Json, ToolCall

WORK = ("write_file", cast("Json", {"text": "x"}))
"""What breaks or hangs in these worlds."""


class Breaks(AllowAll):
    """A judge with a bug, which is a bug of the agent's own code: it crashes so often, for one tool of one agent."""

    def __init__(self, times: int, who: str = "alice") -> None:
        super().__init__()
        self.left, self.who = times, who

    async def judge(
        self, call: ToolCall, tool: ToolSpec, spec: AgentSpec, folders: Folders, authority: Cause
    ) -> Ruling:
        if call.name == "write_file" and spec.name.startswith(self.who) and self.left:
            self.left -= 1
            raise ZeroDivisionError("a bug of ours")
        return await super().judge(call, tool, spec, folders, authority)


class Hangs(Echo):
    """A tool that never returns; `deaf`: it cannot be cancelled either, before the test lets go of it."""

    def __init__(self, *, deaf: bool = False, effect: str = "unknown") -> None:
        super().__init__(name="write_file", effect=effect, act=self._hang)
        self.deaf, self.begun, self.free = deaf, anyio.Event(), anyio.Event()

    async def _hang(self, given: Json) -> str:
        self.begun.set()
        with anyio.CancelScope(shield=self.deaf):
            await self.free.wait()
        return "at last"


class Processes(TeamWorld):
    """With background commands."""

    commands: Commands

    def host(self, session: str) -> Host:
        host = super().host(session)
        host.ports = replace(host.ports, launcher=self.commands)
        return host


Act = Callable[[], Awaitable[None]]


def virtual(act: Act) -> Callable[[], None]:
    """A test on the virtual clock. What is logged of crashes is kept off the screen: drawing it takes seconds."""

    def test() -> None:
        with capture_logs():
            run_virtual(act)

    test.__name__, test.__doc__ = act.__name__, act.__doc__
    return test


def row(team: HostedSession, name: str) -> AgentRow:
    found = team.team.host.board.agent(name)
    assert found is not None
    return found[0]


async def until(team: HostedSession, name: str, *lives: str) -> AgentRow:
    """Wait until an agent is in one of these states; virtual time, so that it may be looked at again and again."""
    with anyio.fail_after(600):
        while (found := team.team.host.board.agent(name)) is None or found[0].life not in lives:
            await anyio.sleep(0.1)
    return found[0]


async def told(team: HostedSession, name: str, kind: type[ev.Base]) -> list[Any]:
    """The events of a kind in an agent's journal."""
    events = await events_of(team.world.store, journal(team.id, name, row(team, name).incarnation))
    return [event for event in events if isinstance(event, kind)]


async def order(team: HostedSession, what: Order, name: str, nonce: str = "1") -> None:
    given = Given(what, name, row(team, name).incarnation, "enough")
    await give_order(team.world.store, team.id, given, now=team.world.clock.now(), nonce=nonce)


def to_lead(model: ScriptedModel) -> str:
    return b"\n".join([r for r in model.requests if r.agent == "lead"][-1].messages).decode()


def at_work(*more: Any) -> dict[str, list[Any]]:
    """A lead with a task for alice, which she has from the start."""
    lead: list[Any] = [
        use("create_task", {"subject": "the work"}),
        _spawn_for_the_task,
        say("w"),
    ]
    return {"lead": [*lead, *more], "alice": [use(*WORK)]}


def _spawn_for_the_task(request: ModelRequest) -> Reply:
    text = request.messages[-1].decode()
    return use(*spawn("alice", task_id=text[text.index("task_") :][:17]))


@virtual
async def test_a_crash_is_an_event_and_the_agent_goes_on_from_its_journal_after_a_back_off() -> None:
    model = ScriptedModel({"lead": [use(*spawn("alice")), say("w"), say("done")], "alice": [use(*WORK), say("did")]})
    tool = Echo(name="write_file", effect="unknown")
    async with team_world(model, tool, judge=Breaks(2)).session() as team:
        await team.prompt("go")
        await team.quiet()
        crashes = await told(team, "alice", ev.AgentCrashed)
        assert [one.count for one in crashes] == [1, 2]
        assert [round(one.again_at - one.at, 3) for one in crashes] == [0.5, 1.0]
        resumed = await told(team, "alice", ev.AgentResumed)
        assert [one.at for one in resumed] == [one.again_at for one in crashes]
        assert (row(team, "alice").life, tool.ran) == ("idle", [{"text": "x"}])
        assert team.state("lead").last_text == "done"


@virtual
async def test_in_its_back_off_an_agent_is_starting_and_its_row_says_since_when() -> None:
    model = ScriptedModel({"lead": [use(*spawn("alice")), say("w")], "alice": [use(*WORK)]})
    async with team_world(model, Echo(name="write_file"), judge=Breaks(1)).session() as team:
        await team.prompt("go")
        with anyio.fail_after(5):
            while (found := team.team.host.board.agent("alice")) is None or not found[0].waiting_for:
                await anyio.sleep(0.1)
        waiting = found[0]
        assert (waiting.life, waiting.waiting_for) == ("starting", "restart")
        (crash,) = await told(team, "alice", ev.AgentCrashed)
        assert waiting.since == crash.at


@virtual
async def test_b10_a_parked_agent_goes_on_when_a_person_resumes_it() -> None:
    model = ScriptedModel({**at_work(say("I see"), say("good")), "alice": [use(*WORK), say("did it after all")]})
    tool = Echo(name="write_file", effect="unknown")
    async with team_world(model, tool, judge=Breaks(4)).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert row(team, "alice").life == "crashed"
        assert (await told(team, "alice", ev.AgentCrashed))[-1].again_at is None
        assert [task.owner for task in team.team.host.board.tasks()] == [None]
        await order(team, "resume", "alice")
        await until(team, "alice", "idle")
        await team.quiet()
        assert tool.ran == [{"text": "x"}], "it went on where it had crashed"
        assert "did it after all" in to_lead(model)
        assert (row(team, "alice").life, row(team, "alice").outcome) == ("idle", "")


@virtual
async def test_b9_a_subagent_that_crashes_again_and_again_is_an_error_to_its_caller() -> None:
    ask = use("task", {"description": "d", "prompt": "p", "agent_type": "explore"})
    model = ScriptedModel({"lead": [ask, say("alas")]}, end="")
    model.complete = _replying(model, use(*WORK))  # type: ignore[method-assign]
    async with team_world(model, Echo(name="write_file"), judge=Breaks(9, "explore")).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert "[status: failed]" in to_lead(model)
        assert "ZeroDivisionError" in to_lead(model)
        assert team.state("lead").last_text == "alas"


def _replying(model: ScriptedModel, reply: Any) -> Any:
    """Every subagent gets this reply."""
    whole = model.complete

    async def complete(request: Any, on_delta: Any) -> Any:
        return reply if request.agent.startswith("explore") else await whole(request, on_delta)

    return complete


@virtual
async def test_a_crashed_lead_is_parked_and_goes_on_with_the_next_process() -> None:
    model = ScriptedModel({"lead": [use(*WORK), say("done")]})
    world = team_world(model, Echo(name="write_file"), judge=Breaks(4, "lead"))
    async with world.session() as team:
        await team.prompt("go")
        await until(team, "lead", "crashed")
        await team.quiet()
    async with world.session(resume=True) as team:
        await until(team, "lead", "idle")
        assert team.state("lead").last_text == "done"


@virtual
async def test_b10_a_kill_ends_what_never_ends_and_leaves_nothing_behind() -> None:
    hangs, model = Hangs(), ScriptedModel(at_work(say("so be it")))
    async with team_world(model, hangs).session() as team:
        await team.prompt("go")
        await hangs.begun.wait()
        await order(team, "kill", "alice")
        ended = await until(team, "alice", "stopped")
        await team.quiet()
        assert (ended.outcome, ended.waiting_for) == ("stopped", "")
        kinds = await team.journal("alice")
        assert kinds[-6:] == [
            "agent_resumed",
            "tool_finished",
            "tool_settled",
            "results_merged",
            "turn_ended",
            "agent_stopped",
        ]
        assert [(task.status, task.owner) for task in team.team.host.board.tasks()] == [("pending", None)]
        assert "alice ended without a report: stopped" in to_lead(model)
        (asked,) = await told(team, "alice", ev.StopAsked)
        assert (asked.by, asked.why) == ("person", "enough")
        hangs.free.set()


@virtual
async def test_what_cannot_even_be_cancelled_is_left_behind_and_writes_nothing_any_more() -> None:
    hangs, model = Hangs(deaf=True), ScriptedModel(at_work())
    async with team_world(model, hangs).session() as team:
        await team.prompt("go")
        await hangs.begun.wait()
        await order(team, "kill", "alice")
        await until(team, "alice", "stopped")
        before = await team.journal("alice")
        hangs.free.set()
        await team.quiet()
        await anyio.sleep(1)
        assert await team.journal("alice") == before
        assert before[-1] == "agent_stopped"


@virtual
async def test_who_does_not_stop_in_the_time_of_its_shutdown_is_ended_by_the_runtime() -> None:
    hangs = Hangs(deaf=True)
    script = at_work(use("request_shutdown", {"teammate": "alice"}), say("w"))
    async with team_world(ScriptedModel(script), hangs).session() as team:
        await team.prompt("go")
        await hangs.begun.wait()
        await team.prompt("let her stop")
        began = team.world.clock.now()
        await until(team, "alice", "stopped")
        assert 120 <= team.world.clock.now() - began < 140
        assert [one.by for one in await told(team, "alice", ev.StopAsked)] == ["runtime"]
        assert [(task.status, task.owner) for task in team.team.host.board.tasks()] == [("pending", None)]
        hangs.free.set()
        await team.quiet()


@virtual
async def test_the_background_commands_and_subagents_of_an_ended_agent_end_with_it() -> None:
    look: tuple[str, Json] = ("task", {"description": "d", "prompt": "p", "agent_type": "explore"})
    script = {**at_work(), "alice": [use("bash", {"text": "1"}), use(*look)]}
    hangs, model = Hangs(), ScriptedModel(script)
    model.complete = _replying(model, use(*WORK))  # type: ignore[method-assign]
    made = team_world(model, hangs, Starts("bash", effect="unknown"))
    world = Processes(model, made.tools)
    world.commands = Commands()
    async with world.session() as team:
        await team.prompt("go")
        await hangs.begun.wait()
        (child,) = [one.name for one in team.team.host.board.agents() if one.kind == "subagent"]
        assert (row(team, "alice").life, row(team, "alice").waiting_for) == ("waiting", "subagents")
        await order(team, "kill", "alice")
        await until(team, "alice", "stopped")
        ended = await until(team, child, "stopped")
        assert ended.outcome == "stopped"
        assert world.commands.over[1].is_set()
        assert [(one.id, one.status) for one in await told(team, "alice", ev.BackgroundEnded)] == [("bg_1", "stopped")]
        hangs.free.set()


@virtual
async def test_an_interrupted_call_stops_its_subagent() -> None:
    look: tuple[str, Json] = ("task", {"description": "d", "prompt": "p", "agent_type": "explore"})
    hangs, model = Hangs(), ScriptedModel({"lead": [use(*look), say("again")]})
    model.complete = _replying(model, use(*WORK))  # type: ignore[method-assign]
    async with team_world(model, hangs).session() as team:
        await team.prompt("go")
        await hangs.begun.wait()
        (child,) = [one.name for one in team.team.host.board.agents() if one.kind == "subagent"]
        await team.command("interrupt")
        await until(team, child, "stopped")
        await team.quiet()
        hangs.free.set()


@virtual
async def test_a_parked_agent_can_be_ended_and_an_order_that_is_given_while_nobody_hosts_is_kept() -> None:
    model = ScriptedModel(at_work(say("I see")))
    world = team_world(model, Echo(name="write_file"), judge=Breaks(9))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert row(team, "alice").life == "crashed"
    await order(team, "kill", "alice")
    async with world.session(resume=True) as team:
        await until(team, "alice", "stopped")
        await team.quiet()
    async with world.session(resume=True) as team:
        await team.quiet()
        done = await world.store.get(orders_key("s1"))
        assert done is not None
        assert done.value == b"1"
        assert (await team.journal("alice")).count("agent_stopped") == 1, "it is carried out once"


@virtual
async def test_the_lead_and_an_earlier_life_are_not_killed() -> None:
    model = ScriptedModel({"lead": [say("hm"), say("still here")]})
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        await order(team, "kill", "lead")
        await give_order(team.world.store, team.id, Given("kill", "lead", 7), now=1.0, nonce="2")
        await give_order(team.world.store, team.id, Given("kill", "nobody", 1), now=1.0, nonce="3")
        await team.prompt("there?")
        await anyio.sleep(1)
        await team.quiet()
        assert team.state("lead").last_text == "still here"


@virtual
async def test_a_stalled_teammate_is_told_of_once_with_what_it_waits_for_and_since_when() -> None:
    hangs, model = Hangs(), ScriptedModel(at_work(say("hm"), say("never")))
    async with team_world(model, hangs).session() as team:
        await team.prompt("go")
        await hangs.begun.wait()
        began = team.world.clock.now()
        await anyio.sleep(620)
        assert await told(team, "alice", ev.StallNoticed) == []
        await anyio.sleep(4 * 3_600)
        (stalled,) = await told(team, "alice", ev.StallNoticed)
        assert (stalled.what, stalled.since, stalled.at - began) == (
            "write_file",
            pytest.approx(began),
            pytest.approx(630),
        )
        assert to_lead(model).count("alice is stalled: it waits for write_file since") == 1
        assert team.state("lead").last_text == "hm", "told once"
        hangs.free.set()
        await team.quiet()


@virtual
async def test_a_stalled_lead_is_told_to_the_person_and_a_model_call_has_its_time_from_its_sending_on() -> None:
    model = ScriptedModel({"lead": [say("at last")]}, delay=5_000)
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        (stalled,) = await told(team, "lead", ev.StallNoticed)
        assert (stalled.what, stalled.limit) == ("the model's reply", 930)
        assert stalled.at == pytest.approx(stalled.since + 930)
        mail = await team.world.store.read("m/s1/lead.1")
        assert len(mail) == 1, "the person's prompt, and no word to itself"


@virtual
async def test_who_waits_for_a_person_a_subagent_or_is_idle_is_never_stalled() -> None:
    look: tuple[str, Json] = ("task", {"description": "d", "prompt": "p", "agent_type": "explore"})
    script = {"lead": [use(*spawn("alice")), say("w"), use(*look)], "alice": [use(*WORK)]}
    asks = AllowAll(ask=["write_file"])
    model = ScriptedModel(script)
    model.complete = _replying(model, use(*WORK))  # type: ignore[method-assign]
    async with team_world(model, Hangs(), judge=asks, spec={"ask_deadline": None}).session() as team:
        await team.prompt("go")
        await until(team, "alice", "waiting")
        await team.prompt("look")
        await anyio.sleep(24 * 3_600)
        assert (row(team, "alice").life, row(team, "lead").waiting_for) == ("waiting", "subagents")
        for one in team.team.host.board.agents():
            assert await told(team, one.name, ev.StallNoticed) == []


class Racing(MemoryStore):
    """Somebody else changes the task of an agent at the very moment in which it is parked."""

    raced = 0

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        parks = any(isinstance(one, Append) and b'"again_at":null' in one.record for one in writes)
        task = next((one for one in writes if isinstance(one, Put) and "/task/" in one.key), None)
        if parks and task is not None and not self.raced:
            self.raced += 1
            found = await self.get(task.key)
            assert found is not None
            await super().commit(Put(found.key, found.value or b""))
        return await super().commit(*writes, fence=fence)


@virtual
async def test_a_parking_that_loses_a_race_is_tried_again_on_fresh_rows() -> None:
    store = Racing()
    model = ScriptedModel(at_work(say("I see")))
    async with team_world(model, Echo(name="write_file"), judge=Breaks(4), store=store).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert store.raced == 1
        assert row(team, "alice").life == "crashed"
        assert [(one.status, one.owner) for one in team.team.host.board.tasks()] == [("pending", None)]
        assert (await team.journal("alice")).count("agent_crashed") == 4


@virtual
async def test_an_idle_team_arms_no_timer() -> None:
    names = [f"mate-{n}" for n in range(20)]
    model = ScriptedModel({"lead": [use(*spawn(names[0]), *(spawn(name) for name in names[1:])), say("w")]})
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        await anyio.sleep(3_600)  # what the last operation had armed is over
        assert team.team.stalls.next_look is None


@virtual
async def test_a_call_that_waits_for_the_rate_is_an_event_and_its_row_says_so() -> None:
    model = ScriptedModel({"lead": [say("at last")]})
    async with team_world(model).session() as team:
        host, now = team.team.host, team.world.clock.now()
        host.governor.heed(RateNotice(model="scripted", at=now, parked_until=now + 50))
        await team.prompt("go")
        waiting = await until(team, "lead", "waiting")
        assert (waiting.waiting_for, model.requests) == ("rate", [])
        await until(team, "lead", "idle")
        (began,) = await told(team, "lead", ev.WaitBegan)
        assert (began.what, began.until, waiting.since) == ("rate", now + 50, began.at)
        assert team.world.clock.now() >= now + 50
