"""`mcp list|get|add|add-json|remove|test|serve`: the MCP servers that sessions use, and this runtime as one of them.

The SDK is loaded when a server is really spoken to, and not before. Values of variables and headers are never shown.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from callboard.desks.servers import Scope, Servers, Written, add_server, remove_server, servers_of
from callboard.faces.cli.mcp_entries import entry_of, json_entry, scope_of
from callboard.faces.cli.options import Given, as_json, everywhere, refuse_tools, with_plugins
from callboard.faces.cli.run import MODES, flags_of, terminal_of
from callboard.faces.pages.servers import call_block, entry_block, entry_json, server_json, servers_table, test_block
from callboard.faces.terminal import Block, Line, Terminal, block

_CONFIG = click.option("--mcp-config", "given", multiple=True, metavar="FILE", help="Also these: a file, or JSON.")
_TRUST = click.option("--trust", is_flag=True, help="As they are when this workspace is trusted.")
_SCOPE = click.option("-s", "--scope", metavar="WHERE", help="person (all your workspaces) or workspace (.mcp.json).")
_REPLACE = click.option("--replace", is_flag=True, help="Write over an entry of that name.")


@click.group()
def mcp() -> None:
    """List, add, remove and test MCP servers, or serve this runtime as one."""


@mcp.command("list")
@click.option("--check", is_flag=True, help="Connect to each, and say how it stands and what it offers.")
@as_json
@_TRUST
@_CONFIG
@with_plugins
@everywhere
@click.pass_obj
def list_(given: Given, /, *, check: bool, json_: bool, **asked: Any) -> int:
    """List the MCP servers of this workspace: scope, transport, file, and whether they may be used.

    With --check each that is on is connected for a moment, and the exit code is 1 when one of them fails.
    """
    found = _found(given, asked)
    names = [name for name in found.shown if found.state_of(name)[0] == "waiting"]
    checked = {one.now.name: one.now for one in _checking().check(found, names)} if check and names else {}
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json.dumps([server_json(found, name, checked.get(name)) for name in found.shown], indent=2))
        else:
            terminal.rows(servers_table(found, checked))
            terminal.rows(Block(tuple(_notes(found))))
    return 1 if any(one.state == "failed" for one in checked.values()) else 0


@mcp.command()
@click.argument("name")
@as_json
@_TRUST
@_CONFIG
@with_plugins
@everywhere
@click.pass_obj
def get(given: Given, /, *, name: str, json_: bool, **asked: Any) -> None:
    """Show one server: its entry, where that stands, and whether it may be used."""
    found = _found(given, asked)
    entry = found.entry(name)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json.dumps(server_json(found, name, None), indent=2))
        else:
            terminal.rows(entry_block(entry, *found.state_of(name)))


@mcp.command()
@click.argument("name")
@click.argument("target", metavar="COMMAND|URL")
@click.argument("args", nargs=-1, metavar="[ARGS]...")
@_SCOPE
@click.option("-t", "--transport", type=click.Choice(["stdio", "http", "sse"]), help="How it is reached.")
@click.option("-e", "--env", "env", multiple=True, metavar="K=V", help="A variable of its process.")
@click.option("-H", "--header", "headers", multiple=True, metavar="K:V", help="A header of each request.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds that one call may take.")
@_REPLACE
@everywhere
@click.pass_obj
def add(given: Given, /, *, name: str, target: str, args: Sequence[str], scope: str | None, **asked: Any) -> None:
    """Add a server by the name NAME: a command with its arguments after `--`, or an address.

    callboard mcp add files -- npx -y @modelcontextprotocol/server-filesystem .

    callboard mcp add --transport http docs https://example.org/mcp

    It is written to your own mcp.json, or with --scope workspace to .mcp.json, for everybody who works there. Write
    secrets as ${NAME}: they are taken from your environment when the server is started.
    """
    refuse_tools("Adding a server")
    entry = entry_of(target, args, asked)
    done = add_server(given.workspace, name, entry, scope_of(scope), replace=asked["replace"])
    _show(given, name, done, "added to")


@mcp.command("add-json")
@click.argument("name")
@click.argument("entry", metavar="JSON")
@_SCOPE
@_REPLACE
@everywhere
@click.pass_obj
def add_json(given: Given, /, *, name: str, entry: str, scope: str | None, replace: bool) -> None:
    """Add a server whose entry is written out as JSON, as it stands in .mcp.json."""
    refuse_tools("Adding a server")
    _show(
        given,
        name,
        add_server(given.workspace, name, json_entry(entry), scope_of(scope), replace=replace),
        "added to",
    )


@mcp.command()
@click.argument("name")
@_SCOPE
@everywhere
@click.pass_obj
def remove(given: Given, /, *, name: str, scope: str | None) -> None:
    """Remove a server from your own mcp.json, or from the workspace's .mcp.json."""
    refuse_tools("Removing a server")
    wanted: Scope | None = scope_of(scope) if scope is not None else None
    _show(given, name, remove_server(given.workspace, name, wanted), "removed from")


@mcp.command()
@click.argument("name")
@click.option("--call", "tool", metavar="TOOL", help="Call this tool, with the JSON of --input.")
@click.option("--input", "input_", default="{}", metavar="JSON", help="With --call: its arguments.")
@as_json
@_TRUST
@_CONFIG
@with_plugins
@everywhere
@click.pass_obj
def test(given: Given, /, *, name: str, tool: str | None, input_: str, json_: bool, **asked: Any) -> int:
    """Connect to one server and list its tools, prompts and resources, or call one of its tools.

    The exit code is 1 when it cannot be reached or the tool says that it failed, 3 when it is not trusted or off.
    """
    refuse_tools("Testing a server")
    found = _found(given, asked)
    found.entry(name)
    state, why = found.state_of(name)
    arguments = json_entry(input_, "--input")
    with terminal_of(given) as terminal:
        if state != "waiting":
            terminal.terminal_print(block(f"callboard: the MCP server {name} is {state}: {why}", "bad"))
            return 3
        if tool is not None:
            outcome = _checking().call(found, name, tool, arguments, _progress_to(terminal))
            if json_:
                terminal.record(json.dumps({"is_error": outcome.is_error, "content": outcome.content}, indent=2))
            else:
                terminal.rows(call_block(outcome))
            return 1 if outcome.is_error else 0
        (one,) = _checking().check(found, [name])
        if json_:
            terminal.record(json.dumps(server_json(found, name, one.now, one.tools), indent=2))
        else:
            terminal.rows(test_block(one.now, one.tools))
        return 0 if one.now.state == "connected" else 1


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


def _found(given: Given, asked: dict[str, Any]) -> Servers:
    return servers_of(given.workspace, plugins=asked["plugins"], given=asked["given"], trust=asked["trust"])


def _checking() -> Any:
    """It loads the SDK, which takes half a second that no listing waits for."""
    return importlib.import_module("callboard.faces.mcp.checking")


def _progress_to(terminal: Terminal) -> Callable[[str], None]:
    return lambda line: terminal.terminal_print(block(line, "dim", progress=True))


def _notes(found: Servers) -> Iterator[Line]:
    for note in found.configured.notes:
        yield Line(str(note), "warn" if note.verdict == "refused" else "dim")


def _show(given: Given, name: str, done: Written, what: str) -> None:
    """What was written, and what has to happen before it counts."""
    lines = [Line(f"{name} {what} {done.path}", "good"), Line(json.dumps({name: entry_json(done.entry)}), "dim")]
    lines += [Line(one, "warn") for one in done.told]
    if done.needs_trust and what == "added to":
        lines.append(Line("what a workspace brings is used once a person trusts it: `callboard trust`", "warn"))
    elif what == "added to":
        lines.append(Line(f"new sessions use it; `callboard mcp test {name}` tries it", "dim"))
    with terminal_of(given) as terminal:
        terminal.rows(Block(tuple(lines)))
