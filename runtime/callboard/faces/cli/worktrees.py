"""`worktrees`, `worktrees merge|remove`: the git worktrees of a workspace, looked at and brought home by a person.

It refuses to change any inside a tool call: agents have tools of their own for that, which are judged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
import click

from callboard.desks.worktrees import WorktreeDesk, WorktreeLine, open_worktrees
from callboard.faces.cli.options import Given, as_json, everywhere, refuse_tools
from callboard.faces.cli.run import terminal_of
from callboard.faces.cli.team import print_rows
from callboard.faces.pages.listings import table
from callboard.faces.terminal import Block, block
from callboard.ports.worktrees import MergeEnd, Removed
from callboard.words.errors import UsageError

Found = TypeVar("Found")
_UNITS = ("B", "KB", "MB", "GB", "TB")


@click.group(invoke_without_command=True)
@as_json
@everywhere
@click.pass_context
def worktrees(ctx: click.Context, /, json_: bool) -> None:
    """List, merge and remove git worktrees.

    Without a command: all worktrees of this workspace, of all its sessions. Branch, who works there, tasks, commits
    ahead of and behind the workspace's branch, files not committed, size.
    """
    if ctx.invoked_subcommand is None:
        given = ctx.ensure_object(Given)
        print_rows(given, _at(given, WorktreeDesk.lines), worktrees_table, json_=json_)


@worktrees.command()
@click.argument("name")
@click.option("--test", "test_command", default="", metavar="COMMAND", help="Has to pass on the merged result first.")
@everywhere
@click.pass_obj
def merge(given: Given, /, name: str, test_command: str) -> None:
    """Bring the work of a worktree into the branch that is checked out here.

    Uncommitted work in it is committed to its branch first. Where both sides changed the same lines nothing is merged:
    the conflicts are put into the worktree's files, to be solved there.
    """
    refuse_tools("Merging a worktree")

    async def merging(desk: WorktreeDesk) -> MergeEnd:
        return await desk.merge(name, test_command)

    end = _at(given, merging)
    if end.how in ("failed", "conflict"):
        raise UsageError(_why_not(name, end))
    said = (
        f"merged wt/{name} into {end.onto} ({end.commit[:10]})" if end.commit else f"{end.onto} holds all of it already"
    )
    with terminal_of(given) as terminal:
        terminal.rows(block("\n".join([said, *(f"  {file}" for file in end.files)]), "good"))


@worktrees.command()
@click.argument("name")
@click.option("--discard", is_flag=True, help="Also what stands nowhere else. Commits are never lost.")
@everywhere
@click.pass_obj
def remove(given: Given, /, name: str, discard: bool) -> None:
    """Remove a worktree, and its branch unless it has commits that no other branch has.

    Refused while changed, untracked or ignored files, or unmerged commits, stand nowhere else; --discard lets them go.
    """
    refuse_tools("Removing a worktree")

    async def removing(desk: WorktreeDesk) -> tuple[Removed, Sequence[str]]:
        lost = await desk.losses(name)
        if lost and not discard:
            listed = "\n".join(f"  {line}" for line in lost)
            raise UsageError(f"{name} holds what stands nowhere else (--discard lets it go):\n{listed}")
        return await desk.remove(name, lost), lost

    removed, lost = _at(given, removing)
    lines = [f"{name} is removed", *(f"  was in it: {line}" for line in lost)]
    if removed.branch:
        lines.append(f"  the branch {removed.branch} stays, for its commits")
    lines += [f"  {task} is no longer bound to it" for task in removed.tasks]
    with terminal_of(given) as terminal:
        terminal.rows(block("\n".join(lines), "good"))


def worktrees_table(rows: Sequence[WorktreeLine]) -> Block:
    """Name, branch, who works there, tasks, how far it is from home, size."""
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
    """Bytes in the largest unit that leaves a number from 1: `1.5 MB`."""
    unit = 0
    while size >= 1_000 and unit < len(_UNITS) - 1:
        size, unit = size / 1_000, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def _why_not(name: str, end: MergeEnd) -> str:
    if end.how == "failed":
        return f"the test command failed on the merged result, nothing was merged:\n{end.output}"
    listed = "\n".join(f"  {file}" for file in end.files)
    return (
        f"both sides changed the same lines, nothing was merged; solve it in the worktree {name}, and merge:\n{listed}"
    )


def _at(given: Given, work: Callable[[WorktreeDesk], Awaitable[Found]]) -> Found:
    async def working() -> Found:
        async with open_worktrees(given.workspace) as desk:
            return await work(desk)

    return anyio.run(working)
