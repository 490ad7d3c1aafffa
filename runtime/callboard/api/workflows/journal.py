"""The journal of one run of a workflow, in the session's store: what was begun, what it came to.

The laws:

1. A step's beginning is durable before anything of it happens, and its end before the workflow hears of it.
2. A step that has ended is never run again: its value is read from here.
3. A step that began and has not ended was cut off with its process. It runs again only where that is safe: an agent (it
   is found again, and goes on), a question (the same request), a wait, or what says that it may be repeated.
4. A resumed workflow has to ask for the same: the digest of each step is compared, and a change is told, never guessed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from typing import Any

import anyio

from callboard.api.errors import StepUnknown, UsageError, WorkflowChanged
from callboard.app import Session as HostedSession
from callboard.core.names import by_beginning, workflow_key
from callboard.ports.store import Append, Put, Store
from callboard.words.values import Json
from callboard.words.workflows import StepKind, WorkflowNoted, WorkflowRow


def digest_of(*asked: object) -> str:
    """sha256 (hex) of what a step is asked for, the same for the same content."""
    told = json.dumps(asked, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()


class FlowJournal:
    """What is known of one run, and how more is written down. One process writes it: the session's host."""

    def __init__(self, here: HostedSession, row: WorkflowRow, records: Sequence[WorkflowNoted], revision: int) -> None:
        self._here, self.row, self._revision = here, row, revision
        self._steps: dict[str, WorkflowNoted] = {}
        self._met = set[str]()
        self._dropped: list[str] = []
        for record in records:
            self._take(record)

    def _take(self, record: WorkflowNoted) -> None:
        if record.t == "dropped":
            self._dropped.append(record.step)
            self._steps = {k: v for k, v in self._steps.items() if not _below(k, record.step)}
        else:
            self._steps[record.step] = record

    @property
    def steps(self) -> Sequence[WorkflowNoted]:
        """The newest record of each step, in the order in which they began."""
        return list(self._steps.values())

    def redone(self, step: str) -> int:
        """How often it was said that this step is to run again."""
        return sum(_below(step, one) for one in self._dropped)

    def meet(self, step: str, kind: StepKind, digest: str) -> WorkflowNoted | None:
        """What stands of a step that the workflow asks for now; None for a new one.

        Raises `UsageError` for one that was asked for already, and `WorkflowChanged` for another one than before.
        """
        if step in self._met:
            raise UsageError(f"two steps of workflow {self.row.id} have the key {step}: give one another")
        self._met.add(step)
        found = self._steps.get(step)
        if found is not None and (found.kind, found.digest) != (kind, digest):
            asks = "asks for something else" if found.kind == kind else f"is of kind {kind}, it was {found.kind},"
            raise WorkflowChanged(
                f"workflow {self.row.id}, step {step} ({found.label}): it {asks} than when it ran first: its code, its "
                f"arguments or the order of its steps has changed. Put the old code back; or let it run anew from "
                f"there: callboard workflow resume {self.row.id} --redo '{step}'; or begin a new workflow",
                step,
            )
        return found

    async def began(self, record: WorkflowNoted, known: WorkflowNoted | None) -> None:
        """Write down a beginning. Raises `StepUnknown` for a step that was cut off and is never to be run again."""
        if known is None:
            await self._note(record)
        elif known.t == "began" and not known.again:
            raise StepUnknown(
                f"workflow {self.row.id}, step {known.step} ({known.label}) was cut off with its process, and nobody "
                f"knows whether it had its effect. Look; then let it run again: callboard workflow resume "
                f"{self.row.id} --redo '{known.step}'",
                known.step,
            )

    async def ended(self, step: WorkflowNoted, value: Any) -> None:
        """Write down what a step came to."""
        await self._note(step.model_copy(update={"t": "ended", "value": value, "at": time.time()}))

    async def failed(self, step: WorkflowNoted, error: str, value: Json) -> None:
        """Write down that a step failed."""
        await self._note(step.model_copy(update={"t": "failed", "error": error, "value": value, "at": time.time()}))

    async def drop(self, wanted: Sequence[str]) -> None:
        """Let these steps, and what stands below them, run again. Raises `UsageError` for one that there is not."""
        for name in wanted:
            found = next((one for one in self.steps if one.step == name), None)
            if found is None:
                known = ", ".join(one.step for one in self.steps) or "none"
                raise UsageError(f"workflow {self.row.id} has no step {name!r}; there are: {known}")
            await self._note(found.model_copy(update={"t": "dropped", "value": None, "at": time.time()}))

    async def drop_failed(self) -> None:
        """A workflow that failed is tried again: what failed of it runs again."""
        await self.drop([one.step for one in self.steps if one.t == "failed"])

    async def settle(self, **update: Any) -> None:
        """Change the row: how the run ended, or that it goes on."""
        self.row = self.row.model_copy(update=update)
        with anyio.CancelScope(shield=True):
            key = workflow_key(self._here.id, self.row.id)
            await self._here.commit(Put(key, self.row.encode(), self._revision))
            found = await self._here.store.get(key)
            self._revision = found.revision if found else 0

    async def _note(self, record: WorkflowNoted) -> None:
        """Shielded: what has happened is written down, whoever is cancelled meanwhile."""
        with anyio.CancelScope(shield=True):
            await self._here.commit(Append(workflow_key(self._here.id, self.row.id), record.encode()))
        self._take(record)


def _below(step: str, dropped: str) -> bool:
    return step == dropped or step.startswith(f"{dropped}/") or step.startswith(f"{dropped}[")


async def load_journal(here: HostedSession, workflow: str) -> FlowJournal | None:
    """The journal of that run; None where there is none yet."""
    found = await here.store.get(workflow_key(here.id, workflow))
    if found is None or found.value is None:
        return None
    records = await records_of(here.store, here.id, workflow)
    return FlowJournal(here, WorkflowRow.model_validate_json(found.value), records, found.revision)


async def records_of(store: Store, session: str, workflow: str) -> list[WorkflowNoted]:
    """All records of a run, in their order."""
    found = await store.read(workflow_key(session, workflow))
    return [WorkflowNoted.model_validate_json(one.data) for one in found]


async def rows_of(store: Store, session: str) -> list[WorkflowRow]:
    """The workflows of a session, newest first."""
    found = await store.keys(workflow_key(session))
    rows = [WorkflowRow.model_validate_json(one.value) for one in found if one.value is not None]
    return sorted(rows, key=lambda one: -one.created_at)


async def find_row(store: Store, session: str, wanted: str | None) -> WorkflowRow:
    """The workflow of that id or a beginning of it; None: the newest. Raises `UsageError` naming those there are."""
    rows = {one.id: one for one in await rows_of(store, session)}
    if wanted is None and rows:
        return next(iter(rows.values()))
    fitting = by_beginning(rows, wanted or "")
    if len(fitting) != 1:
        there = ", ".join(rows) or "none"
        raise UsageError(f"{wanted or 'it'!r} is no workflow of session {session}; there are: {there}")
    return rows[fitting[0]]
