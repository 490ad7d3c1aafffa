"""Schedules of a workspace, their history and their statistics, as listings, and one schedule in full. Pure.

A schedule in full has its state and the reason, its next times, its rules, its budget and spending.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from callboard.cli.terminal.terminal import Block, Line, plain
from callboard.cli.views.cost import spent_json, spent_words
from callboard.cli.views.listings import render_listing, table
from callboard.core.reports.spending import ScheduleSpent
from callboard.core.scheduling import budget_words, next_slot
from callboard.core.scheduling.cron import CronInvalid
from callboard.core.scheduling.describe import describe, local_time
from callboard.core.scheduling.due import COUNTED
from callboard.core.scheduling.fields import format_duration
from callboard.core.scheduling.history import FireStats, next_fires, seconds_of
from callboard.core.scheduling.trigger import when_of
from callboard.sessions.inspect.resources import (
    SCHEDULES,
    ScheduleStatus,
    last_fired,
    next_times,
    plain_row,
    schedule_state,
    when,
)
from callboard.types.schedules import Fire, Schedule

NOBODY = (
    "no running process would fire them: start `callboard serve`, or install it as a service with "
    "`callboard service install`"
)


def cron_page(rows: Sequence[Schedule], now: float) -> Block:
    """Return the schedules of one session; `now`: Unix seconds."""
    return schedules_table([ScheduleStatus(row, "", now) for row in rows])


def schedules_table(rows: Sequence[ScheduleStatus]) -> Block:
    """Return the schedules as a table.

    The columns are the id, name, state with reason, expression, zone, next and last time, and prompt; also file and
    session if they differ.
    """
    return render_listing(SCHEDULES, rows)


def history_table(fires: Sequence[Fire], names: Mapping[str, str]) -> Block:
    """Return fires, newest first. `names`: names of schedules by id."""
    several = len({fire.session for fire in fires}) > 1
    cells = [
        [
            when(fire.nominal),
            names.get(fire.schedule) or fire.schedule,
            outcome_words(fire),
            took_words(seconds_of(fire)),
            f"${fire.cost_usd:.4f}" if fire.tokens or fire.cost_usd else "",
            fire.agent,
            *([fire.session] if several else []),
            fire.why,
        ]
        for fire in fires
    ]
    heads = ["DUE", "SCHEDULE", "OUTCOME", "TOOK", "COST", "AGENT", *(["SESSION"] if several else []), "WHY"]
    return table(heads, cells, "no fires yet")


def outcome_words(fire: Fire) -> str:
    """Return `done`, `failed, try 2`, `missed x12`, and `missed x10000+` if no more were counted."""
    if fire.missed > 1:
        return f"{fire.outcome} x{fire.missed}{'+' if fire.missed >= COUNTED else ''}"
    return f"{fire.outcome}, try {fire.attempt}" if fire.attempt > 1 else fire.outcome


def fire_json(fire: Fire, names: Mapping[str, str]) -> dict[str, Any]:
    """Return a fire's row, with its schedule's name and the duration of its turn (seconds; null while unknown)."""
    return {**plain_row(fire), "name": names.get(fire.schedule, ""), "duration": seconds_of(fire)}


def stats_table(rows: Sequence[FireStats]) -> Block:
    """Return a line for each schedule."""
    cells = [
        [
            row.name or row.schedule,
            f"{row.fires:,}",
            "" if row.success_rate is None else f"{row.success_rate:.0%}",
            ", ".join(f"{count:,} {outcome}" for outcome, count in row.outcomes.items()),
            took_words(row.mean_seconds),
            took_words(row.last_seconds),
            when(row.last_at),
            f"${row.cost_usd:.4f}",
            f"{row.tokens:,}",
        ]
        for row in rows
    ]
    heads = ["SCHEDULE", "FIRES", "SUCCESS", "OUTCOMES", "MEAN", "LAST", "LAST DUE", "COST", "TOKENS"]
    return table(heads, cells, "no schedules")


def took_words(seconds: float | None) -> str:
    """Return `0.4 s`, `12 s`, `3 min 20 s`; empty for none."""
    if seconds is None:
        return ""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, remainder = divmod(round(seconds), 60)
    return f"{minutes} min {remainder} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def nobody_line() -> Line:
    """Return the line shown if schedules are due but no process is running to fire them."""
    return Line(NOBODY, "warn")


SHOWN = 5
"""Number of next times shown for one schedule."""


def sent_words(fired_by: str) -> str:
    """Return who runs a fire that a person sent. `fired_by`: as in `schedule_block`."""
    return f"{fired_by}, runs it" if fired_by else "no process hosts its session now: `callboard serve` runs it"


def schedule_block(schedule: Schedule, spent: ScheduleSpent, now: float, fired_by: str) -> Block:
    """Return a few lines for a person. `fired_by`: the process that would fire it, empty for none."""
    lines = [Line(plain(text)) for text in _lines(schedule, spent, now)]
    if fired_by:
        lines.append(Line(f"fired by: {fired_by}"))
    elif schedule.state == "active" and schedule.enabled:
        lines.append(Line("fired by: no running process: start `callboard serve`", "warn"))
    return Block(tuple(lines))


def schedule_json(row: dict[str, Any], spent: ScheduleSpent) -> dict[str, Any]:
    """Return the schedule as JSON for a script.

    The result has the row as in a listing, the turns that its fires started, and their usage.
    """
    return {"schedule": row, "turns": spent.fires, "spent": spent_json(spent.spent)}


def draft_block(schedule: Schedule, now: float, *, note: str = "") -> Block:
    """Return a schedule that was just created, or would be.

    The lines have the meaning, the next times, the jitter and the schedule's own rules.
    """
    lines = [
        f"{schedule.name or schedule.id}: {firing_description(schedule)}",
        *_next_times(schedule, now),
        *rule_lines(schedule),
    ]
    if budget_words(schedule.budget) or budget_words(schedule.fire_budget):
        lines.append(_budget_line(schedule))
    lines += [note] if note else []
    return Block(tuple(Line(plain(line)) for line in lines))


def draft_json(schedule: Schedule, now: float) -> dict[str, Any]:
    """Return the row, its description, its next times and the jitter of the first (seconds)."""
    return {
        **plain_row(schedule),
        "words": firing_description(schedule),
        "next": next_times(schedule, now, SHOWN),
        "put_off": next_jitter(schedule),
    }


def firing_description(schedule: Schedule) -> str:
    """Return a description of when the schedule fires, or why it cannot."""
    try:
        text = describe(when_of(schedule))
    except CronInvalid as unreadable:
        return f"cannot fire: {unreadable}"
    once = not schedule.recurring and not schedule.cron.lstrip().lower().startswith("at ")
    return f"once, {text}" if once else text


def next_jitter(schedule: Schedule) -> float:
    """Return the jitter of its next fire in seconds, the same on each day; 0 without a next fire."""
    try:
        slot = next_slot(schedule)
    except CronInvalid:
        return 0.0
    return 0.0 if slot is None else slot.fire_at - slot.nominal


def _lines(schedule: Schedule, spent: ScheduleSpent, now: float) -> Iterator[str]:
    yield f"{schedule.id}: {firing_description(schedule)}"
    if schedule.name:
        yield f"name: {schedule.name}"
    yield f"state: {schedule_state(schedule)}"
    if schedule.source:
        yield f"file: {schedule.source}"
    yield from _next_times(schedule, now)
    if (last := last_fired(schedule)) is not None:
        yield f"last: {when(last)}"
    yield from rule_lines(schedule)
    yield _budget_line(schedule)
    yield f"has spent: {spent_words(spent)}"
    yield f"prompt: {schedule.prompt}"
    if schedule.state == "paused":
        yield f"to let it fire again: callboard cron resume {schedule.name or schedule.id} [--budget KIND=N]"


def _budget_line(schedule: Schedule) -> str:
    whole, each = (budget_words(budget) or "no limit of its own" for budget in (schedule.budget, schedule.fire_budget))
    return f"may spend: {whole} in all, {each} for each fire"


def _next_times(schedule: Schedule, now: float) -> Iterator[str]:
    """Yield its next times, in its time zone, with their jitter."""
    try:
        zone = when_of(schedule)
        times = next_fires(schedule, now, SHOWN)
    except CronInvalid:
        return
    yield from (f"next: {local_time(zone, at)}" for at in times)
    seconds = next_jitter(schedule) if times else 0.0
    if seconds >= 1:
        yield f"jitter: each is delayed by {format_duration(seconds)}, the same on each day"


def rule_lines(schedule: Schedule) -> Iterator[str]:
    """Yield the settings that differ from those of all schedules."""
    contexts = {
        "lead": "",
        "fresh": "a new agent for each fire",
        "own": "its own agent, which continues at each fire",
    }
    if schedule.context != "lead":
        of = f", of type {schedule.target}" if schedule.target != "lead" else ""
        yield f"context: {contexts[schedule.context]}{of}"
    missed = schedule.misfire + (f", at most {schedule.misfire_cap}" if schedule.misfire == "all" else "")
    window = f", not later than {format_duration(schedule.window)}" if schedule.window is not None else ""
    if missed != "latest" or window:
        yield f"missed runs: {missed}{window}"
    if schedule.overlap != "skip":
        yield f"while an earlier fire is in progress: {schedule.overlap}"
    if schedule.deliver != "turn":
        yield "deliver: into the running turn"
    if schedule.deadline is not None:
        yield f"deadline: its turn is stopped after {format_duration(schedule.deadline)}"
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
