"""`mcp list|get|add|add-json|remove|test|serve`: the MCP servers that sessions use, and this runtime as one of them.

The SDK is loaded when a server is really spoken to, and not before.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from callboard.faces.cli.options import Given, everywhere, refuse_tools
from callboard.faces.cli.run import MODES, flags_of, terminal_of


@click.group()
def mcp() -> None:
    """List, add, remove and test MCP servers, or serve this runtime as one."""


@mcp.command()
@click.option(
    "--workspace",
    "workspaces",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Sessions may work in this folder too; the usual one is --cwd.",
)
@click.option("--http", default="", metavar="HOST:PORT", help="Serve this machine over HTTP instead of stdio.")
@click.option("--may-approve", is_flag=True, help="The client may approve, reject and answer in your name.")
@click.option("--model", metavar="NAME", help="Of new sessions; rehearsal:FILE needs no key.")
@click.option("--permission-mode", type=click.Choice(MODES), help="What happens to calls that no rule decides.")
@click.option("--allowed-tools", "--allowedTools", "allow", multiple=True, metavar="RULE", help="Allow without asking.")
@click.option("--disallowed-tools", "--disallowedTools", "deny", multiple=True, metavar="RULE", help="Refuse.")
@click.option("--max-turns", type=click.IntRange(min=1), help="Model steps in a turn, at most.")
@click.option("--max-budget-usd", type=click.FloatRange(min=0), help="Dollars that one session may cost, at most.")
@click.option("--trust", is_flag=True, help="Use what the workspaces bring: hooks, agents, servers, settings.")
@everywhere
@click.pass_obj
def serve(given: Given, /, **asked: Any) -> int:
    """Serve this runtime to an MCP client: run, wait, status, plans, approve, send, team, cost.

    Other programs start it as a server with the command `callboard mcp serve` (docs/mcp.md has the entry to write),
    and speak to it over stdin and stdout. Its sessions are hosted in this process. When the client
    leaves, and at SIGTERM, they are left in order: `callboard resume` goes on with them.

    Approving is a person's: without --may-approve a client that wants to approve is told your command for it.
    """
    refuse_tools("Serving sessions")
    # It takes the MCP SDK half a second to load, and no other command here needs all of it.
    serving = importlib.import_module("callboard.faces.mcp.serve")
    hosting = importlib.import_module("callboard.hosting_clients")
    wanted = hosting.Wanted(
        tuple(dict.fromkeys((given.workspace, *asked["workspaces"]))),
        trust=bool(asked["trust"]),
        model=asked["model"],
        flags=flags_of(asked),
        max_cost_usd=asked["max_budget_usd"],
    )
    with terminal_of(given) as terminal:
        return serving.run_server(serving.Served(wanted, bool(asked["may_approve"]), asked["http"]), terminal)
