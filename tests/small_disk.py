"""A small disk of its own for tests, which they fill and free."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

_STEPS = (1 << 20, 1 << 12)  # bytes
_LOOK = 0.05  # seconds


class SmallDisk:
    """A mounted file system in memory. `folder`: its root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def resize(self, size: str) -> None:
        """Give it another size, as in `30m`."""
        subprocess.run(["mount", "-o", f"remount,size={size}", self.folder], check=True)

    def keep_full(self, until: Callable[[], bool]) -> None:
        """Leave no room until that returns True, whatever others delete meanwhile. Then free what this took."""
        try:
            with self._ballast.open("wb") as file:
                while not until():
                    for step in _STEPS:
                        _take_all(file, step)
                    time.sleep(_LOOK)
        finally:
            self._ballast.unlink()


def _take_all(file: BinaryIO, step: int) -> None:
    """Let the file grow in steps of so many bytes until there is no room for one."""
    try:
        while True:
            os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, step)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


@contextlib.contextmanager
def small_disk(size: str) -> Iterator[SmallDisk]:
    """Mount a disk of this size, as in `3m`, for the block. Skips the test for users who may not."""
    with tempfile.TemporaryDirectory(prefix="disk-", dir="/tmp") as name:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", name], check=False, capture_output=True
        )
        if made.returncode:
            pytest.skip("only root may mount a small disk")
        try:
            yield SmallDisk(Path(name))
        finally:
            subprocess.run(["umount", "-l", name], check=True)
