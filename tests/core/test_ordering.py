"""Calls of a reply overlap as far as their results are those of running them one after another, and no further."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as hy
from tests.core.agent.agent_states import facts

from callboard.core.agent.open_calls import CallState, OpenCalls
from callboard.core.agent.state import Facts, ToolFacts
from callboard.core.call_order import READS_AT_ONCE, WAITS, judgeable, order_class, runnable
from callboard.types.operations import Operation
from callboard.types.records import ToolCall

TOOLS = {name: ToolFacts(name) for name in WAITS}
PATHS = ("/w/a", "/w/b", "/w/d", "/w/d/a")
CALLS = hy.lists(hy.tuples(hy.sampled_from(sorted(WAITS)), hy.sampled_from(PATHS), hy.booleans()), max_size=9)
"""Class, path, and whether the call is denied."""


@dataclass
class Reality:
    """What calls touch. Delegates leave a mark of their own, since they may run in any order."""

    files: dict[str, str] = field(default_factory=dict[str, str])
    rows: list[int] = field(default_factory=list[int])
    notes: list[int] = field(default_factory=list[int])
    delegated: set[int] = field(default_factory=set[int])
    written: set[int] = field(default_factory=set[int])

    def result(self, place: int, kind: str, path: str) -> object:
        """Return what the call sees. A delegate sees the rows of earlier calls at least, and who reads a row finds
        the files of earlier calls at least: later calls may have been faster."""
        own = {name: text for name, text in self.files.items() if _near(name, path)}
        marks = frozenset(self.delegated)
        match kind:
            case "look":
                return tuple(self.rows)
            case "own":
                return tuple(self.notes)
            case "store":
                return tuple(self.rows), frozenset(one for one in self.written if one < place)
            case "read" | "write":
                return tuple(sorted(own.items())), marks
            case "survey":
                return tuple(sorted(self.files.items())), marks
            case "delegate":
                return tuple(sorted(self.files.items())), tuple(one for one in self.rows if one < place)
            case _:
                return tuple(sorted(self.files.items())), tuple(self.rows), tuple(self.notes), marks

    def change(self, place: int, kind: str, path: str) -> None:
        if kind in ("write", "exclusive"):
            self.files[path] = f"by {place}"
            self.written.add(place)
        if kind in ("store", "exclusive"):
            self.rows.append(place)
        if kind in ("own", "exclusive"):
            self.notes.append(place)
        if kind == "delegate":
            self.delegated.add(place)


@settings(max_examples=100)
@given(CALLS, hy.randoms(use_true_random=False))
def test_results_are_those_of_running_the_calls_one_after_another(
    calls: list[tuple[str, str, bool]], draw: random.Random
) -> None:
    as_one_after_another(calls, Run(calls, draw))


class Choices(random.Random):
    """Choices that are made again as before, and then the first of each: `tried` goes through all of them."""

    def __init__(self, again: list[int]) -> None:
        super().__init__(0)
        self.again, self.made = again, list[tuple[int, int]]()

    def choice(self, seq: Sequence[Any]) -> Any:
        place = self.again[len(self.made)] if len(self.made) < len(self.again) else 0
        self.made.append((place, len(seq)))
        return seq[place]

    def random(self) -> float:
        return self.choice((0.0, 0.9))


def tried() -> Iterator[Choices]:
    """Yield choices until each combination of them was made."""
    again: list[int] | None = []
    while again is not None:
        choices = Choices(again)
        yield choices
        left = [number for number, (place, options) in enumerate(choices.made) if place + 1 < options]
        again = [place for place, _ in choices.made[: left[-1]]] + [choices.made[left[-1]][0] + 1] if left else None


def pairs() -> list[tuple[str, str, str, str]]:
    """Return each earlier and later class with each pair of paths that makes a difference for them."""
    paths = ("/w/a", "/w/d", "/w/d/a")
    one_path = ("read", "write")
    return [
        (earlier, first, later, second)
        for earlier, later in product(sorted(WAITS), repeat=2)
        for first, second in (
            product(paths, repeat=2) if earlier in one_path and later in one_path else [("/w/a", "/w/a")]
        )
    ]


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("earlier", sorted(WAITS))
def test_each_pair_of_calls_has_the_results_of_one_after_another_in_whatever_order_they_end(earlier: str) -> None:
    for kind, first, later, second in pairs():
        if kind == earlier:
            calls = [(kind, first, False), (later, second, False)]
            for choices in tried():
                as_one_after_another(calls, Run(calls, choices, asks=False))


@pytest.mark.parametrize("stage", ["proposed", "asking", "allowed", "running", "started", "finished"])
def test_a_call_is_judged_beside_an_earlier_one_unless_it_depends_on_it(stage: str) -> None:
    for earlier, first, later, second in pairs():
        states, here = calls_of([(earlier, stage, first), (later, "proposed", second)])
        waits = _depends((later, second, False), (earlier, first, False))
        assert ("c1" in judgeable(states, here)) is not waits, f"{later} {second} after {earlier} {first}"


@pytest.mark.parametrize("stage", ["running", "started"])
def test_a_call_is_run_beside_a_later_one_that_runs_unless_it_depends_on_it(stage: str) -> None:
    for later, first, earlier, second in pairs():
        states, here = calls_of([(earlier, "allowed", second), (later, stage, first)])
        waits = _depends((earlier, second, False), (later, first, False))
        assert ("c0" in runnable(states, here)) is not waits, f"{earlier} {second} beside {later} {first}"


def as_one_after_another(calls: list[tuple[str, str, bool]], run: Run) -> None:
    """Play a run, and compare what its calls saw and left with the calls made in order."""
    sequential: dict[int, object] = {}
    reality = Reality()
    for place, (kind, path, denied) in enumerate(calls):
        if not denied:
            sequential[place] = reality.result(place, kind, path)
            reality.change(place, kind, path)
    run.play()
    assert run.results == sequential, calls
    assert run.reality.files == reality.files
    assert run.reality.rows == reality.rows


@settings(max_examples=100)
@given(CALLS, hy.randoms(use_true_random=False))
def test_nothing_waits_but_for_an_earlier_call_that_it_depends_on(
    calls: list[tuple[str, str, bool]], draw: random.Random
) -> None:
    run = Run(calls, draw)
    for _ in run.steps():
        for place, one in enumerate(run.calls):
            if one.stage != "proposed" or one.call.id in judgeable(run.calls, run.facts) or one.call.id in run.judging:
                continue
            earlier = [e for e, other in enumerate(run.calls[:place]) if other.stage != "settled"]
            assert any(_depends(calls[place], calls[e]) for e in earlier), f"{calls[place]} waits for nothing"


@settings(max_examples=100)
@given(CALLS, hy.randoms(use_true_random=False))
def test_no_path_that_a_hook_may_still_change_is_run_past(
    calls: list[tuple[str, str, bool]], draw: random.Random
) -> None:
    run = Run(calls, draw, rewrites=True)
    run.play()
    reality = Reality()
    for place, (kind, _, denied) in enumerate(calls):
        if not denied:
            assert run.results[place] == reality.result(place, kind, run.paths[place])
            reality.change(place, kind, run.paths[place])


@dataclass
class Run:
    """A reply that is judged and run as the ordering allows, in an order that is drawn. An effect takes place at the
    beginning or at the end of a call; a call looks at both."""

    given: list[tuple[str, str, bool]]
    draw: random.Random
    rewrites: bool = False
    """Hooks change the path of a call while it is judged."""
    asks: bool = True
    """Calls may wait for approval."""
    reality: Reality = field(default_factory=Reality)
    results: dict[int, object] = field(default_factory=dict[int, object])

    def __post_init__(self) -> None:
        self.paths = [path for _, path, _ in self.given]
        self.calls = OpenCalls.of(
            CallState(ToolCall(id=f"c{place}", use_id=f"u{place}", name=kind, input={}))
            for place, (kind, _, _) in enumerate(self.given)
        )
        self.judging: set[str] = set()
        self.started: dict[int, tuple[object, bool]] = {}

    @property
    def facts(self) -> Facts:
        running = {Operation("judge", one) for one in self.judging} | {
            Operation("tool", f"c{place}") for place in self.started
        }
        kinds = [kind for kind, _, _ in self.given]
        keys = {f"c{n}": path for n, path in enumerate(self.paths) if kinds[n] in ("read", "write")}
        return facts(tools=TOOLS, keys=keys, running=frozenset(running), rewrites=self.rewrites)

    def play(self) -> None:
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """Begin all that may begin, then let one thing end, until all is settled."""
        while any(one.stage != "settled" for one in self.calls):
            self.judging.update(judgeable(self.calls, self.facts))
            for call in runnable(self.calls, self.facts):
                self._start(int(call[1:]))
            yield
            ends = [*sorted(self.judging), *(f"c{place}" for place in self.started)]
            ends += [one.call.id for one in self.calls if one.stage in ("asking", "finished")]
            assert ends, f"nothing goes on: {self.calls}"
            self._end(int(self.draw.choice(ends)[1:]))

    def _start(self, place: int) -> None:
        kind, path = self.given[place][0], self.paths[place]
        seen, early = self.reality.result(place, kind, path), self.draw.random() < 0.5
        if early:
            self.reality.change(place, kind, path)
        self.started[place] = (seen, early)

    def _end(self, place: int) -> None:
        one, (kind, _, denied) = self.calls[place], self.given[place]
        if one.call.id in self.judging:
            self.judging.discard(one.call.id)
            if self.rewrites and self.draw.random() < 0.3:
                self.paths[place] = self.draw.choice(PATHS)
            self._stage(place, "settled" if denied else self.draw.choice(["asking", "allowed"][not self.asks :]))
        elif one.stage == "asking":
            self._stage(place, "allowed")
        elif place in self.started:
            seen, early = self.started.pop(place)
            if not early:
                assert self.reality.result(place, kind, self.paths[place]) == seen, "it changed under the call"
                self.reality.change(place, kind, self.paths[place])
            self.results[place] = seen
            self._stage(place, "finished")
        else:
            self._stage(place, "settled")

    def _stage(self, place: int, stage: Any) -> None:
        self.calls = self.calls.with_change(self.calls[place].call.id, partial(replace, stage=stage))


def _near(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


def _depends(later: tuple[str, str, bool], earlier: tuple[str, str, bool]) -> bool:
    """The definition again, by what the two touch instead of by a table."""
    kinds = {later[0], earlier[0]}
    if "exclusive" in kinds:
        return True
    if kinds <= {"read", "write"}:
        return "write" in kinds and _near(later[1], earlier[1])
    if earlier[0] == "delegate":
        return later[0] in ("read", "survey", "write")
    if later[0] == "delegate":
        return earlier[0] in ("store", "read", "survey", "write")
    if later[0] == "store":
        return earlier[0] in ("look", "store", "write")
    if later[0] in ("look", "own"):
        return earlier[0] == ("store" if later[0] == "look" else "own")
    return earlier[0] != later[0] and {"survey", "write"} == kinds


STAGES = hy.sampled_from(["proposed", "asking", "allowed", "running", "started", "finished", "settled"])


@given(hy.lists(hy.tuples(hy.sampled_from([*sorted(WAITS), "gone"]), STAGES, hy.sampled_from(PATHS)), max_size=16))
def test_whatever_the_stages_are_what_runs_together_may_overlap(wanted: list[tuple[str, str, str]]) -> None:
    states, here = calls_of(wanted)
    run = runnable(states, here)
    begun = [one.call.id for one in states if one.stage == "started" or Operation("tool", one.call.id) in here.running]
    assert len(set(run)) == len(run)
    assert not set(run) & set(begun)
    kinds = {
        one.call.id: (kind if kind != "gone" else "exclusive", path) for one, (kind, _, path) in _zip(states, wanted)
    }
    assert not any(_depends((*kinds[call], False), (*kinds[other], False)) for call in run for other in begun)
    counted = [call for call in (*begun, *run) if kinds[call][0] in ("look", "read", "survey", "write")]
    assert not run or len(counted) <= max(READS_AT_ONCE, sum(call in counted for call in begun))


def test_many_reads_run_ten_at_once_and_leave_the_store_alone() -> None:
    states, here = calls_of([("survey", "allowed", "")] * 25 + [("store", "allowed", ""), ("own", "allowed", "")])
    assert runnable(states, here) == (*(f"c{place}" for place in range(10)), "c25", "c26")


@pytest.mark.parametrize("stage", ["proposed", "asking", "allowed", "started", "finished"])
def test_a_command_holds_back_a_read_at_every_stage_until_it_is_settled(stage: str) -> None:
    states, here = calls_of([("exclusive", stage, ""), ("read", "proposed", "/w/a")])
    assert "c1" not in judgeable(states, here)
    states, here = calls_of([("exclusive", "settled", ""), ("read", "proposed", "/w/a")])
    assert judgeable(states, here) == ("c1",)


def test_a_call_whose_path_was_changed_by_a_person_waits_for_the_later_one_that_runs() -> None:
    states, here = calls_of([("write", "allowed", "/w/a"), ("read", "running", "/w/a")])
    assert runnable(states, here) == ()


class Counting(dict[str, ToolFacts]):
    looked = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.looked += 1
        return super().get(key, default)


@pytest.mark.parametrize("last", ["store", "exclusive"])
def test_the_cost_of_a_step_grows_with_the_calls_and_not_with_their_square(last: str) -> None:
    def looked(number: int) -> int:
        states, here = calls_of([("delegate", "proposed", "")] * number + [(last, "proposed", "")])
        tools = Counting(TOOLS)
        judgeable(states, replace(here, tools=tools))
        allowed = OpenCalls.of(replace(one, stage="allowed") for one in states)
        runnable(allowed, replace(here, tools=tools))
        return tools.looked

    assert looked(800) < 8.5 * looked(100)


def test_a_step_looks_at_no_call_whose_operation_runs() -> None:
    states, here = calls_of([("delegate", "running", "")] * 50)
    judging = frozenset(Operation("judge", one.call.id) for one in states)
    tools = Counting(TOOLS)
    assert runnable(states, replace(here, tools=tools)) == ()
    proposed = OpenCalls.of(replace(one, stage="proposed") for one in states)
    assert judgeable(proposed, replace(here, tools=tools, running=judging)) == ()
    assert tools.looked == 0


def test_a_class_follows_from_what_a_tool_declares() -> None:
    assert [
        order_class("read", "shared", watches=True),
        order_class("read", "shared", watches=False),
        order_class("attach", "shared", watches=False),
        order_class("read", "keyed", watches=False),
        order_class("reconcile", "keyed", watches=False),
        order_class("store", "store", watches=False),
        order_class("read", "own", watches=False),
        order_class("unknown", "exclusive", watches=False),
    ] == ["look", "survey", "delegate", "read", "write", "store", "own", "exclusive"]


def _zip(states: OpenCalls, wanted: list[tuple[str, str, str]]) -> Iterator[tuple[CallState, tuple[str, str, str]]]:
    return zip(states, wanted, strict=True)


def calls_of(wanted: list[tuple[str, str, str]]) -> tuple[OpenCalls, Facts]:
    """Calls of these classes, stages and paths. `running`: allowed, and its operation runs."""
    states: list[CallState] = []
    running: set[Operation] = set()
    for place, (kind, stage, _) in enumerate(wanted):
        call = ToolCall(id=f"c{place}", use_id=f"u{place}", name=kind, input={})
        states.append(CallState(call, "allowed" if stage == "running" else stage))
        running |= {Operation("tool", f"c{place}")} if stage == "running" else set()
    keys: Mapping[str, str] = {f"c{n}": path for n, (kind, _, path) in enumerate(wanted) if kind in ("read", "write")}
    return OpenCalls.of(states), facts(tools=TOOLS, keys=keys, running=frozenset(running))
