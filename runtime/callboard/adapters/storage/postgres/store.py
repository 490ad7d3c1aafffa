"""The PostgreSQL store: implements `callboard.ports.store` with the other modules of this package.

Callers may run in any event loop and any thread of the process that opened the store; a forked child may not use it.
Four threads work for them: one commits (`writer`), two read (`readers`), and one is present (`presence`). The last one
begins with the first lease or follower, so a command that only reads has none.

A blob is rows of at most 1 MB, because the server would otherwise hold a large one in memory several times.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Literal, TypeVar

import anyio
import psycopg
from anyio import to_thread
from anyio.lowlevel import checkpoint

from callboard.adapters.storage.durable import DamageReport, DurableStore
from callboard.adapters.storage.feed import DurableFeeds
from callboard.adapters.storage.patience import LOCK_WAIT, TELL_AFTER, ObstacleWait, Patience, Tell, with_room
from callboard.adapters.storage.postgres import queries, schema
from callboard.adapters.storage.postgres.address import AnswerWatch, Connection, ServerAddress, connect
from callboard.adapters.storage.postgres.faults import is_away, translate_error
from callboard.adapters.storage.postgres.presence import SILENT_SECONDS, Callbacks, Presence
from callboard.adapters.storage.postgres.queries import PostgresReaders, Query, ValueMismatch
from callboard.adapters.storage.postgres.writer import CommitHooks, PostgresWriter
from callboard.adapters.storage.threads import in_own_thread
from callboard.ports.store import Changes, Fence, Lease, LeaseHolder, PresentProcess, Record, Records, Row, Write
from callboard.types.errors import ValueDamaged
from callboard.types.late_pattern import late_pattern

T = TypeVar("T")

Durability = Literal["full", "process"]
"""`full` survives the server's loss of power. `process` may lose the last second of commits with the server."""
READERS = 2
LEAVING_SECONDS = 5.0
"""Seconds that a closing store waits for the server's last answers."""
_PAGE = 1_000


async def open_store(
    address: ServerAddress, space: str, *, durability: Durability = "full", notice: Tell | None = None
) -> PostgresStore:
    """Open the store of the workspace `space` on a server, and create what is missing.

    `notice` is called from another thread with the reason for a wait of the opening, or of a write without a host.
    Raises `WorkspaceUnusable` (the server refuses, is too old, or has a newer schema), `StoreBusy` (it cannot be
    reached), `StoreFull`, `StoreDamaged`.
    """
    patience = Patience(notice)
    try:
        number, damage = await in_own_thread(partial(_prepare, address, space, patience))
    except BaseException:
        patience.close()  # the thread of a cancelled opening ends soon
        raise
    return PostgresStore(address, number, durable=durability == "full", patience=patience, damage=damage)


def _prepare(address: ServerAddress, space: str, patience: Patience) -> tuple[int, tuple[DamageReport, ...]]:
    wait = ObstacleWait(patience, alone=LOCK_WAIT, tell_after=TELL_AFTER)
    while True:
        try:
            with connect(address.url) as connection:
                number = schema.prepare(connection, address, space)
                return number, queries.damage_reports(connection, address, number)
        except psycopg.Error as error:
            failure = translate_error(error, address)
            if not is_away(error) or not wait.goes_on(f"{failure}. Waiting for that"):
                raise failure from error


class PostgresStore(DurableStore):
    """Store of one workspace on a server, created by `open_store`."""

    def __init__(
        self,
        address: ServerAddress,
        space: int,
        *,
        durable: bool,
        patience: Patience,
        damage: tuple[DamageReport, ...],
    ) -> None:
        self.address = address
        self.space = space
        """Number of the workspace in the tables."""
        self.patience = patience
        """Waiting rules for a server that cannot be reached; a host of sessions makes waits unlimited."""
        self._damage = damage
        self._durable = durable
        self._pid = os.getpid()
        self._closed = False
        self._watch = AnswerWatch(patience)
        self._readers = PostgresReaders(address, patience, self._watch, count=READERS)
        self._feeds = DurableFeeds()
        self._wakeups = Wakeups(self._feeds, space, self._readers)
        self._presence = Presence(
            address, space, patience, self._watch, callbacks=Callbacks(self._feeds.handle_ring, self._wakeups.look)
        )
        self._writer = PostgresWriter(
            address,
            space,
            patience,
            self._watch,
            hooks=CommitHooks(self._committed, lambda: self._presence.host),
            durable=durable,
        )

    @property
    def damage(self) -> tuple[DamageReport, ...]:
        """Return all damage that was found and set aside, and is still stored."""
        return self._damage

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        self._usable()
        if not writes and fence is None:
            await checkpoint()
            return ()
        return await self._writer.commit(writes, fence)

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        return await self._ask(queries.read(self.space, stream, after, limit))

    async def last(self, stream: str) -> int:
        return await self._ask(queries.last(self.space, stream))

    @asynccontextmanager
    async def follow(self, stream: str, after: int = 0) -> AsyncGenerator[Records, None]:
        async def fetch(position: int) -> tuple[Sequence[Record], int]:
            records = await self.read(stream, position, limit=_PAGE)
            return records, records[-1].seq if records else position

        self._usable()
        async with self._feeds.open(fetch, after, listen=self._presence.listen, stream=stream) as feed:
            yield feed

    async def get(self, key: str) -> Row | None:
        return await self._ask(queries.get(self.space, key))

    async def keys(self, prefix: str) -> Sequence[Row]:
        return await self._ask(queries.keys(self.space, prefix))

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncGenerator[Changes, None]:
        position_of_watch = queries.WatchPosition(self.space, prefix)

        async def fetch(position: int) -> tuple[Sequence[Row], int]:
            rows = await self._ask(position_of_watch.next(position))
            try:
                return position_of_watch.take(rows, position)
            except ValueMismatch as mismatch:
                raise await self._set_aside(mismatch) from None

        self._usable()
        async with self._feeds.open(fetch, 0, listen=self._presence.listen, prefix=prefix) as feed:
            yield feed

    async def put_blob(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        await self._with_room(partial(self._put_blob, digest, data))
        return digest

    async def _put_blob(self, digest: str, data: bytes) -> None:
        if await self._ask(queries.has_blob(self.space, digest)):
            return
        parts = schema.blob_parts(data)
        # The first part comes last: with it the blob is complete, and no reader finds half of one.
        for number in reversed(range(len(parts))):
            await self._ask(queries.put_blob_part(self.space, digest, number, parts))

    async def _with_room(self, work: Callable[[], Awaitable[T]]) -> T:
        again = f"the server of the store {self.address} has room again: nothing was lost"
        return await with_room(self.patience, work, again=again)

    async def get_blob(self, digest: str) -> bytes:
        self._usable()
        if not _DIGEST.fullmatch(digest):
            raise KeyError(digest)
        data = await self._ask(queries.get_blob(self.space, digest))
        if data is None:
            raise KeyError(digest)
        if hashlib.sha256(data).hexdigest() != digest:
            await self._by_itself(partial(queries.set_aside_blob, space=self.space, digest=digest))
            await self._reread_damage()
            raise ValueDamaged(
                f"blob {digest} no longer matches its digest: it was set aside (table callboard.damaged)",
                f"blob/{digest}",
            )
        return data

    async def acquire(self, lease_name: str) -> Lease | LeaseHolder:
        self._usable()
        got: Fence | LeaseHolder | None = None
        with anyio.CancelScope(shield=True):  # a caller that is cancelled here would hold a lease without knowing it
            got = await self._with_room(partial(self._presence.acquire, lease_name))
        assert got is not None, "a shielded scope was cancelled"
        if isinstance(got, LeaseHolder):
            return got
        return PostgresLease(got, self._presence)

    async def holder(self, lease_name: str) -> LeaseHolder | None:
        self._usable()
        return await self._presence.holder(lease_name)

    async def announce(self, about: bytes) -> None:
        self._usable()
        await self._with_room(partial(self._presence.announce, about))

    async def present(self) -> Sequence[PresentProcess]:
        return await self._ask(self._presence.present())

    async def describe(self) -> Mapping[str, str]:
        self._usable()
        facts = await self._by_itself(partial(queries.describe, space=self.space))
        return {"place": str(self.address), **facts, "durability": "full" if self._durable else "process"}

    async def check(self) -> tuple[DamageReport, ...]:
        """Read everything, set aside values that fail their checksum, and return all damage. As slow as the server."""
        self._usable()
        for mismatch in await self._by_itself(partial(queries.scan, space=self.space)):
            await self._set_aside(mismatch)
        await self._reread_damage()
        return self._damage

    async def stored_bytes(self, names: Sequence[str]) -> int:
        return await self._by_itself(partial(queries.stored_bytes, space=self.space, names=names))

    async def erase_streams(self, streams: Sequence[str]) -> None:
        await self._by_itself(partial(queries.erase_streams, space=self.space, names=streams))

    async def erase_keys(self, keys: Sequence[str]) -> None:
        await self._by_itself(partial(queries.erase_keys, space=self.space, names=keys))

    async def erase_blobs(self, unused: float) -> tuple[int, int]:
        return await self._by_itself(partial(queries.erase_blobs, space=self.space, unused=unused))

    async def _by_itself(self, work: Callable[[Connection], T]) -> T:
        """Return the result of rare work, on a connection of its own in a thread."""
        self._usable()
        return await in_own_thread(partial(self._on_connection, work))

    @contextmanager
    def connection(self) -> Generator[Connection]:
        """Open a connection for long work in another thread. Closing the store breaks it. Raises `psycopg.Error`."""
        with self._watch.connect(self.address.url) as connection, self._watch.break_after(connection, float("inf")):
            yield connection

    async def cut_off(self, fence: Fence | None = None) -> str:
        # Of the lease, which may be lost already: nothing watches it while its session is opened
        # (test_a_lease_that_was_lost_before_its_watch_began_is_noticed).
        period = self._presence.period_of(fence)
        while (seconds := self._presence.cut_off_in(period)) > 0:
            with anyio.move_on_after(min(seconds, SILENT_SECONDS)):
                await self._presence.until_cut_off(period)
        self._presence.cut_off(period)
        return (
            f"the server of the store {self.address} could not be reached for {SILENT_SECONDS:g} s. Another machine "
            "may take over, so this process has ended its agents and their commands. Nothing that was stored is lost"
        )

    async def reachable(self) -> None:
        self._usable()
        await self._presence.reachable()

    async def patiently(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, run in a thread. It writes files of this machine, which need no server."""
        return await to_thread.run_sync(work)

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
            self.patience.close()
            self._feeds.close()
            await to_thread.run_sync(self._stop)

    def _stop(self) -> None:
        # A server that does not answer must not keep a process from leaving.
        late = threading.Timer(0.0 if self._watch.silent else LEAVING_SECONDS, self._watch.give_up)
        late.daemon = True
        late.start()
        self._writer.stop()
        self._readers.stop()  # after the last commit, of which other processes must be notified
        self._presence.stop()  # after the last commit under its leases
        late.cancel()
        self._watch.give_up()
        self._watch.stop()

    def _usable(self) -> None:
        if self._closed:
            raise RuntimeError("the store is closed")
        if os.getpid() != self._pid:
            raise RuntimeError("this store belongs to the process that opened it: open it again in the child")

    async def _ask(self, query: Query[T]) -> T:
        """Return the result of the read. Sets aside and reports damaged data."""
        self._usable()
        try:
            return await self._readers.do(query)
        except ValueMismatch as mismatch:
            raise await self._set_aside(mismatch) from None

    async def _set_aside(self, mismatch: ValueMismatch) -> ValueDamaged:
        await self._by_itself(partial(queries.set_aside, space=self.space, mismatch=mismatch))
        await self._reread_damage()
        self._committed((), [mismatch.key] if mismatch.key else [])
        return ValueDamaged(
            f"{mismatch.what} in {self.address} failed its checksum and was set aside (table callboard.damaged). "
            "It is no longer read; everything else is",
            mismatch.where,
        )

    async def _reread_damage(self) -> None:
        self._damage = await self._by_itself(partial(queries.damage_reports, address=self.address, space=self.space))

    def _on_connection(self, work: Callable[[Any], T]) -> T:
        """Run rare work on a connection of its own. Raises the runtime's errors; blocks."""
        try:
            with self.connection() as connection:
                return work(connection)
        except psycopg.Error as error:
            raise translate_error(error, self.address) from error

    def _committed(self, streams: Collection[str], keys: Collection[str], ring: bool = True) -> None:
        """Wake the waiting readers, here and elsewhere. Called in the writer's thread, after each transaction."""
        self._feeds.wake(streams, keys)
        if ring:
            self._wakeups.ring(streams, keys, self._presence)


_DIGEST = late_pattern(r"[0-9a-f]{64}")


class PostgresLease(Lease):
    """A lease of this process."""

    def __init__(self, fence: Fence, presence: Presence) -> None:
        self._fence = fence
        self._presence = presence

    @property
    def fence(self) -> Fence:
        return self._fence

    async def release(self) -> None:
        await checkpoint()
        await self._presence.release(self._fence)


STREAMS_PER_LOOK = 2_000
"""Followed streams that a look asks for each second. With more, each is asked for more rarely, so that a host of a
thousand sessions does not keep the server busy with looks."""


class Wakeups:
    """Rings to other processes, and checks of what they have changed. Thread-safe."""

    def __init__(self, feeds: DurableFeeds, space: int, readers: PostgresReaders) -> None:
        self._feeds = feeds
        self._space = space
        self._readers = readers
        self._lock = threading.Lock()
        self._streams: set[str] = set()
        self._keys: set[str] = set()
        self._ringing = False
        self._ends: dict[str, int] = {}
        self._asked = 0
        self._position = 0

    def ring(self, streams: Collection[str], keys: Collection[str], presence: Presence) -> None:
        """Wake the readers of these streams and keys in other processes.

        A ring is one statement for everything that was committed until a thread takes it, so many commits cost few
        rings, and none waits for one.
        """
        with self._lock:
            self._streams.update(streams)
            self._keys.update(keys)
            if self._ringing:
                return
            self._ringing = True
        self._readers.tell(lambda: self._ring(presence))

    def _ring(self, presence: Presence) -> Query[None]:
        with self._lock:
            streams, self._streams = self._streams, set()
            keys, self._keys = self._keys, set()
            self._ringing = False
        return presence.ring(sorted(streams), sorted(keys))

    def look(self) -> None:
        """Ask the server what has changed, and wake the readers of it."""
        self._readers.tell(self._look_at_keys)
        if streams := self._due_streams():
            self._readers.tell(lambda: self._look_at_streams(streams))

    def _due_streams(self) -> list[str]:
        streams = self._feeds.streams()
        if len(streams) <= STREAMS_PER_LOOK:
            return list(streams)
        self._asked = self._asked % len(streams)
        due = streams[self._asked : self._asked + STREAMS_PER_LOOK]
        self._asked += STREAMS_PER_LOOK
        return list(due)

    def _look_at_streams(self, streams: list[str]) -> Query[None]:
        query = queries.ends(self._space, streams)

        def decode(rows: queries.Rows) -> None:
            ends = query.decode(rows)
            grown = [stream for stream, end in ends.items() if self._ends.get(stream) != end]
            self._ends.update(ends)
            self._feeds.wake(grown, ())

        return Query(query.sql, query.parameters, decode)

    def _look_at_keys(self) -> Query[None]:
        query = queries.changed_keys(self._space, self._position)

        def decode(rows: queries.Rows) -> None:
            first = not self._position
            keys, self._position = query.decode(rows)
            if first:
                # It names no keys, and the rings of what changed since the readers began may be lost
                # (test_a_follower_hears_of_a_commit_before_the_first_look).
                self._feeds.handle_ring(None)
            else:
                self._feeds.wake((), keys)

        return Query(query.sql, query.parameters, decode)
