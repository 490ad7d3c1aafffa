"""`inbox` and `trace`: the team's mail and what became of it, also while another process works on it. Reads only."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from callboard.core.bus.receipts import Receipt, Traced
from callboard.desks.desk import Desk
from callboard.faces.cli.options import Given, as_json, everywhere, of_session
from callboard.faces.cli.run import terminal_of
from callboard.faces.cli.team import at_desk, print_rows
from callboard.faces.pages.mail import inbox_table, to_show, trace_block, trace_json


@click.command()
@click.argument("agent", required=False)
@click.option("--all", "all_", is_flag=True, help="Also what was handled or dropped.")
@of_session
@as_json
@everywhere
@click.pass_obj
def inbox(given: Given, /, agent: str | None, session: str | None, all_: bool, json_: bool) -> None:
    """Show the mail of the team, or of one AGENT.

    What waits, what is being worked on, and dead letters; SINCE is when it came into its state.
    """

    async def read(desk: Desk) -> Sequence[Receipt]:
        return to_show(await desk.inbox(agent), everything=all_)

    print_rows(given, at_desk(given, session, read), inbox_table, json_=json_)


@click.command()
@click.argument("envelope")
@of_session
@as_json
@everywhere
@click.pass_obj
def trace(given: Given, /, envelope: str, session: str | None, json_: bool) -> None:
    """Show where an envelope came from and what it caused.

    ENVELOPE is an id as `callboard inbox` shows it, or a beginning of it.
    """

    async def read(desk: Desk) -> Traced:
        return await desk.trace(envelope)

    found = at_desk(given, session, read)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json.dumps(trace_json(found), indent=2))
        else:
            terminal.rows(trace_block(found))
