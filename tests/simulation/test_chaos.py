"""Seeds of chaos: faults, interrupts, stops, deaths and mail at any moment. Whatever happens, no promise breaks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import get_args

import pytest
from tests.simulation.chaos import Run
from tests.simulation.chaos_replies import OVERFLOW
from tests.simulation.evidence import Evidence
from tests.simulation.seeds import live_all, twice_the_same

from callboard.core.agent.decide import RULES, compose_prompt, handle_cut_reply, release_reassigned_tasks
from callboard.core.agent.rules.compaction import count_tokens
from callboard.core.agent.rules.worktree import prepare_folder
from callboard.types.events import Event
from callboard.types.records import FaultKind

SAMPLE = range(3)
"""Seeds that `make test` lives."""
SEEDS = 25
"""Seeds in each part of the first 50, which `make soak` lives."""
PARTS = [range(n * SEEDS, (n + 1) * SEEDS) for n in range(2)]
SOAK_PARTS, SOAK_SEEDS = 8, 250
REPLAY = "CHAOS_SEED={} .venv/bin/python -m pytest tests/simulation/test_chaos.py -k replay"
EVENTS = {one.model_fields["t"].default for one in get_args(get_args(Event)[0])}
RARE = {
    "spec_changed",  # a person at the command line
    "stop_asked",  # written by nobody today
    "tokens_counted",  # near the limit of a window far larger than these
    "budget_reached",
    "stuck_noticed",
    "cache_thrash",
    "continuation_asked",
    "reply_interrupted",
    "envelopes_dropped",
    "shutdown_refused",  # the team of six does it more often
    "skill_commands_began",  # nobody here types a slash command
    "message_copied",  # nobody here forks a session
}
"""Events that a part need not reach."""
RARE_RULES = {count_tokens, handle_cut_reply, release_reassigned_tasks, prepare_folder, compose_prompt}
"""Rules that it need not: nobody here takes a task away, changes an agent's folder, or has a lead enter plan
mode."""


@dataclass
class Reached:
    """What some runs came across; the runs themselves are let go."""

    faults: Counter[str] = field(default_factory=Counter[str])
    stops: Counter[str] = field(default_factory=Counter[str])
    rules: Counter[str] = field(default_factory=Counter[str])
    events: Counter[str] = field(default_factory=Counter[str])
    ends: Counter[str] = field(default_factory=Counter[str])
    """Ends of processes, and a person's acts."""
    also: Counter[str] = field(default_factory=Counter[str])

    def add(self, run: Run, evidence: Evidence) -> None:
        self.faults.update(run.service.faults)
        self.stops.update(run.service.stops)
        self.rules.update(run.rules)
        self.events.update(run.events)
        self.ends.update(run.ends)
        self.also.update(hung=run.outside.hung, bugs=len(run.seen.bugs), sqlite=run.sqlite, seconds=round(run.seconds))


def check(seeds: Iterable[int]) -> Reached:
    """Live all seeds; what they came across."""
    reached = Reached()
    live_all(Run, seeds, REPLAY, reached.add)
    return reached


def claims(reached: Reached, record: Callable[[str, object], None]) -> None:
    """The chaos is one: every kind of fault, every rule, most events, every way to die. How many goes into the report
    (`--junit-xml=FILE -o junit_family=xunit1`)."""
    for name, counter in vars(reached).items():
        record(name, dict(counter.most_common()))
    record("virtual days", reached.also["seconds"] / 86_400)
    assert {*get_args(FaultKind), "parked"} - {"lost"} == set(reached.faults)
    assert {OVERFLOW, "end_turn", "max_tokens", "pause_turn", "refusal", "tool_use"} <= set(reached.stops)
    assert set(reached.events) >= EVENTS - RARE
    assert {rule.__name__ for rule in RULES if rule not in RARE_RULES} <= set(reached.rules)
    assert {"closed", "killed", "full", "fenced"} <= set(reached.ends)
    assert {"prompt", "answer", "interrupt", "compact", "undo", "stop", "new"} <= set(reached.ends)
    assert min(reached.also[name] for name in ("hung", "bugs", "sqlite")) > 0


def test_a_sample_of_seeds_breaks_no_promise() -> None:
    check(SAMPLE)


@pytest.mark.soak
@pytest.mark.parametrize("seeds", PARTS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_whatever_happens_no_promise_breaks(seeds: range, record_property: Callable[[str, object], None]) -> None:
    claims(check(seeds), record_property)


@pytest.mark.soak
def test_seeds_that_once_broke_a_promise_break_none() -> None:
    """A parked lead that was resumed believed that it held a task; a crash as the session closed failed the closing; a
    call that was allowed ran after its sibling had closed the gate; one bug while a killed agent was settled left its
    task and its commands in its journal for ever; a fire for a parked lead kept a run from ending."""
    check((1011, 1044, 1170, 1224, 1572))


def test_replay_one_seed_is_one_run() -> None:
    """`CHAOS_SEED` says which; whatever it broke is told."""
    twice_the_same(Run, int(os.environ.get("CHAOS_SEED", "3")), REPLAY)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(SOAK_PARTS))
def test_many_seeds_break_no_promise(part: int, soak: int, record_property: Callable[[str, object], None]) -> None:
    seeds = SOAK_SEEDS * soak
    claims(check(range(1_000 + part * seeds, 1_000 + (part + 1) * seeds)), record_property)
