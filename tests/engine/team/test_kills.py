"""Each end of a killed agent is told to whoever waits for it, whatever state its life and its journal are in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import anyio
import pytest
from tests.engine.agent.test_background import Commands, Starts
from tests.engine.team.supervised import Hangs, Processes, at_work, order, to_lead, told, until, virtual
from tests.engine.team.team_world import STORE_TOOLS, TeamWorld, spawn, team_world

from callboard.adapters.mcp.memory import MemoryServers
from callboard.adapters.storage.memory import MemoryStore
from callboard.core.keys import mailbox
from callboard.engine.runtime import SessionRuntime
from callboard.ports.model import Delta
from callboard.ports.store import Append, Fence, Row, Write
from callboard.testing import HostedSession, ScriptedModel, say, use
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import StoreDamaged
from callboard.types.events import Event, StopAsked, TaskHeld
from callboard.types.mcp import ServerEntry
from callboard.types.records import Envelope, Json

TOOLS = {tool.spec.name: tool for tool in STORE_TOOLS}
LOOK: tuple[str, Json] = ("task", {"description": "d", "prompt": "p", "agent_type": "explore"})


async def mail_of(world: TeamWorld, name: str) -> list[Envelope]:
    records = await world.store.read(mailbox("s1", name, 1))
    return [Envelope.model_validate_json(record.data) for record in records]


class Undying(Commands):
    """Commands that nothing ends, and that nobody comes back from who tries."""

    async def end(self, pid: int, started: float) -> bool:
        await anyio.sleep_forever()
        return False


@virtual
async def test_the_lead_is_told_of_a_killed_teammate_that_could_not_be_settled() -> None:
    hangs = Hangs()
    script = {**at_work(say("I see")), "alice": [use("bash", {"text": "1"}, ("write_file", {"text": "x"}))]}
    made = team_world(ScriptedModel(script), hangs, Starts("bash", effect="unknown"))
    world = Processes(made.model, made.tools)
    world.commands = Undying()
    async with world.session() as team:
        await team.prompt("go")
        await hangs.begun.wait()
        await order(team, "kill", "alice")
        ended = await until(team, "alice", "stopped")
        await team.quiet()
        assert ended.outcome == "stopped"
        assert "agent_stopped" not in await team.journal("alice"), "the premise: its row alone says that it is over"
        told = [one for one in await mail_of(world, "lead") if one.sender == "alice" and one.type == "error"]
        assert [(one.metadata, one.mode) for one in told] == [({"status": "stopped"}, "wake")]
        assert "alice ended without a report" in to_lead(world.model)


class StumblesAtStop:
    """An observer with a bug: the agent's own code raises at the first record that asks it to stop."""

    def __init__(self) -> None:
        self.times = 0

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        if isinstance(event, StopAsked):
            self.times += 1
            raise ZeroDivisionError("a bug in Callboard")

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Nothing is recorded for it."""

    def on_mail(self, envelope: Envelope) -> None:
        """Its record tells the same."""


@virtual
async def test_a_killed_teammate_is_settled_although_its_settling_crashes_once() -> None:
    hangs, stumbles = Hangs(), StumblesAtStop()
    script = at_work(say("I see"))
    script["alice"] = [use("bash", {"text": "1"}, ("write_file", {"text": "x"}))]
    made = team_world(ScriptedModel(script), hangs, Starts("bash", effect="unknown"))
    world = Processes(made.model, made.tools, observers=[stumbles])
    world.commands = Commands()
    async with world.session() as team:
        await team.prompt("go")
        await hangs.begun.wait()
        await order(team, "kill", "alice")
        await until(team, "alice", "stopped")
        await team.quiet()
        assert stumbles.times == 1
        journal = await team.journal("alice")
        assert journal.count("stop_asked") == 1
        assert "background_ended" in journal, "nobody else ends its commands"
        assert journal[-1] == "agent_stopped"
        (held,) = await told(team, "alice", TaskHeld)
        task = team.team.runtime.rows.task(held.task)
        assert task is not None
        assert (task[0].status, task[0].owner) == ("pending", None)


class Early(MemoryStore):
    """The spec of a new agent cannot be read at the first try: it has no record yet."""

    def __init__(self) -> None:
        super().__init__()
        self.late = ""
        self.begun = anyio.Event()

    async def get(self, key: str) -> Row | None:
        row = await super().get(key)
        if "/spec/" in key and not self.begun.is_set() and row and row.value and self.late.encode() in row.value:
            self.begun.set()
            await anyio.sleep_forever()
        return row


async def killed_early(team: HostedSession, store: Early, kind: str) -> None:
    await team.prompt("go")
    await store.begun.wait()
    (name,) = [one.name for one in team.team.runtime.rows.agents() if one.kind == kind]
    assert await team.journal(name) == []
    await order(team, "kill", name)
    await until(team, name, "stopped")
    await team.quiet()


class Bringing(TeamWorld):
    """Subagents bring a server, so that their first record is not part of their birth, as in older versions."""

    def runtime(self, session: str) -> SessionRuntime:
        runtime = super().runtime(session)
        runtime.services = replace(runtime.services, servers=MemoryServers(), own_servers=self._own_servers)
        return runtime

    def _own_servers(self, me: AgentSpec) -> Sequence[ServerEntry]:
        return [ServerEntry("shop", "stdio", "agent", "explore.md")] if me.kind == "subagent" else []


@virtual
async def test_a_subagent_that_is_killed_before_its_first_record_is_an_error_result_of_its_call() -> None:
    store = Early()
    store.late = '"kind":"subagent"'
    world = Bringing(ScriptedModel({"lead": [use(*LOOK), say("alas")]}), TOOLS, store=store)
    async with world.session() as team:
        await killed_early(team, store, "subagent")
        assert "[status: stopped] The subagent was stopped before it was done" in to_lead(world.model)
        assert [one.type for one in await mail_of(world, "lead")] == ["prompt"]
        assert team.state("lead").turns.last_text == "alas"


@virtual
async def test_a_teammate_that_is_killed_before_its_first_record_is_reported_to_the_lead() -> None:
    store = Early()
    store.late = '"kind":"teammate"'
    world = team_world(ScriptedModel({"lead": [use(*spawn("alice")), say("w"), say("alas")]}), store=store)
    async with world.session() as team:
        await killed_early(team, store, "teammate")
        told = [(one.sender, one.type) for one in await mail_of(world, "lead")]
        assert told == [("person", "prompt"), ("alice", "error"), ("runtime", "dead_letter")]
        assert "alice ended without a report: stopped" in to_lead(world.model)


class Dies(Early):
    """The first record of a new agent is never made, not by its settling either, and the power goes when its caller is
    told of its end."""

    cut = True

    async def get(self, key: str) -> Row | None:
        row = await MemoryStore.get(self, key)
        if self.cut and "/spec/" in key and row and row.value and self.late.encode() in row.value:
            self.begun.set()
            await anyio.sleep_forever()
        return row

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        tells = any(isinstance(one, Append) and b'"t":"tool_finished"' in one.record for one in writes)
        if self.cut and tells:
            self.cut = False
            raise StoreDamaged("the power is gone")
        return await super().commit(*writes, fence=fence)


@virtual
async def test_a_subagent_that_was_buried_does_not_live_again_for_a_caller_that_asks_anew() -> None:
    store = Dies()
    store.late = '"kind":"subagent"'
    world = Bringing(ScriptedModel({"lead": [use(*LOOK), say("alas")]}, end="alive"), TOOLS, store=store)
    with pytest.RaisesGroup(StoreDamaged, flatten_subgroups=True):
        async with world.session() as team:
            await killed_early(team, store, "subagent")
    assert not store.cut
    async with world.session(resume=True) as team:
        await team.quiet()
        assert "[status: stopped] The subagent was stopped before it was done" in to_lead(world.model)
        assert team.state("lead").turns.last_text == "alas"
