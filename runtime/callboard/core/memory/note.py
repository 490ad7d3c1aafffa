"""Memory notes and the index of a folder of notes: values, their texts, validation, and changes line by line. Pure.

A note is one Markdown file with front matter; `MEMORY.md` lists the notes of its folder, one per line, and may contain
other lines that people wrote. The content of a note is data: it gives no permission and no orders.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Final, Literal, cast

from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

Kind = Literal["user", "feedback", "project", "reference"]
"""Subjects of a note: the person; their preferences; the project; references to look something up."""
Place = Literal["session", "project", "person", "agent"]
"""Owners of a note: this session; this workspace; the person, in all workspaces; one agent type."""
KINDS: Final[tuple[Kind, ...]] = ("user", "feedback", "project", "reference")
PLACES: Final[tuple[Place, ...]] = ("session", "project", "person", "agent")

INDEX = "MEMORY.md"
LONGEST = 20_000
"""Maximum characters of a note."""
LONGEST_DESCRIPTION = 300
MOST = 500
"""Maximum number of notes of one place."""
INDEX_LINES = 200
INDEX_BYTES = 25_000
"""Maximum lines (`INDEX_LINES`) and bytes of an index in a prompt: the limits that users know from Claude Code
(docs/memory.md)."""
_NAME = late_pattern(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")
_LISTED = late_pattern(r"\s*[-*] \[(?P<title>[^\]]*)\]\((?:\./)?(?P<file>[^()\s/]+\.md)\)")


@dataclass(frozen=True, slots=True)
class Note:
    """One note."""

    name: str
    description: str
    kind: Kind = "project"
    body: str = ""
    more: tuple[tuple[str, str], ...] = ()
    """Other fields of its front matter, which are kept unchanged: name and value as JSON."""

    @property
    def file(self) -> str:
        return f"{self.name}.md"


def digest_of(content: bytes) -> str:
    """Return 12 hex digits of a sha256, which distinguish two versions of a note."""
    return sha256(content).hexdigest()[:12]


def name_fault(name: str) -> str:
    """Return the reason why this is not a valid name of a note; empty if it is."""
    if not _NAME.fullmatch(name) or ".." in name:
        return f"the name {name[:80]!r} cannot be a note's: write lower-case letters, digits and hyphens, 64 at most"
    return "the name 'memory' is the index's" if name == "memory" else ""


def faults_of(note: Note) -> str:
    """Return the reason why this is not a valid note; empty if it is."""
    if wrong := name_fault(note.name):
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
    """Return the file content of a note, which `note_of` reads again."""
    fields = [("name", note.name), ("description", note.description), ("type", note.kind)]
    lines = [f"{name}: {_scalar(value)}" for name, value in fields] + [f"{name}: {value}" for name, value in note.more]
    return "\n".join(["---", *lines, "---", "", note.body.strip(), ""])


def note_of(file: str, fields: Mapping[str, object], body: str) -> Note:
    """Return a note from its file, written by the runtime or by hand. Missing fields are derived from the others."""
    metadata = fields.get("metadata")
    inner = cast("dict[str, object]", metadata) if isinstance(metadata, dict) else dict[str, object]()
    stated = fields.get("type") or inner.get("type")
    kinds: dict[object, Kind] = {kind: kind for kind in KINDS}
    text = body.strip()
    first = next((line.strip().lstrip("# ").strip() for line in text.splitlines() if line.strip()), "")
    description = " ".join(str(fields.get("description") or first).split())[:LONGEST_DESCRIPTION]
    standard = {"name", "description", "type"}
    others = tuple((name, json.dumps(value, default=str)) for name, value in fields.items() if name not in standard)
    return Note(
        name=file.removesuffix(".md"),
        description=description,
        kind=kinds.get(stated if isinstance(stated, str) else "", "project"),
        body=text,
        more=others,
    )


def update_index(index: str, notes: Iterable[Note]) -> str:
    """Return the index with a line for each note, and without lines for removed notes.

    All other lines are unchanged.
    """
    unlisted = {note.file: note for note in notes}
    lines: list[str] = []
    for line in index.splitlines():
        listed = _LISTED.match(line)
        if listed is None:
            lines.append(line)
        elif note := unlisted.pop(listed["file"], None):
            lines.append(_line(note))
    while lines and not lines[-1].strip():
        lines.pop()
    lines += [_line(unlisted[file]) for file in sorted(unlisted)]
    return "\n".join([*lines, ""]) if lines else ""


def prompt_part(index: str) -> str:
    """Return the part of an index for a prompt: its first lines, and a mark if there are more."""
    lines = index.strip().splitlines()
    head: list[str] = []
    room = INDEX_BYTES
    for line in lines[:INDEX_LINES]:
        room -= len(line.encode("utf-8", "replace")) + 1
        if room < 0:
            break
        head.append(line)
    if len(head) < len(lines):
        head.append(f"[Cut: {len(lines)} lines. `recall` finds the notes of the others.]")
    return "\n".join(head)


def merge_notes(notes: Sequence[Note]) -> tuple[tuple[Note, ...], tuple[str, ...]]:
    """Merge equal notes: return (notes to write, names of the notes to remove).

    Two notes are equal if all lines of one are in the other, ignoring whitespace and order. The longer one stays; of
    equally long ones, the first by name. It takes over the description of the other.
    """
    retained: list[Note] = []
    gone: list[str] = []
    for note in sorted(notes, key=lambda item: (-len(_line_set(item)), item.name)):
        same = next((at for at, other in enumerate(retained) if _line_set(note) <= _line_set(other)), None)
        if same is None or not _line_set(note):
            retained.append(note)
        else:
            gone.append(note.name)
            retained[same] = _with_description_of(retained[same], note)
    before = {note.name: note for note in notes}
    changed = tuple(sorted((item for item in retained if before[item.name] != item), key=lambda item: item.name))
    return changed, tuple(sorted(gone))


def _with_description_of(note: Note, other: Note) -> Note:
    """Return the note, extended by the description of another one."""
    if other.description.casefold() in note.description.casefold():
        return note
    both = f"{note.description}; {other.description}"
    return replace(note, description=both) if len(both) <= LONGEST_DESCRIPTION else note


def _line_set(note: Note) -> frozenset[str]:
    return frozenset(" ".join(line.split()).casefold() for line in note.body.splitlines() if line.strip())


def _line(note: Note) -> str:
    return f"- [{note.name}]({note.file}): {note.description}"


def _scalar(value: str) -> str:
    """Return a value that YAML reads back as this text.

    The value is bare if it consists of plain words, otherwise quoted as in JSON.
    """
    bare = _PLAIN.fullmatch(value) and value.casefold() not in _WORDS
    return value if bare else json.dumps(value, ensure_ascii=False)


_PLAIN = late_pattern(r"[A-Za-z](?:[A-Za-z0-9 _(),./'-]*[A-Za-z0-9).])?")
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
"""Words that YAML does not read as text."""


def diff_of(before: str, after: str, name: str) -> str:
    """Return all lines, removed ones with `-` and added ones with `+`, under the note's name; empty for no change."""
    old = before.splitlines()
    new = after.splitlines()
    if old == new:
        return ""
    changed = list(difflib.unified_diff(old, new, "", "", lineterm="", n=max(len(old), len(new))))[3:]
    head = "new note" if not before else "the note goes" if not after else "changed note"
    return "\n".join([f"{head}: {name}", *changed])
