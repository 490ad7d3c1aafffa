"""Observers get what they want, and only that."""

from __future__ import annotations

from itertools import combinations
from typing import get_args

import pytest

from callboard.engine.audience import Audience
from callboard.ports.environment import Interest
from callboard.ports.model import Delta, DeltaKind
from callboard.types.events import Event, Interrupted, ResultsMerged
from callboard.types.records import Envelope

KINDS: tuple[DeltaKind, ...] = get_args(DeltaKind)


class Listening:
    """Observer that keeps what it gets."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, Event]] = []
        self.deltas: list[Delta] = []

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        self.events.append((agent, seq, event))

    def on_delta(self, agent: str, delta: Delta) -> None:
        self.deltas.append(delta)

    def on_mail(self, envelope: Envelope) -> None: ...


class Choosing(Listening):
    def __init__(self, interest: Interest) -> None:
        super().__init__()
        self.interest = interest


@pytest.mark.parametrize("wanted", [each for size in range(3) for each in combinations(KINDS, size)], ids="+".join)
def test_an_observer_gets_the_deltas_that_it_wants_and_another_one_all(wanted: tuple[DeltaKind, ...]) -> None:
    choosing, listening = Choosing(Interest(deltas=frozenset(wanted))), Listening()
    audience = Audience([choosing, listening])
    deltas = [Delta(kind, str(number)) for number, kind in enumerate(2 * KINDS)]
    for delta in deltas:
        audience.on_delta("lead", delta)
    assert choosing.deltas == [delta for delta in deltas if delta.kind in wanted]
    assert listening.deltas == deltas
    assert [kind for kind in KINDS if Audience([choosing]).wants(kind)] == [kind for kind in KINDS if kind in wanted]


def test_an_observer_gets_the_events_that_it_wants_in_their_order() -> None:
    choosing, listening = Choosing(Interest(events=frozenset({Interrupted}))), Listening()
    audience = Audience([choosing, listening])
    events: list[Event] = [ResultsMerged(at=1.0), Interrupted(at=2.0, by="person"), ResultsMerged(at=3.0)]
    for seq, event in enumerate(events, 1):
        audience.on_event("alice", seq, event)
    assert choosing.events == [("alice", 2, events[1])]
    assert listening.events == [("alice", seq, event) for seq, event in enumerate(events, 1)]
