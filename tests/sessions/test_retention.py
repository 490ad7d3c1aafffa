"""Removal of old sessions: who keeps one, what goes with it, other processes, and kills at every step."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
from tests.postgres_server import PostgresServer

from callboard.adapters.storage.durable import DurableStore
from callboard.adapters.storage.postgres import queries
from callboard.adapters.storage.postgres.address import parse_address
from callboard.adapters.storage.postgres.store import open_store as open_postgres
from callboard.adapters.storage.sqlite import statements
from callboard.adapters.storage.sqlite.store import open_store as open_sqlite
from callboard.core.keys import (
    agent_key,
    host_lease,
    journal,
    mailbox,
    names_of,
    queue_key,
    removed_key,
    request_key,
    schedule_key,
    session_key,
)
from callboard.ports.notifier import Notifier
from callboard.ports.store import Append, LeaseHolder, Put
from callboard.sessions import retention, serve
from callboard.sessions.places import WorkspacePaths
from callboard.sessions.retention import RemovalReport, remove_old_sessions
from callboard.sessions.serve_options import LogLine
from callboard.types.personal_settings import RetentionSettings
from callboard.types.records import AgentRow, QueuedSession, Request, SessionRow
from callboard.types.schedules import Schedule

pytestmark = pytest.mark.anyio
ALL = RetentionSettings(sessions=0)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def places(tmp_path: Path) -> WorkspacePaths:
    return WorkspacePaths(tmp_path / "workspace", tmp_path / "state", tmp_path / "data", tmp_path / "config")


class World:
    """A store with sessions, and their files."""

    def __init__(self, store: DurableStore, places: WorkspacePaths) -> None:
        self.store = store
        self.places = places

    async def session(self, name: str, *, ended: float | None = 1.0) -> str:
        """Create a session with a journal that names a blob; return the digest."""
        digest = await self.store.put_blob(name.encode() * 100)
        row = SessionRow(id=name, workspace="w", created_at=1.0, ended_at=ended, prompt=f"prompt of {name}")
        agent = AgentRow(name="lead", kind="lead", life="stopped", outcome="done")
        await self.store.commit(
            Put(session_key(name), row.encode()),
            Put(agent_key(name, "lead"), agent.encode()),
            *(Append(journal(name, "lead", 1), f'{{"tools":"{digest}"}}{"x" * 300}'.encode()) for _ in range(7)),
        )
        folder = self.places.session_data(name) / "transcripts"
        folder.mkdir(parents=True)
        (folder / "lead.jsonl").write_text("a line\n")
        (self.places.state / "log").mkdir(exist_ok=True)
        (self.places.state / "log" / f"{name}.jsonl").write_text("a line\n")
        return digest

    async def gc(self, settings: RetentionSettings = ALL, *, dry_run: bool = False) -> RemovalReport:
        return await remove_old_sessions(self.store, self.places, settings, dry_run=dry_run)

    async def is_gone(self, name: str) -> bool:
        """Return True if nothing is left of the session; fail if it is there in part, except its tombstones."""
        rows = [row for each in names_of(name) if each.endswith("/") for row in await self.store.keys(each)]
        rows += [row for each in names_of(name) if (row := await self.store.get(each)) is not None]
        records = await self.store.read(journal(name, "lead", 1))
        files = [self.places.session_data(name), self.places.state / "log" / f"{name}.jsonl"]
        remaining = [bool(rows), bool(records), *(file.exists() for file in files)]
        assert len({*remaining}) == 1, remaining
        return not remaining[0]


@asynccontextmanager
async def opened(places: WorkspacePaths, url: str = "") -> AsyncGenerator[World]:
    places.state.mkdir(mode=0o700, exist_ok=True)
    space = str(places.state)
    store = await (open_postgres(parse_address(url), space) if url else open_sqlite(places.state))
    try:
        with anyio.fail_after(120):
            yield World(store, places)
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


@pytest.fixture(params=["sqlite", "postgres"])
async def world(request: pytest.FixtureRequest, places: WorkspacePaths) -> AsyncGenerator[World]:
    url = request.getfixturevalue("server").url if request.param == "postgres" else ""
    async with opened(places, url) as world:
        yield world


async def test_a_removed_session_leaves_nothing_that_only_it_needs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (statements, queries):
        monkeypatch.setattr(module, "ERASED_TOGETHER", 3)
    digest = await world.session("old")
    shared = await world.store.put_blob(b"shared")
    await world.session("older-but-used")
    await world.session("open", ended=None)
    await world.store.commit(
        Append(journal("old", "lead", 1), shared.encode()), Append(journal("open", "lead", 1), shared.encode() * 20)
    )
    lease = await world.store.acquire(host_lease("older-but-used"))
    assert not isinstance(lease, LeaseHolder)
    asked = await world.gc(dry_run=True)
    assert [(each.session.id, each.bytes > 500) for each in asked.removed] == [("old", True)]
    assert {(each.session.id, each.reason) for each in asked.staying} == {("older-but-used", "a process has it open")}
    assert not await world.is_gone("old")
    async with world.store.watch("s/") as rows:
        await anext(rows)
        report = await world.gc()
        while (gone := await anext(rows)).value is not None:
            pass
        assert gone.key in {"s/old", "s/old/agent/lead"}
    assert [each.session.id for each in report.removed] == ["old"]
    assert report.blobs == 0, "a blob that was put today may be named by what is not yet stored"
    assert await world.is_gone("old")
    assert await world.store.get_blob(digest) == b"old" * 100
    monkeypatch.setattr(retention, "BLOB_UNUSED", -60.0)
    assert (await world.gc()).blobs == 1
    with pytest.raises(KeyError):
        await world.store.get_blob(digest)
    assert await world.store.get_blob(shared) == b"shared"
    await lease.release()
    monkeypatch.setattr(retention, "REMEMBERED", -60.0)
    for remaining in ("older-but-used", "open"):
        assert not await world.is_gone(remaining)
    await world.store.commit(Put("another", b"1"))
    assert [each.session.id for each in (await world.gc()).removed] == ["older-but-used"]
    await world.store.commit(Put("another", b"2"))
    await world.gc()
    assert await world.store.keys(removed_key()) == []
    assert await world.store.check() == ()
    assert await world.store.commit(Append(journal("open", "lead", 1), b"1")) == (9,)


async def test_a_blob_that_is_put_again_stays(world: World) -> None:
    digest = await world.store.put_blob(b"text")
    assert await world.store.erase_blobs(3_600) == (0, 0)
    assert await world.store.erase_blobs(-60) == (1, 4)
    assert await world.store.put_blob(b"text") == digest
    assert await world.store.erase_blobs(3_600) == (0, 0)
    assert await world.store.get_blob(digest) == b"text"


async def test_a_session_that_something_waits_for_stays(world: World) -> None:
    for name in ("asks", "schedules", "reads", "queued"):
        await world.session(name)
    lead = AgentRow(name="lead", kind="lead", life="idle")
    await world.store.commit(
        Put(request_key("asks", "req_1"), Request(id="req_1", kind="question", asked_by="lead").encode()),
        Put(schedule_key("schedules", "cron_1"), Schedule(id="cron_1", cron="@daily", prompt="p").encode()),
        Put(agent_key("reads", "lead"), lead.encode()),
        Append(mailbox("reads", "lead", 1), b"{}"),
        Append(journal("reads", "lead", 2), b"{}"),
        Put(queue_key("queued"), QueuedSession().encode()),
    )
    report = await world.gc()
    assert report.removed == ()
    assert {each.session.id: each.reason for each in report.staying} == {
        "asks": "a request waits for an answer",
        "schedules": "it has a schedule",
        "reads": "it cannot be read",  # its journal is no real one
        "queued": "it waits for a host",
    }


CHILD = """
    import os, signal, sys
    import anyio
    from pathlib import Path
    from callboard.adapters.storage.postgres.address import parse_address
    from callboard.adapters.storage.postgres.store import PostgresStore, open_store as open_postgres
    from callboard.adapters.storage.sqlite.store import SqliteStore, open_store
    from callboard.sessions import retention
    from callboard.sessions.places import WorkspacePaths
    from callboard.types.personal_settings import RetentionSettings

    folder, killed_at, url = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    calls = 0

    def killing(function):
        async def call(*arguments, **options):
            global calls
            calls += 1
            if calls == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return await function(*arguments, **options)
        return call

    for name in ("commit", "erase_streams", "erase_keys", "erase_blobs"):
        kind = PostgresStore if url else SqliteStore
        setattr(kind, name, killing(getattr(kind, name)))
    retention._remove_files = lambda *names: killed_at == 3 and os.kill(os.getpid(), signal.SIGKILL)

    async def main():
        places = WorkspacePaths(folder / "workspace", folder / "state", folder / "data", folder / "config")
        store = await (open_postgres(parse_address(url), str(places.state)) if url else open_store(places.state))
        await retention.remove_old_sessions(store, places, RetentionSettings(sessions=0))
        await store.aclose()

    anyio.run(main)
"""


@pytest.mark.parametrize("killed_at", [1, 2, 3, 4])
async def test_a_removal_that_is_killed_is_completed_by_the_next_one(
    places: WorkspacePaths, tmp_path: Path, killed_at: int
) -> None:
    """Before the commit, before the streams, between streams and files, and before the second session's commit."""
    async with opened(places) as world:
        for name in ("one", "two"):
            await world.session(name)
        child = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path), str(killed_at), ""], check=False
        )
        assert child.returncode == -9
        assert await world.store.check() == ()
        assert {each.session.id for each in (await world.gc()).removed} <= {"one", "two"}
        for name in ("one", "two"):
            assert await world.is_gone(name)


async def test_another_process_works_on_during_a_removal(places: WorkspacePaths) -> None:
    code = f"""
        import anyio, sys
        from pathlib import Path
        from callboard.adapters.storage.sqlite.store import open_store
        from callboard.ports.store import Append, Put

        async def main():
            store = await open_store(Path({str(places.state)!r}))
            await store.acquire("host-hosted")
            print("ready", flush=True)
            for number in range(200):
                digest = await store.put_blob(b"blob %d" % (number % 5))
                await store.commit(Append("j/hosted/lead.1", digest.encode()), Put("s/hosted/rule/r", b"%d" % number))
            print(await store.last("j/hosted/lead.1"), flush=True)
            sys.stdin.readline()

        anyio.run(main)
    """
    async with opened(places) as world:
        for name in ("hosted", *(f"old-{number}" for number in range(6))):
            await world.session(name)
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            assert child.stdin is not None
            try:
                assert await anyio.to_thread.run_sync(child.stdout.readline) == b"ready\n"
                report = await world.gc()
                assert await anyio.to_thread.run_sync(child.stdout.readline) == b"207\n"
                assert [each.session.id for each in report.staying] == ["hosted"]
                assert len(report.removed) == 6
                records = await world.store.read(journal("hosted", "lead", 1), after=7)
                assert [record.seq for record in records] == list(range(8, 208))
                for digest in {record.data.decode() for record in records}:
                    assert (await world.store.get_blob(digest))[:5] == b"blob "
                child.communicate(b"\n")
                assert child.returncode == 0
            finally:
                child.kill()


WORKER = """
    import anyio, sys
    from callboard.adapters.storage.postgres.address import parse_address
    from callboard.adapters.storage.postgres.store import open_store
    from callboard.ports.store import Append, Put

    async def main():
        store = await open_store(parse_address(sys.argv[1]), sys.argv[2])
        lease = await store.acquire("host-hosted")
        print("ready", flush=True)
        ended = anyio.Event()

        async def until_told():
            await anyio.to_thread.run_sync(sys.stdin.readline)
            ended.set()

        async with anyio.create_task_group() as group:
            group.start_soon(until_told)
            number = 0
            while not ended.is_set() or number < 50:
                digest = await store.put_blob(b"blob %d" % (number % 5))
                row = Put("s/hosted/rule/r", b"%d" % number)
                await store.commit(Append("j/hosted/lead.1", digest.encode()), row, fence=lease.fence)
                number += 1
        print(number, flush=True)
        await store.aclose()

    anyio.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", [2, 1, 3, 4])
async def test_a_removal_on_a_server_is_killed_while_another_process_works(
    server: PostgresServer, places: WorkspacePaths, tmp_path: Path, killed_at: int
) -> None:
    """The steps are those of `test_a_removal_that_is_killed_is_completed_by_the_next_one`."""
    words = [sys.executable, "-c"]
    async with opened(places, server.url) as world:
        for name in ("hosted", "one", "two"):
            await world.session(name)
        with subprocess.Popen(
            [*words, textwrap.dedent(WORKER), server.url, str(places.state)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as worker:
            assert worker.stdout is not None
            try:
                assert await anyio.to_thread.run_sync(worker.stdout.readline) == b"ready\n"
                removal = [*words, textwrap.dedent(CHILD), str(tmp_path), str(killed_at), server.url]
                killed = await anyio.run_process(removal, check=False)
                assert killed.returncode == -9, killed.stderr.decode()
                report = await world.gc()
                assert not report.busy, "the lease of a killed process is free"
                assert {each.session.id for each in report.removed} <= {"one", "two"}
                assert [each.session.id for each in report.staying] == ["hosted"]
                out, _ = await anyio.to_thread.run_sync(worker.communicate, b"\n")
                assert worker.returncode == 0
            finally:
                worker.kill()
        for name in ("one", "two"):
            assert await world.is_gone(name)
        assert await world.store.check() == ()
        records = await world.store.read(journal("hosted", "lead", 1), after=7)
        assert [record.seq for record in records] == list(range(8, 8 + int(out)))
        for digest in {record.data.decode() for record in records}:
            assert (await world.store.get_blob(digest))[:5] == b"blob "


async def test_serve_removes_old_sessions_once_a_day(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("CALLBOARD_RETENTION__SESSIONS", "0")
    told: list[LogLine] = []
    removed = Notifier()

    def tell(line: LogLine) -> None:
        told.append(line)
        removed.notify()

    mark = world.places.state / retention.REMOVAL_MARK
    await world.session("old")
    await world.session("open", ended=None)
    daily = partial(serve._remove_daily, world.store, world.places, tell)
    async with anyio.create_task_group() as first:
        first.start_soon(daily)
        await removed.until(lambda: len(told) == 1)
        first.cancel_scope.cancel()
    assert [(line.kind, line.session) for line in told] == [("note", "old")]
    assert await world.is_gone("old")
    assert mark.exists()
    await world.session("later")
    with anyio.move_on_after(0.3) as same_day:  # the mark is of today, also for a host that starts again
        await daily()
    assert same_day.cancelled_caught
    assert not await world.is_gone("later")
    yesterday = mark.stat().st_mtime - retention.DAY
    os.utime(mark, (yesterday, yesterday))
    async with anyio.create_task_group() as second:
        second.start_soon(daily)
        await removed.until(lambda: len(told) == 2)
        second.cancel_scope.cancel()
    assert await world.is_gone("later")
    assert not await world.is_gone("open")
    assert mark.stat().st_mtime > yesterday + retention.DAY / 2


async def test_one_process_removes_at_a_time(world: World) -> None:
    await world.session("old")
    lease = await world.store.acquire(retention.LEASE)
    assert not isinstance(lease, LeaseHolder)
    assert (await world.gc()).busy
    assert not await world.is_gone("old")
    await lease.release()
    assert not (await world.gc()).busy
    assert await world.is_gone("old")
    assert os.listdir(world.places.data) == []
