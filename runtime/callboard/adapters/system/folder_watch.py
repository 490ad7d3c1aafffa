"""Watch for changes in a few folders: woken by the kernel, without polling.

Linux has inotify for that (man 7 inotify), macOS and BSD a kernel queue (`kqueue_folders.py`).

A folder that does not exist yet is awaited at the nearest existing folder above it, where only the next name on the way
to it counts: that folder can be a workspace in which a command writes all the time. A watch does not report the change:
its owner checks. Lost events (a full queue) wake every watch.

All sessions of a process share one instance of it (`WatchFactory`). A user has 128 inotify instances for all programs:
one for each session of `callboard serve` would leave none for other programs.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import anyio

from callboard.adapters.system.bells import Bell
from callboard.adapters.system.kqueue_folders import KqueueFolders

_CLOSE_WRITE = 0x8
_MOVED_FROM = 0x40
_MOVED_TO = 0x80
_CREATE = 0x100
_DELETE = 0x200
_DELETE_SELF = 0x400
_MOVE_SELF = 0x800
_ATTRIB = 0x4
_MASK = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ATTRIB
_ONLY_FOLDERS = 0x01000000
_OVERFLOW = 0x4000
_IGNORED = 0x8000
_EVENT = struct.Struct("iIII")
"""Number of the watched folder, mask, cookie, and the length of the following name (man 7 inotify)."""
_LARGEST = 65_536  # bytes of events read at once
_MOST_FOLDERS = 500
_DEEP = frozenset({"schedules", "agents", "skills", "commands"})
"""Folders whose files may be in subfolders."""
_LIBC = ctypes.CDLL(None, use_errno=True)

GATHER = 0.2
"""Seconds in which several changes become one: an editor that saves writes, renames and deletes."""


class WatchFactory:
    """Factory of the watches of a process, in any of its event loops and threads.

    All of them share one instance of the kernel's means, which exists from the first watch to the last.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kernel: InotifyFolders | KqueueFolders | None = None

    def watch(self, folders: Iterable[Path]) -> FolderWatch:
        """Watch folders from now on. Raises `OSError` if the kernel does not support that, or has no more watches."""
        bell = Bell()
        try:
            with self._lock:
                self._kernel = self._kernel or _folders()
                self._kernel.bells.add(bell)
        except OSError:
            bell.close()
            raise
        made = FolderWatch(tuple(folders), bell, self._kernel, self)
        try:
            made.look_again()
        except OSError:
            made.close()
            raise
        return made

    def leave(self, bell: Bell) -> None:
        """Remove a watch from the instance."""
        with self._lock:
            if self._kernel is not None:
                self._kernel.drop(bell)
                if not self._kernel.bells:
                    self._kernel.end()
                    self._kernel = None
        bell.close()


class FolderWatch:
    """Watch of folders from its creation by `WatchFactory.watch`."""

    def __init__(
        self, folders: Sequence[Path], bell: Bell, kernel: InotifyFolders | KqueueFolders, watches: WatchFactory
    ) -> None:
        self._folders = folders
        self._bell: Bell | None = bell
        self._kernel = kernel
        self._watches = watches

    async def wait_changed(self) -> None:
        """Return once something has changed since the creation of this watch, or since the last return."""
        if self._bell is None:
            raise RuntimeError("the watch is closed")
        await anyio.wait_readable(self._bell.fileno())
        await anyio.sleep(GATHER)
        self._bell.clear()
        self.look_again()

    def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._bell is not None:
            self._watches.leave(self._bell)
            self._bell = None

    def look_again(self) -> None:
        """Watch the folders that exist by now, because one may have been created, or created again."""
        if self._bell is not None:
            for folder in self._folders:
                self._watch(folder, self._bell)

    def _watch(self, folder: Path, bell: Bell) -> None:
        """Watch the folder and its subfolders, or the nearest existing folder above it."""
        awaited: str | None = None
        for place in (folder, *folder.parents):
            if self._kernel.add(place, bell, awaited):
                break
            awaited = place.name
        else:
            return
        if place == folder and place.name in _DEEP:
            below = [Path(parent) for parent, _, _ in os.walk(folder)][1:_MOST_FOLDERS]
            for inner in below:
                self._kernel.add(inner, bell)


def _folders() -> InotifyFolders | KqueueFolders:
    """Return what this system has. Raises `OSError` if it has neither, or no more of it."""
    if sys.platform.startswith("linux"):
        return InotifyFolders()
    if hasattr(select, "kqueue"):
        return KqueueFolders()
    raise OSError(0, "this system reports no changes in folders")


class InotifyFolders:
    """One inotify instance, and the thread that passes its events to the bells of the watches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, dict[Bell, set[bytes] | None]] = {}
        """Kernel's number of the folder, which it never reuses -> bell to ring -> names in the folder that count; None:
        all names."""
        self.bells: set[Bell] = set()
        self._descriptor = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise _failure()
        try:
            self._end = Bell()
        except OSError:
            os.close(self._descriptor)
            raise
        self._thread = threading.Thread(target=self._pass_on, name="callboard-folders", daemon=True)
        self._thread.start()

    def add(self, folder: Path, bell: Bell, name: str | None = None) -> bool:
        """Ring `bell` at changes in `folder`. Return True if the folder exists. Idempotent.

        `name`: only changes of this name in the folder, and of the folder itself, count; None: all changes.
        """
        with self._lock:
            number = _LIBC.inotify_add_watch(self._descriptor, os.fsencode(folder), _MASK | _ONLY_FOLDERS)
            if number >= 0:
                bells = self._watched.setdefault(number, {})
                names = bells.setdefault(bell, set())
                if name is None:
                    bells[bell] = None
                elif names is not None:
                    names.add(os.fsencode(name))
                return True
            failure = _failure()
        if isinstance(failure, (FileNotFoundError, NotADirectoryError, PermissionError)):
            return False
        raise failure

    def drop(self, bell: Bell) -> None:
        """Stop ringing `bell`; stop watching folders that no other bell needs."""
        with self._lock:
            self.bells.discard(bell)
            for number in [number for number, bells in self._watched.items() if bell in bells]:
                del self._watched[number][bell]
                if not self._watched[number]:
                    del self._watched[number]
                    _LIBC.inotify_rm_watch(self._descriptor, number)

    def end(self) -> None:
        """End the thread and close the instance."""
        self._end.ring()
        self._thread.join()
        os.close(self._descriptor)
        self._end.close()

    def _pass_on(self) -> None:
        events = select.poll()
        events.register(self._descriptor, select.POLLIN)
        events.register(self._end, select.POLLIN)
        while all(ready != self._end.fileno() for ready, _ in events.poll()):
            self._ring(os.read(self._descriptor, _LARGEST))

    def _ring(self, read: bytes) -> None:
        with self._lock:
            bells: set[Bell] = set()
            place = 0
            while place < len(read):
                number, mask, _, length = _EVENT.unpack_from(read, place)
                name = read[place + _EVENT.size : place + _EVENT.size + length].rstrip(b"\0")
                place += _EVENT.size + length
                if mask & _OVERFLOW:
                    bells |= self.bells
                else:
                    watching = self._watched.get(number, {}).items()
                    bells.update(bell for bell, names in watching if names is None or not name or name in names)
                if mask & _IGNORED:
                    self._watched.pop(number, None)
            for bell in bells & self.bells:
                bell.ring()


def _failure() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
