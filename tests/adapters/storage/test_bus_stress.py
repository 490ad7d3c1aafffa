"""Many real processes on one bus, some of them killed: each envelope is delivered once, in its sender's order.

Eight processes with eight agents each exchange envelopes through one SQLite store (`bus_child.py`). A process is killed
with kill -9 at a random moment; its successor reads the agents' progress from their journals. The product's code sends,
receives, and delivers.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from tests.adapters.storage.bus_child import SESSION, expected

from callboard.adapters.storage.sqlite import SqliteStore, open_store
from callboard.core.keys import journal, mailbox
from callboard.core.reports.receipts import receipts
from callboard.engine.recall import events_of
from callboard.types import events as ev
from callboard.types.records import Envelope

pytestmark = pytest.mark.anyio

CHILD = Path(__file__).with_name("bus_child.py")
SOAK = int(os.environ.get("SOAK", "1"))
PROCESSES, AGENTS = 8, 64


@dataclass(frozen=True)
class Load:
    """Number of envelopes that each agent sends, and number of processes that are killed."""

    count: int
    kills: int
    seed: int


class Crowd:
    """The processes; each killed one is replaced."""

    def __init__(self, folder: Path, count: int) -> None:
        self.deaths = 0
        line = [sys.executable, str(CHILD), str(folder), *map(str, (PROCESSES, AGENTS, count))]
        self._server = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._running: dict[int, int] = {}
        """Process id by place."""

    @property
    def places(self) -> list[int]:
        """Places with a running process."""
        return sorted(self._running)

    def kill(self, place: int) -> None:
        """Kill the process of a place, and once only, though it takes a moment until another one works there. It is
        reaped in `attend`, so its id cannot be reused before."""
        os.kill(self._running.pop(place), signal.SIGKILL)

    def close(self) -> None:
        for pid in self._running.values():
            os.kill(pid, signal.SIGKILL)
        self._server.kill()
        self._server.communicate()

    async def attend(self, place: int) -> None:
        """Let the processes of a place work until one of them exits by itself."""
        while (code := await self._to_its_end(place)) == -signal.SIGKILL:
            self.deaths += 1
        assert code == 0, f"process {place} ended with {code}"

    async def _to_its_end(self, place: int) -> int:
        pid = self._running[place] = self._answer("start", place)
        ended = os.pidfd_open(pid)
        try:
            await anyio.wait_readable(ended)
        finally:
            os.close(ended)
        self._running.pop(place, None)
        return self._answer("reap", pid)

    def _answer(self, command: str, number: int) -> int:
        server = self._server
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(f"{command} {number}\n")
        server.stdin.flush()
        return int(server.stdout.readline())


async def run(folder: Path, load: Load) -> None:
    """Let all agents send and receive everything, and kill processes when a random mailbox has a random depth."""
    store, chance, crowd = await open_store(folder), random.Random(load.seed), Crowd(folder, load.count)
    due = expected(AGENTS, load.count)
    try:
        with anyio.fail_after(900):
            async with anyio.create_task_group() as group:
                for place in range(PROCESSES):
                    group.start_soon(crowd.attend, place)
                for number in range(load.kills):
                    watched = f"a{chance.randrange(AGENTS)}"
                    await _wait_for_depth(store, watched, due[watched] * (number + 1) // (load.kills + 2))
                    crowd.kill(chance.choice(crowd.places))
    finally:
        crowd.close()
    assert crowd.deaths == load.kills
    await check_deliveries(store, load.count)
    await store.aclose()


async def _wait_for_depth(store: SqliteStore, name: str, seq: int) -> None:
    """Wait until a mailbox holds this many envelopes."""
    async with store.follow(mailbox(SESSION, name, 1)) as records:
        async for record in records:
            if record.seq >= seq:
                return


async def check_deliveries(store: SqliteStore, count: int) -> None:
    """Check that each envelope was sent once, received once in mailbox order, and delivered once, in sending order."""
    due, orders = expected(AGENTS, count), defaultdict[tuple[str, str], list[int]](list)
    for name in (f"a{number}" for number in range(AGENTS)):
        records = await store.read(mailbox(SESSION, name, 1))
        mail = [Envelope.model_validate_json(one.data).model_copy(update={"seq": one.seq}) for one in records]
        assert [one.seq for one in mail] == list(range(1, due[name] + 1))
        events = await events_of(store, journal(SESSION, name, 1))
        got = [one.envelope for one in events if isinstance(one, ev.EnvelopeReceived)]
        assert got == mail, f"{name} received other envelopes than were sent to it"
        there = {one.id: one for one in mail}
        ids = [id for one in events if isinstance(one, ev.EnvelopesDelivered) for id in one.ids]
        assert len(ids) == len(set(ids)) == len(there), f"{name} read an envelope twice, or never"
        assert {one.state for one in receipts(mail, events)} == {"delivered"}
        for id in ids:
            orders[there[id].sender, name].append(int(there[id].content))
    assert all(order == sorted(set(order)) for order in orders.values())
    assert sum(map(len, orders.values())) == AGENTS * count


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, pytest.param(79, marks=pytest.mark.soak)])  # 640 and 5,000 envelopes
async def test_64_agents_in_8_processes_some_killed_get_all_envelopes_once_and_in_order(
    tmp_path: Path, count: int
) -> None:
    await run(tmp_path / "s", Load(count=count, kills=2, seed=1))


@pytest.mark.soak
@pytest.mark.parametrize(("seed", "kills"), [(seed, kills) for seed in range(SOAK) for kills in (0, 12)])
async def test_64_agents_in_8_processes_some_killed_get_all_of_100000_envelopes_once_and_in_order(
    tmp_path: Path, seed: int, kills: int
) -> None:
    await run(tmp_path / "s", Load(count=1_563, kills=kills, seed=seed))
