"""Process that works on a task board: several claimers under one lease, with the product's own rules and writes.

    python board_child.py FOLDER LEASE CLAIMERS

The claimer that takes a task reserved for it kills its process (kill -9) at once. Every action is recorded in the
stream `log`, in the commit of the change itself: `claim TASK CLAIMER ATTEMPT` and `done TASK CLAIMER ATTEMPT`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import anyio

from callboard.adapters.storage.sqlite import SqliteStore, open_store
from callboard.core.keys import rows_prefix, task_key
from callboard.core.tasks import board as laws
from callboard.core.tasks.board import Holder, by_id, ready_for
from callboard.engine.operations.claim_task import claimed_task, free_abandoned
from callboard.engine.row_cache import RowCache
from callboard.ports.store import Append, Fence, LeaseHolder, Put, Row
from callboard.types.errors import Conflict, ToolRefused
from callboard.types.records import Task

SESSION = "s1"
ENDED = ("completed", "failed", "cancelled")


class Claimers:
    """The claimers of one process."""

    def __init__(self, store: SqliteStore, fence: Fence) -> None:
        self.store, self.fence = store, fence
        self.changed = anyio.Event()
        self.board = RowCache(SESSION, self._on_change)

    def _on_change(self, kind: str, name: str) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def load(self) -> None:
        """Read the whole board once."""
        for row in await self.store.keys(rows_prefix(SESSION)):
            self.board.take(row)

    async def follow(self) -> None:
        """Apply the changes of others; claimers try again only after a change."""
        async with self.store.watch(rows_prefix(SESSION)) as rows:
            async for row in rows:
                self.board.take(row)

    async def work(self, name: str) -> None:
        """Claim, work, and complete until every task of the board has ended."""
        holder = Holder(name, 1, self.fence.lease, self.fence.number)
        while True:
            changed = self.changed
            if all(task.status in ENDED for task in self.board.tasks()):
                return
            task = await self.claim(holder)
            if task is not None:
                await anyio.lowlevel.checkpoint()
                await self.commit(
                    task.id, lambda old: laws.complete(old, holder, 1.0, result="done"), f"done {task.id} {name}"
                )
            elif not await free_abandoned(
                self.store, SESSION, self.board, own_fence=self.fence, now=1.0, resumed=lambda task: False
            ):
                await changed.wait()

    async def claim(self, holder: Holder) -> Task | None:
        """Claim the oldest ready task that no other claimer took first."""
        for task in ready_for(by_id(self.board.tasks()), holder):
            try:
                claim, write = claimed_task(SESSION, self.board, task.id, holder=holder, now=1.0)
                note = Append("log", f"claim {claim.id} {holder.name} {claim.attempts}".encode())
                numbers = await self.store.commit(write, note, fence=self.fence)
            except (Conflict, ToolRefused):
                await self.refresh(task.id)
                continue
            self.board.take(Row(write.key, write.value, numbers[0]))
            if task.reserved_for:
                os.kill(os.getpid(), signal.SIGKILL)
            return claim
        return None

    async def commit(self, task_id: str, change: Callable[[Task], Task], note: str) -> None:
        """Commit a change of a task, and retry if another change of its row came first."""
        while True:
            row = await self._row(task_id)
            task = change(Task.model_validate_json(row.value or b""))
            write = Put(row.key, task.encode(), expected=row.revision)
            try:
                await self.store.commit(write, Append("log", f"{note} {task.attempts}".encode()), fence=self.fence)
            except Conflict:
                continue
            await self.refresh(task_id)
            return

    async def refresh(self, task_id: str) -> None:
        self.board.take(await self._row(task_id))

    async def _row(self, task_id: str) -> Row:
        row = await self.store.get(task_key(SESSION, task_id))
        assert row is not None
        return row


async def main(folder: str, lease_name: str, claimers: str) -> None:
    store = await open_store(Path(folder), durability="process")
    lease = await store.acquire(lease_name)
    assert not isinstance(lease, LeaseHolder)
    mine = Claimers(store, lease.fence)
    await mine.load()
    async with anyio.create_task_group() as group:
        group.start_soon(mine.follow)
        async with anyio.create_task_group() as workers:
            for number in range(int(claimers)):
                workers.start_soon(mine.work, f"{lease_name}.{lease.fence.number}-{number}")
        group.cancel_scope.cancel()
    await lease.release()
    await store.aclose()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
