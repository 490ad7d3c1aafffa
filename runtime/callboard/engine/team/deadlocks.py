"""Detection of agents that wait for each other forever. It runs when an agent begins to wait, never on a timer.

The dependencies come from states, requests and tasks (`core.waiting`). This module collects them and informs the lead,
and also the user if the lead is one of the waiting agents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog
from anyio.abc import TaskGroup

from callboard.core.agent.state import AgentState
from callboard.core.keys import request_key, short_id, task_key
from callboard.core.messaging.authority import claim, weakest
from callboard.core.messaging.envelopes import sending
from callboard.core.team.wait_graph import NOBODY, Deadlock, WaitEdge, deadlocks, waits_of
from callboard.engine.runtime import Host
from callboard.ports.environment import Policy
from callboard.ports.model import Delta
from callboard.types.records import AgentRow, Envelope

log = structlog.get_logger("callboard.team")

StateOf = Callable[[str], AgentState | None]
"""Function that returns the state of a living agent of this process."""


class Deadlocks:
    """Deadlock detector of one session. Each deadlock is reported once, by any process: the envelope's id is derived
    from it."""

    def __init__(self, host: Host, state_of: StateOf, looked: Callable[[], None]) -> None:
        """Store `looked`, which is called after each check."""
        self._host = host
        self._state_of = state_of
        self._looked = looked
        self._told: set[str] = set()
        self.looking = 0
        """Number of checks in progress. Their findings are reported before a session counts as quiet."""

    def heed(self, row: AgentRow, group: TaskGroup) -> None:
        """Check an agent that began to wait, or ended, once its state agrees with its row."""
        if row.kind != "subagent" and row.life in ("waiting", "idle", "stopped", "crashed"):
            self.looking += 1
            group.start_soon(self._look, row)

    async def _look(self, row: AgentRow) -> None:
        """Check the agent and all agents that it waits for; if it has ended, all agents that may wait for it."""
        try:
            ended = row.life in ("stopped", "crashed")
            if ended or self._waits(row.name):
                mates = [agent.name for agent in self._host.board.agents() if agent.kind != "subagent"]
                for deadlock in self._among(mates if ended else [row.name]):
                    await self._tell(deadlock)
        finally:
            self.looking -= 1
            self._looked()

    async def _read_again(self, deadlock: Deadlock) -> None:
        """Read the requests and tasks of a deadlock from the store: the row cache has this process's own commits before
        older ones of other processes."""
        session = self._host.session
        board = self._host.board
        for wait in deadlock.waits:
            if board.request(wait.key) is not None:
                await self._host.refresh(request_key(session, wait.key))
            elif board.task(wait.key) is not None:
                await self._host.refresh(task_key(session, wait.key))

    def _among(self, start: Iterable[str]) -> tuple[Deadlock, ...]:
        """Return the deadlocks among these agents and all agents that they wait for."""
        graph = dict[str, tuple[WaitEdge, ...]]()
        unvisited = list(start)
        while unvisited:
            name = unvisited.pop()
            if name not in graph:
                graph[name] = self._waits(name)
                unvisited.extend(to for wait in graph[name] for to in wait.names)
        return deadlocks(graph, {name for name in graph if self._gone(name)})

    def _waits(self, name: str) -> tuple[WaitEdge, ...]:
        state = self._state_of(name)
        board = self._host.board
        return () if state is None else waits_of(state, board.requests(), board.at_stake())

    def _gone(self, name: str) -> bool:
        """Return True if the name never acts again by itself. A person always may, if only from another terminal."""
        if name == "policy":
            return not any(isinstance(approver, Policy) for approver in self._host.ports.approvers)
        match = self._host.board.agent(name)
        return name == NOBODY or (match is not None and match[0].life in ("stopped", "crashed"))

    async def _tell(self, deadlock: Deadlock) -> None:
        if deadlock.id in self._told:
            return
        self._told.add(deadlock.id)
        # An answer that is delivered later than an end would otherwise look like a deadlock
        # (test_an_end_that_is_heard_of_before_an_older_answer_is_no_deadlock).
        await self._read_again(deadlock)
        if all(deadlock.id != current.id for current in self._among(deadlock.names)):
            self._told.discard(deadlock.id)
            return
        log.warning("deadlock", agents=deadlock.names, words=deadlock.text())
        if "lead" in deadlock.names:
            self._host.streamed("lead", Delta("notice", f"deadlock: {deadlock.text()}"))
        lead = self._host.board.agent("lead")
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
            cause=weakest(claim(state.me.name, state.authority) for state in states),
            metadata={"status": "deadlock", "agents": list(deadlock.names)},
            sent_at=self._host.clock.now(),
        )
        await self._host.commit(sending(self._host.session, envelope))
