"""An agent's right to run: one holder at a time, held for a turn, and no output without it."""

from __future__ import annotations

import io
from collections.abc import Callable

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.team.supervised import WORK, Breaks, Hangs, at_work, order, row, told, until, virtual
from tests.engine.team.team_world import spawn, team_world

from callboard.adapters.storage.memory import MemoryStore
from callboard.cli.terminal.screen import Screen
from callboard.cli.terminal.terminal import Block, Terminal
from callboard.engine.agent_lock import AgentLock, AgentLockError, AgentLockHolder
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.team.supervisor import Team
from callboard.ports.model import Delta, ModelRequest, OnDelta, Reply
from callboard.ports.store import Append, Fence, Write
from callboard.ports.tool import CallContext, ToolOutcome
from callboard.testing import ScriptedModel, World, say, use
from callboard.types import events as ev
from callboard.types.events import Event
from callboard.types.records import Envelope, Json


def lock_of(team: Team, name: str) -> AgentLock:
    """The lock of the newest life of a name."""
    return next(member.lock for (agent, _), member in reversed(team.members.items()) if agent == name)


class Holders:
    """An observer that notes who holds an agent's lock at each of its outputs."""

    def __init__(self) -> None:
        self.team: Team | None = None
        self.events: list[tuple[str, Event]] = []
        self.holders: dict[str, list[AgentLockHolder]] = {}
        self.free: list[str] = []
        self.deltas: list[tuple[str, str]] = []

    def _look(self, agent: str) -> None:
        assert self.team is not None
        holder = lock_of(self.team, agent).holder
        if holder is None:
            self.free.append(agent)
        elif holder not in self.holders.setdefault(agent, []):
            self.holders[agent].append(holder)

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        self.events.append((agent, event))
        self._look(agent)

    def on_delta(self, agent: str, delta: Delta) -> None:
        if delta.kind != "notice":
            self.deltas.append((agent, delta.text))
            self._look(agent)

    def on_mail(self, envelope: Envelope) -> None:
        """An envelope is no output of an agent."""


def test_a_lock_has_one_holder_and_nobody_waits_for_it() -> None:
    lock = AgentLock("alice")
    life, other = AgentLockHolder(lock), AgentLockHolder(lock)
    with life:
        with life:
            assert life.holds
            with pytest.raises(AgentLockError, match="alice runs already"), other:
                pass
        assert life.holds, "an inner block does not end the outer one"
    assert lock.holder is None
    with other:
        assert other.holds
        assert not life.holds


def test_a_holder_that_gave_the_lock_up_does_not_take_it_from_the_next_one() -> None:
    lock = AgentLock("alice")
    killed, settling = AgentLockHolder(lock), AgentLockHolder(lock)
    killed.acquire()
    killed.give_up()
    with settling:
        killed.release()
        assert settling.holds
    assert lock.holder is None


@virtual
async def test_a_block_without_the_lock_is_refused() -> None:
    screen = io.StringIO()
    terminal = Terminal(io.StringIO(), screen)
    runtime = World(ScriptedModel({}), observers=[Screen(terminal, result_apart=False)]).runtime("s1")
    lock = AgentLock("alice")
    without = AgentLockHolder(lock)
    with AgentLockHolder(lock):
        for show in (
            lambda: runtime.report_events(without, 1, [ev.TurnEnded(at=0, turn="t", reason="end", text="hello")]),
            lambda: runtime.report_output(without, Delta("text", "hello")),
        ):
            with pytest.raises(AgentLockError, match="alice shows output without its agent_lock"):
                show()
    runtime.notice("alice", "a line of the runtime needs no lock")
    terminal.close()
    assert screen.getvalue() == "alice: a line of the runtime needs no lock\n"


@virtual
async def test_an_agent_holds_its_lock_for_a_turn_and_only_then() -> None:
    hangs, looks = Hangs(), Holders()
    model = ScriptedModel({"lead": [use(*spawn("alice")), say("w"), say("done")], "alice": [use(*WORK), say("did")]})
    async with team_world(model, hangs, observers=[looks]).session() as team:
        looks.team = team.team
        await team.prompt("go")
        await hangs.begun.wait()
        await until(team, "lead", "idle")
        await anyio.sleep(1)
        holder = lock_of(team.team, "alice").holder
        assert holder is not None, "her turn lasts as long as its tool"
        assert lock_of(team.team, "lead").holder is None, "the lead rests"
        hangs.free.set()
        await team.quiet()
        assert [lock_of(team.team, name).holder for name in ("lead", "alice")] == [None, None]
        assert looks.free == []
        assert {name: len(holders) for name, holders in looks.holders.items()} == {"lead": 1, "alice": 1}


PARTS = tuple(f"part {number}" for number in range(5))


class Talks(ScriptedModel):
    """A model that streams its texts slowly, so that several agents speak at the same time."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        for part in PARTS:
            on_delta(Delta("text", f"{request.agent} {part}\n"))
            await anyio.sleep(0.01)
        return await super().complete(request, lambda delta: None)


class Checked(Terminal):
    """A terminal that notes the agents that hold their locks when a block of an agent is opened."""

    team: Team

    def terminal_print(self, page: Block) -> None:
        name = page.lines[0].name if page.lines else ""
        assert not name or lock_of(self.team, name).holder is not None
        super().terminal_print(page)


@virtual
async def test_blocks_of_two_agents_never_interleave() -> None:
    screen = io.StringIO()
    terminal = Checked(io.StringIO(), screen)
    text = {name: "\n".join(f"{name} says {part}" for part in PARTS) for name in ("alice", "bob")}
    model = Talks(
        {
            "lead": [use(*spawn("alice")), use(*spawn("bob")), say("w"), say("done"), say("done")],
            "alice": [say(text["alice"])],
            "bob": [say(text["bob"])],
        }
    )
    async with team_world(model, observers=[Screen(terminal, result_apart=False)]).session() as team:
        terminal.team = team.team
        await team.prompt("go")
        await team.quiet()
    terminal.close()
    lines = screen.getvalue().splitlines()
    for name in text:
        first = lines.index(f"{name}: {name} says part 0")
        assert lines[first + 1 : first + 5] == [f"{name} says {part}" for part in PARTS[1:]]


@virtual
async def test_a_killed_agent_releases_its_lock() -> None:
    hangs, looks = Hangs(), Holders()
    async with team_world(ScriptedModel(at_work(say("so be it"))), hangs, observers=[looks]).session() as team:
        looks.team = team.team
        await team.prompt("go")
        await hangs.begun.wait()
        await order(team, "kill", "alice")
        await until(team, "alice", "stopped")
        await team.quiet()
        assert lock_of(team.team, "alice").holder is None
        assert looks.free == []
        assert len(looks.holders["alice"]) == 2, "the rest of her life is settled under the same lock"


@virtual
async def test_what_a_kill_leaves_behind_shows_nothing_any_more() -> None:
    looks = Holders()
    agents: list[AgentRuntime] = []

    class Chatters(Hangs):
        """A tool that reports progress when nothing can end it any more."""

        async def run(self, given: Json, context: CallContext) -> ToolOutcome:
            outcome = await super().run(given, context)
            context.progress("still here")
            agents[0].stream(Delta("text", "and I speak"))
            return outcome

    chatters = Chatters(deaf=True)
    async with team_world(ScriptedModel(at_work()), chatters, observers=[looks]).session() as team:
        looks.team = team.team
        await team.prompt("go")
        await chatters.begun.wait()
        agent = team.team.agent("alice")
        assert agent is not None
        agents.append(agent)
        await order(team, "kill", "alice")
        await until(team, "alice", "stopped")
        assert lock_of(team.team, "alice").holder is None
        shown = len([name for name, _ in looks.events if name == "alice"])
        chatters.free.set()
        await team.quiet()
        await anyio.sleep(1)
        assert "alice" not in [name for name, _ in looks.deltas]
        assert len([name for name, _ in looks.events if name == "alice"]) == shown
        assert lock_of(team.team, "alice").holder is None


class Stuck(MemoryStore):
    """A store in which the first commit of alice's model reply hangs until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs, self.free = anyio.Event(), anyio.Event()

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        replies = [
            w for w in writes if isinstance(w, Append) and "/alice." in w.stream and b"model_replied" in w.record
        ]
        if replies and not self.hangs.is_set():
            self.hangs.set()
            await self.free.wait()
        return await super().commit(*writes, fence=fence)


@virtual
async def test_a_killed_agent_whose_commit_hangs_gives_its_lock_up() -> None:
    looks, store = Holders(), Stuck()
    world = team_world(ScriptedModel(at_work()), Hangs(), store=store, observers=[looks])
    async with world.session() as team:
        looks.team = team.team
        await team.prompt("go")
        await store.hangs.wait()
        await order(team, "kill", "alice")
        await until(team, "alice", "stopped")
        journal = await team.journal("alice")
        store.free.set()
        await team.quiet()
        assert journal[-1] == "agent_stopped", "her life is settled meanwhile"
        assert not any(name == "alice" and isinstance(event, ev.ModelReplied) for name, event in looks.events)
        assert lock_of(team.team, "alice").holder is None


@virtual
async def test_progress_that_is_reported_after_the_turn_is_not_shown() -> None:
    looks = Holders()
    report = list[Callable[[str], None]]()

    class Keeps(Echo):
        """A tool that keeps the function for its progress."""

        async def run(self, given: Json, context: CallContext) -> ToolOutcome:
            report.append(context.progress)
            context.progress("half")
            return await super().run(given, context)

    world = team_world(ScriptedModel({"lead": [use(*WORK), say("done")]}), Keeps(name="write_file"), observers=[looks])
    async with world.session() as team:
        looks.team = team.team
        await team.prompt("go")
        await team.quiet()
        report[0]("whole")
        assert ("lead", "half") in looks.deltas
        assert ("lead", "whole") not in looks.deltas


@virtual
async def test_a_restarted_agent_takes_its_lock_again() -> None:
    looks = Holders()
    model = ScriptedModel({"lead": [use(*spawn("alice")), say("w"), say("done")], "alice": [use(*WORK), say("did")]})
    tool = Echo(name="write_file", effect="unknown")
    async with team_world(model, tool, judge=Breaks(1), observers=[looks]).session() as team:
        looks.team = team.team
        await team.prompt("go")
        await team.quiet()
        assert len(await told(team, "alice", ev.AgentCrashed)) == 1
        assert (row(team, "alice").life, tool.ran) == ("idle", [{"text": "x"}])
        assert looks.free == []
        assert len(looks.holders["alice"]) == 3, "her life, the record of its crash, and her life again"
        assert lock_of(team.team, "alice").holder is None


@virtual
async def test_a_parked_agent_that_is_resumed_has_the_same_lock() -> None:
    looks = Holders()
    model = ScriptedModel({**at_work(say("I see"), say("good")), "alice": [use(*WORK), say("did it after all")]})
    tool = Echo(name="write_file", effect="unknown")
    async with team_world(model, tool, judge=Breaks(4), observers=[looks]).session() as team:
        looks.team = team.team
        await team.prompt("go")
        await team.quiet()
        lock = lock_of(team.team, "alice")
        assert (row(team, "alice").life, lock.holder) == ("crashed", None)
        await order(team, "resume", "alice")
        await until(team, "alice", "idle")
        await team.quiet()
        assert lock_of(team.team, "alice") is lock
        assert lock.holder is None
