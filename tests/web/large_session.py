"""A session with many agents and events, of which some wait for each other, for tests of the page."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from tests.core.agent.agent_states import Life, finished, judged, settled, started

from callboard.core.approvals.requests import open_request
from callboard.core.keys import agent_key, journal, request_key, session_key, task_key
from callboard.ports.store import Append, Put, Store, Write
from callboard.sessions.places import find_places
from callboard.sessions.stores import log_notice, open_store
from callboard.types import events as ev
from callboard.types.events import Event
from callboard.types.records import AgentRow, Budget, Request, SessionRow, Task
from callboard.types.settings import Settings

ROUNDS = 15
"""Calls of each agent; each is about six events."""
WAITS = (("agent-001", "agent-002"), ("agent-002", "agent-003"), ("agent-003", "agent-002"), ("agent-004", "person"))
"""Who waits for whom. The second and the third wait for each other."""


def names(agents: int) -> list[str]:
    return ["lead", *(f"agent-{number:03}" for number in range(1, agents))]


def worked(rounds: int = ROUNDS) -> Life:
    """Return the life of an agent that has made these calls, one after another, and waits for an answer."""
    life = Life.begun(budget=Budget(cost_usd=2.0)).prompted("Mend it.")
    for _ in range(rounds):
        life = settled(finished(started(judged(life.called("read_file"), "c1"), "c1"), "c1"), "c1")
    asked = life.called("bash")
    return asked.on(
        ev.ApprovalNeeded, call="c1", request_id="req_own", why="it asks", rule="D", mode="default", level=0
    )


def events_of(life: Life, name: str, *, waits: bool) -> Iterator[Event]:
    """Yield the events of a life for an agent of this name. `waits`: with its open question."""
    for event in life.events:
        if isinstance(event, ev.AgentStarted):
            kind = "lead" if name == "lead" else "teammate"
            spec = event.spec.model_copy(
                update={"name": name, "kind": kind, "parent": None if name == "lead" else "lead"}
            )
            yield event.model_copy(update={"spec": spec})
        elif not isinstance(event, ev.ApprovalNeeded):
            yield event
        elif waits:
            yield event.model_copy(update={"request_id": f"req_{name}"})


def question(waiter: str, whom: str) -> Request:
    base = {"id": f"req_{waiter}", "kind": "question", "asked_by": waiter, "may_answer": (whom,), "incarnation": 1}
    payload = {"question": f"What does {waiter} do next?"}
    return open_request(Request.model_validate({**base, "payload": payload, "created_at": time.time()}))


def tasks() -> Iterator[Task]:
    """Yield tasks in each state; each fifth waits for the one before."""
    states = ("completed", "in_progress", "pending", "failed", "pending")
    for number in range(40):
        status = states[number % 5]
        yield Task(
            id=f"task_{number}",
            subject=f"Mend part {number}",
            description="As the drawing says.",
            status=status,
            owner=f"agent-{number + 1:03}" if status != "pending" else None,
            blocked_by=(f"task_{number - 1}",) if number % 5 == 4 else (),
            check="make test" if number % 3 == 0 else "",
            files=(f"part{number}.py",),
            result="It is done." if status == "completed" else None,
            created_at=float(number),
        )


async def fill(store: Store, agents: int = 100, session: str = "s1", workspace: str = "/w") -> int:
    """Write the session into a store, and return the number of its events."""
    row = SessionRow(id=session, workspace=workspace, created_at=time.time(), prompt="Mend all parts")
    await store.commit(Put(session_key(session), row.encode()))
    life = worked()
    waiting = dict(WAITS)
    count = 0
    for name in names(agents):
        events = list(events_of(life, name, waits=name in waiting))
        count += len(events)
        agent = AgentRow(
            name=name,
            kind="lead" if name == "lead" else "teammate",
            parent=None if name == "lead" else "lead",
            life="waiting" if name in waiting else "idle",
            waiting_for=f"answer req_{name}" if name in waiting else "",
            created_at=1.0,
        )
        writes: list[Write] = [Append(journal(session, name, 1), event.encode()) for event in events]
        await store.commit(Put(agent_key(session, name), agent.encode()), *writes)
    requests = [question(waiter, whom) for waiter, whom in WAITS]
    await store.commit(*(Put(request_key(session, each.id), each.encode()) for each in requests))
    await store.commit(*(Put(task_key(session, each.id), each.encode()) for each in tasks()))
    return count


async def write_large(workspace: Path) -> None:
    """Write the session into the store of a workspace."""
    store = await open_store(find_places(workspace), Settings(durability="process"), log_notice)
    assert await fill(store, workspace=str(workspace)) > 9_000
    await store.aclose()
