"""What an agent leaves behind when it ends, is parked or gives up: tasks come free, requests are taken back.

As writes, for the commit that says so; each names the revision it was read at, and who lost a race reads again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from callboard.core.asking import requests as rq
from callboard.core.bus.mail import sending
from callboard.core.names import request_key, short_id, subagent_suffix, task_key
from callboard.core.tasks import laws
from callboard.core.tasks.laws import Holder
from callboard.engine.host import Host
from callboard.ports.store import Put, Write
from callboard.words.values import AgentRow, Cause, Envelope, Request, Task


def all_given_back(host: Host, row: AgentRow, note: str) -> list[Write]:
    """All that a life leaves which goes on no more: its tasks and those kept for it, its requests, its subagents."""
    return [
        *tasks_freed(host, Holder(row.name, row.incarnation), note),
        *tasks_kept_freed(host, row.name),
        *requests_withdrawn(host, row.name, note),
        *children_stopped(host, row.name, note),
    ]


def tasks_freed(host: Host, holder: Holder, note: str) -> list[Write]:
    """The tasks of this life, given back to the board; one that was tried three times has failed."""
    now, held = host.clock.now(), [task for task in host.board.tasks() if holder.holds(task)]
    return _written(host, (laws.give_back(task, now, note) for task in held))


def tasks_kept_freed(host: Host, name: str) -> list[Write]:
    """The tasks that are kept for an agent that is no more: anybody may claim them now."""
    kept = [task for task in host.board.tasks() if task.reserved_for == name and task.status == "pending"]
    return _written(host, (laws.assign(task, "", "lead", host.clock.now()) for task in kept))


def _written(host: Host, tasks: Iterable[Task]) -> list[Write]:
    writes: list[Write] = []
    for task in tasks:
        row = host.board.task(task.id)
        assert row is not None, "a task of the board has a row"
        writes.append(Put(task_key(host.session, task.id), task.encode(), expected=row[1]))
    return writes


def requests_withdrawn(host: Host, name: str, why: str, keep: Collection[str] = ()) -> list[Write]:
    """All that this agent asked and nobody has answered yet, but for kinds to keep."""
    asked = [one for one in host.board.requests() if one.asked_by == name and one.status == "pending"]
    pending = [one.id for one in asked if one.kind not in keep]
    return [write for request_id in pending for write in request_withdrawn(host, request_id, why)]


def request_withdrawn(host: Host, request_id: str, why: str) -> list[Write]:
    """One request taken back by the runtime; nothing when it is unknown or decided."""
    row = host.board.request(request_id)
    taken_back = rq.withdraw(row[0], "runtime", why, host.clock.now()) if row else None
    if row is None or not isinstance(taken_back, Request):
        return []
    return [Put(request_key(host.session, request_id), taken_back.encode(), expected=row[1])]


def children_stopped(host: Host, parent: str, why: str, call: str = "") -> list[Write]:
    """Word to the living subagents of an agent to stop: nobody waits for what they find. `call`: only that call's."""
    writes: list[Write] = []
    for row in host.board.agents():
        mine = row.kind == "subagent" and row.parent == parent and row.life not in ("stopped", "crashed")
        if mine and (not call or row.name.endswith(subagent_suffix(call))):
            envelope = Envelope(
                id=short_id("env", row.name, row.incarnation, "orphan"),
                sender="runtime",
                recipient=row.name,
                incarnation=row.incarnation,
                type="command",
                content=why,
                cause="tool",
                metadata={"action": "stop"},
                sent_at=host.clock.now(),
            )
            writes.append(sending(host.session, envelope))
    return writes


def lead_told(host: Host, row: AgentRow, text: str, status: str, at: float, cause: Cause = "tool") -> list[Write]:
    """Word to the lead that a teammate goes on no more; nothing of any other agent. `status`: `crashed`, `stopped`.
    `at` (Unix seconds) tells two such ends of one life apart."""
    lead = host.board.agent("lead")
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
    return [sending(host.session, envelope)]
