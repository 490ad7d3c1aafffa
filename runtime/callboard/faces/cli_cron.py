"""`cron add|list|remove|run`: schedules of a session, from any terminal.

It refuses to change schedules inside a tool call: an agent has tools of its own for that, which are judged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import click

from callboard.desk import Desk, schedule_words
from callboard.faces.cli_options import Given, as_json, everywhere, of_session, refuse_tools
from callboard.faces.cli_run import terminal_of
from callboard.faces.cli_team import at_desk, print_rows
from callboard.faces.listings import schedules_table, when
from callboard.faces.terminal import block
from callboard.words.values import Schedule


@click.group()
def cron() -> None:
    """Add, list, remove and run schedules."""


@cron.command()
@click.argument("expression", metavar="EXPR")
@click.argument("prompt")
@click.option("--timezone", default="UTC", show_default=True, metavar="ZONE", help="Such as Europe/Berlin.")
@click.option("--once", is_flag=True, help="Fire once, then keep it as history.")
@of_session
@everywhere
@click.pass_obj
def add(given: Given, /, expression: str, prompt: str, timezone: str, once: bool, session: str | None) -> None:
    """Give PROMPT to the session's lead whenever EXPR (five fields, or @daily and the like) says so."""
    refuse_tools("Adding a schedule")

    async def adding(desk: Desk) -> Schedule:
        return await desk.add_schedule(expression, prompt, timezone, recurring=not once)

    added = at_desk(given, session, adding)
    meaning, times = schedule_words(added, added.created_at)
    lines = [f"{added.id}: {meaning}", *(f"  next: {when(each)}" for each in times)]
    with terminal_of(given) as terminal:
        terminal.rows(block("\n".join(lines)))


@cron.command("list")
@of_session
@as_json
@everywhere
@click.pass_obj
def list_(given: Given, /, session: str | None, json_: bool) -> None:
    """List the schedules of a session."""

    async def read(desk: Desk) -> Sequence[Schedule]:
        return desk.schedules()

    print_rows(given, at_desk(given, session, read), schedules_table, json_=json_)


@cron.command()
@click.argument("schedule_id", metavar="ID")
@of_session
@everywhere
@click.pass_obj
def remove(given: Given, /, schedule_id: str, session: str | None) -> None:
    """Cancel a schedule. It is kept as history."""
    refuse_tools("Removing a schedule")

    _change(given, session, Desk.cancel_schedule, schedule_id, "is cancelled")


@cron.command()
@click.argument("schedule_id", metavar="ID")
@of_session
@everywhere
@click.pass_obj
def run(given: Given, /, schedule_id: str, session: str | None) -> None:
    """Give a schedule's prompt to the lead now, beside its times."""
    refuse_tools("Running a schedule")
    _change(given, session, Desk.run_schedule, schedule_id, "is in the lead's mailbox")


def _change(
    given: Given, session: str | None, act: Callable[[Desk, str], Awaitable[None]], schedule_id: str, said: str
) -> None:
    async def changing(desk: Desk) -> None:
        await act(desk, schedule_id)

    at_desk(given, session, changing)
    with terminal_of(given) as terminal:
        terminal.rows(block(f"{schedule_id} {said}", "good"))
