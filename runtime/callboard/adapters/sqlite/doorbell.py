"""How processes that share a store wake each other: a datagram socket for each, in the store's `run` folder.

A datagram names the streams and keys that changed; what they hold is read from the store. Rings may get lost (a full
queue, a file system without sockets): while someone follows, the listener asks once a second for a look at the store.
The folder is the store's own and not $XDG_RUNTIME_DIR, which a scheduled process lacks: all must find the same one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

EVERYTHING = b"*"
LOOK_SECONDS = 1.0
_LARGEST = 16_384  # bytes of names in one ring; more than that rings for everything
_LONGEST_PATH = 100  # bytes; the kernel takes 107 (man 7 unix)
_FULL_QUEUE = 8  # rings found at once; the kernel holds 10 or more before it drops one
_SETTLED_SECONDS = 0.1  # a folder may change twice within one tick of its time stamp


class Doorbell:
    """Rings the others, and calls `rung(names)` in its thread when it is rung (`None`: anything may have changed).

    `look()` is called once a second while someone follows: `listen` says so.
    """

    def __init__(self, folder: Path, rung: Callable[[set[str] | None], None], look: Callable[[], None]) -> None:
        self._folder = folder
        self._rung, self._look = rung, look
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._directory = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._name = f"{os.getpid()}-{os.urandom(4).hex()}.sock"  # two containers on one folder may have equal pids
        self._bound = False
        self._listening = self._stopped = False
        self._thread: threading.Thread | None = None
        self._others: tuple[str, ...] = ()
        self._others_at = -1

    def listen(self, wanted: bool) -> None:
        """Say whether someone follows. The first time, the socket gets its name and the thread starts."""
        self._listening = wanted
        if not wanted or self._stopped:
            return
        if self._thread is None:
            with contextlib.suppress(OSError):  # no sockets on this file system, or no room: the looks remain
                self._socket.bind(self._address(self._name))
                self._bound = True
            self._thread = threading.Thread(target=self._run, name="callboard-store-doorbell", daemon=True)
            self._thread.start()
        else:
            self._nudge()

    def ring(self, streams: Iterable[str], keys: Iterable[str]) -> None:
        """Tell the other processes what changed. Never blocks, never raises for one that is gone."""
        others = self._registered()
        if not others:
            return
        names = [f"s{stream}" for stream in streams] + [f"k{key}" for key in keys]
        message = "\0".join(names).encode("utf-8", "surrogatepass")
        if len(message) > _LARGEST or any("\0" in name for name in names):
            message = EVERYTHING
        for other in others:
            self._send(message, other)

    def close(self) -> None:
        """Take the name away and end the thread. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        self._nudge()
        if self._thread is not None:
            self._thread.join()
        if self._bound:
            (self._folder / self._name).unlink(missing_ok=True)
        self._socket.close()
        self._out.close()
        os.close(self._directory)

    def _address(self, name: str) -> str:
        path = str(self._folder / name)
        if len(os.fsencode(path)) <= _LONGEST_PATH:
            return path
        return f"/proc/self/fd/{self._directory}/{name}"

    def _registered(self) -> tuple[str, ...]:
        """The others' socket names; read again only when the folder changed."""
        try:
            changed_at = self._folder.stat().st_mtime_ns
            if changed_at != self._others_at:
                settled = time.time_ns() - changed_at > _SETTLED_SECONDS * 1e9
                names = {path.name for path in self._folder.iterdir() if path.suffix == ".sock"}
                self._others = tuple(names - {self._name})
                self._others_at = changed_at if settled else -1
        except OSError:
            return ()  # the folder is gone: nobody can be rung, and the looks remain
        return self._others

    def _send(self, message: bytes, other: str) -> None:
        try:
            self._out.sendto(message, self._address(other))
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):  # its process is dead; another one may have swept it up already
                (self._folder / other).unlink()
        except OSError:
            return  # its queue is full, so it wakes anyway, or it just left

    def _nudge(self) -> None:
        if self._bound:
            self._send(b"", self._name)

    def _run(self) -> None:
        looked = time.monotonic()
        while not self._stopped:
            waits = LOOK_SECONDS if self._listening or not self._bound else None
            self._socket.settimeout(None if waits is None else max(0.001, looked + waits - time.monotonic()))
            try:
                self._hear(self._socket.recv(2 * _LARGEST))
            except TimeoutError:
                pass  # nobody rang: that is what the look is for
            if self._listening and time.monotonic() - looked >= LOOK_SECONDS:
                looked = time.monotonic()
                self._look()
            elif not self._listening:
                looked = time.monotonic()

    def _hear(self, first: bytes) -> None:
        """Take this ring and all that wait behind it as one."""
        rings = [first]
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while len(rings) < 10 * _FULL_QUEUE:
                rings.append(self._socket.recv(2 * _LARGEST))
        if EVERYTHING in rings or len(rings) >= _FULL_QUEUE:
            self._rung(None)
            return
        names = {name for ring in rings if ring for name in ring.decode("utf-8", "surrogatepass").split("\0")}
        if names:
            self._rung(names)
