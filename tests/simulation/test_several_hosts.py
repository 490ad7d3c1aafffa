"""Seeds of a session that goes from host to host: a chaos and a team of six. No promise breaks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from tests.simulation.evidence import Evidence
from tests.simulation.seeds import live_all, twice_the_same
from tests.simulation.several_hosts import HostChanges, SixOnHosts

SAMPLE = [(HostChanges, 3), (SixOnHosts, 4)]
"""Seeds that `make test` lives: in each, a host dies and another one hands over."""
SEEDS = 25
"""Seeds in each part of the first 100, which `make soak` lives."""
PARTS = [range(n * SEEDS, (n + 1) * SEEDS) for n in range(4)]
SOAK_PARTS, SOAK_SEEDS = 8, 125
KINDS = pytest.mark.parametrize("kind", [HostChanges, SixOnHosts], ids=["chaos", "six"])
REPLAY = (
    "HOSTS_SEED={} .venv/bin/python -m pytest -n 0 "
    "'tests/simulation/test_several_hosts.py::test_replay_one_seed_of_host_changes_is_one_run["
)
ENDS = {"process closed", "process killed", "process full", "process fenced"}
"""Ends of processes that 125 seeds meet, beside the hand-overs."""


def check(kind: type[HostChanges], seeds: Iterable[int]) -> Counter[str]:
    """Live all seeds; what they came across."""
    met = Counter[str]()

    def meet(run: HostChanges, evidence: Evidence) -> None:
        met.update(f"process {how}" for how in run.ends.elements())
        met[f"{len(run.hosts)} hosts"] += 1
        met["lives"] += len(evidence.lives)

    live_all(kind, seeds, replay(kind), meet)
    return met


def replay(kind: type[HostChanges]) -> str:
    return REPLAY + ("six]'" if kind is SixOnHosts else "chaos]'")


@pytest.mark.parametrize(("kind", "seed"), SAMPLE, ids=["chaos", "six"])
def test_a_sample_of_host_changes_breaks_no_promise(kind: type[HostChanges], seed: int) -> None:
    met = check(kind, [seed])
    assert min(met[what] for what in ("process handed over", "process killed", "2 hosts")) > 0, met


@pytest.mark.soak
@KINDS
@pytest.mark.parametrize("seeds", PARTS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_a_session_goes_from_host_to_host_and_no_promise_breaks(
    kind: type[HostChanges], seeds: range, record_property: Callable[[str, object], None]
) -> None:
    met = check(kind, seeds)
    record_property("met", dict(met.most_common()))
    assert min(met[what] for what in ("process handed over", "process killed", "2 hosts", "3 hosts")) > 0, met


def test_seeds_that_once_broke_a_promise_break_none() -> None:
    """A subagent whose unread mail begins no turn never ended after its turn, and its caller waited forever."""
    check(SixOnHosts, [1239])


@pytest.mark.slow
@KINDS
def test_replay_one_seed_of_host_changes_is_one_run(kind: type[HostChanges]) -> None:
    """`HOSTS_SEED` says which; whatever it broke is told."""
    twice_the_same(kind, int(os.environ.get("HOSTS_SEED", "3")), replay(kind))


@pytest.mark.soak
@KINDS
@pytest.mark.parametrize("part", range(SOAK_PARTS))
def test_many_host_changes_break_no_promise(
    kind: type[HostChanges], part: int, soak: int, record_property: Callable[[str, object], None]
) -> None:
    seeds = SOAK_SEEDS * soak
    met = check(kind, range(1_000 + part * seeds, 1_000 + (part + 1) * seeds))
    record_property("met", dict(met.most_common()))
    assert {what for what, times in met.items() if times} >= ENDS | {"process handed over", "process cut off"}, met
