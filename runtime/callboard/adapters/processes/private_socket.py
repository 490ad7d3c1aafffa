"""Unix socket of a process for other processes of the same user, in a private folder that no agent can read.

A socket has the name of its process, so that no other process ever creates one of this name: a follower cannot reach
the wrong process, and a socket whose process has ended can be removed without a race. The kernel names the process at
the other end, which is refused if an agent's tool started it or may have.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio

from callboard.adapters.kernel.exits import has_ended, open_process
from callboard.adapters.kernel.process_table import has_proc
from callboard.adapters.processes.connection_owner import ConnectionOwner, owner_of_process
from callboard.adapters.processes.pids import is_same
from callboard.core.live.frames import LineReader, LiveProtocolError

_LONGEST = 100
"""Most bytes of the path of a socket. The kernel's limit is 107 on Linux and 103 on macOS."""
_SHORT_FOLDER = "/tmp"  # noqa: S108 - for a private folder with a random name; TMPDIR may be long itself
_BACKLOG = 16
_PART = 65_536
_SO_PEERPIDFD = 77
"""Option of a socket since Linux 6.5: a descriptor of the process at the other end (asm-generic/socket.h)."""
_SOL_LOCAL = 0
_LOCAL_PEERCRED = 1
_LOCAL_PEERPID = 2
"""Options of a socket on macOS (sys/un.h)."""
_CREDENTIALS = struct.Struct("3i")
"""pid, uid, gid (man 7 unix)."""


def socket_name(pid: int, started: float, purpose: str) -> str:
    """Return the name of a process's socket. `purpose`: a word that distinguishes its sockets."""
    return f"{pid}-{int(started)}-{purpose}"


@contextmanager
def listen_at(folder: Path, name: str) -> Generator[socket.socket]:
    """Listen on a socket while the block runs. `name`: a `socket_name` of this process.

    Also removes sockets of processes that have ended. Raises `OSError`, for example for a folder of another user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder}: belongs to another user")
    folder.chmod(0o700)
    _remove_dead(folder)
    path = folder / name
    listener = _new_socket()
    try:
        # Renamed when it listens, so that a socket that refuses connections is always that of an ended process.
        begun = path.with_name(f"{name}.new")
        with _short_path(begun) as short:
            listener.bind(short)
        begun.chmod(0o600)
        listener.listen(_BACKLOG)
        begun.rename(path)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)
    finally:
        listener.close()


def connect_to(folder: Path, name: str) -> socket.socket | None:
    """Return a connection to the socket of a process; None if there is none, or it accepts no more."""
    connection = _new_socket()
    try:
        with _short_path(folder / name) as short:
            connection.connect(short)
    except OSError:
        connection.close()
        return None
    return connection


def accept_from(listener: socket.socket) -> socket.socket | None:
    """Return the next connection; None if there is none after all."""
    try:
        connection, _ = listener.accept()
    except OSError:
        return None
    connection.setblocking(False)
    return connection


def is_own(connection: socket.socket) -> bool:
    """Return True if this process made the connection."""
    return _credentials(connection) == (os.getpid(), os.getuid())


def peer_of(connection: socket.socket) -> ConnectionOwner:
    """Return the process that made a connection. It blocks while it reads /proc.

    `tool` and `unknown` must not be served. On a system without /proc, where nothing shows more, a process that has no
    tool among its ancestors counts as a person's: a command in the sandbox of macOS has no Unix sockets.
    """
    pid, uid = _credentials(connection)
    if uid != os.getuid():
        return ConnectionOwner("unknown", "it belongs to another user", pid)
    descriptor = _process_of(connection, pid)
    if descriptor is None:
        return ConnectionOwner("unknown", "the process of the connection has ended", pid)
    try:
        owner = owner_of_process(pid)
        # Its number may belong to another process by now.
        if has_ended(descriptor):
            return ConnectionOwner("unknown", "the process of the connection has ended", pid)
    finally:
        os.close(descriptor)
    return owner if has_proc() or owner.origin == "tool" else replace(owner, origin="person")


async def receive_from(connection: socket.socket) -> bytes:
    """Return the next bytes of a connection; empty at its end, also after an error."""
    while True:
        await anyio.wait_readable(connection)
        try:
            return connection.recv(_PART)
        except BlockingIOError:
            continue
        except OSError:
            return b""


async def first_line(connection: socket.socket) -> bytes:
    """Return the first line that the other end of a connection sends. Raises `LiveProtocolError`, `OSError`."""
    reader = LineReader()
    while data := await receive_from(connection):
        if lines := reader.feed(data):
            return lines[0]
    raise LiveProtocolError("the other end left without a line")


def _new_socket() -> socket.socket:
    created = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    created.setblocking(False)
    return created


@contextmanager
def _short_path(path: Path) -> Generator[str]:
    """Yield a path of a socket that the kernel accepts: through a link to its folder if it is too long."""
    if len(os.fsencode(path)) <= _LONGEST:
        yield str(path)
        return
    with tempfile.TemporaryDirectory(prefix="callboard-", dir=_SHORT_FOLDER) as temporary:
        link = Path(temporary) / "s"
        link.symlink_to(path.parent)
        yield str(link / path.name)


def _remove_dead(folder: Path) -> None:
    """Remove sockets of processes that have ended. One that still accepts is of a process that is not visible here."""
    for path in folder.iterdir():
        pid, _, ending = path.name.partition("-")
        started, _, _ = ending.partition("-")
        if not pid.isdecimal() or not started.isdecimal() or is_same(int(pid), float(started)):
            continue
        if (living := connect_to(folder, path.name)) is not None:
            living.close()
            continue
        with suppress(OSError):  # another process may remove it, too
            path.unlink()


def _credentials(connection: socket.socket) -> tuple[int, int]:
    """Return pid and user of the process that made a connection; pid 0 if it is not visible here."""
    if sys.platform == "darwin":
        _, uid = struct.unpack_from("2I", connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 128))
        return connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID), uid
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def _process_of(connection: socket.socket, pid: int) -> int | None:
    """Return a descriptor of the process that made a connection; None if it has ended."""
    if pid <= 0:
        return None
    try:
        if sys.platform.startswith("linux"):
            return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:  # before Linux 6.5
            return None
    try:
        return open_process(pid)
    except OSError:
        return None
