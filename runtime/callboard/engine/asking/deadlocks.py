"""Looks for agents that wait for each other in vain, when one of them begins to wait; never on a timer.

What waits for what is read from states, requests and tasks (`core.waiting`); here stands only where they are, and who
is told: the lead, and the person too where the lead is one of those that wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog
from anyio.abc import TaskGroup

from callboard.core.bus.authority import claim, weakest
from callboard.core.bus.mail import sending
from callboard.core.names import request_key, short_id, task_key
from callboard.core.state import AgentState
from callboard.core.tasks.laws import by_id
from callboard.core.team.waiting import NOBODY, Deadlock, Wait, deadlocks, waits_of
from callboard.engine.host import Host
from callboard.ports.model import Delta
from callboard.ports.world import Policy
from callboard.words.values import AgentRow, Envelope

log = structlog.get_logger("callboard.team")

StateOf = Callable[[str], AgentState | None]
"""The state of a living agent of this process."""


class Deadlocks:
    """Those of one session. Each is told once, by any process: the envelope's id follows from it."""

    def __init__(self, host: Host, state_of: StateOf, looked: Callable[[], None]) -> None:
        """`looked`: called after each look."""
        self._host, self._state_of, self._looked = host, state_of, looked
        self._told: set[str] = set()
        self.looking = 0
        """Looks that are not over: what they find is told before a session is quiet."""

    def heed(self, row: AgentRow, group: TaskGroup) -> None:
        """An agent began to wait, or ended: it is looked at once its state is what its row says."""
        if row.kind != "subagent" and row.life in ("waiting", "idle", "stopped", "crashed"):
            self.looking += 1
            group.start_soon(self._look, row)

    async def _look(self, row: AgentRow) -> None:
        """At it and all whom it waits for; where it has ended, at all who may wait for it."""
        try:
            ended = row.life in ("stopped", "crashed")
            if ended or self._waits(row.name):
                mates = [one.name for one in self._host.board.agents() if one.kind != "subagent"]
                for found in self._among(mates if ended else [row.name]):
                    await self._tell(found)
        finally:
            self.looking -= 1
            self._looked()

    async def _read_again(self, found: Deadlock) -> None:
        """What it is about, from the store: the board knows this process's own commits before older ones of others."""
        session, board = self._host.session, self._host.board
        for wait in found.waits:
            if board.request(wait.key) is not None:
                await self._host.refresh(request_key(session, wait.key))
            elif board.task(wait.key) is not None:
                await self._host.refresh(task_key(session, wait.key))

    def _among(self, start: Iterable[str]) -> tuple[Deadlock, ...]:
        """The deadlocks among these and all whom they wait for."""
        graph, left = dict[str, tuple[Wait, ...]](), list(start)
        while left:
            name = left.pop()
            if name not in graph:
                graph[name] = self._waits(name)
                left.extend(to for wait in graph[name] for to in wait.names)
        return deadlocks(graph, {name for name in graph if self._gone(name)})

    def _waits(self, name: str) -> tuple[Wait, ...]:
        state, board = self._state_of(name), self._host.board
        return () if state is None else waits_of(state, board.requests(), by_id(board.tasks()))

    def _gone(self, name: str) -> bool:
        """It never acts again by itself. A person may always: from another terminal, if there is none here."""
        if name == "policy":
            return not any(isinstance(one, Policy) for one in self._host.ports.approvers)
        found = self._host.board.agent(name)
        return name == NOBODY or (found is not None and found[0].life in ("stopped", "crashed"))

    async def _tell(self, found: Deadlock) -> None:
        if found.id in self._told:
            return
        self._told.add(found.id)
        await self._read_again(found)
        if all(found.id != one.id for one in self._among(found.names)):
            self._told.discard(found.id)
            return
        log.warning("deadlock", agents=found.names, words=found.words())
        if "lead" in found.names:
            self._host.streamed("lead", Delta("notice", f"deadlock: {found.words()}"))
        lead = self._host.board.agent("lead")
        if lead is None or lead[0].life in ("stopped", "crashed"):
            return
        states = [state for name in found.names if (state := self._state_of(name))]
        envelope = Envelope(
            id=short_id("env", found.id),
            sender="runtime",
            recipient="lead",
            incarnation=lead[0].incarnation,
            type="error",
            content=f"A deadlock: {found.words()}\nAnswer one of them, give it something else to do, or end it.",
            cause=weakest(claim(state.me.name, state.authority) for state in states),
            metadata={"status": "deadlock", "agents": list(found.names)},
            sent_at=self._host.clock.now(),
        )
        await self._host.commit(sending(self._host.session, envelope))
