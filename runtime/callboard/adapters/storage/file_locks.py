"""Locks between processes: files that the kernel unlocks when their holder dies.

Also waits for git calls of a dead holder.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread

from callboard.adapters.kernel.exits import open_process
from callboard.adapters.kernel.process_table import command_lines, has_proc, rows

_LSOF = "/usr/sbin/lsof"
"""Program that lists open files on a system without /proc."""
_OURS = b"\0core.hooksPath=/dev/null\0"
"""Argument that identifies the hardened git: `adapters/git/git.py` always passes it, and no other program does."""


@asynccontextmanager
async def hold_lock(path: Path, *, wait: bool) -> AsyncGenerator[bool]:
    """Hold the lock while the block runs; False: another process has it (never with `wait`). Raises OSError.

    A cancellation does not end the wait, so use it only if every holder finishes soon.
    """
    descriptor = await anyio.to_thread.run_sync(_take, path, wait)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _take(path: Path, wait: bool) -> int | None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def holders(file: Path) -> list[int]:
    """Return the processes of this user that have the file open; [0] if the system does not say."""
    real = os.path.realpath(file)
    if not has_proc():
        return _have_open(real)
    return [row.pid for row in rows() if row.pid != os.getpid() and real in _open_files(row.pid)]


async def settled(text: str) -> None:
    """Wait for the runtime's own git calls whose command line contains the text.

    A call of a dead process continues for a while.
    """
    for pid in await anyio.to_thread.run_sync(_naming, text):
        try:
            descriptor = open_process(pid)
        except OSError:
            continue  # the process has ended
        try:
            # The descriptor becomes readable when its process ends, and never refers to another one with a reused pid.
            await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)


def _naming(text: str) -> list[int]:
    """Return the processes of the hardened git whose command line contains the text."""
    lines = {pid: b"\0".join(words) + b"\0" for pid, (_, words) in command_lines().items() if pid != os.getpid()}
    return [pid for pid, line in lines.items() if text.encode() in line and _OURS in line]


def _have_open(file: str) -> list[int]:
    """Return the processes that have the file open, by `lsof`; [0] if that is unknown."""
    try:
        listed = subprocess.run(
            [_LSOF, "-t", "--", file], stdin=subprocess.DEVNULL, capture_output=True, check=False, cwd="/"
        )
    except OSError:
        return [0]
    return [int(pid) for pid in listed.stdout.split() if pid.isdigit() and int(pid) != os.getpid()]


def _open_files(pid: int) -> set[str]:
    folder = f"/proc/{pid}/fd"
    try:
        return {os.readlink(f"{folder}/{descriptor}") for descriptor in os.listdir(folder)}  # noqa: PTH115, PTH208 - many of them
    except OSError:
        return set()
