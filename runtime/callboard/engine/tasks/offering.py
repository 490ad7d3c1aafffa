"""Who is woken for a ready task: one waiter for each, and another one when that one turned to something else.

Waking all of an idle team for one task would have all but one of them lose the race for it. So each change of the board
wakes as many as there are tasks to take (`callboard.core.tasks.offers`). Nothing is promised to who is woken: it claims
like anybody, or finds its task gone. What must not happen is that a task stays while somebody could take it: whoever
was woken and begins a turn of another cause, or ends, passes the offer on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from callboard.core.tasks.laws import Holder, by_id
from callboard.core.tasks.offers import offers
from callboard.engine.host import Host
from callboard.engine.loop import Agent
from callboard.words.values import Task


class Offers:
    """The ready tasks of a hosted session, and who was woken for which. `living`: the agents that live here."""

    def __init__(self, host: Host, living: Callable[[], Iterable[Agent]]) -> None:
        self._host, self._living = host, living
        self._offered = host.offered

    def changed(self, task: str) -> None:
        """A task changed: who knows it as its own looks whether it still is, and what is ready is offered."""
        for agent in self._living():
            if task in agent.state.tasks:
                agent.wake()
        self.offer()

    def offer(self) -> None:
        """Wake those that are to look at the ready tasks."""
        idle = {agent.name: agent for agent in self._living() if agent.state.spec and agent.state.turn is None}
        if self._host.ports.script is not None:  # a replay: each takes what it took then, and only it knows
            for agent in idle.values():
                agent.wake()
            return
        board = by_id(self._host.board.tasks())
        stale = [name for name, task in self._offered.items() if not self._stands(idle.get(name), board.get(task))]
        for name in stale:
            del self._offered[name]
        others = (agent for name, agent in idle.items() if name not in self._offered)
        self._offered |= offers(board, self._takers(others), list(self._offered.values()))
        for name in list(self._offered):
            idle[name].wake()

    def moved_on(self, agent: Agent) -> None:
        """Something happened to an agent. One that was woken and is at work now, or over, leaves the rest to others."""
        if agent.name in self._offered and (agent.state.turn is not None or agent.state.ended is not None):
            del self._offered[agent.name]
            self.offer()

    def _stands(self, agent: Agent | None, task: Task | None) -> bool:
        """Whether an offer is still to be taken."""
        return task is not None and task.status == "pending" and agent is not None and self._waits(agent)

    def _takers(self, idle: Iterable[Agent]) -> Iterable[Holder]:
        """Asked one by one: no more of a large team are looked at than there are tasks."""
        return (self._host.holder(agent.state) for agent in idle if self._waits(agent))

    def _waits(self, agent: Agent) -> bool:
        return self._host.claimable(agent.state) is not None
