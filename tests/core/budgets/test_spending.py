"""What a session spent: each call once, at its model, to its agent and schedule, and the tree adds up."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as hy
from tests.core.agent.agent_states import Life
from tests.core.agent.decisions import prompted
from tests.core.agent.interpreter import Interpreter

from callboard.core.agent.apply import fold
from callboard.core.reports.spending import CallTotals, UnusedCalls, Why, life_spent, spending_of, total
from callboard.core.reports.spending import Life as LifeSpent
from callboard.types import events as ev
from callboard.types.messages import SummaryWanted
from callboard.types.records import Fault, Usage

SLOT = "schedule:cron_a:2027-01-15T08:00:00Z"


def used(number: int) -> Usage:
    """A usage that differs in every kind of token from that of any other number."""
    kinds = {"input_tokens": number, "cache_creation_input_tokens": 10 * number, "output_tokens": 1_000 * number}
    return Usage(**kinds, cache_read_input_tokens=100 * number, cost_usd=number / 8)


def spent(life: Life) -> CallTotals:
    return life_spent("alice", 1, life.events).spent


def failed(life: Life, kind: str, purpose: str = "turn", model: str = "one", **more: Any) -> Life:
    fault = Fault.model_validate({"kind": kind, **more})
    return life.on(ev.CallFailed, ordinal=1, attempt=1, model=model, purpose=purpose, fault=fault)


def test_a_reply_is_counted_as_the_model_that_was_asked_whatever_the_service_calls_it() -> None:
    life = prompted().asked().replied(usage=used(1), model="one-20260101")
    booked = life_spent("alice", 1, life.events).booked
    assert booked == {("", "one"): CallTotals(calls=1, usage=used(1))}


def test_spending_belongs_to_the_day_of_the_reader() -> None:
    """The journal spans midnight in UTC; each day of a zone has its own part, and the parts add up."""
    life = prompted()
    midnight = 1_800_057_600.0
    events = [event.model_copy(update={"at": midnight - 5.0}) for event in life.asked().replied(usage=used(1)).events]
    later = [
        event.model_copy(update={"at": midnight + 5.0}) for event in prompted().asked().replied(usage=used(2)).events
    ]
    spending = spending_of("s1", [life_spent("alice", 1, events), life_spent("bob", 1, later)])
    for hours, days in ((0, ["2027-01-16", "2027-01-15"]), (3, ["2027-01-16"]), (-3.5, ["2027-01-15"])):
        zone = timezone(timedelta(hours=hours))
        by_days = spending.days(lambda at, zone=zone: datetime.fromtimestamp(at, zone))
        assert [day.isoformat() for day in by_days] == days
        assert total(by_days.values()) == spending.total


UNUSED: Mapping[str, tuple[Callable[[Life], Life], Mapping[Why, UnusedCalls]]] = {
    "a reply that was cut": (
        lambda life: life.on(ev.ReplyDropped, ordinal=1, why="cut", usage=used(2)),
        {"cut": UnusedCalls(1, used(2))},
    ),
    "a call that failed and is billed": (
        lambda life: failed(life, "bad_reply", usage=used(3)),
        {"failed": UnusedCalls(1, used(3))},
    ),
    "a call that was refused": (
        lambda life: failed(life, "rate_limited"),
        {"failed": UnusedCalls(1)},
    ),
    "a call that broke off unseen": (
        lambda life: failed(life, "connection", may_bill=True),
        {"failed": UnusedCalls(1, unknown=1, at_most_usd=0.5)},
    ),
    "a call whose process ended": (
        lambda life: failed(life, "lost"),
        {"lost": UnusedCalls(1, unknown=1, at_most_usd=0.5)},
    ),
    "a call whose process ended, and what was held for it": (
        lambda life: failed(life, "lost", usage=used(4)),
        {"lost": UnusedCalls(1, used(4))},
    ),
    "a reply that was interrupted": (
        lambda life: life.on(ev.ReplyInterrupted, ordinal=1, text="so f"),
        {"interrupted": UnusedCalls(1, unknown=1, at_most_usd=0.5)},
    ),
}


@pytest.mark.parametrize("what", UNUSED)
def test_what_is_billed_and_not_used_is_told_by_its_reason(what: str) -> None:
    happens, unused = UNUSED[what]
    called = prompted().on(
        ev.ModelCalled, ordinal=1, attempt=1, model="one", max_tokens=9, reserved_tokens=900, reserved_usd=0.5
    )
    found = spent(happens(called))
    assert found.unused == unused
    assert (
        found.usage == found.all_unused.usage == total([CallTotals(usage=one.usage) for one in unused.values()]).usage
    )
    assert (found.calls, found.under_way) == (1, 0)


def test_a_call_whose_end_is_not_in_the_journal_is_under_way_with_what_is_held_for_it() -> None:
    life = prompted().on(ev.ModelCalled, ordinal=1, attempt=1, model="one", max_tokens=9, reserved_usd=0.25)
    found = spent(life)
    assert (found.calls, found.under_way, found.reserved_usd) == (1, 1, 0.25)
    assert spent(life.replied()).under_way == 0


def began(life: Life) -> Life:
    wanted = SummaryWanted(stage="summarize_all", message=1, last=2, trigger="auto", max_tokens=100, focus="", why="")
    return life.on(ev.SummaryBegan, wanted=wanted, revision=0)


def test_a_summary_is_paid_for_at_the_small_model_and_a_failed_one_is_no_use() -> None:
    life = began(prompted(small_model="small").said("hi"))
    kept = life.on(ev.ContextEdited, stage="summarize_all", revision=0, usage=used(5), why="full")
    assert life_spent("alice", 1, kept.events).booked["", "small"] == CallTotals(
        calls=1, usage=used(5), summaries=used(5)
    )
    tried = failed(life, "server", "summary", "small", usage=used(1)).on(ev.SummaryFailed, why="no", usage=used(6))
    lost = life_spent("alice", 1, tried.events).booked["", "small"]
    assert lost.unused == {"failed": UnusedCalls(1, used(1)), "summary": UnusedCalls(1, used(6))}
    assert lost.summaries == Usage()
    untouched = life.on(ev.ContextEdited, stage="clear_old_results", revision=0)
    assert spent(untouched) == spent(life), "an edit without a call costs nothing"


def test_calls_of_a_summary_that_are_recorded_are_counted_once_and_told_when_their_process_ends() -> None:
    life = began(prompted(small_model="small").said("hi"))
    call: dict[str, Any] = {"ordinal": 10_001, "attempt": 1, "model": "small", "max_tokens": 9, "purpose": "summary"}
    asked = life.on(ev.ModelCalled, **call, reserved_usd=0.5)
    assert (spent(asked).under_way, spent(asked).reserved_usd) == (1, 0.5)
    again = asked.on(ev.ModelCalled, **call, used=used(1))
    kept = again.on(ev.ContextEdited, stage="summarize_all", revision=0, usage=used(5), why="full")
    assert life_spent("alice", 1, kept.events).booked["", "small"] == CallTotals(
        calls=2, usage=used(5), summaries=used(5)
    )
    lost = spent(asked.on(ev.AgentResumed, pid=2))
    assert (lost.under_way, lost.unused) == (0, {"lost": UnusedCalls(1, unknown=1, at_most_usd=0.5)})


def test_tries_again_waits_switches_and_refusals_are_counted_apart() -> None:
    life = failed(prompted().asked(), "overloaded")
    life = life.on(ev.RetryPlanned, until=1.0, attempt=2).on(ev.RetryPlanned, until=9.0, attempt=2, parked=True)
    life = life.on(ev.ModelSwitched, model="two").on(ev.ModelCalled, ordinal=1, attempt=2, model="two", max_tokens=9)
    life = life.replied(usage=used(1))
    life = life.on(ev.BudgetReached, budget="session", kind="tokens", limit=1, spent=1, wanted=1)
    found = spent(life)
    assert (found.calls, found.retries, found.waits, found.switches, found.refused) == (2, 1, 1, 1, 1)
    by_model = {model: one for (_, model), one in life_spent("alice", 1, life.events).booked.items()}
    assert (by_model["one"].calls, by_model["one"].usage) == (1, Usage())
    assert (by_model["two"].calls, by_model["two"].usage, by_model["two"].switches) == (1, used(1), 1)


def test_a_turn_that_a_fire_began_is_told_for_its_schedule_and_the_next_turn_is_not() -> None:
    life = prompted().replied(usage=used(1)).on(ev.TurnEnded, turn="turn_0", reason="end")
    life = life.mailed("look", type="scheduled").turned(SLOT).delivered().replied(usage=used(2))
    life = life.on(ev.TurnEnded, turn="turn_1", reason="end").prompted("more").replied(usage=used(4))
    found = life_spent("alice", 1, life.events)
    assert {account: one.usage for (account, _), one in found.booked.items()} == {
        "": used(1).plus(used(4)),
        "schedule:cron_a": used(2),
    }
    assert found.fires == {"schedule:cron_a": 1}


def lived(name: str, number: int, **more: Any) -> LifeSpent:
    """A life that used so much, its model after its parent's name."""
    life = LifeSpent(name, booked={("", more.pop("model", "one")): CallTotals(calls=1, usage=used(number))})
    return replace(life, **{"kind": "teammate", "parent": "lead", **more})


def test_the_tree_stands_as_agents_were_started_and_every_total_is_the_sum_below() -> None:
    lives = [
        lived("lead", 1, kind="lead", parent=None),
        lived("alice", 2),
        lived("alice", 4, incarnation=2, model="two"),
        lived("explore-1", 8, kind="subagent", parent="alice"),
        lived("bob", 16),
    ]
    found = spending_of("s1", lives)
    (lead,) = found.agents
    assert [(depth, one.name, one.lives) for depth, one in lead.flat()] == [
        (0, "lead", 1),
        (1, "alice", 2),
        (2, "explore-1", 1),
        (1, "bob", 1),
    ]
    alice = lead.children[0]
    assert (alice.own.usage, alice.total.usage) == (used(2).plus(used(4)), used(2).plus(used(4)).plus(used(8)))
    assert list(alice.models) == ["two", "one"], "the dearest first"
    assert found.total == lead.total == total(found.models.values())
    assert found.total.usage == used(31)


def test_who_has_no_known_parent_or_stands_in_a_circle_is_not_lost() -> None:
    lives = [lived("orphan", 1, parent="gone"), lived("a", 2, parent="b"), lived("b", 4, parent="a")]
    found = spending_of("s1", lives)
    assert total(one.total for one in found.agents).usage == found.total.usage == used(7)


def test_agents_that_a_fire_started_and_all_below_them_are_told_for_the_schedule() -> None:
    lives = [
        LifeSpent("lead", kind="lead", booked={("schedule:cron_a", "one"): CallTotals(calls=1, usage=used(1))}),
        lived("alice", 2, charged_to="schedule:cron_a"),
        lived("explore-1", 4, parent="alice"),
        lived("bob", 8),
    ]
    found = spending_of("s1", [replace(lives[0], fires={"schedule:cron_a": 3}), *lives[1:]])
    (schedule,) = found.schedules
    assert (schedule.id, schedule.fires, schedule.spent.usage) == ("cron_a", 3, used(7))
    assert found.total.usage == used(15), "the tree holds it too: it is told beside, not added"


def test_a_session_without_a_call_has_spent_nothing() -> None:
    found = spending_of("s1", [])
    assert (found.total, found.agents, found.models, found.schedules) == (CallTotals(), (), {}, ())
    assert found.total.read_share == 0.0


# The engine's own count

_TOKENS = hy.builds(
    Usage,
    input_tokens=hy.integers(0, 10**6),
    cache_creation_input_tokens=hy.integers(0, 10**6),
    cache_read_input_tokens=hy.integers(0, 10**6),
    output_tokens=hy.integers(0, 10**6),
    cost_usd=hy.floats(0, 100),
)


def billed(event: ev.Event, usage: Usage) -> ev.Event:
    """The event with that usage, where events of its kind have one."""
    if isinstance(event, ev.CallFailed):
        return event.model_copy(update={"fault": event.fault.model_copy(update={"usage": usage})})
    billing = ev.ModelReplied | ev.ReplyDropped | ev.ContextEdited | ev.SummaryFailed
    return event.model_copy(update={"usage": usage}) if isinstance(event, billing) else event


def check(draws: list[int], usages: list[Usage]) -> set[str]:
    """Whatever happened in a life, its total is what its state counted, split by account and model."""
    left = iter(draws)
    one = Interpreter(lambda n: next(left, 0) % n)
    one.life = one.life.mailed("go", metadata={"assignment": True})
    one.run(len(draws) // 4)
    events = [billed(event, usages[at % len(usages)]) for at, event in enumerate(one.life.events)]
    counted, found = fold(events).budget.usage, life_spent("alice", 1, events).spent
    assert found.usage.model_copy(update={"cost_usd": 0.0}) == counted.model_copy(update={"cost_usd": 0.0})
    assert found.usage.cost_usd == pytest.approx(counted.cost_usd)
    assert found.calls >= sum(event.t == "model_called" for event in events)
    assert found.all_unused.usage.prompt_tokens <= found.usage.prompt_tokens
    return {event.t for event in events}


@given(hy.lists(hy.integers(0, 719), max_size=160), hy.lists(_TOKENS, min_size=1, max_size=9))
@settings(max_examples=100, deadline=None)
def test_whatever_happens_the_total_is_what_the_engine_counts(draws: list[int], usages: list[Usage]) -> None:
    check(draws, usages)


@pytest.mark.slow
def test_long_lives_add_up_and_all_that_is_billed_is_in_them() -> None:
    seen: set[str] = set()
    for seed in range(60):
        draw = random.Random(seed)
        seen |= check([draw.randrange(720) for _ in range(seed * 4)], [used(draw.randrange(9)) for _ in range(7)])
    assert {"model_replied", "reply_dropped", "call_failed", "context_edited", "summary_failed"} <= seen
