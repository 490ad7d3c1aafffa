"""Changes of a worktree since it left the workspace's branch, committed or not, file by file with numbered lines.

Git runs hardened, as everywhere (`git.py`). New files are read without following a link out of the worktree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio.to_thread

from callboard.adapters.git.git import Git
from callboard.adapters.git.repository import GitFailed, Repository, WorkingTree, find_repository
from callboard.adapters.system.regular_files import open_beneath
from callboard.ports.worktrees import DiffHunk, DiffLine, FileDiff, WorktreeDiff
from callboard.types.errors import ToolRefused
from callboard.types.late_pattern import late_pattern

MOST_FILES = 200
MOST_LINES = 3_000
"""Most changed files, and most lines of one file, that are returned."""
_LARGEST = 400_000
"""Most bytes of a new file that is read."""
_HUNK = late_pattern(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@ ?(.*)")


async def worktree_diff(git: Git, folder: Path, branch: str) -> WorktreeDiff:
    """Return the changes of the worktree in this folder. Raises `ToolRefused`."""
    repo = await find_repository(git)
    working_tree = await repo.working_tree(folder)
    if working_tree is None:
        raise ToolRefused(f"the folder of {branch} is missing, or git no longer knows it")
    base = await _base(repo, branch)
    text = await repo.ask("diff", "--raw", "-p", "-z", "--no-renames", base, at=working_tree)
    changed = list(parsed_diff(text))
    names = (await repo.ask("ls-files", "--others", "--exclude-standard", "-z", at=working_tree)).split("\0")
    added = [name for name in names if name]
    room = max(MOST_FILES - len(changed), 0)
    files = [*changed[:MOST_FILES], *await anyio.to_thread.run_sync(_new_files, working_tree, added[:room])]
    return WorktreeDiff(base, tuple(files), omitted=len(changed) + len(added) - len(files))


async def _base(repo: Repository, branch: str) -> str:
    """Return the newest commit that the worktree's branch shares with that of the workspace."""
    try:
        return await repo.ask("merge-base", "HEAD", f"refs/heads/{branch}")
    except GitFailed as failed:
        raise ToolRefused(f"the branch {branch} has no commit in common with the workspace") from failed


def parsed_diff(text: str) -> Iterator[FileDiff]:
    """Yield the files of the output of `git diff --raw -p -z`: first all names, then the texts in the same order."""
    names, _, body = text.partition("\0\0")
    fields = names.split("\0")
    paths = fields[1::2]
    states = [field.split(" ")[-1][:1] for field in fields[0::2]]
    sections = re.split(r"^diff --git .*\n", body, flags=re.MULTILINE)[1:]
    for path, state, section in zip(paths, states, sections, strict=False):
        yield _file(path, state, section.split("\n"))


def _file(path: str, state: str, lines: Sequence[str]) -> FileDiff:
    hunks: list[_Hunk] = []
    start = next((at for at, line in enumerate(lines) if line.startswith("@@ ")), len(lines))
    binary = any(line.startswith(("Binary files ", "GIT binary patch")) for line in lines[:start])
    for line in lines[start : start + MOST_LINES]:
        if (match := _HUNK.match(line)) is not None:
            hunks.append(_Hunk(match[3], int(match[1]), int(match[2])))
        elif hunks:
            hunks[-1].add(line)
    kinds = {"A": "added", "D": "deleted"}
    parts = tuple(DiffHunk(hunk.title, tuple(hunk.lines)) for hunk in hunks)
    cut = len(lines) - start > MOST_LINES
    return FileDiff(_text_of(path), kinds.get(state, "changed"), parts, binary=binary, cut=cut)


class _Hunk:
    """Lines that follow each other, counted while they are read."""

    def __init__(self, title: str, old: int, new: int) -> None:
        self.title = title
        self.lines: list[DiffLine] = []
        self._old = old
        self._new = new

    def add(self, line: str) -> None:
        """Add a line of the diff."""
        sign = line[:1]
        if sign not in ("+", "-", " "):
            return
        self.lines.append(DiffLine(sign, self._old if sign == "-" else self._new, line[1:]))
        self._old += sign != "+"
        self._new += sign != "-"


def _text_of(path: str) -> str:
    """Return a name of a file as text: bytes that are no UTF-8 are replaced."""
    return os.fsencode(path).decode("utf-8", "replace")


def _new_files(working_tree: WorkingTree, names: Sequence[str]) -> list[FileDiff]:
    root = os.open(working_tree.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return [_new_file(root, name) for name in names]
    finally:
        os.close(root)


def _new_file(root: int, name: str) -> FileDiff:
    try:
        descriptor = open_beneath(root, name, os.O_RDONLY, links=False)
    except OSError:  # a link, or gone meanwhile
        return FileDiff(_text_of(name), "new", (), binary=True)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - there is a descriptor and no path
        data = file.read(_LARGEST + 1)
    if b"\0" in data or len(data) > _LARGEST:
        return FileDiff(_text_of(name), "new", (), binary=True)
    lines = data.decode("utf-8", "replace").removesuffix("\n").split("\n") if data else []
    numbered = tuple(DiffLine("+", number, line) for number, line in enumerate(lines[:MOST_LINES], 1))
    hunks = (DiffHunk("", numbered),) if numbered else ()
    return FileDiff(_text_of(name), "new", hunks, cut=len(lines) > MOST_LINES)
