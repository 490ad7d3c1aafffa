"""Delivery of events, output, and mail of a session to its observers, as far as each wants them (`Interest`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from callboard.ports.environment import Interest, Observer
from callboard.ports.model import Delta, DeltaKind
from callboard.types.events import Event
from callboard.types.records import Envelope

_EVERYTHING = Interest()


class Audience:
    """Observers of a session, by what they want."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._listening = [(observer, interest_of(observer)) for observer in observers]
        self._of_events: dict[type[Any], tuple[Callable[[str, int, Event], None], ...]] = {}
        """Class of event -> functions to call. Looked up once for each class."""
        self._of_deltas: dict[DeltaKind, tuple[Callable[[str, Delta], None], ...]] = {}

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        """Deliver a recorded event of an agent."""
        kind = type(event)
        handlers = self._of_events.get(kind)
        if handlers is None:
            wanting = (each for each, interest in self._listening if interest.events is None or kind in interest.events)
            handlers = self._of_events[kind] = tuple(observer.on_event for observer in wanting)
        for handle in handlers:
            handle(agent, seq, event)

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Deliver a piece of an agent's output, or a line about it."""
        for handle in self._handlers_for(delta.kind):
            handle(agent, delta)

    def on_mail(self, envelope: Envelope) -> None:
        """Deliver an envelope that an agent sent or received."""
        for observer, _ in self._listening:
            observer.on_mail(envelope)

    def wants(self, kind: DeltaKind) -> bool:
        """Return True if an observer wants deltas of this kind."""
        return bool(self._handlers_for(kind))

    def _handlers_for(self, kind: DeltaKind) -> tuple[Callable[[str, Delta], None], ...]:
        handlers = self._of_deltas.get(kind)
        if handlers is None:
            wanting = (each for each, interest in self._listening if interest.deltas is None or kind in interest.deltas)
            handlers = self._of_deltas[kind] = tuple(observer.on_delta for observer in wanting)
        return handlers


def interest_of(observer: Observer) -> Interest:
    """Return what an observer wants: everything, unless it says otherwise."""
    interest: Interest = getattr(observer, "interest", _EVERYTHING)
    return interest
