"""Folder of a store: private, owned by this user, on a disk of this machine; its lock files and blobs.

A folder of another user is refused, and so are file systems whose locks do not work between machines: SQLite's log
needs shared memory, and two hosts on one file would lose each other's writes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from callboard.core.keys import DATABASE as DATABASE
from callboard.types.errors import ValueDamaged, WorkspaceUnusable
from callboard.types.late_pattern import late_pattern

_NETWORK = late_pattern(
    "9p|acfs|afs|beegfs|ceph|cifs|coda|davfs|gfs2|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|smb3|smbfs"
    r"|fuse\.(ceph|davfs2|gcsfuse|glusterfs|goofys|rclone|s3fs|smbnetfs|sshfs)"
)
_DIGEST = late_pattern(r"[0-9a-f]{64}")
_GONE = ".gone"  # ends the name of a blob that is being deleted


def prepare(folder: Path) -> None:
    """Create the folder, or check that only this user can access it. Raises `WorkspaceUnusable`, `OSError`."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise WorkspaceUnusable(
            f"the state folder {folder} belongs to user {status.st_uid}, not to {os.geteuid()}: "
            "run as its owner, or set XDG_STATE_HOME to another folder"
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
def hold_lock(descriptor: int) -> Generator[None, None, None]:
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


def put_blob(folder: Path, data: bytes, *, synced: set[str] | None) -> str:
    """Store the bytes and return their digest. Repairs a damaged copy. Raises `OSError`; blocks.

    `synced`: digests of blobs that need no sync if they are there, and names of folders whose names are synced; None if
    nothing is synced.
    """
    digest = hashlib.sha256(data).hexdigest()
    part, path = _blob_path(folder, digest)
    if not _renewed(path, data):
        with suppress(FileExistsError):
            part.mkdir(mode=0o700)
            if synced is not None:
                synced.discard(part.name)
        _write(path, data, synced is not None)
    elif synced is None or digest in synced:
        return digest
    if synced is not None:  # also for an existing file: its writer may not have synced the folder yet
        sync_folder(part)
        if part.name not in synced:
            sync_folder(folder / "blobs")
        synced.update((digest, part.name))
    return digest


def get_blob(folder: Path, digest: str) -> bytes:
    """Return the bytes. Raises `KeyError`, `ValueDamaged`, `OSError`; blocks."""
    if not _DIGEST.fullmatch(digest):
        raise KeyError(digest)
    _, path = _blob_path(folder, digest)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise KeyError(digest) from None
    if hashlib.sha256(data).hexdigest() != digest:
        aside = folder / "damaged" / digest
        path.rename(aside)
        raise ValueDamaged(f"blob {digest} no longer matches its digest: it was set aside as {aside}", f"blob/{digest}")
    return data


def _blob_path(folder: Path, digest: str) -> tuple[Path, Path]:
    """Return the folder and the path of a blob."""
    part = folder.joinpath("blobs", digest[:2])
    return part, part / digest


def erase_blobs(folder: Path, named: Collection[str], before: float) -> tuple[int, int]:
    """Delete the blobs that are not `named` and were last put before a time; return their number and bytes.

    Completes what a killed process began. Raises `OSError`; blocks.
    """
    sizes: list[int] = []
    for path in [*(folder / "blobs").glob("??/*")]:
        digest = path.name.partition(".")[0]
        with suppress(FileNotFoundError):  # another process was faster
            old = path.stat().st_mtime < before
            if old and path.suffix == ".new":  # the writer was killed
                path.unlink()
            elif path.suffix == _GONE or (old and digest not in named and not path.suffix):
                sizes += _erase_blob(path, keep=digest in named, before=before)
    return len(sizes), sum(sizes)


def _erase_blob(path: Path, *, keep: bool, before: float) -> list[int]:
    """Delete a blob's file, and return its size; return nothing if it is kept or was put again.

    It gets another name first, and its time is read again: a process that puts the same bytes at this moment either has
    renewed the time, or finds no file and writes it (`_renewed`).
    """
    gone = path.with_suffix(_GONE)
    if path != gone:
        path.rename(gone)
    about = gone.stat()
    keep = keep or about.st_mtime >= before
    if keep:
        with suppress(FileExistsError):
            os.link(gone, gone.with_suffix(""))
    gone.unlink()
    return [] if keep else [about.st_size]


def _renewed(path: Path, data: bytes) -> bool:
    """Return True if the blob exists. No removal deletes it for the next hours then."""
    try:
        if not _holds(path, data):
            return False
        os.utime(path)
    except FileNotFoundError:
        return False
    return path.exists()


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except FileNotFoundError:
        return False


def _write(path: Path, data: bytes, durable: bool) -> None:
    # Each writer has its own draft, because two processes may store the same bytes at the same time.
    draft = path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}.new")
    try:
        with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as opened:  # noqa: PTH123 - the mode at creation
            opened.write(data)
            opened.flush()
            if durable:
                # Before the rename: after a power cut the name would otherwise exist with an empty file.
                os.fsync(opened.fileno())
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
