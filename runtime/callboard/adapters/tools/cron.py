"""Schedules as tools: set one up, list them, cancel one. What an expression means is `callboard.core.schedule`'s.

A wrong expression is refused with the field that is wrong; a right one is echoed in words with its next fire times.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, cast

from pydantic import Field

from callboard.adapters.tools.store_tool import Input, look_tool, store_tool
from callboard.core.names import schedule_key, short_id
from callboard.core.permission.modes import within
from callboard.core.schedule import CronInvalid, budget_words, describe, local_time, when_of
from callboard.core.schedule.fields import FieldWrong, with_fields
from callboard.core.schedule.rights import none_more, schedule_id
from callboard.core.schedule.tally import upcoming
from callboard.ports.store import Put
from callboard.ports.tool import Tool, ToolContext, ToolOutcome
from callboard.words.errors import ToolRefused
from callboard.words.schedules import Schedule, ScheduleRights
from callboard.words.specs import PermissionMode

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


class _Budget(Input):
    cost_usd: float | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0)
    steps: int | None = Field(default=None, ge=0, description="Model calls")
    seconds: float | None = Field(default=None, ge=0)


class _ScheduleCron(Input):
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


class _Nothing(Input):
    pass


class _Cancel(Input):
    job_id: str = Field(description="Its id or name")


def cron_tools() -> tuple[Tool, ...]:
    """`schedule_cron`, `list_crons` and `cancel_cron`."""
    return (
        store_tool("schedule_cron", _SCHEDULE, _ScheduleCron, _schedule_cron),
        look_tool("list_crons", _LIST, _Nothing, _list_crons),
        store_tool("cancel_cron", _CANCEL, _Cancel, _cancel_cron),
    )


def _schedule_cron(given: _ScheduleCron, context: ToolContext) -> ToolOutcome:
    blank = Schedule(
        id=short_id("cron", context.call),
        cron="",
        prompt="",
        created_by=context.spec.name,
        created_at=context.now,
    )
    try:
        schedule = with_fields(blank, given.model_dump(mode="json", exclude_unset=True), context.now)
    except FieldWrong as wrong:
        raise ToolRefused(str(wrong)) from wrong
    schedule = _within_turn(schedule, context)
    _refuse(schedule, context)
    times = upcoming(schedule, context.now, _SHOWN)
    if not times:
        raise ToolRefused(f"cron: {schedule.cron} never fires from now on: give a time that is still to come")
    write = Put(schedule_key(context.session, schedule.id), schedule.encode(), 0)
    data = {"id": schedule.id, "next": times}
    return ToolOutcome(_echo(schedule, times), writes=(write,), data=data)


def _within_turn(schedule: Schedule, context: ToolContext) -> Schedule:
    """In a turn that a schedule began (a person allowed the call) the new one has no more rights than that one."""
    turn = context.board.schedule(schedule_id(context.caused_by))
    if turn is None or turn[0].rights == ScheduleRights():
        return schedule
    return schedule.model_copy(update={"rights": none_more(schedule.rights, turn[0].rights)})


def _refuse(schedule: Schedule, context: ToolContext) -> None:
    """What the session does not allow: a name that is taken, an agent type that is not there, and more rights than the
    agent's own. An allow rule of a schedule only narrows (`core.schedule.rights`)."""
    taken = _named(context.board.schedules(), schedule.name)
    if schedule.name and taken is not None and taken.state in ("active", "paused"):
        raise ToolRefused(f"name: {schedule.name} is the name of {taken.id} already: choose another one")
    if schedule.target != "lead":
        context.spawner.spec_for(schedule.target, f"{schedule.target}-1", context.spec)
    own, asked = context.spec.permission_mode, cast("PermissionMode", schedule.rights.mode)
    if asked and within(own, asked) != asked:
        raise ToolRefused(f"permission_mode: {asked} is more than your own, {own}: leave it out, or give less")


def _named(schedules: Iterable[Schedule], name: str) -> Schedule | None:
    """The one that has the name now, else the newest that had it."""
    found = [one for one in schedules if one.name and one.name == name]
    return max(found, key=lambda one: (one.state in ("active", "paused"), one.created_at), default=None)


def _echo(schedule: Schedule, times: list[float]) -> str:
    when = when_of(schedule)
    shown = ", ".join(local_time(when, at) for at in times)
    called = f"{schedule.id} ({schedule.name})" if schedule.name else schedule.id
    if not schedule.recurring:
        return f"Scheduled {called}: once, at {shown}.{_limits(schedule)}"
    return f"Scheduled {called}: {describe(when)}.\nNext: {shown}.{_limits(schedule)}"


def _limits(schedule: Schedule) -> str:
    """Its budgets, on a line of their own."""
    whole, each = budget_words(schedule.budget), budget_words(schedule.fire_budget)
    parts = [*([f"{whole} in all"] if whole else []), *([f"{each} for each fire"] if each else [])]
    return f"\nBudget: {'; '.join(parts)}." if parts else ""


def _list_crons(given: _Nothing, context: ToolContext) -> ToolOutcome:
    schedules = sorted(context.board.schedules(), key=lambda schedule: (schedule.created_at, schedule.id))
    lines = [_line(schedule, context.now) for schedule in schedules]
    data = {"schedules": [schedule.model_dump(mode="json") for schedule in schedules]}
    return ToolOutcome("\n".join(lines) or "There are no schedules.", data=data)


def _line(schedule: Schedule, now: float) -> str:
    first = schedule.prompt.strip().splitlines()[0]
    called = f"{schedule.id} {schedule.name}" if schedule.name else schedule.id
    return f"{called} [{schedule.cron}, {schedule.timezone}; {_standing(schedule, now)}] {first}"


def _standing(schedule: Schedule, now: float) -> str:
    if schedule.state == "paused" and schedule.paused_why:
        return f"paused: {schedule.paused_why}"
    if schedule.state != "active" or not schedule.enabled:
        return schedule.state if schedule.state != "active" else "switched off"
    try:
        times = upcoming(schedule, now, 1)
        return f"next {local_time(when_of(schedule), times[0])}" if times else "never fires"
    except CronInvalid as error:  # a row of another version of the time zone data
        return f"cannot fire: {error}"


def _cancel_cron(given: _Cancel, context: ToolContext) -> ToolOutcome:
    named = _named(context.board.schedules(), given.job_id)
    found = context.board.schedule(named.id if named else given.job_id)
    if found is None:
        known = ", ".join(schedule.id for schedule in context.board.schedules() if schedule.state == "active")
        raise ToolRefused(f"job_id: no schedule {given.job_id}; active: {known or 'none'}")
    schedule, revision = found
    if schedule.state in {"cancelled", "fired", "ended"}:
        raise ToolRefused(f"{schedule.id} is {schedule.state} already")
    if schedule.source:
        raise ToolRefused(f"{schedule.id} comes from {schedule.source}: it stands as long as that file does")
    cancelled = schedule.model_copy(update={"state": "cancelled", "enabled": False})
    write = Put(schedule_key(context.session, schedule.id), cancelled.encode(), revision)
    return ToolOutcome(f"Cancelled {schedule.id}.", writes=(write,), data={"id": schedule.id})
