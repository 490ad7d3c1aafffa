"""`cost [SESSION]`: what a session spent, by agent and by model, while it runs and when it has ended. Reads only."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from callboard.core.budget.spending import Spending
from callboard.core.budget.tree import Node
from callboard.desks.desk import Desk
from callboard.faces.cli.options import Given, as_json, everywhere, of_session
from callboard.faces.cli.run import terminal_of
from callboard.faces.cli.team import at_desk
from callboard.faces.pages.cost import By, cost_block, cost_json
from callboard.words.errors import UsageError


@click.command()
@click.argument("id_", metavar="[SESSION]", required=False)
@click.option(
    "--by", type=click.Choice(["agent", "model"]), default="agent", show_default=True, help="Rows of the table."
)
@of_session
@as_json
@everywhere
@click.pass_obj
def cost(given: Given, /, id_: str | None, by: By, session: str | None, json_: bool) -> None:
    """Show what a session spent.

    The current session, or SESSION: calls, tokens, cache reads and money of each agent, on which model, what was billed
    without use, tries again, and its budgets. JSON has it by agent, by model and by schedule.
    """
    if id_ and session and id_ != session:
        raise UsageError(f"one session at a time: {id_} or {session}?")

    async def read(desk: Desk) -> tuple[Spending, Sequence[Node]]:
        return await desk.cost(), await desk.budgets()

    found, budgets = at_desk(given, id_ or session, read)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json.dumps(cost_json(found, budgets), indent=2))
        else:
            terminal.rows(cost_block(found, by, budgets))
