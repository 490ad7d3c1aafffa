"""Watchdogs of a team: for operations that take longer than their limit, and for agents that wait forever.

The limits are in `core.team.waits`; such agents wait for each other. Each case is reported once.

One timer serves all agents: it sleeps until the first operation exceeds its limit, and only a new operation with an
earlier limit wakes it. An idle agent costs nothing. Time during which the machine sleeps does not count
(`engine/awake_time.py`).

The search for deadlocks runs when an agent begins to wait, never on a timer. The dependencies come from states,
requests and tasks. This module collects them and informs the lead, and also the user if the lead is one of the waiting
agents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import anyio
import structlog
from anyio.abc import TaskGroup

from callboard.core.agent.authority import own_authority
from callboard.core.agent.state import AgentState
from callboard.core.keys import request_key, short_id, task_key
from callboard.core.messaging.authority import claimed_authority, weakest
from callboard.core.messaging.envelopes import envelope_write
from callboard.core.team import waits
from callboard.core.team.waits import NOBODY, Deadlock, OperationLimits, WaitEdge, deadlocks, waits_of
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.runtime import SessionRuntime
from callboard.ports.environment import Policy
from callboard.ports.notifier import Notifier
from callboard.ports.store import Write
from callboard.types.events import StallNoticed
from callboard.types.operations import Operation
from callboard.types.records import AgentRow, Envelope

NEVER = float("inf")

log = structlog.get_logger("callboard.team")


class Stalls:
    """Monitor of the operations of a team."""

    def __init__(self, runtime: SessionRuntime, agents: Callable[[], Iterable[AgentRuntime]]) -> None:
        """Watch the agents that `agents` returns: those of this process whose lives have not ended."""
        self._runtime = runtime
        self._agents = agents
        self._longest = OperationLimits(self._declared_limit, runtime.services.hooks.longest)
        self._until = NEVER
        self._earlier_due = Notifier()
        self._reported: dict[str, set[str]] = {}
        """Agent name -> keys of its running operations that were already reported."""

    def handle_operation(self, agent: AgentRuntime, operation: Operation) -> None:
        """Handle the start of an operation."""
        due = self._due(agent, operation)
        if due < self._until:
            self._until = due
            self._earlier_due.notify()

    def limit(self, agent: AgentRuntime, operation: Operation) -> float | None:
        """Return the seconds after which an operation counts as stalled; None: no limit."""
        return waits.stall_limit(agent.state, operation, self._longest)

    @property
    def next_look(self) -> float | None:
        """Return the time of the next check on the clock for time limits; None: when the next operation starts."""
        return None if self._until == NEVER else self._until

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            # Read before the check, so that an operation that starts during the check wakes the timer.
            changes = self._earlier_due.changes
            self._until = self._look()
            wait = None if self._until == NEVER else max(0.0, self._until - self._runtime.awake.now())
            with anyio.move_on_after(wait):
                await self._earlier_due.changed(changes)

    def _look(self) -> float:
        """Report overdue operations, and return the time of the next check.

        Each report is in the task group of its own agent, so that a failure crashes only that agent.
        """
        now = self._runtime.awake.now()
        first = NEVER
        for agent in self._agents():
            if agent.group is None:
                continue
            for operation in agent.since:
                due = self._due(agent, operation)
                if due <= now:
                    self._reported.setdefault(agent.name, set()).add(waits.stall_key(agent.state, operation))
                    # A failure of the report must not end the monitor of all agents
                    # (test_what_goes_wrong_while_a_stall_is_told_crashes_that_agent_alone_and_it_goes_on).
                    agent.group.start_soon(self._report, agent, operation)
                else:
                    first = min(first, due)
        return first

    def _due(self, agent: AgentRuntime, operation: Operation) -> float:
        """Return the time at which an operation exceeds its limit; `NEVER` if it has none or was already reported."""
        seconds = self.limit(agent, operation)
        key = waits.stall_key(agent.state, operation)
        if seconds is None or key in agent.state.waits.stalled or key in self._reported.get(agent.name, ()):
            return NEVER
        since = agent.since.get(operation)
        return NEVER if since is None else since.awake + seconds

    async def _report(self, agent: AgentRuntime, operation: Operation) -> None:
        """Record the stall in the agent's journal, with a message to the lead in the same commit."""
        state = agent.state
        since = agent.since.get(operation)
        seconds = self.limit(agent, operation)
        key = waits.stall_key(state, operation)
        if since is None or seconds is None:
            return
        activity = waits.operation_text(state, operation)
        now = self._runtime.clock.now()
        log.warning("agent stalled", agent=agent.name, operation=key, since=since.at)
        noticed = StallNoticed(at=now, operation=key, what=activity, since=since.at, limit=seconds)
        await agent.record(
            noticed,
            writes=self._lead_message(
                agent, key, waits.stall_text(agent.name, state.me.kind, activity, since=since.at, seconds=seconds)
            ),
            unless=lambda state: operation not in agent.since or key in state.waits.stalled,
        )

    def _lead_message(self, agent: AgentRuntime, key: str, text: str) -> list[Write]:
        """Return the message to the lead. If the lead itself is stalled, its journal informs the user."""
        lead = self._runtime.rows.agent("lead")
        if agent.name == "lead" or lead is None or lead[0].life == "stopped":
            return []
        life = (self._runtime.session, agent.name, agent.state.identity.incarnation, agent.state.turns.count)
        envelope = Envelope(
            id=short_id("env", *life, key, "stalled"),
            sender="runtime",
            recipient="lead",
            incarnation=lead[0].incarnation,
            type="error",
            content=text,
            cause=own_authority(agent.state),
            metadata={"status": "stalled", "agent": agent.name},
            sent_at=self._runtime.clock.now(),
        )
        return [envelope_write(self._runtime.session, envelope)]

    def _declared_limit(self, tool: str) -> float | None:
        """Return the limit that the tool declares."""
        declared_tool = self._runtime.services.tools.get(tool)
        if declared_tool is None:
            return waits.USUAL
        default = declared_tool.spec.input_schema.get("properties", {}).get("timeout_s", {}).get("default")
        return float(default) if isinstance(default, int | float) else declared_tool.spec.seconds


StateOf = Callable[[str], AgentState | None]
"""Function that returns the state of a living agent of this process."""


class Deadlocks:
    """Deadlock detector of one session.

    Each deadlock is reported once, by any process, because the envelope's id is derived from the deadlock.
    """

    def __init__(self, runtime: SessionRuntime, state_of: StateOf, on_checked: Callable[[], None]) -> None:
        """Store `on_checked`, which is called after each check."""
        self._runtime = runtime
        self._state_of = state_of
        self._on_checked = on_checked
        self._reported: set[str] = set()
        self.looking = 0
        """Number of checks in progress. Their findings are reported before a session counts as quiet."""

    def handle_agent(self, row: AgentRow, group: TaskGroup) -> None:
        """Check an agent that began to wait, or ended, once its state agrees with its row."""
        if row.kind != "subagent" and row.life in ("waiting", "idle", "stopped", "crashed"):
            self.looking += 1
            group.start_soon(self._look, row)

    async def _look(self, row: AgentRow) -> None:
        """Check the agent and all agents that it waits for; if it has ended, all agents that may wait for it."""
        try:
            ended = row.life in ("stopped", "crashed")
            if ended or self._waits(row.name):
                mates = [agent.name for agent in self._runtime.rows.agents() if agent.kind != "subagent"]
                for deadlock in self._deadlocks_from(mates if ended else [row.name]):
                    await self._report(deadlock)
        finally:
            self.looking -= 1
            self._on_checked()

    async def _read_again(self, deadlock: Deadlock) -> None:
        """Read the requests and tasks of a deadlock from the store.

        The row cache has this process's own commits before older ones of other processes.
        """
        session = self._runtime.session
        rows = self._runtime.rows
        for wait in deadlock.waits:
            if rows.request(wait.key) is not None:
                await self._runtime.refresh(request_key(session, wait.key))
            elif rows.task(wait.key) is not None:
                await self._runtime.refresh(task_key(session, wait.key))

    def _deadlocks_from(self, start: Iterable[str]) -> tuple[Deadlock, ...]:
        """Return the deadlocks among these agents and all agents that they wait for."""
        graph = dict[str, tuple[WaitEdge, ...]]()
        unvisited = list(start)
        while unvisited:
            name = unvisited.pop()
            if name not in graph:
                graph[name] = self._waits(name)
                unvisited.extend(to for wait in graph[name] for to in wait.names)
        return deadlocks(graph, {name for name in graph if self._never_acts_again(name)})

    def _waits(self, name: str) -> tuple[WaitEdge, ...]:
        state = self._state_of(name)
        rows = self._runtime.rows
        return () if state is None else waits_of(state, rows.requests(), rows.at_stake())

    def _never_acts_again(self, name: str) -> bool:
        """Return True if the name will never act again by itself.

        A user always may, even if only from another terminal.
        """
        if name == "policy":
            return not any(isinstance(approver, Policy) for approver in self._runtime.services.approvers)
        match = self._runtime.rows.agent(name)
        return name == NOBODY or (match is not None and match[0].life in ("stopped", "crashed"))

    async def _report(self, deadlock: Deadlock) -> None:
        if deadlock.id in self._reported:
            return
        self._reported.add(deadlock.id)
        # An answer that is delivered after an end would otherwise look like a deadlock
        # (test_an_end_that_is_heard_of_before_an_older_answer_is_no_deadlock).
        await self._read_again(deadlock)
        if all(deadlock.id != current.id for current in self._deadlocks_from(deadlock.names)):
            self._reported.discard(deadlock.id)
            return
        log.warning("deadlock", agents=deadlock.names, words=deadlock.text())
        if "lead" in deadlock.names:
            self._runtime.notice("lead", f"deadlock: {deadlock.text()}")
        lead = self._runtime.rows.agent("lead")
        if lead is None or lead[0].life in ("stopped", "crashed"):
            return
        states = [state for name in deadlock.names if (state := self._state_of(name))]
        envelope = Envelope(
            # Derived from the deadlock, so that a second process or a resume does not report it again.
            id=short_id("env", deadlock.id),
            sender="runtime",
            recipient="lead",
            incarnation=lead[0].incarnation,
            type="error",
            content=f"A deadlock: {deadlock.text()}\nAnswer one of them, give it something else to do, or end it.",
            cause=weakest(claimed_authority(state.me.name, state.turns.authority) for state in states),
            metadata={"status": "deadlock", "agents": list(deadlock.names)},
            sent_at=self._runtime.clock.now(),
        )
        await self._runtime.commit(envelope_write(self._runtime.session, envelope))
