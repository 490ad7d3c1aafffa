"""Tells when something in a few folders has changed: woken by the kernel (inotify, man 7 inotify), never by looking.

A folder that is not there yet is awaited at the nearest folder above it that is. What has changed is not told: whoever
is woken looks for himself, and events that were lost (a full queue) wake him as well.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import anyio

_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x8, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _ATTRIB = 0x400, 0x800, 0x4
_MASK = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ATTRIB
_ONLY_FOLDERS = 0x01000000
_LARGEST = 65_536  # bytes of events read at once
_MOST_FOLDERS = 500
_DEEP = frozenset({"schedules", "agents", "skills", "commands"})
"""Folders whose files may lie in folders of their own."""
_LIBC = ctypes.CDLL(None, use_errno=True)

GATHER = 0.2
"""Seconds in which a burst of changes becomes one: an editor that saves writes, renames and deletes."""


class FolderWatch:
    """Watches folders from the moment it is made. Raises `OSError` where the kernel has no such thing, or no more."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)
        if not sys.platform.startswith("linux"):
            raise OSError(0, "this system has no inotify")
        self._descriptor = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise _failure()
        try:
            self._watch_all()
        except OSError:
            self.close()
            raise

    async def changed(self) -> None:
        """Return once something has changed since this was made, or since it returned last."""
        await anyio.wait_readable(self._descriptor)
        await anyio.sleep(GATHER)
        self._drain()
        self._watch_all()  # a folder that was made in between, or made anew, is watched from here on

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _drain(self) -> None:
        try:
            while os.read(self._descriptor, _LARGEST):
                pass
        except BlockingIOError:
            return

    def _watch_all(self) -> None:
        for folder in self._folders:
            self._watch(folder)

    def _watch(self, folder: Path) -> None:
        """The folder and those in it; the nearest one above it where it is not there."""
        for there in (folder, *folder.parents):
            if self._add(there):
                break
        else:
            return
        if there == folder and there.name in _DEEP:
            below = [Path(parent) for parent, _, _ in os.walk(folder)][1:_MOST_FOLDERS]
            for one in below:
                self._add(one)

    def _add(self, folder: Path) -> bool:
        """Whether it is there to be watched; watching it twice is watching it once."""
        number = _LIBC.inotify_add_watch(self._descriptor, os.fsencode(folder), _MASK | _ONLY_FOLDERS)
        if number >= 0:
            return True
        failure = _failure()
        if isinstance(failure, (FileNotFoundError, NotADirectoryError, PermissionError)):
            return False
        raise failure


def _failure() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
