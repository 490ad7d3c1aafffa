"""Translation of errors of SQLite and the file system to the runtime's errors, in one place.

An error that no table here contains is a bug and is not translated.
"""

from __future__ import annotations

import errno
from pathlib import Path

import apsw

from callboard.types.errors import CallboardError, StoreDamaged, StoreFull, WorkspaceUnusable

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_A_FOLDER = {errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
_NO_WAY_IN = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ESTALE, errno.ENOLCK, *_NOT_A_FOLDER}
_READING = {apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_CORRUPTFS, apsw.SQLITE_IOERR_DATA}


def no_room(folder: Path) -> StoreFull:
    """Return the error for a full disk."""
    return StoreFull(f"no room left on the disk of {folder}: nothing was written. Free some space, then continue")


def store_full(folder: Path, reason: object) -> StoreFull:
    """Return the error for a file system that accepts no more writes."""
    return StoreFull(f"{folder} cannot be written ({reason}): nothing was written. Make it writable, then continue")


def unusable(folder: Path, reason: object) -> WorkspaceUnusable:
    """Return the error for a folder that cannot be used at all."""
    return WorkspaceUnusable(
        f"the state folder {folder} cannot be used ({reason}). Make it a writable folder of your own, or set "
        "XDG_STATE_HOME and XDG_DATA_HOME to others"
    )


def unreadable(folder: Path, reason: object) -> StoreDamaged:
    """Return the error for content of the disk that cannot be read back."""
    return StoreDamaged(
        f"the store in {folder} cannot be read ({reason}). Stop, save a copy of the folder, and check the disk"
    )


def lost_database(folder: Path) -> StoreDamaged:
    """Return the error for a database file that was moved or deleted while it was open: later writes would be lost."""
    return StoreDamaged(
        f"the database in {folder} was moved or deleted while in use: nothing more is written. "
        "Stop this process; put the file back if you have it"
    )


def translate_error(error: apsw.Error | OSError, folder: Path, *, opening: bool = False) -> Exception:
    """Return the runtime's error for an error; the same error if neither a disk nor a file system can cause it."""
    if isinstance(error, OSError):
        return _of_system(error, folder, opening)
    return _of_sqlite(error, folder, opening)


def _of_system(error: OSError, folder: Path, opening: bool) -> CallboardError | OSError:
    if error.errno in _NO_ROOM:
        return no_room(folder)
    if error.errno in _NO_WAY_IN:
        return (unusable if opening else store_full)(folder, error.strerror)
    if error.errno == errno.EIO:
        return unreadable(folder, error.strerror) if opening else store_full(folder, error.strerror)
    return error


def _of_sqlite(error: apsw.Error, folder: Path, opening: bool) -> CallboardError | apsw.Error:
    match error:
        case apsw.FullError():
            return no_room(folder)
        case apsw.CorruptError() | apsw.NotADBError():
            return unreadable(folder, error)
        case apsw.IOError() if _extended(error) in _READING:
            return unreadable(folder, error)
        case apsw.BusyError() | apsw.LockedError():
            return store_full(folder, "another program holds its lock")
        case apsw.IOError() | apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.CantOpenError():
            return (unusable if opening else store_full)(folder, error)
        case _:
            return error


def is_cut_short(error: BaseException) -> bool:
    """Return True if the file ends before a page that it should contain. This is damage, not a fault of the disk."""
    return isinstance(error, apsw.IOError) and _extended(error) == apsw.SQLITE_IOERR_SHORT_READ


def _extended(error: apsw.Error) -> int:
    return int(getattr(error, "extendedresult", 0))  # apsw sets it on errors of SQLite; its types do not have it
