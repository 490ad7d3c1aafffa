"""The board's laws on what a task is bound to: an agent that it is kept for, a check, a lease; and who is woken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.core.tasks import board as tasks
from callboard.core.tasks.board import MOST_ATTEMPTS, Holder, TaskChange, offers, ready_for
from callboard.types.errors import ToolRefused
from callboard.types.records import Task, TaskStatus

ALICE, BOB = Holder("alice", 1, "host", 3), Holder("bob", 1, "host", 3)


def _task(task_id: str = "t1", status: TaskStatus = "pending", **fields: object) -> Task:
    owned = {"owner": "alice", "owner_incarnation": 1} if status == "in_progress" else {}
    return Task.model_validate({"id": task_id, "subject": task_id.upper(), "status": status, **owned, **fields})


# Given to somebody


def test_the_lead_takes_a_task_away_and_its_old_owner_can_end_it_no_more() -> None:
    after = tasks.assign(_task(status="in_progress", attempts=1), "bob", "lead", 9.0)
    assert (after.status, after.owner, after.reserved_for) == ("pending", None, "bob")
    assert after.result == "lead took it from alice before it was done."
    for act in (tasks.complete, tasks.release):
        with pytest.raises(ToolRefused, match="it is pending"):
            act(after, ALICE, 9.0)
    with pytest.raises(ToolRefused, match="reserved for bob"):
        tasks.claim(after, ALICE, {after.id: after}, 9.0)
    claimed = tasks.claim(after, BOB, {after.id: after}, 9.0)
    assert (claimed.owner, claimed.reserved_for, claimed.attempts) == ("bob", "", 2)
    with pytest.raises(ToolRefused, match="held by bob"):
        tasks.complete(claimed, ALICE, 9.0)


@pytest.mark.parametrize(("who", "may"), [("person", True), ("lead", True), ("carol", False), ("alice", False)])
def test_only_the_lead_and_the_person_take_what_is_in_progress(who: str, may: bool) -> None:
    task = _task(status="in_progress", created_by="carol")
    if may:
        assert tasks.assign(task, "", who, 9.0).reserved_for == ""
    else:
        with pytest.raises(ToolRefused, match="only the lead or the person"):
            tasks.assign(task, "bob", who, 9.0)


@pytest.mark.parametrize(("who", "may"), [("person", True), ("lead", True), ("carol", True), ("alice", False)])
def test_a_pending_task_is_given_away_by_those_above_and_its_creator(who: str, may: bool) -> None:
    task = _task(created_by="carol")
    if may:
        assert tasks.assign(task, "bob", who, 9.0).reserved_for == "bob"
    else:
        with pytest.raises(ToolRefused, match="may"):
            tasks.assign(task, "bob", who, 9.0)


@pytest.mark.parametrize(("status", "words"), [("completed", "create a new"), ("failed", "has failed")])
def test_what_is_over_is_given_to_nobody(status: TaskStatus, words: str) -> None:
    with pytest.raises(ToolRefused, match=words):
        tasks.assign(_task(status=status), "bob", "lead", 9.0)


def test_giving_a_task_to_who_has_it_is_refused() -> None:
    with pytest.raises(ToolRefused, match="held by alice already"):
        tasks.assign(_task(status="in_progress"), "alice", "lead", 9.0)


# Who is woken


def test_what_is_kept_for_an_agent_comes_first_and_nobody_else_sees_it() -> None:
    board = tasks.by_id([_task("a", created_at=1.0), _task("b", created_at=2.0, reserved_for="bob")])
    assert [task.id for task in ready_for(board, BOB)] == ["b", "a"]
    assert [task.id for task in ready_for(board, ALICE)] == ["a"]


def test_one_waiter_is_woken_for_a_task_and_the_one_that_it_is_kept_for() -> None:
    mates = [Holder(name) for name in ("a", "b", "c", "d")]
    board = tasks.by_id(
        [_task("t1", created_at=1.0), _task("t2", created_at=2.0, reserved_for="c"), _task("t3", "failed")]
    )
    assert offers(board, mates) == {"a": "t1", "c": "t2"}
    assert offers(board, mates, {"t1"}) == {"c": "t2"}
    assert offers(board, [mates[2]]) == {"c": "t1"}
    assert offers(tasks.by_id([_task("t2", reserved_for="z")]), mates) == {}


def test_no_more_waiters_are_looked_at_than_are_needed() -> None:
    seen: list[str] = []

    def coming() -> Iterator[Holder]:
        for number in range(100):
            seen.append(f"w{number}")
            yield Holder(f"w{number}")

    assert offers(tasks.by_id([_task("t1"), _task("t2", "failed")]), coming()) == {"w0": "t1"}
    assert offers(tasks.by_id([_task("t2", "failed")]), coming()) == {}
    assert seen == ["w0"]


@settings(max_examples=100, deadline=None)
@given(
    kept=st.lists(st.sampled_from(["", "a", "b", "z"]), max_size=6),
    names=st.lists(st.sampled_from(["a", "b", "c"]), unique=True),
)
def test_nobody_is_woken_twice_and_no_ready_task_lacks_a_waiter_that_is_left(kept: list[str], names: list[str]) -> None:
    board = tasks.by_id(_task(f"t{at}", created_at=float(at), reserved_for=who) for at, who in enumerate(kept))
    woken = offers(board, [Holder(name) for name in names])
    assert len(set(woken.values())) == len(woken)
    idle = [Holder(name) for name in names if name not in woken]
    open_ones = sum(1 for who in kept if not who)
    assert not idle or sum(1 for _ in woken) >= min(len(names), open_ones)


# The check


def test_a_task_with_a_check_is_completed_only_when_that_very_check_has_passed() -> None:
    task = _task(status="in_progress", check="make test")
    with pytest.raises(ToolRefused, match="its check has not passed"):
        tasks.complete(task, ALICE, 9.0)
    with pytest.raises(ToolRefused, match="was changed while"):
        tasks.complete(task, ALICE, 9.0, passed="true")
    assert tasks.complete(task, ALICE, 9.0, passed="make test").status == "completed"


RANKS = [
    ("person", "carol", "", True),
    ("lead", "carol", "", True),
    ("carol", "carol", "", True),
    ("bob", "carol", "", False),
    ("carol", "carol", "carol", True),
    ("carol", "carol", "lead", False),
    ("carol", "carol", "person", False),
    ("lead", "carol", "person", False),
    ("lead", "carol", "carol", True),
    ("person", "carol", "lead", True),
]


@pytest.mark.parametrize(("by", "creator", "set_by", "may"), RANKS)
def test_who_may_change_a_check(by: str, creator: str, set_by: str, may: bool) -> None:
    task = _task(created_by=creator, check="make" if set_by else "", check_by=set_by)
    for check in ("true", ""):
        if not may:
            with pytest.raises(ToolRefused, match="the check of t1"):
                tasks.update(task, TaskChange(check=check), {"t1": task}, now=9.0, by=by)
            continue
        after = tasks.update(task, TaskChange(check=check), {"t1": task}, now=9.0, by=by)
        assert (after.check, after.check_by) == (check, by if check else "")


def test_the_owner_that_is_to_pass_a_check_does_not_change_it_though_it_made_the_task() -> None:
    for owner in ("alice", "lead"):
        task = _task(status="in_progress", check="make test", created_by=owner, check_by=owner).model_copy(
            update={"owner": owner}
        )
        with pytest.raises(ToolRefused, match="may not change the check"):
            tasks.update(task, TaskChange(check="true"), {"t1": task}, now=9.0, by=owner)


def test_a_new_task_says_who_set_its_check() -> None:
    assert tasks.create(_task(check=" make test ", created_by="carol"), {}).check_by == "carol"
    assert tasks.create(_task(check="  ", created_by="carol"), {}).check_by == ""
    for bad in ("x" * 5_000, "a\0b"):
        with pytest.raises(ToolRefused, match="check: "):
            tasks.create(_task(check=bad), {})


def test_who_may_run_nothing_takes_no_task_with_a_check() -> None:
    reader = Holder("alice", shell=False)
    board = tasks.by_id([_task("a", check="make"), _task("b")])
    assert [task.id for task in ready_for(board, reader)] == ["b"]
    with pytest.raises(ToolRefused, match="a has a check, which is a command, and you may not run commands; ready now"):
        tasks.claim(board["a"], reader, board, 9.0)


# Leases and tries


def test_a_claim_is_under_the_lease_of_its_process_until_the_task_is_let_go() -> None:
    task = tasks.claim(_task(), ALICE, {}, 9.0)
    assert (task.lease, task.lease_number) == ("host", 3)
    assert tasks.take_up(task, Holder("alice", 1, "host", 4)).lease_number == 4
    ends = [tasks.complete(task, ALICE, 9.0), tasks.fail(task, ALICE, 9.0, "no"), tasks.release(task, ALICE, 9.0)]
    for after in [*ends, tasks.give_back(task, 9.0, "gone"), tasks.assign(task, "bob", "lead", 9.0)]:
        assert (after.lease, after.lease_number) == ("", 0)


def test_a_task_that_too_many_could_not_finish_has_failed_and_has_as_many_tries_when_it_is_opened_again() -> None:
    seen: list[str] = []
    task = _task()
    for _ in range(2 * MOST_ATTEMPTS):
        task = tasks.give_back(tasks.claim(task, ALICE, {}, 9.0), 9.0, "gone")
        seen.append(task.status)
        task = tasks.reopen(task, "lead", 9.0) if task.status == "failed" else task
    assert seen == ["pending", "pending", "failed"] * 2


def test_files_are_changed_by_who_works_there_and_by_those_above() -> None:
    task = _task(status="in_progress", created_by="carol", files=("a",))
    for who in ("alice", "carol", "lead", "person"):
        assert tasks.update(task, TaskChange(files=("./b", "b")), {"t1": task}, now=9.0, by=who).files == ("b",)
    with pytest.raises(ToolRefused, match="change the files of"):
        tasks.update(task, TaskChange(files=("b",)), {"t1": task}, now=9.0, by="bob")
