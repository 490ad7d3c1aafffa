"""Several processes on one store: no write is lost, every follower wakes, and dead processes leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import anyio
import anyio.abc
import apsw
import pytest
from tests.warm import PIPE, STDERR, Process

from callboard.adapters.kernel.process_table import row_of
from callboard.adapters.storage import feed
from callboard.adapters.storage.sqlite import SqliteStore, open_store, statements
from callboard.ports.store import Append, LeaseHolder, Put, Record, Row

pytestmark = pytest.mark.anyio

CHILD = Path(__file__).with_name("store_child.py")
Child = subprocess.Popen[str] | Process
SOAK = int(os.environ.get("SOAK", "1"))


@contextlib.contextmanager
def child(folder: Path, *command: str, under: tuple[str, ...] = ()) -> Generator[Child, None, None]:
    line = [str(CHILD), str(folder), *command]
    process: Child
    if under:
        line = [*under, sys.executable, *line]
        process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    else:
        process = Process(line, Path.cwd(), os.environ, stdin=PIPE, stderr=STDERR)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines(process: Child) -> list[str]:
    """Return the output until the process ends, in whole lines: a kill may cut the last one."""
    return [line.rstrip("\n") for line in process.stdout or [] if line.endswith("\n")]


def first_line(process: Child) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def records_of(store: SqliteStore, stream: str = "s") -> list[str]:
    records = await store.read(stream)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    return [record.data.decode() for record in records]


async def test_eight_processes_append_and_a_follower_misses_nothing(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "s")
    seen: list[str] = []

    async def follow() -> None:
        async with store.follow("s") as records:
            async for record in records:
                assert record.seq == len(seen) + 1
                seen.append(record.data.decode())
                if len(seen) == 800:
                    return

    with anyio.fail_after(180), contextlib.ExitStack() as stack:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            writers = [stack.enter_context(child(tmp_path / "s", "append", f"w{n}", "100")) for n in range(8)]
        for writer in writers:
            assert len(await anyio.to_thread.run_sync(lines, writer)) == 100
    assert sorted(seen) == sorted(f"w{writer} {number}" for writer in range(8) for number in range(100))
    for writer in range(8):
        assert [line for line in seen if line.startswith(f"w{writer} ")] == [f"w{writer} {n}" for n in range(100)]
    assert await records_of(store) == seen
    await store.aclose()


async def killed_writer_loses_nothing(folder: Path, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    acknowledged: set[str] = set()
    for kill in range(rounds):
        with child(folder, "append_in_tasks", f"k{kill}", "400") as writer:
            acknowledged.add(first_line(writer))
            time.sleep(chance.random() * 0.15)
            writer.send_signal(signal.SIGKILL)
            acknowledged.update(lines(writer))
        store = await open_store(folder)
        there = await records_of(store)
        assert store.damage == ()
        assert acknowledged <= set(there), f"lost after kill {kill} of seed {seed}"
        assert len(set(there)) == len(there)
        assert {row.key for row in await store.keys("k")} == set(there), "a record without its key, or the reverse"
        await store.aclose()
    assert len(acknowledged) > rounds


async def test_what_was_acknowledged_outlives_a_kill_at_any_moment(tmp_path: Path) -> None:
    await killed_writer_loses_nothing(tmp_path / "s", rounds=8, seed=1)


@pytest.mark.soak
async def test_what_was_acknowledged_outlives_many_kills(tmp_path: Path) -> None:
    await killed_writer_loses_nothing(tmp_path / "s", rounds=25 * SOAK, seed=2)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("call", ["pwrite64", "fsync,fdatasync", "ftruncate", "flock"])
async def test_a_kill_inside_any_system_call_loses_nothing(tmp_path: Path, call: str) -> None:
    for when in (3, 17):
        inject = (
            "strace",
            "-qq",
            "-f",
            "-o",
            os.devnull,
            "-e",
            f"trace={call}",
            "-e",
            f"inject={call}:signal=KILL:when={when}",
        )
        with child(tmp_path / "s", "append_in_tasks", f"k{when}", "20", under=inject) as writer:
            acknowledged = set(lines(writer))
        store = await open_store(tmp_path / "s")
        assert acknowledged <= set(await records_of(store))
        assert store.damage == ()
        await store.aclose()


@pytest.fixture
def without_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable polling: a follower wakes only by notification."""
    monkeypatch.setattr(feed, "LOOK_SECONDS", 10_000.0)


@pytest.mark.usefixtures("without_polling")
async def test_a_follower_in_another_process_is_woken_by_the_doorbell(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "s")
    with child(tmp_path / "s", "append_lines") as writer, anyio.fail_after(180):
        assert await anyio.to_thread.run_sync(first_line, writer) == "ready"
        async with store.follow("s") as records:
            for number in range(20):
                with anyio.move_on_after(0.02):  # let it fall asleep
                    await anext(records)
                assert writer.stdin is not None
                writer.stdin.write(f"{number}\n")
                writer.stdin.flush()
                assert (await anext(records)).data == str(number).encode()
    await store.aclose()


async def check_wakes(here: SqliteStore, there: SqliteStore) -> None:
    """Check that a sleeping follower wakes after a write by another store object; raise `TimeoutError` if not."""

    async def listen(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with here.follow("s", after=await here.last("s")) as records:
            task_status.started()
            await anext(records)

    with anyio.fail_after(180):
        async with anyio.create_task_group() as tasks:
            await tasks.start(listen)
            await anyio.sleep(0.05)  # it has polled and fallen asleep; if it were late, the test would only be easier
            await there.commit(Append("s", b""))


@pytest.mark.usefixtures("without_polling")
async def test_a_folder_with_a_very_long_path_has_a_doorbell_too(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20) / ("longer" * 20)
    here, there = await open_store(folder), await open_store(folder)
    await check_wakes(here, there)
    await here.aclose()
    await there.aclose()


async def test_a_follower_hears_even_where_the_doorbell_is_broken(tmp_path: Path) -> None:
    here, there = await open_store(tmp_path / "s"), await open_store(tmp_path / "s")
    await check_wakes(here, there)
    for name in (tmp_path / "s" / "run").iterdir():
        name.unlink()
    await check_wakes(here, there)
    await here.aclose()
    await there.aclose()


async def test_a_bell_whose_name_was_swept_away_while_nobody_followed_still_hears_and_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread then sleeps without a timeout: waking it must not need the file name."""
    monkeypatch.setattr(feed, "LOOK_SECONDS", 0.02)
    here, there = await open_store(tmp_path / "s"), await open_store(tmp_path / "s")
    await check_wakes(here, there)
    await anyio.sleep(0.2)  # the last poll is over: it sleeps until another follower comes
    for name in (tmp_path / "s" / "run").iterdir():
        name.unlink()
    await check_wakes(here, there)
    await anyio.sleep(0.2)
    with anyio.fail_after(180):
        await here.aclose()
        await there.aclose()


async def test_sockets_of_the_dead_are_swept_up(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "s")
    with child(tmp_path / "s", "follow") as follower:
        assert await anyio.to_thread.run_sync(first_line, follower) == "ready"
        await store.commit(Append("s", b"hello"))
        assert await anyio.to_thread.run_sync(first_line, follower) == "hello"
        assert len(list((tmp_path / "s" / "run").iterdir())) == 1
        follower.kill()
        follower.wait()
    await store.commit(Append("s", b"anyone?"))
    await store.commit(Append("s", b"anyone?"))
    assert list((tmp_path / "s" / "run").iterdir()) == []
    await store.aclose()


async def test_a_lease_is_free_when_its_process_was_killed_though_its_children_live(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "s")
    with child(tmp_path / "s", "hold", "host") as host, contextlib.ExitStack() as left_behind:
        told = sorted([await anyio.to_thread.run_sync(first_line, host) for _ in range(2)])
        assert told[0] == "forked"
        number, *left = [int(word) for word in told[1].split()[1:]]
        for pid in left:
            left_behind.callback(os.kill, pid, signal.SIGKILL)
        held, row = await store.acquire("host"), row_of(host.pid)
        assert row is not None
        assert held == LeaseHolder(host.pid, row.started) == await store.holder("host")
        host.kill()
        host.wait()
        assert await store.holder("host") is None
        taken = await store.acquire("host")
        assert not isinstance(taken, LeaseHolder)
        assert taken.fence.number == number + 1
    await store.aclose()


async def test_commits_may_come_from_several_event_loops(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "s")

    async def work(name: str) -> None:
        for number in range(50):
            await store.commit(Append("s", f"{name} {number}".encode()))

    threads = [
        threading.Thread(target=anyio.run, args=(work, str(number)), kwargs={"backend": backend})
        for number, backend in enumerate(["asyncio", "trio", "asyncio", "trio"])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)
    assert len(await records_of(store)) == 200
    await store.aclose()


async def test_fifty_idle_followers_cost_next_to_nothing_and_write_nothing(tmp_path: Path) -> None:
    others = set(os.listdir("/proc/self/task")) - {str(threading.get_native_id())}  # threads of earlier tests
    store = await open_store(tmp_path / "s")

    async def follow(stream: str) -> None:
        async with store.follow(stream) as records:
            async for _ in records:
                pass

    def wakings() -> int:
        total = 0
        for thread in set(os.listdir("/proc/self/task")) - others:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                status = Path(f"/proc/self/task/{thread}/status").read_text()
                total += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
        return total

    def stamps() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")}

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(follow, str(number))
        await anyio.sleep(0.3)
        before, woke = stamps(), wakings()
        await anyio.sleep(2.5)
        assert (
            wakings() - woke < 60
        )  # one poll a second serves all followers; with one for each there would be 125 or more
        assert stamps() == before
        tasks.cancel_scope.cancel()
    await store.aclose()


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(("durability", "least", "most"), [("", 30, 60), ("process", 0, 20)])
async def test_each_commit_is_synced_before_it_is_acknowledged(
    tmp_path: Path, durability: str, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCESS", durability)
    trace = tmp_path / "trace"
    command = ("strace", "-qq", "-f", "-o", str(trace), "-e", "trace=fsync,fdatasync")
    with child(tmp_path / "s", "append", "w", "30", under=command) as writer:
        assert len(lines(writer)) == 30
    assert least <= len(re.findall(r"f(?:data)?sync\(", trace.read_text())) <= most


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    with anyio.fail_after(180):
        while not condition():
            await anyio.sleep(0.01)


async def test_idle_readers_sleep_while_another_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the doorbell, the look at the store once a second wakes only the readers of what has changed."""
    monkeypatch.setattr(feed, "LOOK_SECONDS", 0.02)
    read = statements.read
    changes = statements.changes
    asked: list[str] = []

    def noted_read(connection: apsw.Connection, stream: str, after: int, limit: int | None) -> list[Record]:
        asked.append(stream)
        return read(connection, stream, after, limit)

    def noted_changes(connection: apsw.Connection, prefix: str, position: int) -> tuple[Sequence[Row], int]:
        asked.append(prefix)
        return changes(connection, prefix, position)

    monkeypatch.setattr(statements, "read", noted_read)
    monkeypatch.setattr(statements, "changes", noted_changes)
    here, there = await open_store(tmp_path / "s"), await open_store(tmp_path / "s")
    received: list[str] = []

    async def follow(stream: str) -> None:
        async with here.follow(stream) as records:
            async for record in records:
                received.append(record.data.decode())

    async def watch(prefix: str) -> None:
        async with here.watch(prefix) as rows:
            async for row in rows:
                received.append(row.key)

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(follow, f"idle{number}")
            tasks.start_soon(watch, f"idle/{number}")
        tasks.start_soon(follow, "busy")
        tasks.start_soon(watch, "busy/")
        await eventually(lambda: len(set(asked)) == 12)
        for name in (tmp_path / "s" / "run").iterdir():
            name.unlink()
        await there.commit(Append("busy", b"first"))  # after it, the readers' positions are known to the look
        await eventually(lambda: received == ["first"])
        await anyio.sleep(0.2)
        asked.clear()
        for number in range(20):
            await there.commit(Append("busy", f"{number}".encode()), Put(f"busy/{number}", b"x"))
            await anyio.sleep(0.03)
        await eventually(lambda: len(received) == 41)
        assert set(asked) == {"busy", "busy/"}
        await there.commit(Append("idle3", b"late"), Put("idle/4", b"x"))
        await eventually(lambda: len(received) == 43)
        tasks.cancel_scope.cancel()
    await here.aclose()
    await there.aclose()
