"""Folders of notes: read, changed atomically, and consolidated, even while other processes change them.

A change names the version on which it is based (a digest). If the note has changed since, the change is refused with an
explanation. A lock for each change prevents two processes from mixing their changes. Links are never followed; an
unreadable file is reported and not changed. Merged notes are written before any is deleted, so that a kill may leave
too much, but never too little.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator, Sequence
from dataclasses import field
from pathlib import Path
from typing import cast

from callboard.adapters.extensions.yaml import load_front_document
from callboard.adapters.system.regular_files import clear_part, part_name, read_in, write_in_folder
from callboard.core.memory.note import (
    INDEX,
    MOST,
    Note,
    digest_of,
    faults_of,
    merge_notes,
    name_fault,
    note_of,
    text_of,
    update_index,
)
from callboard.core.memory.secrets import refusal
from callboard.types.errors import SettingsError, ToolRefused
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

LARGEST = 200_000
"""Most bytes of one file. Callboard's are far smaller; a user may have written more."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class StoredNote:
    """A note in its folder."""

    note: Note
    digest: str
    """Digest of its file, which a change names as its base."""


@dataclass(frozen=True, slots=True)
class FolderNotes:
    """All notes of a folder, sorted by name, the correct index, and reports on unreadable files."""

    notes: tuple[StoredNote, ...] = ()
    index: str = ""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Consolidation:
    """Result of a consolidation, completed or planned."""

    written: tuple[Note, ...]
    """Notes into which others were merged."""
    gone: tuple[str, ...]
    """Names of the merged notes."""
    index: bool
    """True if the index was not correct."""


@dataclass(slots=True)
class NoteFolder:
    """Notes of one place."""

    base: Path
    """Folder that is trusted without checks; created if it is missing."""
    parts: tuple[str, ...]
    """Path from `base` to the notes. No component may be a link."""
    private: bool = True
    """True: only the user can read the notes (0700, 0600); else they have the mode of other files of a workspace."""
    _cache: dict[str, tuple[tuple[int, int, int], StoredNote]] = field(
        default_factory=dict[str, tuple[tuple[int, int, int], StoredNote]]
    )
    """Files that were read: the data that shows a change, and the note."""

    @property
    def path(self) -> Path:
        """Return the folder of the notes."""
        return self.base.joinpath(*self.parts)

    def read(self) -> FolderNotes:
        """Return all notes. A missing folder contains none. Raises `ToolRefused` for a folder that may not be read."""
        with self._opened(make=False) as folder:
            return FolderNotes() if folder is None else self._contents(folder)

    def get(self, name: str) -> StoredNote | None:
        """Return one note, or None."""
        return next((stored for stored in self.read().notes if stored.note.name == name), None)

    def content(self, name: str) -> bytes:
        """Return the unchanged file of a note; empty without a file."""
        with self._opened(make=False) as folder:
            content = None if folder is None else _file(folder, f"{name}.md")
        return content or b""

    def check(self, note: Note, base: str) -> tuple[bytes, bytes]:
        """Return the file before a change (empty: no file) and after it. Raises `ToolRefused`."""
        if wrong := faults_of(note):
            raise ToolRefused(f"{note.name}: {wrong}")
        fields = "\n".join(value for _, value in note.more)
        for part, text in (("description", note.description), ("content", note.body), ("front matter", fields)):
            if wrong := refusal(text):
                raise ToolRefused(f"{note.name}: {part}: {wrong}")
        before = self.content(note.name)
        after = text_of(note).encode("utf-8", "replace")
        _based(note.name, before, base)
        return before, after

    def put(self, note: Note, base: str) -> StoredNote:
        """Create a note, or change the one with the digest `base` (empty: it must not exist). Raises `ToolRefused`."""
        self.check(note, base)  # a refused change creates no folder
        with self._changing() as folder:
            before, after = self.check(note, base)
            if not before and len(_names(folder)) >= MOST:
                raise ToolRefused(f"there are {MOST} notes in {self.path}: forget some, or consolidate them")
            self._write(folder, note.file, after)
            self._index(folder)
        return StoredNote(note, digest_of(after))

    def drop(self, name: str, base: str) -> None:
        """Delete the note with the digest `base`. Raises `ToolRefused`."""
        if wrong := name_fault(name):
            raise ToolRefused(wrong)
        with self._changing() as folder:
            before = self.content(name)
            if not before:
                raise ToolRefused(f"there is no note {name!r} in {self.path}")
            _based(name, before, base)
            os.unlink(f"{name}.md", dir_fd=folder)
            self._index(folder)

    def plan(self) -> Consolidation:
        """Return the result that a consolidation would have."""
        contents = self.read()
        written, gone = merge_notes([stored.note for stored in contents.notes])
        with self._opened(make=False) as folder:
            index = b"" if folder is None else _file(folder, INDEX) or b""
        return Consolidation(written, gone, index.decode("utf-8", "replace") != contents.index)

    def consolidate(self) -> Consolidation:
        """Merge notes with the same content, correct the index, and remove the remains of a kill.

        Writes come before deletions.
        """
        with self._changing() as folder:
            plan = self.plan()
            for note in plan.written:
                self._write(folder, note.file, text_of(note).encode("utf-8", "replace"))
            self._index(folder, without=plan.gone)
            for name in plan.gone:
                os.unlink(f"{name}.md", dir_fd=folder)
            for entry in os.listdir(folder):  # noqa: PTH208 - names in an open folder
                if entry.startswith(".") and entry.endswith(".part"):
                    clear_part(folder, entry)
        return plan

    def consolidate_index(self) -> None:
        """Correct the index after a kill between a note and its entry."""
        with self._changing() as folder:
            self._index(folder)

    def _contents(self, folder: int) -> FolderNotes:
        notes: list[StoredNote] = []
        problems: list[str] = []
        for name in _names(folder):
            try:
                notes.append(self._note(folder, name, problems))
            except OSError as error:
                problems.append(f"{self.path / name}: cannot be read: {error.strerror or error}")
        index = (_file(folder, INDEX) or b"").decode("utf-8", "replace")
        return FolderNotes(tuple(notes), update_index(index, [stored.note for stored in notes]), tuple(problems))

    def _note(self, folder: int, name: str, problems: list[str]) -> StoredNote:
        """Return a note of the folder. An unchanged one is not read again. Raises OSError."""
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        mark = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
        cached = self._cache.get(name)
        if cached is not None and cached[0] == mark:
            return cached[1]
        data = read_in(folder, name, LARGEST)
        content = data[0] if data is not None else b""
        text = content.decode("utf-8-sig", "replace").replace("\0", "")
        where = str(self.path / name)
        fields: Json = {}
        try:
            document, text = load_front_document(text, where)
            fields = cast("Json", document.data)
        except SettingsError as error:
            problems.append(f"{error}; it is read as a note without front matter")
        stored = StoredNote(note_of(name, fields, text), digest_of(content))
        self._cache[name] = (mark, stored)
        return stored

    def _write(self, folder: int, name: str, content: bytes) -> None:
        """Write a file atomically and durably. Raises `ToolRefused`."""
        try:
            write_in_folder(folder, name, content, mode=0o600 if self.private else None, part=part_name(name, "note"))
        except OSError as error:
            raise ToolRefused(f"{self.path / name} cannot be written: {error.strerror}") from error

    def _index(self, folder: int, without: Sequence[str] = ()) -> None:
        """Update the index to the present notes, or to those that remain after a deletion."""
        index = (_file(folder, INDEX) or b"").decode("utf-8", "replace")
        notes = [stored.note for stored in self._contents(folder).notes if stored.note.name not in without]
        true = update_index(index, notes)
        if true != index:
            self._write(folder, INDEX, true.encode("utf-8", "replace"))

    @contextlib.contextmanager
    def _changing(self) -> Generator[int]:
        """Yield the folder, created if necessary, under the lock for changes. Raises `ToolRefused`."""
        with self._opened(make=True) as folder:
            assert folder is not None, "it was made"
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                lock = os.open(_LOCK, flags, 0o600, dir_fd=folder)
            except OSError as failed:
                raise ToolRefused(f"the notes cannot be changed: {failed.strerror}") from failed
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield folder
            finally:
                os.close(lock)

    @contextlib.contextmanager
    def _opened(self, *, make: bool) -> Generator[int | None]:
        """Yield a descriptor of the folder; None if there is none. Raises `ToolRefused`."""
        try:
            descriptor = self._descend(make=make)
        except FileNotFoundError:
            descriptor = None
        except OSError as error:
            raise ToolRefused(f"{self.path} cannot be used for notes: {error.strerror}") from error
        try:
            yield descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _descend(self, *, make: bool) -> int:
        """Open folder by folder, following no link. Raises OSError."""
        if make and self.private:
            self.base.mkdir(mode=0o700, parents=True, exist_ok=True)
        at = os.open(self.base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in self.parts:
            try:
                inner = self._enter(at, part, make=make)
            finally:
                os.close(at)
            at = inner
        return at

    def _enter(self, at: int, part: str, *, make: bool) -> int:
        """Open a folder inside an open folder. Raises OSError."""
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700 if self.private else 0o777, dir_fd=at)
        return os.open(part, _FOLDER, dir_fd=at)


def _names(folder: int) -> list[str]:
    """Return the note files in an open folder, sorted, up to the limit."""
    entries = sorted(os.listdir(folder))
    return [name for name in entries if name.endswith(".md") and name != INDEX and not name.startswith(".")][: 2 * MOST]


def _file(folder: int, name: str) -> bytes | None:
    """Return the content of a file; None if there is none. Raises `ToolRefused`."""
    try:
        data = read_in(folder, name, LARGEST)
    except OSError as error:
        raise ToolRefused(f"{name} cannot be read: {error.strerror}") from error
    return None if data is None else data[0]


def _based(name: str, before: bytes, base: str) -> None:
    """Refuse a change that is not based on the present version."""
    now = digest_of(before) if before else ""
    if now == base:
        return
    if not base:
        raise ToolRefused(f"there is a note {name!r} already: recall it, then give its base ({now}) to change it")
    if not now:
        raise ToolRefused(f"the note {name!r} was deleted meanwhile; omit `base` to create it again")
    raise ToolRefused(f"the note {name!r} has changed meanwhile (its base is {now}, not {base}): recall it again")
