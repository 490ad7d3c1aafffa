"""Lives at random in which code crashes, calls wait for the rate, persons are asked and stops come by mail. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.core.agent.agent_states import Life, facts
from tests.core.agent.interpreter import Interpreter

from callboard.core.agent.apply import apply
from callboard.core.agent.decide import decide
from callboard.core.agent.state import AgentState
from callboard.core.team.lifecycle import life
from callboard.types import events as ev
from callboard.types import steps as st
from callboard.types.messages import StateBlock
from callboard.types.records import AgentLife

Change = tuple[AgentLife, AgentLife, str]
"""From, to, and the event that made it."""


@dataclass
class Lived(Interpreter):
    """An agent whose process, code, service and person are what they are."""

    parked: float = 0.0
    """The key is parked until then."""

    def settle(self) -> None:
        """Nobody lives a crashed agent on before it is taken up again."""
        if not self.life.state.waits.crash:
            super().settle()
            self._waits()

    def happens(self) -> None:
        """What is to be done is done, and then something happens."""
        self.settle()
        self._happens()

    def _happens(self) -> None:
        if self.life.state.waits.crash:
            self._taken_up()
            return
        what = self.draw(24)
        if what == 0:
            self._crash()
        elif what == 1:
            self.parked = self.now + 1_000
        elif what == 2:
            self.life = self.life.mailed("", type="command", metadata={"action": "stop"})
        elif what == 3:
            self.life = self.life.mailed("blue", type="answer", request_id="req_q")
        else:
            super()._happens()

    def _crash(self) -> None:
        if self.life.state.lifecycle.ended is None:
            self.running.clear()
            self.on(ev.AgentCrashed, why="ValueError: x", count=1, again_at=None if self.draw(2) else self.now + 0.5)

    def _taken_up(self) -> None:
        """After the back-off, by a person, or to be ended; or the process that would have done it dies."""
        what = self.draw(4)
        if what == 0 and self.life.state.waits.crash == "restarting":
            self.on(ev.AgentCrashed, why="ValueError: x", count=4)
            return
        if what == 1:
            self.on(ev.StopAsked, by="person")
        self.on(ev.AgentResumed, pid=2)

    def _step(self) -> st.Step:
        state = self.life.state
        keys = {one.call.id: "a" for one in state.calls if one.call.name == "write_file"}
        running = frozenset(self.running)
        known = {"running": running, "requests": self.requests, "keys": keys, "known": StateBlock()}
        return decide(state, facts(self.now, parked_until=self.parked, **known))

    def _waits(self) -> None:
        """As the engine does: what the journal does not say yet of a wait is said."""
        step = self._step()
        told = self.life.state.waits.held or self.life.state.model.recovery.parked
        if isinstance(step, st.Wait) and step.awaited == "rate" and not told:
            self.on(ev.WaitBegan, what="rate", until=step.until)


def lived(draw: Callable[[int], int], happenings: int) -> Life:
    """A life in which so many things happened, and which then came to rest, or was left as it was."""
    one = Lived(draw)
    one.life = one.life.mailed("go", metadata={"assignment": True})
    for _ in range(happenings):
        one.happens()
    one.settle()
    return one.life


def from_seed(seed: int) -> Life:
    """The same life for the same seed; later seeds live longer."""
    draw = random.Random(seed)
    return lived(draw.randrange, 10 + seed % 60)


def changes(told: Life) -> Iterator[Change]:
    """The changes of the word for its row, from its first record on."""
    state, before = AgentState(), None
    for event in told.events:
        state = apply(state, event)
        now = life(state)
        if before is not None and now != before:
            yield before, now, type(event).__name__
        before = now
