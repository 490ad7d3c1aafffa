"""What the supervisor does: restarts with back-off, parking and resuming, kills; nothing is orphaned."""

from __future__ import annotations

import anyio
import pytest
from tests.engine.agent.test_background import Commands, Starts
from tests.engine.agent.test_one_agent import Echo
from tests.engine.team.supervised import (
    WORK,
    Breaks,
    Hangs,
    Processes,
    at_work,
    order,
    replying,
    row,
    to_lead,
    told,
    until,
    virtual,
)
from tests.engine.team.team_world import spawn, team_world

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.keys import orders_key, task_key
from callboard.engine.team.admin_orders import AdminOrder, give_order
from callboard.ports.store import Append, Fence, Put, Write
from callboard.testing import HostedSession, ScriptedModel, say, use
from callboard.types import events as ev
from callboard.types.errors import StoreDamaged
from callboard.types.records import Json, Task


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
        assert team.state("lead").turns.last_text == "done"


@virtual
async def test_in_its_back_off_an_agent_is_starting_and_its_row_says_since_when() -> None:
    model = ScriptedModel({"lead": [use(*spawn("alice")), say("w")], "alice": [use(*WORK)]})
    async with team_world(model, Echo(name="write_file"), judge=Breaks(1)).session() as team:
        await team.prompt("go")
        with anyio.fail_after(5):
            while (found := team.team.runtime.rows.agent("alice")) is None or not found[0].waiting_for:
                await anyio.sleep(0.1)
        waiting = found[0]
        assert (waiting.life, waiting.waiting_for) == ("starting", "restart")
        (crash,) = await told(team, "alice", ev.AgentCrashed)
        assert waiting.since == crash.at


@virtual
async def test_a_parked_agent_goes_on_when_a_person_resumes_it() -> None:
    model = ScriptedModel({**at_work(say("I see"), say("good")), "alice": [use(*WORK), say("did it after all")]})
    tool = Echo(name="write_file", effect="unknown")
    async with team_world(model, tool, judge=Breaks(4)).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert row(team, "alice").life == "crashed"
        assert (await told(team, "alice", ev.AgentCrashed))[-1].again_at is None
        assert [task.owner for task in team.team.runtime.rows.tasks()] == [None]
        await order(team, "resume", "alice")
        await until(team, "alice", "idle")
        await team.quiet()
        assert tool.ran == [{"text": "x"}], "it went on where it had crashed"
        assert "did it after all" in to_lead(model)
        assert (row(team, "alice").life, row(team, "alice").outcome) == ("idle", "")


@virtual
async def test_a_subagent_that_crashes_again_and_again_is_an_error_to_its_caller() -> None:
    ask = use("task", {"description": "d", "prompt": "p", "agent_type": "explore"})
    model = ScriptedModel({"lead": [ask, say("alas")]}, end="")
    model.complete = replying(model, use(*WORK))
    async with team_world(model, Echo(name="write_file"), judge=Breaks(9, "explore")).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert "[status: failed]" in to_lead(model)
        assert "ZeroDivisionError" in to_lead(model)
        assert team.state("lead").turns.last_text == "alas"


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
        assert team.state("lead").turns.last_text == "done"


@virtual
async def test_a_kill_ends_what_never_ends_and_leaves_nothing_behind() -> None:
    hangs, model = Hangs(), ScriptedModel(at_work(say("so be it")))
    async with team_world(model, hangs).session() as team:
        await team.prompt("go")
        await hangs.begun.wait()
        await order(team, "kill", "alice")
        ended = await until(team, "alice", "stopped")
        await team.quiet()
        assert (ended.outcome, ended.waiting_for) == ("stopped", "")
        kinds = await team.journal("alice")
        assert kinds[-5:] == [
            "agent_resumed",
            "tool_finished",
            "results_merged",
            "turn_ended",
            "agent_stopped",
        ]
        assert [(task.status, task.owner) for task in team.team.runtime.rows.tasks()] == [("pending", None)]
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
        assert [(task.status, task.owner) for task in team.team.runtime.rows.tasks()] == [("pending", None)]
        hangs.free.set()
        await team.quiet()


@virtual
async def test_the_background_commands_and_subagents_of_an_ended_agent_end_with_it() -> None:
    look: tuple[str, Json] = ("task", {"description": "d", "prompt": "p", "agent_type": "explore"})
    script = {**at_work(), "alice": [use("bash", {"text": "1"}), use(*look)]}
    hangs, model = Hangs(), ScriptedModel(script)
    model.complete = replying(model, use(*WORK))
    made = team_world(model, hangs, Starts("bash", effect="unknown"))
    world = Processes(model, made.tools)
    world.commands = Commands()
    async with world.session() as team:
        await team.prompt("go")
        await hangs.begun.wait()
        (child,) = [one.name for one in team.team.runtime.rows.agents() if one.kind == "subagent"]
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
    model.complete = replying(model, use(*WORK))
    async with team_world(model, hangs).session() as team:
        await team.prompt("go")
        await hangs.begun.wait()
        (child,) = [one.name for one in team.team.runtime.rows.agents() if one.kind == "subagent"]
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
        await give_order(team.world.store, team.id, AdminOrder("kill", "lead", 7), now=1.0, nonce="2")
        await give_order(team.world.store, team.id, AdminOrder("kill", "nobody", 1), now=1.0, nonce="3")
        await team.prompt("there?")
        await anyio.sleep(1)
        await team.quiet()
        assert team.state("lead").turns.last_text == "still here"


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
        assert [(one.status, one.owner) for one in team.team.runtime.rows.tasks()] == [("pending", None)]
        assert (await team.journal("alice")).count("agent_crashed") == 4


@virtual
async def test_a_task_is_freed_that_is_reserved_for_an_agent_in_the_moment_of_its_end() -> None:
    """Another process reserves it by what it knew, after the agent has freed its own tasks, or before a host looks."""
    script = {"lead": [use(*spawn("alice")), use(*spawn("bob")), say("w")], "bob": [say("idle"), say("I take it")]}
    world = team_world(ScriptedModel(script, end="ok"), Echo(name="write_file"))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        await order(team, "kill", "alice")
        await until(team, "alice", "stopped")
        await team.quiet()
        await reserve(team, "task_1", "alice")
        await taken(team, "task_1", "bob")
    await reserve(team, "task_2", "alice")
    async with world.session(resume=True) as again:
        await again.quiet()
        assert (found := again.team.runtime.rows.task("task_2")) is not None
        assert found[0].reserved_for == ""


async def reserve(team: HostedSession, task: str, agent: str) -> None:
    made = Task(id=task, subject="the work", reserved_for=agent, created_by="lead", created_at=1.0, updated_at=1.0)
    await team.world.store.commit(Put(task_key(team.id, task), made.encode(), expected=0))


async def taken(team: HostedSession, task: str, agent: str) -> None:
    with anyio.fail_after(600):
        while (found := team.team.runtime.rows.task(task)) is None or found[0].owner != agent:
            await anyio.sleep(0.1)


class EndsEarly(MemoryStore):
    """Store of a host that ends after it has performed an order, before the agent's next record."""

    performed: anyio.Event | None = None

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        if self.performed is not None:
            if any(isinstance(one, Append) and b'"t":"agent_resumed"' in one.record for one in writes):
                await self.performed.wait()
                self.performed = None
                raise StoreDamaged("the power is gone")
            if any(one.key == orders_key("s1") for one in writes if isinstance(one, Put)):
                self.performed.set()
        return await super().commit(*writes, fence=fence)


@virtual
async def test_an_order_to_resume_survives_the_end_of_its_host() -> None:
    store = EndsEarly()
    world = team_world(ScriptedModel(at_work(say("I see"))), Echo(name="write_file"), judge=Breaks(4), store=store)
    with pytest.RaisesGroup(StoreDamaged, flatten_subgroups=True):
        async with world.session() as team:
            await team.prompt("go")
            await team.quiet()
            assert row(team, "alice").life == "crashed"
            store.performed = anyio.Event()
            await order(team, "resume", "alice")
            await anyio.sleep_forever()
    async with world.session(resume=True) as team:
        await team.quiet()
        assert row(team, "alice").life != "crashed"
        assert "agent_resumed" in await team.journal("alice")


class Races(MemoryStore):
    """Store in which the row of a parked agent changes in the moment of its resume."""

    races = 1

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        for put in writes:
            if isinstance(put, Put) and put.expected and b'"life":"starting"' in put.value and self.races:
                self.races -= 1
                parked = await self.get(put.key)
                assert parked is not None
                assert parked.value is not None
                await super().commit(Put(put.key, parked.value), fence=fence)
        return await super().commit(*writes, fence=fence)


@virtual
async def test_an_order_to_resume_that_loses_a_race_is_tried_again() -> None:
    store = Races()
    world = team_world(ScriptedModel(at_work(say("I see"))), Echo(name="write_file"), judge=Breaks(4), store=store)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert row(team, "alice").life == "crashed"
        await order(team, "resume", "alice")
        with anyio.fail_after(600):
            while row(team, "alice").life in {"crashed", "starting"}:
                await anyio.sleep(0.1)
        assert store.races == 0
