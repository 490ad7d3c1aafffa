"""A workflow from code: `@workflow` over an async function whose first parameter is the run, and the running of it.

    @workflow
    async def audit(flow: Workflow, paths: list[str]) -> list[Finding]:
        \"\"\"Look for what is wrong, file by file.\"\"\"
        return await flow.map(paths, look)

Run by `session.workflow(audit, paths=[...])` or `callboard workflow run FILE:audit`, and resumed from its journal.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import anyio

from callboard.api.errors import NotTyped, UsageError, WorkflowChanged
from callboard.api.options import SessionOptions
from callboard.api.signatures import Taken, taken_by
from callboard.api.workflows.flow import Shared, Workflow
from callboard.api.workflows.journal import FlowJournal, digest_of, load_journal
from callboard.api.workflows.values import read_value, value_of
from callboard.app import Session as HostedSession
from callboard.core.names import short_id, workflow_key
from callboard.ports.store import Put
from callboard.words.values import Json
from callboard.words.workflows import WorkflowRow

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class WorkflowFunction(Generic[P, R]):
    """A function that `@workflow` stands over. Calling it with a `Workflow` runs it as a part of that one."""

    function: Callable[Concatenate[Workflow, P], Awaitable[R]]
    name: str
    taken: Taken
    options: SessionOptions
    """What a session that the command line opens for it is given."""
    run_id: str = ""
    budget_usd: float | None = None

    def named(self, run_id: str = "", *, budget: float | None = None) -> WorkflowFunction[P, R]:
        """The same with the id of a run: run again under that id it goes on, or tells what it came to. `budget`: US
        dollars that its agents may cost together."""
        return replace(self, run_id=run_id or self.run_id, budget_usd=self.budget_usd if budget is None else budget)

    def __call__(self, flow: Workflow, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run it as a part of another workflow. Once it has ended, it is not run again."""
        given = self.arguments(args, kwargs)

        async def work(path: str) -> R:
            return await self.function(flow.below(path), *args, **kwargs)

        return flow.once("workflow", self.name, digest_of(self.name, given), work, returns=self.returns)

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Json:
        """The arguments as JSON. Raises `UsageError` for those that do not fit."""
        try:
            return self.taken.dump(args, kwargs)
        except ValueError as wrong:
            raise UsageError(f"workflow {self.name}: {wrong}") from wrong

    @property
    def returns(self) -> Any:
        """The type of its result; None where it does not say."""
        return None if self.taken.returns is inspect.Parameter.empty else self.taken.returns

    def result_json(self, made: Any) -> Any:
        """What it returned as JSON. Raises `UsageError` for what is none."""
        return value_of(made, self.returns, "result")

    @property
    def place(self) -> str:
        """Where the function stands."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

    @property
    def code(self) -> str:
        """sha256 (hex) of its source; empty where that cannot be read."""
        try:
            return hashlib.sha256(inspect.getsource(self.function).encode()).hexdigest()
        except (OSError, TypeError):
            return ""


AnyWorkflow = WorkflowFunction[..., Any]
"""A workflow, whatever it takes."""


@overload
def workflow(function: Callable[Concatenate[Workflow, P], Awaitable[R]], /) -> WorkflowFunction[P, R]: ...
@overload
def workflow(
    *, name: str = "", session: SessionOptions | None = None
) -> Callable[[Callable[Concatenate[Workflow, P], Awaitable[R]]], WorkflowFunction[P, R]]: ...
def workflow(
    function: Callable[..., Awaitable[Any]] | None = None, /, *, name: str = "", session: SessionOptions | None = None
) -> Any:
    """Make a workflow of an async function whose first parameter is a `Workflow`; the others, and what it returns, have
    types that JSON can hold. `session`: what `callboard workflow run` gives its session (agents, tools, ...).

    Between steps it has to do the same when it is run again: what depends on time, chance or the world goes through
    `flow.now()`, `flow.random()`, `flow.step(...)`. Raises `NotTyped`, naming the parameter.
    """
    if function is not None:
        return _made(function, name, session or {})
    return functools.partial(_made, name=name, session=session or {})


def _made(function: Callable[..., Awaitable[Any]], name: str, session: SessionOptions) -> AnyWorkflow:
    what = name or getattr(function, "__name__", "")
    if not inspect.iscoroutinefunction(function):
        raise NotTyped(f"workflow {what!r}: write an `async def`")
    taken = taken_by(function, f"workflow {what!r}", Workflow)
    first = next(iter(inspect.signature(function).parameters), "")
    if not taken.special or taken.special != first:
        raise NotTyped(f"workflow {what!r}: its first parameter is `flow: Workflow`")
    return WorkflowFunction(function, what, taken, session)


async def run_workflow(
    here: HostedSession, function: AnyWorkflow, given: Json, tell: Callable[[str], None], place: str = ""
) -> Any:
    """Run it, or go on with the run of its id. What it returned.

    Raises what it raises, and `WorkflowChanged` for other arguments than before.
    """
    run = function.run_id or short_id("flow", here.id, function.name, time.time_ns())
    journal = await load_journal(here, run)
    if journal is None:
        row = WorkflowRow(
            id=run,
            name=function.name,
            place=place or function.place,
            code=function.code,
            args=given,
            created_at=time.time(),
            budget_usd=function.budget_usd,
        )
        await here.commit(Put(workflow_key(here.id, run), row.encode(), 0))
        journal = await load_journal(here, run)
        assert journal is not None, "the row was written a moment ago"
    elif (journal.row.name, journal.row.args) != (function.name, given):
        words = f"workflow {run} was begun as {journal.row.name} with {journal.row.args}, not as {function.name} with"
        raise WorkflowChanged(f"{words} {given}: give the same, or begin a new one under another id", "")
    return await go_on(here, function, journal, tell)


async def go_on(here: HostedSession, function: AnyWorkflow, journal: FlowJournal, tell: Callable[[str], None]) -> Any:
    """From the first step that has not ended. What it returned; of a run that has ended, what it came to then."""
    row = journal.row
    if row.status == "done":
        return read_value(row.result, function.returns, "result")
    if row.code and function.code and row.code != function.code:
        tell(f"the code of workflow {row.id} has changed since it began: each step is held to what it was")
    if row.status == "failed":
        await journal.drop_failed()
    budget = row.budget_usd if function.budget_usd is None else function.budget_usd
    await journal.settle(status="running", ended_at=None, error="", budget_usd=budget)
    flow = Workflow(Shared(here, journal, tell))
    args, kwargs = function.taken.bind(row.args, flow)
    try:
        made = await function.function(*args, **kwargs)
        result = function.result_json(made)
    except anyio.get_cancelled_exc_class():
        raise  # it goes on from its journal when it is resumed
    except Exception as failed:
        await journal.settle(status="failed", ended_at=time.time(), error=f"{type(failed).__name__}: {failed}")
        raise
    await journal.settle(status="done", ended_at=time.time(), result=result)
    return made
