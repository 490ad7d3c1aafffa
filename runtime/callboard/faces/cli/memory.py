"""`memory list|show|edit|forget|consolidate|path`: notes of memory, looked at and changed by a person.

Each change is shown line by line and asked about first; `--yes` answers that. Changing is refused inside a tool call:
an agent has tools of its own for that, which are judged.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click

from callboard.desks.memory import Asked, Change, MemoryDesk, open_memory
from callboard.faces.cli.options import Given, as_json, everywhere, refuse_tools
from callboard.faces.cli.run import terminal_of
from callboard.faces.pages.listings import as_json as json_of
from callboard.faces.pages.listings import plain_row
from callboard.faces.pages.memory import diff_block, note_block, notes_table
from callboard.faces.terminal import Block, Line, block
from callboard.words.errors import UsageError

_YES = click.option("-y", "--yes", is_flag=True, help="Make the change without asking.")


def _whose(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--place`, `--agent` and `--session`."""
    command = click.option("--session", default="", metavar="ID", help="Also the notes of this session.")(command)
    command = click.option("--agent", default="", metavar="TYPE", help="Also the notes of this agent type.")(command)
    places = "session, project, person or agent: only the notes of that place."
    return click.option("--place", default="", metavar="PLACE", help=places)(command)


@click.group(invoke_without_command=True)
@everywhere
@click.pass_context
def memory(ctx: click.Context, /) -> None:
    """Show and change the notes that agents keep.

    Without a command: the same as `memory list`.
    """
    if ctx.invoked_subcommand is None:
        _list(ctx.ensure_object(Given), Asked(), json_=False)


@memory.command("list")
@_whose
@as_json
@everywhere
@click.pass_obj
def list_(given: Given, /, *, json_: bool, **asked: str) -> None:
    """List the notes of this project and of yours."""
    _list(given, Asked(**asked), json_=json_)


def _list(given: Given, asked: Asked, *, json_: bool) -> None:
    notes, problems = open_memory(given.workspace, asked).notes()
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json_of(notes))
            return
        terminal.rows(notes_table(notes))
        terminal.rows(Block(tuple(Line(problem, "warn") for problem in problems)))


@memory.command()
@click.argument("name")
@_whose
@as_json
@everywhere
@click.pass_obj
def show(given: Given, /, *, name: str, json_: bool, **asked: str) -> None:
    """Show a note whole."""
    note = open_memory(given.workspace, Asked(**asked)).one(name)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json.dumps(plain_row(note), indent=2))
        else:
            terminal.rows(note_block(note))


@memory.command()
@click.argument("name")
@click.option("--text", default=None, metavar="TEXT", help="What it says from now on (`-`: stdin), without an editor.")
@_YES
@_whose
@as_json
@everywhere
@click.pass_obj
def edit(given: Given, /, *, name: str, text: str | None, yes: bool, json_: bool, **asked: str) -> None:
    """Change a note in $VISUAL or $EDITOR, or make one.

    A new note is the project's, or of the place that --place names. Keys, tokens and passwords are refused.
    """
    refuse_tools("Changing a note")
    desk = open_memory(given.workspace, Asked(**asked))
    said = sys.stdin.read() if text == "-" else text if text is not None else _edited(desk, name)
    change = desk.saying(name, said)
    if not change.diff:
        raise UsageError("the note says that already: nothing is changed")
    _make(given, change, yes=yes, json_=json_)


@memory.command()
@click.argument("name")
@_YES
@_whose
@as_json
@everywhere
@click.pass_obj
def forget(given: Given, /, *, name: str, yes: bool, json_: bool, **asked: str) -> None:
    """Delete a note."""
    refuse_tools("Deleting a note")
    _make(given, open_memory(given.workspace, Asked(**asked)).without(name), yes=yes, json_=json_)


@memory.command()
@_YES
@_whose
@as_json
@everywhere
@click.pass_obj
def consolidate(given: Given, /, *, yes: bool, json_: bool, **asked: str) -> None:
    """Merge notes that say the same, and make each index true.

    What is merged is written before anything is deleted.
    """
    refuse_tools("Merging notes")
    changes = open_memory(given.workspace, Asked(**asked)).in_order()
    with terminal_of(given) as terminal:
        if not changes:
            terminal.record("[]") if json_ else terminal.rows(block("all notes are in order", "dim"))
            return
        for _, diff in changes if not json_ else ():
            terminal.rows(diff_block(diff))
    _sure(given, yes=yes)
    done = [(folder, folder.consolidate()) for folder, _ in changes]
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json_of([{"path": str(f.path), "gone": list(plan.gone)} for f, plan in done]))
        else:
            terminal.rows(block("the notes are in order", "good"))


@memory.command()
@_whose
@as_json
@everywhere
@click.pass_obj
def path(given: Given, /, *, json_: bool, **asked: str) -> None:
    """Print the folders of the notes."""
    found = open_memory(given.workspace, Asked(**asked)).folders()
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json_of([{"place": place, "path": folder} for place, folder in found]))
        elif asked["place"]:
            terminal.rows(Block(tuple(Line(folder) for _, folder in found)))
        else:
            terminal.rows(Block(tuple(Line(f"{place}: {folder}") for place, folder in found)))


def _edited(desk: MemoryDesk, name: str) -> str:
    """The note as a person saved it. Raises `UsageError` where no editor can be run, or nothing was saved."""
    try:
        saved = click.edit(desk.file_of(name), extension=f"-{name}.md")
    except click.ClickException as failed:
        raise UsageError(f"{failed.format_message()}: set $VISUAL or $EDITOR, or give --text") from failed
    except (OSError, ValueError) as failed:
        raise UsageError(f"the editor left no text behind ({failed}): nothing is changed") from failed
    if saved is None:
        raise UsageError("nothing was saved: nothing is changed")
    return saved


def _make(given: Given, change: Change, *, yes: bool, json_: bool) -> None:
    """Show a change, ask, make it."""
    with terminal_of(given) as terminal:
        if not json_:
            terminal.rows(diff_block(change.diff))
    _sure(given, yes=yes)
    change.make()
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json.dumps({"name": change.name, "path": str(change.folder.path), "diff": change.diff}))
        else:
            terminal.rows(block("the note is deleted" if change.note is None else "the note is written", "good"))


def _sure(given: Given, *, yes: bool) -> None:
    """Ask whether to. Raises `UsageError` for anything but yes, and where nobody can be asked."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("nobody can be asked here: say --yes to make the change")
    if not click.confirm("Make this change?", default=False, err=True):
        raise UsageError("nothing is changed")
