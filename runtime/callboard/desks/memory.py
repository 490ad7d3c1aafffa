"""Notes of memory for a person: which there are, what they say, and changes that are shown before they are made.

Nobody hosts anything here: notes are files, and what a session changes at the same time is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar, cast

from callboard.adapters.memories import MemoryPlaces
from callboard.adapters.notes import Kept, NoteFolder
from callboard.adapters.yaml_files import load_front_document
from callboard.assembly import Places, find_places
from callboard.core.notes.changes import diff_of
from callboard.core.notes.note import INDEX, PLACES, Note, digest_of, named, note_of, text_of
from callboard.words.errors import SettingsError, ToolRefused, UsageError

_AGENTS = ("user", "project", "local")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NoteLine:
    """One note."""

    place: str
    name: str
    type: str
    description: str
    path: str
    base: str
    """A digest of its file."""
    text: str = ""
    """What it says; empty in a listing."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Whose notes are meant. All empty: the project's and the person's."""

    place: str = ""
    agent: str = ""
    """Those of an agent type."""
    session: str = ""
    """Those of a session, by its whole id."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a change comes to, before it is made."""

    folder: NoteFolder
    note: Note | None
    """As it would be; None: it goes."""
    name: str
    base: str
    diff: str
    """Line by line; empty: nothing changes."""

    def make(self) -> None:
        """Make it. Raises `UsageError` where somebody else was faster, or it may not be."""
        try:
            if self.note is None:
                self.folder.drop(self.name, self.base)
            else:
                self.folder.put(self.note, self.base)
        except ToolRefused as refused:
            raise UsageError(str(refused)) from refused


class MemoryDesk:
    """The notes of a workspace and of a person."""

    def __init__(self, places: Places, asked: Asked) -> None:
        """Raises `UsageError` for a place that is none."""
        if asked.place not in ("", *PLACES):
            raise UsageError(f"--place: {asked.place!r} is none; there are: {', '.join(PLACES)}")
        where = MemoryPlaces(places.workspace, Path.home(), places.config, places.data, asked.session)
        found: list[tuple[str, NoteFolder]] = []
        if asked.session:
            if Path(asked.session).name != asked.session or not places.session_data(asked.session).is_dir():
                raise UsageError(f"there is no session {asked.session!r} here: `callboard sessions` lists them")
            found.append(("session", where.folder("session")))
        found += [("project", where.folder("project")), ("person", where.folder("person"))]
        if asked.agent:
            found += [("agent", where.folder("agent", asked.agent, memory)) for memory in _AGENTS]
        missing = {"session": "give the session: --session ID", "agent": "give the agent type: --agent TYPE"}
        if asked.place in missing and asked.place not in {place for place, _ in found}:
            raise UsageError(f"--place {asked.place}: {missing[asked.place]}")
        self._folders = [(place, folder) for place, folder in found if asked.place in ("", place)]

    def notes(self) -> tuple[tuple[NoteLine, ...], tuple[str, ...]]:
        """All notes, and what could not be read."""
        lines: list[NoteLine] = []
        problems: list[str] = []
        for place, folder in self._folders:
            found = _refusing(folder.read)
            lines += [_line(place, folder, kept) for kept in found.notes]
            problems += found.problems
        return tuple(lines), tuple(problems)

    def one(self, name: str) -> NoteLine:
        """One note whole. Raises `UsageError` with those that there are."""
        place, folder, kept = self._one(name)
        return replace(_line(place, folder, kept), text=kept.note.body)

    def folders(self) -> Sequence[tuple[str, str]]:
        """Each place and its folder, whether it is there or not; of an agent type those that are there."""
        there = [
            (place, str(folder.path)) for place, folder in self._folders if place != "agent" or folder.path.is_dir()
        ]
        return there or [(place, str(folder.path)) for place, folder in self._folders]

    def saying(self, name: str, text: str) -> Change:
        """A note that says `text` instead, or a new one: front matter and all, or its text alone. Raises
        `UsageError`."""
        there = self._there(name)
        place, folder = there[:2] if there else self._folders[0]
        before = folder.content(name) if there else b""
        base = digest_of(before) if before else ""
        note = _note(name, text, there[2].note if there else None)
        _refusing(lambda: folder.check(note, base))
        diff = diff_of(_text(before), text_of(note), f"{name} ({place}, {folder.path})")
        return Change(folder, note, name, base, diff)

    def file_of(self, name: str) -> str:
        """What an editor shows of a note, or of one that is to be made. Raises `UsageError`."""
        there = self._there(name)
        if there is None:
            return text_of(Note(name, "What it is about, in one line", "project", "What is worth knowing later."))
        return _text(there[1].content(name))

    def without(self, name: str) -> Change:
        """Without a note."""
        place, folder, kept = self._one(name)
        before = _text(folder.content(name))
        return Change(folder, None, name, kept.digest, diff_of(before, "", f"{name} ({place}, {folder.path})"))

    def in_order(self) -> Sequence[tuple[NoteFolder, str]]:
        """What a consolidation would change, folder by folder; none where all is in order."""
        made: list[tuple[NoteFolder, str]] = []
        for place, folder in self._folders:
            plan = _refusing(folder.plan)
            lines = [f"{place} ({folder.path})"] if plan.gone or plan.index else []
            for note in plan.written:
                before = _text(folder.content(note.name))
                lines.append(diff_of(before, text_of(note), note.name))
            lines += [f"-{name}.md (what it says stands in another note)" for name in plan.gone]
            lines += [f" {INDEX} is made true"] if plan.index else []
            made += [(folder, "\n".join(lines))] if lines else []
        return made

    def _one(self, name: str) -> tuple[str, NoteFolder, Kept]:
        found = self._there(name)
        if not found:
            near = get_close_matches(name, [one.name for one in self.notes()[0]], 3)
            hint = f" Did you mean {' or '.join(near)}?" if near else " `callboard memory list` shows those there are."
            raise UsageError(f"there is no note {name!r}.{hint}")
        return found

    def _there(self, name: str) -> tuple[str, NoteFolder, Kept] | None:
        """Raises `UsageError` for a name that is none, and for one that stands in several places."""
        if wrong := named(name):
            raise UsageError(wrong)
        found: list[tuple[str, NoteFolder, Kept]] = []
        for place, folder in self._folders:
            kept = _refusing(lambda folder=folder: folder.get(name))
            if kept is not None:
                found.append((place, folder, kept))
        if len(found) > 1:
            raise UsageError(f"there are notes {name!r} in {' and '.join(one[0] for one in found)}: say --place")
        return found[0] if found else None


def _note(name: str, text: str, there: Note | None) -> Note:
    """A note of a text: of its front matter, where it has one; else the text of the note that is there."""
    try:
        document, body = load_front_document(text, name)
    except SettingsError as wrong:
        raise UsageError(str(wrong)) from wrong
    fields = cast("dict[str, object]", document.data)
    if fields or there is None:
        return note_of(f"{name}.md", fields, body)
    return replace(there, body=body.strip())


def _line(place: str, folder: NoteFolder, kept: Kept) -> NoteLine:
    note = kept.note
    return NoteLine(place, note.name, note.kind, note.description, str(folder.path / note.file), kept.digest)


def _refusing(act: Callable[[], T]) -> T:
    """What `act` returns; what it refuses is an error of use."""
    try:
        return act()
    except ToolRefused as refused:
        raise UsageError(str(refused)) from refused


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def open_memory(workspace: Path, asked: Asked) -> MemoryDesk:
    """The desk. Raises `UsageError`, `WorkspaceUnusable`."""
    return MemoryDesk(find_places(workspace, writable=False), asked)
