"""`cost [SESSION]`: the spending of a session by agent, model and day, during and after its run. Read-only."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from callboard.cli.commands.options import Invocation, as_json, everywhere, of_session
from callboard.cli.commands.output import terminal_of, with_handle
from callboard.cli.views.cost import By, cost_block, cost_json
from callboard.core.budgets.tree import BudgetNode
from callboard.core.reports.spending import Spending
from callboard.sessions.handle import SessionHandle
from callboard.types.errors import UsageError


@click.command()
@click.argument("id_", metavar="[SESSION]", required=False)
@click.option(
    "--by",
    type=click.Choice(["agent", "model", "day"]),
    default="agent",
    show_default=True,
    help="Group the costs by this.",
)
@of_session
@as_json
@everywhere
@click.pass_obj
def cost(invocation: Invocation, /, *, id_: str | None, by: By, session: str | None, json_: bool) -> None:
    """Show what a session spent.

    For SESSION or the current session: calls, tokens, cache reads and cost of each agent, its model, calls that were
    billed but not used, retries, and budgets. JSON groups costs by agent, model, day and schedule.
    """
    if id_ and session and id_ != session:
        raise UsageError(f"one session at a time: {id_} or {session}?")

    async def read(handle: SessionHandle) -> tuple[Spending, Sequence[BudgetNode]]:
        return await handle.cost(), await handle.budgets()

    spending, budgets = with_handle(invocation, id_ or session, read)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps(cost_json(spending, budgets), indent=2))
        else:
            terminal.rows(cost_block(spending, by, budgets))
