"""What was typed in this workspace, kept in a file between conversations: the newest entries, each whole.

An entry is a JSON text on a line of its own, so that one of several lines stays one. Several processes may add to one
file: each entry is one write. A file that cannot be read or written costs the memory, never the conversation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit.history import History

MOST = 2_000
"""Entries that are remembered."""
LONGEST = 20_000
"""Characters of an entry that is kept; a larger paste is remembered until the conversation ends."""
_READ = 4_000_000
"""Bytes of the file that are read, from its end; a file of twice as much is written anew with what is remembered."""


class KeptHistory(History):
    """The history in `file`, which is private (0600)."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def load_history_strings(self) -> Iterable[str]:
        """The entries, newest first."""
        try:
            with self._file.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - _READ))
                found = entries(file.read(), cut=size > _READ)
        except OSError:
            return []
        if size > 2 * _READ:
            self._write_anew(found)
        return list(reversed(found))

    def store_string(self, string: str) -> None:
        """Add one entry to the file."""
        if len(string) > LONGEST:
            return
        try:
            descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return  # remembered for this time only
        try:
            os.write(descriptor, _row(string))
        except OSError:
            return
        finally:
            os.close(descriptor)

    def _write_anew(self, found: list[str]) -> None:
        fresh = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(b"".join(map(_row, found)))
            fresh.replace(self._file)
        except OSError:
            fresh.unlink(missing_ok=True)


def entries(data: bytes, *, cut: bool = False) -> list[str]:
    """The newest entries of a file's content, oldest first. `cut`: its first line is not whole. What is no entry is
    passed over."""
    lines = data.split(b"\n")[1 if cut else 0 :]
    found: list[str] = []
    for line in lines:
        try:
            one: object = json.loads(line)
        except ValueError:
            continue
        if isinstance(one, str) and one.strip():
            found.append(one)
    return found[-MOST:]


def _row(entry: str) -> bytes:
    return json.dumps(entry).encode() + b"\n"
