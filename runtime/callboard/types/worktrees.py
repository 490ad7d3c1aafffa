"""Record of acts on git worktrees: one stream for a workspace, shared by all of its sessions.

An act of several steps is recorded before its first step (`making`, `merging`, `joining`, `removing`) and after its
last (`made`, `merged`, `removed`, or `undone`). A process that finds a beginning without an end knows what to repair.
"""

from typing import Literal

from callboard.types.records import Value

WorktreeAct = Literal[
    "making",  # a branch and a folder are about to be created; `base` is the commit
    "made",
    "kept",  # only a person may remove it now
    "saved",  # its uncommitted work was committed to its branch, as `tip`
    "merging",  # `tip` is about to be merged into `onto`, which is at `base`; with `commit`: its tests have passed
    "merged",  # `onto` is at `commit`
    "joining",  # `base` is about to be merged into the worktree itself, to solve conflicts there
    "joined",  # the conflicts are in its files
    "removing",  # its folder is about to be removed; `lost` is the work that a person agreed to lose
    "removed",  # the folder is gone; `branch` is empty if the branch was removed too
    "undone",  # the begun act was undone
]


class WorktreeNoted(Value):
    """One entry: the act, its author and its reason."""

    v: int = 1
    at: float
    act: WorktreeAct
    name: str
    by: str = ""
    """Author: an agent, `person`, or `runtime`."""
    session: str = ""
    call: str = ""
    """Tool call that performs the act; empty for the user and the runtime."""
    why: str = ""
    branch: str = ""
    base: str = ""
    onto: str = ""
    """Branch that it began from, or is merged into."""
    tip: str = ""
    commit: str = ""
    lost: tuple[str, ...] = ()
