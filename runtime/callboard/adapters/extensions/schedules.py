"""Schedule files: Markdown whose front matter has the times and settings, and whose body is the prompt.

The files are read from the workspace (only the trusted content, nothing written later) and from the user's own folder.
An invalid file is reported with file, line and field, but still counts as existing: its earlier schedule stays
unchanged. The same applies to all files of an unreadable folder. Refused are NUL characters, files of more than a
megabyte, links that lead out, and duplicate names.

A file creates its schedule, updates it, or ends it when the file is gone. An update changes only values from the file:
the history, the last slot and a pause stay. `by_file` and `without_file`, which decide this, are pure.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import cast

from callboard.adapters.extensions.discovery import ExtensionPaths, Source, SourceFiles, agent_paths, own_sources
from callboard.adapters.extensions.yaml import YamlDocument, load_front_document
from callboard.core.keys import short_id
from callboard.core.scheduling.fields import FIELDS, InvalidField, nearest_field, with_fields
from callboard.core.trust.claims import WorkspaceClaims
from callboard.core.utf8 import storable
from callboard.types.errors import SettingsError
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.schedules import Schedule

FOLDER = ".callboard/schedules"
"""Folder of a workspace, relative to it."""
NOT_IN_FILES = frozenset({"prompt", "durable"})

_NAME = late_pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class ScheduleFiles:
    """Current content of the schedule files."""

    schedules: tuple[Schedule, ...] = ()
    """One schedule for each valid file, without an id; `source` and `digest` identify them."""
    sources: frozenset[str] = frozenset()
    """Existing sources, valid or not. A schedule of any other source has ended."""
    unseen: tuple[str, ...] = ()
    """Prefixes of the sources that could not be read. Their schedules stay."""
    withheld: Mapping[str, str] = field(default_factory=dict[str, str])
    """Source -> digest of content that is not read, because the workspace's present content is not trusted."""
    faults: tuple[str, ...] = ()
    """Mistakes, one line each: `file:line: field: problem, and remedy`."""
    types: Mapping[str, str] = field(default_factory=dict[str, str])
    """Source -> `file:line: field` of the agent type that it names."""


@dataclass(slots=True)
class _Look:
    """One pass over the files."""

    schedules: list[Schedule] = field(default_factory=list[Schedule])
    sources: set[str] = field(default_factory=set[str])
    unseen: list[str] = field(default_factory=list[str])
    withheld: dict[str, str] = field(default_factory=dict[str, str])
    faults: list[str] = field(default_factory=list[str])
    types: dict[str, str] = field(default_factory=dict[str, str])


def withheld_line(withheld: Mapping[str, str]) -> str:
    """Return the line that tells the user which files are not read."""
    files = f"{len(withheld)} schedule file{'s' if len(withheld) > 1 else ''}"
    return (
        f"{FOLDER}: {files} not read, since this workspace is not trusted as it is now: "
        "`callboard trust show` lists what it brings, `callboard trust` decides"
    )


def schedule_places(
    workspace: Path, config: Path, workspace_claims: WorkspaceClaims, *, trusted: bool
) -> ExtensionPaths:
    """Return the places to search. `workspace_claims`: content of the workspace, as read when trust was decided."""
    return ExtensionPaths(workspace, config, trusted=trusted, bundled=False, workspace_claims=workspace_claims)


def read_schedule_files(places: ExtensionPaths) -> ScheduleFiles:
    """Return the content of all files. Raises nothing because of their content."""
    look = _Look()
    if not places.trusted:
        _withheld(places, look)
    for source in own_sources("schedules", places):
        listing = _files_of(source, look)
        unread = [note for note in listing.notes if Path(note.path) not in listing.paths]  # the others: see below
        look.sources |= {_label(source, Path(note.path)) for note in unread}
        look.faults += [f"{_label(source, Path(note.path))}: {note.reason}" for note in unread]
        for path in listing.paths:
            look.sources.add(_label(source, path))
            _read(source, path, look)
    return ScheduleFiles(
        tuple(look.schedules),
        frozenset(look.sources),
        tuple(look.unseen),
        look.withheld,
        tuple(look.faults),
        look.types,
    )


def _withheld(places: ExtensionPaths, look: _Look) -> None:
    """Record the files of an untrusted workspace without reading them. A deleted file still counts as deleted."""
    workspace_claims = places.workspace_claims or WorkspaceClaims("")
    inside = {path for path in workspace_claims.hashes if path.startswith(f"{FOLDER}/")}
    inside |= {claim.path for claim in workspace_claims.claims if claim.path.startswith(f"{FOLDER}/")}
    look.sources |= inside
    if _hidden(Path(workspace_claims.workspace or places.workspace or "", FOLDER)):
        look.unseen.append(f"{FOLDER}/")
    look.withheld |= {path: workspace_claims.hashes.get(path, "") for path in inside}


def _files_of(source: Source, look: _Look) -> SourceFiles:
    """Return the files of one source; none, with a fault, if its folder cannot be read."""
    reason = _hidden(source.folder)
    if not reason:
        return agent_paths(source)
    begins = _label(source, source.folder)
    look.unseen.append(f"{begins}/")
    look.faults.append(f"{begins}: cannot be looked into ({reason}): its schedules stay as they are")
    return SourceFiles()


def _hidden(folder: Path) -> str:
    """Return the reason why a folder cannot be listed; empty if it can, or if it does not exist."""
    try:
        with os.scandir(folder):
            return ""
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return error.strerror or str(error)


def _label(source: Source, path: Path) -> str:
    """Return the path relative to the workspace; the full path for a file of the user."""
    return str(path.relative_to(source.root)) if source.scope == "workspace" else str(path)


def _read(source: Source, path: Path, look: _Look) -> None:
    where = _label(source, path)
    if where != storable(where):
        look.faults.append(f"{where!a}: its name is not UTF-8 text: rename the file")
        return
    try:
        raw = source.read(path)
        schedule, document = read_schedule(raw, where)
    except OSError as error:
        look.faults.append(f"{where}: cannot be read: {error.strerror or error}")
        return
    except SettingsError as error:
        look.faults.append(str(error))
        return
    existing = next((other for other in look.schedules if schedule.name and other.name == schedule.name), None)
    if existing is not None:
        look.faults.append(f"{where}: name: {schedule.name} is already the name of {existing.source}: rename one")
        return
    if schedule.target != "lead":
        look.types[where] = document.place(("agent_type",))
    look.schedules.append(schedule)


def read_schedule(raw: bytes, where: str) -> tuple[Schedule, YamlDocument]:
    """Return the schedule that a file describes, without an id, and the file's front matter.

    Raises `SettingsError` with file, line and field.
    """
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
        message = (
            'is missing: write `cron: "0 9 * * 1-5"` (or @daily, every 20m, at 2030-12-01T09:00) between two --- lines'
        )
        raise SettingsError(message, f"{where}:1: cron")
    stem = Path(where).stem
    named = {"name": stem} if _NAME.fullmatch(stem) and not stem.startswith("cron_") else {}
    digest = hashlib.sha256(raw).hexdigest()
    blank = Schedule(id="", cron="", prompt="", source=where, digest=digest, created_by="file")
    try:
        return with_fields(blank, {**named, **fields, "prompt": body.strip()}), document
    except InvalidField as wrong:
        raise SettingsError(wrong.what, _place(document, where, name=wrong.field, text=text, body=body)) from wrong


def _unknown(name: str) -> str:
    if name == "prompt":
        return "is the text below the front matter: write it there"
    if name == "durable":
        return "is not a field of a file: a schedule of a file exists as long as the file does"
    return f"is not a field of a schedule: {nearest_field(name)}"


def _place(document: YamlDocument, where: str, *, name: str, text: str, body: str) -> str:
    if name == "prompt":
        return f"{where}:{text.removesuffix(body).count(chr(10)) + 1}: prompt"
    return document.place((name,))


def folders_of(places: ExtensionPaths) -> Iterator[Path]:
    """Yield the folders whose changes matter, whether they exist or not."""
    if places.workspace is not None:
        yield places.workspace / FOLDER
    if places.config is not None:
        yield places.config / "schedules"
        yield places.config  # it contains the user's decision to trust


_SAID = (
    *("cron", "prompt", "name", "timezone", "target", "context", "jitter", "window", "deadline", "retries", "rights"),
    *("expires", "max_runs", "source", "digest", "recurring", "durable", "enabled", "misfire", "misfire_cap"),
    *("overlap", "deliver", "budget", "fire_budget"),
)
"""Fields that a file sets. All others belong to the schedule's own state."""


def file_id(session: str, source: str) -> str:
    """Return the id of a file's schedule. It stays the same as long as the file keeps its name."""
    return short_id("cron", session, "file", source)


def by_file(row: Schedule | None, from_file: Schedule, now: float) -> Schedule | None:
    """Return the row that its file requires; None if the row is already correct.

    New times count from now on, so that no missed runs are invented for them. A one-shot that fired, or a schedule that
    ended, fires again once its file changes. A schedule whose file was missing counts from now on.
    """
    if row is None:
        return from_file.model_copy(update={"created_at": now})
    if row.state != "cancelled" and row.digest == from_file.digest and row.source == from_file.source:
        return None
    update = {name: getattr(from_file, name) for name in _SAID}
    if row.state == "cancelled" or (row.cron, row.timezone) != (from_file.cron, from_file.timezone):
        update["last_slot"] = max(now, row.last_slot or 0.0)
    if row.state in ("cancelled", "fired", "ended"):
        update["state"] = "active"
    return row.model_copy(update=update)


def without_file(row: Schedule) -> Schedule | None:
    """Return the row of a schedule whose file is missing; None if it has already ended."""
    if row.state == "cancelled":
        return None
    return row.model_copy(update={"state": "cancelled", "enabled": False})
