"""Folders of notes: read, changed whole or not at all, and put in order, whoever else changes them at the same time.

A change names the state that it is based on (a digest): what somebody else has changed meanwhile is refused and told. A
lock round each change keeps two processes from doing half of it each. Links are never followed; a file that cannot be
read is told and left alone. What is merged is written before anything is deleted: a kill leaves too much, never less.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from callboard.adapters.tools.places import clear_part, part_name, put_in, read_in
from callboard.adapters.yaml_files import load_front_document
from callboard.core.notes.note import (
    INDEX,
    MOST,
    Note,
    digest_of,
    faults_of,
    indexed,
    merged,
    named,
    note_of,
    text_of,
)
from callboard.core.notes.secrets import refusal
from callboard.words.errors import SettingsError, ToolRefused
from callboard.words.values import Json

LARGEST = 200_000
"""Bytes of one file. Ours are far smaller; a person may have written more."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Kept:
    """A note as it stands in its folder."""

    note: Note
    digest: str
    """Of its file: what a change of it names as its base."""


@dataclass(frozen=True, slots=True)
class Found:
    """All notes of a folder, sorted by name, its index as it is true, and what could not be read."""

    notes: tuple[Kept, ...] = ()
    index: str = ""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PutInOrder:
    """What a consolidation did, or would do."""

    written: tuple[Note, ...]
    """Notes that take over what others say."""
    gone: tuple[str, ...]
    """Names of those others."""
    index: bool
    """The index was not true."""


@dataclass(slots=True)
class NoteFolder:
    """The notes of one place."""

    base: Path
    """A folder that is trusted as it is; it is made if it is missing."""
    parts: tuple[str, ...]
    """The way from there to the notes: no part of it may be a link."""
    private: bool = True
    """For the user's eyes only (0700, 0600); else as other files of a workspace."""
    _known: dict[str, tuple[tuple[int, int, int], Kept]] = field(
        default_factory=dict[str, tuple[tuple[int, int, int], Kept]]
    )
    """Files that were read: what tells whether they changed since, and the note."""

    @property
    def path(self) -> Path:
        """Where the notes are."""
        return self.base.joinpath(*self.parts)

    def read(self) -> Found:
        """All notes. A folder that is not there holds none. Raises `ToolRefused` for one that may not be read."""
        with self._opened(make=False) as folder:
            return Found() if folder is None else self._found(folder)

    def get(self, name: str) -> Kept | None:
        """One note, or None."""
        return next((one for one in self.read().notes if one.note.name == name), None)

    def content(self, name: str) -> bytes:
        """The file of a note as it is; empty without one."""
        with self._opened(make=False) as folder:
            there = None if folder is None else _file(folder, f"{name}.md")
        return there or b""

    def check(self, note: Note, base: str) -> tuple[bytes, bytes]:
        """What a change comes to: the file as it is (empty: none) and as it would be. Raises `ToolRefused`."""
        if wrong := faults_of(note):
            raise ToolRefused(f"{note.name}: {wrong}")
        fields = "\n".join(value for _, value in note.more)
        for what, text in (("description", note.description), ("content", note.body), ("front matter", fields)):
            if wrong := refusal(text):
                raise ToolRefused(f"{note.name}: {what}: {wrong}")
        before, after = self.content(note.name), text_of(note).encode("utf-8", "replace")
        _based(note.name, before, base)
        return before, after

    def put(self, note: Note, base: str) -> Kept:
        """Make a note, or change the one that `base` is the digest of (empty: there must be none). Raises
        `ToolRefused`."""
        self.check(note, base)  # what is refused makes no folder
        with self._changing() as folder:
            before, after = self.check(note, base)
            if not before and len(_names(folder)) >= MOST:
                raise ToolRefused(f"there are {MOST} notes in {self.path}: forget some, or consolidate them")
            self._write(folder, note.file, after)
            self._index(folder)
        return Kept(note, digest_of(after))

    def drop(self, name: str, base: str) -> None:
        """Delete the note that `base` is the digest of. Raises `ToolRefused`."""
        if wrong := named(name):
            raise ToolRefused(wrong)
        with self._changing() as folder:
            before = self.content(name)
            if not before:
                raise ToolRefused(f"there is no note {name!r} in {self.path}")
            _based(name, before, base)
            os.unlink(f"{name}.md", dir_fd=folder)
            self._index(folder)

    def plan(self) -> PutInOrder:
        """What a consolidation would do."""
        found = self.read()
        written, gone = merged([one.note for one in found.notes])
        with self._opened(make=False) as folder:
            index = b"" if folder is None else _file(folder, INDEX) or b""
        return PutInOrder(written, gone, index.decode("utf-8", "replace") != found.index)

    def consolidate(self) -> PutInOrder:
        """Merge notes that say the same, make the index true, clear what a kill left: written first, deleted last."""
        with self._changing() as folder:
            plan = self.plan()
            for note in plan.written:
                self._write(folder, note.file, text_of(note).encode("utf-8", "replace"))
            self._index(folder, without=plan.gone)
            for name in plan.gone:
                os.unlink(f"{name}.md", dir_fd=folder)
            for left in os.listdir(folder):  # noqa: PTH208 - names in an open folder
                if left.startswith(".") and left.endswith(".part"):
                    clear_part(folder, left)
        return plan

    def consolidate_index(self) -> None:
        """Make the index true, where a kill came between a note and it."""
        with self._changing() as folder:
            self._index(folder)

    def _found(self, folder: int) -> Found:
        notes: list[Kept] = []
        problems: list[str] = []
        for name in _names(folder):
            try:
                notes.append(self._note(folder, name, problems))
            except OSError as error:
                problems.append(f"{self.path / name}: cannot be read: {error.strerror or error}")
        index = (_file(folder, INDEX) or b"").decode("utf-8", "replace")
        return Found(tuple(notes), indexed(index, [one.note for one in notes]), tuple(problems))

    def _note(self, folder: int, name: str, problems: list[str]) -> Kept:
        """A note of the folder; one that did not change is not read again. Raises OSError."""
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        mark = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
        known = self._known.get(name)
        if known is not None and known[0] == mark:
            return known[1]
        there = read_in(folder, name, LARGEST)
        content = there[0] if there is not None else b""
        text, where = content.decode("utf-8-sig", "replace").replace("\0", ""), str(self.path / name)
        fields: Json = {}
        try:
            document, text = load_front_document(text, where)
            fields = cast("Json", document.data)
        except SettingsError as error:
            problems.append(f"{error}; it is read as a note without front matter")
        kept = Kept(note_of(name, fields, text), digest_of(content))
        self._known[name] = (mark, kept)
        return kept

    def _write(self, folder: int, name: str, content: bytes) -> None:
        """Whole or not at all, and durable. Raises `ToolRefused`."""
        try:
            put_in(folder, name, content, 0o600 if self.private else None, part_name(name, "note"))
        except OSError as error:
            raise ToolRefused(f"{self.path / name} cannot be written: {error.strerror}") from error

    def _index(self, folder: int, without: Sequence[str] = ()) -> None:
        """Make the index say what is there, now or once some are gone."""
        there = (_file(folder, INDEX) or b"").decode("utf-8", "replace")
        notes = [one.note for one in self._found(folder).notes if one.note.name not in without]
        true = indexed(there, notes)
        if true != there:
            self._write(folder, INDEX, true.encode("utf-8", "replace"))

    @contextlib.contextmanager
    def _changing(self) -> Generator[int]:
        """The folder, made if need be, while nobody else changes it. Raises `ToolRefused`."""
        with self._opened(make=True) as folder:
            assert folder is not None, "it was made"
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            lock = os.open(_LOCK, flags, 0o600, dir_fd=folder)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield folder
            finally:
                os.close(lock)

    @contextlib.contextmanager
    def _opened(self, *, make: bool) -> Generator[int | None]:
        """A descriptor of the folder; None when there is none. Raises `ToolRefused`."""
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
        """Enter folder by folder, following no link. Raises OSError."""
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
        """A folder of an open folder. Raises OSError."""
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700 if self.private else 0o777, dir_fd=at)
        return os.open(part, _FOLDER, dir_fd=at)


def _names(folder: int) -> list[str]:
    """The files of notes in an open folder, sorted, as many as are read."""
    there = sorted(os.listdir(folder))
    return [name for name in there if name.endswith(".md") and name != INDEX and not name.startswith(".")][: 2 * MOST]


def _file(folder: int, name: str) -> bytes | None:
    """What a file holds; None without one. Raises `ToolRefused`."""
    try:
        there = read_in(folder, name, LARGEST)
    except OSError as error:
        raise ToolRefused(f"{name} cannot be read: {error.strerror}") from error
    return None if there is None else there[0]


def _based(name: str, before: bytes, base: str) -> None:
    """Refuse a change that is not based on what is there."""
    now = digest_of(before) if before else ""
    if now == base:
        return
    if not base:
        raise ToolRefused(f"there is a note {name!r} already: recall it, then give its base ({now}) to change it")
    if not now:
        raise ToolRefused(
            f"the note {name!r} is gone: somebody has deleted it meanwhile; leave `base` out to make it anew"
        )
    raise ToolRefused(f"the note {name!r} has changed meanwhile (its base is {now}, not {base}): recall it again")
