"""The lease of a session after its host was killed, and after the row of its host could not be written."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskStatus

from callboard.adapters.storage.sqlite import open_store
from callboard.core.keys import host_key, host_lease
from callboard.ports.store import LeaseHolder, Row, Store
from callboard.sessions.lease import hold_lease, take_lease, until_free
from callboard.types.errors import StoreFull

HOST = """
    import ctypes, os, signal, sys
    from pathlib import Path
    import anyio
    from callboard.adapters.storage.sqlite import open_store
    from callboard.sessions.lease import take_lease

    async def host():
        store = await open_store(Path(sys.argv[1]), durability="process")
        await take_lease(store, "s1")
        if ctypes.PyDLL(None).fork() == 0:  # as subprocess does: what Python does after a fork is left out
            os.write(1, b"killed\\n")
            os.read(0, 1)  # a child before its exec
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    anyio.run(host)
"""


@pytest.mark.anyio
async def test_the_lease_of_a_killed_host_is_free_once_its_unfinished_child_is_gone(tmp_path: Path) -> None:
    host = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(HOST), str(tmp_path / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert host.stdin is not None
    assert host.stdout is not None
    with host:
        assert host.stdout.readline() == b"killed\n"
        assert host.wait() == -9
        store = await open_store(tmp_path / "store", durability="process")
        try:
            threading.Timer(0.5, host.stdin.close).start()
            lease = await take_lease(store, "s1")
            await lease.release()
        finally:
            await store.aclose()


async def _no_room(*writes: object, fence: object = None) -> tuple[int, ...]:
    raise StoreFull("no room left")


async def _waits(*writes: object, fence: object = None) -> tuple[int, ...]:
    await anyio.sleep_forever()
    return ()


@pytest.mark.anyio
@pytest.mark.parametrize("commit", [_no_room, _waits], ids=["full disk", "cancelled"])
async def test_a_lease_whose_row_cannot_be_written_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: object
) -> None:
    store = await open_store(tmp_path / "store", durability="process")
    try:
        with monkeypatch.context() as patched, anyio.move_on_after(0.1):
            patched.setattr(store, "commit", commit)
            with pytest.raises(StoreFull):
                async with hold_lease(store, "s1"):
                    raise AssertionError("it has no row")
        assert await store.holder(host_lease("s1")) is None
        async with hold_lease(store, "s1") as (_, row):
            stored = await store.get(host_key("s1"))
            assert stored is not None
            assert stored.value == row.encode()
        assert await store.get(host_key("s1")) is None
    finally:
        await store.aclose()


async def _lives(store: Store, session: str, holder: LeaseHolder) -> None:
    await anyio.sleep_forever()


@pytest.mark.anyio
async def test_a_session_that_is_left_while_its_host_is_looked_at_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host leaves in order, and its process lives on: nothing but its row says so."""
    store = await open_store(tmp_path / "store", durability="process")
    get, leave, left = store.get, anyio.Event(), anyio.Event()

    async def get_while_it_leaves(key: str) -> Row | None:
        row = await get(key)
        if not leave.is_set():
            leave.set()
            await left.wait()
        return row

    async def host(*, task_status: TaskStatus[None]) -> None:
        async with hold_lease(store, "s1"):
            task_status.started()
            await leave.wait()
        left.set()

    try:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                await group.start(host)
                monkeypatch.setattr(store, "get", get_while_it_leaves)
                await until_free(store, "s1", _lives)
        assert await store.holder(host_lease("s1")) is None
    finally:
        await store.aclose()
