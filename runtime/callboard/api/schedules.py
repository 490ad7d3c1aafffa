"""Schedules as values: `schedule("0 9 * * 1-5", "Read the mail", timezone="Europe/Berlin")`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict, Unpack

from callboard.api.errors import UsageError
from callboard.core.names import short_id
from callboard.core.schedule.fields import FieldWrong, with_fields
from callboard.words.schedules import Schedule
from callboard.words.specs import PermissionMode


class ScheduleOptions(TypedDict, total=False):
    """What `schedule(...)` takes by name (docs/schedules.md)."""

    name: str
    """Unique in its session."""
    timezone: str
    """An IANA name; left out: UTC."""
    context: Literal["lead", "fresh", "own"]
    """Who does it: the lead; a new agent each time; one agent of its own that remembers."""
    agent_type: str
    recurring: bool
    misfire: Literal["skip", "latest", "all"]
    """Which of the times that were missed are made up."""
    overlap: Literal["skip", "queue", "replace", "parallel"]
    """What happens while an earlier one is under way."""
    jitter: str | float
    """Put off by up to so much: `30s`, or seconds."""
    window: str | float
    """How late a missed one may still run."""
    deadline: str | float
    """Its turn is stopped after so long."""
    retries: int
    expires: str | float
    """No fire from then on: `2026-12-01T09:00`."""
    max_runs: int
    permission_mode: PermissionMode
    allow: Sequence[str]
    ask: Sequence[str]
    deny: Sequence[str]


def schedule(cron: str, prompt: str, /, **options: Unpack[ScheduleOptions]) -> Schedule:
    """A schedule for `Session(schedules=[...])`: `cron` has five fields, or is `@daily`, `every 20m`,
    `at 2026-12-01T09:00`.

    The same schedule given again, at a resume, is the same one: it is not there twice. Raises `UsageError` that names
    the field that is wrong.
    """
    given: dict[str, object] = {"cron": cron, "prompt": prompt, **options}
    for field in ("allow", "ask", "deny"):
        if field in given:
            given[field] = tuple(options.get(field, ()))
    told = options.get("name") or (cron, prompt, options.get("timezone", "UTC"))
    blank = Schedule(id=short_id("cron", "code", told), cron="", prompt="")
    try:
        return with_fields(blank, given)
    except FieldWrong as wrong:
        raise UsageError(f"schedule: {wrong}") from wrong
