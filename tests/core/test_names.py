"""An id by its beginning: one way to find it, and one way to say that it is not found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.core.keys import by_beginning, one_by_id
from callboard.types.choices import choose, unknown
from callboard.types.errors import UsageError

IDS = ["task_abc", "task_abcd", "task_xy", "schedule:x"]


@pytest.mark.parametrize(
    ("wanted", "found"), [("task_abc", "task_abc"), ("abcd", "task_abcd"), ("x", "task_xy"), ("sched", "schedule:x")]
)
def test_an_id_may_be_abbreviated_and_its_whole_wins(wanted: str, found: str) -> None:
    assert one_by_id("task", IDS, wanted) == found


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("ab", "'ab' fits 2 tasks of team t: task_abc, task_abcd"),
        ("zz", "unknown task 'zz' of team t: choose task_abc, task_abcd, task_xy, schedule:x"),
        ("", "unknown task '' of team t: choose task_abc, task_abcd, task_xy, schedule:x"),
    ],
)
def test_what_fits_none_or_several_is_told_with_the_candidates(wanted: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        one_by_id("task", IDS, wanted, where="of team t")
    assert str(refused.value) == words


def test_a_refusal_names_a_few_and_counts_the_rest() -> None:
    with pytest.raises(UsageError, match="there are none"):
        one_by_id("task", [], "a")
    many = [f"task_{number}" for number in range(12)]
    with pytest.raises(UsageError, match=r"task_7 and 4 more$"):
        one_by_id("task", many, "a")
    with pytest.raises(UsageError, match=r"choose task_11$"):
        one_by_id("task", many, "a", offered=["task_11"])


@given(st.lists(st.text("ab_", min_size=1, max_size=4), unique=True), st.text("ab_", max_size=4))
def test_what_is_found_is_the_id_itself_or_begins_so(ids: list[str], wanted: str) -> None:
    found = by_beginning(ids, wanted)
    assert set(found) <= set(ids)
    assert found == [wanted] if wanted in ids else all(wanted in one for one in found)
    assert bool(found) == any(
        wanted and (one.startswith(wanted) or one.partition("_")[2].startswith(wanted)) for one in ids
    )


@pytest.mark.parametrize(
    ("names", "words"),
    [([], "there are none"), (["a"], "choose a"), (["a", "b"], "choose a or b"), (["a", "b", "c"], "choose a, b or c")],
)
def test_a_choice_is_a_list_with_or(names: list[str], words: str) -> None:
    assert choose(names) == words


def test_an_unknown_name_lists_the_nearest_ones_first() -> None:
    assert unknown("mode", "pln", ["default", "plan", "ask"]) == "unknown mode 'pln': choose plan, default or ask"
    assert unknown("agent", "x", [], where="in session s") == "unknown agent 'x' in session s: there are none"
