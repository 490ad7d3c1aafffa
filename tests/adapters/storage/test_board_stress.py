"""Many real processes on one task board, some of them killed: each task is claimed once, and none is left behind.

The claimers are processes with their own leases (`board_child.py`). Claims, completions, and the release of dead
agents' tasks are the product's code (`engine/operations/claim_task.py`). A process that is to die is killed with kill
-9 right after it claims a task reserved for it: it certainly holds one, and perhaps more by its other claimers.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from tests.warm import NOTHING, STDERR, Process

from callboard.adapters.storage.sqlite import SqliteStore, open_store
from callboard.core.keys import agent_key, task_key
from callboard.ports.store import Put
from callboard.types.records import AgentRow, Task

pytestmark = pytest.mark.anyio

CHILD = Path(__file__).with_name("board_child.py")
SOAK = int(os.environ.get("SOAK", "1"))


@dataclass(frozen=True)
class Crowd:
    """Numbers of tasks, processes, claimers in each, and processes that die."""

    tasks: int
    processes: int
    claimers: int
    killed: int
    seed: int


async def fill(store: SqliteStore, crowd: Crowd, dying: Sequence[int]) -> None:
    """Fill the board: every third task waits for an earlier one, and each process that is to die has its own task."""
    chance = random.Random(crowd.seed)
    kept = chance.sample(range(crowd.tasks), len(dying))
    for number in range(crowd.tasks):
        waits = (f"t{chance.randrange(number)}",) if number and number % 3 == 0 else ()
        mine = f"p{dying[kept.index(number)]}.1-0" if number in kept else ""
        about = {"id": f"t{number}", "subject": "x", "blocked_by": waits, "created_at": number, "reserved_for": mine}
        task = Task.model_validate(about)
        await store.commit(Put(task_key("s1", task.id), task.encode(), expected=0))


async def run(folder: Path, crowd: Crowd) -> None:
    """Let the crowd complete all tasks.

    A row reports a dead process to the others, as a host does for a crashed agent. Some dead processes come back
    under their old lease, and continue.
    """
    store, chance = await open_store(folder, durability="process"), random.Random(crowd.seed)
    dying = sorted(chance.sample(range(crowd.processes), crowd.killed))
    await fill(store, crowd, dying)
    with contextlib.ExitStack() as stack:

        async def attend(place: int) -> None:
            code = await _child(stack, folder, f"p{place}", crowd.claimers)
            assert code == (-signal.SIGKILL if place in dying else 0)
            if place not in dying:
                return
            row = AgentRow(name=f"p{place}", kind="teammate", life="crashed")
            await store.commit(Put(agent_key("s1", row.name), row.encode()))
            if place % 2:
                assert await _child(stack, folder, f"p{place}", crowd.claimers) == 0

        with anyio.fail_after(300):
            async with anyio.create_task_group() as group:
                for place in range(crowd.processes):
                    group.start_soon(attend, place)
    await check_log(store, {f"p{place}.1" for place in dying})
    await store.aclose()


async def _child(stack: contextlib.ExitStack, folder: Path, lease: str, claimers: int) -> int:
    """Run a process to its end, and return its exit code."""
    line = [str(CHILD), str(folder), lease, str(claimers)]
    process = Process(line, folder, os.environ, stdout=NOTHING, stderr=STDERR)
    stack.callback(process.kill)
    return await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)


async def check_log(store: SqliteStore, dead: set[str]) -> None:
    """Check that each task was claimed once, except after a kill, and completed once, by its last claimer, in order."""
    board = {row.key: Task.model_validate_json(row.value or b"") for row in await store.keys(task_key("s1", ""))}
    claims: dict[str, list[str]] = defaultdict(list)
    done: dict[str, str] = {}
    for record in await store.read("log"):
        what, task, who, attempt = record.data.decode().split()
        if what == "claim":
            assert task not in done, f"{task} was claimed after it was done"
            assert set(board[task_key("s1", task)].blocked_by) <= done.keys(), f"{task} was claimed too early"
            claims[task].append(who)
            assert attempt == str(len(claims[task])), f"{task} was claimed twice at once"
        else:
            assert task not in done, f"{task} was done twice"
            done[task] = who
    assert {task.status for task in board.values()} == {"completed"}
    for task, claimers in claims.items():
        assert claimers[-1] == done[task], f"{task} was completed by another claimer"
        assert {who.rpartition("-")[0] for who in claimers[:-1]} <= dead, f"{task} was taken from a living claimer"
    again = sum(len(claimers) - 1 for claimers in claims.values())
    assert again >= len(dead), "each dead process held a task that another one completed"


@pytest.mark.slow
async def test_each_task_is_claimed_once_and_what_the_killed_held_is_finished_by_others(tmp_path: Path) -> None:
    await run(tmp_path / "s", Crowd(tasks=60, processes=4, claimers=2, killed=2, seed=1))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3 * SOAK))
async def test_300_tasks_16_claimers_in_8_processes(tmp_path: Path, seed: int) -> None:
    await run(tmp_path / "s", Crowd(tasks=300, processes=8, claimers=2, killed=seed % 5, seed=seed))
