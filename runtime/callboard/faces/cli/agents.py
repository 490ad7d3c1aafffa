"""`agents list|show|new`: the agent types of a workspace, looked at and begun by a person."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from callboard.core.trust.claims import shown
from callboard.desks.agent_types import AgentLine, AgentListing, AgentShown, list_agents, new_agent, show_agent
from callboard.faces.cli.options import Given, as_json, everywhere, refuse_tools, with_plugins
from callboard.faces.cli.run import terminal_of
from callboard.faces.cli.starters import tell_begun
from callboard.faces.pages.listings import as_json as json_of
from callboard.faces.pages.listings import table
from callboard.faces.terminal import Block, Line

_TRUST = click.option("--trust", is_flag=True, help="As they are when this workspace is trusted.")


@click.group(invoke_without_command=True)
@everywhere
@click.pass_context
def agents(ctx: click.Context, /) -> None:
    """List agent types, show one, begin a new one.

    Without a command: the same as `agents list`.
    """
    if ctx.invoked_subcommand is None:
        _list(ctx.ensure_object(Given), (), trust=False, json_=False)


@agents.command("list")
@as_json
@_TRUST
@with_plugins
@everywhere
@click.pass_obj
def list_(given: Given, /, *, json_: bool, trust: bool, plugins: tuple[Path, ...]) -> None:
    """List the agent types: what each is for, where it comes from, its tools and model.

    Also those that another one of the same name hides, and which files and fields are refused; `callboard doctor
    --compat` tells of every field.
    """
    _list(given, plugins, trust=trust, json_=json_)


def _list(given: Given, plugins: tuple[Path, ...], *, trust: bool, json_: bool) -> None:
    found = list_agents(given.workspace, plugins, trust=trust)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json_of(found.lines))
            return
        terminal.rows(table(_HEADS, [_cells(one) for one in found.lines], "no agent types"))
        terminal.rows(Block(tuple(_notes(found))))


@agents.command()
@click.argument("name")
@as_json
@_TRUST
@with_plugins
@everywhere
@click.pass_obj
def show(given: Given, /, *, name: str, json_: bool, trust: bool, plugins: tuple[Path, ...]) -> None:
    """Show an agent type: each field and where it was said, its tools, its instructions."""
    found = show_agent(given.workspace, plugins, name, trust=trust)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json_of([found]))
        else:
            terminal.rows(Block(tuple(_shown(found))))


@agents.command()
@click.argument("name")
@click.option("--person", is_flag=True, help="For all of your workspaces, instead of this one.")
@everywhere
@click.pass_obj
def new(given: Given, /, *, name: str, person: bool) -> None:
    """Write a commented file for a new agent type NAME, to be edited.

    It goes to `.callboard/agents` of this workspace. A file that is there is never overwritten.
    """
    refuse_tools("Writing an agent file")
    path = new_agent(given.workspace, name, person=person)
    tell_begun(given, path, person=person)


_HEADS = ("NAME", "FROM", "MODEL", "TOOLS", "FOR")


def _cells(one: AgentLine) -> tuple[str, ...]:
    tools = "all" if one.tools is None else ", ".join(one.tools) or "none"
    about = f"(hidden by {one.shadowed_by})" if one.shadowed_by else one.description
    return tuple(shown(text) for text in (one.name, one.source, one.model, tools, about))


def _notes(found: AgentListing) -> Iterator[Line]:
    for note in found.notes:
        yield Line(shown(note), "warn")


def _shown(found: AgentShown) -> Iterator[Line]:
    yield Line(shown(f"{found.name}  {found.source}  {found.path}"), "good")
    width = max(len(one.name) for one in found.fields)
    for one in found.fields:
        where = "default" if one.where == "default" else one.where.removeprefix(f"{found.path}:")
        line = where if where == "default" else f"line {where}"
        yield Line(shown(f"  {one.name:<{width}}  {line:<9}  {one.value}"))
    for kind, tools in found.tools.items():
        yield Line(shown(f"as {kind}: {', '.join(tools) or 'no tools'}"))
    for path in found.shadows:
        yield Line(shown(f"hides {path}"), "warn")
    for note in found.notes:
        yield Line(shown(note), "warn")
    yield Line("")
    for text in found.instructions.splitlines():
        yield Line(shown(text))
