"""`worktrees`, `worktrees merge|remove`: the git worktrees of a workspace, for the user.

Changes are refused inside a tool call: agents have their own tools for that, with permissions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.options import Invocation, as_json, everywhere, refuse_before_command
from callboard.cli.commands.output import notice_of, print_rows, terminal_of
from callboard.cli.terminal.terminal import block
from callboard.cli.views.worktrees import merged_words, worktrees_table
from callboard.ports.worktrees import MergeEnd, Removed
from callboard.sessions.inspect.worktrees import WorktreeInspector, WorktreeLine, open_worktrees, worktrees_in
from callboard.sessions.places import find_places
from callboard.sessions.stores import existing_store
from callboard.types.errors import UsageError

Found = TypeVar("Found")


@click.group(invoke_without_command=True)
@as_json
@everywhere
@click.pass_context
def worktrees(ctx: click.Context, /, json_: bool) -> None:
    """List, merge and remove git worktrees.

    Without a command: lists the worktrees of all sessions of this workspace, with branch, agents, tasks, commits ahead
    of and behind the workspace's branch, uncommitted files, and size.
    """
    if ctx.invoked_subcommand is not None:
        refuse_before_command(ctx)
        return
    invocation = ctx.ensure_object(Invocation)
    rows = anyio.run(_all_worktrees, invocation)
    print_rows(invocation, rows, worktrees_table, json_=json_)


@worktrees.command()
@click.argument("name")
@click.option(
    "--test",
    "test_command",
    default="",
    metavar="COMMAND",
    help="Command that must succeed on the merged result before the merge.",
)
@everywhere
@click.pass_obj
def merge(invocation: Invocation, /, name: str, test_command: str) -> None:
    """Merge the work of a worktree into the branch that is checked out here.

    Uncommitted work in it is committed to its branch first. If both sides changed the same lines, nothing is merged:
    the conflicts are written into the worktree's files, to be resolved there.
    """
    refuse_inside_tool("Merging a worktree")

    async def merging(inspector: WorktreeInspector) -> MergeEnd:
        return await inspector.merge(name, test_command)

    end = _with_inspector(invocation, merging)
    if end.how in ("failed", "conflict"):
        raise UsageError(merged_words(name, end))
    message = merged_words(name, end)
    with terminal_of(invocation) as terminal:
        terminal.rows(block("\n".join([message, *(f"  {file}" for file in end.files)]), "good"))


@worktrees.command()
@click.argument("name")
@click.option("--discard", is_flag=True, help="Also discard uncommitted work. Commits are never lost.")
@everywhere
@click.pass_obj
def remove(invocation: Invocation, /, name: str, discard: bool) -> None:
    """Remove a worktree, and its branch unless it has commits that no other branch has.

    Refused while changed, untracked or ignored files, or unmerged commits, exist nowhere else; --discard deletes them.
    """
    refuse_inside_tool("Removing a worktree")

    async def removing(inspector: WorktreeInspector) -> tuple[Removed, Sequence[str]]:
        lost = await inspector.losses(name)
        if lost and not discard:
            listed = "\n".join(f"  {line}" for line in lost)
            raise UsageError(f"{name} contains work that is nowhere else (--discard deletes it):\n{listed}")
        return await inspector.remove(name, lost), lost

    removed, lost = _with_inspector(invocation, removing)
    lines = [f"{name} is removed", *(f"  was in it: {line}" for line in lost)]
    if removed.branch:
        lines.append(f"  the branch {removed.branch} stays, for its commits")
    lines += [f"  {task} is no longer bound to it" for task in removed.tasks]
    with terminal_of(invocation) as terminal:
        terminal.rows(block("\n".join(lines), "good"))


async def _all_worktrees(invocation: Invocation) -> Sequence[WorktreeLine]:
    """Return all worktrees; none in a workspace without a session."""
    places = find_places(invocation.workspace, writable=False)
    async with existing_store(places, notice_of(invocation)) as store:
        return () if store is None else await worktrees_in(places, store).lines()


def _with_inspector(invocation: Invocation, work: Callable[[WorktreeInspector], Awaitable[Found]]) -> Found:
    async def working() -> Found:
        async with open_worktrees(invocation.workspace, notice_of(invocation)) as inspector:
            return await work(inspector)

    return anyio.run(working)
