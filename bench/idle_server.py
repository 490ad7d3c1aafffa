"""Measure what idle sessions cost on a PostgreSQL server: transactions per second, CPU of the host, bytes of a step.

One process follows the mailbox of each agent, and watches the rows of each session, as a host does. Then it waits for
`SECONDS`. The bytes of a step are the growth of tables and indexes by `STEPS` commits of an envelope and a record.

`idle_server.py [SESSIONS] [AGENTS]`: 1,000 sessions with 20 agents each by default. No bounds: it prints figures.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio
import psycopg
from storage_side import ENVELOPE, RECORD

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.postgres_server import PostgresServer, programs

from callboard.adapters.storage.postgres.address import parse_address
from callboard.adapters.storage.postgres.store import PostgresStore, open_store
from callboard.ports.store import Append

SECONDS = 30.0
SETTLED = 20.0
"""Seconds for the first looks, and for the server to count what was before: a connection at rest reports its
transactions up to 10 s later.
"""
STEPS = 2_000


def transactions(url: str) -> int:
    """Return the transactions of all connections so far."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_clear_snapshot()")
        rows = connection.execute("SELECT sum(xact_commit + xact_rollback)::bigint FROM pg_stat_database").fetchall()
    return int(rows[0][0])


def table_bytes(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        sql = "SELECT sum(pg_total_relation_size(format('callboard.%I', tablename)))::bigint FROM pg_tables "
        rows = connection.execute(sql + "WHERE schemaname = 'callboard'").fetchall()
    return int(rows[0][0])


def stop_vacuum(url: str) -> None:
    """Stop the server's own workers, whose transactions the statistics count with those of the host."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET autovacuum = off")
        connection.execute("SELECT pg_reload_conf()")


async def idle(store: PostgresStore, url: str, sessions: int, agents: int) -> None:
    async with AsyncExitStack() as stack:
        for session in range(sessions):
            await stack.enter_async_context(store.watch(f"s/{session}/"))
            for agent in range(agents):
                await stack.enter_async_context(store.follow(f"m/{session}/{agent}.1"))
        await anyio.to_thread.run_sync(stop_vacuum, url)
        await anyio.sleep(SETTLED)
        before = await anyio.to_thread.run_sync(transactions, url)
        cpu = time.process_time()
        began = time.monotonic()
        await anyio.sleep(SECONDS)
        took = time.monotonic() - began
        used = time.process_time() - cpu
        count = await anyio.to_thread.run_sync(transactions, url) - before
        print(
            f"{sessions:,} idle sessions with {agents} agents: {count / took:.1f} transactions/s at the server, ",
            end="",
        )
        print(f"{used / took * 1_000:.1f} ms of CPU per second in the host")


async def step_bytes(store: PostgresStore, url: str) -> None:
    await store.commit(Append("m/0/lead.1", ENVELOPE), Append("j/0/lead.1", RECORD))
    before = await anyio.to_thread.run_sync(table_bytes, url)
    for number in range(STEPS):
        await store.commit(Append("m/0/lead.1", ENVELOPE, id=f"msg_{number:010}"), Append("j/0/lead.1", RECORD))
    grown = await anyio.to_thread.run_sync(table_bytes, url) - before
    written = len(ENVELOPE) + len(RECORD)
    print(f"a message of {written} bytes takes {grown / STEPS:.0f} bytes of tables and indexes")


async def measure(url: str, sessions: int, agents: int) -> None:
    store = await open_store(parse_address(url), "idle", durability="process")
    try:
        await step_bytes(store, url)
        await idle(store, url, sessions, agents)
    finally:
        await store.aclose()


def main() -> int:
    if programs() is None:
        print("there are no programs of PostgreSQL: no figures")
        return 0
    sessions = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    agents = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder), durable=False)
        server.start()
        try:
            anyio.run(partial(measure, server.url, sessions, agents))
        finally:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
