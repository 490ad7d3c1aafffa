"""Changes in folders by a kernel queue (man 2 kqueue), for macOS and BSD: the interface of `InotifyFolders`.

A queue reports that a folder or a file has changed, and not which name in a folder. So a folder is listed again at each
event, and compared with the last listing. A change inside a file is an event of that file alone, so the files of a
folder are open too, up to a limit; beyond it, a program that writes into an existing file is noticed only when it
replaces the file.
"""

from __future__ import annotations

import os
import select
import stat
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from callboard.adapters.system.bells import Bell

Listing = Mapping[str, tuple[int, int, int]]
"""Entries of a folder by name: inode, time of change in nanoseconds, size."""
MOST_FILES = 2_000
"""Most open files of one queue."""


def listing_of(folder: str) -> Listing | None:
    """Return the entries of a folder; None if it does not exist, or cannot be read."""
    entries: dict[str, tuple[int, int, int]] = {}
    try:
        names = os.listdir(folder)  # noqa: PTH208 - text, at each event
    except OSError:
        return None
    for name in names:
        with suppress(OSError):  # it has just been removed
            status = os.lstat(f"{folder}/{name}")
            entries[name] = (status.st_ino, status.st_mtime_ns, status.st_size)
    return entries


def changed_names(before: Listing, after: Listing) -> set[str]:
    """Return the names that appeared, disappeared, or changed between two listings."""
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


class WatchedFolder:
    """One folder: its last listing, and the bells to ring."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.bells: dict[Bell, set[str] | None] = {}
        """The names that count for each bell; None: all names."""

    def ring_for(self, bell: Bell, name: str | None) -> None:
        """Ring a bell for one more name; None: for all names."""
        names = self.bells.setdefault(bell, set())
        if name is None:
            self.bells[bell] = None
        elif names is not None:
            names.add(name)

    def wants_file(self, name: str) -> bool:
        """Return True if a change inside this file rings a bell."""
        return any(names is None or name in names for names in self.bells.values())

    def update(self, listing: Listing | None) -> set[Bell]:
        """Take a new listing, None if the folder is gone. Return the bells to ring."""
        if listing is None:
            return set(self.bells)
        names = changed_names(self.listing, listing)
        self.listing = listing
        return {bell for bell, wanted in self.bells.items() if (names if wanted is None else names & wanted)}


class KqueueFolders:
    """One kernel queue, and the thread that passes its events to the bells of the watches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kernel: Any = select  # Linux has no kqueue, so its type stubs have none either
        self._folders: dict[str, WatchedFolder] = {}
        self._open: dict[int, tuple[str, str]] = {}
        """Open descriptors: the folder, and the name of the file in it, empty for the folder itself."""
        self.bells: set[Bell] = set()
        self._end = Bell()
        self._queue = self._kernel.kqueue()
        try:
            self._queue.control([self._event(self._end.fileno(), "KQ_FILTER_READ")], 0)
        except OSError:
            self._queue.close()
            self._end.close()
            raise
        self._thread = threading.Thread(target=self._pass_on, name="callboard-folders", daemon=True)
        self._thread.start()

    def add(self, folder: Path, bell: Bell, name: str | None = None) -> bool:
        """Ring `bell` at changes in `folder`. Return True if the folder exists. Idempotent.

        `name`: only changes of this name in the folder, and of the folder itself, count; None: all changes.
        """
        place = str(folder)
        with self._lock:
            watched = self._folders.get(place)
            if watched is None:
                # Opened before it is listed, so that no change in between is lost.
                if not folder.is_dir() or not self._watch(place, ""):
                    return False
                watched = self._folders[place] = WatchedFolder(listing_of(place) or {})
            watched.ring_for(bell, name)
            self._watch_files(place, watched)
        return True

    def drop(self, bell: Bell) -> None:
        """Stop ringing `bell`; stop watching folders that no other bell needs."""
        with self._lock:
            self.bells.discard(bell)
            for place, watched in list(self._folders.items()):
                watched.bells.pop(bell, None)
                if not watched.bells:
                    self._forget(place)

    def end(self) -> None:
        """End the thread and close the queue."""
        self._end.ring()
        self._thread.join()
        for descriptor in self._open:
            os.close(descriptor)
        self._queue.close()
        self._end.close()

    def _watch(self, place: str, name: str) -> bool:
        """Open a folder or a file in it, and ask for its events. Return False if that fails."""
        path = f"{place}/{name}" if name else place
        try:
            descriptor = os.open(path, getattr(os, "O_EVTONLY", os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        notes = 0
        for note in ("WRITE", "EXTEND", "DELETE", "RENAME", "ATTRIB"):
            notes |= getattr(self._kernel, f"KQ_NOTE_{note}")
        try:
            self._queue.control([self._event(descriptor, "KQ_FILTER_VNODE", notes)], 0)
        except OSError:
            os.close(descriptor)
            return False
        self._open[descriptor] = place, name
        return True

    def _event(self, descriptor: int, kind: str, notes: int = 0) -> Any:
        flags = self._kernel.KQ_EV_ADD | self._kernel.KQ_EV_CLEAR
        return self._kernel.kevent(descriptor, filter=getattr(self._kernel, kind), flags=flags, fflags=notes)

    def _watch_files(self, place: str, watched: WatchedFolder) -> None:
        """Watch the regular files of a folder that count, and are not watched yet."""
        known = {name for folder, name in self._open.values() if folder == place}
        for name in watched.listing.keys() - known:
            if len(self._open) >= MOST_FILES:
                return
            if watched.wants_file(name) and _is_file(f"{place}/{name}"):
                self._watch(place, name)

    def _forget(self, place: str) -> None:
        for descriptor in [descriptor for descriptor, (folder, _) in self._open.items() if folder == place]:
            del self._open[descriptor]
            os.close(descriptor)  # also removes its events from the queue
        self._folders.pop(place, None)

    def _pass_on(self) -> None:
        while True:
            events = self._queue.control(None, 64, None)
            if any(event.ident == self._end.fileno() for event in events):
                return
            with self._lock:
                self._ring([event.ident for event in events])

    def _ring(self, descriptors: list[int]) -> None:
        """Ring the bells of the folders to which these descriptors belong. The lock is held."""
        bells: set[Bell] = set()
        for place in {self._open[each][0] for each in descriptors if each in self._open}:
            watched = self._folders[place]
            gone = {each for each in descriptors if self._open.get(each, ("", ""))[0] == place and self._open[each][1]}
            for descriptor in gone:  # a file that was replaced is another file: its name is opened again below
                del self._open[descriptor]
                os.close(descriptor)
            listing = listing_of(place)
            bells |= watched.update(listing)
            if listing is None:
                self._forget(place)
            else:
                self._watch_files(place, watched)
        for bell in bells & self.bells:
            bell.ring()


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False
