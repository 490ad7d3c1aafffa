"""The board's laws, held against every commit that changed a task: by the rows alone, outside the store.

What the runtime calls legal is not asked: an illegal change that it let pass is told of here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.simulation.chaos_person import SESSION

from callboard.core.keys import agent_key, journal, mailbox, rows_prefix
from callboard.types.events import EnvelopeReceived, decode_event
from callboard.types.records import AgentRow, Request, Task
from callboard.types.store_writes import Append, Put, Write

TASKS = f"{rows_prefix(SESSION)}task/"
AGENTS = f"{rows_prefix(SESSION)}agent/"
REQUESTS = f"{rows_prefix(SESSION)}request/"


@dataclass
class Board:
    """The tasks as the commits left them, one after the other."""

    tasks: dict[str, Task] = field(default_factory=dict[str, Task])
    agents: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Newest row of each agent, by its key."""
    taken: int = 0
    """How often the lead took a task from an owner at work."""
    faults: list[str] = field(default_factory=list[str])
    refused: set[str] = field(default_factory=set[str])
    """Shutdowns that mates have refused."""

    def take(self, writes: Sequence[Write]) -> None:
        """These writes have taken effect together."""
        streams = {one.stream for one in writes if isinstance(one, Append)}
        for one in writes:
            if isinstance(one, Put) and one.key.startswith(TASKS):
                task = Task.model_validate_json(one.value)
                self.faults += self._illegal(self.tasks.get(task.id), task, streams)
                self.tasks[task.id] = task
        for one in writes:
            if isinstance(one, Put) and one.key.startswith(AGENTS):
                self.agents[one.key] = one.value
            if isinstance(one, Put) and one.key.startswith(REQUESTS):
                self._asked(Request.model_validate_json(one.value))
            if isinstance(one, Append) and one.stream.startswith("j/") and b'"shutdown_request"' in one.record:
                self._heard(one)

    def _asked(self, request: Request) -> None:
        if request.kind == "shutdown" and request.status == "rejected":
            self.refused.add(request.id)

    def _heard(self, record: Append) -> None:
        """Who has refused a shutdown does not take it to heart when it hears of it."""
        event = decode_event(record.record)
        if isinstance(event, EnvelopeReceived) and not event.refused and event.envelope.request_id in self.refused:
            self.faults.append(f"{record.stream} heeds {event.envelope.request_id}, which was refused")

    def _illegal(self, old: Task | None, new: Task, streams: set[str]) -> Iterator[str]:
        if old is None:
            if new.status != "pending":
                yield f"{new.id} was {new.status} when it came to the board"
            return
        if old.status in ("completed", "cancelled") and new != old:
            yield f"{new.id} was {old.status}, and is {new.status} of {new.owner} again"
        if old.status == new.status == "in_progress" and old.owner == new.owner == "lead":
            return  # a new life of the lead goes on with what the old one had
        if new.status == "in_progress" and _owner(old) != _owner(new):
            yield from self._claimed(old, new)
        if old.status == "in_progress" and (new.status != "in_progress" or _owner(old) != _owner(new)):
            yield from self._lost(old, new, streams)

    def _claimed(self, old: Task, new: Task) -> Iterator[str]:
        if old.status != "pending":
            yield f"{new.owner} claimed {new.id}, which was {old.status} of {old.owner}"
        if old.reserved_for not in ("", new.owner):
            yield f"{new.owner} claimed {new.id}, which was kept for {old.reserved_for}"
        waits = [one for one in old.blocked_by if self.tasks[one].status != "completed"]
        if waits:
            yield f"{new.owner} claimed {new.id}, which waits for {waits}"

    def _lost(self, old: Task, new: Task, streams: set[str]) -> Iterator[str]:
        """Its owner ends the work, or hears in the very commit that it is no longer its own; unless it is gone."""
        name, life = old.owner or "", old.owner_incarnation
        if journal(SESSION, name, life) in streams:
            return
        if new.status in ("completed", "failed") and not self._over(name, life):
            yield f"{new.id} is {new.status}, and {name}, whose it was, did not do that"
        if mailbox(SESSION, name, life) in streams:
            self.taken += 1
        elif any(stream.startswith("j/") for stream in streams) and not self._over(name, life):
            yield f"{new.id} was taken from {name}, who was not told"

    def _over(self, name: str, life: int) -> bool:
        row = AgentRow.model_validate_json(self.agents[agent_key(SESSION, name)])
        return row.incarnation != life or row.life in ("stopped", "crashed")


def _owner(task: Task) -> tuple[str | None, int]:
    return (task.owner, task.owner_incarnation) if task.status == "in_progress" else (None, 0)
