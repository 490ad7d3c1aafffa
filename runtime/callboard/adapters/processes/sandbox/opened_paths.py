"""Paths outside that an approved call opens for its one command to read or write.

To create, replace or delete a file, a command must be able to write its folder. A home, a system folder or a folder
that contains the workspace or the runtime's files is opened only to a command that is known to do only the approved
act. For any other command only the file is opened. If the file is missing, it is created empty first, and removed again
unless the command touched it.
"""
# ruff: noqa: PTH108, PTH112, PTH119, PTH120 - paths are text here: they become words of a command line, and are compared by the hundred

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from callboard.adapters.processes.programs import is_within
from callboard.adapters.system.regular_files import open_folder
from callboard.core.permissions.sensitive_paths import critical
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import PathGrant


@dataclass(frozen=True, slots=True)
class Openings:
    """Absolute paths without links, as the command should see them."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    """Paths that open with their otherwise hidden contents: the granted paths themselves, and folders of a command that
    is known to do only the approved act."""


def find_openings(grants: Iterable[PathGrant], homes: Sequence[str], closed: Sequence[str]) -> Openings:
    """Return the paths that these grants open. `closed`: folders that open only by their files. Reads the disk."""
    read = dict[str, None]()
    write = dict[str, None]()
    named = dict[str, None]()
    for grant in grants:
        if not grant.writes:
            read[grant.path] = None
        elif (folder := _folder_of(grant, homes, closed)) is not None:
            write[folder] = None
            if grant.understood:
                named[folder] = None
        else:
            write[grant.path] = None
        named[grant.path] = None
    return Openings(tuple(read), tuple(write), tuple(named))


def missing_files(grants: Iterable[PathGrant], homes: Sequence[str], closed: Sequence[str]) -> Iterator[str]:
    """Yield the missing files that must be writable and whose folder does not open."""
    for grant in grants:
        if grant.access == "write" and not os.path.lexists(grant.path) and _folder_of(grant, homes, closed) is None:
            yield grant.path


@dataclass(frozen=True, slots=True)
class Placeholder:
    """Empty file that was created so that it could be opened to a command."""

    path: str
    mark: tuple[int, int, int]
    """Device, inode and time of the last change."""


def make_placeholders(paths: Iterable[str]) -> list[Placeholder]:
    """Create these files. If one cannot be created, the command will report that itself."""
    made: list[Placeholder] = []
    for path in paths:
        try:
            folder = open_folder(os.path.dirname(path))
        except OSError:
            continue
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(os.path.basename(path), flags, 0o666, dir_fd=folder)
            made.append(Placeholder(path, _mark(os.fstat(file))))
            os.close(file)
        except OSError:
            continue
        finally:
            os.close(folder)
    return made


def clear_placeholders(made: Iterable[Placeholder]) -> None:
    """Remove the files that the command did not touch."""
    for placeholder in made:
        try:
            if _mark(os.lstat(placeholder.path)) == placeholder.mark:
                os.unlink(placeholder.path)
        except FileNotFoundError:
            continue


def _mark(facts: os.stat_result) -> tuple[int, int, int]:
    return facts.st_dev, facts.st_ino, facts.st_ctime_ns


def _folder_of(grant: PathGrant, homes: Sequence[str], closed: Sequence[str]) -> str | None:
    """Return the folder that must be writable; None if that would open too much.

    The folder is the path itself if that is a folder that remains, else the nearest existing folder above it.
    """
    folder = os.path.dirname(grant.path) if grant.access == "delete" else grant.path
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    if folder == "/" or any(is_within(path, folder) for path in closed):
        return None
    return folder if grant.understood or not any(critical(folder, home) for home in (*homes, "/")) else None
