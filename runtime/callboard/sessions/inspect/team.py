"""A session's team for any process, read once or followed, and a person's actions on one of its agents.

A watch follows the store: the rows, the journals of living agents, and the session's host. It does not poll, and it
extends a folded journal only with its new records. The journals of ended agents are not read: their rows contain their
usage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import anyio
from anyio.abc import TaskGroup

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.adapters.system.clock import SystemClock
from callboard.core.agent.apply import apply
from callboard.core.agent.state import AgentState, without_history
from callboard.core.budgets.tree import raise_limits
from callboard.core.decoding import read_event, read_value
from callboard.core.keys import RATES, agent_key, host_key, host_lease, journal, rows_prefix
from callboard.core.recovery.retry_policy import model_in_use
from callboard.core.reports.activity import Activity, activity_of
from callboard.core.team.waits import NOBODY, Deadlock, WaitEdge, deadlocks, waits_of
from callboard.engine.commands import AgentCommand
from callboard.engine.rate_limits.limiter import rates_of
from callboard.engine.recall import lost_words, recall_readable
from callboard.engine.row_cache import EndedAgentsSum, RowCache
from callboard.engine.team.admin_orders import AdminOrder, Order
from callboard.ports.store import LeaseHolder, Store
from callboard.sessions.inspect.hosts import waiting_reason
from callboard.sessions.person_actions import command_as_person, order_as_person
from callboard.sessions.result import AgentSummary, summarise
from callboard.types.choices import unknown
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.rate_limits import RateNotice
from callboard.types.records import AgentRow, Budget, Request, Usage

Key = tuple[str, int]
"""An agent's name and its life."""
States = Callable[[str, int], AgentState | None]
"""Function that returns the state of one life of an agent; None if it is unknown."""

ENDED_LISTED = 20
"""Number of newest ended agents that a view of the team lists; the others are counted."""
_WAIT = 20.0
"""Seconds to wait for the result of an order: running work has 10 s to end (`engine/team/member.py`)."""


def _default_seconds(tool: str) -> float | None:
    """Return the seconds after which a call of a tool ends by itself; None if there is no limit."""
    if tool != "bash":
        return None
    from callboard.adapters.tools.shell import BashInput  # noqa: PLC0415 - the sandbox comes with it; it takes 7 ms

    return float(BashInput.model_fields["timeout_s"].default)


@dataclass(frozen=True, slots=True)
class AgentOverview:
    """State of one agent at a given moment."""

    row: AgentRow
    summary: AgentSummary
    doing: Activity
    tasks: tuple[str, ...] = ()
    """Ids of the tasks that it holds."""
    label: str = ""
    """Name for people: `explore 2`; empty: the agent's own."""
    model: str = ""
    """Model that it uses now; empty if its journal was not read."""


@dataclass(frozen=True, slots=True)
class EndedAgents:
    """Number of ended agents, and their usage."""

    count: int = 0
    usage: Usage = Usage()
    uncounted: int = 0
    """Number of these agents whose rows do not contain their usage: `callboard cost` reads it from their journals."""

    def plus(self, row: AgentRow) -> EndedAgents:
        """Return the numbers with one more agent."""
        usage = self.usage if row.totals is None else self.usage.plus(row.totals.usage)
        return EndedAgents(self.count + 1, usage, self.uncounted + (row.totals is None))


@dataclass(frozen=True, slots=True)
class TeamOverview:
    """Agents of a session at a given moment (`at`, Unix seconds)."""

    session: str
    at: float
    agents: tuple[AgentOverview, ...]
    """The lead, then living agents and the newest ended ones, by age."""
    host: int | None = None
    """Process that hosts the session; None if there is none, and the data is from the last host."""
    troubles: tuple[str, ...] = ()
    """Damage in the journals of living agents: the lost data and the command that continues."""
    rates: tuple[RateNotice, ...] = ()
    """Parks and refusals of API keys that block calls now."""
    ended: EndedAgents = EndedAgents()
    """All ended agents, including those that are not listed."""
    machine: str = ""
    """Machine of the host, if it is another one."""
    waits: str = ""
    """Reason why a session that needs a serving host has none; empty if it has one, or needs none."""


@dataclass(slots=True)
class IncarnationState:
    """State of one incarnation, from its journal so far."""

    state: AgentState
    at: float
    trouble: str = ""
    """Damage of the journal; empty for none."""


@dataclass(slots=True)
class TeamInspector:
    """Agents of one session."""

    store: Store
    session: str
    rows: RowCache
    _known_agents: dict[Key, IncarnationState] = field(default_factory=dict[Key, IncarnationState])
    _ended_agents: EndedAgentsSum[EndedAgents] | None = None
    _host: LeaseHolder | None = None
    _waits: str = ""
    _rates: tuple[RateNotice, ...] = ()
    _clock: SystemClock = field(default_factory=SystemClock)

    async def look(self) -> TeamOverview:
        """Return the team as it is now."""
        for row in self.rows.agents():
            if row.life != "stopped":
                await self.recall_state(row)
        await self.look_around()
        return self.overview()

    def ended_agents(self, skip: int = 0, limit: int | None = None) -> tuple[AgentOverview, ...]:
        """Return ended agents, newest first: at most `limit`, without the first `skip`."""
        stop = None if limit is None else skip + limit
        return tuple(
            AgentOverview(row, summarise(row, None), Activity(since=row.since)) for row in self._ended()[skip:stop]
        )

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` at the beginning and after each change; `overview` then returns the new state.

        Never returns; raises `StoreDamaged` as reading does.
        """
        await self.look()
        changed()
        async with anyio.create_task_group() as group:
            watching = _Watching(self, group, changed)
            group.start_soon(watching.rows)
            group.start_soon(watching.host)
            group.start_soon(watching.rates)

    def overview(self, states: States | None = None) -> TeamOverview:
        """Return the team from the data that is known here.

        `states`: source of the states of living agents, instead of the journals that were read here.
        """
        listed = [row for row in self.rows.newest_ended(ENDED_LISTED) if row.kind != "lead"]
        listed += self.rows.living_agents()
        lead = self.rows.agent("lead")
        listed += [lead[0]] if lead is not None and lead[0].life == "stopped" else []
        listed.sort(key=lambda row: (row.kind != "lead", row.created_at, row.name))
        requests, held = self._held()
        now = self._clock.now()
        agents = tuple(
            self._agent(row, self._state(row, states), requests.get(row.name, {}), held.get(row.name, ()))
            for row in listed
        )
        rates = tuple(rate for rate in self._rates if rate.fault or max(rate.parked_until, rate.named_until) > now)
        troubles = tuple(known_agent.trouble for known_agent in self._known_agents.values() if known_agent.trouble)
        if self._ended_agents is None:
            self._ended_agents = EndedAgentsSum(self.rows, EndedAgents(), EndedAgents.plus)
        ended = self._ended_agents.now()
        return TeamOverview(
            self.session,
            now,
            agents,
            self._host.pid if self._host is not None else None,
            troubles,
            rates,
            ended,
            self._host.machine if self._host is not None else "",
            self._waits,
        )

    def _state(self, row: AgentRow, states: States | None) -> IncarnationState | None:
        """Return the state of a listed agent; None for an ended one whose row says everything."""
        if row.life == "stopped" and row.totals:
            return None
        if states is None:
            return self._known_agents.get((row.name, row.incarnation))
        state = states(row.name, row.incarnation)
        return None if state is None else IncarnationState(state, row.since)

    def _ended(self) -> list[AgentRow]:
        """Return the rows of ended agents, newest first."""
        over = [row for row in self.rows.agents() if row.life == "stopped"]
        return sorted(over, key=lambda row: (-row.since, row.name))

    def _held(self) -> tuple[dict[str, dict[str, Request]], dict[str, list[str]]]:
        """Return each agent's requests by id, and the ids of the tasks that it holds."""
        requests = dict[str, dict[str, Request]]()
        held = dict[str, list[str]]()
        answered = (self.rows.request(row.waiting_for.partition(" ")[2]) for row in self.rows.living_agents())
        # An agent's row names the request until the agent reads the answer, also one that came after its process ended.
        for request in (*self.rows.pending_requests(), *(match[0] for match in answered if match is not None)):
            requests.setdefault(request.asked_by, {})[request.id] = request
        for task in self.rows.open_tasks():
            if task.status == "in_progress" and task.owner is not None:
                held.setdefault(task.owner, []).append(task.id)
        return requests, held

    def _agent(
        self, row: AgentRow, recalled: IncarnationState | None, requests: Mapping[str, Request], tasks: Sequence[str]
    ) -> AgentOverview:
        state = recalled.state if recalled is not None and recalled.state.identity.spec is not None else None
        does = Activity(since=row.since)
        if recalled is not None:
            does = activity_of(row, recalled.state, recalled.at, requests=requests, longest=_default_seconds)
        label = self.rows.label(row.name)
        model = model_in_use(state.model.recovery, state.me) if state is not None else ""
        return AgentOverview(row, summarise(row, state), does, tuple(tasks), label, model)

    async def recall_state(self, row: AgentRow) -> IncarnationState:
        """Return an incarnation's state from its journal, which is read once.

        The journal's newest event is not older than the incarnation's row says.
        """
        key = (row.name, row.incarnation)
        if key not in self._known_agents:
            recalled = await recall_readable(self.store, self.session, *key)
            self._known_agents[key] = IncarnationState(
                recalled.state, row.since, lost_words(recalled.lost) if recalled.lost else ""
            )
        return self._known_agents[key]

    async def look_around(self) -> None:
        """Read the holder of the session's lease, and whether its key is parked, from the store."""
        self._rates = tuple(await rates_of(self.store))
        holder = await self.store.holder(host_lease(self.session))
        self._host = holder
        self._waits = (await waiting_reason(self.store, self.session) or "") if holder is None else ""

    # A person's actions

    async def stop(self, name: str, reason: str = "") -> bool:
        """Tell an agent to stop: it settles its calls and ends.

        Returns True if it has stopped; False also if no process hosts it.
        """
        row = self._living(name, "Stopping")
        await command_as_person(self.store, self.session, AgentCommand("stop", name, reason), now=self._clock.now())
        return await self._wait_until(row, lambda now: now.life == "stopped")

    async def kill(self, name: str, reason: str = "") -> bool:
        """Have the supervisor end an agent in any state.

        Returns True if it has ended; False also if no process hosts it.
        """
        row = self._living(name, "Killing")
        await self._order("kill", row, reason)
        return await self._wait_until(row, lambda now: now.life == "stopped")

    async def resume(self, name: str) -> bool:
        """Resume an agent that was parked after crashes.

        Returns True if it has resumed; False also if no process hosts it.
        """
        row = self._living(name, "Resuming")
        if row.life != "crashed":
            raise UsageError(f"{name} is not parked: it is {row.life}")
        await self._order("resume", row, "")
        return await self._wait_until(row, lambda now: now.life != "crashed")

    async def raise_budget(self, name: str, raise_to: Budget) -> Budget:
        """Raise an agent's total budget, and return the new one.

        The command stays in the agent's mailbox, so that it also takes effect if no process hosts the session now.
        Raises `UsageError` if a limit is not raised.
        """
        row = self._living(name, "Raising the budget of")
        now = (await self.recall_state(row)).state
        budget = now.identity.spec.budget if now.identity.spec is not None else Budget()
        for kind, new_limit in raise_to.model_dump(exclude_none=True).items():
            limit = getattr(budget, kind)
            if limit is None:
                raise UsageError(f"{name} has no own limit of {kind}: a limit above it applies")
            if new_limit <= limit:
                raise UsageError(f"{kind}: {name} may already use {limit:g}; a budget can only be raised")
        if raise_to == Budget():
            raise UsageError(f"give the new total of {name}, such as cost_usd=3")
        command = AgentCommand("budget", name, raise_to.model_dump_json(exclude_none=True))
        await command_as_person(self.store, self.session, command, now=self._clock.now())
        await self.look_around()
        return raise_limits(budget, raise_to)

    def waits(self) -> tuple[dict[str, Sequence[WaitEdge]], tuple[Deadlock, ...]]:
        """Return the waits of each living agent that has any, and the agents of which none can continue."""
        tasks = self.rows.at_stake()
        requests = self.rows.requests()
        graph: dict[str, Sequence[WaitEdge]] = {}
        for row in self.rows.living_agents():
            known = self._known_agents.get((row.name, row.incarnation))
            edges = waits_of(known.state, requests, tasks) if known is not None else ()
            if edges:
                graph[row.name] = edges
        gone = {row.name for row in self.rows.agents() if row.life in ("stopped", "crashed")}
        return graph, deadlocks(graph, gone | {NOBODY})

    def _living(self, name: str, action: str) -> AgentRow:
        """Return the row of a living agent.

        Raises `UsageError` for an unknown or stopped agent, and inside a tool's process.
        """
        refuse_inside_tool(f"{action} an agent")
        match = self.rows.agent(name)
        if match is None:
            names = [agent.name for agent in self.rows.agents() if agent.life != "stopped"]
            raise UsageError(unknown("agent", name, names, where=f"in session {self.session}"))
        if match[0].life == "stopped":
            raise UsageError(f"{name} has already stopped ({match[0].outcome})")
        if match[0].kind == "lead" and action in ("Stopping", "Killing"):
            raise UsageError("the lead ends with its session: Ctrl-C stops its turn, /new starts a fresh conversation")
        return match[0]

    async def _order(self, kind: Order, row: AgentRow, reason: str) -> None:
        order = AdminOrder(kind, row.name, row.incarnation, reason)
        await order_as_person(self.store, self.session, order, now=self._clock.now())

    async def _wait_until(self, row: AgentRow, done: Callable[[AgentRow], bool]) -> bool:
        """Wait until the host has processed the order."""
        await self.look_around()
        if self._host is None:
            return False
        with anyio.move_on_after(_WAIT):
            return await self._receipt_of(row, done)
        return False

    async def _receipt_of(self, row: AgentRow, done: Callable[[AgentRow], bool]) -> bool:
        async with self.store.watch(agent_key(self.session, row.name)) as rows:
            async for changed in rows:
                now = read_value(AgentRow, changed.value, changed.key) if changed.value is not None else row
                if now.name == row.name and (done(now) or now.incarnation > row.incarnation):
                    return True
        return False


class _Watching:
    """Followers of one watch."""

    def __init__(self, inspector: TeamInspector, group: TaskGroup, changed: Callable[[], None]) -> None:
        self._inspector = inspector
        self._group = group
        self._changed = changed
        self._followed: set[Key] = set()

    async def rows(self) -> None:
        """Process each row, and follow the journal of each incarnation that has not ended."""
        inspector = self._inspector
        async with inspector.store.watch(rows_prefix(inspector.session)) as rows:
            async for row in rows:
                inspector.rows.take(row)
                agent = inspector.rows.agent(row.key.removeprefix(agent_key(inspector.session, "")))
                if agent is not None:
                    self._follow(agent[0])
                self._changed()

    def _follow(self, agent: AgentRow) -> None:
        key = (agent.name, agent.incarnation)
        if agent.life != "stopped" and key not in self._followed:
            self._followed.add(key)
            self._group.start_soon(self._journal, agent)

    async def host(self) -> None:
        """Follow the session's host, which writes a row when it starts, and removes it when it exits in order."""
        inspector = self._inspector
        async with inspector.store.watch(host_key(inspector.session)) as rows:
            async for _ in rows:
                await inspector.look_around()
                self._changed()

    async def rates(self) -> None:
        """Follow parks and refusals of API keys."""
        inspector = self._inspector
        async with inspector.store.watch(RATES) as rows:
            async for _ in rows:
                await inspector.look_around()
                self._changed()

    async def _journal(self, row: AgentRow) -> None:
        inspector = self._inspector
        recalled = await inspector.recall_state(row)
        stream = journal(inspector.session, row.name, row.incarnation)
        async with inspector.store.follow(stream, recalled.state.seq) as records:
            async for record in records:
                event = read_event(record.data, stream, record.seq)
                recalled.state, recalled.at = apply(recalled.state, event), event.at
                self._changed()
                if recalled.state.lifecycle.ended is not None:
                    recalled.state = without_history(recalled.state)
                    return


_KINDS = ("cost_usd", "tokens", "steps", "seconds")


def limits_given(texts: Sequence[str], option: str) -> Budget:
    """Parse limits such as `cost_usd=1.5`. `option`: named in errors. Raises `UsageError`."""
    limits: dict[str, float] = {}
    for text in texts:
        kind, _, number = text.partition("=")
        if kind not in _KINDS:
            raise UsageError(f"{option} {text}: {unknown('kind', kind, _KINDS)}, as in cost_usd=1.5")
        whole = kind in ("tokens", "steps")
        try:
            limits[kind] = int(number) if whole else float(number)
        except ValueError:
            limits[kind] = math.nan
        if not 0 <= limits[kind] < math.inf:
            raise UsageError(f"{option} {text}: {kind} is a {'whole ' if whole else ''}number from 0 on")
    return Budget.model_validate(limits)
