"""`hosts`: the processes that host sessions of this store, and the sessions that wait for one."""

from __future__ import annotations

import json
from functools import partial

import anyio
import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.options import Invocation, as_json, everywhere, refuse_before_command
from callboard.cli.commands.output import notice_of, terminal_of
from callboard.cli.terminal.terminal import Block, block, stacked
from callboard.cli.views.listings import render_listing
from callboard.sessions.fleet import drain_host, list_hosts
from callboard.sessions.inspect.hosts import StoreHosts
from callboard.sessions.inspect.resources import HOSTS, WAITING_SESSIONS


@click.group(invoke_without_command=True)
@as_json
@everywhere
@click.pass_context
def hosts(context: click.Context, /, json_: bool) -> None:
    """List the hosts of the store, and the sessions that wait for one.

    For each process, on any machine: its name (machine and pid), whether it serves or hosts a session of its own, its
    version, its labels, and its sessions. A host that gives no sign of life is `silent`; after 10 seconds others
    replace it.
    """
    if context.invoked_subcommand is not None:
        refuse_before_command(context)
        return
    invocation: Invocation = context.obj
    seen = anyio.run(list_hosts, invocation.workspace, notice_of(invocation))
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps(hosts_json(seen), indent=2))
        else:
            terminal.rows(_page(seen))


@hosts.command()
@click.argument("name")
@click.option("--undo", is_flag=True, help="Let it take up sessions again.")
@everywhere
@click.pass_obj
def drain(invocation: Invocation, /, name: str, undo: bool) -> None:
    """Let a serving host hand its sessions over, each at the end of its current step.

    NAME is that of `callboard hosts`, or the name of a machine for all of its hosts. The host stays, and takes up no
    sessions.
    """
    refuse_inside_tool("Draining a host")
    names = anyio.run(partial(drain_host, invocation.workspace, name, notice_of(invocation), drain=not undo))
    text = "takes up sessions again" if undo else "hands its sessions over; `callboard hosts` shows the rest"
    with terminal_of(invocation) as terminal:
        terminal.rows(block("\n".join(f"{each} {text}" for each in names), "good"))


def hosts_json(seen: StoreHosts) -> dict[str, object]:
    """Return the hosts and the waiting sessions as JSON."""
    return {"hosts": HOSTS.records(seen.hosts), "waiting": WAITING_SESSIONS.records(seen.waiting)}


def _page(seen: StoreHosts) -> Block:
    table = render_listing(HOSTS, seen.hosts)
    if not seen.waiting:
        return table
    return stacked(table, block("\nsessions that wait for a host:"), render_listing(WAITING_SESSIONS, seen.waiting))
