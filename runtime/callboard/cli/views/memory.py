"""Memory notes, and changes of them, for a person. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from callboard.cli.terminal.terminal import Block, Line, Style
from callboard.cli.views.listings import render_listing
from callboard.cli.views.permission import spell_out
from callboard.sessions.inspect.memory import NoteLine
from callboard.sessions.inspect.resources import NOTES

_CHANGED: Mapping[str, Style] = {"+": "good", "-": "bad"}


def notes_table(notes: Sequence[NoteLine], place: str = "") -> Block:
    """Return the notes, one line each. `place`: the only place whose notes these are."""
    return render_listing(NOTES, notes, nothing=f"no notes of the place {place}" if place else "")


def note_block(note: NoteLine) -> Block:
    """Return one note in full, with hidden characters spelled out."""
    head = (
        Line(f"{note.name} ({note.place}, {note.type}): {spell_out(note.description)}"),
        Line(note.path, "dim"),
    )
    return Block((*head, *(Line(spell_out(line)) for line in note.text.split("\n"))))


def diff_block(diff: str) -> Block:
    """Return a change line by line, with hidden characters spelled out."""
    return Block(tuple(Line(spell_out(line), _CHANGED.get(line[:1], "plain")) for line in diff.split("\n")))
