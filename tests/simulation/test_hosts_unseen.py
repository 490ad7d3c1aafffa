"""A host that cannot be watched from here: in another container, or in the last moment of its life."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from callboard.adapters.storage.sqlite import open_store
from callboard.core.keys import host_lease
from callboard.ports.store import LeaseHolder
from callboard.sessions import lease as taking_over

pytestmark = pytest.mark.anyio


async def test_its_end_is_seen_by_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking_over, "open_pid", lambda pid, started: None)
    monkeypatch.setattr(taking_over, "LOOK", 0.01)
    here, there = await open_store(tmp_path), await open_store(tmp_path)
    try:
        lease = await there.acquire(host_lease("s1"))
        assert not isinstance(lease, LeaseHolder)
        holder = await here.holder(host_lease("s1"))
        assert holder is not None
        ended = anyio.Event()

        async def watch() -> None:
            await taking_over.host_died(here, "s1", holder)
            ended.set()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            with anyio.move_on_after(0.2):
                await ended.wait()
            assert not ended.is_set(), "it holds its lease"
            await lease.release()
            with anyio.fail_after(180):
                await ended.wait()
    finally:
        await here.aclose()
        await there.aclose()
