"""`skills list|show|new|check`: the skills and commands of a workspace for a user, and new skills."""

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
from callboard.sessions.inspect.skills import SkillDetails, SkillEntry, check_skill, list_skills, new_skill, show_skill

_TRUST = click.option("--trust", is_flag=True, help="Show the result for a trusted workspace.")


@click.group(invoke_without_command=True)
@everywhere
@click.pass_context
def skills(ctx: click.Context, /) -> None:
    """List, show, create and check skills.

    Without a command: the same as `skills list`.
    """
    if ctx.invoked_subcommand is None:
        _list(ctx.ensure_object(Invocation), (), trust=False, json_=False)


@skills.command("list")
@as_json
@_TRUST
@with_plugins
@everywhere
@click.pass_obj
def list_(invocation: Invocation, /, *, json_: bool, trust: bool, plugins: tuple[Path, ...]) -> None:
    """List skills and commands: origin, who may start them, purpose.

    Includes those that another one of the same name hides, and ignored parts of their files. If the settings
    cannot be read, the list lacks the installed plugins, and the exit code is 3.
    """
    _list(invocation, plugins, trust=trust, json_=json_)


def _list(invocation: Invocation, plugins: tuple[Path, ...], *, trust: bool, json_: bool) -> None:
    listing = list_skills(invocation.workspace, plugins, trust=trust)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json_of(listing.lines))
        else:
            terminal.rows(table(_HEADS, [_cells(line) for line in listing.lines], "no skills"))
            terminal.rows(Block(tuple(Line(printable(note), "warn") for note in listing.notes)))
    if listing.fault is not None:
        raise listing.fault


@skills.command()
@click.argument("name")
@as_json
@_TRUST
@with_plugins
@everywhere
@click.pass_obj
def show(invocation: Invocation, /, *, name: str, json_: bool, trust: bool, plugins: tuple[Path, ...]) -> None:
    """Show a skill: each field with its origin, the commands that it runs, its text."""
    skill = show_skill(invocation.workspace, plugins, name, trust=trust)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json_of([skill]))
        else:
            terminal.rows(Block(tuple(_skill_lines(skill))))


@skills.command()
@click.argument("name")
@click.option("--person", is_flag=True, help="Create it for all your workspaces instead of this one.")
@everywhere
@click.pass_obj
def new(invocation: Invocation, /, *, name: str, person: bool) -> None:
    """Write a commented skill NAME, ready to edit.

    It goes to `.callboard/skills` of this workspace. An existing file is never overwritten.
    """
    refuse_inside_tool("Writing a skill")
    path = new_skill(invocation.workspace, name, person=person)
    print_new_file(invocation, path, person=person)


@skills.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER|SKILL.md...", type=click.Path(path_type=Path))
@click.option("--ours", is_flag=True, help="Accept the fields that only Callboard and Claude Code define.")
@as_json
@everywhere
@click.pass_context
def check(ctx: click.Context, /, *, folders: tuple[Path, ...], ours: bool, json_: bool) -> None:
    """Check skill folders, or their SKILL.md, by the rules of the open Agent Skills specification.

    Exit code 0: all of them pass; 1: one does not, and each problem is printed with file, line and field.
    """
    invocation = ctx.ensure_object(Invocation)
    results = [check_skill(invocation.workspace / folder, own_format=ours) for folder in folders]
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json_of(results))
        for result in results if not json_ else ():
            lines = [Line(printable(text), "bad") for text in result.problems]
            lines += [Line(printable(text), "warn") for text in result.advice]
            terminal.rows(
                Block((*lines, *([] if result.problems else [Line(printable(f"{result.path}: passes"), "good")])))
            )
    if any(result.problems for result in results):
        ctx.exit(1)


_HEADS = ("NAME", "KIND", "FROM", "STARTED BY", "USES", "FOR")


def _cells(line: SkillEntry) -> tuple[str, ...]:
    about = f"(hidden by {line.shadowed_by})" if line.shadowed_by else line.description
    return tuple(
        printable(text) for text in (line.name, line.kind, line.source, line.started_by, str(line.uses), about)
    )


def _skill_lines(skill: SkillDetails) -> Iterator[Line]:
    yield Line(printable(f"{skill.name}  {skill.source}  {skill.path}"), "good")
    width = max(len(field.name) for field in skill.fields)
    for field in skill.fields:
        where = "default" if field.where == "default" else field.where.removeprefix(f"{skill.path}:")
        line = where if where == "default" else f"line {where}"
        yield Line(printable(f"  {field.name:<{width}}  {line:<9}  {field.value}"))
    for command in skill.commands:
        yield Line(printable(f"runs: {command}"), "warn")
    for file in skill.files:
        yield Line(printable(f"other file: {file}"))
    for note in skill.notes:
        yield Line(printable(note), "warn")
    yield Line("")
    for text in skill.body.strip().splitlines():
        yield Line(printable(text))
