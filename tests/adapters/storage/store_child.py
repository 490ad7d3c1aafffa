"""A process that uses a store: what the tests start, kill and listen to. Each answer is one line on standard output."""

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


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def append(store: SqliteStore, name: str, count: str) -> None:
    """Append `count` records to stream `s`, and say each one's number once it is acknowledged."""
    for number in range(int(count)):
        (seq,) = await store.commit(Append("s", f"{name} {number}".encode(), id=f"{name} {number}"))
        say(seq)


async def append_in_tasks(store: SqliteStore, name: str, count: str) -> None:
    """The same in ten tasks at once, with a key beside each record."""

    async def one(task: int) -> None:
        for number in range(int(count)):
            text = f"{name} {task} {number}"
            await store.commit(Append("s", text.encode(), id=text), Put(text, text.encode(), expected=0))
            say(text)

    async with anyio.create_task_group() as tasks:
        for task in range(10):
            tasks.start_soon(one, task)


async def append_when_told(store: SqliteStore) -> None:
    """Append one record for each line that comes in."""
    say("ready")
    for line in iter(sys.stdin.readline, ""):
        await store.commit(Append("s", line.strip().encode()))


async def follow(store: SqliteStore) -> None:
    """Say every record of stream `s`."""
    async with store.follow("s") as records:
        say("ready")
        async for record in records:
            say(record.data.decode())


async def hold(store: SqliteStore, lease: str) -> None:
    """Take a lease, leave two children behind that live on, and wait to be killed."""
    taken = await store.acquire(lease)
    assert not isinstance(taken, LeaseHolder)
    started = subprocess.Popen(["sleep", "60"], close_fds=False)
    forked = os.fork()
    if forked == 0:
        say("forked")
        sys.stdin.read()
        os._exit(0)
    say("held", taken.fence.number, started.pid, forked)
    await anyio.sleep_forever()


async def stubborn(store: SqliteStore, count: str) -> None:
    """Append `count` records, and say which were acknowledged and which were refused; go on after each refusal."""
    for number in range(int(count)):
        try:
            await store.commit(Append("s", str(number).encode()))
            say("kept", number)
        except StoreFull:
            say("refused", number)


COMMANDS: dict[str, Callable[..., Awaitable[None]]] = {
    "append": append,
    "append_in_tasks": append_in_tasks,
    "append_when_told": append_when_told,
    "follow": follow,
    "hold": hold,
    "stubborn": stubborn,
}


async def main(folder: str, command: str, *arguments: str) -> None:
    store = await open_store(Path(folder), durability="process" if os.environ.get("PROCESS") else "full")
    await COMMANDS[command](store, *arguments)
    await store.aclose()


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
