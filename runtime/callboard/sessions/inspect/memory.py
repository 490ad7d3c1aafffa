"""Memory notes for a person: a list, their text, and changes that are shown before they are made.

No session is hosted here: notes are files, and concurrent changes by a session are detected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar, cast

from callboard.adapters.extensions.memory import MemoryPlaces
from callboard.adapters.extensions.memory_notes import NoteFolder, StoredNote
from callboard.adapters.extensions.yaml import load_front_document
from callboard.core.memory.note import INDEX, PLACES, Note, diff_of, digest_of, name_fault, note_of, text_of
from callboard.sessions.places import WorkspacePaths, find_places
from callboard.types.errors import SettingsError, ToolRefused, UsageError
from callboard.types.lazy_dataclass import dataclass

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
    """Digest of its file."""
    text: str = ""
    """Text of the note; empty in a listing."""


@dataclass(frozen=True, slots=True)
class NoteSelection:
    """Selection of notes by their owner. If all fields are empty, the notes of the project and the person."""

    place: str = ""
    agent: str = ""
    """Agent type that owns the notes."""
    session: str = ""
    """Full id of the session that owns the notes."""


@dataclass(frozen=True, slots=True)
class NoteChange:
    """Effect of a change, before it is made."""

    folder: NoteFolder
    note: Note | None
    """The changed note; None if it is deleted."""
    name: str
    base: str
    diff: str
    """Change line by line; empty if nothing changes."""

    def make(self) -> None:
        """Make the change.

        Raises `UsageError` if the note was changed in the meantime, or the change is not allowed.
        """
        try:
            if self.note is None:
                self.folder.drop(self.name, self.base)
            else:
                self.folder.put(self.note, self.base)
        except ToolRefused as refused:
            raise UsageError(str(refused)) from refused


class MemoryInspector:
    """Notes of a workspace and of a person."""

    def __init__(self, places: WorkspacePaths, request: NoteSelection) -> None:
        """Select the folders of notes. Raises `UsageError` for an unknown place."""
        if request.place not in ("", *PLACES):
            raise UsageError(f"--place: unknown place {request.place!r}: choose one of {', '.join(PLACES)}")
        where = MemoryPlaces(places.workspace, Path.home(), places.config, places.data, request.session)
        folders: list[tuple[str, NoteFolder]] = []
        if request.session:
            if Path(request.session).name != request.session or not places.session_data(request.session).is_dir():
                raise UsageError(f"there is no session {request.session!r} here: `callboard sessions` lists them")
            folders.append(("session", where.folder("session")))
        folders += [("project", where.folder("project")), ("person", where.folder("person"))]
        if request.agent:
            folders += [("agent", where.folder("agent", request.agent, memory)) for memory in _AGENTS]
        missing = {"session": "give the session: --session ID", "agent": "give the agent type: --agent TYPE"}
        if request.place in missing and request.place not in {place for place, _ in folders}:
            raise UsageError(f"--place {request.place}: {missing[request.place]}")
        self._folders = [(place, folder) for place, folder in folders if request.place in ("", place)]

    def notes(self) -> tuple[tuple[NoteLine, ...], tuple[str, ...]]:
        """Return all notes, and a list of those that could not be read."""
        lines: list[NoteLine] = []
        problems: list[str] = []
        for place, folder in self._folders:
            folder_notes = _refusing(folder.read)
            lines += [_line(place, folder, stored) for stored in folder_notes.notes]
            problems += folder_notes.problems
        return tuple(lines), tuple(problems)

    def note(self, name: str) -> NoteLine:
        """Return one note in full. Raises `UsageError` with the existing names."""
        place, folder, stored = self._note_named(name)
        return replace(_line(place, folder, stored), text=stored.note.body)

    def folders(self) -> Sequence[tuple[str, str]]:
        """Return each place and its folder, even if it does not exist; for agent types only existing ones."""
        existing = [
            (place, str(folder.path)) for place, folder in self._folders if place != "agent" or folder.path.is_dir()
        ]
        return existing or [(place, str(folder.path)) for place, folder in self._folders]

    def text_change(self, name: str, text: str) -> NoteChange:
        """Return the change that sets a note's text, or creates a note.

        `text` includes front matter or is the body alone. Raises `UsageError`.
        """
        existing = self._find(name)
        place, folder = existing[:2] if existing else self._folders[0]
        before = folder.content(name) if existing else b""
        base = digest_of(before) if before else ""
        note = _note(name, text, existing[2].note if existing else None)
        _refusing(lambda: folder.check(note, base))
        diff = diff_of(_text(before), text_of(note), f"{name} ({place}, {folder.path})")
        return NoteChange(folder, note, name, base, diff)

    def file_of(self, name: str) -> str:
        """Return the text of a note, or of a new one, for an editor. Raises `UsageError`."""
        existing = self._find(name)
        if existing is None:
            return text_of(Note(name, "What it is about, in one line", "project", "What is worth knowing later."))
        return _text(existing[1].content(name))

    def without(self, name: str) -> NoteChange:
        """Return the change that deletes a note."""
        place, folder, stored = self._note_named(name)
        before = _text(folder.content(name))
        return NoteChange(folder, None, name, stored.digest, diff_of(before, "", f"{name} ({place}, {folder.path})"))

    def in_order(self) -> Sequence[tuple[NoteFolder, str]]:
        """Return the changes that a consolidation would make, folder by folder; none if all is in order."""
        made: list[tuple[NoteFolder, str]] = []
        for place, folder in self._folders:
            plan = _refusing(folder.plan)
            lines = [f"{place} ({folder.path})"] if plan.gone or plan.index else []
            for note in plan.written:
                before = _text(folder.content(note.name))
                lines.append(diff_of(before, text_of(note), note.name))
            lines += [f"-{name}.md (its text is in another note)" for name in plan.gone]
            lines += [f" {INDEX} is corrected"] if plan.index else []
            made += [(folder, "\n".join(lines))] if lines else []
        return made

    def _note_named(self, name: str) -> tuple[str, NoteFolder, StoredNote]:
        match = self._find(name)
        if not match:
            near = get_close_matches(name, [note.name for note in self.notes()[0]], 3)
            hint = f" Did you mean {' or '.join(near)}?" if near else " `callboard memory list` lists all notes."
            raise UsageError(f"there is no note {name!r}.{hint}")
        return match

    def _find(self, name: str) -> tuple[str, NoteFolder, StoredNote] | None:
        """Find a note and its folder.

        Raises `UsageError` for an invalid name, and for one that exists in several places.
        """
        if wrong := name_fault(name):
            raise UsageError(wrong)
        matches: list[tuple[str, NoteFolder, StoredNote]] = []
        for place, folder in self._folders:
            stored = _refusing(lambda folder=folder: folder.get(name))
            if stored is not None:
                matches.append((place, folder, stored))
        if len(matches) > 1:
            raise UsageError(f"there are notes {name!r} in {' and '.join(match[0] for match in matches)}: add --place")
        return matches[0] if matches else None


def _note(name: str, text: str, existing: Note | None) -> Note:
    """Return a note from a text.

    The note is made from the text's front matter, if there is one; otherwise with the text as the body of the existing
    note.
    """
    try:
        document, body = load_front_document(text, name)
    except SettingsError as wrong:
        raise UsageError(str(wrong)) from wrong
    fields = cast("dict[str, object]", document.data)
    if fields or existing is None:
        return note_of(f"{name}.md", fields, body)
    return replace(existing, body=body.strip())


def _line(place: str, folder: NoteFolder, stored: StoredNote) -> NoteLine:
    note = stored.note
    return NoteLine(place, note.name, note.kind, note.description, str(folder.path / note.file), stored.digest)


def _refusing(act: Callable[[], T]) -> T:
    """Return the result of `act`; raise its refusal as a `UsageError`."""
    try:
        return act()
    except ToolRefused as refused:
        raise UsageError(str(refused)) from refused


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def open_memory(workspace: Path, request: NoteSelection) -> MemoryInspector:
    """Open the notes. Raises `UsageError`, `WorkspaceUnusable`."""
    return MemoryInspector(find_places(workspace, writable=False), request)
