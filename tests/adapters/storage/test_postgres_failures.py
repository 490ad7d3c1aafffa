"""The PostgreSQL store when the server, the network, or another process fails. Real servers, sockets and processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest
from tests.postgres_proxy import Proxy, proxied
from tests.postgres_server import PostgresServer, running

from callboard.adapters.storage.draft import CommitDraft
from callboard.ports.store import Append, Delete, Expect, LeaseHolder, Put
from callboard.types.errors import (
    Conflict,
    Fenced,
    SettingsError,
    StoreBusy,
    ValueDamaged,
    WorkspaceUnusable,
    heart_of,
)

psycopg = pytest.importorskip("psycopg", reason="the extra callboard[postgres] is not installed")

from tests.adapters.storage.postgres_stores import opened  # noqa: E402 - only with the extra

from callboard.adapters.storage.postgres import presence, schema  # noqa: E402 - only with the extra
from callboard.adapters.storage.postgres import store as store_module  # noqa: E402 - only with the extra
from callboard.adapters.storage.postgres.address import parse_address  # noqa: E402 - only with the extra
from callboard.adapters.storage.postgres.assumptions import (  # noqa: E402 - only with the extra
    GroupNames,
    NamedState,
    NumberedCommits,
    commit_if,
)
from callboard.adapters.storage.postgres.faults import may_repeat  # noqa: E402 - only with the extra
from callboard.adapters.storage.postgres.store import PostgresStore, open_store  # noqa: E402 - only with the extra

pytestmark = pytest.mark.anyio


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[Proxy]:
    with proxied(server.socket) as proxy:
        yield proxy


def through(proxy: Proxy) -> str:
    return proxy.url


async def test_a_commit_whose_answer_is_lost_is_neither_lost_nor_repeated(server: PostgresServer, proxy: Proxy) -> None:
    """The server has committed, and the connection breaks before its answer arrives: the server is asked."""
    async with opened(through(proxy)) as store:
        for number in range(1, 3):  # with names that this process does not know yet: in two round trips
            proxy.break_after = b"COMMIT"
            assert await store.commit(Append("s", b"%d" % number), Append(str(number), b"1"), Put("k", b"1")) == (
                number,
                1,
                number,
            )
        assert proxy.broken == 2
        assert [record.data for record in await store.read("s")] == [b"1", b"2"]


async def test_a_commit_that_the_server_never_got_is_repeated(server: PostgresServer, proxy: Proxy) -> None:
    async with opened(through(proxy)) as store:
        proxy.break_after = b"BEGIN"
        assert await store.commit(Append("s", b"1")) == (1,)
        proxy.lose = b"COMMIT"
        assert await store.commit(Append("s", b"2"), Append("t", b"1")) == (2, 1)
        assert proxy.broken == 2
        assert await store.last("s") == 2


async def test_a_commit_of_what_this_process_wrote_last_takes_one_round_trip(
    server: PostgresServer, proxy: Proxy
) -> None:
    async with opened(through(proxy), direct=server.url) as store:
        lease = await store.acquire("host")
        assert not isinstance(lease, LeaseHolder)
        before = 0
        for number in range(1, 21):
            before = proxy.round_trips if number == 11 else before  # the driver has prepared the statement
            writes = (Append("s", b"2", id=str(number)), Put("k", b"2", expected=number - 1), Append("s", b"3"))
            numbers = await store.commit(*writes, Expect("s", 2 * number), Delete("l"), fence=lease.fence)
            assert numbers == (2 * number - 1, number, 2 * number, 0, 0)
        assert proxy.round_trips - before == 10


async def test_a_commit_of_one_round_trip_whose_answer_is_lost_is_neither_lost_nor_repeated(
    server: PostgresServer, proxy: Proxy
) -> None:
    async with opened(through(proxy)) as store:
        for _ in range(2):
            await store.commit(Append("s", b"1"))
        for number in range(3, 6):
            proxy.break_after = b"late"
            assert await store.commit(Append("s", b"too late"), Put("k", b"late", expected=number - 3)) == (
                number,
                number - 2,
            )
            assert await store.commit(Append("t", b"1")) == (number - 2,)
        assert proxy.broken == 3
        assert [record.data for record in await store.read("s")] == [b"1", b"1", *3 * [b"too late"]]


async def test_a_commit_of_one_round_trip_that_the_server_gets_late_does_not_take_place_twice(
    server: PostgresServer, proxy: Proxy
) -> None:
    """The network held the message back; meanwhile the server was asked, and the commit was repeated."""
    async with opened(through(proxy)) as store:
        for _ in range(2):
            await store.commit(Append("s", b"1"))
        with psycopg.connect(server.url, autocommit=True) as other:
            numbers = NumberedCommits()
            names, state = GroupNames(["s"], [], [], []), NamedState(lasts={"s": 2})
            draft = CommitDraft(state)
            draft.commit([Append("s", b"late")], None)
            number = numbers.next()
            assert numbers.took_place(other, number) is False
            assert numbers.done
            place = {"space": store.space, "durable": True, "host": 0, "writer": numbers.writer}
            with pytest.raises(psycopg.Error) as barred:
                commit_if(other, names, state, draft, numbers={**place, "done": 0, "number": number})
            assert may_repeat(barred.value)
            number = numbers.next()
            commit_if(other, names, state, draft, numbers={**place, "done": numbers.done, "number": number})
            assert numbers.took_place(other, number) is True
            other.execute("DELETE FROM callboard.writer WHERE id = %s", (numbers.writer,))
            assert numbers.took_place(other, number) is None
        proxy.lose = b"held back"
        assert await store.commit(Append("s", b"held back")) == (4,)
        assert proxy.broken == 1
        assert [record.data for record in await store.read("s")] == [b"1", b"1", b"late", b"held back"]


async def test_a_process_whose_row_was_removed_commits_on(server: PostgresServer) -> None:
    async with opened(server.url) as store:
        for number in range(1, 7):
            assert await store.commit(Append("s", b"1", expected=number - 1)) == (number,)
            if number == 3:
                with psycopg.connect(server.url, autocommit=True) as other:
                    other.execute("DELETE FROM callboard.writer")


AS_BEFORE_VERSION_3 = (
    "ALTER TABLE callboard.blob DROP COLUMN used",
    "DROP TABLE callboard.writer",
    "DROP FUNCTION callboard.commit_if",
    "DROP FUNCTION callboard.number_commit",
    "UPDATE callboard.version SET number = 2",
)


async def test_tables_of_version_2_are_upgraded_with_their_content(server: PostgresServer) -> None:
    with psycopg.connect(server.url, autocommit=True) as other:
        other.execute("CREATE DATABASE older")
    url = server.url.replace("/postgres?", "/older?")
    async with opened(url, "w") as store:
        assert await store.commit(Append("s", b"1"), Put("k", b"1")) == (1, 1)
    with psycopg.connect(url, autocommit=True) as other:
        for statement in AS_BEFORE_VERSION_3:
            other.execute(statement)
    async with opened(url, "w") as store:
        for number in range(2, 6):
            assert await store.commit(Append("s", b"1"), Put("k", b"1")) == (number, number)


async def test_a_commit_that_a_crash_undid_is_not_taken_for_another_transaction_of_the_same_number() -> None:
    """A server that crashes forgets the numbers of transactions that had written nothing, and gives them out again."""
    with running(durable=True) as server, proxied(server.socket) as proxy:

        def crash() -> None:
            server.stop("immediate")
            server.start()
            with psycopg.connect(server.url, autocommit=True) as other:
                for _ in range(50):
                    other.execute("SELECT pg_current_xact_id()")

        async with opened(through(proxy)) as store:
            proxy.lose, proxy.after_loss = b"COMMIT", crash
            with store.patience.waiting_without_limit(lambda text: None):
                assert await store.commit(Append("s", b"1")) == (1,)
            assert proxy.broken == 1
            assert await store.last("s") == 1


class CrashingServer:
    """Two stores write to one server, which crashes when the first has done half of its work."""

    def __init__(self, server: PostgresServer, stores: list[PostgresStore]) -> None:
        self._server, self._stores = server, stores
        self._half = anyio.Event()
        self.done: dict[int, list[bytes]] = {0: [], 1: []}

    async def write(self, number: int) -> None:
        for count in range(150):
            if count == 75:
                self._half.set()
            text = b"%d %d" % (number, count)
            await self._stores[number].commit(Append("shared", text), Append(f"own/{number}", text))
            self.done[number].append(text)

    async def crash(self) -> None:
        await self._half.wait()
        await anyio.to_thread.run_sync(self._server.stop, "immediate")
        await anyio.to_thread.run_sync(self._server.start)

    async def run(self) -> None:
        with ExitStack() as waits:
            for store in self._stores:
                waits.enter_context(store.patience.waiting_without_limit(lambda text: None))
            async with anyio.create_task_group() as writers:
                writers.start_soon(self.crash)
                for number in self.done:
                    writers.start_soon(self.write, number)


async def test_no_acknowledged_commit_is_lost_or_doubled_when_the_server_crashes() -> None:
    with running(durable=True) as server:
        async with opened(server.url, "w") as first, opened(server.url, "w") as second:
            work = CrashingServer(server, [first, second])
            await work.run()
            records = await first.read("shared")
            assert [record.seq for record in records] == list(range(1, 301))
            for number, done in work.done.items():
                own = [record.data for record in await second.read(f"own/{number}")]
                assert own == done == [data.data for data in records if data.data.startswith(b"%d " % number)]


async def test_a_command_gives_up_after_a_while_and_says_which_server_is_away(
    server: PostgresServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LOCK_WAIT", 0.3)
    dead = proxy.url
    proxy.close()
    with pytest.raises(StoreBusy, match=f"the server of the store {dead} cannot be used now"):
        async with opened(dead):
            pass


async def test_the_lease_of_a_killed_process_of_this_machine_is_free_at_once(
    server: PostgresServer, tmp_path: Path
) -> None:
    code = f"""
        import anyio
        from callboard.adapters.storage.postgres.address import parse_address
        from callboard.adapters.storage.postgres.store import open_store

        async def main():
            store = await open_store(parse_address({server.url!r}), {str(tmp_path)!r})
            lease = await store.acquire("host")
            print(lease.fence.number, flush=True)
            await anyio.sleep_forever()

        anyio.run(main)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        async with opened(server.url, str(tmp_path)) as store:
            assert await anyio.to_thread.run_sync(child.stdout.readline) == b"1\n"
            refused = await store.acquire("host")
            assert isinstance(refused, LeaseHolder)
            assert (refused.pid, refused.machine) == (child.pid, "")
            child.send_signal(signal.SIGKILL)
            child.wait()
            taken = await store.acquire("host")
            assert not isinstance(taken, LeaseHolder)
            assert taken.fence.number == 2
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


async def test_a_serving_host_removes_the_rows_of_hosts_that_died_long_ago(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    silent = "UPDATE callboard.host SET seen = clock_timestamp() - make_interval(secs => %s) WHERE number = %s"
    async with opened(server.url, str(tmp_path)) as dead, opened(server.url, str(tmp_path)) as late:
        lost, kept = await dead.acquire("host"), await late.acquire("other")
        assert not isinstance(lost, LeaseHolder)
        assert not isinstance(kept, LeaseHolder)
        rows = [store._presence.host for store in (dead, late)]
        for store in (dead, late):  # they renew their rows no more
            monkeypatch.setattr(store._presence, "_beat", lambda: None)
        with psycopg.connect(server.url, autocommit=True) as other:
            for number, seconds in zip(rows, (60, -60), strict=True):
                other.execute(silent, (presence.FORGOTTEN_SECONDS + seconds, number))
            async with opened(server.url, str(tmp_path)) as serving:
                await serving.announce(b"here")
                left = other.execute("SELECT number FROM callboard.host WHERE number = ANY(%s)", (rows,))
                assert left.fetchall() == [(rows[1],)]
                taken = await serving.acquire("host")
                assert not isinstance(taken, LeaseHolder)
                assert taken.fence.number == lost.fence.number + 1
                with pytest.raises(Fenced):
                    await dead.commit(Append("s", b"too late"), fence=lost.fence)


async def test_a_host_that_is_cut_off_ends_its_work_before_another_may_take_over(
    server: PostgresServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, seconds in (("BEAT_SECONDS", 0.1), ("SILENT_SECONDS", 0.5), ("DEAD_SECONDS", 1.5)):
        monkeypatch.setattr(presence, name, seconds)
    monkeypatch.setattr(store_module, "SILENT_SECONDS", 0.5)
    async with opened(through(proxy), str(tmp_path)) as here:
        monkeypatch.setattr(presence, "place_here", lambda: "another machine")
        async with opened(server.url, str(tmp_path)) as there:
            lease = await here.acquire("host")
            assert not isinstance(lease, LeaseHolder)
            holder = await there.acquire("host")
            assert isinstance(holder, LeaseHolder)
            assert holder.machine != "", "another machine is named"
            proxy.cut = True
            assert "could not be reached for 0.5 s" in await here.cut_off()
            assert isinstance(await there.acquire("host"), LeaseHolder), "nobody takes over yet"
            while isinstance(taken := await there.acquire("host"), LeaseHolder):
                await anyio.sleep(0.05)
            assert taken.fence.number == 2
            with pytest.raises(StoreBusy):  # at once, so that its sessions end
                await here.commit(Append("s", b"while it is cut off"), fence=lease.fence)
            proxy.cut = False
            await here.reachable()
            with pytest.raises(Fenced):
                await here.commit(Append("s", b"too late"), fence=lease.fence)
            assert await there.commit(Append("s", b"in time"), fence=taken.fence) == (1,)


def test_the_loss_of_a_lease_is_told_before_the_writes_that_fail_with_it() -> None:
    lost = Fenced("could not be reached")
    together = ExceptionGroup("team", [StoreBusy("away"), ExceptionGroup("agents", [KeyError("x"), lost])])
    assert heart_of(together) is lost


async def test_the_leases_of_a_host_that_was_cut_off_are_free_for_everybody_when_it_is_back(
    server: PostgresServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, seconds in (("BEAT_SECONDS", 0.1), ("SILENT_SECONDS", 0.5), ("FREED_AFTER", 0.2)):
        monkeypatch.setattr(presence, name, seconds)
    monkeypatch.setattr(store_module, "SILENT_SECONDS", 0.5)
    async with opened(through(proxy), str(tmp_path)) as here:
        await here.announce(b"here")
        own = await here.acquire("host")
        assert not isinstance(own, LeaseHolder)
        monkeypatch.setattr(presence, "place_here", lambda: "another machine")
        async with opened(server.url, str(tmp_path)) as there:
            proxy.cut = True
            await here.cut_off()
            await own.release()
            proxy.cut = False
            await here.reachable()
            assert [each.about for each in await there.present()][-1:] == [b"here"], "it announces itself again"
            while isinstance(taken := await there.acquire("host"), LeaseHolder):
                await anyio.sleep(0.05)  # long before the 10 s after which a dead host is replaced
            assert taken.fence.number == own.fence.number + 1


async def test_a_damaged_value_is_set_aside_and_never_returned(server: PostgresServer, tmp_path: Path) -> None:
    async with opened(server.url, str(tmp_path)) as store:
        await store.commit(Append("s", b"1"), Append("s", b"2" * 2_000), Append("s", b"3"), Put("k", b"v"))
        digest = await store.put_blob(b"blob" * 300_000)
        with psycopg.connect(server.url) as other:
            other.execute("UPDATE callboard.record SET data = 'x' WHERE data = '1'")
            other.execute("UPDATE callboard.row SET value = 'x' WHERE space = %s AND key = 'k'", (store.space,))
            other.execute("UPDATE callboard.blob SET data = 'x' WHERE space = %s AND part = 1", (store.space,))
        with pytest.raises(ValueDamaged, match="record 1 of stream s"):
            await store.read("s")
        assert [record.seq for record in await store.read("s")] == [2, 3]
        assert [damage.what for damage in await store.check()] == ["record 1 of stream s", "key k"]
        assert await store.get("k") is None
        with pytest.raises(Conflict):
            await store.commit(Append("s", b"4", expected=2))
        assert await store.commit(Append("s", b"4", expected=3)) == (4,)
        with pytest.raises(ValueDamaged, match=f"blob {digest}"):
            await store.get_blob(digest)
        with pytest.raises(KeyError):
            await store.get_blob(digest)
        assert await store.put_blob(b"blob" * 300_000) == digest
        assert await store.get_blob(digest) == b"blob" * 300_000
    async with opened(server.url, str(tmp_path)) as store:
        assert len(store.damage) == 4, "the record, the row, and two parts of the blob"


async def test_a_newer_store_is_refused_and_left_untouched(server: PostgresServer) -> None:
    async with opened(server.url):
        pass
    with psycopg.connect(server.url, autocommit=True) as other:
        other.execute("UPDATE callboard.version SET number = 99")
        try:
            with pytest.raises(WorkspaceUnusable, match=r"written by a newer Callboard \(schema 99"):
                await open_store(parse_address(server.url), "a new workspace")
            spaces = other.execute("SELECT count(*) FROM callboard.space WHERE name = 'a new workspace'").fetchall()
            assert spaces == [(0,)]
        finally:
            other.execute("UPDATE callboard.version SET number = %s", (schema.VERSION,))


async def test_a_store_of_version_1_is_upgraded_while_its_hosts_live(server: PostgresServer) -> None:
    with psycopg.connect(server.url, autocommit=True) as other:
        other.execute("CREATE DATABASE version_1")
    url = server.url.replace("/postgres?", "/version_1?")
    async with opened(url, "w") as store:
        await store.commit(Append("s", b"1"))
        lease = await store.acquire("host-1")
        assert not isinstance(lease, LeaseHolder)
        with psycopg.connect(url, autocommit=True) as other:
            # What version 1 had, and what a process of version 1 goes on to use.
            for statement in AS_BEFORE_VERSION_3:
                other.execute(statement)
            other.execute("ALTER TABLE callboard.host DROP COLUMN about")
            other.execute("UPDATE callboard.version SET number = 1")
        async with opened(url, "w") as newer:
            await newer.announce(b"newer")
            assert {(each.about, each.leases) for each in await newer.present()} == {(b"newer", ()), (b"", ("host-1",))}
            assert [record.data for record in await newer.read("s")] == [b"1"]
        await store.commit(Append("s", b"2"), fence=lease.fence)
    with psycopg.connect(url) as other:
        assert other.execute("SELECT number FROM callboard.version").fetchall() == [(schema.VERSION,)]


async def test_several_processes_create_the_tables_at_once(server: PostgresServer) -> None:
    with psycopg.connect(server.url, autocommit=True) as other:
        other.execute("CREATE DATABASE empty")
        other.execute("CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0")
    address = parse_address(server.url.replace("/postgres?", "/empty?"))
    spaces: list[int] = []

    async def enter() -> None:
        store = await open_store(address, "w")
        spaces.append(store.space)
        await store.aclose()

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(enter)
    assert len(spaces) == 4
    assert len(set(spaces)) == 1
    with pytest.raises(WorkspaceUnusable, match="has the encoding SQL_ASCII"):
        async with opened(server.url.replace("/postgres?", "/ascii?")):
            pass


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@db.example.com/callboard",
        "postgresql://db.example.com/callboard?user=me&password=hunter2",
        "postgresql://me:hunter2@[bad/callboard",
        "mysql://me:hunter2@db.example.com/callboard",
        "host=db.example.com password=hunter2",
    ],
)
def test_an_address_with_a_password_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_address(url)
    assert "hunter2" not in str(refused.value)


@pytest.fixture
def pooled(server: PostgresServer) -> Iterator[str]:
    """Address of a pgbouncer in transaction mode before the server."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    with tempfile.TemporaryDirectory(prefix="pgb-", dir="/tmp") as name:  # a path of a socket must be short
        folder = Path(name)
        folder.chmod(0o777)
        settings = folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\npostgres = host={server.socket.parent} dbname=postgres user=callboard\n"
            f"[pgbouncer]\nlisten_addr =\nunix_socket_dir = {folder}\nauth_type = any\npool_mode = transaction\n"
            f"logfile = {folder}/log\n"
        )
        settings.chmod(0o644)
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        with subprocess.Popen([program, "-q", *user, settings], stderr=subprocess.DEVNULL) as process:
            url = f"postgresql://callboard@/postgres?host={folder}&port=6432"
            for _ in range(100):
                if (folder / ".s.PGSQL.6432").exists():
                    break
                time.sleep(0.1)
            yield url
            process.kill()


async def test_a_pooler_may_be_between_but_not_for_leases_and_wakes(
    server: PostgresServer, pooled: str, tmp_path: Path
) -> None:
    store = await open_store(parse_address(pooled, server.url), str(tmp_path))
    try:
        async with store.follow("s") as records:
            for number in range(1, 11):  # more often than a driver needs to prepare a statement
                assert await store.commit(Append("s", b"x"), Put("k", b"x")) == (number, number)
                assert (await anext(records)).seq == number
            lease = await store.acquire("host")
            assert not isinstance(lease, LeaseHolder)
            assert await store.commit(Append("s", b"x"), fence=lease.fence) == (11,)
    finally:
        await store.aclose()
    store = await open_store(parse_address(pooled), str(tmp_path))
    try:
        with pytest.raises(WorkspaceUnusable, match="leads to a connection pooler"):
            await store.acquire("host")
    finally:
        await store.aclose()


def test_a_lost_connection_prints_no_line_of_the_library() -> None:
    program = (
        "import logging, callboard.adapters.storage.postgres.store; "
        "logging.getLogger('psycopg').warning('error ignored terminating a pipeline')"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
