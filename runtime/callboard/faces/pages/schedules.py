"""The schedules of a workspace, their history and their numbers, as listings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from callboard.core.schedule.cron import CronInvalid
from callboard.core.schedule.tally import FireStats, seconds_of, upcoming
from callboard.core.schedule.when import when_of
from callboard.desks.all_schedules import Kept
from callboard.faces.pages.listings import plain_row, table, when
from callboard.faces.terminal import Block, Line
from callboard.words.schedules import Fire, Schedule

NOBODY = (
    "nothing is running that would fire them: start `callboard serve`, or have it started at login with "
    "`callboard service install`"
)


def cron_page(rows: Sequence[Schedule], now: float) -> Block:
    """The schedules of one session; `now`: unix seconds."""
    return schedules_table([Kept(row, "") for row in rows], now)


def schedules_table(rows: Sequence[Kept], now: float) -> Block:
    """Id, name, state and why, expression, zone, next and last time, prompt; file and session where they tell more."""
    columns = {
        "SCHEDULE": [row.schedule.id for row in rows],
        "NAME": [row.schedule.name for row in rows],
        "STATE": [standing(row.schedule) for row in rows],
        "CRON": [row.schedule.cron for row in rows],
        "ZONE": [row.schedule.timezone for row in rows],
        "NEXT": [_next(row.schedule, now) for row in rows],
        "LAST": [when(row.schedule.last_slot) for row in rows],
        "PROMPT": [row.schedule.prompt for row in rows],
        "FILE": [row.schedule.source for row in rows],
        "SESSION": [row.session for row in rows] if len({row.session for row in rows}) > 1 else [],
    }
    wanted = {"SCHEDULE", "STATE", "CRON", "ZONE", "NEXT", "LAST", "PROMPT"}
    shown = [head for head, cells in columns.items() if head in wanted or any(cells)]
    cells = [[columns[head][number] for head in shown] for number in range(len(rows))]
    return table(shown, cells, 'no schedules: callboard cron add "0 9 * * 1-5" "what to do"')


def standing(row: Schedule) -> str:
    """A schedule's state, why it was paused, and what a hook has skipped."""
    if row.state == "paused" and row.paused_why:
        return f"{row.state}: {row.paused_why}"
    if row.state == "active" and not row.enabled:
        return "switched off"
    return f"{row.state}, {row.skips} skipped ({row.skipped_why})" if row.skips else row.state


def kept_json(row: Kept, now: float, fired_by: Mapping[str, str]) -> dict[str, Any]:
    """A schedule's row, with its session, its next times, and who would fire it (empty: nobody does)."""
    return {
        **plain_row(row.schedule),
        "session": row.session,
        "next": next_times(row.schedule, now, 3),
        "fired_by": fired_by.get(row.session, ""),
    }


def next_times(schedule: Schedule, now: float, count: int) -> list[str]:
    """ISO 8601 with the offset of its zone; none for one that cannot be read."""
    try:
        zone = when_of(schedule).zone
        times = upcoming(schedule, now, count)
    except CronInvalid:
        return []
    return [datetime.fromtimestamp(at, zone).isoformat(timespec="seconds") for at in times]


def _next(schedule: Schedule, now: float) -> str:
    try:
        times = upcoming(schedule, now, 1)
    except CronInvalid:
        return "cannot fire"
    fires = schedule.enabled and schedule.state == "active"
    return when(times[0]) if times else "never" if fires else ""


def history_table(fires: Sequence[Fire], names: Mapping[str, str]) -> Block:
    """The newest first. `names`: of schedules, by their ids."""
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
    """`done`, `failed, try 2`, `missed x12`."""
    if fire.missed > 1:
        return f"{fire.outcome} x{fire.missed}"
    return f"{fire.outcome}, try {fire.attempt}" if fire.attempt > 1 else fire.outcome


def fire_json(fire: Fire, names: Mapping[str, str]) -> dict[str, Any]:
    """A fire's row, with its schedule's name and how long its turn took (seconds; null while unknown)."""
    return {**plain_row(fire), "name": names.get(fire.schedule, ""), "duration": seconds_of(fire)}


def stats_table(rows: Sequence[FireStats]) -> Block:
    """A line for each schedule."""
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
    """`0.4 s`, `12 s`, `3 min 20 s`; empty for none."""
    if seconds is None:
        return ""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def nobody_line() -> Line:
    """What to say where schedules would fire and nobody is there to do it."""
    return Line(NOBODY, "warn")
