"""Journal of one run of a workflow in the session's store: its steps and their results.

Rules:

1. The start of a step is durable before the step has any effect, and its end before the workflow receives the result.
2. A finished step never runs again: its value is read from the journal.
3. A step that started but did not finish was cut off with its process. It runs again only if that is safe: an agent (it
   is found again and continues), a question (the same request), a wait, or a step that is declared repeatable.
4. A resumed workflow has to request the same steps. The digest of each step is compared, and a difference is an error.

Values of steps are JSON, converted by their declared type. This module also reads the workflows of a workspace from its
store, including those that no process runs.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import anyio
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from callboard.core.decoding import read_value
from callboard.core.keys import by_beginning, host_lease, workflow_key
from callboard.core.validation import faults_of
from callboard.ports.store import Append, Put, Store, Write
from callboard.sdk.errors import NotTyped, StepUnknown, UsageError, WorkflowChanged
from callboard.sdk.signatures import NOT_FINITE, adapter_of, is_finite
from callboard.sessions.places import Notice, find_places
from callboard.sessions.stores import existing_store
from callboard.types.choices import unknown
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json
from callboard.types.workflows import StepKind, WorkflowNoted, WorkflowRow


def digest_of(*parts: object) -> str:
    """Return the sha256 (hex) of the content of a step; equal content gives an equal digest."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class JournalledSession(Protocol):
    """Session that holds the journals of its workflows: `HostedSession`, whose process has the lease."""

    @property
    def id(self) -> str: ...

    @property
    def store(self) -> Store: ...

    async def commit(self, *writes: Write) -> None: ...


class FlowJournal:
    """Journal of one run. Only the session's host writes it."""

    def __init__(
        self, session: JournalledSession, row: WorkflowRow, records: Sequence[WorkflowNoted], revision: int
    ) -> None:
        self._here = session
        self.row = row
        self._revision = revision
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
        """Return the newest record of each step, in order of their start."""
        return list(self._steps.values())

    def redone(self, step: str) -> int:
        """Return the number of times that this step was ordered to run again."""
        return sum(_below(step, dropped) for dropped in self._dropped)

    def meet(self, step: str, kind: StepKind, digest: str) -> WorkflowNoted | None:
        """Return the stored record of a step that the workflow requests; None for a new step.

        Raises `UsageError` for a step that was already requested in this run, and `WorkflowChanged` for a different
        step than before.
        """
        if step in self._met:
            raise UsageError(f"two steps of workflow {self.row.id} have the key {step}: rename one")
        self._met.add(step)
        stored = self._steps.get(step)
        if stored is not None and (stored.kind, stored.digest) != (kind, digest):
            asks = "a different step" if stored.kind == kind else f"a step of kind {kind} instead of {stored.kind}"
            raise WorkflowChanged(
                f"workflow {self.row.id}, step {step} ({stored.label}): the workflow now requests {asks}: its code, "
                f"its arguments or the order of its steps has changed. Restore the old code; or run it again from "
                f"there: callboard workflow resume {self.row.id} --redo '{step}'; or start a new workflow",
                step,
            )
        return stored

    async def began(self, record: WorkflowNoted, stored: WorkflowNoted | None) -> None:
        """Record the start of a step. Raises `StepUnknown` for a step that was cut off and must not run again."""
        if stored is None:
            await self._note(record)
        elif stored.t == "began" and not stored.again:
            raise StepUnknown(
                f"workflow {self.row.id}, step {stored.step} ({stored.label}) was cut off with its process, and its "
                f"effect is unknown. Check it, then run the step again: callboard workflow resume "
                f"{self.row.id} --redo '{stored.step}'",
                stored.step,
            )

    async def note_end(self, step: WorkflowNoted, value: Any) -> None:
        """Record the result of a step."""
        await self._note(step.model_copy(update={"t": "ended", "value": value, "at": time.time()}))

    async def note_failure(self, step: WorkflowNoted, error: str, value: Json) -> None:
        """Record that a step failed."""
        await self._note(step.model_copy(update={"t": "failed", "error": error, "value": value, "at": time.time()}))

    async def drop(self, steps: Sequence[str]) -> None:
        """Let these steps and the steps below them run again. Raises `UsageError` for an unknown step."""
        for name in steps:
            match = next((step for step in self.steps if step.step == name), None)
            if match is None:
                names = [step.step for step in self.steps]
                raise UsageError(unknown("step", name, names, where=f"of workflow {self.row.id}"))
            await self._note(match.model_copy(update={"t": "dropped", "value": None, "at": time.time()}))

    async def drop_failed(self) -> None:
        """Let the failed steps run again, for a new attempt of a failed workflow."""
        await self.drop([step.step for step in self.steps if step.t == "failed"])

    async def settle(self, **update: Any) -> None:
        """Update the row: how the run ended, or that it continues."""
        self.row = self.row.model_copy(update=update)
        with anyio.CancelScope(shield=True):
            key = workflow_key(self._here.id, self.row.id)
            await self._here.commit(Put(key, self.row.encode(), self._revision))
            row = await self._here.store.get(key)
            self._revision = row.revision if row else 0

    async def _note(self, record: WorkflowNoted) -> None:
        """Write a record. Shielded from cancellation, so that every effect is recorded."""
        with anyio.CancelScope(shield=True):
            await self._here.commit(Append(workflow_key(self._here.id, self.row.id), record.encode()))
        self._take(record)


def _below(step: str, dropped: str) -> bool:
    return step == dropped or step.startswith(f"{dropped}/") or step.startswith(f"{dropped}[")


async def load_journal(session: JournalledSession, workflow: str) -> FlowJournal | None:
    """Return the journal of a run; None if there is none yet."""
    row = await session.store.get(workflow_key(session.id, workflow))
    if row is None or row.value is None:
        return None
    records = await records_of(session.store, session.id, workflow)
    return FlowJournal(session, read_value(WorkflowRow, row.value, row.key), records, row.revision)


async def records_of(store: Store, session: str, workflow: str) -> list[WorkflowNoted]:
    """Return all records of a run, in order."""
    stream = workflow_key(session, workflow)
    return [read_value(WorkflowNoted, record.data, f"{stream}#{record.seq}") for record in await store.read(stream)]


async def rows_of(store: Store, session: str) -> list[WorkflowRow]:
    """Return the workflows of a session, newest first."""
    stored = await store.keys(workflow_key(session))
    rows = [
        read_value(WorkflowRow, stored_row.value, stored_row.key)
        for stored_row in stored
        if stored_row.value is not None
    ]
    return sorted(rows, key=lambda row: -row.created_at)


async def find_row(store: Store, session: str, prefix: str | None) -> WorkflowRow:
    """Return the workflow with this id or prefix of an id; None: the newest.

    Raises `UsageError` that lists the existing ids.
    """
    rows = {row.id: row for row in await rows_of(store, session)}
    if prefix is None and rows:
        return next(iter(rows.values()))
    fitting = by_beginning(rows, prefix or "")
    if len(fitting) != 1:
        raise UsageError(unknown("workflow", prefix or "", rows, where=f"of session {session}"))
    return rows[fitting[0]]


@dataclass(frozen=True, slots=True)
class WorkflowRecord:
    """One run of a workflow. `steps`: the newest record of each step, in order of their start."""

    session: str
    row: WorkflowRow
    steps: Sequence[WorkflowNoted]
    hosted: bool
    """True if a process hosts the session at the moment."""

    @property
    def status(self) -> str:
        """`running`, `cut off`, `done` or `failed`."""
        return "cut off" if self.row.status == "running" and not self.hosted else self.row.status


async def stored_workflows(workspace: Path, notice: Notice) -> list[WorkflowRecord]:
    """Return all workflows of a workspace, newest first, without their steps. Raises `WorkspaceUnusable`."""
    async with existing_store(find_places(workspace, writable=False), notice) as store:
        if store is None:
            return []
        return [await _stored(store, session, row) for session, row in await _rows(store)]


async def stored_workflow(workspace: Path, prefix: str | None, notice: Notice) -> WorkflowRecord:
    """Return the workflow with this id or prefix of an id; None: the newest.

    Raises `UsageError` that lists the existing ids.
    """
    places = find_places(workspace, writable=False)
    async with existing_store(places, notice) as store:
        if store is None:
            raise UsageError(f"no workflow has run in {places.workspace} yet: callboard workflow run FILE:NAME")
        rows = await _rows(store)
        session, row = _chosen(rows, prefix)
        chosen = await _stored(store, session, row)
        newest = {record.step: record for record in await records_of(store, session, row.id)}
        return WorkflowRecord(session, row, list(newest.values()), chosen.hosted)


def _chosen(rows: Sequence[tuple[str, WorkflowRow]], prefix: str | None) -> tuple[str, WorkflowRow]:
    if prefix is None and rows:
        return rows[0]
    fitting = by_beginning([row.id for _, row in rows], prefix or "")
    if not fitting:
        names = [row.id for _, row in rows[:8]]
        raise UsageError(unknown("workflow", prefix or "", names, where="of this workspace"))
    if len(set(fitting)) > 1:
        raise UsageError(f"{prefix!r} matches {len(fitting)} workflows: {', '.join(fitting[:8])}")
    return next((session, row) for session, row in rows if row.id == fitting[0])


async def _rows(store: Store) -> list[tuple[str, WorkflowRow]]:
    stored = [row for row in await store.keys(workflow_key("")[:2]) if row.value is not None]
    rows = [(row.key.split("/")[1], read_value(WorkflowRow, row.value or b"", row.key)) for row in stored]
    return sorted(rows, key=lambda entry: -entry[1].created_at)


async def _stored(store: Store, session: str, row: WorkflowRow) -> WorkflowRecord:
    return WorkflowRecord(session, row, (), await store.holder(host_lease(session)) is not None)


def value_of(value: Any, kind: Any, where: str) -> Any:
    """Convert the value to JSON. Raises `UsageError` for a value that would not be the same after reading it back."""
    if not is_finite(value):
        raise UsageError(f"step {where}: {NOT_FINITE}")
    if kind is not None and kind is not type(None) and kind is not Any:
        return _dumped(value, kind, where)
    try:
        plain = to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise UsageError(f"step {where}: {type(value).__name__} is not JSON: {error}") from error
    if isinstance(value, BaseModel) or plain != value or json.loads(json.dumps(plain)) != value:
        raise UsageError(
            f"step {where}: a {type(value).__name__} would come back as plain JSON when the workflow is resumed: write "
            "the type that its function returns"
        )
    return plain


def _dumped(value: Any, kind: Any, where: str) -> Any:
    try:
        adapter = adapter_of(kind, where)
        return adapter.dump_python(adapter.validate_python(value), mode="json")
    except NotTyped:
        return value_of(value, None, where)
    except (ValidationError, PydanticSerializationError) as error:
        reason = "; ".join(faults_of(error)) if isinstance(error, ValidationError) else str(error)
        raise UsageError(f"step {where}: the returned value does not match its declared type: {reason}") from error


def stored_value(plain: Any, kind: Any, where: str) -> Any:
    """Convert the stored value to its type. Raises `WorkflowChanged` if the type has changed since."""
    if kind is None or kind is type(None) or kind is Any:
        return plain
    try:
        return adapter_of(kind, where).validate_python(plain)
    except NotTyped:
        return plain
    except ValidationError as error:
        reason = "; ".join(faults_of(error))
        raise WorkflowChanged(f"step {where}: the stored result no longer fits its type: {reason}", where) from error
