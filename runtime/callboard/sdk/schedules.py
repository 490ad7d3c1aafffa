"""Schedules as values: `schedule("0 9 * * 1-5", "Read the mail", timezone="Europe/Berlin")`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict, Unpack

from callboard.core.keys import short_id
from callboard.core.scheduling.fields import InvalidField, with_fields
from callboard.sdk.errors import UsageError
from callboard.types.records import PermissionMode
from callboard.types.schedules import Schedule


class ScheduleOptions(TypedDict, total=False):
    """Keyword options of `schedule(...)` (docs/schedules.md)."""

    name: str
    """Name of the schedule, unique in its session."""
    timezone: str
    """IANA name of a time zone. Default: UTC."""
    context: Literal["lead", "fresh", "own"]
    """Agent that does the work: the lead, a new agent for each fire, or one agent of the schedule that keeps its
    context."""
    agent_type: str
    recurring: bool
    misfire: Literal["skip", "latest", "all"]
    """Missed times to make up: none, the latest or all."""
    overlap: Literal["skip", "queue", "replace", "parallel"]
    """Handling of a fire while an earlier one is still running."""
    jitter: str | float
    """Longest random delay: `30s`, or seconds."""
    window: str | float
    """Longest delay after which a missed fire still runs."""
    deadline: str | float
    """Longest time of a turn. A turn that takes longer is stopped."""
    retries: int
    expires: str | float
    """Time from which the schedule no longer fires: `2030-12-01T09:00`."""
    max_runs: int
    permission_mode: PermissionMode
    allow: Sequence[str]
    ask: Sequence[str]
    deny: Sequence[str]


def schedule(cron: str, prompt: str, /, **options: Unpack[ScheduleOptions]) -> Schedule:
    """Make a schedule for `Session(schedules=[...])`.

    `cron` has five fields, or is `@daily`, `every 20m`, or `at 2030-12-01T09:00`.

    Passing the same schedule again at a resume does not add it twice. Raises `UsageError` that names the invalid field.
    """
    fields: dict[str, object] = {"cron": cron, "prompt": prompt, **options}
    for field in ("allow", "ask", "deny"):
        if field in fields:
            fields[field] = tuple(options.get(field, ()))
    identity = options.get("name") or (cron, prompt, options.get("timezone", "UTC"))
    blank = Schedule(id=short_id("cron", "code", identity), cron="", prompt="")
    try:
        return with_fields(blank, fields)
    except InvalidField as wrong:
        raise UsageError(f"schedule: {wrong}") from wrong
