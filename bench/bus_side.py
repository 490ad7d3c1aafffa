"""Process of `bus.py`: a writer that waits for its start, or a recipient whose delays are measured.

`ours FOLDER N TASKS` and `direct FOLDER N` print `ready`, wait for a line, send N envelopes, each durable before the
next (`ours`: N for each of TASKS concurrent agents), and print the duration in seconds. `idle FOLDER N` and
`busy FOLDER N` print a JSON list of [delay, rest of the current step] in seconds for each envelope.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import apsw

from callboard.adapters.storage.sqlite import SqliteStore, open_store
from callboard.adapters.tools.todo import todo_tools
from callboard.core.messaging.envelopes import envelope_write
from callboard.engine.commands import send_prompt
from callboard.ports.model import ModelRequest, OnDelta, Reply
from callboard.testing import ScriptedModel, World, say, use
from callboard.types.records import Envelope

CONTENT = "The grammar of the cron field is ambiguous: see lines 40 to 61 of parser.py. " * 6
"""A message of about half a kilobyte, as agents send to each other."""
MODEL_SECONDS = 0.05
"""Seconds that a model call of a busy recipient takes."""


def envelope(writer: str, number: int) -> Envelope:
    about = {"id": f"env_{writer}_{number}", "sender": writer, "recipient": "lead", "type": "message"}
    return Envelope.model_validate({**about, "content": CONTENT, "sent_at": 1_800_000_000.0})


def go() -> float:
    """Wait for the common start, and return its time."""
    print("ready", flush=True)
    sys.stdin.readline()
    return time.perf_counter()


async def ours(folder: str, count: str, tasks: str) -> None:
    store = await open_store(Path(folder, "store"))

    async def write(writer: str) -> None:
        for number in range(int(count)):
            await store.commit(envelope_write("s1", envelope(writer, number)))

    begun = go()
    async with anyio.create_task_group() as group:
        for task in range(int(tasks)):
            group.start_soon(write, f"a{random.getrandbits(40)}-{task}")
    print(time.perf_counter() - begun, flush=True)
    await store.aclose()


async def direct(folder: str, count: str) -> None:
    """Write the same bytes with an insert and a commit each, with the same durability and nothing else."""
    connection: Any = apsw.Connection(str(Path(folder, "direct.db")))  # the types of apsw are partly unknown
    connection.set_busy_timeout(60_000)
    execute: Callable[..., object] = connection.execute
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        execute(f"PRAGMA {pragma}")
    execute("CREATE TABLE IF NOT EXISTS mail (seq INTEGER PRIMARY KEY, data BLOB)")
    writer = f"a{random.getrandbits(40)}-0"
    begun = go()
    for number in range(int(count)):
        execute("BEGIN IMMEDIATE")
        execute("INSERT INTO mail (data) VALUES (?)", (envelope(writer, number).encode(),))
        execute("COMMIT")
    print(time.perf_counter() - begun, flush=True)
    connection.close()


class Recipient(ScriptedModel):
    """Model that records when it is called with a sent word; a busy one makes one step after another."""

    def __init__(self, *, busy: bool) -> None:
        super().__init__({})
        self._busy, self.steps = busy, 0
        self.word, self.seen, self.ended = "", 0.0, 0.0
        self.heard = anyio.Event()

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        now = time.perf_counter()
        if self.word and self.word.encode() in request.messages[-1]:
            self.word, self.seen = "", now
            self.heard.set()
        if not self._busy:
            await anyio.lowlevel.checkpoint()
            return say("I see.")
        await anyio.sleep(MODEL_SECONDS)
        if self.word:
            self.ended = time.perf_counter()
        self.steps += 1
        return use("todo_write", {"todos": [{"content": f"step {self.steps}", "status": "pending"}]})


async def delays(folder: str, count: str, *, busy: bool) -> None:
    """Send one word after another to a lead, and return the time of each until the lead's next model call."""
    store: SqliteStore = await open_store(Path(folder, "store"))
    model, chance = Recipient(busy=busy), random.Random(1)
    world = World(model, {tool.spec.name: tool for tool in todo_tools()}, store=store)
    found: list[tuple[float, float]] = []
    async with world.session() as team:
        await team.prompt("begin")
        for number in range(int(count)):
            await anyio.sleep(chance.random() * 2 * MODEL_SECONDS)
            if not busy:
                await team.quiet()
            model.word, model.heard, model.ended = f"word-{number}-", anyio.Event(), 0.0
            begun, now = time.perf_counter(), world.clock.now()
            await send_prompt(store, "s1", model.word, to="lead", now=now, nonce=f"n{number}")
            await model.heard.wait()
            found.append((model.seen - begun, max(0.0, model.ended - begun)))
    print(json.dumps(found), flush=True)
    await store.aclose()


async def main(kind: str, folder: str, count: str, tasks: str) -> None:
    if kind == "ours":
        await ours(folder, count, tasks)
    elif kind == "direct":
        await direct(folder, count)
    else:
        await delays(folder, count, busy=kind == "busy")


if __name__ == "__main__":
    side, place, how_many, at_once = (*sys.argv[1:], "1")[:4]
    anyio.run(main, side, place, how_many, at_once)
