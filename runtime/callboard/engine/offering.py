"""Who is woken for a ready task: one waiter for each, and another one when that one turned to something else.

Waking all of an idle team for one task would have all but one of them lose the race for it. So each change of the board
wakes as many as there are tasks to take (`callboard.core.tasks.offers`). Nothing is promised to who is woken: it claims
like anybody, or finds its task gone. What must not happen is that a task stays while somebody could take it: whoever
was woken and begins a turn of another cause, or ends, passes the offer on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from callboard.core.tasks import Holder, by_id, offers
from callboard.engine.host import Host
from callboard.engine.loop import Agent


class Offers:
    """The ready tasks of a hosted session, and who was woken for them. `living`: the agents that live here."""

    def __init__(self, host: Host, living: Callable[[], Iterable[Agent]]) -> None:
        self._host, self._living = host, living
        self._woken: set[str] = set()

    def offer(self) -> None:
        """A task changed, or somebody who could have taken one did not: wake those that are to look."""
        idle = {agent.name: agent for agent in self._living() if agent.state.spec and agent.state.turn is None}
        if self._host.ports.script is not None:  # a replay: each takes what it took then, and only it knows
            names: tuple[str, ...] = tuple(idle)
        else:
            names = offers(by_id(self._host.board.tasks()), self._takers(idle.values()))
        for name in names:
            self._woken.add(name)
            idle[name].wake()

    def moved_on(self, agent: Agent) -> None:
        """Something happened to an agent. One that was woken and is at work now, or over, leaves the rest to others."""
        if agent.name in self._woken and (agent.state.turn is not None or agent.state.ended is not None):
            self._woken.discard(agent.name)
            self.offer()

    def _takers(self, idle: Iterable[Agent]) -> Iterable[Holder]:
        """Asked one by one: no more of a large team are looked at than there are tasks."""
        return (self._host.holder(agent.state) for agent in idle if self._host.claimable(agent.state) is not None)
