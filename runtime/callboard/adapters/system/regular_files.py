"""Safe reading of files that others may have written: only regular files, never above a limit, and without waiting.

Opening a FIFO waits for a writer, and opening a device may have effects. So the type is checked before the file is
opened, and again on the open descriptor.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
)


class NotRegular(OSError):
    """The path leads to something that is not a regular file."""


class TooLarge(OSError):
    """The file is larger than the limit."""


def read_regular(path: str | Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes; links are followed.

    Raises `NotRegular`, `TooLarge`, and `OSError` for a file that is missing or cannot be read.
    """
    _check(path, os.stat(path), most)  # noqa: PTH116 - text or path
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check(path, os.fstat(descriptor), most)
        content = bytearray()
        while len(content) <= most and (data := os.read(descriptor, min(most + 1 - len(content), 1 << 20))):
            content += data
    finally:
        os.close(descriptor)
    if len(content) > most:  # it grew, or it is a file of /proc, whose size is 0
        raise _too_large(path, most)
    return bytes(content)


def _check(path: str | Path, status: os.stat_result, most: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for test, name in _KINDS if test(status.st_mode)), "no regular file")
        code = errno.EISDIR if kind == "a folder" else errno.EINVAL
        raise NotRegular(code, f"it is {kind}, not a regular file", str(path))
    if status.st_size > most:
        raise _too_large(path, most)


def _too_large(path: str | Path, most: int) -> TooLarge:
    return TooLarge(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))
