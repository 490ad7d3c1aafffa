"""A session's task board as any process sees it, once or as it changes, and what a person does to its tasks.

The laws are `core/tasks/laws.py`, the person being above the lead; each act is a compare-and-swap, tried again while
others change the row beside it. Who loses a task by it is told by an envelope in the same commit. Whoever hosts the
session hears of it by the store's doorbell; where nobody does, it holds from the next resume on.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from callboard.adapters.clock import SystemClock
from callboard.core.bus.mail import sending
from callboard.core.names import one_by_id, short_id, task_key
from callboard.core.tasks import laws
from callboard.core.tasks.laws import PERSON, Tasks, by_id
from callboard.core.tasks.wording import taken_words
from callboard.desks.persons import as_person, refuse_inside_tool
from callboard.engine.board import SessionBoard
from callboard.ports.store import Put, Store, Write
from callboard.words.errors import Conflict, UsageError
from callboard.words.values import Envelope, Task

_TRIES = 20
"""Of an act whose row others keep changing."""


@dataclass(frozen=True, slots=True)
class NewTask:
    """What a person says of a new task; `owner` is the agent that it is kept for."""

    subject: str
    description: str = ""
    blocked_by: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    check: str = ""
    owner: str = ""


class TaskDesk:
    """The task board of one session. Every method that changes it raises `UsageError` for what the laws refuse, for an
    unknown task or agent, and inside a tool's process."""

    def __init__(self, store: Store, session: str, board: SessionBoard) -> None:
        self._store, self._session, self._board, self._clock = store, session, board, SystemClock()

    def tasks(self) -> Tasks:
        """Every task by its id, oldest first, as far as it is known here."""
        return by_id(self._board.tasks())

    def one(self, wanted: str) -> Task:
        """The task of that id, or the only one whose id begins so, with or without `task_`. Raises `UsageError`."""
        board = self.tasks()
        return board[one_by_id("task", board, wanted)]

    async def watch(self, seen: Callable[[Task], None]) -> None:
        """Call `seen` for each task there is, then for each that is new or changed. Never returns."""
        prefix = task_key(self._session, "")
        async with self._store.watch(prefix) as rows:
            async for row in rows:
                self._board.take(row)
                found = self._board.task(row.key.removeprefix(prefix))
                if found is not None:
                    seen(found[0])

    async def add(self, wanted: NewTask) -> Task:
        """A new task. What it waits for may be named by beginnings of ids."""
        refuse_inside_tool("add a task")
        now, nonce = self._clock.now(), secrets.token_hex(8)
        blocked_by = tuple(self.one(other).id for other in wanted.blocked_by)
        new = Task(
            id=short_id("task", self._session, wanted.subject, nonce),
            subject=wanted.subject,
            description=wanted.description,
            blocked_by=blocked_by,
            files=wanted.files,
            check=wanted.check,
            created_by=PERSON,
            created_at=now,
            updated_at=now,
        )
        with as_person():
            task = laws.create(new, self.tasks())
        if wanted.owner:
            task = laws.assign(task, self._agent(wanted.owner), PERSON, now)
        await self._store.commit(Put(task_key(self._session, task.id), task.encode(), expected=0))
        return task

    async def assign(self, wanted: str, agent: str) -> Task:
        """Give a task to an agent, which takes it when it is idle; who has it in progress is told to stop."""
        refuse_inside_tool("give a task away")
        name = self._agent(agent)
        return await self._change(wanted, lambda task, now: laws.assign(task, name, PERSON, now))

    async def release(self, wanted: str) -> Task:
        """Take a task from its owner, or from who it is kept for: anybody may claim it."""
        refuse_inside_tool("take a task away")
        return await self._change(wanted, lambda task, now: laws.assign(task, "", PERSON, now))

    async def cancel(self, wanted: str) -> Task:
        """Nobody needs it any more; who has it in progress is told to stop."""
        refuse_inside_tool("cancel a task")

        def cancelled(task: Task, now: float) -> Task:
            free = laws.assign(task, "", PERSON, now) if task.status == "in_progress" else task
            return laws.cancel(free, PERSON, now)

        return await self._change(wanted, cancelled)

    async def reopen(self, wanted: str) -> Task:
        """Another try at a failed task."""
        refuse_inside_tool("open a task again")
        return await self._change(wanted, lambda task, now: laws.reopen(task, PERSON, now))

    def _agent(self, name: str) -> str:
        found = self._board.agent(name)
        if found is None or found[0].kind == "subagent" or found[0].life in ("stopping", "stopped"):
            there = [one.name for one in self._board.agents() if one.kind != "subagent" and one.life != "stopped"]
            raise UsageError(f"{name!r} takes no task in session {self._session}; there are: {', '.join(there)}")
        return name

    async def _change(self, wanted: str, act: Callable[[Task, float], Task]) -> Task:
        task_id, now = self.one(wanted).id, self._clock.now()
        key = task_key(self._session, task_id)
        for _ in range(_TRIES):
            row = await self._store.get(key)
            assert row is not None, "a task that was seen has a row: none is ever deleted"
            old = Task.model_validate_json(row.value or b"")
            with as_person():
                task = act(old, now)
            writes = [Put(key, task.encode(), expected=row.revision), *self._told(old, task, now)]
            try:
                await self._store.commit(*writes)
            except Conflict:
                continue
            return task
        raise UsageError(f"{task_id} is being changed by others again and again: try once more")

    def _told(self, old: Task, task: Task, now: float) -> list[Write]:
        """What the old owner reads before its next step, in the commit that takes the task away."""
        owner = self._board.agent(old.owner or "")
        if old.status != "in_progress" or owner is None or owner[0].incarnation != old.owner_incarnation:
            return []
        envelope = Envelope(
            id=short_id("env", task.id, old.attempts, "taken", secrets.token_hex(8)),
            sender=PERSON,
            recipient=owner[0].name,
            incarnation=owner[0].incarnation,
            type="message",
            mode="queue",
            content=taken_words(task, "the person", task.reserved_for),
            sent_at=now,
        )
        return [sending(self._session, envelope)]
