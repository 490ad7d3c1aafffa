"""Cleanup after an agent that ends, is parked or gives up: its tasks are freed, its requests withdrawn.

The functions return writes for the commit that records the end. Each write names the revision that was read. After a
lost race the caller reads again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from callboard.core.approvals import requests as request_rules
from callboard.core.keys import request_key, short_id, subagent_suffix, task_key
from callboard.core.messaging.envelopes import envelope_write
from callboard.core.tasks import board as task_rules
from callboard.core.tasks.board import Holder
from callboard.engine.runtime import SessionRuntime
from callboard.ports.store import Put, Write
from callboard.types.records import AgentRow, Cause, Envelope, Request, Task


def release_all(runtime: SessionRuntime, row: AgentRow, note: str) -> list[Write]:
    """Return the writes that release everything of an ended life.

    An ended life releases its tasks and reservations, its requests, and its subagents.
    """
    return [
        *tasks_freed(runtime, Holder(row.name, row.incarnation), note),
        *free_reserved_tasks(runtime, row.name),
        *requests_withdrawn(runtime, row.name, note),
        *children_stopped(runtime, row.name, note),
    ]


def tasks_freed(runtime: SessionRuntime, holder: Holder, note: str) -> list[Write]:
    """Return the writes that return this life's tasks to the board. A task that was tried three times has failed."""
    return task_writes(runtime, returned_tasks(runtime, holder, note))


def returned_tasks(runtime: SessionRuntime, holder: Holder, note: str) -> list[Task]:
    """Return the tasks of this life as they are after their return to the board."""
    now = runtime.clock.now()
    return [task_rules.give_back(task, now, note) for task in runtime.rows.open_tasks() if holder.holds(task)]


def free_reserved_tasks(runtime: SessionRuntime, name: str) -> list[Write]:
    """Return the writes that let any agent claim the tasks reserved for an agent that no longer exists."""
    reserved = [task for task in runtime.rows.open_tasks() if task.reserved_for == name and task.status == "pending"]
    return task_writes(runtime, (task_rules.assign(task, "", "lead", runtime.clock.now()) for task in reserved))


def task_writes(runtime: SessionRuntime, tasks: Iterable[Task]) -> list[Write]:
    """Return the writes of changed tasks, each with the revision known to this process."""
    writes: list[Write] = []
    for task in tasks:
        row = runtime.rows.task(task.id)
        assert row is not None, "a task of the board has a row"
        writes.append(Put(task_key(runtime.session, task.id), task.encode(), expected=row[1]))
    return writes


def requests_withdrawn(runtime: SessionRuntime, name: str, reason: str, keep: Collection[str] = ()) -> list[Write]:
    """Return the writes that withdraw this agent's unanswered requests, except the kinds to keep."""
    own = [request for request in runtime.rows.pending_requests() if request.asked_by == name]
    pending = [request.id for request in own if request.kind not in keep]
    return [write for request_id in pending for write in request_withdrawn(runtime, request_id, reason)]


def request_withdrawn(runtime: SessionRuntime, request_id: str, reason: str) -> list[Write]:
    """Return the write that withdraws one request; none if it is unknown or decided."""
    row = runtime.rows.request(request_id)
    taken_back = request_rules.withdraw(row[0], "runtime", reason, runtime.clock.now()) if row else None
    if row is None or not isinstance(taken_back, Request):
        return []
    return [Put(request_key(runtime.session, request_id), taken_back.encode(), expected=row[1])]


def children_stopped(
    runtime: SessionRuntime, parent: str, reason: str, call: str = "", *, keep: Collection[str] = ()
) -> list[Write]:
    """Return the writes that stop the living subagents of an agent, because nothing waits for their results.

    `call`: only those of this call. `keep`: names of those that go on.
    """
    children = [
        row.name
        for row in runtime.rows.children(parent)
        if row.kind == "subagent" and (not call or row.name.endswith(subagent_suffix(call)))
    ]
    return [write for name in children if name not in keep for write in child_stopped(runtime, name, reason)]


def child_stopped(runtime: SessionRuntime, name: str, reason: str) -> list[Write]:
    """Return the write that stops a subagent; none if it has ended. A second one changes nothing."""
    match = runtime.rows.agent(name)
    if match is None or match[0].life in ("stopped", "crashed"):
        return []
    envelope = Envelope(
        id=short_id("env", name, match[0].incarnation, "orphan"),
        sender="runtime",
        recipient=name,
        incarnation=match[0].incarnation,
        type="command",
        content=reason,
        cause="tool",
        metadata={"action": "stop"},
        sent_at=runtime.clock.now(),
    )
    return [envelope_write(runtime.session, envelope)]


def notify_lead(
    runtime: SessionRuntime, row: AgentRow, text: str, *, status: str, at: float, cause: Cause = "tool"
) -> list[Write]:
    """Return the writes that inform the lead that a teammate no longer continues; none for other agents.

    `status`: `crashed` or `stopped`. `at` (Unix seconds) distinguishes two such ends of one life.
    """
    lead = runtime.rows.agent("lead")
    if row.kind != "teammate" or lead is None:
        return []
    envelope = Envelope(
        id=short_id("env", row.name, row.incarnation, status, at),
        sender=row.name,
        recipient="lead",
        incarnation=lead[0].incarnation,
        type="error",
        content=text,
        sender_incarnation=row.incarnation,
        metadata={"status": status},
        cause=cause,
        sent_at=at,
    )
    return [envelope_write(runtime.session, envelope)]
