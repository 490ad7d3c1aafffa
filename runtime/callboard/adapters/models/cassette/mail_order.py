"""Order of a recorded run: the mail delivered before each model call, and other facts that depend on timing.

`DeliveryRecorder` records the order, and `DeliveryOrder` makes a replay follow it: deliveries are the same, the board
changes in the recorded order, and envelopes of schedules are sent again at their places. A replay waits for events that
have not happened yet, but not forever: if the whole session has no event for `PATIENCE`, agents continue without them,
and the cassette's model reports the resulting difference.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from callboard.adapters.models.cassette.recorder import Cassette, Recording
from callboard.core.agent.state import Delivery, ExpectedDeliveries
from callboard.ports.environment import Clock
from callboard.ports.model import Delta
from callboard.ports.notifier import Notifier
from callboard.types import events as ev
from callboard.types.messages import Injection, StateBlock
from callboard.types.records import Envelope, Json

PATIENCE = 20.0
"""Seconds without any event after which an agent stops waiting."""
_GIVEN_UP = (ev.TurnBegan, ev.EnvelopesDelivered, ev.ModelCalled, ev.TurnEnded)
"""Events with which an agent continues after it waited without success. After any other silence another event comes
first.
"""
_BELLS = frozenset({"plan_approval_response", "permission_response", "answer"})


class DeliveryRecorder:
    """Observer, and the `Script` of a session that is being recorded."""

    def __init__(self, recording: Recording) -> None:
        self._tape = recording
        self._lives: dict[str, _Life] = defaultdict(_Life)
        self._effects: dict[str, str] = {}
        self._outputs: dict[str, str] = {}
        self._known: dict[str, StateBlock] = {}

    def on_event(self, agent: str, seq: int, event: ev.Event) -> None:
        """Record the facts that a replay needs."""
        life = self._lives[agent]
        match event:
            case ev.AgentStarted():
                self._lives[agent] = _Life(event.incarnation)
            case ev.ModelCalled(purpose="turn"):
                life.asked += 1
            case ev.TurnBegan():
                life.fresh = True
                life.reminded = False
            case ev.TasksReminded():
                life.reminded = True
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
        """Do nothing: the receipt of mail is an event."""

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Do nothing: streamed text is not recorded."""

    def expected(self, agent: str, life: int, model_calls: int, deliveries: int) -> ExpectedDeliveries | None:
        """Return None: any mail is accepted."""
        return None

    def known_state(self, agent: str, life: int, compactions: int, block: StateBlock) -> StateBlock:
        key = _known_key(agent, life, compactions)
        if self._known.get(key) != block:
            self._known[key] = block
            self._tape.keep("known", key, block.model_dump(mode="json"))
        return block

    def reminders(self, agent: str, life: int, turn: int, due: tuple[Injection, ...]) -> tuple[Injection, ...]:
        if due:
            self._tape.keep(
                "reminders", _known_key(agent, life, turn), {"due": [injection.model_dump() for injection in due]}
            )
        return due

    def _delivered(self, agent: str, ids: tuple[str, ...]) -> None:
        life = self._lives[agent]
        value: Json = {"asked": life.asked, "ids": list(ids), "begins_turn": life.fresh, "reminded": life.reminded}
        self._tape.keep("mail", f"{agent}.{life.number}", value)

    def _received(self, envelope: Envelope) -> None:
        if envelope.type == "scheduled":
            self._tape.keep("envelope", envelope.id, envelope.model_dump(mode="json"))
        elif envelope.type in _BELLS and envelope.request_id:
            answer: Json = {"status": envelope.metadata.get("status"), "by": envelope.sender}
            word = {
                name: envelope.metadata[name]
                for name in ("option", "plan", "input", "mode")
                if envelope.metadata.get(name)
            }
            self._tape.keep("answer", envelope.request_id, {**answer, "reason": envelope.content, **word})

    def _worked(self, event: ev.Event) -> None:
        match event:
            case ev.ToolStarted():
                self._effects[event.call] = event.effect
            case ev.ToolFinished():
                result = event.model_dump(mode="json", include={"content", "is_error", "data", "ends_turn"})
                self._tape.keep("tool", event.call, {**result, "effect": self._effects.pop(event.call, "")})
            case ev.BackgroundStarted(agent=""):
                self._outputs[event.id] = event.output
            case ev.BackgroundEnded() if event.id in self._outputs:
                value: Json = {"status": event.status, "exit_code": event.exit_code}
                self._tape.keep("background", self._outputs.pop(event.id), value)  # only its first end counts
            case _:
                pass


class _Life:
    """Progress of one agent."""

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.asked = 0
        self.reminded = False
        """True if the agent was reminded in its turn of the tasks that it owns."""
        self.fresh = False
        """True if the agent's turn has begun and nothing has been delivered in it yet."""


class DeliveryOrder:
    """Observer, and the `Script` of a replay."""

    def __init__(self, cassette: Cassette, clock: Clock, patience: float = PATIENCE) -> None:
        self._tape = cassette
        self._clock = clock
        self._patience = patience
        self._silent_since = clock.now()
        self._left = False
        """True if an agent received other mail than was recorded. From then on no order is prescribed."""
        self._mail: dict[str, dict[int, list[Delivery]]] = defaultdict(lambda: defaultdict(list))
        for agent_life, value in cassette.all_of("mail"):
            self._mail[agent_life][value["asked"]].append(_delivery(value))
        self._board = deque(call for call, value in cassette.all_of("tool") if _changes_rows(value))
        self._sent = dict(cassette.all_of("envelope"))
        self._lives: dict[str, _Life] = defaultdict(_Life)
        self._heard: dict[str, int] = defaultdict(int)
        self._ended: dict[str, anyio.Event] = defaultdict(anyio.Event)
        self._changed = Notifier()
        self._out, self.outside = anyio.create_memory_object_stream[Envelope](math.inf)

    outside: MemoryObjectReceiveStream[Envelope]
    """Envelopes that no agent of the session sends, and that must be sent now."""

    def on_event(self, agent: str, seq: int, event: ev.Event) -> None:
        """Update the progress of the replay."""
        if isinstance(event, _GIVEN_UP) and self._clock.now() >= self._until:
            self._left = True
        until = event.until if isinstance(event, ev.RetryPlanned) else 0.0
        self._silent_since = max(self._clock.now(), until, self._silent_since)
        life = self._lives[agent]
        match event:
            case ev.AgentStarted():
                self._lives[agent] = _Life(event.incarnation)
                self._heard[agent] = 0
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
        self._changed.notify()

    def on_mail(self, envelope: Envelope) -> None:
        """Do nothing: the receipt of mail is an event."""

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Do nothing: streamed text has no effect."""

    def expected(self, agent: str, life: int, model_calls: int, deliveries: int) -> ExpectedDeliveries | None:
        if self._left or self._tape.told:
            return None
        due = self._due(agent, life, model_calls)[deliveries:]
        return ExpectedDeliveries(tuple(due), self._until)

    def known_state(self, agent: str, life: int, compactions: int, block: StateBlock) -> StateBlock:
        recorded = self._tape.value_of("known", _known_key(agent, life, compactions))
        return block if recorded is None else StateBlock.model_validate(recorded)

    def reminders(self, agent: str, life: int, turn: int, due: tuple[Injection, ...]) -> tuple[Injection, ...]:
        recorded = self._tape.value_of("reminders", _known_key(agent, life, turn))
        return () if recorded is None else tuple(Injection.model_validate(injection) for injection in recorded["due"])

    async def turn_of(self, call: str) -> None:
        """Wait until the calls that changed the board before this one have changed it again, or no more events come."""
        await self._wait_for(lambda: call not in self._board or self._board[0] == call)

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not (condition() or self._left or self._tape.told):
            if self._clock.now() >= self._until:
                self._left = True
            with anyio.move_on_after(max(0.0, self._until - self._clock.now())):
                await self._changed.changed(self._changed.changes)

    async def wait_played(self, agent: str) -> None:
        """Wait until an agent has made all its recorded calls, or no more events come."""
        await self._wait_for(lambda: self._tape.has_played(agent))

    async def wait_stopped(self, output: Path) -> None:
        """Wait until the agent itself has ended the background command with this output."""
        await self._ended[output.stem].wait()

    async def stuck(self) -> None:
        """Wait until the silence has lasted so long that no more events will come."""
        while (remaining := self._until - self._clock.now()) > 0:  # noqa: ASYNC110 - silence causes no event
            await anyio.sleep(remaining)

    def close(self) -> None:
        """Stop sending. Idempotent."""
        self._out.close()
        self.outside.close()

    @property
    def _until(self) -> float:
        return self._silent_since + self._patience

    def _due(self, agent: str, life: int, model_calls: int) -> Sequence[Delivery]:
        return self._mail.get(f"{agent}.{life}", {}).get(model_calls, ())

    def _compare(self, agent: str, ids: tuple[str, ...]) -> None:
        life = self._lives[agent]
        taken_count = self._heard[agent]
        due = self._due(agent, life.number, life.asked)[taken_count : taken_count + 1]
        self._left = self._left or not due or due[0].ids != ids
        self._heard[agent] = taken_count + 1

    def _send(self, agent: str) -> None:
        """Send the envelopes that schedules sent before the agent's next call."""
        life = self._lives[agent]
        for delivery in self._due(agent, life.number, life.asked):
            for envelope_id in delivery.ids:
                if envelope_id in self._sent:
                    envelope = Envelope.model_validate(self._sent.pop(envelope_id))
                    self._out.send_nowait(envelope.model_copy(update={"seq": 0}))


def _delivery(value: Json) -> Delivery:
    """Return a delivery as it was recorded. Older recordings do not state if the agent had been reminded."""
    return Delivery(tuple(value["ids"]), value["begins_turn"], value.get("reminded", False))


def _known_key(agent: str, life: int, number: int) -> str:
    return f"{agent}.{life} {number}"


def _changes_rows(recorded: Json) -> bool:
    """Return True if a recorded call changed the session's rows: a store tool, or a completed task."""
    return recorded["effect"] == "store" or "task_id" in recorded["data"]
