"""Which ready task is whose to take: what an agent takes by itself, and whom to wake for what. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from callboard.core.tasks.laws import Holder, Tasks, fits, ready
from callboard.words.values import Task


def ready_for(board: Tasks, holder: Holder) -> list[Task]:
    """The ready tasks that this agent takes by itself: those that are kept for it first, then the oldest."""
    found = (task for task in ready(board) if _takes(holder, task))
    return sorted(found, key=lambda task: not task.reserved_for)


def offers(board: Tasks, waiting: Iterable[Holder], offered: Collection[str] = ()) -> dict[str, str]:
    """Whom to wake for which ready task: one of those that wait for each that somebody takes by itself, and no more.
    `offered`: tasks that somebody was woken for already. `waiting` is asked for no more of them than are needed."""
    coming, passed, chosen = iter(waiting), list[Holder](), dict[str, str]()
    for task in (one for one in ready(board) if one.id not in offered):
        taker = next((one for one in passed if _takes(one, task)), None)
        if taker is not None:
            passed.remove(taker)
        else:
            taker = _next_taker(coming, passed, task)
        if taker is not None:
            chosen[taker.name] = task.id
    return chosen


def _takes(holder: Holder, task: Task) -> bool:
    return fits(task, holder) and (holder.picks or bool(task.reserved_for))


def _next_taker(coming: Iterator[Holder], passed: list[Holder], task: Task) -> Holder | None:
    """The next of those that come who takes it; those before it go to `passed`."""
    for one in coming:
        if _takes(one, task):
            return one
        passed.append(one)
    return None
