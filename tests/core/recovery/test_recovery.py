"""What to do when a model call fails: the table in `recovery`'s docstring, row by row, and the laws of its numbers.

Each row of the docstring has its case here and each case its row; each kind of fault and stop reason stands in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as hy
from tests.core.agent.agent_states import Life, facts, table
from tests.core.recovery.failures import FINAL, NOW, TRANSIENT, TWO, after, failed, is_end, is_retry, is_switch, spec

from callboard.core.agent.decide import decide
from callboard.core.context.view.messages import make_block, make_message
from callboard.core.recovery import retry_policy as rec
from callboard.core.recovery.fallback import ModelDemand, next_model
from callboard.core.recovery.refused_blocks import refused_block
from callboard.core.recovery.retry_policy import RecoveryState, back_off, recover
from callboard.types import events as ev
from callboard.types.agent_spec import AgentSpec, ModelLimits
from callboard.types.rate_limits import PROBE_AFTER
from callboard.types.records import FaultKind, Usage
from callboard.types.steps import AskModel, Continue, EndTurn, LearnLimits, PlanRetry, React, Step, SwitchModel, Wait

# The table


def parked(wait: float) -> Step:
    """A wait until the next try, which is a minute away whatever wait the service named."""
    why = f"rate_limited: said; the service asks for a wait of {wait:,.0f} s"
    return PlanRetry(NOW + PROBE_AFTER, 1, parked=True, why=why)


def backs_off(kind: str) -> bool:
    first, second = after(failed(kind), of=spec(**TWO)), after(failed(kind), failed(kind), of=spec())
    return is_retry(first, 0.5) and is_retry(second, 1.0) and second.attempt == 2


def uses_up(check: Callable[[Step], bool], of: AgentSpec) -> bool:
    """What follows the last attempt, whatever the last fault that may pass is."""
    return all(check(after(failed("server"), failed("bad_reply"), failed(kind), of=of)) for kind in TRANSIENT)


def stopped(reason: str, times: int = 1, **me: Any) -> Step:
    """What follows so many replies in a row that end with this stop reason, each with some text."""
    life = Life.begun("lead", **me).prompted("go")
    for _ in range(times):
        life = life.said("words", stop=reason)
        if life.state.model.recovery.cut and isinstance(step := decide(life.state, facts()), Continue):
            life = life.on(ev.ContinuationAsked, count=step.count)
    return decide(life.state, facts())


def highest(limit: int = 8_000) -> dict[str, Any]:
    return {"models": {"one": ModelLimits(max_output=limit)}}


def goes_back(reason: str) -> bool:
    return all(isinstance(stopped(reason, times), AskModel) for times in (1, rec.MAX_PAUSES))


def leaves_out_an_image() -> bool:
    fault = failed("invalid", message="messages.0.content.0.image.source.url: no such file")
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    message = make_message(7, "user", (make_block(image, "person", 0.0),), "turn")
    edit = refused_block(fault.fault, [message], "one")
    done = rec.on_left_out(rec.on_failed(RecoveryState(), fault))
    return edit is not None and (edit.message, edit.block) == (7, 0) and (done.failure, done.attempts) == (None, 0)


CASES: dict[tuple[str, str], Callable[[], bool]] = {
    ("rate_limited", "a wait longer than max_wait, with a fallback"): lambda: is_switch(
        after(failed("rate_limited", retry_after=61.0), of=spec(**TWO))
    ),
    ("rate_limited", "a wait longer than max_wait, without one"): lambda: all(
        after(*[failed("rate_limited", retry_after=wait)] * 9, of=spec(attempts=1)) == parked(wait)
        for wait in (61.0, 3_600.0, 31_536_000.0)
    ),
    ("rate_limited", "another wait is requested, attempts left"): lambda: all(
        is_retry(after(failed("rate_limited", retry_after=wait), of=spec()), wait) for wait in (0.1, 7.5, 60.0)
    ),
    ("rate_limited", "no wait is requested (or 0), attempts left"): lambda: (
        backs_off("rate_limited") and is_retry(after(failed("rate_limited", retry_after=0.0), of=spec()), 0.5)
    ),
    ("overloaded", "the first in a row, attempts left"): lambda: (
        is_retry(after(failed("overloaded"), of=spec(**TWO)), 0.5)
        and is_retry(
            after(failed("overloaded"), failed("server"), failed("overloaded"), of=spec(attempts=4, **TWO)), 2.0
        )
    ),
    ("overloaded", "the second in a row, with a fallback"): lambda: is_switch(
        after(*[failed("overloaded")] * 2, of=spec(**TWO))
    ),
    ("overloaded", "the second, without one, attempts left"): lambda: backs_off("overloaded"),
    ("server", "attempts left"): lambda: backs_off("server"),
    ("connection", "attempts left"): lambda: backs_off("connection"),
    ("silence", "attempts left"): lambda: backs_off("silence"),
    ("bad_reply", "attempts left"): lambda: backs_off("bad_reply"),
    ("invalid", "the service says x-should-retry: true"): lambda: (
        is_retry(after(failed("invalid", retry=True), of=spec()), 0.5)
        and is_end(after(*[failed("invalid", retry=True)] * 3, of=spec()), "failed")
    ),
    ("any of these", "attempts used up, with a fallback"): lambda: uses_up(is_switch, spec(**TWO)),
    ("any of these", "attempts used up, without one"): lambda: uses_up(lambda step: is_end(step, "failed"), spec()),
    ("any of these", "the service says x-should-retry: false"): lambda: all(
        is_end(after(failed(kind, retry=False), of=spec()), "failed")
        and is_switch(after(failed(kind, retry=False), of=spec(**TWO)))
        for kind in TRANSIENT
    ),
    ("lost", "always"): lambda: (
        after(*[failed("lost")] * 20, of=spec(attempts=1))
        == PlanRetry(NOW, 0, parked=False, why="the process died during the call")
    ),
    ("too_long", "it states a smaller window than is known"): lambda: (
        after(failed("too_long", window=32_000), of=spec()) == LearnLimits("one", None, 32_000, "too_long: said")
        and isinstance(
            after(failed("too_long", window=32_000), of=spec(models={"one": ModelLimits(window=32_000)})), React
        )
    ),
    ("invalid", "it states a lower output limit than is known"): lambda: (
        after(failed("invalid", max_output=9_000), of=spec()) == LearnLimits("one", 9_000, None, "invalid: said")
        and is_end(after(failed("invalid", max_output=9_000), of=spec(**highest(9_000))), "failed")
    ),
    ("invalid", "it names an image or document of the view"): leaves_out_an_image,
    ("max_tokens", "in a call whose input grew with the limit"): lambda: (
        rec.grows(RecoveryState(cut_call="write_file", cut_characters=10), "write_file", 20)
        and not rec.grows(RecoveryState(cut_call="write_file", cut_characters=10), "bash", 20)
        and not rec.grows(RecoveryState(), "write_file", 20)
        and rec.after_cut(RecoveryState(cut_call="write_file")) == Continue(1, "write_file")
    ),
    ("too_long", "no compaction yet"): lambda: (
        recover(failed("too_long"), (state := rec.on_failed(RecoveryState(), failed("too_long"))), spec(), now=NOW)
        == React("said")
        and state.attempts == 0
    ),
    ("too_long", "already compacted"): lambda: is_end(
        recover(failed("too_long"), RecoveryState(reacted=True), spec(**TWO), now=NOW), "overflow"
    ),
    ("not_found", "with a fallback"): lambda: is_switch(after(failed("not_found"), of=spec(**TWO))),
    ("not_found", "without one"): lambda: is_end(after(failed("not_found"), of=spec()), "failed"),
    **{
        (kind, when): lambda kind=kind: is_end(after(failed(kind), of=spec(attempts=10, **TWO)), "failed")
        for kind, when in [
            ("spend_limit", "always"),
            ("credentials", "always"),
            ("payment", "always"),
            ("invalid", "in all other cases"),
        ]
    },
    ("max_tokens", "below the highest output limit"): lambda: (
        rec.next_output_limit(RecoveryState(), spec(**highest(64_000))) == 16_000
    ),
    ("max_tokens", "at the highest, up to 2 in a row"): lambda: (
        rec.next_output_limit(RecoveryState(), spec(**highest())) is None
        and stopped("max_tokens", 1, **highest()) != stopped("max_tokens", 2, **highest())
        and all(isinstance(stopped("max_tokens", times, **highest()), AskModel) for times in (1, 2))
    ),
    ("max_tokens", "at the highest, a third in a row"): lambda: is_end(stopped("max_tokens", 3, **highest()), "limit"),
    ("pause_turn", "up to 10 in a row"): lambda: goes_back("pause_turn"),
    ("compaction", "up to 10 in a row"): lambda: goes_back("compaction"),
    ("pause_turn", "an 11th in a row"): lambda: is_end(stopped("pause_turn", 11), "limit"),
    ("compaction", "an 11th in a row"): lambda: is_end(stopped("compaction", 11), "limit"),
    ("model_context_window_exceeded", "always"): lambda: rec.is_too_long("model_context_window_exceeded"),
    ("refusal", "always"): lambda: is_end(stopped("refusal"), "refused"),
    ("tool_use, no stop reason", "the reply has no call"): lambda: (
        is_end_of_turn(stopped("tool_use")) and is_end_of_turn(stopped(""))
    ),
    ("any other stop reason", "always"): lambda: is_end_of_turn(stopped("a_new_reason")),
}


def is_end_of_turn(step: Step) -> bool:
    return step == EndTurn("end")


@pytest.mark.parametrize(("what", "when", "action"), table(rec.__doc__))
def test_the_row(what: str, when: str, action: str) -> None:
    assert CASES[what, when](), action


def test_the_table_has_a_case_for_each_row_and_a_row_for_each_case_and_each_kind_of_fault_and_stop_reason() -> None:
    rows = [(what, when) for what, when, _ in table(rec.__doc__)]
    assert sorted(rows) == sorted(CASES)
    told = {what for what, _ in rows}
    assert set(get_args(FaultKind)) <= told
    assert rec.KNOWN_STOPS - told == {"end_turn", "stop_sequence", "tool_use"}, "these are plain ends"
    page = (Path(__file__).parents[3] / "docs" / "recovery.md").read_text("utf-8")
    assert [word for word in told if f"`{word}`" not in page and " " not in word] == []


@pytest.mark.parametrize("kind", TRANSIENT)
def test_what_passes_is_tried_again_and_then_given_up_with_the_cause(kind: str) -> None:
    me = spec(attempts=3)
    assert after(failed(kind), of=me) == PlanRetry(NOW + 0.5, 1, parked=False, why=f"{kind}: said")
    assert after(failed(kind), failed(kind), of=me) == PlanRetry(NOW + 1.0, 2, parked=False, why=f"{kind}: said")
    end = after(failed(kind), failed(kind, NOW + 1), failed(kind, NOW + 7), of=me)
    assert end.reason == "failed"
    assert end.why.startswith(f"model unavailable: 3 attempts in 7 s ({kind}: said). ")
    assert "send a message to try again" in end.why.lower(), "a person knows what to do next"


def test_a_wait_that_the_service_asks_for_is_kept_to_the_second() -> None:
    assert after(failed("rate_limited", retry_after=7.5), of=spec()).until == NOW + 7.5
    assert after(failed("rate_limited", retry_after=60.0), of=spec()).parked is False


def test_a_longer_wait_parks_the_agent_and_uses_up_no_attempt() -> None:
    slow = failed("rate_limited", retry_after=61.0)
    assert after(*[slow] * 9, of=spec(attempts=1)) == parked(61.0)


def test_retry_after_of_anything_but_a_rate_limit_is_not_heeded() -> None:
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
    assert after(server, server, server, of=me) == SwitchModel("two", "server: said")
    twice = after(*[server] * 6, of=me)
    assert "6 attempts in 0 s, at last with two" in twice.why


def test_a_model_outside_the_chain_has_no_fallback() -> None:
    state = RecoveryState(model="elsewhere", attempts=3, overloads_in_a_row=3)
    assert isinstance(recover(failed("overloaded"), state, spec(fallback_models=("two",)), now=NOW), EndTurn)


def test_a_call_whose_process_died_is_made_again_at_once_and_counts_for_nothing() -> None:
    lost = [failed("lost")] * 20
    assert after(*lost, of=spec(attempts=1)) == PlanRetry(NOW, 0, parked=False, why="the process died during the call")


def test_a_prompt_too_long_is_compacted_once_and_then_is_an_overflow() -> None:
    state = rec.on_failed(RecoveryState(), failed("too_long"))
    assert recover(failed("too_long"), state, spec(), now=NOW) == React("said")
    assert state.attempts == 0
    again = recover(failed("too_long"), RecoveryState(reacted=True), spec(), now=NOW)
    assert again == EndTurn("overflow", "the conversation does not fit, even compacted (too_long: said)")


def test_a_success_between_two_rejections_allows_another_reaction() -> None:
    state = rec.on_reply(RecoveryState(reacted=True), cut=False)
    assert isinstance(recover(failed("too_long"), state, spec(), now=NOW), React)


def test_a_clock_set_back_between_two_attempts_gives_no_negative_duration() -> None:
    attempts = [failed("connection", at=NOW + 3_600), *[failed("connection", at=NOW)] * 2]
    end = after(*attempts, of=spec(attempts=3))
    assert is_end(end, "failed")
    assert end.why.startswith("model unavailable: 3 attempts (connection: said). ")


@pytest.mark.parametrize("kind", FINAL)
def test_what_only_a_person_can_mend_ends_the_turn_and_says_what_to_do(kind: str) -> None:
    end = after(failed(kind, status=400, type="some_error"), of=spec(attempts=10))
    assert end == EndTurn("failed", f"{rec.FINAL[kind]} (some_error 400: said)")


def test_every_kind_of_fault_is_looked_at_here() -> None:
    assert set(get_args(FaultKind)) == {*TRANSIENT, *FINAL, "too_long", "lost"}


def test_a_fault_without_words_is_told_by_its_kind() -> None:
    assert after(failed("connection", message=""), of=spec()).why == "connection"


@given(hy.integers(0, 60), hy.floats(0, 1))
def test_back_off_doubles_up_to_32_s_plus_a_quarter(attempt: int, draw: float) -> None:
    plain = min(0.5 * 2**attempt, 32.0)
    assert plain <= back_off(attempt, draw) <= plain * 1.25
    assert back_off(attempt, draw) <= back_off(attempt + 1, draw) <= 40.0


# What an attempt may be billed for


def test_a_try_again_says_what_the_failed_attempt_may_be_billed_for() -> None:
    used = Usage(input_tokens=1_000, cache_read_input_tokens=200, output_tokens=7)
    known = after(failed("connection", usage=used, may_bill=True), of=spec())
    assert known.why == "connection: said; the attempt may be billed: 1,200 tokens in, 7 out"
    assert after(failed("silence", may_bill=True), of=spec()).why == "silence: said; the attempt may be billed"
    assert "billed" not in after(failed("rate_limited"), of=spec()).why
    switch = after(*[failed("overloaded", usage=used)] * 2, of=spec(**TWO))
    assert switch.why.endswith("the attempt may be billed: 1,200 tokens in, 7 out")
    lost = after(failed("lost", may_bill=True), of=spec())
    assert lost.why == "the process died during the call; the attempt may be billed"


# The chain of models

SMALL = ModelLimits(window=50_000, max_output=8_000)
MUTE = ModelLimits(tools=False)
LARGE = ModelLimits(window=1_000_000, max_output=64_000)


def chain(**limits: ModelLimits) -> AgentSpec:
    return spec(models=limits, fallback_models=tuple(limits), tools=("bash",))


@pytest.mark.parametrize(
    ("demand", "skipped"),
    [
        (ModelDemand(10_000, 8_000), ("mute: it cannot call tools",)),
        (
            ModelDemand(42_001, 8_000),
            ("mute: it cannot call tools", "small: its window of 50,000 tokens is too small for 50,001"),
        ),
        (
            ModelDemand(10_000, 16_000, raised=True),
            (
                "mute: it cannot call tools",
                "small: it writes 8,000 tokens at most, and the reply needs more than it was cut at",
            ),
        ),
        (ModelDemand(10_000, 16_000), ("mute: it cannot call tools",)),
    ],
)
def test_a_model_that_cannot_take_over_is_skipped_and_named(demand: ModelDemand, skipped: tuple[str, ...]) -> None:
    me = chain(mute=MUTE, small=SMALL, large=LARGE)
    step = after(*[failed("overloaded")] * 2, of=me, demand=demand)
    assert step == SwitchModel("large" if len(skipped) > 1 else "small", "overloaded: said", skipped)
    without = me.model_copy(update={"tools": ()})
    assert next_model("one", without, demand).model == "mute", "who has no tools needs no model that calls them"


def test_when_nobody_can_take_over_the_end_names_them_all_and_why() -> None:
    me = chain(mute=MUTE, small=SMALL)
    asked = ModelDemand(100_000, 8_000)
    assert isinstance(after(*[failed("overloaded")] * 2, of=me, demand=asked), PlanRetry)
    for end in (after(*[failed("server")] * 3, of=me, demand=asked), after(failed("not_found"), of=me, demand=asked)):
        assert is_end(end, "failed")
        assert "No other model can take over (mute: it cannot call tools; small: its window of 50,000" in end.why


def test_each_model_of_a_chain_stands_in_it_once() -> None:
    me = spec(fallback_models=("one", "two", "two"))
    assert [next_model(name, me, ModelDemand()).model for name in ("one", "two", "elsewhere")] == ["two", "", ""]


def test_the_output_limit_is_never_above_that_of_the_model_in_use() -> None:
    me = spec(models={"two": ModelLimits(max_output=4_000)}, **TWO)
    assert rec.output_limit(RecoveryState(model="two"), me) == 4_000
    assert rec.output_limit(RecoveryState(model="two", output_limit=16_000), me) == 4_000
    assert rec.next_output_limit(RecoveryState(model="two"), me) is None


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


@pytest.mark.parametrize("kind", [*rec.FINAL, *rec.NEXT])
def test_a_model_reads_why_a_turn_failed_without_advice_for_a_person(kind: str) -> None:
    state = RecoveryState(attempts=99, tried=99)
    for me in (spec(), spec(**TWO)):
        step = recover(failed(kind), state, me, now=NOW, demand=ModelDemand(tokens=10**9))
        assert isinstance(step, EndTurn)
        words = rec.without_advice(step.why)
        assert len(words) < len(step.why)
        assert failed(kind).fault.message in words
        for advice in ("message to", "/model", "resume", "ANTHROPIC", "recovery.", "fallback_models", "settle"):
            assert advice not in words


@given(hy.floats(0.5, 40), hy.floats(-7_200, 7_200))
def test_a_back_off_never_gets_longer_than_planned_when_the_clock_is_set(planned: float, moved: float) -> None:
    life = Life.begun("lead").prompted("go").asked()
    life = life.on(ev.CallFailed, ordinal=1, attempt=1, model="one", fault=failed("server").fault)
    at = 1_000_000.0
    life = life.on(ev.RetryPlanned, at=at, until=at + planned, attempt=1)
    now = at + moved
    step = decide(life.state, facts(now=now))
    waits = step.until - now if isinstance(step, Wait) and step.until is not None else 0.0
    assert waits <= planned + 1e-3
    assert isinstance(step, AskModel) is not (at <= now < at + planned)
