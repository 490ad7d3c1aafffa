"""Report, once, of agents whose operation takes longer than its limit (`core.stalls`).

One timer serves all agents: it sleeps until the first operation exceeds its limit, and only a new operation with an
earlier limit wakes it. An idle agent costs nothing. Time during which the machine sleeps does not count
(`engine/awake_time.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import structlog

from callboard.core.agent.authority import spoken
from callboard.core.keys import short_id
from callboard.core.messaging.envelopes import sending
from callboard.core.team import stalls
from callboard.core.team.stalls import Longest
from callboard.engine.loop import AgentRuntime
from callboard.engine.runtime import Host
from callboard.engine.team.member import Member
from callboard.ports.store import Write
from callboard.types.events import StallNoticed
from callboard.types.records import Envelope

NEVER = float("inf")

log = structlog.get_logger("callboard.team")


class Stalls:
    """Watcher of the operations of a team."""

    def __init__(self, host: Host, members: Mapping[tuple[str, int], Member]) -> None:
        self._host = host
        self._members = members
        self._longest = Longest(self._declared, host.ports.hooks.longest)
        self._until = NEVER
        self._earlier = anyio.Event()
        self._told: dict[str, set[str]] = {}
        """Agent name -> keys of its running operations that were already reported."""

    def heed(self, name: str, incarnation: int, operation: str) -> None:
        """Handle the start of an operation."""
        member = self._members.get((name, incarnation))
        if member is None or member.agent is None:
            return
        due = self._due(member.agent, operation)
        if due < self._until:
            self._until = due
            self._earlier.set()

    @property
    def next_look(self) -> float | None:
        """Return the time of the next check on the clock for time limits; None: when the next operation starts."""
        return None if self._until == NEVER else self._until

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            # Renewed before the check: an operation that starts during it wakes the timer.
            self._earlier = anyio.Event()
            self._until = self._look()
            if self._until == NEVER:
                await self._earlier.wait()
                continue
            with anyio.move_on_after(max(0.0, self._until - self._host.awake.now())):
                await self._earlier.wait()

    def _look(self) -> float:
        """Report overdue operations, each in the task group of its own agent, so that a failure crashes only that
        agent. Return the time of the next check."""
        now = self._host.awake.now()
        first = NEVER
        for member in self._members.values():
            agent = member.agent
            if agent is None or agent.group is None or member.ended.is_set():
                continue
            for operation in agent.since:
                due = self._due(agent, operation)
                if due <= now:
                    self._told.setdefault(agent.name, set()).add(stalls.key(agent.state, operation))
                    # A failure while it is reported must not end the watcher of all agents
                    # (test_what_goes_wrong_while_a_stall_is_told_crashes_that_agent_alone_and_it_goes_on).
                    agent.group.start_soon(self._tell, agent, operation)
                else:
                    first = min(first, due)
        return first

    def _due(self, agent: AgentRuntime, operation: str) -> float:
        """Return the time at which an operation exceeds its limit; `NEVER` if it has none or was already reported."""
        seconds = stalls.limit(agent.state, operation, self._longest)
        key = stalls.key(agent.state, operation)
        if seconds is None or key in agent.state.waits.stalled or key in self._told.get(agent.name, ()):
            return NEVER
        since = agent.since.get(operation)
        return NEVER if since is None else since.awake + seconds

    async def _tell(self, agent: AgentRuntime, operation: str) -> None:
        """Record the stall in the agent's journal, with a message to the lead in the same commit."""
        state = agent.state
        since = agent.since.get(operation)
        seconds = stalls.limit(state, operation, self._longest)
        key = stalls.key(state, operation)
        if since is None or seconds is None:
            return
        activity = stalls.operation_text(state, operation)
        now = self._host.clock.now()
        log.warning("agent stalled", agent=agent.name, operation=key, since=since.at)
        noticed = StallNoticed(at=now, operation=key, what=activity, since=since.at, limit=seconds)
        await agent.record(
            noticed,
            writes=self._word(
                agent, key, stalls.stall_text(agent.name, state.me.kind, activity, since=since.at, seconds=seconds)
            ),
            unless=lambda state: operation not in agent.since or key in state.waits.stalled,
        )

    def _word(self, agent: AgentRuntime, key: str, text: str) -> list[Write]:
        """Return the message to the lead. If the lead itself is stalled, its journal informs the user."""
        lead = self._host.board.agent("lead")
        if agent.name == "lead" or lead is None or lead[0].life == "stopped":
            return []
        life = (self._host.session, agent.name, agent.state.incarnation, agent.state.turns)
        envelope = Envelope(
            id=short_id("env", *life, key, "stalled"),
            sender="runtime",
            recipient="lead",
            incarnation=lead[0].incarnation,
            type="error",
            content=text,
            cause=spoken(agent.state),
            metadata={"status": "stalled", "agent": agent.name},
            sent_at=self._host.clock.now(),
        )
        return [sending(self._host.session, envelope)]

    def _declared(self, tool: str) -> float | None:
        """Return the limit that the tool declares."""
        declared_tool = self._host.ports.tools.get(tool)
        if declared_tool is None:
            return stalls.USUAL
        default = declared_tool.spec.input_schema.get("properties", {}).get("timeout_s", {}).get("default")
        return float(default) if isinstance(default, int | float) else declared_tool.spec.seconds
