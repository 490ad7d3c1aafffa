"""The PostgreSQL store when the server's disk is full: a real server, with its tables on a small disk."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from tests.postgres_server import running

from callboard.adapters.storage.threads import run_soon, soon_here
from callboard.ports.store import Append
from callboard.types.errors import StoreFull

psycopg = pytest.importorskip("psycopg", reason="the extra callboard[postgres] is not installed")

from tests.adapters.storage.postgres_stores import opened  # noqa: E402 - only with the extra

from callboard.adapters.storage.postgres.store import PostgresStore  # noqa: E402 - only with the extra

pytestmark = pytest.mark.anyio


@pytest.fixture
def small_disk() -> Iterator[tuple[Path, Callable[[str], object]]]:
    """Folder on a small disk of its own, and a function that gives it another size."""
    with tempfile.TemporaryDirectory(prefix="disk-", dir="/tmp") as name:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", name], check=False, capture_output=True
        )
        if mounted.returncode:
            pytest.skip("only root may mount a small disk")
        folder = Path(name) / "tables"
        folder.mkdir()
        os.chown(folder, 65_534, 65_534)  # the server's user
        Path(name).chmod(0o755)
        try:
            yield folder, lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", name], check=True)
        finally:
            subprocess.run(["umount", "-l", name], check=True)


async def fill(store: PostgresStore) -> None:
    while True:
        await store.commit(Append("s", os.urandom(100_000)))


async def test_commits_wait_for_room_on_the_server_s_disk_and_say_so(
    small_disk: tuple[Path, Callable[[str], object]],
) -> None:
    folder, resize = small_disk
    with running() as server:
        with psycopg.connect(server.url, autocommit=True) as other:
            other.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
            other.execute("CREATE DATABASE full_one TABLESPACE pg_default")
        url = server.url.replace("/postgres?", "/full_one?")
        async with opened(url, "w") as store:
            with psycopg.connect(url, autocommit=True) as other:
                for table in ("record", "row"):
                    other.execute(f"ALTER TABLE callboard.{table} SET TABLESPACE small")
            with pytest.raises(StoreFull, match="no room left at the server of the store"):
                await fill(store)
            written = await store.last("s")
            assert written > 0
            notes: list[str] = []
            told = anyio.Event()
            soon = soon_here()

            def tell(text: str) -> None:
                notes.append(text)
                run_soon(soon, told.set)

            with store.patience.lasting(tell):
                async with anyio.create_task_group() as group:
                    group.start_soon(store.commit, Append("s", os.urandom(100_000), expected=written))
                    await told.wait()
                    assert await store.last("s") == written, "reads go on"
                    resize("30m")
            assert ["no room left" in notes[0], "has room again: nothing was lost" in notes[-1]] == [True, True]
            assert await store.last("s") == written + 1
            assert await store.check() == ()
