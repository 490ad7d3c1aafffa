"""One schedule in full: how it stands and why, when it fires, what it may spend and has spent. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from callboard.core.budget.spending import ScheduleSpent
from callboard.core.schedule import CronInvalid, budget_words
from callboard.desks.schedules import schedule_words
from callboard.faces.pages.cost import spent_json, spent_words
from callboard.faces.pages.listings import plain_row, standing, when
from callboard.faces.terminal import Block, Line, plain
from callboard.words.schedules import Schedule


def schedule_block(schedule: Schedule, spent: ScheduleSpent, now: float) -> Block:
    """A few lines for a person."""
    return Block(tuple(Line(plain(words)) for words in _lines(schedule, spent, now)))


def schedule_json(schedule: Schedule, spent: ScheduleSpent) -> dict[str, Any]:
    """The same for a script: the row, the turns that its fires began, and what they used."""
    return {"schedule": plain_row(schedule), "turns": spent.fires, "spent": spent_json(spent.spent)}


def _lines(schedule: Schedule, spent: ScheduleSpent, now: float) -> Iterator[str]:
    try:
        meaning, times = schedule_words(schedule, now)
    except CronInvalid as unreadable:
        meaning, times = f"cannot fire: {unreadable}", []
    yield f"{schedule.id}: {meaning}"
    yield f"state: {standing(schedule)}"
    if schedule.state == "active" and schedule.enabled:
        yield from (f"next: {when(each)}" for each in times)
    if schedule.last_slot is not None:
        yield f"last: {when(schedule.last_slot)}"
    whole, each = budget_words(schedule.budget), budget_words(schedule.fire_budget)
    yield f"may spend: {whole or 'no limit of its own'} in all, {each or 'no limit of its own'} for each fire"
    yield f"has spent: {spent_words(spent)}"
    yield f"prompt: {schedule.prompt}"
    if schedule.state == "paused":
        yield f"to let it fire again: callboard cron resume {schedule.id} [--budget KIND=N]"
