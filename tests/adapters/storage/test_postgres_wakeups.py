"""What wakes a follower or a watch of the PostgreSQL store: rings of other processes, and looks where they are lost."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from tests.postgres_server import PostgresServer

from callboard.ports.notifier import Notifier
from callboard.ports.store import Append, Put, Row

psycopg = pytest.importorskip("psycopg", reason="the extra callboard[postgres] is not installed")

from tests.adapters.storage.postgres_stores import opened  # noqa: E402 - only with the extra

from callboard.adapters.storage.postgres import presence, queries  # noqa: E402 - only with the extra
from callboard.adapters.storage.postgres import store as store_module  # noqa: E402 - only with the extra

pytestmark = pytest.mark.anyio


async def test_a_follower_hears_of_a_commit_whose_ring_was_lost(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with opened(server.url, str(tmp_path)) as here, opened(server.url, str(tmp_path)) as there:
        monkeypatch.setattr(store_module.Wakeups, "_ring", lambda self, presence: queries.last(0, "no ring"))
        async with here.follow("s") as records, here.watch("k") as rows:
            for number in range(1, 3):
                with anyio.move_on_after(0.2):
                    await anext(records)
                await there.commit(Append("s", b"%d" % number), Put("k", b"%d" % number))
                assert (await anext(records)).data == b"%d" % number
                assert await anext(rows) == Row("k", b"%d" % number, number)


async def test_a_follower_hears_of_a_commit_before_the_first_look(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The process that committed died before it rang."""
    began = threading.Event()
    look = store_module.Wakeups.look
    monkeypatch.setattr(store_module.Wakeups, "_ring", lambda self, presence: queries.last(0, "no ring"))
    monkeypatch.setattr(store_module.Wakeups, "look", lambda self: look(self) if began.is_set() else None)
    async with (
        opened(server.url, str(tmp_path)) as here,
        opened(server.url, str(tmp_path)) as there,
        here.watch("k") as rows,
        anyio.create_task_group() as group,
    ):
        found = Received(rows, group)
        await anyio.sleep(1.5)  # until it listens
        await there.commit(Put("k", b"1"))
        began.set()
        assert await found.next() == Row("k", b"1", 1)
        group.cancel_scope.cancel()


async def test_a_follower_that_begins_while_its_row_is_renewed_is_rung(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody rings a process before its row says that it listens."""
    monkeypatch.setattr(presence, "BEAT_SECONDS", 3.0)
    monkeypatch.setattr(store_module.Wakeups, "look", lambda self: None)
    renewed, follows = threading.Event(), threading.Event()
    run = presence.run

    def run_slowly(connection: Any, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        rows = run(connection, sql, parameters)
        if "SET seen" in sql and not renewed.is_set():
            renewed.set()
            follows.wait(10)
        return rows

    async with (
        opened(server.url, str(tmp_path)) as here,
        opened(server.url, str(tmp_path)) as there,
        anyio.create_task_group() as group,
    ):
        await here.announce(b"here")
        await anyio.sleep(0.3)  # its first beat
        monkeypatch.setattr(presence, "run", run_slowly)
        group.start_soon(here.acquire, "lease")
        await anyio.to_thread.run_sync(renewed.wait)
        async with here.watch("k") as rows:
            found = Received(rows, group)
            await anyio.sleep(0.2)  # it waits for the first ring
            follows.set()
            await anyio.sleep(0.3)
            await there.commit(Put("k", b"1"))
            assert await found.next() == Row("k", b"1", 1)
            group.cancel_scope.cancel()


class Received:
    """Rows of a watch, whose reader waits all the time, as the runtime's do."""

    def __init__(self, rows: AsyncIterator[Row], group: TaskGroup) -> None:
        self._rows: list[Row] = []
        self._changed = Notifier()
        group.start_soon(self._read, rows)

    async def _read(self, rows: AsyncIterator[Row]) -> None:
        async for row in rows:
            self._rows.append(row)
            self._changed.notify()

    async def next(self) -> Row:
        with anyio.fail_after(10):
            await self._changed.until(lambda: bool(self._rows))
        return self._rows.pop(0)


async def test_a_watch_returns_what_a_slow_transaction_commits_late(server: PostgresServer, tmp_path: Path) -> None:
    """A transaction that began before another one was seen commits after it: its number is the lower one."""
    async with opened(server.url, str(tmp_path)) as store:
        await store.commit(Put("k/slow", b"1"), Put("k/fast", b"1"))
        with psycopg.connect(server.url) as slow:
            slow.execute(
                "UPDATE callboard.row SET revision = 2, changed = pg_current_xact_id(), value = NULL, crc = 0 "
                "WHERE space = %s AND key = 'k/slow'",
                (store.space,),
            )
            async with store.watch("k/") as rows:
                assert [(await anext(rows)).key for _ in range(2)] == ["k/fast", "k/slow"]
                for number in range(2, 5):
                    await store.commit(Put("k/fast", b"%d" % number))
                    assert (await anext(rows)).revision == number
                slow.commit()
                await store.commit(Put("k/fast", b"5"))
                found = [await anext(rows), *rows.at_hand()]
                while len(found) < 2:
                    found.append(await anext(rows))
                assert {(row.key, row.revision) for row in found} == {("k/slow", 2), ("k/fast", 5)}
