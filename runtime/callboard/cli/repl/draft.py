"""Typed text: a draft that is not sent yet, the interruption of a line, the pause after it, and the history.

The history of lines typed in this workspace is kept in a file between conversations: the newest entries, each complete.
An entry is one JSON string on its own line, even if it has several lines. Several processes may append to one file,
because each entry is one write. If the file cannot be read or written, the history is lost, but the conversation
continues.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.history import History

from callboard.types.lazy_dataclass import dataclass


class EscapeKey(KeyboardInterrupt):
    """Esc at a question."""


class LineInterrupted(Exception):
    """Raised when the line was interrupted for something urgent; the draft is kept."""


@dataclass(slots=True)
class Draft:
    """Typed text that is not sent yet, and the cursor position in it."""

    text: str = ""
    cursor: int = 0

    def with_more(self, typed: str) -> Draft:
        """Return the draft with more text inserted at the cursor."""
        text = self.text[: self.cursor] + typed + self.text[self.cursor :]
        return Draft(text, self.cursor + len(typed))


def valid_text(typed: str) -> str:
    """Return the line as valid text: bytes of the keyboard that are not text are replaced."""
    return typed.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


MOST = 2_000
"""Number of history entries."""
LONGEST = 20_000
"""Limit of the characters of an entry in the file; a longer paste is remembered until the conversation ends."""
_READ = 4_000_000
"""Bytes of the file that are read, from its end; a file of twice the size is rewritten with the remembered entries."""


class KeptHistory(History):
    """History in `file`, which is private (0600)."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def load_history_strings(self) -> Iterable[str]:
        """Return the entries, newest first."""
        try:
            with self._file.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - _READ))
                stored = entries(file.read(), cut=size > _READ)
        except OSError:
            return []
        if size > 2 * _READ:
            self._rewrite(stored)
        return list(reversed(stored))

    def store_string(self, string: str) -> None:
        """Add one entry to the file."""
        if len(string) > LONGEST:
            return
        try:
            descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return  # remembered only until the conversation ends
        try:
            os.write(descriptor, _row(string))
        except OSError:
            return
        finally:
            os.close(descriptor)

    def _rewrite(self, stored: list[str]) -> None:
        fresh = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(b"".join(map(_row, stored)))
            fresh.replace(self._file)
        except OSError:
            fresh.unlink(missing_ok=True)


def entries(data: bytes, *, cut: bool = False) -> list[str]:
    """Return the newest entries of a file's content, oldest first.

    `cut`: its first line is incomplete. Invalid entries are skipped.
    """
    lines = data.split(b"\n")[1 if cut else 0 :]
    stored: list[str] = []
    for line in lines:
        try:
            entry: object = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, str) and entry.strip():
            stored.append(entry)
    return stored[-MOST:]


def _row(entry: str) -> bytes:
    return json.dumps(entry).encode() + b"\n"


TOO_SOON = 0.5
"""Seconds after a question appears in which a finished line is not an answer to it; also the pause after which keys
belong to the current line."""
_TYPING = 1.0
"""Seconds after the newest key in which a person counts as typing."""


@dataclass(slots=True)
class NewestKey:
    """Time of the newest key that changed an unfinished line, in the loop's clock."""

    at: float = float("-inf")

    def note_end(self) -> None:
        """Note that the line ended with Enter: the person is no longer typing on it."""
        self.at = float("-inf")


class KeyPause:
    """Pause at the start of a line. Once it is `over`, keys belong to the line.

    The timer runs in the loop that reads the keys: it fires after everything that was typed before it, however late
    both are.
    """

    def __init__(self, line: PromptSession[str], keys: NewestKey, crossed: Callable[[str], None]) -> None:
        """Watch the keys of `line` after it has changed.

        `crossed`: if the person was typing when the line changed, it receives the text typed after the change as soon
        as they pause.
        """
        self._app = line.app
        self._buffer = line.default_buffer
        self._keys = keys
        self._crossed = crossed
        self._before = ""
        self._timer: asyncio.TimerHandle | None = None
        self._was_typing = False
        self.over = False

    @property
    def crossing(self) -> bool:
        """Return True if the text on the line was meant for another line."""
        return self._was_typing and not self.over

    def begin(self) -> None:
        """Start: the line is on the screen."""
        self._before = self._buffer.text
        self._was_typing = asyncio.get_running_loop().time() - self._keys.at < _TYPING
        self._buffer.on_text_changed += self._typed
        self._wait()

    def end(self) -> None:
        """Stop: the line is gone."""
        if self._timer is not None:
            self._timer.cancel()
        self._buffer.on_text_changed -= self._typed

    def _typed(self, buffer: Buffer) -> None:
        self._keys.at = asyncio.get_running_loop().time()
        if self.crossing:
            self._wait()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # In the loop that also reads the keys, so that both are equally late on a slow machine
        # (test_a_line_that_ends_as_the_question_appears_is_not_its_answer).
        self._timer = asyncio.get_running_loop().call_later(TOO_SOON, self._passed)

    def _passed(self) -> None:
        if self._app.is_done:
            return  # the line ended first
        crossing = self.crossing
        self.over = True
        if crossing and self._buffer.text != self._before:
            self._crossed(self._buffer.text)
