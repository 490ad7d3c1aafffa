"""Agents that have been at one thing for longer than it may take are told of, once (`core.stalls` says how long).

One timer serves all agents: it sleeps until the first moment at which some operation will have taken too long, and is
woken early only by an operation that is due before that. Who has nothing under way costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import structlog

from callboard.core.bus.authority import spoken
from callboard.core.bus.mail import sending
from callboard.core.names import short_id
from callboard.core.team import stalls
from callboard.core.team.stalls import Longest
from callboard.engine.host import Host
from callboard.engine.loop import Agent
from callboard.engine.supervision.members import Member
from callboard.ports.store import Write
from callboard.words.events import StallNoticed
from callboard.words.values import Envelope

NEVER = float("inf")

log = structlog.get_logger("callboard.team")


class Stalls:
    """Watches what the members of a team have under way."""

    def __init__(self, host: Host, members: Mapping[tuple[str, int], Member]) -> None:
        self._host, self._members = host, members
        self._longest = Longest(self._declared, host.ports.hooks.longest)
        self._until = NEVER
        self._earlier = anyio.Event()
        self._told: dict[str, set[str]] = {}
        """Keys of operations that are told of already, by the agent's name, while they run."""

    def heed(self, name: str, incarnation: int, operation: str) -> None:
        """An operation begins."""
        member = self._members.get((name, incarnation))
        if member is None or member.agent is None:
            return
        due = self._due(member.agent, operation)
        if due < self._until:
            self._until = due
            self._earlier.set()

    @property
    def next_look(self) -> float | None:
        """When it looks again (Unix seconds); None: only when something begins."""
        return None if self._until == NEVER else self._until

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            self._earlier = anyio.Event()
            self._until = self._look()
            if self._until == NEVER:
                await self._earlier.wait()
                continue
            with anyio.move_on_after(max(0.0, self._until - self._host.clock.now())):
                await self._earlier.wait()

    def _look(self) -> float:
        """Tell of what is overdue, each among the tasks of its own agent: what goes wrong there crashes that one alone.
        Returns when to look again."""
        now, first = self._host.clock.now(), NEVER
        for member in self._members.values():
            agent = member.agent
            if agent is None or agent.group is None or member.ended.is_set():
                continue
            for operation in agent.since:
                due = self._due(agent, operation)
                if due <= now:
                    self._told.setdefault(agent.name, set()).add(stalls.key(agent.state, operation))
                    agent.group.start_soon(self._tell, agent, operation)
                else:
                    first = min(first, due)
        return first

    def _due(self, agent: Agent, operation: str) -> float:
        """When an operation will have taken too long; never, if it may take for ever or is told of already."""
        seconds = stalls.limit(agent.state, operation, self._longest)
        key = stalls.key(agent.state, operation)
        if seconds is None or key in agent.state.waits.stalled or key in self._told.get(agent.name, ()):
            return NEVER
        return agent.since.get(operation, NEVER) + seconds

    async def _tell(self, agent: Agent, operation: str) -> None:
        """One record in its journal, and word to the lead in the same commit."""
        state, since = agent.state, agent.since.get(operation)
        seconds, key = stalls.limit(state, operation, self._longest), stalls.key(state, operation)
        if since is None or seconds is None:
            return
        what, now = stalls.words(state, operation), self._host.clock.now()
        log.warning("agent stalled", agent=agent.name, operation=key, since=since)
        noticed = StallNoticed(at=now, operation=key, what=what, since=since, limit=seconds)
        await agent.record(
            noticed,
            writes=self._word(agent, key, stalls.told(agent.name, state.me.kind, what, since, seconds)),
            unless=lambda state: operation not in agent.since or key in state.waits.stalled,
        )

    def _word(self, agent: Agent, key: str, text: str) -> list[Write]:
        """To the lead; where it is the lead itself, its journal tells the person."""
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
        """As its input has it where the call says nothing, else as the tool declares."""
        found = self._host.ports.tools.get(tool)
        if found is None:
            return stalls.USUAL
        default = found.spec.input_schema.get("properties", {}).get("timeout_s", {}).get("default")
        return float(default) if isinstance(default, int | float) else found.spec.seconds
