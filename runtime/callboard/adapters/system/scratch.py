"""Temporary folders of this process, which leave nothing behind.

A folder is removed at the end of its block. A killed process leaves its folder, and the next process that makes one
removes it. The owner holds a lock (`flock`) on the folder for as long as it uses it, which the kernel releases with the
process, so that a folder in use is never removed, whatever its age.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "callboard-tmp-"
"""Beginning of the names of these folders. Other folders are never removed."""


@contextmanager
def scratch_folder(parent: Path | None = None) -> Generator[Path]:
    """Make a private folder for the block, below `parent` or the system's folder for temporary files.

    Folders there that killed processes have left are removed. Raises OSError.
    """
    above = parent or Path(tempfile.gettempdir())
    _remove_stale(above)
    folder, lock = _locked_folder(above)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder(above: Path) -> tuple[Path, int]:
    """Return a new folder, and the descriptor that locks it."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=above))
        lock = _open_locked(folder)
        if lock is not None:
            return folder, lock
        # Another process took the folder for abandoned before it was locked
        # (test_a_folder_that_is_swept_before_its_owner_has_locked_it_is_made_again).


def _open_locked(folder: Path) -> int | None:
    """Return a descriptor that locks the folder; None if it is in use, or gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    locked = False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked = os.path.samestat(os.fstat(descriptor), os.lstat(folder))
    except (BlockingIOError, FileNotFoundError):
        return None  # in use; or removed by the process that had locked it
    finally:
        if not locked:
            os.close(descriptor)
    return descriptor if locked else None


def _remove_stale(above: Path) -> None:
    """Remove the folders that killed processes of this user have left. What cannot be removed stays."""
    try:
        with os.scandir(above) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(PREFIX)]
    except OSError:
        return
    for name in names:
        try:
            _remove_abandoned(above / name)
        except OSError:
            continue  # of another user, or on a file system without locks


def _remove_abandoned(folder: Path) -> None:
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        return
    lock = _open_locked(folder)
    if lock is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
