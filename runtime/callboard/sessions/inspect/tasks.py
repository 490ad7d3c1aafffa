"""A session's task board for any process, read once or followed, and a person's actions on its tasks.

The rules are in `core/tasks/board.py`, with the person above the lead. Each action is a compare-and-swap, retried while
others change the row at the same time. An envelope in the same commit informs an agent that loses a task. The store's
doorbell notifies the session's host; without a host the change takes effect at the next resume.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.adapters.system.clock import SystemClock
from callboard.core.decoding import read_value
from callboard.core.keys import one_by_id, short_id, task_key
from callboard.core.messaging.envelopes import envelope_write
from callboard.core.tasks import board as task_rules
from callboard.core.tasks.board import PERSON, Tasks, by_id, takes_tasks
from callboard.core.tasks.format import reassigned_text
from callboard.engine.row_cache import RowCache
from callboard.ports.store import Store, Write
from callboard.sessions.person_actions import as_person, write_task_as_person
from callboard.types.choices import choose
from callboard.types.errors import Conflict, UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Envelope, Task

_TRIES = 20
"""Number of attempts for an action, because others may change the row at the same time."""


@dataclass(frozen=True, slots=True)
class NewTask:
    """New task of a person; `owner` is the agent for which it is reserved."""

    subject: str
    description: str = ""
    blocked_by: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    check: str = ""
    owner: str = ""


class TaskInspector:
    """Task board of one session.

    Every method that changes it raises `UsageError` for changes that the rules reject, for an unknown task or agent,
    and inside a tool's process.
    """

    def __init__(self, store: Store, session: str, rows: RowCache) -> None:
        self._store = store
        self._session = session
        self._rows = rows
        self._clock = SystemClock()

    def tasks(self) -> Tasks:
        """Return every task that is known here by its id, oldest first."""
        return by_id(self._rows.tasks())

    def task_named(self, prefix: str) -> Task:
        """Return the task with that id, or the only one with that id prefix, with or without `task_`.

        Raises `UsageError`.
        """
        rows = self.tasks()
        return rows[one_by_id("task", rows, prefix)]

    async def watch(self, seen: Callable[[Task], None]) -> None:
        """Call `seen` for each existing task, then for each new or changed one. Never returns."""
        prefix = task_key(self._session, "")
        async with self._store.watch(prefix) as rows:
            async for row in rows:
                self._rows.take(row)
                match = self._rows.task(row.key.removeprefix(prefix))
                if match is not None:
                    seen(match[0])

    async def add(self, draft: NewTask) -> Task:
        """Add a task. Its dependencies may be given as id prefixes."""
        refuse_inside_tool("Adding a task")
        now = self._clock.now()
        nonce = secrets.token_hex(8)
        blocked_by = tuple(self.task_named(other).id for other in draft.blocked_by)
        new = Task(
            id=short_id("task", self._session, draft.subject, nonce),
            subject=draft.subject,
            description=draft.description,
            blocked_by=blocked_by,
            files=draft.files,
            check=draft.check,
            created_by=PERSON,
            created_at=now,
            updated_at=now,
        )
        with as_person():
            task = task_rules.create(new, self.tasks())
        if draft.owner:
            task = task_rules.assign(task, self._agent(draft.owner), PERSON, now)
        await write_task_as_person(self._store, self._session, task, expected=0)
        return task

    async def assign(self, task_id: str, agent: str) -> Task:
        """Reserve a task for an agent, which claims it when idle.

        An agent that has the task in progress is asked to stop.
        """
        refuse_inside_tool("Assigning a task")
        name = self._agent(agent)
        return await self._change(task_id, lambda task, now: task_rules.assign(task, name, PERSON, now))

    async def release(self, task_id: str) -> Task:
        """Take a task from its owner, or from the agent for which it is reserved: any agent may claim it."""
        refuse_inside_tool("Releasing a task")
        return await self._change(task_id, lambda task, now: task_rules.assign(task, "", PERSON, now))

    async def cancel(self, task_id: str) -> Task:
        """Cancel a task that is no longer needed. An agent that has it in progress is asked to stop."""
        refuse_inside_tool("Cancelling a task")

        def cancelled(task: Task, now: float) -> Task:
            free = task_rules.assign(task, "", PERSON, now) if task.status == "in_progress" else task
            return task_rules.cancel(free, PERSON, now)

        return await self._change(task_id, cancelled)

    async def reopen(self, task_id: str) -> Task:
        """Allow another attempt at a failed task."""
        refuse_inside_tool("Reopening a task")
        return await self._change(task_id, lambda task, now: task_rules.reopen(task, PERSON, now))

    def _agent(self, name: str) -> str:
        match = self._rows.agent(name)
        if match is None or not takes_tasks(match[0]):
            names = [row.name for row in self._rows.agents() if takes_tasks(row)]
            raise UsageError(f"{name!r} takes no task in session {self._session}: {choose(names)}")
        return name

    async def _change(self, prefix: str, act: Callable[[Task, float], Task]) -> Task:
        task_id = self.task_named(prefix).id
        now = self._clock.now()
        key = task_key(self._session, task_id)
        for _ in range(_TRIES):
            row = await self._store.get(key)
            assert row is not None, "a task that was seen has a row: none is ever deleted"
            old = read_value(Task, row.value or b"", row.key)
            with as_person():
                task = act(old, now)
            notices = self._owner_notice(old, task, now)
            try:
                await write_task_as_person(self._store, self._session, task, *notices, expected=row.revision)
            except Conflict:
                continue
            return task
        raise UsageError(f"others keep changing {task_id}: try again")

    def _owner_notice(self, old: Task, task: Task, now: float) -> list[Write]:
        """Return the writes of a notice that the old owner reads before its next step.

        The writes are for the commit that reassigns the task.
        """
        owner = self._rows.agent(old.owner or "")
        if old.status != "in_progress" or owner is None or owner[0].incarnation != old.owner_incarnation:
            return []
        envelope = Envelope(
            id=short_id("env", task.id, old.attempts, "taken", secrets.token_hex(8)),
            sender=PERSON,
            recipient=owner[0].name,
            incarnation=owner[0].incarnation,
            type="message",
            mode="queue",
            content=reassigned_text(task, "the person", task.reserved_for),
            sent_at=now,
        )
        return [envelope_write(self._session, envelope)]
