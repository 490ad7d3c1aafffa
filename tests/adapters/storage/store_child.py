"""Process that uses a store; tests start it, kill it, and read its answers, one per line on stdout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from callboard.adapters.storage.sqlite import SqliteStore, open_store
from callboard.ports.store import Append, LeaseHolder, Put
from callboard.types.errors import StoreFull


def print_line(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def append(store: SqliteStore, name: str, count: str) -> None:
    """Append `count` records to stream `s`, and print each number after its acknowledgement."""
    for number in range(int(count)):
        (seq,) = await store.commit(Append("s", f"{name} {number}".encode(), id=f"{name} {number}"))
        print_line(seq)


async def append_in_tasks(store: SqliteStore, name: str, count: str) -> None:
    """Append in ten concurrent tasks, with a key beside each record."""

    async def append_records(task: int) -> None:
        for number in range(int(count)):
            text = f"{name} {task} {number}"
            await store.commit(Append("s", text.encode(), id=text), Put(text, text.encode(), expected=0))
            print_line(text)

    async with anyio.create_task_group() as tasks:
        for task in range(10):
            tasks.start_soon(append_records, task)


async def append_lines(store: SqliteStore) -> None:
    """Append one record for each input line."""
    print_line("ready")
    for line in iter(sys.stdin.readline, ""):
        await store.commit(Append("s", line.strip().encode()))


async def follow(store: SqliteStore) -> None:
    """Print every record of stream `s`."""
    async with store.follow("s") as records:
        print_line("ready")
        async for record in records:
            print_line(record.data.decode())


async def hold(store: SqliteStore, lease: str) -> None:
    """Take a lease, leave two child processes running, and wait to be killed."""
    taken = await store.acquire(lease)
    assert not isinstance(taken, LeaseHolder)
    started = subprocess.Popen(["sleep", "60"], close_fds=False)
    forked = os.fork()
    if forked == 0:
        print_line("forked")
        sys.stdin.read()
        os._exit(0)
    print_line("held", taken.fence.number, started.pid, forked)
    await anyio.sleep_forever()


async def append_despite_refusals(store: SqliteStore, count: str) -> None:
    """Append `count` records, print which were acknowledged or refused, and continue after each refusal."""
    for number in range(int(count)):
        try:
            await store.commit(Append("s", str(number).encode()))
            print_line("kept", number)
        except StoreFull:
            print_line("refused", number)


COMMANDS: dict[str, Callable[..., Awaitable[None]]] = {
    "append": append,
    "append_in_tasks": append_in_tasks,
    "append_lines": append_lines,
    "follow": follow,
    "hold": hold,
    "append_despite_refusals": append_despite_refusals,
}


async def main(folder: str, command: str, *arguments: str) -> None:
    store = await open_store(Path(folder), durability="process" if os.environ.get("PROCESS") else "full")
    await COMMANDS[command](store, *arguments)
    await store.aclose()


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
