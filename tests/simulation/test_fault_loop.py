"""Killed at every write, before and after it took effect, and taken up again: the same end, nothing lost or doubled."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.simulation.evidence import Evidence, broken, gather
from tests.simulation.little_session import SESSION, Play
from tests.simulation.virtual import run_virtual

from callboard.adapters.storage.memory import CrashPoint, MemoryStore
from callboard.ports.model import Delta
from callboard.types.errors import StoreFull
from callboard.types.events import Event
from callboard.types.records import Envelope

SAMPLE = 15
"""Writes at which `make test` kills; `make soak` kills at all of them."""


@dataclass(frozen=True)
class End:
    """What must be the same however often the process died."""

    last_text: str
    board: list[tuple[str, str, str | None, str | None]]
    todos: tuple[str, ...]
    files: dict[str, str]
    reports: dict[str, str]
    rows: list[tuple[str, str]]
    requests: list[tuple[str, str]]
    kept: set[str]


def end_of(play: Play, evidence: Evidence) -> End:
    lead = evidence.life("lead").state
    return End(
        last_text=lead.turns.last_text,
        board=sorted((task.subject, task.status, task.owner, task.result) for task in evidence.tasks),
        todos=tuple(todo.status for todo in lead.work.todos),
        files=dict(play.outside.files),
        reports={name: evidence.life(name).state.work.reported for name in ("alice", "bob")},
        rows=sorted((row.name, row.life) for row in evidence.rows),
        requests=sorted((request.kind, request.status) for request in evidence.requests),
        kept={path for path in play.world.archive.files if "tool-results" in path},
    )


async def clean() -> tuple[Play, Evidence]:
    play = Play()
    await play.to_the_end()
    return play, await gather(play.store, SESSION)


async def killed_at(write: int, point: CrashPoint) -> tuple[Play, Evidence]:
    play = Play(store=MemoryStore(crash_after=write, crash_point=point))
    if await play.through_a_crash():
        play.reopen()
        await play.to_the_end()
    return play, await gather(play.store, SESSION)


def test_without_a_crash_the_session_does_something_of_everything() -> None:
    play, evidence = run_virtual(clean)
    assert broken(evidence) == []
    end = end_of(play, evidence)
    assert end.last_text == "All is done."
    assert end.board == [("the first", "completed", "bob", "good"), ("the second", "completed", "bob", "good")]
    assert end.files == {"l": "l", "a": "first", "b": "b", "c": "c"}
    assert end.requests == [("plan", "approved")]
    assert sorted(play.outside.commanded.values()) == [1, 1]
    assert evidence.life("lead").state.compaction.count == 1
    assert len(evidence.lives) == 4
    assert any(event.t == "retry_planned" for event in evidence.life("alice").events)
    assert play.store.writes > 100, "a loop over no writes proves nothing"


def test_a_teammate_reads_its_mail_before_it_looks_at_the_board() -> None:
    _, evidence = run_virtual(clean)
    kinds = [event.t for event in evidence.life("bob").events]
    assert kinds.index("envelope_received") < kinds.index("task_held")


def check(write: int, point: CrashPoint, wanted: End) -> None:
    play, evidence = run_virtual(killed_at, write, point)
    where = f"killed {point} write {write}"
    assert broken(evidence) == [], where
    assert end_of(play, evidence) == wanted, where
    assert max(play.outside.commanded.values(), default=0) <= 1, f"{where}: a command ran twice"
    assert set(play.outside.written.values()) == {1}, f"{where}: a file was not written exactly once by a call"


def points(most: int | None) -> list[tuple[int, CrashPoint]]:
    play, _ = run_virtual(clean)
    either: tuple[CrashPoint, ...] = ("before", "after")
    every: list[tuple[int, CrashPoint]] = [(n, point) for n in range(1, play.store.writes + 1) for point in either]
    return every if most is None else every[:: max(1, len(every) // most)]


def test_killed_at_any_write_it_comes_to_the_same_end() -> None:
    wanted = end_of(*run_virtual(clean))
    for write, point in points(SAMPLE):
        check(write, point, wanted)


class FillsUp:
    """Sees what is recorded, and takes the last room on the disk after so many writes."""

    def __init__(self, store: MemoryStore, after: int) -> None:
        self._store, self._after = store, after

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        self._store.full = self._store.writes >= self._after

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Nothing is written for it."""

    def on_mail(self, envelope: Envelope) -> None:
        """Its record tells the same."""


async def filled_at(write: int) -> tuple[Play, Evidence, bool]:
    play, full = Play(), False
    play.world.observers = [FillsUp(play.store, write)]
    try:
        await play.to_the_end()
    except* StoreFull:
        full = True
    play.world.observers = []
    play.store.full = False
    play.reopen()
    await play.to_the_end()
    return play, await gather(play.store, SESSION), full


@pytest.mark.slow
def test_with_the_disk_full_at_any_write_it_stops_and_after_some_room_comes_to_the_same_end() -> None:
    first, evidence = run_virtual(clean)
    wanted = end_of(first, evidence)
    for write in range(2, first.store.writes, 9):
        play, found, full = run_virtual(filled_at, write)
        assert full, f"a disk that was full at write {write} was not noticed"
        assert broken(found) == [], f"full at write {write}"
        assert end_of(play, found) == wanted, f"full at write {write}"
        assert max(play.outside.commanded.values(), default=0) <= 1, f"full at write {write}: a command ran twice"


@pytest.mark.soak
def test_killed_at_every_write_it_comes_to_the_same_end() -> None:
    wanted = end_of(*run_virtual(clean))
    for write, point in points(None):
        check(write, point, wanted)
