"""The record of what was done to git worktrees: one stream for a workspace, the same for all of its sessions.

An act that takes several steps is noted before its first one (`making`, `merging`, `joining`, `removing`) and after its
last (`made`, `merged`, `removed`, or `undone`), so that whoever finds the beginning without the end knows what to mend.
"""

from __future__ import annotations

from typing import Literal

from callboard.words.values import Value

WorktreeAct = Literal[
    "making",  # a branch and a folder are about to be made; `base` is the commit
    "made",
    "kept",  # no agent removes it any more, only a person
    "saved",  # its uncommitted work was committed to its branch, as `tip`
    "merging",  # `tip` is about to go into `onto`, which stands at `base`; with `commit`: its tests have passed
    "merged",  # `onto` stands at `commit`
    "joining",  # `base` is about to be merged into the worktree itself, to solve conflicts there
    "joined",  # its conflicts stand in its files
    "removing",  # its folder is about to go; `lost` is what a person agreed to lose
    "removed",  # the folder is gone; `branch` is empty when the branch went too
    "undone",  # what was begun was taken back
]


class WorktreeNoted(Value):
    """One entry: what was done, by whom and why."""

    v: int = 1
    at: float
    act: WorktreeAct
    name: str
    by: str = ""
    """An agent, `person`, or `runtime`."""
    session: str = ""
    call: str = ""
    """The tool call that does it; empty for a person and the runtime."""
    why: str = ""
    branch: str = ""
    base: str = ""
    onto: str = ""
    """The branch that it began from, or goes into."""
    tip: str = ""
    commit: str = ""
    lost: tuple[str, ...] = ()
