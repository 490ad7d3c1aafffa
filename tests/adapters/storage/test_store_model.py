"""All stores give the same answers to the same operations, even after they were opened again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.adapters.storage.memory import MemoryStore
from callboard.adapters.storage.sqlite import open_store
from callboard.ports.store import Append, Delete, Expect, Fence, Lease, LeaseHolder, Put, Store, Write
from callboard.types.errors import Conflict, Fenced

NAMES = st.sampled_from(["a", "a/b", "a/", "b", "\U0010ffff"])
DATA = st.binary(max_size=6)
EXPECTED = st.none() | st.integers(0, 6)


@dataclass(frozen=True)
class Commit:
    writes: tuple[Write, ...]
    fence: Fence | None


@dataclass(frozen=True)
class Elsewhere:
    """A commit of another process that has the store open, too."""

    commit: Commit


@dataclass(frozen=True)
class Take:
    lease: str


@dataclass(frozen=True)
class Release:
    lease: str


@dataclass(frozen=True)
class Reopen:
    pass


WRITES = (
    st.builds(Append, NAMES, DATA, id=st.none() | st.sampled_from(["x", "y", ""]), expected=EXPECTED)
    | st.builds(Put, NAMES, DATA, expected=EXPECTED)
    | st.builds(Delete, NAMES, expected=EXPECTED)
    | st.builds(Expect, NAMES, st.integers(0, 3))
)
FENCES = st.none() | st.builds(Fence, st.sampled_from(["l", "m"]), st.integers(0, 3))
COMMITS = st.builds(Commit, st.lists(WRITES, max_size=4).map(tuple), FENCES) | st.builds(
    Commit, st.lists(WRITES, min_size=1, max_size=3).map(tuple), st.none()
)
STEP = (
    COMMITS
    | st.builds(Take, st.sampled_from(["l", "m"]))
    | st.builds(Release, st.sampled_from(["l", "m"]))
    | st.just(Reopen())
)
STEPS = st.lists(STEP, max_size=12)
STEPS_OF_TWO = st.lists(STEP | COMMITS | st.builds(Elsewhere, COMMITS), max_size=20)


async def outcome(store: Store, step: Commit) -> object:
    try:
        return await store.commit(*step.writes, fence=step.fence)
    except Conflict as conflict:
        return ("conflict", conflict.what, conflict.expected, conflict.found)
    except Fenced:
        return "fenced"


async def contents_of(store: Store) -> object:
    streams = [(list(await store.read(name)), await store.last(name)) for name in ("a", "a/b", "a/", "b", "\U0010ffff")]
    rows = [await store.keys(prefix) for prefix in ("", "a", "a/", "\U0010ffff", "z")]
    return streams, rows, [list(await store.read("a", after, limit)) for after in (-1, 0, 2) for limit in (None, 0, 1)]


Open = Callable[[], Awaitable[Store]]


class Leases:
    """Leases that two stores hold for the same steps."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], Lease] = {}

    async def take(self, lease: str, stores: Sequence[Store]) -> None:
        taken = [await store.acquire(lease) for store in stores]
        assert len({isinstance(one, LeaseHolder) for one in taken}) == 1
        for index, one in enumerate(taken):
            if not isinstance(one, LeaseHolder):
                self._held[lease, index] = one
        assert len({one.fence for one in taken if not isinstance(one, LeaseHolder)}) <= 1

    async def release(self, lease: str) -> None:
        for index in range(2):
            if (lease, index) in self._held:
                await self._held.pop((lease, index)).release()


async def run_steps(open_other: Open, steps: Sequence[object]) -> None:
    """Take the steps in memory and in another store, and compare every answer and the contents after each step."""
    memory: MemoryStore = MemoryStore()
    other = await open_other()
    elsewhere = await open_other() if any(isinstance(step, Elsewhere) for step in steps) else other
    leases = Leases()
    for step in steps:
        match step:
            case Commit():
                assert await outcome(memory, step) == await outcome(other, step)
            case Elsewhere(commit):
                assert await outcome(memory, commit) == await outcome(elsewhere, commit)
            case Take(lease):
                await leases.take(lease, (memory, other))
            case Release(lease):
                await leases.release(lease)
            case _:
                await other.aclose()
                memory = memory.reopen()
                other = await open_other()
                leases = Leases()
        assert await contents_of(memory) == await contents_of(other)
    assert other.damage == ()
    for store in (other, elsewhere):
        await store.aclose()


def check_steps(steps: Sequence[object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(run_steps, partial(open_store, Path(folder) / "s", durability="process"), steps)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(STEPS)
def test_sqlite_answers_as_memory_does(steps: Sequence[object]) -> None:
    check_steps(steps)


@pytest.mark.soak
@settings(max_examples=1_000 * int(os.environ.get("SOAK", "1")), deadline=None)
@given(STEPS)
def test_sqlite_answers_as_memory_does_for_long(steps: Sequence[object]) -> None:
    check_steps(steps)
