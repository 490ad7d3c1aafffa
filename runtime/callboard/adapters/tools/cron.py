"""Tools for schedules: create one, list them, cancel one. `callboard.core.scheduling` defines the expressions.

An invalid expression is refused with the invalid field. A valid one is repeated in plain text with its next fire times.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, cast

from pydantic import Field

from callboard.adapters.tools.base import ToolInput, look_tool, store_tool
from callboard.core.keys import schedule_key, short_id
from callboard.core.permissions.modes import within
from callboard.core.scheduling import CronInvalid, budget_words, describe, local_time, when_of
from callboard.core.scheduling.fields import InvalidField, with_fields
from callboard.core.scheduling.history import next_fires, refuse_never
from callboard.core.scheduling.permissions import none_more, schedule_id
from callboard.ports.store import Put
from callboard.ports.tool import CallContext, Tool, ToolOutcome
from callboard.types.errors import ToolRefused
from callboard.types.records import PermissionMode
from callboard.types.schedules import Schedule, ScheduleRights

_SCHEDULE = """\
Have a prompt sent to you at set times, without the person. cron has five fields: minute hour day-of-month month \
day-of-week ('0 9 * * 1-5': nine on weekdays), or is @hourly, @daily, @weekly, @monthly, or 'every 20m', or for once \
'at 2026-12-01T09:00'; give the person's time zone. \
Write the prompt so that it stands alone: when it fires, this conversation may be far back. recurring false fires \
once. Tell the person the times that the answer shows. Do not use it to wait for teammates or background commands: \
they wake you by themselves. Leave out every field that was not asked for."""
_LIST = "List the schedules: id, name, expression, when each fires next, and its prompt."
_CANCEL = "Cancel a schedule by its id or name. It stays in the list of those that were, and never fires again."
_SHOWN = 3


class _Budget(ToolInput):
    cost_usd: float | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0)
    steps: int | None = Field(default=None, ge=0, description="Model calls")
    seconds: float | None = Field(default=None, ge=0)


class _ScheduleCron(ToolInput):
    cron: str
    prompt: str = Field(min_length=1, description="What to do when it fires, whole")
    timezone: str = Field(default="UTC", description="An IANA name, such as Europe/Berlin")
    recurring: bool = Field(default=True, description="False: it fires once, then never again")
    durable: bool = Field(default=True, description="False: it ends with this session's process")
    name: str = Field(default="", description="What to call it")
    context: Literal["lead", "fresh", "own"] = Field(
        default="lead", description="Who does it: you; a new agent each time; one agent of its own that remembers"
    )
    agent_type: str = Field(default="", description="Of that agent, with context fresh or own")
    misfire: Literal["skip", "latest", "all"] = Field(default="latest", description="What runs of missed times")
    misfire_cap: int = Field(default=10, description="With misfire all: the newest so many")
    window: str | None = Field(default=None, description="How late a missed one may run: 30m, 2h")
    overlap: Literal["skip", "queue", "replace", "parallel"] = Field(
        default="skip", description="While an earlier fire is under way"
    )
    deliver: Literal["turn", "step"] = Field(default="turn", description="step: into the turn under way")
    jitter: str | None = Field(default=None, description="Put off by up to so much: 30s; 0: never")
    deadline: str | None = Field(default=None, description="Stop its turn after so long: 20m")
    retries: int = Field(default=0, description="Tries again after a failure")
    expires: str | None = Field(default=None, description="No fire from then on: 2026-12-01T09:00, or 30d from now")
    max_runs: int | None = Field(default=None, description="It ends after so many fires")
    budget: _Budget = Field(default=_Budget(), description="For all fires together; used up, the schedule pauses")
    fire_budget: _Budget = Field(default=_Budget(), description="For each fire; used up, its turn ends")
    permission_mode: PermissionMode | None = Field(default=None, description="Of its turns: yours, or less")
    allow: tuple[str, ...] = Field(default=(), description="Permission rules: nothing but these runs unasked")
    ask: tuple[str, ...] = Field(default=(), description="Permission rules: ask the person first, as Bash(git push *)")
    deny: tuple[str, ...] = Field(default=(), description="Permission rules: refuse")


class _Nothing(ToolInput):
    pass


class _Cancel(ToolInput):
    job_id: str = Field(description="Its id or name")


def cron_tools() -> tuple[Tool, ...]:
    """Return `schedule_cron`, `list_crons` and `cancel_cron`."""
    return (
        store_tool("schedule_cron", _SCHEDULE, _ScheduleCron, _schedule_cron),
        look_tool("list_crons", _LIST, _Nothing, _list_crons),
        store_tool("cancel_cron", _CANCEL, _Cancel, _cancel_cron),
    )


def _schedule_cron(arguments: _ScheduleCron, context: CallContext) -> ToolOutcome:
    blank = Schedule(
        id=short_id("cron", context.call),
        cron="",
        prompt="",
        created_by=context.spec.name,
        created_at=context.now,
    )
    try:
        schedule = with_fields(blank, arguments.model_dump(mode="json", exclude_unset=True), context.now)
        refuse_never(schedule, context.now)
    except InvalidField as wrong:
        raise ToolRefused(str(wrong)) from wrong
    schedule = _within_turn(schedule, context)
    _refuse(schedule, context)
    times = next_fires(schedule, context.now, _SHOWN)
    write = Put(schedule_key(context.session, schedule.id), schedule.encode(), 0)
    data = {"id": schedule.id, "next": times}
    return ToolOutcome(_echo(schedule, times), writes=(write,), data=data)


def _within_turn(schedule: Schedule, context: CallContext) -> Schedule:
    """Limit the new schedule to the rights of the schedule that began this turn, if any. The user allowed this call."""
    turn = context.board.schedule(schedule_id(context.caused_by))
    if turn is None or turn[0].rights == ScheduleRights():
        return schedule
    return schedule.model_copy(update={"rights": none_more(schedule.rights, turn[0].rights)})


def _refuse(schedule: Schedule, context: CallContext) -> None:
    """Refuse a name in use, an unknown agent type, and more rights than the agent has.

    An allow rule of a schedule only restricts (`core.scheduling.permissions`).
    """
    existing = _find_by_name(context.board.schedules(), schedule.name)
    if schedule.name and existing is not None and existing.state in ("active", "paused"):
        raise ToolRefused(f"name: {schedule.name} is the name of {existing.id} already: choose another one")
    if schedule.target != "lead":
        context.spawner.spec_for(schedule.target, f"{schedule.target}-1", context.spec, "subagent")
    own = context.spec.permission_mode
    mode = cast("PermissionMode", schedule.rights.mode)
    if mode and within(own, mode) != mode:
        raise ToolRefused(f"permission_mode: {mode} is more than your own, {own}: leave it out, or give less")


def _find_by_name(schedules: Iterable[Schedule], name: str) -> Schedule | None:
    """Return the schedule that has the name now, otherwise the newest that had it."""
    matches = [schedule for schedule in schedules if schedule.name and schedule.name == name]
    return max(
        matches, key=lambda schedule: (schedule.state in ("active", "paused"), schedule.created_at), default=None
    )


def _echo(schedule: Schedule, times: list[float]) -> str:
    when = when_of(schedule)
    fire_times = ", ".join(local_time(when, at) for at in times)
    called = f"{schedule.id} ({schedule.name})" if schedule.name else schedule.id
    if not schedule.recurring:
        return f"Scheduled {called}: once, at {fire_times}.{_limits(schedule)}"
    return f"Scheduled {called}: {describe(when)}.\nNext: {fire_times}.{_limits(schedule)}"


def _limits(schedule: Schedule) -> str:
    """Return the schedule's budgets, on a separate line."""
    whole = budget_words(schedule.budget)
    each = budget_words(schedule.fire_budget)
    parts = [*([f"{whole} in all"] if whole else []), *([f"{each} for each fire"] if each else [])]
    return f"\nBudget: {'; '.join(parts)}." if parts else ""


def _list_crons(arguments: _Nothing, context: CallContext) -> ToolOutcome:
    schedules = sorted(context.board.schedules(), key=lambda schedule: (schedule.created_at, schedule.id))
    lines = [_line(schedule, context.now) for schedule in schedules]
    data = {"schedules": [schedule.model_dump(mode="json") for schedule in schedules]}
    return ToolOutcome("\n".join(lines) or "There are no schedules.", data=data)


def _line(schedule: Schedule, now: float) -> str:
    first = schedule.prompt.strip().splitlines()[0]
    called = f"{schedule.id} {schedule.name}" if schedule.name else schedule.id
    return f"{called} [{schedule.cron}, {schedule.timezone}; {_status_text(schedule, now)}] {first}"


def _status_text(schedule: Schedule, now: float) -> str:
    if schedule.state == "paused" and schedule.paused_why:
        return f"paused: {schedule.paused_why}"
    if schedule.state != "active" or not schedule.enabled:
        return schedule.state if schedule.state != "active" else "switched off"
    try:
        times = next_fires(schedule, now, 1)
        return f"next {local_time(when_of(schedule), times[0])}" if times else "never fires"
    except CronInvalid as error:  # a row of another version of the time zone data
        return f"cannot fire: {error}"


def _cancel_cron(arguments: _Cancel, context: CallContext) -> ToolOutcome:
    named = _find_by_name(context.board.schedules(), arguments.job_id)
    entry = context.board.schedule(named.id if named else arguments.job_id)
    if entry is None:
        active = ", ".join(schedule.id for schedule in context.board.schedules() if schedule.state == "active")
        raise ToolRefused(f"job_id: no schedule {arguments.job_id}; active: {active or 'none'}")
    schedule, revision = entry
    if schedule.state in {"cancelled", "fired", "ended"}:
        raise ToolRefused(f"{schedule.id} is {schedule.state} already")
    if schedule.source:
        raise ToolRefused(f"{schedule.id} comes from {schedule.source}: it exists as long as that file does")
    cancelled = schedule.model_copy(update={"state": "cancelled", "enabled": False})
    write = Put(schedule_key(context.session, schedule.id), cancelled.encode(), revision)
    return ToolOutcome(f"Cancelled {schedule.id}.", writes=(write,), data={"id": schedule.id})
