"""Checkpoints of a hosted session: made and pushed beside its agents, and before the session leaves this process.

    checkpoints = await begin_checkpoints(runtime, placed, places, trigger)    # before the agents run
    async with checkpointing(checkpoints):                                    # around the supervisor
        ...

A checkpoint is taken while agents go on: it never delays a model call. The row of a checkpoint is committed before its
push, under the session's lease, so a host that has lost the lease pushes nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import structlog

from callboard.adapters.git.checkpoints import (
    Snapshot,
    changed_files,
    commit_snapshot,
    push,
    repository_at,
    take_snapshot,
)
from callboard.adapters.git.git import Git
from callboard.adapters.git.repository import Repository, WorkingTree
from callboard.core.checkpoints.rules import PushEnd, branch_name, is_due, short_list
from callboard.core.keys import checkpoint_key
from callboard.core.team.worktrees import Worktree
from callboard.engine.runtime import SessionRuntime
from callboard.engine.team.moves import Moves, note_move
from callboard.ports.environment import Interest
from callboard.ports.model import Delta
from callboard.ports.notifier import Notifier
from callboard.ports.store import Delete, Put
from callboard.sessions.places import WorkspacePaths
from callboard.sessions.workspaces import PlacedWorkspace
from callboard.types import events as ev
from callboard.types.checkpoints import CheckpointRow
from callboard.types.errors import ToolRefused, heart_of
from callboard.types.records import Envelope

LEAVING = 8.0
"""Most seconds for the last checkpoint. Another process that takes over waits for 10 s."""
_SHOWN = 10
_EARLIER = 20
_RUNNING = frozenset({"waiting", "connecting", "connected"})
"""States of MCP servers that run, or are about to."""
log = structlog.get_logger("callboard.checkpoints")


class CheckpointTrigger:
    """Observer that learns when checkpoints are due."""

    def __init__(self, placed: PlacedWorkspace | None) -> None:
        self._placed = placed
        self.interest = Interest(frozenset() if placed is None else None, frozenset())
        self.agents: set[str] = set()
        """Agents in whose folders a checkpoint is due."""
        self.changed = Notifier()

    def on_event(self, agent: str, seq: int, event: ev.Event) -> None:
        """See `Observer`."""
        if self._placed is not None and is_due(self._placed.policy, event):
            self.agents.add(agent)
            self.changed.notify()

    def on_delta(self, agent: str, delta: Delta) -> None:
        """See `Observer`."""

    def on_mail(self, envelope: Envelope) -> None:
        """See `Observer`."""


class Checkpoints:
    """Checkpoints of one session that this process hosts."""

    def __init__(
        self, runtime: SessionRuntime, placed: PlacedWorkspace, places: WorkspacePaths, trigger: CheckpointTrigger
    ) -> None:
        self._runtime = runtime
        self._placed = placed
        self._places = places
        self._trigger = trigger
        self._rows = dict(placed.rows)
        self._snapshots: dict[str, Snapshot] = {}
        self._all = False
        """True if a checkpoint of all folders is due."""
        self._ending = False
        self._rounds = 0
        """Number of rounds that are over."""
        self._ended = False
        self._in_round = False
        self._scope = anyio.CancelScope(shield=True)
        self._reported: set[str] = set()
        """Lines that the person has seen."""
        self._git = Git(places.workspace, dict(os.environ))

    async def begin(self) -> None:
        """Note in the store where the session works now, and tell its agents what they lost by a move.

        Call it before the agents run.
        """
        placed = self._placed
        trees = {"", *placed.restored}
        rows = [self._moved_row(tree) for tree in sorted(trees)]
        gone = [] if not placed.moved else [tree for tree in placed.rows if tree not in trees]
        writes = [Put(checkpoint_key(self._runtime.session, row.tree), row.encode()) for row in rows]
        deletes = [Delete(checkpoint_key(self._runtime.session, tree)) for tree in gone]
        moves = Moves(placed.rows, placed.restored, {row.tree: row.folder for row in rows}) if placed.moved else None
        await note_move(self._runtime, moves, (*writes, *deletes))
        self._rows = {tree: row for tree, row in placed.rows.items() if tree not in gone}
        self._rows |= {row.tree: row for row in rows}
        self._all = placed.policy != "off"

    def _moved_row(self, tree: str) -> CheckpointRow:
        """Return the row of a working tree with the place where it is now."""
        folder = self._runtime.services.worktrees.path(tree) if tree and self._runtime.services.worktrees else None
        row = self._placed.rows.get(tree) or CheckpointRow(tree=tree, place="", folder="")
        place = {"place": self._placed.place, "folder": str(folder or self._places.workspace)}
        current = {**place, "host": socket.gethostname()}
        if not self._placed.moved:
            return row.model_copy(update=current)
        commit = self._placed.restored.get(tree, "")
        earlier = (*row.earlier, *([row.folder] if row.folder else []))[-_EARLIER:]
        fresh = {"commit": commit, "pushed": commit, "unpushed": (), "failure": "", "earlier": earlier}
        return row.model_copy(update={**current, **fresh})

    async def run(self) -> None:
        """Make the checkpoints that become due, until `finish`. A cancellation does not end it."""
        try:
            with self._scope:
                await self._rounds_until_finished()
        finally:
            self._ended = True
            self._trigger.changed.notify()

    async def _rounds_until_finished(self) -> None:
        while not self._ending or self._due():
            changes = self._trigger.changed.changes
            if self._due():
                await self._round()
            else:
                await self._trigger.changed.changed(changes)

    async def save(self) -> None:
        """Make a checkpoint of all folders now, and return when it was pushed or could not be."""
        if self._placed.policy == "off":
            return
        due = self._rounds + (2 if self._in_round else 1)
        self._all = True
        self._trigger.changed.notify()
        await self._trigger.changed.until(lambda: self._rounds >= due or self._ended)

    async def save_once(self) -> tuple[str, ...]:
        """Make one checkpoint of all folders without `run`. Return the failures, a line each."""
        if self._due():
            await self._round()
        return tuple(f"the checkpoint was not pushed: {row.failure}" for row in self._rows.values() if row.failure)

    async def finish(self) -> None:
        """Make the last checkpoint, and end `run`. After `LEAVING` the next host reports what it lacks."""
        self._ending = True
        self._all = self._placed.policy != "off"
        self._trigger.changed.notify()
        with anyio.move_on_after(LEAVING, shield=True):
            await self._trigger.changed.until(lambda: self._ended)
        if not self._ended:
            log.warning("the last checkpoint took too long and was given up")
            self._scope.cancel()

    def _due(self) -> bool:
        return self._all or bool(self._trigger.agents)

    async def _round(self) -> None:
        self._in_round = True
        # Taken before the first await: what becomes due from here on belongs to the next round.
        agents = set(self._trigger.agents)
        everything = self._all
        self._trigger.agents.clear()
        self._all = False
        trees = await self._trees()
        due = set(trees) if everything else {self._tree_of(agent) for agent in agents}
        unpushed = {tree for tree, row in self._rows.items() if row.commit != row.pushed}
        for tree in sorted(due | unpushed):
            if tree in trees:
                await self._save(tree, trees[tree], repeated=everything)
            else:
                await self._forget(tree)
        self._in_round = False
        self._rounds += 1
        self._trigger.changed.notify()

    def _tree_of(self, agent: str) -> str:
        row = self._runtime.rows.agent(agent)
        return row[0].worktree if row is not None else ""

    async def _trees(self) -> dict[str, Worktree | None]:
        """Return the worktrees of the session, and the workspace with an empty name."""
        keeper = self._runtime.services.worktrees
        in_use = {row.worktree for row in self._runtime.rows.agents()}
        trees = await keeper.worktrees() if keeper is not None else ()
        own = {tree.name: tree for tree in trees if tree.session == self._runtime.session or tree.name in in_use}
        return {"": None, **own}

    async def _forget(self, tree: str) -> None:
        if self._rows.pop(tree, None) is not None:
            await self._runtime.commit(Delete(checkpoint_key(self._runtime.session, tree)))

    async def _save(self, tree: str, worktree: Worktree | None, *, repeated: bool) -> None:
        """Make a checkpoint of one folder, and push it. `repeated`: also if it was pushed before."""
        try:
            repo = repository_at(self._places.workspace, self._git)
            at = await self._working_tree(repo, worktree)
            if at is not None:
                row = await self._commit(repo, at, tree, worktree)
                await self._push(repo, row, repeated=repeated)
        except (ToolRefused, OSError) as failed:
            self._report(f"no checkpoint of {tree or 'the workspace'} can be made: {failed}")

    async def _working_tree(self, repo: Repository, worktree: Worktree | None) -> WorkingTree | None:
        keeper = self._runtime.services.worktrees
        if worktree is None or keeper is None:
            return repo.workspace
        return await repo.working_tree(Path(keeper.path(worktree.name)))

    async def _commit(self, repo: Repository, at: WorkingTree, tree: str, worktree: Worktree | None) -> CheckpointRow:
        session = self._runtime.session
        before = self._rows.get(tree) or self._moved_row(tree)
        now = self._runtime.clock.now()  # before the files are read: later changes may be missing
        last = self._snapshots.get(tree)
        snapshot = await take_snapshot(repo, at, last=last)
        facts = {
            "at": now,
            "servers": self._servers(),
            "by": worktree.by if worktree is not None else "",
            "call": worktree.call if worktree is not None else "",
            "kept_by": worktree.kept if worktree is not None else "",
        }
        if snapshot is last:
            return await self._put(before.model_copy(update=facts))
        previous = await repo.commit_of(before.commit)
        commit = await commit_snapshot(repo, at, snapshot, session=session, tree=tree, previous=previous)
        unpushed = await changed_files(repo, await repo.commit_of(before.pushed) or snapshot.head, commit)
        row = before.model_copy(
            update={
                **facts,
                "commit": commit,
                "head": snapshot.head,
                "branch": snapshot.branch,
                "unpushed": short_list(unpushed),
                "left_out": short_list(snapshot.left_out),
                "ignored": short_list(snapshot.ignored),
            }
        )
        await self._put(row)
        self._snapshots[tree] = snapshot
        new = [name for name in row.left_out if name not in self._reported]
        self._reported |= set(new)
        if new:
            self._runtime.notice("lead", f"not in checkpoints: {'; '.join(new[:_SHOWN])}{_more(len(new) - _SHOWN)}")
        return row

    async def _push(self, repo: Repository, row: CheckpointRow, *, repeated: bool) -> None:
        pushed = row.commit == row.pushed
        if pushed and not repeated:
            return
        branch = branch_name(self._runtime.session, row.tree)
        end = await push(repo, self._placed.remote.url, row.commit, branch)
        if pushed:  # the push only brings a branch back that was deleted: if it fails, nothing is lost
            return
        if end == PushEnd():
            await self._put(row.model_copy(update={"pushed": row.commit, "unpushed": (), "failure": ""}))
            if row.failure:
                self._runtime.notice("lead", "the checkpoint was pushed")
        elif end.text != row.failure:
            await self._put(row.model_copy(update={"failure": end.text}))
            line = f"the checkpoint was not pushed, which is tried again at the next one: {end.text}"
            self._runtime.notice("lead", line)

    async def _put(self, row: CheckpointRow) -> CheckpointRow:
        await self._runtime.commit(Put(checkpoint_key(self._runtime.session, row.tree), row.encode()))
        self._rows[row.tree] = row
        return row

    def _servers(self) -> tuple[str, ...]:
        servers = self._runtime.services.servers
        now = servers.now() if servers is not None else ()
        return tuple(server.name for server in now if server.transport == "stdio" and server.state in _RUNNING)

    def _report(self, line: str) -> None:
        """Tell the person a line once."""
        if line not in self._reported:
            self._reported.add(line)
            self._runtime.notice("lead", line)


def _more(count: int) -> str:
    return f"; {count} more" if count > 0 else ""


async def begin_checkpoints(
    runtime: SessionRuntime, placed: PlacedWorkspace | None, places: WorkspacePaths, trigger: CheckpointTrigger
) -> Checkpoints | None:
    """Return the checkpoints of a session, which has noted where it works now; None for a session without a remote."""
    if placed is None:
        return None
    checkpoints = Checkpoints(runtime, placed, places, trigger)
    await checkpoints.begin()
    return checkpoints


async def save_workspace(
    runtime: SessionRuntime, placed: PlacedWorkspace | None, places: WorkspacePaths
) -> tuple[str, ...]:
    """Save and push the workspace of a session whose agents do not run here.

    Return a line for each folder that could not be pushed. Does nothing without a remote.
    """
    checkpoints = await begin_checkpoints(runtime, placed, places, CheckpointTrigger(placed))
    return await checkpoints.save_once() if checkpoints is not None else ()


@asynccontextmanager
async def keep_checkpoints(checkpoints: Checkpoints | None) -> AsyncGenerator[None]:
    """Make checkpoints while the block lasts, and the last one at its end. None: there are none."""
    if checkpoints is None:
        yield
        return
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(checkpoints.run)
            try:
                yield
            finally:
                await checkpoints.finish()
    except BaseExceptionGroup as failed:
        raise heart_of(failed) from failed
