"""Git worktrees of a workspace as a table, and the result of a merge. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.cli.terminal.terminal import Block
from callboard.cli.views.listings import table
from callboard.ports.worktrees import MergeEnd
from callboard.sessions.inspect.worktrees import WorktreeLine

_UNITS = ("B", "KB", "MB", "GB", "TB")


def worktrees_table(rows: Sequence[WorktreeLine]) -> Block:
    """Return a table: name, branch, agents, tasks, distance from the workspace's branch, size."""
    cells = [
        [
            row.name,
            row.branch,
            row.owner,
            " ".join(row.tasks),
            f"+{row.ahead} -{row.behind}",
            "?" if row.dirty < 0 else str(row.dirty),
            size_words(row.bytes),
            row.state,
        ]
        for row in rows
    ]
    heads = ["WORKTREE", "BRANCH", "OWNER", "TASKS", "COMMITS", "DIRTY", "SIZE", "STATE"]
    return table(heads, cells, "no worktrees")


def size_words(size: float) -> str:
    """Return bytes in the largest unit with a number of at least 1: `1.5 MB`."""
    unit = 0
    while size >= 1_000 and unit < len(_UNITS) - 1:
        size, unit = size / 1_000, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def merged_words(name: str, end: MergeEnd) -> str:
    """Return what a merge did, or why nothing was merged and what to do."""
    if end.how == "merged":
        return f"merged wt/{name} into {end.onto} ({end.commit[:10]})"
    if end.how == "nothing":
        return f"{end.onto} already contains it"
    if end.how == "failed":
        return f"the test command failed on the merged result, nothing was merged:\n{end.output}"
    listed = "\n".join(f"  {file}" for file in end.files)
    advice = f"resolve the conflicts in the worktree {name}, and merge again"
    return f"both sides changed the same lines, nothing was merged; {advice}:\n{listed}"
