"""`skills list|show|new|check`: the skills and commands of a workspace, looked at, begun and checked by a person."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from callboard.core.trust.claims import shown
from callboard.desks.skills import SkillLine, SkillShown, check_skill, list_skills, new_skill, show_skill
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
def skills(ctx: click.Context, /) -> None:
    """List skills, show one, begin a new one, check one.

    Without a command: the same as `skills list`.
    """
    if ctx.invoked_subcommand is None:
        _list(ctx.ensure_object(Given), (), trust=False, json_=False)


@skills.command("list")
@as_json
@_TRUST
@with_plugins
@everywhere
@click.pass_obj
def list_(given: Given, /, *, json_: bool, trust: bool, plugins: tuple[Path, ...]) -> None:
    """List skills and commands: where each comes from, who may start it, what it is for.

    Also those that another one of the same name hides, and what of any file is not honoured.
    """
    _list(given, plugins, trust=trust, json_=json_)


def _list(given: Given, plugins: tuple[Path, ...], *, trust: bool, json_: bool) -> None:
    found = list_skills(given.workspace, plugins, trust=trust)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json_of(found.lines))
            return
        terminal.rows(table(_HEADS, [_cells(one) for one in found.lines], "no skills"))
        terminal.rows(Block(tuple(Line(shown(note), "warn") for note in found.notes)))


@skills.command()
@click.argument("name")
@as_json
@_TRUST
@with_plugins
@everywhere
@click.pass_obj
def show(given: Given, /, *, name: str, json_: bool, trust: bool, plugins: tuple[Path, ...]) -> None:
    """Show a skill: each field and where it was said, the commands that it runs, its text."""
    found = show_skill(given.workspace, plugins, name, trust=trust)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json_of([found]))
        else:
            terminal.rows(Block(tuple(_shown(found))))


@skills.command()
@click.argument("name")
@click.option("--person", is_flag=True, help="For all of your workspaces, instead of this one.")
@everywhere
@click.pass_obj
def new(given: Given, /, *, name: str, person: bool) -> None:
    """Write a commented skill NAME, to be edited.

    It goes to `.callboard/skills` of this workspace. A file that is there is never overwritten.
    """
    refuse_tools("Writing a skill")
    path = new_skill(given.workspace, name, person=person)
    tell_begun(given, path, person=person)


@skills.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...", type=click.Path(path_type=Path))
@click.option("--ours", is_flag=True, help="Accept the fields that only Callboard and Claude Code know.")
@as_json
@everywhere
@click.pass_context
def check(ctx: click.Context, /, *, folders: tuple[Path, ...], ours: bool, json_: bool) -> None:
    """Check skill folders by the rules of the open Agent Skills specification.

    Exit code 0: all of them pass; 1: one does not, and each problem is told with file, line and field.
    """
    given = ctx.ensure_object(Given)
    found = [check_skill(given.workspace / folder, ours=ours) for folder in folders]
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json_of(found))
        for one in found if not json_ else ():
            lines = [Line(shown(text), "bad") for text in one.problems]
            lines += [Line(shown(text), "warn") for text in one.advice]
            terminal.rows(Block((*lines, *([] if one.problems else [Line(shown(f"{one.path}: passes"), "good")]))))
    if any(one.problems for one in found):
        ctx.exit(1)


_HEADS = ("NAME", "KIND", "FROM", "STARTED BY", "USES", "FOR")


def _cells(one: SkillLine) -> tuple[str, ...]:
    about = f"(hidden by {one.shadowed_by})" if one.shadowed_by else one.description
    return tuple(shown(text) for text in (one.name, one.kind, one.source, one.started_by, str(one.uses), about))


def _shown(found: SkillShown) -> Iterator[Line]:
    yield Line(shown(f"{found.name}  {found.source}  {found.path}"), "good")
    width = max(len(one.name) for one in found.fields)
    for one in found.fields:
        where = "default" if one.where == "default" else one.where.removeprefix(f"{found.path}:")
        line = where if where == "default" else f"line {where}"
        yield Line(shown(f"  {one.name:<{width}}  {line:<9}  {one.value}"))
    for command in found.commands:
        yield Line(shown(f"runs: {command}"), "warn")
    for file in found.files:
        yield Line(shown(f"beside it: {file}"))
    for note in found.notes:
        yield Line(shown(note), "warn")
    yield Line("")
    for text in found.body.strip().splitlines():
        yield Line(shown(text))
