"""What a request costs under prompt caching, and where its marks are set."""

from __future__ import annotations

import json

import pytest
from tests.core.context.context_histories import Session, said

from callboard.core.context.cache.breakpoints import anchored_list, marks, with_marks, without_mark
from callboard.core.context.cache.cost import (
    LOOK_BACK,
    InputBill,
    bill,
    edit_price,
    is_warm,
    prices_of,
    step_price,
    summary_price,
)
from callboard.core.context.cache.tracker import EditCycle, after_edit, milestone
from callboard.types.agent_spec import ModelLimits
from callboard.types.messages import Edit

PRICES = prices_of(ModelLimits(price_input=1.0, price_write=1.25, price_read=0.1, price_output=5.0))
LIMITS = ModelLimits(cache_minimum=0)


@pytest.mark.parametrize(
    ("ends", "marked", "known", "smallest", "expected"),
    [
        ([], [], [], 0, InputBill(0, 0, 0)),
        ([10, 20, 30], [], [], 0, InputBill(30, 0, 0)),
        ([10, 20, 30], [2], [], 0, InputBill(0, 30, 0)),
        ([10, 20, 30], [1], [], 0, InputBill(10, 20, 0)),
        ([10, 20, 30], [2], [1], 0, InputBill(0, 10, 20)),
        ([10, 20, 30], [0, 2], [0], 0, InputBill(0, 20, 10)),
        ([10, 20, 30], [2], [], 31, InputBill(30, 0, 0)),
        ([10, 20, 30], [0, 2], [0], 15, InputBill(0, 20, 10)),
    ],
    ids=[
        "nothing",
        "no mark",
        "first",
        "a mark before the end",
        "look-back",
        "own prefix",
        "too small",
        "found by the later mark",
    ],
)
def test_a_request_reads_stores_and_pays_for_the_rest(
    ends: list[int], marked: list[int], known: list[int], smallest: int, expected: InputBill
) -> None:
    assert bill(ends, marked, known, smallest) == expected


@pytest.mark.parametrize(("distance", "read"), [(LOOK_BACK - 1, 10), (LOOK_BACK, 0)])
def test_the_look_back_is_twenty_blocks_the_marked_one_included(distance: int, read: int) -> None:
    ends = [10 * (block + 1) for block in range(distance + 1)]
    assert bill(ends, [distance], [0], 0).read == read


def test_prices_are_per_kind_and_an_edit_costs_nothing_when_the_cache_is_cold() -> None:
    assert InputBill(uncached=100, written=10, read=1_000).price(PRICES, output=2) == 100 + 12.5 + 100 + 10
    assert step_price(PRICES, 100, 80) == pytest.approx(8 + 25)
    assert edit_price(PRICES, 1_000, warm=True) == pytest.approx(1_150)
    assert edit_price(PRICES, 1_000, warm=False) == 0
    assert summary_price(PRICES, 1_000, 100, cached=900) == pytest.approx(100 + 90 + 500)


@pytest.mark.parametrize(("used_at", "now", "warm"), [(0, 10, False), (100, 399.9, True), (100, 400, False)])
def test_a_prefix_is_warm_for_its_time_to_live_after_its_last_use(used_at: float, now: float, warm: bool) -> None:
    assert is_warm(used_at, now, 300.0) is warm


def talk(steps: int, calls: int = 1) -> Session:
    session = Session().user(said("go"))
    for _ in range(steps):
        session.step("x" * 4_000, calls=calls)
    return session


def test_without_an_edit_the_newest_user_message_and_the_one_before_are_marked() -> None:
    view = talk(3).view
    assert marks(view, limits=LIMITS) == [4, 6]


def test_the_milestone_takes_the_place_of_the_message_before_where_the_look_back_reaches() -> None:
    view = talk(5).view
    assert marks(view, EditCycle(fixed=view.messages[2].id), LIMITS) == [2, 10]


def test_the_message_before_is_marked_as_well_when_more_blocks_came_than_are_looked_back_for() -> None:
    view = talk(5, calls=10).view
    assert marks(view, EditCycle(fixed=view.messages[2].id), LIMITS) == [2, 8, 10]


def test_behind_an_edit_what_still_stands_is_marked_and_where_the_next_will_begin() -> None:
    session = talk(12)
    before = session.view.messages
    cleared = Edit(kind="cleared", message=before[8].id, last=before[8].id, block=0, text="[gone]")
    after = session.edit([cleared]).view
    cycle = after_edit(EditCycle(fixed=before[2].id), before, after.messages, edits=[cleared], cost=(10.0, 12))
    found = marks(after, cycle, LIMITS)
    following = after.messages.find(milestone(cycle, after.messages, LIMITS))
    assert following is not None
    assert found == sorted({6, following, 24})
    assert cycle.owed == 10.0
    assert cycle.freed == before.tokens - after.tokens


def test_a_milestone_behind_the_first_change_is_not_marked() -> None:
    session = talk(12)
    cycle = EditCycle(fixed=session.view.messages[8].id, touched=session.view.messages[4].id)
    limits = ModelLimits(cache_minimum=0, cache_ttl=1.0)
    assert 8 not in marks(session.view, cycle, limits) or milestone(cycle, session.view.messages, limits) == cycle.fixed
    kept = EditCycle(fixed=session.view.messages[2].id, touched=session.view.messages[4].id)
    assert 2 in marks(session.view, kept, limits)


def test_a_prefix_smaller_than_is_cached_gets_no_mark() -> None:
    view = talk(1).view
    assert marks(view, limits=ModelLimits(cache_minimum=4_096)) == []
    assert marks(view, limits=ModelLimits(cache_minimum=1_024)) == [2]


def test_a_request_bears_four_marks_at_most_and_three_leave_the_tools_without() -> None:
    tools = anchored_list([{"name": "a"}, {"name": "b"}])
    assert b"cache_control" in tools
    assert json.loads(without_mark(tools)) == [{"name": "a"}, {"name": "b"}]
    assert without_mark(b"[]") == b"[]"
    view = talk(30, calls=12).view
    cycle = EditCycle(fixed=view.messages[6].id, touched=view.messages[20].id)
    for one in (EditCycle(), cycle, EditCycle(fixed=view.messages[6].id)):
        pieces = b",".join(with_marks(view, marks(view, one, LIMITS)))
        assert pieces.count(b'"cache_control"') == len(marks(view, one, LIMITS)) <= 3
