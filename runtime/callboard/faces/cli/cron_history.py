"""`cron history` and `cron stats`: what became of each fire."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import anyio
import click

from callboard.core.schedule.tally import FireStats, newest_first
from callboard.desks.all_schedules import open_schedules
from callboard.faces.cli.options import Given, as_json, everywhere, of_session
from callboard.faces.cli.run import terminal_of
from callboard.faces.pages.listings import as_json as json_of
from callboard.faces.pages.schedules import fire_json, history_table, stats_table
from callboard.words.schedules import Fire

USUAL = 20
"""Fires that are shown where nobody says how many."""


@click.command()
@click.argument("schedule_id", metavar="[ID]", required=False)
@click.option("--limit", type=click.IntRange(1), default=USUAL, show_default=True, help="At most so many, the newest.")
@of_session
@as_json
@everywhere
@click.pass_obj
def history(given: Given, /, schedule_id: str | None, limit: int, session: str | None, json_: bool) -> None:
    """Show what became of each fire, the newest first; of one schedule, or of all.

    done, failed, timed_out (its deadline), skipped (an earlier one was under way), refused (by a hook or a budget),
    missed (too late by its rules), replaced, lost (cut off with its process); waiting and running ones have not ended.
    """

    async def read() -> tuple[Sequence[Fire], Mapping[str, str]]:
        async with open_schedules(given.workspace, session) as every:
            desks = [every.desk_of(schedule_id)] if schedule_id else every.desks
            fires = [fire for desk in desks for fire in await desk.history(schedule_id)]
            return newest_first(fires)[:limit], {one.schedule.id: one.schedule.name for one in every.kept()}

    fires, names = anyio.run(read)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json.dumps([fire_json(fire, names) for fire in fires], indent=2))
        else:
            terminal.rows(history_table(fires, names))


@click.command()
@click.argument("schedule_id", metavar="[ID]", required=False)
@of_session
@as_json
@everywhere
@click.pass_obj
def stats(given: Given, /, schedule_id: str | None, session: str | None, json_: bool) -> None:
    """Count the fires of each schedule, or of one: outcomes, success rate, how long, what they cost.

    The success rate is the share of done among those that were run to some end: done, failed, timed_out, lost.
    """

    async def read() -> Sequence[FireStats]:
        async with open_schedules(given.workspace, session) as every:
            desks = [every.desk_of(schedule_id)] if schedule_id else every.desks
            return [one for desk in desks for one in await desk.stats(schedule_id)]

    rows = anyio.run(read)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json_of(rows))
        else:
            terminal.rows(stats_table(rows))
