"""`inbox` and `trace`: the team's mail and its state, even while another process hosts the session. Read-only."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from callboard.cli.commands.options import Invocation, as_json, everywhere, of_session
from callboard.cli.commands.output import print_rows, terminal_of, with_handle
from callboard.cli.views.mail import inbox_table, to_show, trace_block, trace_json
from callboard.core.reports.receipts import EnvelopeTrace, Receipt
from callboard.sessions.handle import SessionHandle
from callboard.sessions.inspect.resources import MESSAGES


@click.command()
@click.argument("agent", required=False)
@click.option("--all", "all_", is_flag=True, help="Also show mail that was handled or dropped.")
@of_session
@as_json
@everywhere
@click.pass_obj
def inbox(invocation: Invocation, /, *, agent: str | None, session: str | None, all_: bool, json_: bool) -> None:
    """Show the mail of the team, or of one AGENT.

    Waiting mail, mail in progress, and dead letters. SINCE is the time of the last change of state.
    """

    async def read(handle: SessionHandle) -> Sequence[Receipt]:
        return to_show(await handle.inbox(agent), everything=all_)

    print_rows(invocation, with_handle(invocation, session, read), inbox_table, json_=json_, record=MESSAGES.record)


@click.command()
@click.argument("envelope")
@of_session
@as_json
@everywhere
@click.pass_obj
def trace(invocation: Invocation, /, envelope: str, session: str | None, json_: bool) -> None:
    """Show the origin and effects of an envelope.

    ENVELOPE is an id as shown by `callboard inbox`, or a prefix of it.
    """

    async def read(handle: SessionHandle) -> EnvelopeTrace:
        return await handle.trace(envelope)

    traced = with_handle(invocation, session, read)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps(trace_json(traced), indent=2))
        else:
            terminal.rows(trace_block(traced))
