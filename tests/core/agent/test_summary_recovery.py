"""What follows when a call of a summary fails, whom it asks, and whether it rides on the cached prefix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as hy
from tests.core.agent.agent_states import Life, table
from tests.core.context.context_histories import Session, call, result, said, text

from callboard.core.agent.rules import compaction as summary_recovery
from callboard.core.agent.rules.compaction import (
    NextSummary,
    SummaryAttempts,
    after_bad_answer,
    after_fault,
    after_stop,
    models_for_summary,
)
from callboard.core.context.cache.tracker import CacheState
from callboard.core.context.summary.request import shared_prefix_prompt
from callboard.core.context.summary.shared_prefix import (
    MOST_KEPT,
    SharingFacts,
    chunk_tokens,
    may_share_prefix,
    newest_sent,
    shared_prefix_messages,
    should_share_prefix,
    unsummarized_replies,
)
from callboard.core.context.view.conversation import Conversation
from callboard.types import events as ev
from callboard.types.agent_spec import AgentSpec, ModelLimits
from callboard.types.messages import SummaryWanted
from callboard.types.records import Fault, FaultKind

SPEC = AgentSpec(name="lead", kind="lead", agent_type="lead", model="one", attempts=3, max_wait=60.0)
PATIENT = SPEC.model_copy(update={"attempts": 10})


def fault(kind: str, **more: Any) -> Fault:
    return Fault.model_validate({"kind": kind, **more})


def all_of(kinds: Sequence[str], tried: SummaryAttempts, do: str, **more: Any) -> bool:
    return all(after_fault(fault(kind, **more), tried, SPEC, 0.0).do == do for kind in kinds)


PASSING = ("rate_limited", "overloaded", "server", "connection", "silence", "bad_reply", "lost")
ANSWERS = "not_found, invalid, unusable answer"
LONG_WAIT = fault("rate_limited", retry_after=61)


def used_up(tried: SummaryAttempts, do: str) -> bool:
    """With no attempts left, or told that none is of use, or told to wait too long."""
    used = replace(tried, attempts=3)
    return (
        all_of(PASSING, used, do)
        and all_of(PASSING, tried, do, retry=False)
        and all_of(["invalid"], used, do, retry=True)
        and after_fault(LONG_WAIT, tried, SPEC, 0.0).do == do
    )


def unusable(tried: SummaryAttempts, do: str) -> bool:
    return all_of(["not_found", "invalid"], tried, do) and after_bad_answer(tried).do == do


def backs_off(*kinds: str, **more: Any) -> bool:
    faults = [fault(kind, **more) for kind in kinds]
    return all(
        after_fault(one, SummaryAttempts(attempts, rides=rides_), SPEC, draw) == NextSummary("again", wait)
        for one in faults
        for attempts, draw, wait in [(1, 0.0, 0.5), (2, 0.0, 1.0), (2, 1.0, 1.25)]
        for rides_ in (False, True)
    )


ALONE, LEFT, RIDES = (
    SummaryAttempts(1),
    SummaryAttempts(1, models_left=True),
    SummaryAttempts(1, rides=True, models_left=True),
)

CASES: dict[tuple[str, str], Callable[[], bool]] = {
    ("too_long", "shared prefix"): lambda: all_of(["too_long"], RIDES, "plain"),
    ("too_long", "separate, its data can be cut"): lambda: all_of(["too_long"], SummaryAttempts(3), "smaller"),
    ("too_long", "separate, its data cannot be cut"): lambda: all_of(
        ["too_long"], replace(LEFT, may_shrink=False), "give_up"
    ),
    ("rate_limited", "attempts left, a wait of up to max_wait"): lambda: (
        after_fault(fault("rate_limited", retry_after=60), ALONE, SPEC, 0.0) == NextSummary("again", 60)
        and backs_off("rate_limited")
        and backs_off("rate_limited", retry_after=0)
    ),
    ("rate_limited", "a wait longer than max_wait"): lambda: (
        after_fault(LONG_WAIT, LEFT, SPEC, 0.0).do == "model"
        and after_fault(LONG_WAIT, ALONE, SPEC, 0.0).do == "give_up"
    ),
    ("overloaded, connection", "attempts left"): lambda: backs_off("overloaded", "connection"),
    ("server", "attempts left, at most 4 for a summary"): lambda: (
        backs_off("server")
        and after_fault(fault("server"), SummaryAttempts(3), PATIENT, 0.0).do == "again"
        and after_fault(fault("server"), SummaryAttempts(4), PATIENT, 0.0).do == "give_up"
        and after_fault(fault("server"), SummaryAttempts(1, failed_before=True), PATIENT, 0.0).do == "give_up"
        and after_fault(fault("overloaded"), SummaryAttempts(9, failed_before=True), PATIENT, 0.0).do == "again"
    ),
    ("silence, bad_reply, lost", "attempts left"): lambda: backs_off("silence", "bad_reply", "lost"),
    ("invalid", "the service says x-should-retry: true"): lambda: backs_off("invalid", retry=True),
    ("any of these", "no attempts left, shared prefix"): lambda: used_up(RIDES, "plain"),
    ("any of these", "no attempts left, a model is left"): lambda: used_up(LEFT, "model"),
    ("any of these", "no attempts left, no model is left"): lambda: used_up(ALONE, "give_up"),
    ("any of these", "the service says x-should-retry: false"): lambda: all_of(PASSING, LEFT, "model", retry=False),
    (ANSWERS, "shared prefix"): lambda: unusable(RIDES, "plain"),
    (ANSWERS, "separate, a model is left"): lambda: unusable(LEFT, "model"),
    (ANSWERS, "separate, no model is left"): lambda: unusable(ALONE, "give_up"),
    ("credentials, payment, spend_limit", "always"): lambda: all(
        all_of(["credentials", "payment", "spend_limit"], tried, "give_up") for tried in (ALONE, LEFT, RIDES)
    ),
}


@pytest.mark.parametrize(("what", "when", "action"), table(summary_recovery.__doc__))
def test_the_row(what: str, when: str, action: str) -> None:
    assert CASES[what, when](), action


def test_the_table_has_a_case_for_each_row_a_row_for_each_case_and_each_kind_of_fault() -> None:
    rows = [(what, when) for what, when, _ in table(summary_recovery.__doc__)]
    assert sorted(rows) == sorted(CASES)
    told = {kind for what, _ in rows for kind in what.split(", ")}
    assert set(get_args(FaultKind)) <= told


@given(hy.lists(hy.sampled_from([*get_args(FaultKind), "unusable"]), max_size=60), hy.integers(0, 4), hy.booleans())
def test_whatever_fails_a_summary_is_given_up_after_a_bounded_number_of_calls(
    happenings: list[str], models: int, rides_: bool
) -> None:
    """As the engine does it: riding first, then with each model, the data halved at most five times."""
    left, calls, halved, attempts, riding_ = models, 0, 0, 0, rides_
    for what in happenings:
        calls, attempts = calls + 1, attempts + 1
        tried = SummaryAttempts(attempts, rides=riding_, may_shrink=halved < 5, models_left=left > 0)
        found = after_bad_answer(tried) if what == "unusable" else after_fault(fault(what), tried, SPEC, 1.0)
        if found.do == "again":
            assert 0.5 <= found.wait <= 40.0
            continue
        attempts = 0
        if found.do == "give_up":
            break
        assert (found.do, riding_) != ("plain", False)
        riding_, halved = False, halved + (found.do == "smaller")
        left -= found.do == "model"
        assert left >= 0
    assert calls <= SPEC.attempts * (models + 2) + SPEC.attempts * 5


def test_an_answer_that_ended_where_the_window_ends_is_asked_for_with_less() -> None:
    window = "model_context_window_exceeded"
    for tried in (
        SummaryAttempts(1, rides=True),
        SummaryAttempts(1),
        SummaryAttempts(1, may_shrink=False, models_left=True),
    ):
        assert after_stop(window, tried) == after_fault(fault("too_long"), tried, SPEC, 1.0)
        assert after_stop("max_tokens", tried) == after_bad_answer(tried)
    assert after_stop(window, SummaryAttempts(1)).do == "smaller"


def test_an_answer_that_is_no_summary_is_asked_for_in_another_way_while_there_is_one() -> None:
    assert after_bad_answer(SummaryAttempts(1, rides=True)).do == "plain"
    assert after_bad_answer(SummaryAttempts(1, models_left=True)).do == "model"
    assert after_bad_answer(SummaryAttempts(1)).do == "give_up"


def test_the_small_model_is_asked_first_then_the_agents_own_then_its_fallbacks_each_once() -> None:
    life = Life.begun(small_model="small", fallback_models=("two", "small", "three"))
    assert models_for_summary(life.state) == ("small", "one", "two", "three")
    switched = life.on(ev.ModelSwitched, model="two")
    assert models_for_summary(switched.state) == ("small", "two", "three")
    assert models_for_summary(Life.begun().on(ev.ModelSwitched, model="elsewhere").state) == ("elsewhere",)


# Riding


OWN = ModelLimits(cache_minimum=100)
WARM = CacheState(used_at=1_000.0, read=4_000, written=1_000)


def worked() -> Session:
    session = Session().user(said("go"))
    for _ in range(4):
        session.step("word " * 1_000)
    return session


def wanted(view: Conversation, **more: Any) -> SummaryWanted:
    given = {"stage": "summarize_all", "trigger": "auto", "message": view.messages[0].id, "last": 7}
    return SummaryWanted.model_validate({**given, **more})


def choice(**more: Any) -> SharingFacts:
    return replace(SharingFacts(OWN, None, WARM, 1_010.0), **more)


def test_a_summary_by_the_same_model_rides_on_a_warm_prefix() -> None:
    view = worked().view
    assert should_share_prefix(view, wanted(view), choice())


@pytest.mark.parametrize(
    ("asked", "more"),
    [
        ({"trigger": "reactive"}, {}),
        ({"message": 0}, {}),
        ({"message": 3}, {}),
        ({"input": "head"}, {}),
        ({}, {"now": 1_300.0}),
        ({}, {"cache": CacheState()}),
        ({}, {"cache": replace(WARM, revision=1)}),
        ({}, {"cache": replace(WARM, read=50, written=0)}),
        ({}, {"own": ModelLimits(window=5_000, cache_minimum=100)}),
    ],
)
def test_it_does_not_ride_where_the_prefix_would_not_be_found_or_not_fit(asked: Any, more: Any) -> None:
    view = worked().view
    assert may_share_prefix(view, wanted(view), choice())
    assert not may_share_prefix(view, wanted(view, **asked), choice(**more))


def test_the_model_is_told_how_many_of_its_replies_stay_and_does_not_count_too_far() -> None:
    view = worked().view
    kept = unsummarized_replies(view, 4)
    assert kept > 1
    assert may_share_prefix(view, wanted(view, last=4), choice())
    assert f"newest {kept} replies" in shared_prefix_prompt(wanted(view, last=4), replies_kept=kept)
    assert "newest reply" in shared_prefix_prompt(wanted(view), replies_kept=1)
    assert "stay as they are" not in shared_prefix_prompt(wanted(view), replies_kept=0)
    longer = worked()
    for _ in range(MOST_KEPT + 1):
        longer.step("ok")
    assert not may_share_prefix(longer.view, wanted(longer.view, last=view.messages[-1].id), choice())


def test_the_cheaper_is_taken() -> None:
    view = worked().view
    cheap = ModelLimits(price_input=0.1, price_output=0.5)
    dear = ModelLimits(price_input=15.0, price_output=75.0)
    assert not should_share_prefix(view, wanted(view), choice(small=cheap))
    assert should_share_prefix(view, wanted(view), choice(small=dear))
    cold = choice(small=dear, cache=CacheState(used_at=1_000.0, read=100))
    assert may_share_prefix(view, wanted(view), cold)
    assert should_share_prefix(view, wanted(view), cold)
    barely = OWN.model_copy(update={"price_read": 3.0})
    assert may_share_prefix(view, wanted(view), choice(own=barely))
    assert not should_share_prefix(view, wanted(view), choice(own=barely)), (
        "where reads are no cheaper, the newest exchange is saved"
    )


def test_nothing_was_sent_before_the_first_reply() -> None:
    assert newest_sent(Session().user(said("go")).view) is None
    assert newest_sent(Conversation()) is None
    assert not may_share_prefix(Conversation(), wanted(worked().view), choice())


def test_the_riding_request_is_the_newest_one_with_a_mark_where_it_ended_and_the_question_last() -> None:
    session = Session().user(said("go")).reply(call("a")).user(result("a", "r")).reply(call("b")).user(result("b", "s"))
    wires = shared_prefix_messages(session.view, "SUM UP").copy()
    plain = [message.wire for message in session.view.messages]
    assert wires[:2] == plain[:2]
    assert wires[2] == plain[2][:-3] + b',"cache_control":{"type":"ephemeral"}}]}'
    assert wires[3] == plain[3]
    assert wires[4] == plain[4][:-2] + b',{"type":"text","text":"SUM UP"}]}'
    between = shared_prefix_messages(session.reply(text("done")).view, "SUM UP")
    assert between[4] == plain[4][:-3] + b',"cache_control":{"type":"ephemeral"}}]}'
    assert between[-1] == b'{"role":"user","content":[{"type":"text","text":"SUM UP"}]}'


def test_what_one_call_is_given_leaves_room_for_the_rest_of_its_request() -> None:
    asked = wanted(worked().view)
    assert chunk_tokens(ModelLimits(), asked) == 100_000
    assert chunk_tokens(ModelLimits(window=10_000), asked) == 4_320
    assert chunk_tokens(ModelLimits(window=100), asked) == 1
