"""Subagents in the background: the caller goes on, and gets each report exactly once, whatever ends or crashes."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.team.supervised import (
    WORK,
    Breaks,
    Hangs,
    at_work,
    order,
    row,
    told,
    until,
    virtual,
)
from tests.engine.team.team_world import TeamWorld, spawn, team_world

from callboard.adapters.storage.memory import MemoryStore
from callboard.adapters.tools.shell import background_tools
from callboard.ports.model import ModelRequest, Reply
from callboard.ports.store import Fence, Write
from callboard.ports.tool import Tool
from callboard.testing import HostedSession, ScriptedModel, say, use
from callboard.types import events as ev
from callboard.types.errors import Fenced
from callboard.types.records import Json

REPORT = "it is in retry.py"
LOOK: tuple[str, Json] = (
    "task",
    {"description": "find it", "prompt": "p", "agent_type": "explore", "run_in_background": True},
)


class Subagents(ScriptedModel):
    """Each subagent makes these replies, and holds the last one back until the test opens the door."""

    def __init__(self, script: dict[str, Any], *replies: Reply, report: str = REPORT, shut: bool = True) -> None:
        super().__init__(script, end=report)
        self.replies, self.door = replies, anyio.Event()
        if not shut:
            self.door.set()

    async def complete(self, request: ModelRequest, on_delta: Any) -> Reply:
        if request.agent.startswith("explore"):
            if request.ordinal <= len(self.replies):
                return self.replies[request.ordinal - 1]
            await self.door.wait()
        return await super().complete(request, on_delta)


def world_of(model: ScriptedModel, *tools: Tool, **parts: Any) -> TeamWorld:
    return team_world(model, *background_tools(), *tools, **parts)


def child_of(team: HostedSession) -> str:
    (name,) = [one.name for one in team.team.runtime.rows.agents() if one.kind == "subagent"]
    return name


def output_of(request: ModelRequest, **more: Any) -> Reply:
    return use("task_output", {"id": started_in(request), **more})


def stop_of(request: ModelRequest) -> Reply:
    return use("task_stop", {"id": started_in(request)})


def started_in(request: ModelRequest) -> str:
    text = b"\n".join(request.messages).decode()
    place = text.index("[Background task ") + len("[Background task ")
    return text[place : text.index(" ", place)]


def waiting(request: ModelRequest) -> Reply:
    return output_of(request, block=True, timeout_s=500)


def reports_in(model: ScriptedModel, agent: str = "lead", report: str = REPORT) -> int:
    """How often the report stands in the newest request of an agent."""
    newest = [request for request in model.requests if request.agent == agent][-1]
    return b"\n".join(newest.messages).decode().count(report)


async def said(team: HostedSession, text: str, who: str = "lead") -> None:
    with anyio.fail_after(600):
        while (agent := team.team.agent(who)) is None or agent.state.turns.last_text != text:
            await anyio.sleep(0.1)


@virtual
async def test_the_caller_goes_on_and_the_report_wakes_it() -> None:
    model = Subagents({"lead": [use(*LOOK), say("launched"), say("thanks")]})
    async with world_of(model).session() as team:
        await team.prompt("go")
        await said(team, "launched")
        child = child_of(team)
        (began,) = await told(team, "lead", ev.BackgroundStarted)
        assert (began.id, began.agent, began.command, began.authority) == (child, child, "find it", "person")
        assert row(team, child).life == "working"
        model.door.set()
        await team.quiet()
        assert team.state("lead").turns.last_text == "thanks"
        assert reports_in(model) == 1
        (ended,) = await told(team, "lead", ev.BackgroundEnded)
        assert (ended.id, ended.agent, ended.status) == (child, child, "completed")


@virtual
async def test_a_type_may_say_that_its_subagents_run_in_the_background() -> None:
    call = ("task", {key: value for key, value in LOOK[1].items() if key != "run_in_background"})
    model = Subagents({"lead": [use(*call), say("launched"), say("thanks")]}, shut=False)
    async with world_of(model, spec={"background": True}).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert len(await told(team, "lead", ev.BackgroundStarted)) == 1
        assert (team.state("lead").turns.last_text, reports_in(model)) == ("thanks", 1)


@virtual
async def test_a_team_is_not_quiet_before_the_report_was_read_unless_subagents_do_not_count() -> None:
    model = Subagents({"lead": [use(*LOOK), say("launched"), say("thanks")]})
    async with world_of(model).session() as team:
        await team.prompt("go")
        await said(team, "launched")
        await team.team.quiet(subagents=False)
        with anyio.move_on_after(60) as limit:
            await team.team.quiet(commands=False)
        assert limit.cancelled_caught
        model.door.set()
        await team.team.quiet(commands=False)
        assert team.state("lead").turns.last_text == "thanks"


@virtual
async def test_a_call_that_waits_is_moved_to_the_background() -> None:
    call = ("task", {key: value for key, value in LOOK[1].items() if key != "run_in_background"})
    model = Subagents({"lead": [use(*call), say("launched"), say("thanks")]})
    async with world_of(model).session() as team:
        await team.prompt("go")
        await until(team, "lead", "waiting")
        lead = team.team.agent("lead")
        assert lead is not None
        assert lead.spawner is not None
        (waiting_call,) = lead.state.calls
        assert lead.foreground.move(waiting_call.call.id)
        await said(team, "launched")
        assert not lead.foreground.move(waiting_call.call.id)
        assert row(team, child_of(team)).life == "working"
        model.door.set()
        await team.quiet()
        assert (team.state("lead").turns.last_text, reports_in(model)) == ("thanks", 1)
        assert len([r for r in model.requests if r.agent == child_of(team)]) == 1


@virtual
async def test_output_that_was_waited_for_is_the_report_and_no_mail_brings_it_again() -> None:
    model = Subagents({"lead": [use(*LOOK), waiting, say("found")]})
    async with world_of(model).session() as team:
        await team.prompt("go")
        await anyio.sleep(5)
        model.door.set()
        await team.quiet()
        assert team.state("lead").turns.last_text == "found"
        assert reports_in(model) == 1
        assert [one.status for one in await told(team, "lead", ev.BackgroundEnded)] == ["completed"]
        assert "task-notification" not in str(model.requests[-1].messages)


@virtual
async def test_output_of_a_subagent_that_works_says_so_and_a_wait_ends_at_its_limit() -> None:
    model = Subagents(
        {"lead": [use(*LOOK), output_of, lambda r: output_of(r, block=True), say("later"), say("thanks")]}
    )
    async with world_of(model).session() as team:
        await team.prompt("go")
        await said(team, "later")
        assert str(model.requests[-1].messages).count(f"[{child_of(team)}: running]") == 2
        model.door.set()
        await team.quiet()
        assert (team.state("lead").turns.last_text, reports_in(model)) == ("thanks", 1)


@virtual
async def test_the_caller_finds_it_in_the_list_of_the_team_while_it_works() -> None:
    model = Subagents({"lead": [use(*LOOK), use("list_team"), say("launched"), use("list_team"), say("thanks")]})
    async with world_of(model).session() as team:
        await team.prompt("go")
        await said(team, "launched")
        line = f"{child_of(team)}: find it [your subagent in the background]"
        assert str(model.requests[-1].messages).count(line) == 1
        model.door.set()
        await team.quiet()
        assert str(model.requests[-1].messages).count(line) == 1


@virtual
async def test_output_can_be_read_again_after_the_report() -> None:
    model = Subagents({"lead": [use(*LOOK), say("launched"), output_of, say("read again")]}, shut=False)
    async with world_of(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert (team.state("lead").turns.last_text, reports_in(model)) == ("read again", 2)
        assert len(await told(team, "lead", ev.BackgroundEnded)) == 1


@virtual
async def test_a_stopped_subagent_ends_and_sends_nothing() -> None:
    hangs = Hangs()
    model = Subagents({"lead": [use(*LOOK), stop_of, say("stopped it")]}, use(*WORK))
    async with world_of(model, hangs).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert row(team, child_of(team)).outcome == "stopped"
        assert [one.status for one in await told(team, "lead", ev.BackgroundEnded)] == ["stopped"]
        assert team.state("lead").turns.last_text == "stopped it"
        hangs.free.set()


@virtual
async def test_a_subagent_that_a_person_stops_is_told_as_stopped() -> None:
    model = Subagents({"lead": [use(*LOOK), say("launched"), say("so be it")]})
    async with world_of(model).session() as team:
        await team.prompt("go")
        await said(team, "launched")
        await team.command("stop", to=child_of(team))
        await team.quiet()
        assert team.state("lead").turns.last_text == "so be it"
        assert "The subagent was stopped before it was done" in str(model.requests[-1].messages)


@virtual
async def test_a_subagent_that_crashes_again_and_again_is_told_as_failed() -> None:
    model = Subagents({"lead": [use(*LOOK), say("launched"), say("alas")]}, use(*WORK))
    async with world_of(model, Echo(name="write_file"), judge=Breaks(9, "explore")).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert [one.status for one in await told(team, "lead", ev.BackgroundEnded)] == ["failed"]
        assert team.state("lead").turns.last_text == "alas"
        assert "ZeroDivisionError" in str(model.requests[-1].messages)


@virtual
async def test_an_interrupt_leaves_it_at_work_and_a_stop_of_its_caller_ends_it() -> None:
    model = Subagents({"lead": [use(*LOOK), use(*WORK), say("again")]})
    hangs = Hangs()
    async with world_of(model, hangs).session() as team:
        await team.prompt("go")
        await hangs.begun.wait()
        child = child_of(team)
        await team.command("interrupt")
        await until(team, "lead", "idle")
        assert row(team, child).life == "working"
        await team.command("stop")
        await until(team, child, "stopped")
        await team.quiet()
        assert [one.status for one in await told(team, "lead", ev.BackgroundEnded)] == ["stopped"]
        kinds = await team.journal("lead")
        assert kinds.index("background_ended") < kinds.index("agent_stopped")
        hangs.free.set()


@virtual
async def test_a_killed_teammate_takes_its_subagent_along() -> None:
    model = Subagents({**at_work(say("I see")), "alice": [use(*LOOK), use(*WORK)]})
    hangs = Hangs()
    async with world_of(model, hangs).session() as team:
        await team.prompt("go")
        await hangs.begun.wait()
        child = child_of(team)
        await order(team, "kill", "alice")
        await until(team, child, "stopped")
        await team.quiet()
        assert [one.status for one in await told(team, "alice", ev.BackgroundEnded)] == ["stopped"]
        hangs.free.set()


@virtual
async def test_a_parked_teammate_reads_that_its_subagent_was_stopped_with_it() -> None:
    model = Subagents({**at_work(say("I see"), say("good")), "alice": [use(*LOOK), use(*WORK), say("on my own")]})
    async with world_of(model, Echo(name="write_file"), judge=Breaks(4)).session() as team:
        await team.prompt("go")
        await until(team, "alice", "crashed")
        await until(team, child_of(team), "stopped")
        await team.quiet()
        assert [one.status for one in await told(team, "alice", ev.BackgroundEnded)] == ["stopped"]
        await order(team, "resume", "alice")
        await until(team, "alice", "idle")
        await team.quiet()
        mine = [request for request in model.requests if request.agent == "alice"]
        assert "It was ended when you crashed again and again" in str(mine[-1].messages)


@virtual
async def test_a_fresh_conversation_keeps_its_subagents_in_the_background() -> None:
    model = Subagents({"lead": [use(*LOOK), say("launched"), say("thanks")]})
    async with world_of(model).session() as team:
        await team.prompt("go")
        await said(team, "launched")
        child = child_of(team)
        await team.command("new")
        await team.team.wait_for_begin("lead", 2)
        assert row(team, child).life == "working"
        model.door.set()
        await said(team, "thanks")
        await team.quiet()
        assert (row(team, child).outcome, reports_in(model)) == ("done", 1)


@virtual
async def test_a_teammate_reports_only_after_its_subagent() -> None:
    lead = [use(*spawn("alice")), say("waiting"), say("all done")]
    model = Subagents({"lead": lead, "alice": [use(*LOOK), say("I wait for it"), say("it is done")]})
    async with world_of(model).session() as team:
        await team.prompt("go")
        await said(team, "I wait for it", "alice")
        await anyio.sleep(30)
        assert team.state("lead").turns.last_text == "waiting"
        model.door.set()
        await team.quiet()
        assert team.state("lead").turns.last_text == "all done"
        assert "it is done" in str([r for r in model.requests if r.agent == "lead"][-1].messages)


@virtual
async def test_what_ended_while_nobody_hosted_is_told_at_the_resume_once() -> None:
    model = Subagents({"lead": [use(*LOOK), say("launched"), say("thanks")]})
    world = world_of(model)
    async with world.session() as team:
        await team.prompt("go")
        await said(team, "launched")
    model.door.set()
    for _ in range(2):
        async with world.session(resume=True) as team:
            await team.quiet()
            assert team.state("lead").turns.last_text == "thanks"
    assert len([request for request in model.requests if request.agent == "lead"]) == 3
    assert reports_in(model) == 1


class Dies(MemoryStore):
    """Takes no more records after so many: the process ends there, and the next one finds what was written."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left, self.died = after, False

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        self.left -= 1
        self.died = self.died or self.left == 0
        if self.left <= 0 and self.left > -1_000:
            raise Fenced("this process has died")
        return await super().commit(*writes, fence=fence)


def dies_after(commits: int, script: dict[str, Any]) -> bool:
    """Let the process die after so many commits, and another one go on; return False if it did not live so long."""
    store = Dies(commits)
    model = Subagents(script)

    async def act() -> None:
        model.door.set()
        world = world_of(model, store=store)
        try:
            async with world.session() as team:
                await team.prompt("go")
                await team.quiet()
        except* Fenced:
            pass
        store.left = -1_000
        async with world.session(resume=True) as team:
            await team.quiet()
            assert team.state("lead").turns.last_text == "thanks"
            assert reports_in(model) == 1
            child = child_of(team)
            assert row(team, child).outcome == "done"
            for kind in (ev.BackgroundStarted, ev.BackgroundEnded):
                assert [one.agent for one in await told(team, "lead", kind)] == [child]

    virtual(act)()
    return store.died


SCRIPTS = {
    "mail": lambda: {"lead": [use(*LOOK), say("launched"), say("thanks")]},
    "output": lambda: {"lead": [use(*LOOK), waiting, say("thanks")]},
}


@pytest.mark.parametrize("how", [*SCRIPTS])
@pytest.mark.parametrize("commits", [4, 7, 9, 11, 13])
def test_a_death_of_the_process_loses_and_doubles_no_report(how: str, commits: int) -> None:
    dies_after(commits, SCRIPTS[how]())


@pytest.mark.soak
@pytest.mark.parametrize("how", [*SCRIPTS])
def test_a_death_after_any_commit_loses_and_doubles_no_report(how: str) -> None:
    commits = 4
    while dies_after(commits, SCRIPTS[how]()):
        commits += 1
    assert commits > 12
