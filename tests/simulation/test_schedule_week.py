"""8 runners on one store, 50 schedules, with kills, sleeps and clock jumps: each slot once, or accounted for.

The sample of each `make test` is some hours; `make soak` lives whole weeks of several seeds."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.simulation.virtual import run_virtual
from tests.simulation.week_judge import broken, history
from tests.simulation.week_world import Week


def lived(seed: int, hours: float) -> tuple[Week, Counter[str]]:
    """The week of one seed, which broke nothing, and how often each outcome came."""
    week = Week(seed, hours)

    async def whole() -> tuple[list[str], Counter[str]]:
        await week.live()
        rows = await history(week)
        return await broken(week), Counter(fire.outcome for fires in rows.values() for fire in fires)

    wrong, outcomes = run_virtual(whole, seed=seed)
    assert not wrong, f"seed {seed}: {len(wrong)} broken:\n" + "\n".join(wrong[:20])
    return week, outcomes


@pytest.mark.slow
def test_some_hours_of_eight_runners_and_fifty_schedules_fire_each_slot_once() -> None:
    week, outcomes = lived(1, 5.0)
    assert week.kills > 10, "nothing was tried"
    assert week.handed_over > 0
    assert outcomes["done"] > 50, outcomes


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_week_of_eight_runners_and_fifty_schedules_fires_each_slot_once(seed: int, soak: int) -> None:
    for number in range(soak):
        week, outcomes = lived(100 * seed + number, 7 * 24.0)
        assert week.kills > 100
        assert week.handed_over > 100
        assert week.jumps
        assert {"done", "missed", "skipped", "failed", "timed_out"} <= set(outcomes), outcomes
