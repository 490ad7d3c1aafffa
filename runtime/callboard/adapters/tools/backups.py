"""Copies of files from before agents changed them, with which a person can undo the changes.

A copy is named after the digest of its content, as the journal records it. Files are written only where a tool has
changed them: in the workspace, in a worktree, or at an approved path outside. As in the file tools, descriptors follow
no link.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

from callboard.adapters.system.archive import make_private
from callboard.adapters.system.regular_files import part_name, read_in, write_in_folder
from callboard.adapters.tools.roots import RootCache, folder_of, refusing_os_errors
from callboard.ports.tool import Folders
from callboard.types.errors import ToolRefused
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import PathGrant

_LARGEST = 64 * 1024 * 1024
"""Largest file that is compared and restored, in bytes."""


@dataclass(frozen=True, slots=True)
class FileRestore:
    """Restoring of one file, made or only computed."""

    path: str
    insertions: int = 0
    deletions: int = 0
    problem: str = ""
    """Reason why the file is not restored; empty if it is."""


class FileBackups:
    """Copies of the files of one session."""

    def __init__(self, folder: Path, root_cache: RootCache) -> None:
        """`folder`: the place of the copies, made at the first copy."""
        self._folder = folder
        self._root_cache = root_cache

    def keep(self, content: bytes) -> None:
        """Write a copy. Blocks. Raises OSError."""
        make_private(self._folder)
        path = self._folder / hashlib.sha256(content).hexdigest()
        if not path.exists():
            part = path.with_suffix(".part")
            part.write_bytes(content)
            part.rename(path)

    def restore(self, path: str, digest: str, folders: Folders, *, dry: bool) -> FileRestore | None:
        """Restore the content of a file that a tool has changed; an empty digest deletes it.

        `folders`: those of the lead. A file outside of them is in the worktree of another agent, or its path was
        approved. `dry`: only compute the change. Return None if the file has that content already. Blocks.
        """
        try:
            wanted = (self._folder / digest).read_bytes() if digest else None
        except OSError:
            return FileRestore(path, problem=f"{path}: there is no copy of its earlier content")
        try:
            target = self._root_cache.find(path, folders, write=True, grants=(PathGrant(path=path, access="write"),))
            # A worktree that was removed is not made again.
            make = wanted is not None and not dry and not target.exact
            with refusing_os_errors(target), folder_of(target, make=make) as folder:
                existing = read_in(folder, target.path.name, _LARGEST)
                present = None if existing is None else existing[0]
                if present == wanted:
                    return None
                if not dry:
                    _write_or_delete(folder, target.path.name, wanted, mode=None if existing is None else existing[1])
        except ToolRefused as refused:
            if isinstance(refused.__cause__, FileNotFoundError):
                return None if wanted is None else FileRestore(path, problem=f"{path}: its folder was removed")
            return FileRestore(path, problem=str(refused))
        added, removed = _counts(present or b"", wanted or b"")
        return FileRestore(target.text, added, removed)


def _write_or_delete(folder: int, name: str, content: bytes | None, *, mode: int | None) -> None:
    """Write a file in an open folder, or delete it if there is no content."""
    if content is None:
        os.unlink(name, dir_fd=folder)
    else:
        write_in_folder(folder, name, content, mode=mode, part=part_name(name, "restored"))


def _counts(before: bytes, after: bytes) -> tuple[int, int]:
    """Return the numbers of added and of removed lines."""
    changes = list(_changes(before.splitlines(), after.splitlines()))
    return sum(added for added, _ in changes), sum(removed for _, removed in changes)


def _changes(old: list[bytes], new: list[bytes]) -> Iterator[tuple[int, int]]:
    for kind, first, last, start, stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            yield stop - start, last - first
