"""Which calls of a reply may run at once: exclusive alone, one of a key, ten reads; and something if anything may."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as hy
from tests.core.agent_states import facts

from callboard.core.decide import READS_AT_ONCE, runnable
from callboard.core.state import CallState, Facts, ToolFacts
from callboard.words.values import ToolCall

KINDS = hy.sampled_from(["shared", "keyed", "exclusive", "task", "unknown"])
STAGES = hy.sampled_from(["proposed", "asking", "allowed", "running", "started", "finished", "settled"])


@given(hy.lists(hy.tuples(KINDS, STAGES, hy.sampled_from("ab")), max_size=16))
def test_what_runs_together_never_breaks_its_concurrency(wanted: list[tuple[str, str, str]]) -> None:
    states, here = calls_of(wanted)
    run = runnable(states, here)
    kinds = {one.call.id: kind for one, (kind, _, _) in zip(states, wanted, strict=True)}
    keys = {one.call.id: key for one, (_, _, key) in zip(states, wanted, strict=True)}
    begun = {one.call.id for one in states if one.stage == "started" or f"tool:{one.call.id}" in here.running}
    together = begun | set(run)
    assert len(set(run)) == len(run)
    assert all(one.stage == "allowed" for one in states if one.call.id in run)
    assert not set(run) & begun
    alone = [call for call in run if kinds[call] in ("exclusive", "unknown")]
    assert not alone or together == set(alone), "an exclusive call runs alone"
    exclusive = [call for call in begun if kinds[call] in ("exclusive", "unknown")]
    assert not (run and exclusive), "nothing joins an exclusive one"
    keyed = [keys[call] for call in together if kinds[call] == "keyed"]
    started_keyed = [keys[call] for call in begun if kinds[call] == "keyed"]
    assert len(keyed) - len(set(keyed)) <= len(started_keyed) - len(set(started_keyed)), "no key twice"
    reads = [call for call in together if kinds[call] != "task"]
    assert len(reads) <= max(READS_AT_ONCE, len([call for call in begun if kinds[call] != "task"]))


def test_what_a_person_allowed_in_the_meantime_does_not_join_an_exclusive_call() -> None:
    states, here = calls_of([("shared", "allowed", "a"), ("exclusive", "allowed", "a"), ("exclusive", "running", "a")])
    assert runnable(states, here) == ()


@given(hy.lists(hy.tuples(KINDS, hy.sampled_from(["allowed", "settled"]), hy.sampled_from("ab")), min_size=1))
def test_something_runs_whenever_something_may(wanted: list[tuple[str, str, str]]) -> None:
    states, here = calls_of(wanted)
    assert bool(runnable(states, here)) == any(one.stage == "allowed" for one in states)


def calls_of(wanted: list[tuple[str, str, str]]) -> tuple[tuple[CallState, ...], Facts]:
    states: list[CallState] = []
    running: set[str] = set()
    for place, (kind, stage, _) in enumerate(wanted):
        call = ToolCall(id=f"c{place}", use_id=f"u{place}", name=kind, input={})
        states.append(CallState(call, "allowed" if stage == "running" else stage))  # type: ignore[arg-type]
        running |= {f"tool:c{place}"} if stage == "running" else set()
    tools = {"shared": ToolFacts("shared"), "task": ToolFacts("shared"), "keyed": ToolFacts("keyed")}
    tools["exclusive"] = ToolFacts("exclusive")
    keys = {f"c{place}": key for place, (kind, _, key) in enumerate(wanted) if kind == "keyed"}
    return tuple(states), facts(tools=tools, keys=keys, running=frozenset(running))
