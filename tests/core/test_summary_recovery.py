"""What follows when a call of a summary fails, whom it asks, and whether it rides on the cached prefix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.core.agent_states import Life
from tests.core.context_histories import Session, call, result, said, text

from callboard.core.context.cache.state import CacheState
from callboard.core.context.summary.request import riding_text
from callboard.core.context.summary.riding import (
    MOST_KEPT,
    Choice,
    chunk_tokens,
    may_ride,
    newest_sent,
    replies_behind,
    rides,
    riding,
)
from callboard.core.context.view.conversation import Conversation
from callboard.core.summary_recovery import (
    KEY,
    TRANSIENT,
    Next,
    Tried,
    after_bad_answer,
    after_fault,
    models_for_summary,
)
from callboard.words import events as ev
from callboard.words.context import SummaryWanted
from callboard.words.specs import AgentSpec, ModelLimits
from callboard.words.values import Fault

SPEC = AgentSpec(name="lead", kind="lead", agent_type="lead", model="one", attempts=3, max_wait=60.0)


def fault(kind: str, **more: Any) -> Fault:
    return Fault.model_validate({"kind": kind, **more})


@pytest.mark.parametrize(
    ("fault_", "tried", "next_"),
    [
        (fault("too_long"), Tried(1, rides=True), Next("plain")),
        (fault("too_long"), Tried(1), Next("smaller")),
        (fault("too_long"), Tried(1, may_shrink=False), Next("give_up")),
        (fault("server"), Tried(1), Next("again", 0.5)),
        (fault("overloaded"), Tried(2), Next("again", 1.0)),
        (fault("connection"), Tried(3, models_left=True), Next("model")),
        (fault("silence"), Tried(3), Next("give_up")),
        (fault("lost"), Tried(3, rides=True), Next("plain")),
        (fault("rate_limited", retry_after=20), Tried(1), Next("again", 20)),
        (fault("rate_limited", retry_after=0), Tried(1), Next("again", 0.5)),
        (fault("rate_limited", retry_after=61), Tried(1, models_left=True), Next("model")),
        (fault("rate_limited", retry_after=3_600), Tried(1), Next("give_up")),
        (fault("not_found"), Tried(1, models_left=True), Next("model")),
        (fault("invalid"), Tried(1), Next("give_up")),
        (fault("credentials"), Tried(1, rides=True, models_left=True), Next("give_up")),
    ],
)
def test_b21_what_follows_a_failed_call(fault_: Fault, tried: Tried, next_: Next) -> None:
    assert after_fault(fault_, tried, SPEC, 0.0) == next_


def test_b21_no_fault_is_tried_again_for_ever() -> None:
    for kind in (*TRANSIENT, *KEY, "too_long", "not_found", "invalid"):
        assert after_fault(fault(kind), Tried(3, may_shrink=False), SPEC, 1.0).do == "give_up"


def test_an_answer_that_is_no_summary_is_asked_for_in_another_way_while_there_is_one() -> None:
    assert after_bad_answer(Tried(1, rides=True)).do == "plain"
    assert after_bad_answer(Tried(1, models_left=True)).do == "model"
    assert after_bad_answer(Tried(1)).do == "give_up"


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


def choice(**more: Any) -> Choice:
    return replace(Choice(OWN, None, WARM, 1_010.0), **more)


def test_a_summary_by_the_same_model_rides_on_a_warm_prefix() -> None:
    view = worked().view
    assert rides(view, wanted(view), choice())


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
    assert may_ride(view, wanted(view), choice())
    assert not may_ride(view, wanted(view, **asked), choice(**more))


def test_the_model_is_told_how_many_of_its_replies_stay_and_does_not_count_too_far() -> None:
    view = worked().view
    kept = replies_behind(view, 4)
    assert kept > 1
    assert may_ride(view, wanted(view, last=4), choice())
    assert f"newest {kept} replies" in riding_text(wanted(view, last=4), kept=kept)
    assert "newest reply" in riding_text(wanted(view), kept=1)
    assert "stay as they are" not in riding_text(wanted(view), kept=0)
    longer = worked()
    for _ in range(MOST_KEPT + 1):
        longer.step("ok")
    assert not may_ride(longer.view, wanted(longer.view, last=view.messages[-1].id), choice())


def test_the_cheaper_is_taken() -> None:
    view = worked().view
    cheap = ModelLimits(price_input=0.1, price_output=0.5)
    dear = ModelLimits(price_input=15.0, price_output=75.0)
    assert not rides(view, wanted(view), choice(small=cheap))
    assert rides(view, wanted(view), choice(small=dear))
    cold = choice(small=dear, cache=CacheState(used_at=1_000.0, read=100))
    assert may_ride(view, wanted(view), cold)
    assert rides(view, wanted(view), cold)
    barely = OWN.model_copy(update={"price_read": 3.0})
    assert may_ride(view, wanted(view), choice(own=barely))
    assert not rides(view, wanted(view), choice(own=barely)), "where reads are no cheaper, the newest exchange is saved"


def test_nothing_was_sent_before_the_first_reply() -> None:
    assert newest_sent(Session().user(said("go")).view) is None
    assert newest_sent(Conversation()) is None
    assert not may_ride(Conversation(), wanted(worked().view), choice())


def test_the_riding_request_is_the_newest_one_with_a_mark_where_it_ended_and_the_question_last() -> None:
    session = Session().user(said("go")).reply(call("a")).user(result("a", "r")).reply(call("b")).user(result("b", "s"))
    wires = riding(session.view, "SUM UP").copy()
    plain = [message.wire for message in session.view.messages]
    assert wires[:2] == plain[:2]
    assert wires[2] == plain[2][:-3] + b',"cache_control":{"type":"ephemeral"}}]}'
    assert wires[3] == plain[3]
    assert wires[4] == plain[4][:-2] + b',{"type":"text","text":"SUM UP"}]}'
    between = riding(session.reply(text("done")).view, "SUM UP")
    assert between[4] == plain[4][:-3] + b',"cache_control":{"type":"ephemeral"}}]}'
    assert between[-1] == b'{"role":"user","content":[{"type":"text","text":"SUM UP"}]}'


def test_what_one_call_is_given_leaves_room_for_the_rest_of_its_request() -> None:
    asked = wanted(worked().view)
    assert chunk_tokens(ModelLimits(), asked) == 100_000
    assert chunk_tokens(ModelLimits(window=10_000), asked) == 4_320
    assert chunk_tokens(ModelLimits(window=100), asked) == 1
