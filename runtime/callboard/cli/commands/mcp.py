"""Commands of `mcp`: the MCP servers of sessions, and this runtime as a server.

The SDK is imported only when a server is contacted. Values of variables and headers are never shown. This module also
converts the arguments of `mcp add` into an entry of `.mcp.json`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.client_options import json_object
from callboard.cli.commands.known_names import KnownNamesGroup
from callboard.cli.commands.options import (
    FiniteRange,
    Invocation,
    as_json,
    everywhere,
    flags_of,
    permission_options,
    refuse_idle,
    with_plugins,
)
from callboard.cli.commands.output import notice_of, terminal_of
from callboard.cli.commands.trust import revoke
from callboard.cli.terminal.terminal import Block, Line, Terminal, block
from callboard.cli.views.servers import call_block, entry_block, entry_json, server_json, servers_table, test_block
from callboard.sessions.inspect.mcp_servers import (
    ConfiguredServers,
    Scope,
    WrittenEntry,
    add_server,
    remove_server,
    servers_of,
)
from callboard.types.choices import choose
from callboard.types.errors import UsageError
from callboard.types.records import Json

_CONFIG = click.option(
    "--mcp-config", "given", multiple=True, metavar="FILE", help="Also include these servers: a file or JSON."
)
_TRUST = click.option("--trust", is_flag=True, help="Show the result for a trusted workspace.")
_SCOPE = click.option(
    "-s",
    "--scope",
    metavar="WHERE",
    help="Where to store the entry: person (all your workspaces) or workspace (.mcp.json).",
)
_REPLACE = click.option("--replace", is_flag=True, help="Replace an existing entry of that name.")


_NO_OAUTH = "Callboard signs in to no server: give a key with --header, or the variables that the server reads"


@click.group(
    cls=KnownNamesGroup,
    aliases={"rm": "remove", "ls": "list"},
    elsewhere={
        "add-from-claude-desktop": "copy the entry from claude_desktop_config.json: callboard mcp add-json NAME JSON",
        "login": _NO_OAUTH,
        "logout": _NO_OAUTH,
    },
)
def mcp() -> None:
    """List, add, remove and test MCP servers, or serve Callboard as one."""


@mcp.command("list")
@click.option("--check", is_flag=True, help="Connect to each server and show its state and its capabilities.")
@as_json
@_TRUST
@_CONFIG
@with_plugins
@everywhere
@click.pass_obj
def list_(invocation: Invocation, /, *, check: bool, json_: bool, **values: Any) -> int:
    """List the MCP servers of this workspace: scope, transport, file, and whether they may be used.

    --check connects to each enabled server; the exit code is 1 if one fails.
    """
    servers = _servers(invocation, values)
    names = [name for name in servers.shown if servers.state_of(name)[0] == "waiting"]
    checked = {result.now.name: result.now for result in _checking().check(servers, names)} if check and names else {}
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(
                json.dumps([server_json(servers, name, checked.get(name)) for name in servers.shown], indent=2)
            )
        else:
            terminal.rows(servers_table(servers, checked))
            terminal.rows(Block(tuple(_notes(servers))))
    return 1 if any(server.state == "failed" for server in checked.values()) else 0


@mcp.command()
@click.argument("name")
@as_json
@_TRUST
@_CONFIG
@with_plugins
@everywhere
@click.pass_obj
def get(invocation: Invocation, /, *, name: str, json_: bool, **values: Any) -> None:
    """Show one server: its entry, the file of the entry, and whether it may be used."""
    servers = _servers(invocation, values)
    entry = servers.entry(name)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps(server_json(servers, name, None), indent=2))
        else:
            terminal.rows(entry_block(entry, *servers.state_of(name)))


@mcp.command()
@click.argument("name")
@click.argument("target", metavar="COMMAND|URL")
@click.argument("args", nargs=-1, metavar="[ARGS]...")
@_SCOPE
@click.option("-t", "--transport", type=click.Choice(["stdio", "http", "sse"]), help="Transport of the server.")
@click.option("-e", "--env", "env", multiple=True, metavar="K=V", help="Environment variable of the server's process.")
@click.option("-H", "--header", "headers", multiple=True, metavar="K:V", help="Header of each request.")
@click.option(
    "--timeout", type=FiniteRange(min=0, min_open=True), metavar="SECONDS", help="Timeout of one call in seconds."
)
@_REPLACE
@everywhere
@click.pass_obj
def add(
    invocation: Invocation, /, *, name: str, target: str, args: Sequence[str], scope: str | None, **values: Any
) -> None:
    """Add a server NAME: a command with its arguments after `--`, or a URL.

    callboard mcp add files -- npx -y @modelcontextprotocol/server-filesystem .

    callboard mcp add --transport http docs https://example.org/mcp

    It is written to your own mcp.json, or with --scope workspace to .mcp.json, for everyone who works there. Write
    secrets as ${NAME}: they are taken from your environment when the server is started.
    """
    refuse_inside_tool("Adding a server")
    entry = entry_of(target, args, values)
    done = add_server(invocation.workspace, name, entry, scope_of(scope), replace=values["replace"])
    _show(invocation, name, done, "added to")


@mcp.command("add-json")
@click.argument("name")
@click.argument("entry", metavar="JSON")
@_SCOPE
@_REPLACE
@everywhere
@click.pass_obj
def add_json(invocation: Invocation, /, *, name: str, entry: str, scope: str | None, replace: bool) -> None:
    """Add a server with its entry as JSON, in the form of .mcp.json."""
    refuse_inside_tool("Adding a server")
    _show(
        invocation,
        name,
        add_server(invocation.workspace, name, json_object(entry, "the entry"), scope_of(scope), replace=replace),
        "added to",
    )


@mcp.command()
@click.argument("name")
@_SCOPE
@everywhere
@click.pass_obj
def remove(invocation: Invocation, /, *, name: str, scope: str | None) -> None:
    """Remove a server from your own mcp.json, or from the workspace's .mcp.json."""
    refuse_inside_tool("Removing a server")
    place: Scope | None = scope_of(scope) if scope is not None else None
    _show(invocation, name, remove_server(invocation.workspace, name, place), "removed from")


@mcp.command("reset-project-choices")
@everywhere
@click.pass_context
def reset_project_choices(ctx: click.Context, /) -> None:
    """Ask again before the servers of this workspace's .mcp.json are used.

    The same as `trust revoke`: trust covers everything that the workspace brings, so hooks and agents are asked about
    again, too.
    """
    ctx.invoke(revoke, workspaces=())


@mcp.command()
@click.argument("name")
@click.option("--call", "tool", metavar="TOOL", help="Call this tool with the arguments of --input.")
@click.option("--input", "input_", default="{}", metavar="JSON", help="With --call: arguments as JSON.")
@as_json
@_TRUST
@_CONFIG
@with_plugins
@everywhere
@click.pass_obj
def test(invocation: Invocation, /, *, name: str, tool: str | None, input_: str, json_: bool, **values: Any) -> int:
    """Connect to one server and list its tools, prompts and resources, or call one of its tools.

    The exit code is 1 if it cannot be reached or the tool reports an error, 3 if it is untrusted or off.
    """
    refuse_inside_tool("Testing a server")
    if tool is None:
        refuse_idle(("input_",), "without --call TOOL")
    servers = _servers(invocation, values)
    servers.entry(name)
    state, reason = servers.state_of(name)
    arguments = json_object(input_, "--input")
    with terminal_of(invocation) as terminal:
        if state != "waiting":
            terminal.terminal_print(block(f"callboard: the MCP server {name} is {state}: {reason}", "bad"))
            return 3
        if tool is not None:
            outcome = _checking().call(servers, name, tool, arguments, tell=_progress_to(terminal))
            if json_:
                terminal.record(json.dumps({"is_error": outcome.is_error, "content": outcome.content}, indent=2))
            else:
                terminal.rows(call_block(outcome))
            return 1 if outcome.is_error else 0
        (result,) = _checking().check(servers, [name])
        if json_:
            terminal.record(json.dumps(server_json(servers, name, result.now, result.tools), indent=2))
        else:
            terminal.rows(test_block(result.now, result.tools))
        return 0 if result.now.state == "connected" else 1


@mcp.command()
@click.option(
    "--workspace",
    "workspaces",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Also allow sessions in this folder; the default folder is --cwd.",
)
@click.option("--http", default="", metavar="HOST:PORT", help="Serve this machine over HTTP instead of stdio.")
@click.option("--may-approve", is_flag=True, help="Let the client approve, reject and answer in your name.")
@click.option("--model", metavar="NAME", help="Model of new sessions; rehearsal:FILE needs no key.")
@permission_options
@click.option("--max-turns", type=click.IntRange(min=1), metavar="N", help="Maximum model steps per turn.")
@click.option(
    "--max-budget-usd", type=FiniteRange(min=0), metavar="USD", help="Maximum cost of one session in dollars."
)
@click.option("--trust", is_flag=True, help="Trust the workspaces: use their hooks, agents, servers and settings.")
@everywhere
@click.pass_obj
def serve(invocation: Invocation, /, **values: Any) -> int:
    """Serve Callboard to an MCP client: run, wait, status, plans, approve, send, team, cost.

    Other programs start it as a server with the command `callboard mcp serve` (docs/mcp.md has the entry), and use it
    over stdin and stdout. This process hosts its sessions. When the client disconnects, and at SIGTERM, it closes them
    in order, and `callboard resume` continues them. Without --may-approve only a person approves: the client gets the
    command for you to type.
    """
    refuse_inside_tool("Serving sessions")
    # The MCP SDK takes half a second to import, and no other command here needs all of it.
    serving = importlib.import_module("callboard.cli.mcp_server.serve")
    hosting = importlib.import_module("callboard.sessions.client_sessions")
    settings = hosting.ServerLimits(
        tuple(dict.fromkeys((invocation.workspace, *values["workspaces"]))),
        trust=bool(values["trust"]),
        model=values["model"],
        flags=flags_of(values),
        max_cost_usd=values["max_budget_usd"],
        notice=notice_of(invocation),
    )
    with terminal_of(invocation) as terminal:
        options = serving.ServerOptions(settings, bool(values["may_approve"]), values["http"])
        return serving.run_server(options, terminal)


def _servers(invocation: Invocation, values: dict[str, Any]) -> ConfiguredServers:
    return servers_of(invocation.workspace, plugins=values["plugins"], configs=values["given"], trust=values["trust"])


def _checking() -> Any:
    """Import the SDK. That takes half a second, which a listing does not need."""
    return importlib.import_module("callboard.cli.mcp_server.checking")


def _progress_to(terminal: Terminal) -> Callable[[str], None]:
    return lambda line: terminal.terminal_print(block(line, "dim", progress=True))


def _notes(servers: ConfiguredServers) -> Iterator[Line]:
    for note in servers.configured.notes:
        yield Line(str(note), "warn" if note.verdict == "refused" else "dim")


def _show(invocation: Invocation, name: str, done: WrittenEntry, action: str) -> None:
    """Print the written entry, and the steps before it takes effect."""
    lines = [Line(f"{name} {action} {done.path}", "good"), Line(json.dumps({name: entry_json(done.entry)}), "dim")]
    lines += [Line(note, "warn") for note in done.ignored]
    if done.needs_trust and action == "added to":
        lines.append(Line("the content of a workspace is used once a person trusts it: `callboard trust`", "warn"))
    elif action == "added to":
        lines.append(Line(f"new sessions use it; `callboard mcp test {name}` tries it", "dim"))
    with terminal_of(invocation) as terminal:
        terminal.rows(Block(tuple(lines)))


_SCOPES: Mapping[str, Scope] = {"person": "person", "user": "person", "workspace": "workspace", "project": "workspace"}
"""Names of scopes, including those of other programs."""


def scope_of(text: str | None) -> Scope:
    """Return the scope to write to; by default the user's own file. Raises `UsageError`."""
    if text is None:
        return "person"
    if text not in _SCOPES:
        scopes = choose(["person (all your workspaces)", "workspace (.mcp.json)"])
        raise UsageError(f"--scope: unknown scope {text!r}: {scopes}")
    return _SCOPES[text]


def entry_of(target: str, args: Sequence[str], values: Mapping[str, Any]) -> Json:
    """Return the entry of a command or a URL. Raises `UsageError` for options that exclude each other."""
    address = target.lower().startswith(("http://", "https://"))
    transport = values["transport"] or ("http" if address else "stdio")
    if transport == "stdio":
        if address:
            raise UsageError(f"{target} is an address, not a command: omit --transport, or use http")
        if values["headers"]:
            raise UsageError("--header is for an address; for a command use --env")
        entry: Json = {"type": "stdio", "command": target, "args": list(args)}
        if values["env"]:
            entry["env"] = dict(_pair(pair, "=", "--env") for pair in values["env"])
    else:
        if not address:
            raise UsageError(f"--transport {transport} requires an address that begins with https:// or http://")
        if args or values["env"]:
            raise UsageError("arguments and --env are for a command; for an address use --header")
        entry = {"type": transport, "url": target}
        if values["headers"]:
            entry["headers"] = dict(_pair(pair, ":", "--header") for pair in values["headers"])
    if values["timeout"] is not None:
        entry["timeout"] = round(values["timeout"] * 1000)  # milliseconds, as in .mcp.json everywhere
    return entry


def _pair(text: str, mark: str, option: str) -> tuple[str, str]:
    name, separator, value = text.partition(mark)
    if not separator or not name.strip():
        raise UsageError(f"{option} {name}: give NAME{mark}VALUE")
    return name.strip(), value if mark == "=" else value.strip()
