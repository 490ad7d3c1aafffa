"""The lease of a session after its host was killed, and after the row of its host could not be written."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import anyio
import pytest

from callboard.adapters.storage.sqlite import open_store
from callboard.core.keys import host_key, host_lease
from callboard.sessions.lease import hold_lease, take_lease
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
