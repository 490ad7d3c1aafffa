"""What to do when a model call fails: the table of `recovery`, line by line, and the laws of its numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as hy

from callboard.core import recovery as rec
from callboard.core.recovery import RecoveryState, back_off, recover
from callboard.words.events import CallFailed
from callboard.words.specs import AgentSpec, ModelLimits
from callboard.words.steps import Continue, EndTurn, PlanRetry, React, SwitchModel
from callboard.words.values import Fault

NOW = 1_000.0
TRANSIENT = ("rate_limited", "overloaded", "server", "connection", "silence", "bad_reply")
FINAL = ("spend_limit", "credentials", "payment", "not_found", "invalid")


def spec(**more: Any) -> AgentSpec:
    return AgentSpec(name="lead", kind="lead", agent_type="lead", model="one", **more)


def failed(kind: str, at: float = NOW, draw: float = 0.0, **more: Any) -> CallFailed:
    fault = Fault.model_validate({"kind": kind, "message": "said", **more})
    return CallFailed(at=at, ordinal=1, attempt=1, model="one", fault=fault, draw=draw)


def after(*faults: CallFailed, of: AgentSpec) -> Any:
    """The decision on the last of these failures, each earlier one retried at once or switched away from."""
    state = RecoveryState()
    for place, fault in enumerate(faults):
        state = rec.on_failed(state, fault)
        step = recover(fault, state, of, NOW)
        if place == len(faults) - 1:
            return step
        if isinstance(step, SwitchModel):
            state = rec.on_switched(state, step.model)
        else:
            assert isinstance(step, PlanRetry)
            state = rec.on_retry(state, step.until, step.parked)
    raise AssertionError("there is at least one fault")


@pytest.mark.parametrize("kind", TRANSIENT)
def test_what_passes_is_tried_again_and_then_given_up_with_the_cause(kind: str) -> None:
    me = spec(attempts=3)
    assert after(failed(kind), of=me) == PlanRetry(NOW + 0.5, 1, parked=False, why=f"{kind}: said")
    assert after(failed(kind), failed(kind), of=me) == PlanRetry(NOW + 1.0, 2, parked=False, why=f"{kind}: said")
    end = after(failed(kind), failed(kind, NOW + 1), failed(kind, NOW + 7), of=me)
    assert end == EndTurn("failed", f"model unavailable: 3 attempts in 7 s ({kind}: said)")


def test_a_wait_that_the_service_asks_for_is_kept_to_the_second() -> None:
    assert after(failed("rate_limited", retry_after=7.5), of=spec()).until == NOW + 7.5
    assert after(failed("rate_limited", retry_after=60.0), of=spec()).parked is False


def test_a_longer_wait_parks_the_agent_and_uses_up_no_attempt() -> None:
    parked = failed("rate_limited", retry_after=61.0)
    assert after(*[parked] * 9, of=spec(attempts=1)) == PlanRetry(NOW + 61.0, 1, parked=True, why="rate_limited: said")


def test_b25_retry_after_of_anything_but_a_rate_limit_is_not_heeded() -> None:
    assert after(failed("server", retry_after=500.0), of=spec()).until == NOW + 0.5


def test_the_second_overload_in_a_row_takes_the_next_fallback_with_attempts_of_its_own() -> None:
    me = spec(fallback_models=("two", "three"), attempts=3)
    over = failed("overloaded")
    assert isinstance(after(over, of=me), PlanRetry)
    assert after(over, over, of=me) == SwitchModel("two", "overloaded: said")
    assert after(over, over, over, of=me) == PlanRetry(NOW + 0.5, 1, parked=False, why="overloaded: said")
    assert after(*[over] * 4, of=me) == SwitchModel("three", "overloaded: said")
    assert after(*[over] * 6, of=me).attempt == 2, "at the end of the chain the attempts count"
    assert isinstance(after(*[over] * 7, of=me), EndTurn)


def test_overloads_that_do_not_follow_each_other_switch_nothing_until_the_attempts_are_used_up() -> None:
    me = spec(fallback_models=("two",), attempts=3)
    over, server = failed("overloaded"), failed("server")
    assert isinstance(after(over, server, of=me), PlanRetry)
    assert after(over, server, over, of=me) == SwitchModel("two", "overloaded: said")
    assert isinstance(after(server, server, server, of=me), EndTurn), "only overload is a reason to switch"


def test_a_model_outside_the_chain_has_no_fallback() -> None:
    state = RecoveryState(model="elsewhere", attempts=3, overloads_in_a_row=3)
    assert isinstance(recover(failed("overloaded"), state, spec(fallback_models=("two",)), NOW), EndTurn)


def test_a_call_whose_process_died_is_made_again_at_once_and_counts_for_nothing() -> None:
    lost = [failed("lost")] * 20
    assert after(*lost, of=spec(attempts=1)) == PlanRetry(NOW, 0, parked=False, why="the process died during the call")


def test_a_prompt_too_long_is_compacted_once_and_then_is_an_overflow() -> None:
    state = rec.on_failed(RecoveryState(), failed("too_long"))
    assert recover(failed("too_long"), state, spec(), NOW) == React("said")
    assert state.attempts == 0
    again = recover(failed("too_long"), RecoveryState(reacted=True), spec(), NOW)
    assert again == EndTurn("overflow", "the conversation does not fit, even compacted (too_long: said)")


def test_a_success_between_two_rejections_allows_another_reaction() -> None:
    state = rec.on_reply(RecoveryState(reacted=True), cut=False)
    assert isinstance(recover(failed("too_long"), state, spec(), NOW), React)


@pytest.mark.parametrize("kind", FINAL)
def test_what_only_a_person_can_mend_ends_the_turn_and_says_what_to_do(kind: str) -> None:
    end = after(failed(kind, status=400, type="some_error"), of=spec(attempts=10))
    assert end == EndTurn("failed", f"{rec.FINAL[kind]} (some_error 400: said)")


def test_every_kind_of_fault_has_a_line_in_the_table() -> None:
    kinds = set(Fault.model_json_schema()["properties"]["kind"]["enum"])
    assert kinds == {*TRANSIENT, *FINAL, "too_long", "lost"}


def test_a_fault_without_words_is_told_by_its_kind() -> None:
    assert after(failed("connection", message=""), of=spec()).why == "connection"


@given(hy.integers(0, 60), hy.floats(0, 1))
def test_back_off_doubles_up_to_32_s_plus_a_quarter(attempt: int, draw: float) -> None:
    plain = min(0.5 * 2**attempt, 32.0)
    assert plain <= back_off(attempt, draw) <= plain * 1.25
    assert back_off(attempt, draw) <= back_off(attempt + 1, draw) <= 40.0


@given(hy.lists(hy.sampled_from([*TRANSIENT, "lost", "too_long", "ok", "cut"]), max_size=30), hy.integers(1, 5))
def test_whatever_happens_the_counters_stay_in_their_bounds(happenings: list[str], attempts: int) -> None:
    """A driver that does what recovery says: it never tries oftener than it may, and success forgets."""
    me, state = spec(attempts=attempts, fallback_models=("two",)), RecoveryState()
    for number, what in enumerate(happenings):
        if what in ("ok", "cut"):
            state = rec.on_reply(state, cut=what == "cut")
            assert (state.attempts, state.overloads_in_a_row, state.first_failed_at) == (0, 0, 0.0)
            continue
        fault = failed(what, at=NOW + number)
        state = rec.on_failed(state, fault)
        step = recover(fault, state, me, NOW + number)
        assert state.attempts <= attempts
        match step:
            case PlanRetry():
                assert step.until >= NOW + number or what == "lost"
                assert step.until - fault.at <= 40.0
                state = rec.on_retry(state, step.until, step.parked)
            case SwitchModel():
                state = rec.on_switched(state, step.model)
                assert rec.model_in_use(state, me) == "two"
            case React():
                state = RecoveryState(reacted=True, model=state.model)
            case _:
                assert isinstance(step, EndTurn)
                state = rec.on_turn_end(state)
                assert state == RecoveryState()


@pytest.mark.parametrize(
    ("limits", "steps"),
    [
        (ModelLimits(max_output=64_000), [8_000, 16_000, 64_000]),
        (ModelLimits(max_output=16_000), [8_000, 16_000]),
        (ModelLimits(max_output=12_000), [8_000, 12_000]),
        (ModelLimits(max_output=4_000), [4_000]),
    ],
)
def test_a_cut_reply_is_asked_again_with_the_next_limit_up_to_the_models_own(
    limits: ModelLimits, steps: list[int]
) -> None:
    me, state = spec(models={"one": limits}), RecoveryState()
    seen = [rec.output_limit(state, me)]
    while (higher := rec.next_output_limit(state, me)) is not None:
        state = RecoveryState(output_limit=higher, escalated=True)
        seen.append(rec.output_limit(state, me))
    assert seen == steps


def test_at_the_highest_limit_the_model_is_asked_to_go_on_twice() -> None:
    assert rec.after_cut(RecoveryState()) == Continue(1)
    assert rec.after_cut(RecoveryState(continuations=1)) == Continue(2)
    assert isinstance(rec.after_cut(RecoveryState(continuations=2)), EndTurn)


def test_a_reply_that_ends_normally_sets_limit_and_continuations_back_a_cut_one_does_not() -> None:
    raised = RecoveryState(output_limit=16_000, escalated=True, continuations=1)
    whole, cut = rec.on_reply(raised, cut=False), rec.on_reply(raised, cut=True)
    assert (whole.output_limit, whole.escalated, whole.continuations, whole.cut) == (0, False, 0, False)
    assert (cut.output_limit, cut.escalated, cut.continuations, cut.cut) == (16_000, True, 1, True)
