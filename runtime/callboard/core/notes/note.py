"""A note of memory, and the index of a folder of notes: values, their texts, and what is refused. Pure.

A note is one Markdown file with front matter; `MEMORY.md` lists the notes of its folder, a line each, and may hold
other lines that people wrote. What a note says is data: it gives no permission, and orders nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final, Literal, cast

Kind = Literal["user", "feedback", "project", "reference"]
"""What a note is about: who the person is; how they want things done; the project; where to look something up."""
Place = Literal["session", "project", "person", "agent"]
"""Whose it is: of this session; of this workspace; of the person, wherever they work; of one agent type."""
KINDS: Final[tuple[Kind, ...]] = ("user", "feedback", "project", "reference")
PLACES: Final[tuple[Place, ...]] = ("session", "project", "person", "agent")

INDEX = "MEMORY.md"
LONGEST = 20_000
"""Characters of a note."""
LONGEST_DESCRIPTION = 300
MOST = 500
"""Notes of one place."""
INDEX_LINES, INDEX_BYTES = 200, 25_000
"""What of an index stands in a prompt: as much as users know from Claude Code (docs/memory.md)."""
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")
_LISTED = re.compile(r"\s*[-*] \[(?P<title>[^\]]*)\]\((?:\./)?(?P<file>[^()\s/]+\.md)\)")


@dataclass(frozen=True, slots=True)
class Note:
    """One note."""

    name: str
    description: str
    kind: Kind = "project"
    body: str = ""
    more: tuple[tuple[str, str], ...] = ()
    """Other fields of its front matter, which are kept as they are: name and value as JSON."""

    @property
    def file(self) -> str:
        return f"{self.name}.md"


def digest_of(content: bytes) -> str:
    """Tells two states of a note apart: 12 hex digits of a sha256."""
    return sha256(content).hexdigest()[:12]


def named(name: str) -> str:
    """Why this cannot be a note's name; empty for one that can."""
    if not _NAME.fullmatch(name) or ".." in name:
        return f"the name {name[:80]!r} cannot be a note's: write lower-case letters, digits and hyphens, 64 at most"
    return "the name 'memory' is the index's" if name == "memory" else ""


def faults_of(note: Note) -> str:
    """Why this cannot be a note; empty for one that can."""
    if wrong := named(note.name):
        return wrong
    if not note.description.strip() or "\n" in note.description:
        return "the description is one line that says what the note is about"
    if len(note.description) > LONGEST_DESCRIPTION:
        return f"the description has {len(note.description)} characters, and {LONGEST_DESCRIPTION} are the most"
    if not note.body.strip():
        return "the note has no text"
    if len(note.body) > LONGEST:
        return f"the note has {len(note.body):,} characters, and {LONGEST:,} are the most: make it two"
    return "it holds a NUL character" if "\0" in note.description + note.body else ""


def text_of(note: Note) -> str:
    """The file of a note. `note_of` reads it again."""
    fields = [("name", note.name), ("description", note.description), ("type", note.kind)]
    lines = [f"{name}: {_scalar(value)}" for name, value in fields] + [f"{name}: {value}" for name, value in note.more]
    return "\n".join(["---", *lines, "---", "", note.body.strip(), ""])


def note_of(file: str, fields: Mapping[str, object], body: str) -> Note:
    """A note from its file, written by us or by hand: what is missing is made of what there is."""
    metadata = fields.get("metadata")
    inner = cast("dict[str, object]", metadata) if isinstance(metadata, dict) else dict[str, object]()
    said = fields.get("type") or inner.get("type")
    kinds: dict[object, Kind] = {one: one for one in KINDS}
    text = body.strip()
    first = next((line.strip().lstrip("# ").strip() for line in text.splitlines() if line.strip()), "")
    description = " ".join(str(fields.get("description") or first).split())[:LONGEST_DESCRIPTION]
    known = {"name", "description", "type"}
    more = tuple((name, json.dumps(value, default=str)) for name, value in fields.items() if name not in known)
    return Note(
        name=file.removesuffix(".md"),
        description=description,
        kind=kinds.get(said if isinstance(said, str) else "", "project"),
        body=text,
        more=more,
    )


def indexed(index: str, notes: Iterable[Note]) -> str:
    """The index with a line for each note and none for one that is gone; all other lines stay as they are."""
    left = {note.file: note for note in notes}
    lines: list[str] = []
    for line in index.splitlines():
        listed = _LISTED.match(line)
        if listed is None:
            lines.append(line)
        elif note := left.pop(listed["file"], None):
            lines.append(_line(note))
    while lines and not lines[-1].strip():
        lines.pop()
    lines += [_line(left[file]) for file in sorted(left)]
    return "\n".join([*lines, ""]) if lines else ""


def shown(index: str) -> str:
    """What of an index stands in a prompt: its first lines, and a mark where there are more."""
    lines = index.strip().splitlines()
    kept: list[str] = []
    room = INDEX_BYTES
    for line in lines[:INDEX_LINES]:
        room -= len(line.encode("utf-8", "replace")) + 1
        if room < 0:
            break
        kept.append(line)
    if len(kept) < len(lines):
        kept.append(f"[Cut: {len(lines)} lines. `recall` finds the notes of the others.]")
    return "\n".join(kept)


def merged(notes: Sequence[Note]) -> tuple[tuple[Note, ...], tuple[str, ...]]:
    """What becomes of notes that say the same: (notes to be written, names of those that then go).

    Two notes say the same when all lines of the one stand in the other, white space and order aside. The longer one
    stays, of equal ones the first by name; it takes over what the other is known by.
    """
    kept: list[Note] = []
    gone: list[str] = []
    for note in sorted(notes, key=lambda one: (-len(_said(one)), one.name)):
        same = next((at for at, one in enumerate(kept) if _said(note) <= _said(one)), None)
        if same is None or not _said(note):
            kept.append(note)
        else:
            gone.append(note.name)
            kept[same] = _knowing(kept[same], note)
    before = {note.name: note for note in notes}
    changed = tuple(sorted((one for one in kept if before[one.name] != one), key=lambda one: one.name))
    return changed, tuple(sorted(gone))


def _knowing(note: Note, other: Note) -> Note:
    """The note, known by the description of another one too."""
    if other.description.casefold() in note.description.casefold():
        return note
    both = f"{note.description}; {other.description}"
    return replace(note, description=both) if len(both) <= LONGEST_DESCRIPTION else note


def _said(note: Note) -> frozenset[str]:
    return frozenset(" ".join(line.split()).casefold() for line in note.body.splitlines() if line.strip())


def _line(note: Note) -> str:
    return f"- [{note.name}]({note.file}): {note.description}"


def _scalar(value: str) -> str:
    """A value as YAML reads it back as this text: bare where it is plain words, else quoted as in JSON."""
    bare = _PLAIN.fullmatch(value) and value.casefold() not in _WORDS
    return value if bare else json.dumps(value, ensure_ascii=False)


_PLAIN = re.compile(r"[A-Za-z](?:[A-Za-z0-9 _(),./'-]*[A-Za-z0-9).])?")
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
"""What YAML reads as something else than text."""
