"""The worktree port: folders of their own for agents, each on a branch `wt/<name>`, and the way back.

Laws: nothing that is not in a commit of another branch is deleted without a person; no commit is ever deleted; what
was cut is finished or taken back by whoever comes next; no call does its work twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from callboard.core.team.worktrees import Worktree


@dataclass(frozen=True, slots=True)
class Who:
    """Who does something to a worktree, for the record. `call` makes a tool's act one that is never done twice."""

    name: str
    session: str = ""
    call: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Losses:
    """What would be gone if the folder were: nothing else holds it. Paths are relative to the worktree."""

    changed: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    """Ignored by git, and new: a worktree begins without any. Caches that tools make anew are left out."""
    commits: tuple[str, ...] = ()
    """`id subject` of each commit that no other branch has: these stay on the branch, which is kept."""
    under_way: str = ""
    """A merge or rebase that is not finished."""

    def __bool__(self) -> bool:
        return bool(self.changed or self.untracked or self.ignored or self.commits or self.under_way)

    def lines(self) -> tuple[str, ...]:
        """Each of them in a line: all of them, so that equal lines are equal losses."""
        parts = (("changed", self.changed), ("untracked", self.untracked), ("ignored", self.ignored))
        found = [f"{what}: {_line(one)}" for what, names in parts for one in names]
        found += [f"unmerged: {one}" for one in self.commits]
        return tuple(found + ([f"under way: {self.under_way}"] if self.under_way else []))


def _line(name: str) -> str:
    """A file's name in one line, whole."""
    return name if name.isprintable() and name == name.strip() else ascii(name)


@dataclass(frozen=True, slots=True)
class Removed:
    """A worktree is gone. `branch`: kept, with commits that no other branch has; empty: it went too."""

    branch: str
    tasks: tuple[str, ...] = ()
    """Tasks that were bound to it and are bound to the workspace again."""


@dataclass(frozen=True, slots=True)
class Checked:
    """How the test command of a merge ended."""

    passed: bool
    output: str = ""


Check = Callable[[Path], Awaitable[Checked]]
"""Runs the test command in a folder that holds the merged result."""


@dataclass(frozen=True, slots=True)
class MergeEnd:
    """How a merge ended. In all cases but `merged` the workspace is as it was."""

    how: Literal["merged", "nothing", "conflict", "failed"]
    onto: str
    """The branch of the workspace."""
    commit: str = ""
    files: tuple[str, ...] = ()
    """`merged`: what it changed; `conflict`: where both sides changed the same lines."""
    output: str = ""
    """`failed`: what the test command said."""
    dirty: tuple[str, ...] = ()
    """Uncommitted changes of the workspace, which were left as they are."""
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
    """Commits beside those of the workspace's branch."""
    dirty: int = 0
    """Files changed, untracked or ignored and new; -1: git did not tell."""
    bytes: int = 0


class WorktreeKeeper(Protocol):
    """Makes, merges and removes worktrees. Every method raises `ToolRefused` with what to do instead."""

    def path(self, name: str) -> Path:
        """Where the worktree of that name stands, or would."""
        ...

    async def known(self) -> Sequence[Worktree]:
        """Those that there are, oldest first."""
        ...

    async def name_for(self, wanted: str, call: str) -> str:
        """A free name like `wanted`; for a call that made one already, that one's."""
        ...

    async def create(self, name: str, who: Who, base: str = "") -> Worktree:
        """A new worktree from `base` (a branch or commit; default: what the workspace has checked out). The same call
        finds its own again."""
        ...

    async def open(self, name: str) -> tuple[Path, str]:
        """Its folder, made anew from its branch when it is missing; and what was done to have it, if anything."""
        ...

    async def keep(self, name: str, who: Who) -> Worktree: ...

    async def losses(self, name: str) -> Losses: ...

    async def remove(self, name: str, who: Who, agreed: Sequence[str] | None = None) -> Removed:
        """Remove the folder, and the branch unless it has commits that no other branch has. Refused while something
        would be lost; `agreed`: the lines of the losses that a person agreed to, which are then all that is lost."""
        ...

    async def merge(self, name: str, who: Who, check: Check | None = None) -> MergeEnd:
        """Bring its branch into the branch of the workspace, if `check` passes on the merged result."""
        ...

    async def outcome(self, call: str) -> str:
        """The act that a call completed (`made`, `merged`, `removed`); empty for none."""
        ...

    async def recover(self) -> Sequence[str]:
        """Finish or take back what processes that died left behind; a line for each."""
        ...

    async def facts(self) -> Sequence[WorktreeFacts]:
        """All of them, for a list."""
        ...
