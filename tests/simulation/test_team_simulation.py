"""Seeds of a team of six: crashes, delays, duplicates, overtaking, rejected plans, shutdowns that are refused or run
out of time, tasks taken away, worktrees. No promise breaks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from tests.simulation.evidence import Evidence, Life
from tests.simulation.seeds import live_all, twice_the_same
from tests.simulation.team_of_six import SixRun, overtaken

from callboard.types.events import ModelReplied, ToolFinished

SAMPLE = range(2)
"""Seeds that `make test` lives."""
SEEDS = 25
"""Seeds in each part of the first 100, which `make soak` lives."""
PARTS = [range(n * SEEDS, (n + 1) * SEEDS) for n in range(4)]
SOAK_PARTS, SOAK_SEEDS = 20, 250
REPLAY = "TEAM_SEED={} .venv/bin/python -m pytest tests/simulation/test_team_simulation.py -k replay"


def check(seeds: Iterable[int]) -> Counter[str]:
    """Live all seeds; what they came across."""
    met = Counter[str]()
    live_all(SixRun, seeds, REPLAY, lambda run, evidence: met.update(_met(run, evidence)))
    return met


def _met(run: SixRun, evidence: Evidence) -> Counter[str]:
    met = Counter({"sent again": run.post.again, "overtaken": overtaken(evidence), "bugs": len(run.seen.bugs)})
    met.update(f"process {how}" for how in run.ends.elements())
    met.update(f"{one.kind} {one.status}" for one in evidence.requests)
    met.update(f"{one.kind} {one.life}" for one in evidence.rows)
    met.update(f"task {one.status}" for one in evidence.tasks)
    met.update(run.events)
    met["stop refused"] += sum(_refused(life) for life in evidence.lives)
    met["revised"] += sum(1 for one in evidence.requests if one.kind == "plan" and one.revision > 1)
    met["blocked"] += sum(1 for one in evidence.tasks if one.blocked_by)
    met["passed on"] += sum(
        1 for life in evidence.lives for one in life.mail if one.content.startswith("pass this on ")
    )
    trees = run.outside.trees
    met.update({"task taken": run.board.taken, "clung": run.outside.clung, "work let go": len(trees.agreed)})
    met.update({f"worktree {how}": times for how, times in trees.ends.items()})
    met["in a worktree"] += sum(row.worktree != "" for row in evidence.rows)
    return met


def _refused(life: Life) -> int:
    """Return how often a life refused to stop by its own tool."""
    calls = {call.id: call.name for event in life.events if isinstance(event, ModelReplied) for call in event.calls}
    ends = [event for event in life.events if isinstance(event, ToolFinished) and not event.is_error]
    return sum(calls[event.call] == "refuse_shutdown" for event in ends)


COMMON = {
    "sent again",
    "overtaken",
    "process closed",
    "process killed",
    "plan approved",
    "plan rejected",
    "plan expired",
    "revised",
    "permission approved",
    "shutdown approved",
    "shutdown rejected",
    "shutdown_refused",
    "stop refused",
    "task taken",
    "clung",
    "in a worktree",
    "worktree merged",
    "worktree merge refused",
    "subagent stopped",
    "teammate idle",
    "teammate stopped",
    "task completed",
    "blocked",
    "passed on",
    "background_started",
    "background_ended",
    "agent_resumed",
}
"""What 25 seeds come across, whichever they are."""
RARE = {
    "process dropped",
    "process full",
    "process fenced",
    "bugs",
    "task failed",
    "envelopes_dropped",
    "shutdown expired",
    "worktree conflict",
    "worktree recovered",
    "worktree removed",
    "worktree removal refused",
    "work let go",
}
"""What 250 come across beside that."""


def test_a_sample_of_seeds_breaks_no_promise() -> None:
    check(SAMPLE)


@pytest.mark.soak
@pytest.mark.parametrize("seeds", PARTS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_whatever_befalls_a_team_of_six_no_promise_breaks(
    seeds: range, record_property: Callable[[str, object], None]
) -> None:
    met = check(seeds)
    record_property("met", dict(met.most_common()))
    assert {what for what, times in met.items() if times} >= COMMON


@pytest.mark.slow
def test_replay_one_seed_of_six_is_one_run() -> None:
    """`TEAM_SEED` says which; whatever it broke is told."""
    twice_the_same(SixRun, int(os.environ.get("TEAM_SEED", "3")), REPLAY)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(SOAK_PARTS))
def test_many_seeds_of_six_break_no_promise(
    part: int, soak: int, record_property: Callable[[str, object], None]
) -> None:
    seeds = SOAK_SEEDS * soak
    met = check(range(1_000 + part * seeds, 1_000 + (part + 1) * seeds))
    record_property("met", dict(met.most_common()))
    assert {what for what, times in met.items() if times} >= COMMON | RARE
