"""`cron pause|resume|remove|run`: how a schedule stands, changed by a person."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import click

from callboard.desks.all_schedules import open_schedules
from callboard.desks.schedules import CronDesk
from callboard.faces.cli.cron_fields import budgets, fields_given, told_by_option
from callboard.faces.cli.options import Given, everywhere, of_session, refuse_tools
from callboard.faces.cli.run import terminal_of
from callboard.faces.terminal import block


@click.command()
@click.argument("schedule_id", metavar="ID")
@click.option("--why", default="", metavar="TEXT", help="Kept with it, and shown.")
@of_session
@everywhere
@click.pass_obj
def pause(given: Given, /, schedule_id: str, why: str, session: str | None) -> None:
    """Keep a schedule from firing until it is resumed, by its ID or name.

    What would have fired meanwhile never runs. A fire that is under way goes on.
    """
    refuse_tools("Pausing a schedule")

    async def pausing(desk: CronDesk) -> str:
        await desk.pause(schedule_id, why)
        return f"{schedule_id} is paused: callboard cron resume {schedule_id} lets it fire again"

    _change(given, session, schedule_id, pausing)


@click.command()
@click.argument("schedule_id", metavar="ID")
@budgets
@of_session
@everywhere
@click.pass_obj
def resume(given: Given, /, schedule_id: str, session: str | None, **asked: Any) -> None:
    """Let a paused schedule fire again, from its next time on.

    A budget that is named takes the place of the old one; what was spent before counts. What would have fired while it
    was paused never runs.
    """
    refuse_tools("Resuming a schedule")

    async def resuming(desk: CronDesk) -> str:
        await desk.resume(schedule_id, fields_given(asked))
        return f"{schedule_id} fires again"

    _change(given, session, schedule_id, resuming)


@click.command()
@click.argument("schedule_id", metavar="ID")
@of_session
@everywhere
@click.pass_obj
def remove(given: Given, /, schedule_id: str, session: str | None) -> None:
    """Cancel a schedule, by its ID or name. It is kept as history."""
    refuse_tools("Removing a schedule")

    async def removing(desk: CronDesk) -> str:
        await desk.cancel(schedule_id)
        return f"{schedule_id} is cancelled"

    _change(given, session, schedule_id, removing)


@click.command()
@click.argument("schedule_id", metavar="ID")
@of_session
@everywhere
@click.pass_obj
def run(given: Given, /, schedule_id: str, session: str | None) -> None:
    """Fire a schedule now, beside its times, also one that is paused."""
    refuse_tools("Running a schedule")

    async def running(desk: CronDesk) -> str:
        fire = await desk.run(schedule_id)
        return f"{schedule_id} is sent, as {fire}: the process that hosts its session does it"

    _change(given, session, schedule_id, running)


def _change(given: Given, session: str | None, schedule_id: str, act: Callable[[CronDesk], Awaitable[str]]) -> None:
    """Do it at the desk of the session that has the schedule, and say what came of it."""

    async def changing() -> str:
        async with open_schedules(given.workspace, session) as every:
            with told_by_option():
                return await act(every.desk_of(schedule_id))

    said = anyio.run(changing)
    with terminal_of(given) as terminal:
        terminal.rows(block(said, "good"))
