"""Port of worktrees: separate folders for agents, each on a branch `wt/<name>`, and the merge back.

Rules: work that no other branch contains is deleted only with the user's approval; no commit is ever deleted; the next
process finishes or reverts an interrupted act; no call does its work twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

from callboard.core.team.worktrees import Worktree
from callboard.types.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class WorktreeActor:
    """Author of an act on a worktree, for the record.

    `call` identifies a tool's act, so that it is never done twice.
    """

    name: str
    session: str = ""
    call: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Losses:
    """Work that would be lost with the folder, because nothing else contains it. Paths are relative to the worktree."""

    changed: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    """New files that git ignores, without caches that tools recreate. A new worktree has none."""
    commits: tuple[str, ...] = ()
    """`id subject` of each commit that no other branch has. They stay on the branch, which is kept."""
    under_way: str = ""
    """True if a merge or rebase is unfinished."""

    def __bool__(self) -> bool:
        return bool(self.changed or self.untracked or self.ignored or self.commits or self.under_way)

    def lines(self) -> tuple[str, ...]:
        """Return one line for each loss. Equal lines mean equal losses."""
        parts = (("changed", self.changed), ("untracked", self.untracked), ("ignored", self.ignored))
        lines = [f"{state}: {_line(name)}" for state, names in parts for name in names]
        lines += [f"unmerged: {commit}" for commit in self.commits]
        return tuple(lines + ([f"under way: {self.under_way}"] if self.under_way else []))


def _line(name: str) -> str:
    """Return the full name of a file in one line."""
    return name if name.isprintable() and name == name.strip() else ascii(name)


@dataclass(frozen=True, slots=True)
class Removed:
    """Result of removing a worktree.

    `branch`: the branch that is kept because of its commits; empty: it was removed as well.
    """

    branch: str
    tasks: tuple[str, ...] = ()
    """Tasks that were bound to the worktree and are bound to the workspace again."""


@dataclass(frozen=True, slots=True)
class MergeCheck:
    """Result of the test command of a merge."""

    passed: bool
    output: str = ""


Check = Callable[[Path], Awaitable[MergeCheck]]
"""Function that runs the test command in a folder with the merged result."""


@dataclass(frozen=True, slots=True)
class MergeEnd:
    """Result of a merge. Unless it is `merged`, the workspace is unchanged."""

    how: Literal["merged", "nothing", "conflict", "failed"]
    onto: str
    """Branch of the workspace."""
    commit: str = ""
    files: tuple[str, ...] = ()
    """`merged`: changed files; `conflict`: files in which both sides changed the same lines."""
    output: str = ""
    """`failed`: output of the test command."""
    dirty: tuple[str, ...] = ()
    """Uncommitted changes of the workspace, left unchanged."""
    saved: tuple[str, ...] = ()
    """Uncommitted work of the worktree that was committed to its branch first."""


@dataclass(frozen=True, slots=True)
class WorktreeFacts:
    """One worktree for a list."""

    tree: Worktree
    folder: str
    missing: bool = False
    ahead: int = 0
    behind: int = 0
    """Commits compared with the branch of the workspace."""
    dirty: int = 0
    """Number of changed, untracked, or new ignored files; -1: git gave no answer."""
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line of a change. `sign`: `+`, `-`, or a blank; `number`: of the old text if it was removed, else the new."""

    sign: str
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class DiffHunk:
    """Lines of a change that follow each other. `title`: the function around them, if git names it."""

    title: str
    lines: tuple[DiffLine, ...]


@dataclass(frozen=True, slots=True)
class FileDiff:
    """Change of one file. `cut`: it has more lines; `binary`: it is not shown as text."""

    path: str
    state: str
    """`added`, `changed`, `deleted`, or `new` for a file that git does not track yet."""
    hunks: tuple[DiffHunk, ...]
    binary: bool = False
    cut: bool = False


@dataclass(frozen=True, slots=True)
class WorktreeDiff:
    """Changes of a worktree since the commit `base`. `omitted`: number of files that are left out."""

    base: str
    files: tuple[FileDiff, ...]
    omitted: int = 0


class WorktreeKeeper(Protocol):
    """Manager of worktrees. Every method raises `ToolRefused` with advice on the next step."""

    def path(self, name: str) -> Path:
        """Return the path that the worktree of that name has, or would have."""
        ...

    async def worktrees(self) -> Sequence[Worktree]:
        """Return all worktrees, oldest first."""
        ...

    async def name_for(self, requested: str, call: str) -> str:
        """Return a free name like `requested`; for a call that already made a worktree, the name of that worktree."""
        ...

    async def create(self, name: str, author: WorktreeActor, base: str = "") -> Worktree:
        """Create a worktree from `base` (a branch or commit; default: the workspace's current commit).

        The same call finds its own worktree again.
        """
        ...

    async def open(self, name: str) -> tuple[Path, str]:
        """Return the folder, recreated from its branch if it is missing, and a description of any such repair."""
        ...

    async def keep(self, name: str, author: WorktreeActor) -> Worktree: ...

    async def losses(self, name: str) -> Losses: ...

    async def remove(self, name: str, author: WorktreeActor, agreed: Sequence[str] | None = None) -> Removed:
        """Remove the folder, and the branch unless it has commits that no other branch has.

        Refused if something would be lost. `agreed`: lines of the losses that the user agreed to, which must be all of
        them.
        """
        ...

    async def merge(self, name: str, author: WorktreeActor, check: Check | None = None) -> MergeEnd:
        """Merge its branch into the branch of the workspace if `check` passes on the merged result."""
        ...

    async def outcome(self, call: str) -> str:
        """Return the act that a call completed (`made`, `merged`, `removed`); empty if it completed none."""
        ...

    async def recover(self) -> Sequence[str]:
        """Finish or revert acts of processes that died. Return one line for each."""
        ...

    async def facts(self) -> Sequence[WorktreeFacts]:
        """Return all worktrees, for a list."""
        ...
