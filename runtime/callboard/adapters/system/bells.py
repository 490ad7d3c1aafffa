"""Wake-up between threads of a process: a descriptor that becomes readable when the bell is rung.

Linux has a descriptor for that (`eventfd`); elsewhere a pipe serves as one.
"""

from __future__ import annotations

import os
from contextlib import suppress


class Bell:
    """Bell that any thread may ring. Several rings count as one."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self._reader = self._writer = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            return
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._reader

    def ring(self) -> None:
        """Make the descriptor readable."""
        with suppress(BlockingIOError):  # it was rung so often that it is full
            os.write(self._writer, (1).to_bytes(8, "little"))

    def clear(self) -> None:
        """Forget all rings so far."""
        with suppress(BlockingIOError):
            os.read(self._reader, 65_536)

    def close(self) -> None:
        """Close the bell. Nothing may ring it afterwards."""
        os.close(self._reader)
        if self._writer != self._reader:
            os.close(self._writer)
