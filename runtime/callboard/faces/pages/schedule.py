"""One schedule in full: how it stands and why, when it fires, by which rules, what it may spend and has spent. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from callboard.core.budget.spending import ScheduleSpent
from callboard.core.schedule import CronInvalid, budget_words, next_slot
from callboard.core.schedule.describe import describe, local_time
from callboard.core.schedule.fields import duration_words
from callboard.core.schedule.tally import upcoming
from callboard.core.schedule.when import when_of
from callboard.faces.pages.cost import spent_json, spent_words
from callboard.faces.pages.listings import plain_row, when
from callboard.faces.pages.schedules import next_times, standing
from callboard.faces.terminal import Block, Line, plain
from callboard.words.schedules import Schedule

SHOWN = 5
"""Next times that are shown of one schedule."""


def schedule_block(schedule: Schedule, spent: ScheduleSpent, now: float, fired_by: str) -> Block:
    """A few lines for a person. `fired_by`: the process that would fire it, empty for none."""
    lines = [Line(plain(words)) for words in _lines(schedule, spent, now)]
    if fired_by:
        lines.append(Line(f"fired by: {fired_by}"))
    elif schedule.state == "active" and schedule.enabled:
        lines.append(Line("fired by: nothing is running that would: start `callboard serve`", "warn"))
    return Block(tuple(lines))


def schedule_json(kept: dict[str, Any], spent: ScheduleSpent) -> dict[str, Any]:
    """The same for a script: the row as a listing has it, the turns that its fires began, and what they used."""
    return {"schedule": kept, "turns": spent.fires, "spent": spent_json(spent.spent)}


def draft_block(schedule: Schedule, now: float, *, said: str = "") -> Block:
    """A schedule as it was just made, or would be: what it means, its next times, its jitter and its own rules."""
    lines = [f"{schedule.name or schedule.id}: {meaning(schedule)}", *_next(schedule, now), *_rules(schedule)]
    whole, each = budget_words(schedule.budget), budget_words(schedule.fire_budget)
    lines += [f"may spend: {whole or 'no limit of its own'} in all, {each or 'as much'} for each fire"] * bool(
        whole or each
    )
    lines += [said] if said else []
    return Block(tuple(Line(plain(one)) for one in lines))


def draft_json(schedule: Schedule, now: float) -> dict[str, Any]:
    """The row, the words for it, its next times and the jitter of the first (seconds)."""
    return {
        **plain_row(schedule),
        "words": meaning(schedule),
        "next": next_times(schedule, now, SHOWN),
        "put_off": put_off(schedule),
    }


def meaning(schedule: Schedule) -> str:
    """When it fires, in words; why it cannot."""
    try:
        words = describe(when_of(schedule))
    except CronInvalid as unreadable:
        return f"cannot fire: {unreadable}"
    once = not schedule.recurring and not schedule.cron.lstrip().lower().startswith("at ")
    return f"once, {words}" if once else words


def put_off(schedule: Schedule) -> float:
    """The seconds by which its next fire is put off, the same on each day; 0 where none is to come."""
    try:
        slot = next_slot(schedule)
    except CronInvalid:
        return 0.0
    return 0.0 if slot is None else slot.fire_at - slot.nominal


def _lines(schedule: Schedule, spent: ScheduleSpent, now: float) -> Iterator[str]:
    yield f"{schedule.id}: {meaning(schedule)}"
    if schedule.name:
        yield f"name: {schedule.name}"
    yield f"state: {standing(schedule)}"
    if schedule.source:
        yield f"file: {schedule.source}"
    yield from _next(schedule, now)
    if schedule.last_slot is not None:
        yield f"last: {when(schedule.last_slot)}"
    yield from _rules(schedule)
    whole, each = budget_words(schedule.budget), budget_words(schedule.fire_budget)
    yield f"may spend: {whole or 'no limit of its own'} in all, {each or 'no limit of its own'} for each fire"
    yield f"has spent: {spent_words(spent)}"
    yield f"prompt: {schedule.prompt}"
    if schedule.state == "paused":
        yield f"to let it fire again: callboard cron resume {schedule.name or schedule.id} [--budget KIND=N]"


def _next(schedule: Schedule, now: float) -> Iterator[str]:
    """Its next times, by the clocks of its zone, and by how much they are put off."""
    try:
        zone, times = when_of(schedule), upcoming(schedule, now, SHOWN)
    except CronInvalid:
        return
    yield from (f"next: {local_time(zone, at)}" for at in times)
    seconds = put_off(schedule) if times else 0.0
    if seconds >= 1:
        yield f"jitter: each is put off by {duration_words(seconds)}, the same on each day"


def _rules(schedule: Schedule) -> Iterator[str]:
    """What is not as for all schedules."""
    who = {"lead": "", "fresh": "an agent made for each fire", "own": "an agent of its own, which goes on at each fire"}
    if schedule.context != "lead":
        of = f", of type {schedule.target}" if schedule.target != "lead" else ""
        yield f"context: {who[schedule.context]}{of}"
    missed = schedule.misfire + (f", at most {schedule.misfire_cap}" if schedule.misfire == "all" else "")
    window = f", not later than {duration_words(schedule.window)}" if schedule.window is not None else ""
    if missed != "latest" or window:
        yield f"missed runs: {missed}{window}"
    if schedule.overlap != "skip":
        yield f"while an earlier fire is under way: {schedule.overlap}"
    if schedule.deliver != "turn":
        yield "deliver: into the turn under way"
    if schedule.deadline is not None:
        yield f"deadline: its turn is stopped after {duration_words(schedule.deadline)}"
    if schedule.retries:
        yield f"retries: {schedule.retries} after a failed fire"
    yield from _rights(schedule)
    if schedule.expires is not None:
        yield f"expires: {when(schedule.expires)}"
    if schedule.max_runs is not None:
        yield f"runs: {schedule.fires} of at most {schedule.max_runs}"


def _rights(schedule: Schedule) -> Iterator[str]:
    rights = schedule.rights
    kinds = {"allow": rights.allow, "ask": rights.ask, "deny": rights.deny}
    parts = [f"mode {rights.mode}"] if rights.mode else []
    parts += [f"{kind} {', '.join(rules)}" for kind, rules in kinds.items() if rules]
    if parts:
        yield f"permission: {'; '.join(parts)}"
