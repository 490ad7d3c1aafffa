"""Hosts that freeze in a transaction, that are busy, or that lose a lease unnoticed. On a real server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.postgres_server import PostgresServer, running

from callboard.ports.store import Append, Lease, LeaseHolder, Put
from callboard.types.errors import Fenced

psycopg = pytest.importorskip("psycopg", reason="the extra callboard[postgres] is not installed")

from tests.adapters.storage.postgres_stores import opened  # noqa: E402 - only with the extra

from callboard.adapters.storage.postgres import presence  # noqa: E402 - only with the extra
from callboard.adapters.storage.postgres.store import PostgresStore  # noqa: E402 - only with the extra

pytestmark = pytest.mark.anyio


FREEZING = """
    import os, sys
    import anyio
    from callboard.adapters.storage.postgres import presence, writer
    from callboard.adapters.storage.postgres.address import parse_address
    from callboard.adapters.storage.postgres.store import open_store
    from callboard.ports.store import Append, Put
    from callboard.types.errors import Fenced

    url, space, where = sys.argv[1:]

    def freeze(*_):
        print("here", flush=True)
        sys.stdin.readline()

    def before(owner, name):
        whole = getattr(owner, name)
        def late(*arguments):
            setattr(owner, name, whole)
            freeze()
            return whole(*arguments)
        setattr(owner, name, late)

    async def main():
        store = await open_store(parse_address(url), space)
        if where == "acquire":  # with the lease's row locked
            whole = presence.Presence._holder
            def holder(self, connection, name, *, lock):
                found = whole(self, connection, name, lock=lock)
                freeze()
                return found
            presence.Presence._holder = holder
        lease = await store.acquire("host")
        await store.commit(Put("known", b"1"), fence=lease.fence)
        if where == "between":
            before(writer.PostgresWriter, "_write_records")
        else:  # in the middle of the second round trip
            before(writer.PostgresWriter, "_write_rows")
            writer.TRANSACTION_SECONDS = 3.0
        try:
            # Names that this process does not know yet: in two round trips
            await store.commit(Append("s", b"never seen" * 100_000), Put("k", b"never seen"), fence=lease.fence)
        except Fenced:
            print("fenced", flush=True)
        except BaseException as error:
            print(repr(error), flush=True)
        os._exit(0)

    anyio.run(main)
"""


@contextmanager
def frozen(url: str, space: str, where: str) -> Iterator[subprocess.Popen[str]]:
    """A host of the lease `host` that is stopped in a transaction: `between` its round trips, or in another place."""
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(FREEZING), url, space, where],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "here\n"
            child.send_signal(signal.SIGSTOP)
            yield child
        finally:
            child.kill()


def thawed(child: subprocess.Popen[str]) -> str:
    """Let the host go on, and return what becomes of its commit. Blocks."""
    child.send_signal(signal.SIGCONT)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    return child.stdout.readline()


async def silenced(store: PostgresStore, url: str, *, but: int) -> None:
    """Make the rows of all hosts but one as old as those of dead hosts, without the wait."""
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(
            "UPDATE callboard.host SET seen = seen - interval '1 hour' WHERE space = %s AND number <> %s",
            (store.space, but),
        )


async def held(store: PostgresStore, name: str) -> Lease:
    lease = await store.acquire(name)
    assert not isinstance(lease, LeaseHolder)
    return lease


@contextmanager
def leases_locked(url: str, store: PostgresStore) -> Iterator[Any]:
    """A transaction that no limit ends locks the leases. Yields a connection that reads the hosts meanwhile."""
    with psycopg.connect(url) as other:
        other.execute("SELECT 1 FROM callboard.lease WHERE space = %s FOR SHARE", (store.space,))
        with psycopg.connect(url, autocommit=True) as reader:
            yield reader


async def replaced(old: PostgresStore, lost: Lease, new: PostgresStore, taken: Lease) -> None:
    """Check that only the newer of two leases can be written under."""
    with pytest.raises(Fenced):
        await old.commit(Append("s", b"too late"), fence=lost.fence)
    assert await new.commit(Append("s", b"in time"), fence=taken.fence) == (1,)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["between", "acquire", "within"])
async def test_a_host_that_is_frozen_in_a_transaction_is_replaced_and_does_not_cut_off_the_next_one(
    server: PostgresServer, tmp_path: Path, where: str
) -> None:
    """The server ends the transaction of the frozen host; until then the other host renews its row, and goes on."""
    with psycopg.connect(server.url) as other:
        if where == "within" and other.info.server_version < 170_000:
            pytest.skip("older servers limit no transaction whose next message is on its way")
    with frozen(server.url, str(tmp_path), where) as child:
        async with opened(server.url, str(tmp_path)) as store:
            own = await held(store, "own")
            with store.patience.waiting_without_limit(lambda text: None):
                row = store._presence.host
                await silenced(store, server.url, but=row)
                taken = await held(store, "host")
                assert taken.fence.number == (1 if where == "acquire" else 2)
                assert await store.commit(Put("k", b"next"), Append("s", b"next"), fence=taken.fence) == (1, 1)
                # It was never cut off: the row and the lease are those of before.
                assert (store._presence.host, store._presence.period) == (row, 0)
                await store.commit(Put("own", b"1"), fence=own.fence)
                if where != "acquire":
                    assert await anyio.to_thread.run_sync(thawed, child) == "fenced\n"
                assert [record.data for record in await store.read("s")] == [b"next"]


@pytest.mark.slow
async def test_a_lease_that_stays_locked_is_held_and_the_candidate_goes_on_renewing(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A transaction that no limit ends, as of an earlier version: leases are refused, and nothing else suffers."""
    monkeypatch.setattr(presence, "LOCKED_SECONDS", 1.0)
    async with opened(server.url, str(tmp_path)) as dead, opened(server.url, str(tmp_path)) as store:
        lost = await held(dead, "host")
        await held(dead, "free")
        own = await held(store, "own")
        monkeypatch.setattr(dead._presence, "_beat", lambda: None)
        with leases_locked(server.url, store) as reader:
            await silenced(store, server.url, but=store._presence.host)
            seen = "SELECT seen FROM callboard.host WHERE number = %s"
            before = reader.execute(seen, (store._presence.host,)).fetchall()
            refused = await store.acquire("host")
            assert isinstance(refused, LeaseHolder)
            assert refused.pid == os.getpid()
            assert reader.execute(seen, (store._presence.host,)).fetchall() > before
            assert store._presence.period == 0
            await store.commit(Put("own", b"1"), fence=own.fence)
        await replaced(dead, lost, store, await held(store, "host"))


@pytest.mark.slow
async def test_a_host_that_is_back_lives_while_its_old_transaction_is_still_open(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After a cut, the server may keep the locks of the connections from before it for a while."""
    for name, seconds in (("BEAT_SECONDS", 0.1), ("FREED_AFTER", 0.0)):
        monkeypatch.setattr(presence, name, seconds)
    async with opened(server.url, str(tmp_path)) as store:
        lost = await held(store, "host")
        old = store._presence.host
        with leases_locked(server.url, store) as reader:
            store._presence.cut_off(store._presence.period)
            await store.reachable()
            new = store._presence.host
            seen = "SELECT count(*) FROM callboard.host WHERE number = %s AND seen > now() - interval '3 seconds'"
            for number in range(3):  # each renews the row, and tries to remove the old one
                await held(store, f"lease {number}")
            assert reader.execute(seen, (new,)).fetchall() == [(1,)]
            assert reader.execute("SELECT 1 FROM callboard.host WHERE number = %s", (old,)).fetchall() == [(1,)]
            assert (store._presence.host, store._presence.period) == (new, 1)
        while isinstance(taken := await store.acquire("host"), LeaseHolder):
            await store.reachable()
        await replaced(store, lost, store, taken)


@pytest.mark.slow
async def test_a_host_with_more_work_than_time_renews_its_row(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Hundreds of sessions that wait for their hosts ask for holders, on a server that is far away."""
    for name, seconds in (("BEAT_SECONDS", 0.05), ("SILENT_SECONDS", 0.5)):
        monkeypatch.setattr(presence, name, seconds)
    async with opened(server.url, str(tmp_path)) as store:
        await held(store, "own")
        row = store._presence.host
        whole = store._presence._living_holder
        left = 100

        def far_away(connection: Any, name: str) -> LeaseHolder | None:
            connection.execute("SELECT pg_sleep(0.02)")
            return whole(connection, name)

        async def ask(number: int) -> None:
            nonlocal left
            assert await store.holder(f"s{number}") is None
            left -= 1

        monkeypatch.setattr(store._presence, "_living_holder", far_away)
        async with anyio.create_task_group() as group:
            for number in range(left):
                group.start_soon(ask, number)
            while left:
                assert store._presence.cut_off_in(0) > 0, f"cut off while {left} callers wait"
                await anyio.lowlevel.checkpoint()
        assert (store._presence.host, store._presence.period) == (row, 0)


@pytest.mark.slow
async def test_a_lease_that_was_lost_before_its_watch_began_is_noticed(tmp_path: Path) -> None:
    """The server was away while a session was opened, which nobody watched, and is back when its agents begin."""
    with running() as server:
        async with opened(server.url, str(tmp_path)) as store, opened(server.url, str(tmp_path)) as other:
            with store.patience.waiting_without_limit(lambda text: None):
                lost = await held(store, "host")
                await anyio.to_thread.run_sync(server.stop, "immediate")
                renewed = store._presence._state.row.renewed
                store._presence._state.row.renewed = renewed - presence.SILENT_SECONDS
                await anyio.to_thread.run_sync(server.start)
                await store.reachable()
                with anyio.fail_after(2):
                    assert "may take over" in await store.cut_off(lost.fence)
                kept = await held(store, "kept")
                with anyio.move_on_after(0.2) as waiting:
                    await store.cut_off(kept.fence)
                assert waiting.cancelled_caught, "a lease of the new period is not lost"
                while isinstance(taken := await other.acquire("host"), LeaseHolder):
                    await store.reachable()
                assert taken.fence.number == lost.fence.number + 1
                with pytest.raises(Fenced):
                    await store.commit(Put("k", b"too late"), fence=lost.fence)


async def test_a_lease_that_is_acquired_while_its_process_is_cut_off_is_not_held(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The lease names the row of the period that has ended, which others find free."""
    monkeypatch.setattr(presence, "FREED_AFTER", 0.0)
    async with opened(server.url, str(tmp_path)) as store:
        await held(store, "own")
        whole = store._presence._holder

        def late(connection: Any, name: str, *, lock: bool) -> LeaseHolder | None:
            found = whole(connection, name, lock=lock)
            store._presence._end_period(0)
            return found

        monkeypatch.setattr(store._presence, "_holder", late)
        taken = await held(store, "host")
        monkeypatch.setattr(store._presence, "_holder", whole)
        with psycopg.connect(server.url) as other:
            named = other.execute(
                "SELECT number, host FROM callboard.lease WHERE space = %s AND name = 'host'", (store.space,)
            )
            assert named.fetchall() == [(taken.fence.number, store._presence.host)]
