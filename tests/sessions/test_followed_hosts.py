"""A process that follows a session goes from one host to the next."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.keys import host_key, queue_key, session_key
from callboard.ports.model import Delta
from callboard.ports.store import Delete, LeaseHolder, Put
from callboard.sessions import attached, lease
from callboard.sessions.attached import AttachedSession
from callboard.sessions.places import find_places
from callboard.types import events as ev
from callboard.types.records import Envelope, HostAbout, HostRow, QueuedSession, SessionRow

pytestmark = pytest.mark.anyio
ONE, THREE = LeaseHolder(1, 5.0, "one"), LeaseHolder(1, 5.0, "three")
"""Two containers that started at once: only their machines differ."""


class LeasedStore(MemoryStore):
    """A store whose lease of the session is held by a process of another machine."""

    holds: LeaseHolder | None = ONE

    async def holder(self, lease_name: str) -> LeaseHolder | None:
        await anyio.lowlevel.checkpoint()
        return self.holds


class Notices:
    """Lines for the person."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.come = anyio.Event()

    def on_event(self, agent: str, seq: int, event: ev.Event) -> None: ...
    def on_mail(self, envelope: Envelope) -> None: ...
    def on_delta(self, agent: str, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.come.set()


def host_row(holder: LeaseHolder) -> Put:
    return Put(host_key("s1"), HostRow(pid=holder.pid, started=holder.started, machine=holder.machine).encode())


@pytest.mark.parametrize("announced", [True, False], ids=["with its row", "before its row"])
async def test_a_host_with_the_same_pid_and_start_time_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, announced: bool
) -> None:
    monkeypatch.setattr(lease, "LOOK", 0.01)
    store = LeasedStore()
    session = SessionRow(id="s1", workspace=str(tmp_path), created_at=0.0)
    await store.commit(Put(session_key("s1"), session.encode()), host_row(ONE))
    notices = Notices()
    places = find_places(tmp_path, writable=False)
    followed = AttachedSession(session, places, store, observers=[notices], approvers=[])
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            await group.start(followed.follow, ONE)
            if announced:
                await store.commit(host_row(THREE))
            store.holds = THREE
            await notices.come.wait()
            assert notices.texts == [
                "process 1 on three takes over the session from process 1 on one; this screen follows it"
            ]
            assert followed.where == "process 1 on three"
            await store.commit(host_row(THREE))
            await store.commit(Delete(host_key("s1")))
            store.holds = None
            end = await followed.wait_finished()
            assert end.exit_code == 0, "the last host left in order"
            group.cancel_scope.cancel()


async def test_a_follower_waits_while_a_serving_host_is_about_to_take_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LOOK", 0.01)
    monkeypatch.setattr(attached, "REPLACED_WITHIN", 0.02)
    store = LeasedStore()
    session = SessionRow(id="s1", workspace=str(tmp_path), created_at=0.0)
    queued = Put(queue_key("s1"), QueuedSession(since=0.0).encode())
    await store.commit(Put(session_key("s1"), session.encode()), host_row(ONE), queued)
    await store.announce(HostAbout(serves=True).encode())
    notices = Notices()
    followed = AttachedSession(session, find_places(tmp_path, writable=False), store, observers=[notices], approvers=[])
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            await group.start(followed.follow, ONE)
            store.holds = None
            await anyio.sleep(0.3)  # many times as long as one wait
            store.holds = THREE
            await store.commit(host_row(THREE))
            await notices.come.wait()
            assert followed.where == "process 1 on three"
            group.cancel_scope.cancel()


async def test_a_follower_leaves_a_session_that_no_host_will_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LOOK", 0.01)
    monkeypatch.setattr(attached, "REPLACED_WITHIN", 0.02)
    store = LeasedStore()
    session = SessionRow(id="s1", workspace=str(tmp_path), created_at=0.0)
    queued = Put(queue_key("s1"), QueuedSession(since=0.0, placement={"gpu": "a100"}).encode())
    await store.commit(Put(session_key("s1"), session.encode()), host_row(ONE), queued)
    followed = AttachedSession(session, find_places(tmp_path, writable=False), store, observers=[], approvers=[])
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            await group.start(followed.follow, ONE)
            store.holds = None
            end = await followed.wait_finished()
            assert "`callboard resume s1` continues it" in end.why
            group.cancel_scope.cancel()
