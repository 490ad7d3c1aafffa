"""Blobs: files named by their content, beside the database.

Tens of megabytes do not pass through the log and its lock: a blob is written under a name of its own, made durable and
then renamed. A blob that is there is whole; one that no longer fits its name is set aside when it is read.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from callboard.adapters.sqlite.place import sync_folder
from callboard.words.errors import StoreDamaged

_DIGEST = re.compile(r"[0-9a-f]{64}")


def put(folder: Path, data: bytes, *, durable: bool) -> str:
    """Keep the bytes; their digest. Heals a damaged copy. Raises `OSError`; blocks."""
    digest = hashlib.sha256(data).hexdigest()
    path = _path(folder, digest)
    if not _holds(path, data):
        path.parent.mkdir(exist_ok=True, mode=0o700)
        _write(path, data, durable)
    if durable:  # also for one that was there: who wrote it may be about to sync the folder, and has not yet
        sync_folder(path.parent)
        sync_folder(folder / "blobs")
    return digest


def get(folder: Path, digest: str) -> bytes:
    """The bytes. Raises `KeyError`, `StoreDamaged`, `OSError`; blocks."""
    if not _DIGEST.fullmatch(digest):
        raise KeyError(digest)
    path = _path(folder, digest)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise KeyError(digest) from None
    if hashlib.sha256(data).hexdigest() != digest:
        aside = folder / "damaged" / digest
        path.rename(aside)
        raise StoreDamaged(f"blob {digest} no longer fits its digest: it was set aside as {aside}")
    return data


def _path(folder: Path, digest: str) -> Path:
    return folder / "blobs" / digest[:2] / digest


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except FileNotFoundError:
        return False


def _write(path: Path, data: bytes, durable: bool) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}.new")
    try:
        with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as opened:  # noqa: PTH123 - the mode at creation
            opened.write(data)
            opened.flush()
            if durable:
                os.fsync(opened.fileno())
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
