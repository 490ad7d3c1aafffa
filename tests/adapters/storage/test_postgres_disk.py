"""The PostgreSQL store when the server's disk is full: a real server, with its tables on a small disk."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from tests.postgres_server import SERVER_USER, running
from tests.small_disk import SmallDisk, small_disk

from callboard.adapters.storage.threads import run_soon, soon_here
from callboard.ports.store import Append
from callboard.types.errors import StoreFull

psycopg = pytest.importorskip("psycopg", reason="the extra callboard[postgres] is not installed")

from tests.adapters.storage.postgres_stores import opened  # noqa: E402 - only with the extra

from callboard.adapters.storage.postgres.store import PostgresStore  # noqa: E402 - only with the extra

pytestmark = pytest.mark.anyio


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    with small_disk("3m") as mounted:
        yield mounted


@contextmanager
def server_with(disk: SmallDisk) -> Generator[str]:
    """Yield the address of a new server. `move` puts tables of it on the disk."""
    folder = disk.folder / "tables"
    folder.mkdir()
    os.chown(folder, SERVER_USER, SERVER_USER)
    with running() as server:
        with psycopg.connect(server.url, autocommit=True) as other:
            other.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
        yield server.url


def move(url: str, *tables: str) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        for table in tables:
            other.execute(f"ALTER TABLE callboard.{table} SET TABLESPACE small")


async def endlessly(work: Callable[[], Awaitable[object]]) -> None:
    while True:
        await work()


async def fill(store: PostgresStore) -> None:
    await endlessly(lambda: store.commit(Append("s", os.urandom(100_000))))


class Notes:
    """What a host is told by its store, and when."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.told = anyio.Event()
        self._soon = soon_here()

    def tell(self, text: str) -> None:
        self.texts.append(text)
        run_soon(self._soon, self.told.set)

    def of_a_full_disk(self) -> bool:
        return "no room left" in self.texts[0] and "has room again: nothing was lost" in self.texts[-1]


async def test_commits_wait_for_room_on_the_server_s_disk_and_say_so(disk: SmallDisk) -> None:
    with server_with(disk) as url:
        async with opened(url, "w") as store:
            move(url, "record", "row")
            with pytest.raises(StoreFull, match="no room left at the server of the store"):
                await fill(store)
            written = await store.last("s")
            assert written > 0
            notes = Notes()
            with store.patience.waiting_without_limit(notes.tell):
                async with anyio.create_task_group() as group:
                    group.start_soon(store.commit, Append("s", os.urandom(100_000), expected=written))
                    await notes.told.wait()
                    assert await store.last("s") == written, "reads go on"
                    disk.resize("30m")
            assert ["no room left" in notes.texts[0], "has room again: nothing was lost" in notes.texts[-1]] == [
                True
            ] * 2
            assert await store.last("s") == written + 1
            assert await store.check() == ()


@pytest.mark.parametrize(
    "work",
    [
        lambda store: store.put_blob(os.urandom(100_000)),
        lambda store: store.acquire("a lease" * 50),
        lambda store: store.announce(b"a host"),
    ],
    ids=["blob", "lease", "announcement"],
)
async def test_a_host_waits_for_room_with_everything_that_it_writes(
    disk: SmallDisk, work: Callable[[PostgresStore], Coroutine[Any, Any, object]]
) -> None:
    with server_with(disk) as url:
        async with opened(url, "w") as store, opened(url, "v") as another:
            move(url, "record", "blob", "lease", "host")
            with pytest.raises(StoreFull):
                await fill(store)
            with pytest.raises(StoreFull, match="no room left at the server of the store"):
                await endlessly(partial(work, another))
            notes = Notes()
            with another.patience.waiting_without_limit(notes.tell):
                async with anyio.create_task_group() as group:
                    group.start_soon(work, another)
                    await notes.told.wait()
                    assert await store.last("s") > 0, "reads go on"
                    disk.resize("30m")
            assert notes.of_a_full_disk()
