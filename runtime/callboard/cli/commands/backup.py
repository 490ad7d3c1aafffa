"""`backup` and `restore`: the sessions of a workspace in one file."""

from __future__ import annotations

from pathlib import Path

import anyio
import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.options import Invocation, everywhere
from callboard.cli.commands.output import notice_of, terminal_of
from callboard.cli.terminal.terminal import block
from callboard.core.keys import count_words
from callboard.sessions.inspect.backup import back_up
from callboard.sessions.inspect.backup import restore as restore_backup


@click.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@everywhere
@click.pass_obj
def backup(invocation: Invocation, /, file: Path | None) -> None:
    """Write the sessions of this workspace to FILE, even while they run.

    FILE (callboard-NAME-TIME.tar.gz here) contains the store and the files of the sessions: conversations, mail, tasks,
    schedules, large results, transcripts. It does not contain the files of your workspace.
    """
    refuse_inside_tool("Making a backup")
    done = anyio.run(back_up, invocation.workspace, file, notice_of(invocation))
    with terminal_of(invocation) as terminal:
        terminal.rows(block(f"{done.path}: {count_words(done.sessions, 'session')}, {count_words(done.bytes, 'byte')}"))


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Move existing sessions aside first.")
@everywhere
@click.pass_obj
def restore(invocation: Invocation, /, file: Path, *, replace: bool) -> None:
    """Restore the sessions of a backup, or the readable part of a damaged database.

    FILE was written by `callboard backup`, or is a `callboard.db` (also one that was set aside as damaged). No process
    may use the workspace during the restore. Nothing is deleted: the previous state is moved aside.
    """
    refuse_inside_tool("Restoring sessions")

    async def restoring() -> int:
        done = await restore_backup(invocation.workspace, file, notice_of(invocation), aside=replace)
        restored = f"{count_words(done.sessions, 'session')} restored: `callboard sessions` lists them"
        nothing = f"no session of {file} could be read: restore a backup instead, if you have one"
        with terminal_of(invocation) as terminal:
            terminal.rows(block("\n".join([restored if done.sessions else nothing, *done.notes])))
        return done.sessions

    if not anyio.run(restoring):
        raise SystemExit(1)
