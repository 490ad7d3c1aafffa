"""Seeds of chaos: faults, interrupts, stops, kills and mail at any moment. Whatever happens, no promise breaks."""

from __future__ import annotations

import pytest
from tests.simulation.chaos import Run
from tests.simulation.evidence import broken
from tests.simulation.virtual import run_virtual

SEEDS = 20


def check(seed: int) -> Run:
    run = Run(seed)
    evidence = run_virtual(run.whole, seed=seed)
    assert broken(evidence) == [], f"seed {seed}"
    assert max(run.outside.commanded.values(), default=0) <= 1, f"seed {seed}: a command ran twice"
    assert max(run.outside.written.values(), default=0) <= 1, f"seed {seed}: a file was written twice by one call"
    return run


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_no_promise_breaks(seed: int) -> None:
    check(seed)


def test_one_seed_is_one_run() -> None:
    first, second = (run_virtual(Run(3).whole, seed=3) for _ in range(2))
    assert [life.events for life in first.lives] == [life.events for life in second.lives]


@pytest.mark.soak
def test_many_seeds_break_no_promise(soak: int) -> None:
    runs = [check(seed) for seed in range(1_000, 1_000 + 200 * soak)]
    assert sum(run.kills for run in runs) > len(runs) / 2, "a chaos without kills proves little"
