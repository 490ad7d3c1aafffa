"""The task board's laws, as tables, and over random histories of several agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.core.tasks import board as tasks
from callboard.core.tasks.board import Holder, TaskChange
from callboard.types.errors import ToolRefused
from callboard.types.records import Task, TaskStatus

ALICE, BOB, OLD_ALICE = Holder("alice", 2), Holder("bob"), Holder("alice", 1)


def _task(task_id: str = "t1", status: TaskStatus = "pending", *blocked_by: str, **fields: object) -> Task:
    owned = {"owner": "alice", "owner_incarnation": 2} if status == "in_progress" else {}
    about = {"id": task_id, "subject": task_id.upper(), "status": status, "blocked_by": blocked_by, **owned, **fields}
    return Task.model_validate(about)


ACTS: dict[str, Callable[[Task], Task]] = {
    "claim": lambda task: tasks.claim(task, ALICE, {task.id: task}, 9.0),
    "complete": lambda task: tasks.complete(task, ALICE, 9.0),
    "fail": lambda task: tasks.fail(task, ALICE, 9.0, "why"),
    "release": lambda task: tasks.release(task, ALICE, 9.0),
    "free": lambda task: tasks.free(task, 9.0),
    "cancel": lambda task: tasks.cancel(task, "lead", 9.0),
    "reopen": lambda task: tasks.reopen(task, "lead", 9.0),
}
ALLOWED: dict[TaskStatus, dict[str, TaskStatus]] = {
    "pending": {"claim": "in_progress", "cancel": "cancelled"},
    "in_progress": {"complete": "completed", "fail": "failed", "release": "pending", "free": "pending"},
    "completed": {},
    "failed": {"reopen": "pending", "cancel": "cancelled"},
    "cancelled": {},
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("status", ALLOWED)
def test_each_act_in_each_status(status: TaskStatus, act: str) -> None:
    task = _task("t1", status)
    if act not in ALLOWED[status]:
        with pytest.raises(ToolRefused):
            ACTS[act](task)
        return
    after = ACTS[act](task)
    assert after.status == ALLOWED[status][act]
    assert after.updated_at == 9.0
    if after.status in {"pending", "cancelled"}:
        assert (after.owner, after.owner_incarnation) == (None, 0)


@pytest.mark.parametrize("act", [tasks.complete, tasks.release])
@pytest.mark.parametrize("holder", [BOB, OLD_ALICE])
def test_only_the_life_that_holds_a_task_ends_it(act: Callable[..., Task], holder: Holder) -> None:
    with pytest.raises(ToolRefused, match="only its owner may"):
        act(_task("t1", "in_progress"), holder, 9.0)


def test_a_claim_counts_the_attempt_and_names_the_life() -> None:
    after = tasks.claim(_task(attempts=1), ALICE, {}, 9.0)
    assert (after.owner, after.owner_incarnation, after.attempts) == ("alice", 2, 2)


@pytest.mark.parametrize(("status", "lifted"), [("completed", True), ("failed", False), ("cancelled", False)])
def test_only_a_completed_task_lifts_what_it_blocks(status: TaskStatus, lifted: bool) -> None:
    board = tasks.by_id([_task("a", status), _task("b", "pending", "a")])
    assert [task.id for task in tasks.ready(board)] == (["b"] if lifted else [])
    assert tasks.blockers(board["b"], board) == (() if lifted else ("a",))


def test_completing_tells_what_is_newly_ready_and_not_what_still_waits() -> None:
    board = tasks.by_id(
        [_task("a", "in_progress"), _task("b", "pending", "a"), _task("c", "pending", "a", "d"), _task("d"), _task("e")]
    )
    done = tasks.complete(board["a"], ALICE, 9.0)
    assert [task.id for task in tasks.unblocked_by(done, board)] == ["b"]
    assert [task.id for task in tasks.waiting_for(done, board)] == ["b", "c"]


def test_ready_tasks_come_oldest_first() -> None:
    board = tasks.by_id([_task("a", created_at=3.0), _task("b", created_at=1.0), _task("c", created_at=1.0)])
    assert [task.id for task in tasks.ready(board)] == ["b", "c", "a"]


def test_a_subject_is_one_line_and_not_empty() -> None:
    assert tasks.create(_task(subject="  write\n the   parser "), {}).subject == "write the parser"
    with pytest.raises(ToolRefused, match="subject"):
        tasks.create(_task(subject=" \n"), {})


def test_an_id_comes_once() -> None:
    with pytest.raises(ToolRefused, match="already"):
        tasks.create(_task("a"), {"a": _task("a")})


def test_unknown_and_own_ids_are_refused() -> None:
    board = tasks.by_id([_task("a")])
    with pytest.raises(ToolRefused, match="no task x; on the board: a"):
        tasks.create(_task("b", "pending", "x"), board)
    with pytest.raises(ToolRefused, match="itself"):
        tasks.create(_task("b", "pending", "b"), board)
    with pytest.raises(ToolRefused, match="itself"):
        tasks.update(board["a"], TaskChange(blocked_by=("a",)), board, now=9.0)


def test_a_circle_is_refused_however_long() -> None:
    board = tasks.by_id([_task("a"), _task("b", "pending", "a"), _task("c", "pending", "b")])
    with pytest.raises(ToolRefused, match="neither could ever be claimed"):
        tasks.update(board["a"], TaskChange(blocked_by=("c",)), board, now=9.0)


def test_what_stands_behind_a_task_is_told_once() -> None:
    board = tasks.by_id([_task("a"), _task("b", "pending", "a"), _task("c", "pending", "a"), _task("d")])
    assert tasks.behind(["b", "c", "x"], board) == ("a", "b", "c")


def test_a_task_at_work_does_not_begin_to_wait() -> None:
    board = tasks.by_id([_task("a", "in_progress", "b"), _task("b", "completed"), _task("c")])
    with pytest.raises(ToolRefused, match="release it before"):
        tasks.update(board["a"], TaskChange(blocked_by=("b", "c")), board, now=9.0)
    assert tasks.update(board["a"], TaskChange(blocked_by=()), board, now=9.0).blocked_by == ()


def test_an_update_leaves_what_is_not_named() -> None:
    task = _task("a", description="old")
    after = tasks.update(task, TaskChange(subject="New"), {"a": task}, now=9.0)
    assert (after.subject, after.description) == ("New", "old")
    assert tasks.update(task, TaskChange(description="new"), {"a": task}, now=9.0).description == "new"


@pytest.mark.parametrize("status", ["completed", "cancelled"])
def test_what_has_ended_never_changes_again(status: TaskStatus) -> None:
    task = _task("a", status)
    with pytest.raises(ToolRefused, match="does not change again"):
        tasks.update(task, TaskChange(subject="New"), {"a": task}, now=9.0)


@pytest.mark.parametrize(("who", "may"), [("lead", True), ("carol", True), ("bob", False)])
def test_only_the_lead_or_its_creator_cancels_or_reopens(who: str, may: bool) -> None:
    for act, status in ((tasks.cancel, "pending"), (tasks.reopen, "failed")):
        task = _task("a", status, created_by="carol")
        if may:
            assert act(task, who, 9.0).status != status
        else:
            with pytest.raises(ToolRefused, match="only the lead or carol"):
                act(task, who, 9.0)


def test_a_blocked_task_is_refused_with_what_it_waits_for() -> None:
    board = tasks.by_id([_task("a", "failed"), _task("b", "completed"), _task("c", "pending", "a", "b")])
    with pytest.raises(ToolRefused, match="c waits for a; no task is ready now"):
        tasks.claim(board["c"], BOB, board, 9.0)


def test_who_comes_too_late_is_told_what_is_ready() -> None:
    board = tasks.by_id([_task("a", "in_progress"), _task("b"), _task("c", "completed")])
    with pytest.raises(ToolRefused, match="a is held by alice; ready now: b"):
        tasks.claim(board["a"], BOB, board, 9.0)
    with pytest.raises(ToolRefused, match="c is completed; ready now: b"):
        tasks.claim(board["c"], BOB, board, 9.0)
    alone = {"a": board["a"]}
    with pytest.raises(ToolRefused, match="a is yours already; no task is ready now"):
        tasks.claim(board["a"], ALICE, alone, 9.0)


def test_a_teammate_has_one_at_a_time_and_whoever_may_has_more() -> None:
    board = tasks.by_id([_task("a", "in_progress"), _task("b")])
    with pytest.raises(ToolRefused, match="you have a in progress"):
        tasks.claim(board["b"], ALICE, board, 9.0)
    assert tasks.claim(board["b"], ALICE, board, 9.0, one_at_a_time=False).owner == "alice"
    assert tasks.claim(board["b"], OLD_ALICE, board, 9.0).owner_incarnation == 1


def test_a_freed_task_keeps_the_note_for_the_next_one() -> None:
    assert tasks.free(_task("a", "in_progress", result="old"), 9.0, "half done").result == "half done"
    assert tasks.free(_task("a", "in_progress", result="old"), 9.0).result == "old"


Deed = tuple[Literal["create", "claim", "complete", "fail", "release", "update", "cancel", "reopen"], int, int, int]
DEEDS = st.lists(
    st.tuples(
        st.sampled_from(
            ["create", "create", "claim", "claim", "complete", "fail", "release", "update", "cancel", "reopen"]
        ),
        st.integers(0, 5),
        st.integers(0, 5),
        st.integers(0, 2),
    ),
    max_size=60,
)


def _do(deed: Deed, board: dict[str, Task], now: float) -> Task:
    act, which, other, who = deed
    holder = (ALICE, BOB, OLD_ALICE)[who]
    task_id, other_id = f"t{which}", f"t{other}"
    if act == "create":
        return tasks.create(_task(task_id, "pending", *([other_id] if other < which else []), created_at=now), board)
    if task_id not in board:
        raise ToolRefused("no such task")
    task = board[task_id]
    match act:
        case "claim":
            return tasks.claim(task, holder, board, now)
        case "complete":
            return tasks.complete(task, holder, now)
        case "fail":
            return tasks.fail(task, holder, now, "no")
        case "release":
            return tasks.release(task, holder, now)
        case "update":
            return tasks.update(task, TaskChange(blocked_by=(other_id,)), board, now=now)
        case "cancel":
            return tasks.cancel(task, "lead", now)
        case _:
            return tasks.reopen(task, "lead", now)


def _has_circle(board: dict[str, Task]) -> bool:
    return any(task.id in tasks.behind(task.blocked_by, board) for task in board.values())


@settings(max_examples=150, deadline=None)
@given(deeds=DEEDS)
def test_over_any_history_the_laws_hold(deeds: list[Deed]) -> None:
    board: dict[str, Task] = {}
    for now, deed in enumerate(deeds, 1):
        try:
            after = _do(deed, board, float(now))
        except ToolRefused:
            continue
        before = board.get(after.id)
        assert before is None or before.status not in {"completed", "cancelled"}, "what has ended changed"
        if before is not None and before.status == "in_progress" == after.status:
            assert (after.owner, after.owner_incarnation) == (before.owner, before.owner_incarnation), "two owners"
        board[after.id] = after
        assert not _has_circle(board)
        for holder in (ALICE, BOB, OLD_ALICE):
            assert len(tasks.held_by(board, holder)) <= 1
        for task in board.values():
            assert (task.status == "in_progress") <= (task.owner is not None)
            assert set(task.blocked_by) <= set(board)
            assert task.status != "in_progress" or not tasks.blockers(task, board)


@settings(max_examples=100, deadline=None)
@given(deeds=DEEDS)
def test_completion_tells_exactly_what_becomes_ready(deeds: list[Deed]) -> None:
    board: dict[str, Task] = {}
    for now, deed in enumerate(deeds, 1):
        try:
            after = _do(deed, board, float(now))
        except ToolRefused:
            continue
        ready_before = {task.id for task in tasks.ready(board)}
        told = {task.id for task in tasks.unblocked_by(after, board)} if after.status == "completed" else set[str]()
        board[after.id] = after
        if after.status == "completed":
            assert told == {task.id for task in tasks.ready(board)} - ready_before
