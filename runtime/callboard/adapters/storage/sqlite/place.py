"""Folder of a store: private, owned by this user, on a disk of this machine; and its lock files.

A folder of another user is refused, and so are file systems whose locks do not work between machines: SQLite's log
needs shared memory, and two hosts on one file would lose each other's writes.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from callboard.core.keys import DATABASE as DATABASE
from callboard.types.errors import WorkspaceUnusable
from callboard.types.late_pattern import late_pattern

_NETWORK = late_pattern(
    "9p|acfs|afs|beegfs|ceph|cifs|coda|davfs|gfs2|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|smb3|smbfs"
    r"|fuse\.(ceph|davfs2|gcsfuse|glusterfs|goofys|rclone|s3fs|smbnetfs|sshfs)"
)


def prepare(folder: Path) -> None:
    """Create the folder, or check that only this user can access it. Raises `WorkspaceUnusable`, `OSError`."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise WorkspaceUnusable(
            f"the state folder {folder} belongs to user {status.st_uid}, not to {os.geteuid()}: "
            "run as its owner, or choose another folder"
        )
    # `mkdir` sets the mode only of a new folder, and never adds permissions that the umask removes
    # (test_everything_in_the_folder_is_private).
    if stat.S_IMODE(status.st_mode) != 0o700:
        folder.chmod(0o700)
    refuse_network(folder, file_system(folder))
    for part in ("blobs", "damaged", "leases", "run"):
        (folder / part).mkdir(exist_ok=True, mode=0o700)


def refuse_network(folder: Path, kind: str) -> None:
    """Raise `WorkspaceUnusable` if `kind` is a network file system."""
    if _NETWORK.fullmatch(kind):
        raise WorkspaceUnusable(
            f"the state folder {folder} is on a network file system ({kind}), where file locks do not work reliably: "
            "set XDG_STATE_HOME to a folder on a disk of this machine"
        )


def file_system(folder: Path, mountinfo: str | None = None) -> str:
    """Return the kernel's name for the type of the folder's file system; "" if unknown.

    `mountinfo` is in the form of /proc/self/mountinfo (man 5 proc_pid_mountinfo), which is the default.
    """
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            return ""  # the system has no such table: a local disk is the best guess, and the common case
    real = folder.resolve()
    best = -1
    kind = ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        # The kernel writes white space in names as octal numbers
        # (test_the_innermost_and_latest_mount_tells_the_file_system).
        mount = Path(fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n"))
        if real.is_relative_to(mount) and len(mount.parts) >= best:  # a later mount hides an earlier one
            best = len(mount.parts)
            kind = after.split()[0]
    return kind


def open_lock(path: Path) -> int:
    """Return a descriptor for locking, private to the user, and closed in any program that this process executes."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(descriptor: int, operation: int) -> bool:
    """Try to lock without waiting (`fcntl.LOCK_EX` or `LOCK_SH`). Return True if the lock was granted."""
    try:
        # Not a POSIX record lock: the process would lose that by closing any other descriptor of the file
        # (docs/decisions/0002-apsw-and-one-writer-thread.md).
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(descriptor: int) -> Generator[None, None, None]:
    """Hold the lock while the block runs. Waits without limit: holders keep it only for one transaction."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def sync_folder(folder: Path) -> None:
    """Make names in the folder durable: a new or renamed file survives a power cut only after this call."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
