"""Schedule files: Markdown whose front matter says when and how, and whose body is the prompt.

Read from the workspace (what a person trusted, and nothing written since) and from the person's own folder. A file that
cannot be understood is told with file, line and field, and is `there` all the same: the schedule that stood before it
was broken stays as it is. So does all of a folder that cannot be looked into. Refused: NUL characters, files of more
than a megabyte, links that lead out, and one name twice.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from callboard.adapters.files import Found, Places, Source, agent_paths, own_sources
from callboard.adapters.yaml_files import YamlDocument, load_front_document
from callboard.core.schedule.fields import FIELDS, FieldWrong, nearest_field, with_fields
from callboard.core.trust.claims import Brought
from callboard.words.errors import SettingsError
from callboard.words.schedules import Schedule

FOLDER = ".callboard/schedules"
"""Of a workspace, relative to it."""
NOT_IN_FILES = frozenset({"prompt", "durable"})

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class ScheduleFiles:
    """What the files say now."""

    wanted: tuple[Schedule, ...] = ()
    """One for each file that could be understood, without an id; `source` and `digest` tell them apart."""
    there: frozenset[str] = frozenset()
    """Sources that are there, understood or not: a schedule of any other one is over."""
    unseen: tuple[str, ...] = ()
    """How the sources begin that were not looked at: what stands of them stays."""
    withheld: Mapping[str, str] = field(default_factory=dict[str, str])
    """Source -> digest of what is not read, since its workspace is not trusted as it is now."""
    faults: tuple[str, ...] = ()
    """What is wrong, a line each: `file:line: field: what, and what to write`."""


@dataclass(slots=True)
class _Look:
    """One look at the files, while it is taken."""

    wanted: list[Schedule] = field(default_factory=list[Schedule])
    there: set[str] = field(default_factory=set[str])
    unseen: list[str] = field(default_factory=list[str])
    withheld: dict[str, str] = field(default_factory=dict[str, str])
    faults: list[str] = field(default_factory=list[str])


def withheld_line(withheld: Mapping[str, str]) -> str:
    """What a person is told of files that are not read."""
    files = f"{len(withheld)} schedule file{'s' if len(withheld) > 1 else ''}"
    return (
        f"{FOLDER}: {files} not read, since this workspace is not trusted as it is now: "
        "`callboard trust show` lists what it brings, `callboard trust` decides"
    )


def schedule_places(workspace: Path, config: Path, brought: Brought, *, trusted: bool) -> Places:
    """Where to look. `brought`: what the workspace brings, as it was read when trust was decided."""
    return Places(workspace, config, trusted=trusted, bundled=False, brought=brought)


def read_schedule_files(places: Places) -> ScheduleFiles:
    """All that the files say. Raises nothing for what is in them."""
    look = _Look()
    if not places.trusted:
        _withheld(places, look)
    for source in own_sources("schedules", places):
        found = _found(source, look)
        unread = [note for note in found.notes if Path(note.path) not in found.paths]  # the others tell it below
        look.there |= {_shown(source, Path(note.path)) for note in unread}
        look.faults += [f"{_shown(source, Path(note.path))}: {note.why}" for note in unread]
        for path in found.paths:
            look.there.add(_shown(source, path))
            _read(source, path, look)
    return ScheduleFiles(
        tuple(look.wanted), frozenset(look.there), tuple(look.unseen), look.withheld, tuple(look.faults)
    )


def _withheld(places: Places, look: _Look) -> None:
    """Of a workspace that nobody trusts as it is now nothing is read; that a file is gone counts all the same."""
    brought = places.brought or Brought("")
    inside = {path for path in brought.hashes if path.startswith(f"{FOLDER}/")}
    inside |= {one.path for one in brought.claims if one.path.startswith(f"{FOLDER}/")}
    look.there |= inside
    if _hidden(Path(brought.workspace or places.workspace or "", FOLDER)):
        look.unseen.append(f"{FOLDER}/")
    look.withheld |= {path: brought.hashes.get(path, "") for path in inside}


def _found(source: Source, look: _Look) -> Found:
    """The files of one source; where its folder cannot be looked into, none, and a fault."""
    why = _hidden(source.folder)
    if not why:
        return agent_paths(source)
    begins = _shown(source, source.folder)
    look.unseen.append(f"{begins}/")
    look.faults.append(f"{begins}: cannot be looked into ({why}): its schedules stay as they are")
    return Found()


def _hidden(folder: Path) -> str:
    """Why a folder cannot be looked into; empty for one that can, or that is not there."""
    try:
        with os.scandir(folder):
            return ""
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return error.strerror or str(error)


def _shown(source: Source, path: Path) -> str:
    """Relative to the workspace; a file of the person's own in full."""
    return str(path.relative_to(source.root)) if source.scope == "workspace" else str(path)


def _read(source: Source, path: Path, look: _Look) -> None:
    where = _shown(source, path)
    try:
        raw = source.read(path)
        schedule = read_schedule(raw, where)
    except OSError as error:
        look.faults.append(f"{where}: cannot be read: {error.strerror or error}")
        return
    except SettingsError as error:
        look.faults.append(str(error))
        return
    taken = next((one for one in look.wanted if schedule.name and one.name == schedule.name), None)
    if taken is not None:
        look.faults.append(
            f"{where}: name: {schedule.name} is the name of {taken.source} already: give one another name"
        )
        return
    look.wanted.append(schedule)


def read_schedule(raw: bytes, where: str) -> Schedule:
    """The schedule that a file describes, without an id. Raises `SettingsError` with file, line and field."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise SettingsError("is not UTF-8 text", f"{where}:{line}") from error
    document, body = load_front_document(text, where)
    fields = cast("dict[str, object]", document.data)
    for name in fields:
        if name not in FIELDS or name in NOT_IN_FILES:
            raise document.error(_unknown(name), (name,))
    if "cron" not in fields:
        why = (
            'is missing: write `cron: "0 9 * * 1-5"` (or @daily, every 20m, at 2026-12-01T09:00) between two --- lines'
        )
        raise SettingsError(why, f"{where}:1: cron")
    stem = Path(where).stem
    named = {"name": stem} if _NAME.fullmatch(stem) and not stem.startswith("cron_") else {}
    digest = hashlib.sha256(raw).hexdigest()
    blank = Schedule(id="", cron="", prompt="", source=where, digest=digest, created_by="file")
    try:
        return with_fields(blank, {**named, **fields, "prompt": body.strip()})
    except FieldWrong as wrong:
        raise SettingsError(wrong.what, _place(document, where, wrong.field, text, body)) from wrong


def _unknown(name: str) -> str:
    if name == "prompt":
        return "is the text below the front matter: write it there"
    if name == "durable":
        return "is no field of a file: a schedule of a file stands while the file does"
    return f"is no field of a schedule: {nearest_field(name)}"


def _place(document: YamlDocument, where: str, name: str, text: str, body: str) -> str:
    if name == "prompt":
        return f"{where}:{text.removesuffix(body).count(chr(10)) + 1}: prompt"
    return document.place((name,))


def folders_of(places: Places) -> Iterator[Path]:
    """The folders whose changes matter, whether they are there or not."""
    if places.workspace is not None:
        yield places.workspace / FOLDER
    if places.config is not None:
        yield places.config / "schedules"
        yield places.config  # a person's decision to trust is kept in it
