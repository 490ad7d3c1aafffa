"""Locks between processes: files that the kernel unlocks when their holder dies.

Also waits for git calls of a dead holder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread

_OURS = b"\0core.hooksPath=/dev/null\0"
"""Argument that identifies the hardened git: `adapters/git/git.py` always passes it, and no other program does."""


@asynccontextmanager
async def holding(path: Path, *, wait: bool) -> AsyncGenerator[bool]:
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
    """Return the processes of this user that have the file open."""
    real = os.path.realpath(file)
    return [pid for pid in _processes() if real in _open_files(pid)]


async def settled(text: str) -> None:
    """Wait for the runtime's own git calls whose command line contains the text.

    A call of a dead process continues for a while.
    """
    for pid in await anyio.to_thread.run_sync(_naming, text):
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            continue  # the process has ended
        try:
            # A pidfd becomes readable when its process ends, and never refers to another process with a reused pid.
            await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)


def _naming(text: str) -> list[int]:
    pids: list[int] = []
    for pid in _processes():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue  # the process has ended, or belongs to another user
        if text.encode() in line and _OURS in line:
            pids.append(pid)
    return pids


def _processes() -> list[int]:
    return [int(pid_name) for pid_name in os.listdir("/proc") if pid_name.isdigit() and int(pid_name) != os.getpid()]  # noqa: PTH208 - names only, a thousand of them


def _open_files(pid: int) -> set[str]:
    folder = f"/proc/{pid}/fd"
    try:
        return {os.readlink(f"{folder}/{descriptor}") for descriptor in os.listdir(folder)}  # noqa: PTH115, PTH208 - many of them
    except OSError:
        return set()
