"""A session's team as any process sees it, once or as it changes, and what a person does to one agent of it.

Who watches follows the store: the rows, the journals of those who live, and who hosts the session. Nothing is polled,
and a journal is folded on by its new records alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from callboard.adapters.clock import SystemClock
from callboard.adapters.tools.shell import Command as BashInput
from callboard.core.apply import apply
from callboard.core.budget.tree import raised
from callboard.core.names import agent_key, host_key, host_lease, journal, rows_prefix
from callboard.core.state import AgentState
from callboard.core.team.doing import Doing, doing
from callboard.desks.persons import refuse_inside_tool
from callboard.ending import AgentSummary, summarise
from callboard.engine.board import SessionBoard
from callboard.engine.memory import recall
from callboard.engine.sessions import Command, send_command
from callboard.engine.supervision.orders import Given, Order, give_order
from callboard.ports.store import Store
from callboard.words.errors import StoreDamaged, UsageError
from callboard.words.events import decode_event
from callboard.words.values import AgentRow, Budget

Key = tuple[str, int]
"""An agent's name and its life."""

_WAIT = 20.0
"""Seconds that an order is waited for: the supervisor gives what runs 10 s to go (`engine/supervision/killing.py`)."""
_DEFAULTS = {"bash": float(BashInput.model_fields["timeout_s"].default)}


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """One agent at a moment."""

    row: AgentRow
    summary: AgentSummary
    doing: Doing
    tasks: tuple[str, ...] = ()
    """Ids of the tasks that it holds."""


@dataclass(frozen=True, slots=True)
class TeamSeen:
    """All agents of a session at a moment (`at`, Unix seconds), the lead first, then by age."""

    session: str
    at: float
    agents: tuple[AgentSeen, ...]
    host: int | None = None
    """The process that hosts the session; None: none does, and everything is as it was left."""


@dataclass(slots=True)
class Told:
    """What the journal of a life says so far."""

    state: AgentState
    at: float


@dataclass(slots=True)
class TeamDesk:
    """The agents of one session."""

    store: Store
    session: str
    board: SessionBoard
    _told: dict[Key, Told] = field(default_factory=dict[Key, Told])
    _host: int | None = None
    _clock: SystemClock = field(default_factory=SystemClock)

    async def look(self) -> TeamSeen:
        """The team as it is now."""
        for row in self.board.agents():
            await self.recalled(row)
        await self.look_for_host()
        return self.seen()

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` at the beginning and after each change; `seen` has it then. Never returns; raises
        `StoreDamaged` as reading does."""
        await self.look()
        changed()
        async with anyio.create_task_group() as group:
            watching = _Watching(self, group, changed)
            group.start_soon(watching.rows)
            group.start_soon(watching.host)

    def seen(self) -> TeamSeen:
        """The team as far as it is known here."""
        rows = sorted(self.board.agents(), key=lambda row: (row.kind != "lead", row.created_at, row.name))
        return TeamSeen(self.session, self._clock.now(), tuple(self._agent(row) for row in rows), self._host)

    def _agent(self, row: AgentRow) -> AgentSeen:
        told = self._told.get((row.name, row.incarnation))
        state = told.state if told is not None and told.state.spec is not None else None
        requests = {one.id: one for one in self.board.requests() if one.asked_by == row.name}
        does = Doing(since=row.since)
        if told is not None:
            does = doing(row, told.state, told.at, requests, _DEFAULTS.get)
        held = [one.id for one in self.board.tasks() if one.status == "in_progress" and one.owner == row.name]
        return AgentSeen(row, summarise(row, state), does, tuple(held))

    async def recalled(self, row: AgentRow) -> Told:
        """A life by its journal, read once; its newest event is not older than its row says."""
        key = (row.name, row.incarnation)
        if key not in self._told:
            state = await recall(self.store, self.session, *key)
            self._told[key] = Told(state, row.since)
        return self._told[key]

    async def look_for_host(self) -> None:
        """Ask the store who holds the session's lease."""
        holder = await self.store.holder(host_lease(self.session))
        self._host = holder.pid if holder is not None else None

    # What a person does

    async def stop(self, name: str, why: str = "") -> bool:
        """Tell an agent to stop: it settles what it does and ends. Whether it has; False too where nobody hosts it."""
        row = self._living(name, "stop")
        nonce = secrets.token_hex(8)
        await send_command(self.store, self.session, Command("stop", name, why), now=self._clock.now(), nonce=nonce)
        return await self._until(row, lambda now: now.life == "stopped")

    async def kill(self, name: str, why: str = "") -> bool:
        """Have the supervisor end an agent, whatever it does. Whether it is over; False too where nobody hosts it."""
        row = self._living(name, "kill")
        await self._order("kill", row, why)
        return await self._until(row, lambda now: now.life == "stopped")

    async def resume(self, name: str) -> bool:
        """Let an agent go on that is parked after crashes. Whether it does; False too where nobody hosts it."""
        row = self._living(name, "resume")
        if row.life != "crashed":
            raise UsageError(f"{name} is not parked: it is {row.life}")
        await self._order("resume", row, "")
        return await self._until(row, lambda now: now.life != "crashed")

    async def raise_budget(self, name: str, more: Budget) -> Budget:
        """Raise what an agent was given to use in all: its budget now. Kept in its mailbox, so that it also counts
        where nobody hosts the session. Raises `UsageError` for what is no raise."""
        row = self._living(name, "raise the budget of")
        now = (await self.recalled(row)).state
        budget = now.spec.budget if now.spec is not None else Budget()
        for kind, wanted in more.model_dump(exclude_none=True).items():
            limit = getattr(budget, kind)
            if limit is None:
                raise UsageError(f"{name} has no limit of {kind} of its own: what stands above it limits it")
            if wanted <= limit:
                raise UsageError(f"{kind}: {name} may use {limit:g} already; a budget is only raised")
        if more == Budget():
            raise UsageError(f"say what {name} may use in all, such as cost_usd=3")
        command = Command("budget", name, more.model_dump_json(exclude_none=True))
        nonce = secrets.token_hex(8)
        await send_command(self.store, self.session, command, now=self._clock.now(), nonce=nonce)
        await self.look_for_host()
        return raised(budget, more)

    def _living(self, name: str, what: str) -> AgentRow:
        """Raises `UsageError` for an unknown or stopped agent, and inside a tool's process."""
        refuse_inside_tool(f"{what} an agent")
        found = self.board.agent(name)
        if found is None:
            known = ", ".join(one.name for one in self.board.agents() if one.life != "stopped")
            raise UsageError(f"there is no agent {name!r} in session {self.session}; there are: {known or 'none'}")
        if found[0].life == "stopped":
            raise UsageError(f"{name} has stopped already ({found[0].outcome})")
        if found[0].kind == "lead" and what in ("stop", "kill"):
            raise UsageError("the lead ends with its session: Ctrl-C stops its turn, /new begins its conversation anew")
        return found[0]

    async def _order(self, what: Order, row: AgentRow, why: str) -> None:
        order = Given(what, row.name, row.incarnation, why)
        await give_order(self.store, self.session, order, now=self._clock.now(), nonce=secrets.token_hex(8))

    async def _until(self, row: AgentRow, done: Callable[[AgentRow], bool]) -> bool:
        """Wait for what the host makes of it."""
        await self.look_for_host()
        if self._host is None:
            return False
        with anyio.move_on_after(_WAIT):
            return await self._heard_of(row, done)
        return False

    async def _heard_of(self, row: AgentRow, done: Callable[[AgentRow], bool]) -> bool:
        async with self.store.watch(agent_key(self.session, row.name)) as rows:
            async for one in rows:
                now = AgentRow.model_validate_json(one.value) if one.value is not None else row
                if now.name == row.name and (done(now) or now.incarnation > row.incarnation):
                    return True
        return False


class _Watching:
    """The followers of one watch."""

    def __init__(self, desk: TeamDesk, group: TaskGroup, changed: Callable[[], None]) -> None:
        self._desk, self._group, self._changed = desk, group, changed
        self._followed: set[Key] = set()

    async def rows(self) -> None:
        """Heed each row, and follow the journal of each life that is not over."""
        desk = self._desk
        async with desk.store.watch(rows_prefix(desk.session)) as rows:
            async for row in rows:
                desk.board.take(row)
                agent = desk.board.agent(row.key.removeprefix(agent_key(desk.session, "")))
                if agent is not None:
                    self._follow(agent[0])
                self._changed()

    def _follow(self, agent: AgentRow) -> None:
        key = (agent.name, agent.incarnation)
        if agent.life != "stopped" and key not in self._followed:
            self._followed.add(key)
            self._group.start_soon(self._journal, agent)

    async def host(self) -> None:
        """Heed who hosts the session: he says so in a row when he comes, and takes it away when he leaves in order."""
        desk = self._desk
        async with desk.store.watch(host_key(desk.session)) as rows:
            async for _ in rows:
                await desk.look_for_host()
                self._changed()

    async def _journal(self, row: AgentRow) -> None:
        desk = self._desk
        told = await desk.recalled(row)
        stream = journal(desk.session, row.name, row.incarnation)
        async with desk.store.follow(stream, told.state.seq) as records:
            async for record in records:
                try:
                    event = decode_event(record.data)
                except ValueError as wrong:
                    raise StoreDamaged(f"record {record.seq} of {stream} is no event: {wrong}") from wrong
                told.state, told.at = apply(told.state, event), event.at
                self._changed()
                if told.state.ended is not None:
                    return
