"""Racing changes of a board: each is computed from rows that may be outdated when it is written.

Several agents call the board's tools at once. A tool reads rows, others commit in between, and then its writes count or
lose their compare-and-swap, as in the engine. Whatever is written, the board's rules hold.
"""

from __future__ import annotations

import os
from typing import Literal

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adapters.tools.tool_world import ToolWorld

from callboard.adapters.tools.board import board_tools
from callboard.core.tasks import board as tasks
from callboard.ports.tool import ToolOutcome
from callboard.types.errors import Conflict, ToolRefused
from callboard.types.records import Task

AGENTS = ("lead", "alice", "bob", "carol")
Act = Literal["create", "depend", "claim", "complete", "release", "give", "cancel"]
Calls = list[tuple[Act, str, int, list[int], int]]
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["create", "depend", "depend", "depend", "claim", "complete", "release", "give", "cancel"]),
        st.sampled_from(AGENTS),
        st.integers(0, 5),
        st.lists(st.integers(0, 5), max_size=2, unique=True),
        st.integers(0, 3),
    ),
    max_size=30,
)
"""For each call: tool, agent, task, other tasks, and the number of calls after which it is written."""


async def _compute(world: ToolWorld, act: str, who: str, ids: list[str], others: list[str]) -> ToolOutcome:
    """Return the result that the tool would write now."""
    task = ids[0]
    match act:
        case "create":
            return await world.preview("create_task", who, subject="more", blocked_by=others)
        case "depend":
            return await world.preview("update_task", who, task_id=task, blocked_by=others)
        case "give":
            return await world.preview("update_task", "lead", task_id=task, owner=AGENTS[len(others)])
        case "cancel":
            return await world.preview("update_task", "lead", task_id=task, status="cancelled")
        case _:
            return await world.preview(f"{act}_task", who, task_id=task)


async def _race(calls: Calls) -> tuple[int, int]:
    """Race the calls, and return how many were written and how many lost."""
    world = ToolWorld(board_tools())
    for who in AGENTS:
        await world.join(who, "lead" if who == "lead" else "teammate", tools=("bash",))
    ids = [str((await world.run("create_task", subject=f"T{number}")).data["task_id"]) for number in range(6)]
    before = {task.id: task for task in (await world.rows()).tasks()}
    waiting: list[tuple[int, str, ToolOutcome]] = []
    written = lost = 0
    for turn, (act, who, which, others, later) in enumerate(calls):
        caller = "lead" if act in ("give", "cancel") else who
        if any(one == caller for _, one, _ in waiting):
            continue  # changes of one agent run in sequence
        try:
            found = await _compute(world, act, who, [ids[which]], [ids[other] for other in others])
        except ToolRefused:
            continue
        waiting.append((turn + later, caller, found))
        due = [outcome for at, _, outcome in waiting if at <= turn]
        waiting = [one for one in waiting if one[0] > turn]
        for outcome in due:
            try:
                await world.store.commit(*outcome.writes)
            except Conflict:
                lost += 1
                continue
            written += 1
            before = _check_rules(before, {task.id: task for task in (await world.rows()).tasks()})
    return written, lost


def _check_rules(before: dict[str, Task], board: dict[str, Task]) -> dict[str, Task]:
    """Check the rules for one commit."""
    for task in board.values():
        assert set(task.blocked_by) <= board.keys(), "it depends on a task that does not exist"
        assert task.id not in tasks.behind(task.blocked_by, board), "a cycle"
        assert (task.status == "in_progress") == (task.owner is not None and task.status not in ("completed", "failed"))
        old = before.get(task.id)
        if old is not None and old.status in ("completed", "cancelled"):
            assert task == old, "an ended task has changed"
        if old is not None and old.status == "in_progress" == task.status:
            assert task.owner == old.owner, "its owner changed without a release"
        if task.status == "in_progress" and (old is None or old.status != "in_progress"):
            assert not tasks.blockers(task, board), "it was claimed while it waits"
            assert old is None or old.reserved_for in ("", task.owner)
    for name in ("alice", "bob", "carol"):
        assert len(tasks.held_by(board, tasks.Holder(name))) <= 1, "two tasks at a time"
    return board


@settings(max_examples=40, deadline=None)
@given(calls=CALLS)
def test_whatever_changes_race_no_circle_closes_and_no_law_is_broken(
    calls: Calls,
) -> None:
    anyio.run(_race, calls)


@pytest.mark.soak
def test_the_same_over_many_more_races() -> None:
    factor = int(os.environ.get("SOAK", "1"))

    @settings(max_examples=1_000 * factor, deadline=None)
    @given(calls=CALLS)
    def many(calls: Calls) -> None:
        anyio.run(_race, calls)

    many()


def test_the_races_are_races() -> None:
    """Of two changes that would close a cycle together, one is written and one loses."""
    calls: Calls = [("depend", "alice", 0, [1], 1), ("depend", "bob", 1, [0], 0)]
    assert anyio.run(_race, calls) == (1, 1)
