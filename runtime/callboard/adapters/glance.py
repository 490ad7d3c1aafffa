"""A look at the names in a workspace's store, for who has a tenth of a second: completion at a shell.

It opens nothing that is not there, makes no file, takes no lock of ours and never fails: what cannot be read at once
offers no names. Python's own SQLite, since the store's package takes as long to import as a whole answer may take; it
only reads, so what `schema.refuse_old_sqlite` is afraid of cannot happen.

It refuses to say what a row means: whoever acts on one opens the store.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from callboard.core.names import DATABASE, rows_prefix, session_key, workspace_folder

_MOST = 500
"""Rows of a kind that are looked at, newest first."""
_WAIT = 0.05
"""Seconds for a store that is just being checked or made."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the store under its last name: `req_...` and what it holds."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])


def state_folder(workspace: Path, env: Mapping[str, str]) -> Path:
    """Where the store of a workspace is. Raises `OSError` for a workspace that is not there."""
    base = env.get("XDG_STATE_HOME", "").strip()
    states = Path(base) if base else Path.home() / ".local" / "state"
    return states / "callboard" / workspace_folder(workspace.expanduser().resolve(strict=True))


def glance(workspace: Path, kind: str, session: str = "") -> tuple[Row, ...]:
    """The rows of a kind: `session`, or `agent`, `request`, `schedule`, `task`, `rule` of a session whose id begins so
    (empty: the newest). Empty for what cannot be read."""
    try:
        file = state_folder(workspace, os.environ) / DATABASE
        with closing(sqlite3.connect(_address(file), uri=True, timeout=_WAIT)) as store:
            sessions = _sessions(store)
            if kind == "session":
                return sessions
            chosen = next((one.name for one in sessions if one.name.startswith(session)), None)
            return () if chosen is None else _rows(store, f"{rows_prefix(chosen)}{kind}/")
    except (OSError, RuntimeError, sqlite3.Error, ValueError):  # RuntimeError: there is no home folder to be found
        return ()


def _address(file: Path) -> str:
    """How to open the file without making another one beside it. Raises `OSError` when it is not there."""
    file.stat()
    log, shared = (file.with_name(f"{file.name}-{end}") for end in ("wal", "shm"))
    # Without a process that works on it the file is whole: the last one to leave has copied its log into it.
    whole = not (shared.exists() and log.exists() and log.stat().st_size)
    return f"{file.as_uri()}?mode=ro{'&immutable=1' if whole else ''}"


def _sessions(store: sqlite3.Connection) -> tuple[Row, ...]:
    found = [one for one in _rows(store, session_key("")) if "/" not in one.name]
    return tuple(sorted(found, key=lambda one: float(one.fields.get("created_at") or 0.0), reverse=True))


def _rows(store: sqlite3.Connection, prefix: str) -> tuple[Row, ...]:
    """The newest rows directly under a prefix. Keys are ASCII here: `~` sorts after all that may follow."""
    asked = (
        "SELECT key, value FROM row WHERE key > ?1 AND key < ?1 || '~' AND value IS NOT NULL"
        " AND instr(substr(key, length(?1) + 1), '/') = 0 ORDER BY revision DESC LIMIT ?2"
    )
    found = cast("list[tuple[str, bytes]]", store.execute(asked, (prefix, _MOST)).fetchall())
    return tuple(Row(key.removeprefix(prefix), _fields(value)) for key, value in found)


def _fields(value: bytes) -> Mapping[str, Any]:
    read = json.loads(value)
    return cast("dict[str, Any]", read) if isinstance(read, dict) else {}
