"""`agents list|show|new`: the agent types of a workspace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.options import Invocation, as_json, everywhere, with_plugins
from callboard.cli.commands.output import print_new_file, terminal_of
from callboard.cli.terminal.terminal import Block, Line
from callboard.cli.views.listings import as_json as json_of
from callboard.cli.views.listings import table
from callboard.core.trust.claims import printable
from callboard.sessions.inspect.agents import AgentDetails, AgentLine, AgentListing, list_agents, new_agent, show_agent

_TRUST = click.option("--trust", is_flag=True, help="Show the result for a trusted workspace.")


@click.group(invoke_without_command=True)
@everywhere
@click.pass_context
def agents(ctx: click.Context, /) -> None:
    """List, show and create agent types.

    Without a command: the same as `agents list`.
    """
    if ctx.invoked_subcommand is None:
        _list(ctx.ensure_object(Invocation), (), trust=False, json_=False)


@agents.command("list")
@as_json
@_TRUST
@with_plugins
@everywhere
@click.pass_obj
def list_(invocation: Invocation, /, *, json_: bool, trust: bool, plugins: tuple[Path, ...]) -> None:
    """List the agent types: purpose, origin, tools and model.

    Includes types that another type of the same name hides, and refused files and fields. `callboard doctor
    --compat` lists every field. If the settings cannot be read, the list lacks the installed plugins, and the exit
    code is 3.
    """
    _list(invocation, plugins, trust=trust, json_=json_)


def _list(invocation: Invocation, plugins: tuple[Path, ...], *, trust: bool, json_: bool) -> None:
    listing = list_agents(invocation.workspace, plugins, trust=trust)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json_of(listing.lines))
        else:
            terminal.rows(table(_HEADS, [_cells(line) for line in listing.lines], "no agent types"))
            terminal.rows(Block(tuple(_notes(listing))))
    if listing.fault is not None:
        raise listing.fault


@agents.command()
@click.argument("name")
@as_json
@_TRUST
@with_plugins
@everywhere
@click.pass_obj
def show(invocation: Invocation, /, *, name: str, json_: bool, trust: bool, plugins: tuple[Path, ...]) -> None:
    """Show an agent type: each field with its origin, its tools, its instructions."""
    agent = show_agent(invocation.workspace, plugins, name, trust=trust)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json_of([agent]))
        else:
            terminal.rows(Block(tuple(_agent_lines(agent))))


@agents.command()
@click.argument("name")
@click.option("--person", is_flag=True, help="Create it for all your workspaces instead of this one.")
@everywhere
@click.pass_obj
def new(invocation: Invocation, /, *, name: str, person: bool) -> None:
    """Write a commented file for a new agent type NAME, ready to edit.

    It goes to `.callboard/agents` of this workspace. An existing file is never overwritten.
    """
    refuse_inside_tool("Writing an agent file")
    path = new_agent(invocation.workspace, name, person=person)
    print_new_file(invocation, path, person=person)


_HEADS = ("NAME", "FROM", "MODEL", "TOOLS", "FOR")


def _cells(line: AgentLine) -> tuple[str, ...]:
    tools = "all" if line.tools is None else ", ".join(line.tools) or "none"
    about = f"(hidden by {line.shadowed_by})" if line.shadowed_by else line.description
    return tuple(printable(text) for text in (line.name, line.source, line.model, tools, about))


def _notes(listing: AgentListing) -> Iterator[Line]:
    for note in listing.notes:
        yield Line(printable(note), "warn")


def _agent_lines(agent: AgentDetails) -> Iterator[Line]:
    yield Line(printable(f"{agent.name}  {agent.source}  {agent.path}"), "good")
    width = max(len(field.name) for field in agent.fields)
    for field in agent.fields:
        where = "default" if field.where == "default" else field.where.removeprefix(f"{agent.path}:")
        line = where if where == "default" else f"line {where}"
        yield Line(printable(f"  {field.name:<{width}}  {line:<9}  {field.value}"))
    for kind, tools in agent.tools.items():
        yield Line(printable(f"as {kind}: {', '.join(tools) or 'no tools'}"))
    for path in agent.shadows:
        yield Line(printable(f"hides {path}"), "warn")
    for note in agent.notes:
        yield Line(printable(note), "warn")
    yield Line("")
    for text in agent.instructions.splitlines():
        yield Line(printable(text))
