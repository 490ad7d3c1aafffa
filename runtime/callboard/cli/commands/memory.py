"""`memory list|show|edit|forget|consolidate|path`: read and change notes of memory.

Each change is shown line by line and needs a confirmation, or `--yes`. Changes are refused inside a tool call: an agent
has its own tools for that, with permissions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.options import Invocation, as_json, everywhere
from callboard.cli.commands.output import terminal_of
from callboard.cli.terminal.editor import EditorFailed, edit_text
from callboard.cli.terminal.terminal import Block, Line, block
from callboard.cli.views.listings import as_json as json_of
from callboard.cli.views.memory import diff_block, note_block, notes_table
from callboard.sessions.inspect.memory import MemoryInspector, NoteChange, NoteSelection, open_memory
from callboard.sessions.inspect.resources import plain_row
from callboard.types.errors import UsageError

_YES = click.option("-y", "--yes", is_flag=True, help="Make the change without confirmation.")


def _place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--place`, `--agent` and `--session`."""
    command = click.option("--session", default="", metavar="ID", help="Include the notes of this session.")(command)
    command = click.option("--agent", default="", metavar="TYPE", help="Include the notes of this agent type.")(command)
    places = "Only notes of this place: session, project, person or agent."
    return click.option("--place", default="", metavar="PLACE", help=places)(command)


@click.group(invoke_without_command=True)
@everywhere
@click.pass_context
def memory(ctx: click.Context, /) -> None:
    """Show and change the notes that agents keep.

    Without a command: the same as `memory list`.
    """
    if ctx.invoked_subcommand is None:
        _list(ctx.ensure_object(Invocation), NoteSelection(), json_=False)


@memory.command("list")
@_place_options
@as_json
@everywhere
@click.pass_obj
def list_(invocation: Invocation, /, *, json_: bool, **values: str) -> None:
    """List the notes of this project and your own."""
    _list(invocation, NoteSelection(**values), json_=json_)


def _list(invocation: Invocation, request: NoteSelection, *, json_: bool) -> None:
    notes, problems = open_memory(invocation.workspace, request).notes()
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json_of(notes))
            return
        terminal.rows(notes_table(notes, request.place))
        terminal.rows(Block(tuple(Line(problem, "warn") for problem in problems)))


@memory.command()
@click.argument("name")
@_place_options
@as_json
@everywhere
@click.pass_obj
def show(invocation: Invocation, /, *, name: str, json_: bool, **values: str) -> None:
    """Show a note in full."""
    note = open_memory(invocation.workspace, NoteSelection(**values)).note(name)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps(plain_row(note), indent=2))
        else:
            terminal.rows(note_block(note))


@memory.command()
@click.argument("name")
@click.option("--text", default=None, metavar="TEXT", help="New text of the note (`-` reads stdin), without an editor.")
@_YES
@_place_options
@as_json
@everywhere
@click.pass_obj
def edit(invocation: Invocation, /, *, name: str, text: str | None, yes: bool, json_: bool, **values: str) -> None:
    """Change a note in $VISUAL or $EDITOR, or create one.

    A new note belongs to the project, or to the place given with --place. Keys, tokens and passwords are refused.
    """
    refuse_inside_tool("Changing a note")
    inspector = open_memory(invocation.workspace, NoteSelection(**values))
    content = (
        sys.stdin.read()
        if text == "-"
        else text
        if text is not None
        else _edited(inspector, name, invocation.workspace)
    )
    change = inspector.text_change(name, content)
    if not change.diff:
        raise UsageError("the note already has this text: nothing is changed")
    _make(invocation, change, yes=yes, json_=json_)


@memory.command()
@click.argument("name")
@_YES
@_place_options
@as_json
@everywhere
@click.pass_obj
def forget(invocation: Invocation, /, *, name: str, yes: bool, json_: bool, **values: str) -> None:
    """Delete a note."""
    refuse_inside_tool("Deleting a note")
    _make(invocation, open_memory(invocation.workspace, NoteSelection(**values)).without(name), yes=yes, json_=json_)


@memory.command()
@_YES
@_place_options
@as_json
@everywhere
@click.pass_obj
def consolidate(invocation: Invocation, /, *, yes: bool, json_: bool, **values: str) -> None:
    """Merge notes with the same content, and correct each index.

    Merged notes are written before anything is deleted.
    """
    refuse_inside_tool("Merging notes")
    changes = open_memory(invocation.workspace, NoteSelection(**values)).in_order()
    with terminal_of(invocation) as terminal:
        if not changes:
            terminal.record("[]") if json_ else terminal.rows(block("all notes are in order", "dim"))
            return
        for _, diff in changes if not json_ else ():
            terminal.rows(diff_block(diff))
    _confirm(invocation, yes=yes)
    done = [(folder, folder.consolidate()) for folder, _ in changes]
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json_of([{"path": str(f.path), "gone": list(plan.gone)} for f, plan in done]))
        else:
            terminal.rows(block("the notes are in order", "good"))


@memory.command()
@_place_options
@as_json
@everywhere
@click.pass_obj
def path(invocation: Invocation, /, *, json_: bool, **values: str) -> None:
    """Print the folders of the notes."""
    folders = open_memory(invocation.workspace, NoteSelection(**values)).folders()
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json_of([{"place": place, "path": folder} for place, folder in folders]))
        elif values["place"]:
            terminal.rows(Block(tuple(Line(folder) for _, folder in folders)))
        else:
            terminal.rows(Block(tuple(Line(f"{place}: {folder}") for place, folder in folders)))


def _edited(inspector: MemoryInspector, name: str, workspace: Path) -> str:
    """Return the note as saved by the user. Raises `UsageError` if no editor can run, or nothing was saved."""
    if not sys.stdin.isatty():
        raise UsageError("an editor needs a terminal: give --text, or --text - for standard input. Nothing is changed")
    try:
        saved = edit_text(inspector.file_of(name), "note.md", workspace)
    except EditorFailed as failed:
        raise UsageError(f"{failed}, or give --text. Nothing is changed") from failed
    if saved is None:
        raise UsageError("nothing was saved: nothing is changed")
    return saved


def _make(invocation: Invocation, change: NoteChange, *, yes: bool, json_: bool) -> None:
    """Show a change, ask for confirmation, and perform it."""
    with terminal_of(invocation) as terminal:
        if not json_:
            terminal.rows(diff_block(change.diff))
    _confirm(invocation, yes=yes)
    change.make()
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps({"name": change.name, "path": str(change.folder.path), "diff": change.diff}))
        else:
            terminal.rows(block("the note is deleted" if change.note is None else "the note is written", "good"))


def _confirm(invocation: Invocation, *, yes: bool) -> None:
    """Ask for confirmation. Raises `UsageError` for any answer but yes, and if no one can be asked."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("there is no terminal for the question: use --yes to make the change")
    if not click.confirm("Make this change?", default=False, err=True):
        raise UsageError("nothing is changed")
