"""`store`: the place of a workspace's sessions, a check that everything can be read, and copies to another store."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import anyio
import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.adapters.storage.durable import DurableStore
from callboard.cli.commands.options import FiniteRange, Invocation, as_json, everywhere, refuse_before_command
from callboard.cli.commands.output import notice_of, terminal_of
from callboard.cli.terminal.terminal import block
from callboard.cli.views.sessions_removed import removal_json, removal_lines
from callboard.core.keys import count_words
from callboard.engine.commands import stored_sessions
from callboard.sessions.inspect.backup import copy_workspace
from callboard.sessions.places import find_places
from callboard.sessions.retention import RemovalReport, remove_old_sessions
from callboard.sessions.stores import existing_store, own_settings
from callboard.types.errors import UsageError
from callboard.types.personal_settings import RetentionSettings


@click.group(invoke_without_command=True)
@as_json
@everywhere
@click.pass_context
def store(context: click.Context, /, json_: bool) -> None:
    """Show where sessions are stored, check that, and copy them to another store."""
    if context.invoked_subcommand is None:
        _show(context.obj, json_=json_)
    else:
        refuse_before_command(context)


@store.command()
@as_json
@everywhere
@click.pass_obj
def status(invocation: Invocation, /, json_: bool) -> None:
    """Show the place, the engine, the size, and the number of sessions."""
    _show(invocation, json_=json_)


@store.command()
@everywhere
@click.pass_obj
def check(invocation: Invocation, /) -> None:
    """Read everything that is stored, and list what is damaged.

    Damaged values are set aside. The exit code is 1 if there are any, also from earlier.
    """

    async def checking() -> list[str]:
        async with _opened(invocation) as opened:
            return [str(report) for report in await opened.check()]

    reports = anyio.run(checking)
    with terminal_of(invocation) as terminal:
        terminal.rows(block("\n".join(reports), "bad") if reports else block("everything can be read", "good"))
    if reports:
        raise SystemExit(1)


@store.command()
@click.argument("target", metavar="TARGET")
@everywhere
@click.pass_obj
def copy(invocation: Invocation, /, target: str) -> None:
    """Copy the sessions of this workspace to TARGET: `sqlite`, or postgresql://USER@HOST/DATABASE.

    Sessions may run meanwhile; what they do after the start is not in the copy. Files that are not in the store
    (large results, transcripts, worktrees) stay on this machine. To use the copy, set `store` to TARGET.
    """
    refuse_inside_tool("Copying the store")
    copied = anyio.run(copy_workspace, invocation.workspace, target, notice_of(invocation))
    with terminal_of(invocation) as terminal:
        parts = (
            count_words(copied.get(table, 0), word)
            for table, word in (("stream", "stream"), ("record", "record"), ("row", "row"), ("blob", "blob"))
        )
        terminal.rows(block(f"copied to {target}: {', '.join(parts)}"))


@store.command()
@click.option("--days", type=FiniteRange(min=0, min_open=True), help="Remove sessions that ended before.")
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="Keep the newest N sessions.")
@click.option("--dry-run", is_flag=True, help="Change nothing, list what would go.")
@as_json
@everywhere
@click.pass_obj
def gc(invocation: Invocation, /, days: float | None, *, keep: int | None, dry_run: bool, json_: bool) -> None:
    """Remove old sessions that have ended, with everything that only they need.

    Without --days and --keep, the setting `retention` says which. Sessions that are open, that a process hosts, or that
    have a schedule, an open request, a worktree, or unread mail stay. Other processes may use the workspace meanwhile.
    """
    retention = RetentionSettings(days=days, sessions=keep)
    if retention == RetentionSettings():
        retention = own_settings().retention
    if retention == RetentionSettings():
        raise UsageError("no rule says which sessions are old: give --days or --keep, or set retention.days")
    refuse_inside_tool("Removing sessions")

    async def removing() -> RemovalReport:
        async with _opened(invocation) as opened:
            places = find_places(invocation.workspace, writable=False)
            return await remove_old_sessions(opened, places, retention, dry_run=dry_run)

    report = anyio.run(removing)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps(removal_json(report, dry_run=dry_run), indent=2))
        else:
            terminal.rows(removal_lines(report, dry_run=dry_run))


def _show(invocation: Invocation, *, json_: bool) -> None:
    facts = anyio.run(partial(_facts, invocation))
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps(facts, indent=2))
        else:
            width = max(map(len, facts))
            terminal.rows(block("\n".join(f"{name:<{width}}  {fact}" for name, fact in facts.items())))


async def _facts(invocation: Invocation) -> Mapping[str, str]:
    async with _opened(invocation) as opened:
        facts = await opened.describe()
        damage = opened.damage
        sessions = len((await stored_sessions(opened)).rows)
    return {**facts, "sessions": f"{sessions:,}", "damaged": f"{len(damage):,}"}


@asynccontextmanager
async def _opened(invocation: Invocation) -> AsyncGenerator[DurableStore]:
    places = find_places(invocation.workspace, writable=False)
    async with existing_store(places, notice_of(invocation)) as opened:
        if opened is None:
            raise UsageError(f"there is no session in {places.workspace} yet: start one with `callboard run`")
        assert isinstance(opened, DurableStore), "only tests have stores without a disk"
        yield opened
