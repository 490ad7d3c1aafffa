"""What a process that announces an answer does with each reply of the host, over a real socket."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from callboard.adapters.processes.pids import started_at
from callboard.adapters.processes.private_socket import first_line, listen_at, socket_name
from callboard.adapters.storage.memory import MemoryStore
from callboard.adapters.storage.sqlite import open_store
from callboard.core.approvals.vouching import read_announcement, reply_line, vouched_digests
from callboard.core.keys import host_key, request_key, task_key, vouch_purpose
from callboard.ports.store import Put, Store
from callboard.sessions import vouching
from callboard.sessions.live.admission import serve_connections
from callboard.sessions.vouching import NotAccepted, announce
from callboard.types.records import HostRow

WRITES = [Put(request_key("s1", "req_1"), b"{}")]
HOST = HostRow(pid=os.getpid(), started=started_at(os.getpid()) or 0.0)
Serve = Callable[[socket.socket], Awaitable[None]]


@asynccontextmanager
async def host(folder: Path, serve: Serve | None) -> AsyncIterator[Store]:
    """A store with a host, which serves announcements so; None: it has no socket."""
    store = await open_store(folder, durability="full", notice=lambda text: None)
    await store.commit(Put(host_key("s1"), HOST.encode()))
    try:
        if serve is None:
            yield store
            return
        with listen_at(folder / "live", socket_name(HOST.pid, HOST.started, vouch_purpose("s1"))) as listener:
            async with anyio.create_task_group() as group:
                group.start_soon(partial(serve_connections, listener, serve, most=4))
                yield store
                group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


async def replying(refused: str, got: list[str], connection: socket.socket) -> None:
    got += read_announcement(await first_line(connection))
    connection.sendall(reply_line(refused))


async def leaving(connection: socket.socket) -> None:
    await first_line(connection)


async def silent(connection: socket.socket) -> None:
    await anyio.sleep_forever()


@pytest.mark.anyio
async def test_a_host_that_accepts_gets_the_digests(tmp_path: Path) -> None:
    got: list[str] = []
    async with host(tmp_path, partial(replying, "", got)) as store:
        await announce(store, "s1", [*WRITES, Put(task_key("s1", "t1"), b"{}")])
    assert got == vouched_digests("s1", WRITES)


@pytest.mark.anyio
async def test_writes_that_nobody_checks_are_not_announced(tmp_path: Path) -> None:
    async with host(tmp_path, silent) as store:
        await announce(store, "s1", [Put(task_key("s1", "t1"), b"{}")])
    async with host(tmp_path, None) as store:
        await announce(store, "s1", WRITES)
    await announce(MemoryStore(), "s1", WRITES)


@pytest.mark.anyio
async def test_the_reason_of_a_refusal_is_told_with_what_to_do(tmp_path: Path) -> None:
    async with host(tmp_path, partial(replying, "pid 7 is not visible here", [])) as store:
        with pytest.raises(
            NotAccepted, match=r"hosts session s1, accepts no answer .* pid 7 is not visible here\. .*use"
        ):
            await announce(store, "s1", WRITES)


@pytest.mark.anyio
async def test_a_host_that_leaves_or_is_silent_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vouching, "REPLY_WITHIN", 0.3)
    for serve, words in ((leaving, "without a line"), (silent, "did not reply within")):
        async with host(tmp_path, serve) as store:
            with pytest.raises(NotAccepted, match=words):
                await announce(store, "s1", WRITES)
