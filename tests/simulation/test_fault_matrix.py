"""The fault matrix over real HTTP: every way in which a model call can fail, for every role, at every step of it.

Each cell is a session of a lead, a subagent and a teammate through the real adapter, store and tools, with one fault in
it; then it is taken up again and asked for one thing more. It must come to its right result or to a clear error, never
hang, never leave a history that the API refuses, never run a call twice or by half, and bill nothing in silence.

    CELL="reset@7 teammate middle forever" pytest tests/simulation/test_fault_matrix.py

plays one cell. `make test` plays one fault of each way and meaning once, over all roles and steps; `make soak` plays
all cells.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from tests.simulation.fault_cells import environment, faults_of, play
from tests.simulation.fault_kinds import KINDS, Kind, kind_of
from tests.simulation.fault_script import ROLES, STEPS, TARGETS
from tests.simulation.fault_service import Cell, Mode, cell_of, events_of
from tests.simulation.skipping import run_skipping


def modes(kind: str) -> tuple[Mode, ...]:
    """How often a fault strikes: what ends the turn at once, and what is no failure, differs in nothing."""
    return ("once",) if kind_of(kind).meaning in ("final", "key", "harmless", "again") else ("once", "forever")


def events(role: str, step: str) -> int:
    """How many events the reply of that step has."""
    return len(events_of(TARGETS[role][step], ""))


def every_cell(kind: str) -> Iterator[Cell]:
    """All cells of a fault; of `reset` and `ended`: at each event of each reply."""
    for role, step in product(ROLES, STEPS):
        names = [f"{kind}@{n}" for n in range(events(role, step))] if kind in ("reset", "ended") else [kind]
        for name in names:
            yield from (Cell(kind_of(name), role, step, mode) for mode in modes(name))


def way_of(kind: Kind) -> tuple[object, str]:
    """How a fault is played, and what it means: those that share both differ in a number or in words."""
    return getattr(kind.play, "func", kind.play), kind.meaning


def sampled_kinds() -> Iterator[str]:
    """The first fault of each way."""
    taken = set[object]()
    for name, kind in KINDS.items():
        if way_of(kind) not in taken:
            taken.add(way_of(kind))
            yield name


def sample() -> Iterator[Cell]:
    """One fault of each way once, and a reset in every tenth event of the longest reply; roles, steps and modes go
    round."""
    most = max(events(role, step) for role, step in product(ROLES, STEPS))
    for number, name in enumerate([*sampled_kinds(), *(f"reset@{n}" for n in range(0, most, 10))]):
        at = int(name.partition("@")[2] or 0)
        places = [(role, step) for step, role in product(STEPS, ROLES) if events(role, step) > at]
        role, step = places[number % len(places)]
        yield Cell(kind_of(name), role, step, modes(name)[number // 3 % len(modes(name))])


CELLS = [cell_of(os.environ["CELL"])] if "CELL" in os.environ else list(sample())


def check(cell: Cell, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Play a cell in a folder of its own; what went otherwise than it must."""
    for name, value in environment(folder).items():
        monkeypatch.setenv(name, value)
    return faults_of(run_skipping(play, cell, folder))


def told(cell: Cell, faults: list[str]) -> str:
    again = f'again: CELL="{cell}" .venv/bin/python -m pytest tests/simulation/test_fault_matrix.py'
    return "\n".join([f"{cell}:", *faults, again])


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_fault_ends_in_the_right_result_or_in_a_clear_error(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = check(cell, tmp_path, monkeypatch)
    assert not faults, told(cell, faults)


@pytest.mark.soak
@pytest.mark.parametrize("kind", [*KINDS, "reset", "ended"])
def test_all_cells_of_a_fault(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[str] = []
    for number, cell in enumerate(every_cell(kind)):
        folder = tmp_path / str(number)
        folder.mkdir()
        faults = check(cell, folder, monkeypatch)
        failed += [told(cell, faults)] if faults else []
    assert not failed, "\n\n".join(failed)


def test_the_sample_has_every_way_role_step_and_mode() -> None:
    cells = list(sample())
    assert {way_of(cell.kind) for cell in cells} >= {way_of(kind) for kind in KINDS.values()}
    assert {(cell.role, cell.step) for cell in cells} == set(product(ROLES, STEPS))
    assert {(cell.role, cell.mode) for cell in cells} == set(product(ROLES, ("once", "forever")))
