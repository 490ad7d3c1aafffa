"""Records of one agent that wait for a commit share the next one, and each keeps its own outcome."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.keys import journal
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.recall import events_of, recall
from callboard.ports.store import Append, Fence, Put, Write
from callboard.testing import HostedSession, ScriptedModel, World
from callboard.types.errors import Conflict, StoreDamaged
from callboard.types.events import Event, TodosSet
from callboard.types.records import Todo

pytestmark = pytest.mark.anyio
LEAD = journal("s1", "lead", 1)


class Gate(MemoryStore):
    """A store that can hold back its commits, and counts those of the lead's journal."""

    def __init__(self) -> None:
        super().__init__()
        self.open = anyio.Event()
        self.open.set()
        self.counts: list[int] = []
        """Number of records of the lead in each commit."""
        self.damaged = False

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        self.counts.append(sum(isinstance(write, Append) and write.stream == LEAD for write in writes))
        await self.open.wait()
        if self.damaged:
            raise StoreDamaged("the power is gone")
        return await super().commit(*writes, fence=fence)


@asynccontextmanager
async def waiting(store: Gate) -> AsyncGenerator[tuple[HostedSession, AgentRuntime]]:
    """Host a lead with a commit in progress."""
    async with World(ScriptedModel({}), {}, store=store).session() as session, anyio.create_task_group() as group:
        await session.team.wait_for_begin("lead", 1)
        await session.quiet()
        agent = session.team.agent("lead")
        assert agent is not None
        store.open = anyio.Event()
        store.counts.clear()
        group.start_soon(agent.record, said("first"))
        await anyio.wait_all_tasks_blocked()
        yield session, agent


def said(text: str) -> Event:
    return TodosSet(at=1.0, todos=(Todo(content=text),))


async def tried(outcomes: dict[str, object], agent: AgentRuntime, text: str, *writes: Write, after: str = "") -> None:
    """Record a todo, unless the state has another one before it than expected, and note the outcome."""
    try:
        outcomes[text] = await agent.record(
            said(text),
            writes=writes,
            unless=lambda state: bool(after) and state.work.todos[0].content != after,
        )
    except Conflict as lost:
        outcomes[text] = lost.what
    except StoreDamaged:
        outcomes[text] = "damaged"


async def todos(store: Gate) -> list[str]:
    events = await events_of(store, LEAD)
    return [event.todos[0].content for event in events if isinstance(event, TodosSet)]


async def test_results_that_wait_for_a_commit_share_the_next_one() -> None:
    store = Gate()
    outcomes: dict[str, object] = {}
    async with waiting(store) as (_, agent), anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(tried, outcomes, agent, str(number))
        await anyio.wait_all_tasks_blocked()
        store.open.set()
    assert store.counts == [1, 5]
    assert outcomes == {str(number): True for number in range(5)}
    assert sorted(await todos(store)) == ["0", "1", "2", "3", "4", "first"]


async def test_a_condition_is_asked_of_the_state_after_the_records_before_it() -> None:
    store = Gate()
    outcomes: dict[str, object] = {}
    async with waiting(store) as (_, agent), anyio.create_task_group() as group:
        for text, after in (("a", "first"), ("b", "first"), ("c", "a")):
            group.start_soon(partial(tried, outcomes, agent, text, after=after))
            await anyio.wait_all_tasks_blocked()
        store.open.set()
    assert outcomes == {"a": True, "b": False, "c": True}
    assert await todos(store) == ["first", "a", "c"]


async def test_a_record_that_loses_a_race_fails_alone() -> None:
    store = Gate()
    outcomes: dict[str, object] = {}
    async with waiting(store) as (_, agent), anyio.create_task_group() as group:
        group.start_soon(tried, outcomes, agent, "a", Put("row", b"1", expected=0))
        group.start_soon(tried, outcomes, agent, "b", Put("row", b"2", expected=0))
        group.start_soon(tried, outcomes, agent, "c")
        await anyio.wait_all_tasks_blocked()
        store.open.set()
    assert sorted(map(str, outcomes.values())) == ["True", "True", "row"]
    assert len(await todos(store)) == 3


async def test_a_store_that_fails_fails_all_that_wait() -> None:
    store = Gate()
    outcomes: dict[str, object] = {}
    with pytest.RaisesGroup(StoreDamaged, flatten_subgroups=True):
        async with waiting(store) as (_, agent), anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(tried, outcomes, agent, str(number))
            await anyio.wait_all_tasks_blocked()
            store.damaged = True
            store.open.set()
            await anyio.wait_all_tasks_blocked()
    assert outcomes == dict.fromkeys("012", "damaged")
    store.damaged = False
    assert await todos(store) == []


async def test_the_state_is_that_of_the_journal_after_shared_commits() -> None:
    store = Gate()
    outcomes: dict[str, object] = {}
    async with waiting(store) as (session, agent):
        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(tried, outcomes, agent, str(number))
            await anyio.wait_all_tasks_blocked()
            store.open.set()
        assert store.counts[:5] == [1, 64, 64, 64, 8]
        assert (await recall(store, session.id, "lead", 1)) == agent.state
