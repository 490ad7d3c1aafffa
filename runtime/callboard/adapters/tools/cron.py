"""Schedules as tools: set one up, list them, cancel one. What an expression means is `callboard.core.schedule`'s.

A wrong expression is refused with the field that is wrong; a right one is echoed in words with its next fire times.
"""

from __future__ import annotations

from pydantic import Field

from callboard.adapters.tools.store_tool import Input, look_tool, store_tool
from callboard.core.names import schedule_key, short_id
from callboard.core.schedule import (
    Cron,
    CronInvalid,
    budget_words,
    describe,
    local_time,
    next_fire,
    next_three,
    parse_cron,
)
from callboard.ports.store import Put
from callboard.ports.tool import Tool, ToolContext, ToolOutcome
from callboard.words.errors import ToolRefused
from callboard.words.schedules import Schedule
from callboard.words.values import Budget

_SCHEDULE = """\
Have a prompt sent to you at set times, without the person. cron has five fields: minute hour day-of-month month \
day-of-week ('0 9 * * 1-5': nine on weekdays), or @hourly, @daily, @weekly, @monthly; give the person's time zone. \
Write the prompt so that it stands alone: when it fires, this conversation may be far back. recurring false fires \
once. Tell the person the times that the answer shows. Do not use it to wait for teammates or background commands: \
they wake you by themselves."""
_LIST = "List the schedules: id, expression, when each fires next, and its prompt."
_CANCEL = "Cancel a schedule by its id. It stays in the list of those that were, and never fires again."


class _Budget(Input):
    cost_usd: float | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0)
    steps: int | None = Field(default=None, ge=0, description="Model calls")
    seconds: float | None = Field(default=None, ge=0)

    def value(self) -> Budget:
        return Budget.model_validate(self.model_dump())


class _ScheduleCron(Input):
    cron: str
    prompt: str = Field(min_length=1, description="What to do when it fires, whole")
    timezone: str = Field(default="UTC", description="An IANA name, such as Europe/Berlin")
    recurring: bool = Field(default=True, description="False: it fires once, then never again")
    durable: bool = Field(default=True, description="False: it ends with this session's process")
    budget: _Budget = Field(default=_Budget(), description="For all fires together; used up, the schedule pauses")
    fire_budget: _Budget = Field(default=_Budget(), description="For each fire; used up, its turn ends")


class _Nothing(Input):
    pass


class _Cancel(Input):
    job_id: str


def cron_tools() -> tuple[Tool, ...]:
    """`schedule_cron`, `list_crons` and `cancel_cron`."""
    return (
        store_tool("schedule_cron", _SCHEDULE, _ScheduleCron, _schedule_cron),
        look_tool("list_crons", _LIST, _Nothing, _list_crons),
        store_tool("cancel_cron", _CANCEL, _Cancel, _cancel_cron),
    )


def _schedule_cron(given: _ScheduleCron, context: ToolContext) -> ToolOutcome:
    if not given.prompt.strip():
        raise ToolRefused("prompt: it is empty")
    try:
        cron = parse_cron(given.cron, given.timezone)
    except CronInvalid as error:
        raise ToolRefused(f"cron: {error}") from error
    schedule = Schedule(
        id=short_id("cron", context.call),
        cron=cron.text,
        prompt=given.prompt,
        timezone=given.timezone,
        recurring=given.recurring,
        durable=given.durable,
        created_by=context.spec.name,
        created_at=context.now,
        budget=given.budget.value(),
        fire_budget=given.fire_budget.value(),
    )
    write = Put(schedule_key(context.session, schedule.id), schedule.encode(), 0)
    times = next_three(cron, context.now)[: 3 if given.recurring else 1]
    data = {"id": schedule.id, "next": times}
    return ToolOutcome(_echo(schedule, cron, times), writes=(write,), data=data)


def _echo(schedule: Schedule, cron: Cron, times: list[float]) -> str:
    shown = ", ".join(local_time(cron, at) for at in times)
    if not schedule.recurring:
        return f"Scheduled {schedule.id}: once, at {shown}.{_limits(schedule)}"
    return f"Scheduled {schedule.id}: {describe(cron)}.\nNext: {shown}.{_limits(schedule)}"


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
    return f"{schedule.id} [{schedule.cron}, {schedule.timezone}; {_standing(schedule, now)}] {first}"


def _standing(schedule: Schedule, now: float) -> str:
    if schedule.state == "paused" and schedule.paused_why:
        return f"paused: {schedule.paused_why}"
    if schedule.state != "active" or not schedule.enabled:
        return schedule.state if schedule.state != "active" else "switched off"
    try:
        cron = parse_cron(schedule.cron, schedule.timezone)
    except CronInvalid as error:  # a row of another version of the time zone data
        return f"cannot fire: {error}"
    at = next_fire(cron, now)
    return f"next {local_time(cron, at)}" if at is not None else "never fires"


def _cancel_cron(given: _Cancel, context: ToolContext) -> ToolOutcome:
    found = context.board.schedule(given.job_id)
    if found is None:
        known = ", ".join(schedule.id for schedule in context.board.schedules() if schedule.state == "active")
        raise ToolRefused(f"job_id: no schedule {given.job_id}; active: {known or 'none'}")
    schedule, revision = found
    if schedule.state in {"cancelled", "fired"}:
        raise ToolRefused(f"{schedule.id} is {schedule.state} already")
    cancelled = schedule.model_copy(update={"state": "cancelled", "enabled": False})
    write = Put(schedule_key(context.session, schedule.id), cancelled.encode(), revision)
    return ToolOutcome(f"Cancelled {schedule.id}.", writes=(write,), data={"id": schedule.id})
