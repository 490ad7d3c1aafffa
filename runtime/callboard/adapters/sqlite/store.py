"""The store object: what `callboard.ports.store` promises, put together from the parts beside this file.

Callers may live in any event loop and any thread of the process that opened it; a forked child may not use it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar
from weakref import WeakMethod

import anyio
import apsw
from anyio import to_thread

from callboard.adapters.feed import Bells, Feed, Fetch
from callboard.adapters.sqlite import blobs, health, lease, opening, statements
from callboard.adapters.sqlite.doorbell import Doorbell
from callboard.adapters.sqlite.faults import translated
from callboard.adapters.sqlite.health import DamageReport
from callboard.adapters.sqlite.schema import connect
from callboard.adapters.sqlite.threads import Readers, Soon, run_soon, soon_here
from callboard.adapters.sqlite.writer import Writer
from callboard.ports.store import Changes, Fence, Lease, LeaseHolder, Record, Row, Write
from callboard.words.errors import StoreDamaged

T = TypeVar("T")

Durability = Literal["full", "process"]
"""`full` survives a power cut; `process` only the death of processes, for a third of the time a commit takes."""

READERS = 2


async def open_store(folder: Path, *, durability: Durability = "full") -> SqliteStore:
    """Open the store in `folder`, made (0700) if it is not there; check it; tell in `damage` what was set aside.

    Raises `WorkspaceUnusable` (not ours, read-only, a network file system, a newer schema), `StoreFull`, and
    `StoreDamaged` when the database cannot be used: it is then kept under another name, which the message tells.
    """
    opened = await to_thread.run_sync(partial(opening.open_folder, Path(folder), durable=durability == "full"))
    return SqliteStore(opened)


@dataclass(frozen=True)
class _Sleeper:
    """A feed and the event loop that it waits in."""

    soon: Soon
    feed: Feed[Any]


class SqliteStore:
    """A `Store` in one folder of this machine. Made by `open_store`."""

    def __init__(self, opened: opening.Opened) -> None:
        self._opened = opened
        self._folder, self._durable = opened.folder, opened.durable
        self._damage = opened.damage
        self._pid = os.getpid()
        self._closed = False
        self._bells = Bells[_Sleeper]()
        self._leases: list[lease.HeldLease] = []
        self._writer = Writer(
            opened.folder,
            opened.connection,
            opened.write_lock,
            self._committed,
            lambda: self._wake(self._bells.everyone()),
        )
        self._readers = Readers(partial(connect, opened.folder, durable=opened.durable, reading=True), READERS)
        self._doorbell = Doorbell(opened.folder / "run", self._rung, self._writer.look)
        forked = WeakMethod(self._forked)
        os.register_at_fork(after_in_child=lambda: (method := forked()) and method())

    @property
    def damage(self) -> tuple[DamageReport, ...]:
        """All that was found damaged and set aside, at this opening, since then, or earlier and still kept."""
        return self._damage

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        self._usable()
        return await self._writer.do(lambda transaction: transaction.write_all(writes, fence))

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        return await self._ask(lambda connection: statements.read(connection, stream, after, limit))

    async def last(self, stream: str) -> int:
        return await self._ask(lambda connection: statements.last(connection, stream))

    @asynccontextmanager
    async def follow(self, stream: str, after: int = 0) -> AsyncGenerator[AsyncIterator[Record], None]:
        async def fetch(position: int) -> tuple[Sequence[Record], int]:
            records = await self.read(stream, position, limit=1_000)
            return records, records[-1].seq if records else position

        async with self._feeding(fetch, after, stream=stream) as feed:
            yield feed

    async def get(self, key: str) -> Row | None:
        return await self._ask(lambda connection: statements.get(connection, key))

    async def keys(self, prefix: str) -> Sequence[Row]:
        return await self._ask(lambda connection: statements.keys(connection, prefix))

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncGenerator[Changes, None]:
        async def fetch(position: int) -> tuple[Sequence[Row], int]:
            return await self._ask(lambda connection: statements.changes(connection, prefix, position))

        async with self._feeding(fetch, 0, prefix=prefix) as feed:
            yield feed

    async def put_blob(self, data: bytes) -> str:
        self._usable()
        try:
            return await to_thread.run_sync(partial(blobs.put, self._folder, data, durable=self._durable))
        except OSError as error:
            raise translated(error, self._folder) from error

    async def get_blob(self, digest: str) -> bytes:
        self._usable()
        try:
            return await to_thread.run_sync(blobs.get, self._folder, digest)
        except OSError as error:
            raise translated(error, self._folder) from error
        except StoreDamaged:
            await self._retell()
            raise

    async def acquire(self, lease_name: str) -> Lease | LeaseHolder:
        self._usable()
        taking = lease.Taking(self._folder, lease_name)
        taken: lease.HeldLease | LeaseHolder | None = None
        with anyio.CancelScope(shield=True):  # a caller that is cancelled here would hold a lease without knowing it
            taken = await self._writer.do(taking.work, taking.undo)
        assert taken is not None
        if isinstance(taken, lease.HeldLease):
            self._leases.append(taken)
        return taken

    async def holder(self, lease_name: str) -> LeaseHolder | None:
        self._usable()
        return await self._writer.do(partial(lease.holder, self._folder, lease_name))

    async def check(self) -> tuple[DamageReport, ...]:
        """Read everything, set aside what fails its checksum, and tell all there is to tell. As slow as the disk."""
        for damage in await self._ask(lambda connection: list(health.scan(connection))):
            await self._writer.do(health.set_aside(damage))
        await self._retell()
        return self._damage

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
            for sleeper in self._bells.everyone():
                run_soon(sleeper.soon, sleeper.feed.end)
            await to_thread.run_sync(self._stop)

    def _stop(self) -> None:
        self._readers.stop()
        self._writer.stop()
        self._doorbell.close()  # after the last commit, which others are to hear of
        for held in self._leases:  # after the last commit that was made under them
            held.drop()
        opening.close_folder(self._opened)

    def _usable(self) -> None:
        if self._closed:
            raise RuntimeError("the store is closed")
        if os.getpid() != self._pid:
            raise RuntimeError("this store belongs to the process that opened it: open it again in the child")

    async def _ask(self, look: Callable[[apsw.Connection], T]) -> T:
        """What the look finds. Sets aside and tells what is damaged."""
        self._usable()
        try:
            return await self._readers.do(look)
        except statements.Damage as damage:
            await self._writer.do(health.set_aside(damage))
            await self._retell()
            raise StoreDamaged(
                f"{damage.what} in {self._folder} failed its checksum and was set aside (table damaged). "
                "It is no longer read; everything else is"
            ) from None
        except (apsw.Error, OSError) as error:
            raise translated(error, self._folder) from error

    async def _retell(self) -> None:
        self._damage = await self._readers.do(lambda connection: health.reports(connection, self._folder))

    @asynccontextmanager
    async def _feeding(
        self, fetch: Fetch[T], position: int, *, stream: str | None = None, prefix: str | None = None
    ) -> AsyncGenerator[Feed[T], None]:
        self._usable()

        async def fetch_if_open(position: int) -> tuple[Sequence[T], int]:
            # Rung a moment before the store closes: find nothing, and be ended instead of failing.
            return ([], position) if self._closed else await fetch(position)

        sleeper = _Sleeper(soon_here(), Feed(fetch_if_open, position))
        self._bells.hang(sleeper, stream=stream, prefix=prefix)
        self._doorbell.listen(True)
        try:
            yield sleeper.feed
        finally:
            self._bells.remove(sleeper)
            if not self._bells:
                self._doorbell.listen(False)

    def _committed(self, touched: statements.Touched) -> None:
        """In the writer's thread, after each transaction."""
        self._wake(self._bells.touched(touched.streams, touched.keys))
        self._doorbell.ring(touched.streams, touched.keys)

    def _rung(self, names: set[str] | None) -> None:
        """In the doorbell's thread, when another process committed."""
        if names is None:
            self._wake(self._bells.everyone())
            return
        streams = [name[1:] for name in names if name.startswith("s")]
        self._wake(self._bells.touched(streams, [name[1:] for name in names if name.startswith("k")]))

    def _wake(self, sleepers: set[_Sleeper]) -> None:
        for sleeper in sleepers:
            run_soon(sleeper.soon, sleeper.feed.ring)

    def _forked(self) -> None:
        """In a forked child: let go of the parent's locks, so that they end with the parent."""
        for held in self._leases:
            held.abandon()
        self._opened.abandon()
