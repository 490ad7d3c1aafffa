"""What a schedule file does to the schedule that stands: made, changed by what it says now, over when it is gone. Pure.

Of a schedule that stands only what its file says is changed: its history, its last slot and a pause stay.
"""

from __future__ import annotations

from callboard.core.names import short_id
from callboard.words.schedules import Schedule

_SAID = (
    *("cron", "prompt", "name", "timezone", "target", "context", "jitter", "window", "deadline", "retries", "rights"),
    *("expires", "max_runs", "source", "digest", "recurring", "durable", "enabled", "misfire", "misfire_cap"),
    *("overlap", "deliver", "budget", "fire_budget"),
)
"""Fields that a file decides; all others are of the schedule's own life."""


def file_id(session: str, source: str) -> str:
    """The id of a file's schedule: the same as long as the file has its name."""
    return short_id("cron", session, "file", source)


def by_file(row: Schedule | None, wanted: Schedule, now: float) -> Schedule | None:
    """The row as its file wants it; None: it stands so already.

    New times count from now on, so that nothing of them is made up. A one-shot that fired, or a schedule that ended,
    fires again once its file says something else; one whose file was away counts from now on.
    """
    if row is None:
        return wanted.model_copy(update={"created_at": now})
    if row.state != "cancelled" and row.digest == wanted.digest and row.source == wanted.source:
        return None
    update = {name: getattr(wanted, name) for name in _SAID}
    if row.state == "cancelled" or (row.cron, row.timezone) != (wanted.cron, wanted.timezone):
        update["last_slot"] = max(now, row.last_slot or 0.0)
    if row.state in ("cancelled", "fired", "ended"):
        update["state"] = "active"
    return row.model_copy(update=update)


def without_file(row: Schedule) -> Schedule | None:
    """The row of a file that is gone; None: it is over already."""
    if row.state == "cancelled":
        return None
    return row.model_copy(update={"state": "cancelled", "enabled": False})
