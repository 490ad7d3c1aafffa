"""Safe reading and writing of files that others may write too: only regular files, without waiting, and without a race.

Opening a FIFO waits for a writer, and opening a device may have effects. So `read_regular` checks the type before it
opens the file, and again on the open descriptor. `open_beneath` opens a path relative to a folder: the kernel itself
refuses to leave the folder, whatever was changed since the path was checked. `read_in` and `write_in_folder` read and
write a file of an open folder, and follow no link.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import stat
import sys
from functools import cache
from pathlib import Path
from typing import Any

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
)
_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_LIBC = ctypes.CDLL(None, use_errno=True)


class NotRegular(OSError):
    """The path leads to something that is not a regular file."""


class FileTooLarge(OSError):
    """The file is larger than the limit."""


def read_regular(path: str | Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes; links are followed.

    Raises `NotRegular`, `FileTooLarge`, and `OSError` for a file that is missing or cannot be read.
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
    if len(content) > most:  # it has grown, or is a file of /proc, whose size is 0
        raise _too_large(path, most)
    return bytes(content)


def _check(path: str | Path, status: os.stat_result, most: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for test, name in _KINDS if test(status.st_mode)), "no regular file")
        code = errno.EISDIR if kind == "a folder" else errno.EINVAL
        raise NotRegular(code, f"it is {kind}, not a regular file", str(path))
    if status.st_size > most:
        raise _too_large(path, most)


def _too_large(path: str | Path, most: int) -> FileTooLarge:
    return FileTooLarge(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@cache
def _system_call() -> Any:
    """Return the function of Linux that makes a system call by its number. Other systems have none."""
    call = _LIBC.syscall
    call.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_OpenHow), ctypes.c_size_t)
    return call


def open_beneath(root_fd: int, relative: str, flags: int, mode: int = 0o600, *, links: bool = True) -> int:
    """Open a path beneath the folder with the descriptor `root_fd`, and return the new descriptor.

    `links`: follow links that stay beneath it. No file outside the folder is ever opened, whatever links exist or
    appear meanwhile. Anything except a regular file or a folder is refused, without waiting for a pipe's other end.
    Raises OSError (`EXDEV` or `ELOOP`: it leads out; `EINVAL`: not a file), ValueError for a NUL character.
    """
    if "\0" in relative:
        raise ValueError("a path cannot hold a NUL character")
    if relative.startswith("/"):
        raise OSError(errno.EXDEV, "an absolute path leads out of the folder", relative)
    # Opening a pipe would otherwise wait for its other end
    # (test_pipes_are_refused_without_waiting_and_absolute_paths_too).
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    truncate = flags & os.O_TRUNC
    resolve = _RESOLVE_BENEATH | (_RESOLVE_NO_MAGICLINKS if links else _RESOLVE_NO_SYMLINKS)
    # One call of the kernel checks and opens, so that no link can be inserted in between
    # (test_a_link_swapped_in_a_loop_never_shows_what_is_outside).
    descriptor = _openat2(root_fd, relative, flags & ~os.O_TRUNC, mode, resolve=resolve)
    if descriptor is None:
        descriptor = open_by_walking(root_fd, relative, flags & ~os.O_TRUNC, mode)
    try:
        kind = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            raise OSError(errno.EINVAL, "not a regular file", relative)
        # Only now, because the file is known to be a regular one beneath the folder.
        if truncate:
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_folder(path: str) -> int:
    """Return a descriptor of the folder at an absolute path without links.

    Raises OSError (`ELOOP`: a component is a link).
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    top = os.open("/", flags)
    try:
        relative = path.lstrip("/") or "."
        descriptor = _openat2(top, relative, flags, 0, resolve=_RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS)
        return open_by_walking(top, relative, flags) if descriptor is None else descriptor
    finally:
        os.close(top)


def _openat2(
    root_fd: int, relative: str, flags: int, mode: int, *, resolve: int = _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS
) -> int | None:
    """Return a descriptor; None if the kernel has no such call."""
    if not sys.platform.startswith("linux"):
        return None
    creates = bool(flags & os.O_CREAT)
    # The kernel refuses a mode without O_CREAT (man 2 openat2).
    how = _OpenHow(flags, mode if creates else 0, resolve)
    for _ in range(64):  # the kernel requests another attempt after a rename at the same time as a `..`
        result = _system_call()(_SYS_OPENAT2, root_fd, os.fsencode(relative), how, ctypes.sizeof(how))
        if result >= 0:
            return int(result)
        code = ctypes.get_errno()
        # EPERM: the system call filters of some containers refuse unknown calls.
        if code in (errno.ENOSYS, errno.EPERM):
            return None
        if code not in (errno.EAGAIN, errno.EINTR):
            reason = "a link leads out of its folder" if code == errno.EXDEV else os.strerror(code)
            raise OSError(code, reason, relative)
    raise OSError(errno.EAGAIN, "the path kept changing", relative)


def open_by_walking(root_fd: int, relative: str, flags: int, mode: int = 0o600) -> int:
    """Open component by component, following no link at all, for kernels without `openat2`."""
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise OSError(errno.EXDEV, "a path with `..` is not walked", relative)
    folder = os.dup(root_fd)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(parts[-1] if parts else ".", flags | os.O_NOFOLLOW, mode, dir_fd=folder)
    finally:
        os.close(folder)


def read_in(folder: int, name: str, most: int) -> tuple[bytes, int] | None:
    """Return content and mode of a file in an open folder; None if the file does not exist.

    Raises OSError (`EINVAL`: not a regular file; `EFBIG`: more than `most` bytes).
    """
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:  # noqa: PTH123 - there is a descriptor and no path
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return content, stat.S_IMODE(status.st_mode)


def part_name(name: str, call: str) -> str:
    """Return the name of the partial file of a call, by which a repair of the call finds it after a kill."""
    return f".{name[:100]}.{hashlib.sha256(call.encode()).hexdigest()[:12]}.part"


def clear_part(folder: int, part: str) -> None:
    """Remove the partial file that a killed process left. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part, dir_fd=folder)


def write_in_folder(folder: int, name: str, content: bytes, *, mode: int | None, part: str) -> None:
    """Write this content to `name` in an open folder: atomic, durable, with the mode preserved.

    It is written as `part` first. A link of that name is replaced, never followed. Raises OSError.
    """
    clear_part(folder, part)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(part, flags, 0o666, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - there is a descriptor and no path
            file.write(content)
            file.flush()
            if mode is not None:
                os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(part, dir_fd=folder)
        raise
    os.fsync(folder)


def make_folders(root: int, inner: str) -> int:
    """Return a descriptor of a folder within an open one, which is made if it is missing."""
    folder = os.dup(root)
    try:
        for name in filter(None, inner.split("/")):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
            deeper = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = deeper
    except BaseException:
        os.close(folder)
        raise
    return folder


def remove_beneath(root: int, path: str) -> None:
    """Remove a file of an open folder, and the folders that become empty. No link is followed. Raises nothing."""
    while path:
        inner, _, name = path.rpartition("/")
        try:
            parent = open_beneath(root, inner or ".", os.O_RDONLY | os.O_DIRECTORY, links=False)
        except OSError:
            return  # the folder is gone, and with it the file
        try:
            kind = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISDIR(kind.st_mode):
                os.rmdir(name, dir_fd=parent)
            else:
                os.unlink(name, dir_fd=parent)
        except OSError:
            return  # it is gone, or a folder with other files
        finally:
            os.close(parent)
        path = inner
