"""Notes of memory, and changes of them, as a person sees them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from callboard.desks.memory import NoteLine
from callboard.faces.pages.listings import table
from callboard.faces.permission import spelled
from callboard.faces.terminal import Block, Line, Style

_HEADS = ("PLACE", "NAME", "TYPE", "ABOUT")
_CHANGED: Mapping[str, Style] = {"+": "good", "-": "bad"}


def notes_table(notes: Sequence[NoteLine]) -> Block:
    """All notes, a line each."""
    rows = [(one.place, one.name, one.type, one.description) for one in notes]
    return table(
        _HEADS, rows, "no notes yet: an agent makes one with `remember`, you with `callboard memory edit NAME`"
    )


def note_block(note: NoteLine) -> Block:
    """One note whole, nothing hidden."""
    head = (
        Line(f"{note.name} ({note.place}, {note.type}): {spelled(note.description)}"),
        Line(note.path, "dim"),
    )
    return Block((*head, *(Line(spelled(line)) for line in note.text.split("\n"))))


def diff_block(diff: str) -> Block:
    """A change line by line, nothing hidden."""
    return Block(tuple(Line(spelled(line), _CHANGED.get(line[:1], "plain")) for line in diff.split("\n")))
