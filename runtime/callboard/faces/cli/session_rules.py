"""`policy rules`, `policy revoke`: what a person has allowed for always in a session, and taking it back.

It refuses to change anything inside a tool call: nobody approves himself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from callboard.desks.desk import Desk
from callboard.faces.cli.options import Given, as_json, everywhere, of_session, refuse_tools
from callboard.faces.cli.run import terminal_of
from callboard.faces.cli.team import at_desk, print_rows
from callboard.faces.pages.rules import rules_table
from callboard.faces.terminal import block
from callboard.words.values import SessionRule


@click.command()
@click.option("--all", "all_", is_flag=True, help="Also those that have expired or were taken back.")
@of_session
@as_json
@everywhere
@click.pass_obj
def rules(given: Given, /, session: str | None, all_: bool, json_: bool) -> None:
    """List the session rules: what was allowed with "always"."""

    async def read(desk: Desk) -> Sequence[SessionRule]:
        return desk.rules.all() if all_ else desk.rules.standing()

    now = time.time()
    print_rows(given, at_desk(given, session, read), lambda rows: rules_table(rows, now), json_=json_)


@click.command()
@click.argument("rule_id", metavar="ID")
@of_session
@everywhere
@click.pass_obj
def revoke(given: Given, /, rule_id: str, session: str | None) -> None:
    """Take a session rule back: from now on it allows nothing.

    ID is what `callboard policy rules` shows, or a beginning of it.
    """
    refuse_tools("Taking a session rule back")

    async def taking(desk: Desk) -> SessionRule:
        return await desk.rules.revoke(rule_id)

    taken = at_desk(given, session, taking)
    with terminal_of(given) as terminal:
        terminal.rows(block(f"{taken.id} revoked: {taken.rule} asks again", "good"))
