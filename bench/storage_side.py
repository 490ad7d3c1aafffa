"""One side of `storage.py`: writers that commit one message after another, or a reader that follows them.

`storage_side.py KIND ENGINE PLACE WRITERS COUNT`: prints `ready`, waits for a line, works, and prints a JSON value.

KIND `ours`: agents of one process, each of which sends a message as the bus does: the envelope with its id, and
the sender's journal. `bare`: threads with a connection each that insert the same bytes into two plain tables, and
commit. `send`: one agent that sends `COUNT` messages at a pace of `RATE`, each with the time. `follow`: reads them, and
prints the delays in ms. `host`: hosts a session, and prints the delay in ms from each of `COUNT` prompts to the model
call that has it. With `WRITERS` 1 it sends the prompts itself. `prompt`: sends them from another process.
"""

from __future__ import annotations

import json
import random
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import apsw
import psycopg

from callboard.adapters.storage.postgres.address import parse_address
from callboard.adapters.storage.postgres.store import open_store as open_postgres
from callboard.adapters.storage.sqlite.store import open_store as open_sqlite
from callboard.engine.commands import send_prompt
from callboard.ports.model import ModelRequest, OnDelta, Reply
from callboard.ports.store import Append, Store
from callboard.testing import ScriptedModel, World, say

ENVELOPE = b'{"v":1,"id":"msg_0123456789","kind":"message","sender":"lead","body":"' + b"All is well. " * 30 + b'"}'
RECORD = b'{"v":1,"at":17957907.0,"t":"envelope_sent","id":"msg_0123456789"}' * 4
RATE = 1_000
SENT = re.compile(rb"sent at (\d+\.\d+) s")
PAUSE = 0.05
"""Mean seconds between two prompts."""


async def opened(engine: str, place: str) -> Store:
    if engine == "sqlite":
        return await open_sqlite(Path(place) / "ours")
    return await open_postgres(parse_address(place), "bench")


async def ours(engine: str, place: str, writers: int, count: int) -> float:
    store = await opened(engine, place)

    async def write(name: str) -> None:
        for number in range(count):
            await store.commit(
                Append(f"m/{name}", ENVELOPE, id=f"{time.time_ns()} {number}"), Append(f"j/{name}", RECORD)
            )

    begin()
    started = time.perf_counter()
    async with anyio.create_task_group() as group:
        for number in range(writers):
            group.start_soon(write, str(number))
    took = time.perf_counter() - started
    await store.aclose()
    return took


def bare(engine: str, place: str, writers: int, count: int) -> float:
    make = sqlite_inserts if engine == "sqlite" else postgres_inserts
    inserts = [make(place) for _ in range(writers)]

    def write(insert: Callable[[int], None]) -> None:
        for number in range(count):
            insert(number)

    threads = [threading.Thread(target=write, args=(insert,)) for insert in inserts]
    begin()
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def sqlite_inserts(place: str) -> Callable[[int], None]:
    connection: Any = apsw.Connection(str(Path(place) / "bare.db"))  # one of its types is unknown to the checker
    connection.set_busy_timeout(60_000)
    connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
    for table in ("bare_message", "bare_record"):
        connection.execute(f"CREATE TABLE IF NOT EXISTS {table} (number INTEGER PRIMARY KEY, data BLOB)")

    def insert(_number: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO bare_message (data) VALUES (?)", (ENVELOPE,))
        connection.execute("INSERT INTO bare_record (data) VALUES (?)", (RECORD,))
        connection.execute("COMMIT")

    return insert


def postgres_inserts(place: str) -> Callable[[int], None]:
    connection = psycopg.connect(place, autocommit=True)
    for table in ("bare_message", "bare_record"):
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(1)")
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table} (number bigserial PRIMARY KEY, data bytea)")

    def insert(_number: int) -> None:
        with connection.pipeline(), connection.transaction():
            connection.execute("INSERT INTO bare_message (data) VALUES (%b)", (ENVELOPE,))
            connection.execute("INSERT INTO bare_record (data) VALUES (%b)", (RECORD,))

    return insert


async def send(engine: str, place: str, _writers: int, count: int) -> float:
    store = await opened(engine, place)
    begin()
    started = time.perf_counter()
    async with anyio.create_task_group() as group:
        for number in range(count):
            await anyio.sleep(max(0.0, started + number / RATE - time.perf_counter()))
            group.start_soon(store.commit, Append("m/paced", repr(time.time()).encode()))
    took = time.perf_counter() - started
    await store.aclose()
    return took


async def follow(engine: str, place: str, _writers: int, count: int) -> list[float]:
    store = await opened(engine, place)
    delays: list[float] = []
    async with store.follow("m/paced") as records:
        begin()
        while len(delays) < count:
            record = await anext(records)
            delays.append((time.time() - float(record.data)) * 1_000)
    await store.aclose()
    return delays


class Recipient(ScriptedModel):
    """Model that notes how long each prompt took to its call, and answers at once."""

    def __init__(self, count: int) -> None:
        super().__init__({})
        self.delays: list[float] = []
        self.complete_at = count
        self.all_read = anyio.Event()

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        now = time.time()
        self.delays += [(now - float(sent)) * 1_000 for sent in SENT.findall(request.messages[-1])]
        if len(self.delays) >= self.complete_at:
            self.all_read.set()
        await anyio.lowlevel.checkpoint()
        return say("I see.")


async def host(engine: str, place: str, writers: int, count: int) -> list[float]:
    store = await opened(engine, place)
    model = Recipient(count)
    async with World(model, {}, store=store).session(session_of(writers)) as team:
        await team.prompt("begin")
        await team.quiet()
        begin()
        if writers:
            await send_prompts(store, session_of(writers), count)
        await model.all_read.wait()
    await store.aclose()
    return model.delays


async def prompt(engine: str, place: str, writers: int, count: int) -> int:
    store = await opened(engine, place)
    begin()
    await send_prompts(store, session_of(writers), count)
    await store.aclose()
    return count


def session_of(writers: int) -> str:
    """Return the id of the session of a host, which tells the host that prompts itself from the other one."""
    return f"s{writers}"


async def send_prompts(store: Store, session: str, count: int) -> None:
    chance = random.Random(1)
    for number in range(count):
        await anyio.sleep(chance.random() * 2 * PAUSE)
        now = time.time()
        await send_prompt(store, session, f"sent at {now:.6f} s", to="lead", now=now, nonce=f"{now} {number}")


def begin() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def main() -> None:
    kind, engine, place, writers, count = sys.argv[1:]
    if kind == "bare":
        print(json.dumps(bare(engine, place, int(writers), int(count))))
        return
    work = {"ours": ours, "send": send, "follow": follow, "host": host, "prompt": prompt}[kind]
    print(json.dumps(anyio.run(work, engine, place, int(writers), int(count))))


if __name__ == "__main__":
    main()
