"""Fast look-up of names in a workspace's store, within a tenth of a second, for shell completion.

It creates no file, takes none of the store's locks and never fails: if the store cannot be read at once, it returns no
names. It uses Python's own SQLite, because importing the store's package would take as long as the whole answer may
take. It only reads, so the corruption that `schema.refuse_old_sqlite` prevents cannot happen. It does not interpret
rows: a caller that acts on a row opens the store.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import field
from pathlib import Path
from typing import Any, cast

from callboard.adapters.storage.packing import unpack
from callboard.core.keys import DATABASE, rows_prefix, session_key, workspace_folder
from callboard.types.lazy_dataclass import dataclass

_MOST = 500
"""Most rows of a kind that are read, newest first."""
_WAIT = 0.05
"""Seconds to wait for a store that is being checked or created."""


@dataclass(frozen=True, slots=True)
class NamedRow:
    """Row of the store under the last part of its key: `req_...` and its content."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])


def state_folder(workspace: Path, env: Mapping[str, str]) -> Path:
    """Return the folder of a workspace's store. Raises `OSError` if the workspace does not exist."""
    base = env.get("XDG_STATE_HOME", "").strip()
    states = Path(base) if base else Path.home() / ".local" / "state"
    return states / "callboard" / workspace_folder(workspace.expanduser().resolve(strict=True))


def glance(workspace: Path, kind: str, session: str = "") -> tuple[NamedRow, ...]:
    """Return the rows of a kind; empty if they cannot be read.

    The kind is `session`, or `agent`, `request`, `schedule`, `task` or `rule` of a session whose id has this prefix
    (empty: the newest).
    """
    try:
        file = state_folder(workspace, os.environ) / DATABASE
        with closing(sqlite3.connect(_address(file), uri=True, timeout=_WAIT)) as store:
            sessions = _sessions(store)
            if kind == "session":
                return sessions
            chosen = next((row.name for row in sessions if row.name.startswith(session)), None)
            return () if chosen is None else _rows(store, f"{rows_prefix(chosen)}{kind}/")
    except (OSError, RuntimeError, sqlite3.Error, ValueError):  # RuntimeError: the home folder is unknown
        return ()


def _address(file: Path) -> str:
    """Return the URI that opens the file without creating another file next to it.

    Raises `OSError` if the file does not exist.
    """
    file.stat()
    log, shared = (file.with_name(f"{file.name}-{end}") for end in ("wal", "shm"))
    # Unless a process uses it, the file is complete: the last process copied the log into it.
    whole = not (shared.exists() and log.exists() and log.stat().st_size)
    return f"{file.as_uri()}?mode=ro{'&immutable=1' if whole else ''}"


def _sessions(store: sqlite3.Connection) -> tuple[NamedRow, ...]:
    rows = [row for row in _rows(store, session_key("")) if "/" not in row.name]
    return tuple(sorted(rows, key=lambda row: float(row.fields.get("created_at") or 0.0), reverse=True))


def _rows(store: sqlite3.Connection, prefix: str) -> tuple[NamedRow, ...]:
    """Return the newest rows directly under a prefix.

    Keys are ASCII here: `~` sorts after all characters that may follow.
    """
    query = (
        "SELECT key, value, crc FROM row WHERE key > ?1 AND key < ?1 || '~' AND value IS NOT NULL"
        " AND instr(substr(key, length(?1) + 1), '/') = 0 ORDER BY revision DESC LIMIT ?2"
    )
    found = cast("list[tuple[str, bytes, int]]", store.execute(query, (prefix, _MOST)).fetchall())
    return tuple(NamedRow(key.removeprefix(prefix), _fields(unpack(value, crc)[0])) for key, value, crc in found)


def _fields(value: bytes) -> Mapping[str, Any]:
    read = json.loads(value)
    return cast("dict[str, Any]", read) if isinstance(read, dict) else {}
