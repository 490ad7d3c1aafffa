"""The course of a recorded run: which mail was delivered before which model call, and what else depends on the moment.

`CourseRecorder` notes it, `Course` holds a replay to it: deliveries as they were, the board changed in the order in
which it was, envelopes of schedules sent again where they came. It waits for what has not happened yet, but never for
long: when nothing has happened in the whole session for `PATIENCE`, agents go on without it, and the cassette's model
tells the difference that this makes.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from callboard.adapters.cassette import Cassette, Recording
from callboard.core.state import Delivery, Expected
from callboard.ports.model import Delta
from callboard.ports.world import Clock
from callboard.words import events as ev
from callboard.words.context import Injection, StateBlock
from callboard.words.values import Envelope, Json

PATIENCE = 20.0
"""Seconds."""
_GIVEN_UP = (ev.TurnBegan, ev.EnvelopesDelivered, ev.ModelCalled, ev.TurnEnded)
"""What an agent does first when it has waited in vain. After any other silence something arrives first."""
_BELLS = frozenset({"plan_approval_response", "permission_response", "answer"})


class CourseRecorder:
    """An observer, and the `Script` of a session that is recorded."""

    def __init__(self, recording: Recording) -> None:
        self._tape = recording
        self._lives: dict[str, _Life] = defaultdict(_Life)
        self._effects: dict[str, str] = {}
        self._outputs: dict[str, str] = {}
        self._known: dict[str, StateBlock] = {}

    def on_event(self, agent: str, seq: int, event: ev.Event) -> None:
        """Note what a replay will need."""
        life = self._lives[agent]
        match event:
            case ev.AgentStarted():
                self._lives[agent] = _Life(event.incarnation)
            case ev.ModelCalled(purpose="turn"):
                life.asked += 1
            case ev.TurnBegan():
                life.fresh = True
            case ev.EnvelopesDelivered():
                self._delivered(agent, event.ids)
                life.fresh = False
            case ev.EnvelopesDropped():
                self._delivered(agent, event.ids)
            case ev.EnvelopeReceived(refused=""):
                self._received(event.envelope)
            case _:
                self._worked(event)

    def on_mail(self, envelope: Envelope) -> None:
        """What is received is an event."""

    def on_delta(self, agent: str, delta: Delta) -> None:
        """What streams is not recorded."""

    def expected(self, agent: str, life: int, asked: int, heard: int) -> Expected | None:
        """Whatever comes."""
        return None

    def known(self, agent: str, life: int, compactions: int, block: StateBlock) -> StateBlock:
        key = _known_key(agent, life, compactions)
        if self._known.get(key) != block:
            self._known[key] = block
            self._tape.keep("known", key, block.model_dump(mode="json"))
        return block

    def reminders(self, agent: str, life: int, turn: int, due: tuple[Injection, ...]) -> tuple[Injection, ...]:
        if due:
            self._tape.keep("reminders", _known_key(agent, life, turn), {"due": [one.model_dump() for one in due]})
        return due

    def _delivered(self, agent: str, ids: tuple[str, ...]) -> None:
        life = self._lives[agent]
        value: Json = {"asked": life.asked, "ids": list(ids), "begins_turn": life.fresh}
        self._tape.keep("mail", f"{agent}.{life.number}", value)

    def _received(self, envelope: Envelope) -> None:
        if envelope.type == "scheduled":
            self._tape.keep("envelope", envelope.id, envelope.model_dump(mode="json"))
        elif envelope.type in _BELLS and envelope.request_id:
            answer: Json = {"status": envelope.metadata.get("status"), "by": envelope.sender}
            word = {
                name: envelope.metadata[name] for name in ("option", "plan", "input") if envelope.metadata.get(name)
            }
            self._tape.keep("answer", envelope.request_id, {**answer, "reason": envelope.content, **word})

    def _worked(self, event: ev.Event) -> None:
        match event:
            case ev.ToolStarted():
                self._effects[event.call] = event.effect
            case ev.ToolFinished():
                kept = event.model_dump(mode="json", include={"content", "is_error", "data", "ends_turn"})
                self._tape.keep("tool", event.call, {**kept, "effect": self._effects.pop(event.call, "")})
            case ev.BackgroundStarted():
                self._outputs[event.id] = event.output
            case ev.BackgroundEnded() if event.id in self._outputs:
                value: Json = {"status": event.status, "exit_code": event.exit_code}
                self._tape.keep(
                    "background", self._outputs.pop(event.id), value
                )  # its first end is the one that counts
            case _:
                pass


class _Life:
    """How far one agent has come."""

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.asked = 0
        self.fresh = False
        """Its turn has begun, and nothing was delivered in it yet."""


class Course:
    """An observer, and the `Script` of a replay."""

    def __init__(self, cassette: Cassette, clock: Clock, patience: float = PATIENCE) -> None:
        self._tape, self._clock, self._patience = cassette, clock, patience
        self._silent_since = clock.now()
        self._left = False
        """Some agent took other mail than was recorded: nothing is prescribed any more."""
        self._mail: dict[str, dict[int, list[Delivery]]] = defaultdict(lambda: defaultdict(list))
        for who, value in cassette.all_of("mail"):
            self._mail[who][value["asked"]].append(Delivery(tuple(value["ids"]), value["begins_turn"]))
        self._board = deque(call for call, value in cassette.all_of("tool") if _changes_rows(value))
        self._sent = dict(cassette.all_of("envelope"))
        self._lives: dict[str, _Life] = defaultdict(_Life)
        self._heard: dict[str, int] = defaultdict(int)
        self._ended: dict[str, anyio.Event] = defaultdict(anyio.Event)
        self._moved = anyio.Event()
        self._out, self.outside = anyio.create_memory_object_stream[Envelope](math.inf)

    outside: MemoryObjectReceiveStream[Envelope]
    """Envelopes that nobody in the session sends: they are to be sent now."""

    def on_event(self, agent: str, seq: int, event: ev.Event) -> None:
        """Follow the replay."""
        if isinstance(event, _GIVEN_UP) and self._clock.now() >= self._until:
            self._left = True
        until = event.until if isinstance(event, ev.RetryPlanned) else 0.0
        self._silent_since = max(self._clock.now(), until, self._silent_since)
        life = self._lives[agent]
        match event:
            case ev.AgentStarted():
                self._lives[agent], self._heard[agent] = _Life(event.incarnation), 0
                self._send(agent)
            case ev.ModelCalled(purpose="turn"):
                life.asked, self._heard[agent] = life.asked + 1, 0
                self._send(agent)
            case ev.EnvelopesDelivered() | ev.EnvelopesDropped():
                self._compare(agent, event.ids)
            case ev.ToolFinished() if event.call in self._board:
                self._board.remove(event.call)
            case ev.BackgroundEnded():
                self._ended[event.id].set()
            case _:
                pass
        self._moved.set()
        self._moved = anyio.Event()

    def on_mail(self, envelope: Envelope) -> None:
        """What is received is an event."""

    def on_delta(self, agent: str, delta: Delta) -> None:
        """What streams changes nothing."""

    def expected(self, agent: str, life: int, asked: int, heard: int) -> Expected | None:
        if self._left or self._tape.told:
            return None
        due = self._due(agent, life, asked)[heard:]
        return Expected(tuple(due), self._until)

    def known(self, agent: str, life: int, compactions: int, block: StateBlock) -> StateBlock:
        kept = self._tape.found("known", _known_key(agent, life, compactions))
        return block if kept is None else StateBlock.model_validate(kept)

    def reminders(self, agent: str, life: int, turn: int, due: tuple[Injection, ...]) -> tuple[Injection, ...]:
        kept = self._tape.found("reminders", _known_key(agent, life, turn))
        return () if kept is None else tuple(Injection.model_validate(one) for one in kept["due"])

    async def turn_of(self, call: str) -> None:
        """Wait until the calls that changed the board before this one have changed it again, or nothing goes on."""
        while call in self._board and self._board[0] != call and not (self._left or self._tape.told):
            moved = self._moved
            if self._clock.now() >= self._until:
                self._left = True
            with anyio.move_on_after(max(0.0, self._until - self._clock.now())):
                await moved.wait()

    async def stopped(self, output: Path) -> None:
        """Wait until the agent has ended the background command of this output itself."""
        await self._ended[output.stem].wait()

    async def stuck(self) -> None:
        """Wait until nothing has happened for so long that nothing will."""
        while (left := self._until - self._clock.now()) > 0:  # noqa: ASYNC110  # silence is no event
            await anyio.sleep(left)

    def close(self) -> None:
        """Nothing is sent any more. Idempotent."""
        self._out.close()
        self.outside.close()

    @property
    def _until(self) -> float:
        return self._silent_since + self._patience

    def _due(self, agent: str, life: int, asked: int) -> Sequence[Delivery]:
        return self._mail.get(f"{agent}.{life}", {}).get(asked, ())

    def _compare(self, agent: str, ids: tuple[str, ...]) -> None:
        life, heard = self._lives[agent], self._heard[agent]
        due = self._due(agent, life.number, life.asked)[heard : heard + 1]
        self._left = self._left or not due or due[0].ids != ids
        self._heard[agent] = heard + 1

    def _send(self, agent: str) -> None:
        """What schedules sent before the agent's next call."""
        life = self._lives[agent]
        for delivery in self._due(agent, life.number, life.asked):
            for one in delivery.ids:
                if one in self._sent:
                    envelope = Envelope.model_validate(self._sent.pop(one))
                    self._out.send_nowait(envelope.model_copy(update={"seq": 0}))


def _known_key(agent: str, life: int, number: int) -> str:
    return f"{agent}.{life} {number}"


def _changes_rows(kept: Json) -> bool:
    """Whether a recorded call changed the session's rows: a tool of the store, or a task that was completed."""
    return kept["effect"] == "store" or "task_id" in kept["data"]
