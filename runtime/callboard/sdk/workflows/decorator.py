"""Workflows from code: `@workflow` on an async function whose first parameter is the run, and the functions to run it.

    @workflow
    async def audit(flow: Workflow, paths: list[str]) -> list[Finding]:
        \"\"\"Look for what is wrong, file by file.\"\"\"
        return await flow.map(paths, look)

Run it with `session.workflow(audit, paths=[...])` or `callboard workflow run FILE:audit`. Its journal makes it
resumable.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import anyio

from callboard.core.keys import short_id, workflow_key
from callboard.ports.store import Put
from callboard.sdk.errors import NotTyped, UsageError, WorkflowChanged
from callboard.sdk.options import SessionKeywords
from callboard.sdk.signatures import FunctionParameters, parameters_of
from callboard.sdk.workflows.journal import FlowJournal, digest_of, load_journal, stored_value, value_of
from callboard.sdk.workflows.run import Workflow, WorkflowState
from callboard.sessions.hosted import HostedSession
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json
from callboard.types.workflows import WorkflowRow

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class WorkflowFunction(Generic[P, R]):
    """Function decorated with `@workflow`. Calling it with a `Workflow` runs it as a part of that workflow."""

    function: Callable[Concatenate[Workflow, P], Awaitable[R]]
    name: str
    taken: FunctionParameters
    options: SessionKeywords
    """Options of the session that the command line opens for the workflow."""
    run_id: str = ""
    budget_usd: float | None = None

    def named(self, run_id: str = "", *, budget: float | None = None) -> WorkflowFunction[P, R]:
        """Return the workflow with the id of a run.

        Running it again under that id continues, or returns the stored result.

        `budget`: limit of the cost of all its agents together, in US dollars.
        """
        return replace(self, run_id=run_id or self.run_id, budget_usd=self.budget_usd if budget is None else budget)

    def __call__(self, flow: Workflow, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run the function as a part of another workflow. A function that has ended does not run again."""
        arguments = self.arguments(args, kwargs)

        async def work(path: str) -> R:
            return await self.function(flow.below(path), *args, **kwargs)

        return flow.once("workflow", self.name, digest_of(self.name, arguments), work, returns=self.returns)

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Json:
        """Return the arguments as JSON. Raises `UsageError` for arguments that are not JSON."""
        try:
            return self.taken.dump(args, kwargs)
        except ValueError as wrong:
            raise UsageError(f"workflow {self.name}: {wrong}") from wrong

    @property
    def returns(self) -> Any:
        """Return the type of the result; None if it has no annotation."""
        return None if self.taken.returns is inspect.Parameter.empty else self.taken.returns

    def result_json(self, made: Any) -> Any:
        """Convert the return value to JSON. Raises `UsageError` for a value that is not JSON."""
        return value_of(made, self.returns, "result")

    @property
    def place(self) -> str:
        """Return the location of the function: `module:name`."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

    @property
    def code(self) -> str:
        """Return the sha256 (hex) of the source code; empty if it cannot be read."""
        try:
            return hashlib.sha256(inspect.getsource(self.function).encode()).hexdigest()
        except (OSError, TypeError):
            return ""


AnyWorkflow = WorkflowFunction[..., Any]
"""Workflow with any parameters."""


@overload
def workflow(function: Callable[Concatenate[Workflow, P], Awaitable[R]], /) -> WorkflowFunction[P, R]: ...
@overload
def workflow(
    *, name: str = "", session: SessionKeywords | None = None
) -> Callable[[Callable[Concatenate[Workflow, P], Awaitable[R]]], WorkflowFunction[P, R]]: ...
def workflow(
    function: Callable[..., Awaitable[Any]] | None = None, /, *, name: str = "", session: SessionKeywords | None = None
) -> Any:
    """Make a workflow from an async function whose first parameter is a `Workflow`.

    JSON must be able to express the types of the other parameters and of the result.

    `session`: options of the session that `callboard workflow run` opens (agents, tools, ...). The code between steps
    must be deterministic: use `flow.now()`, `flow.random()` and `flow.step(...)` for time, chance and effects. Raises
    `NotTyped`, naming the parameter.
    """
    if function is not None:
        return _made(function, name, session or {})
    return functools.partial(_made, name=name, session=session or {})


def _made(function: Callable[..., Awaitable[Any]], name: str, session: SessionKeywords) -> AnyWorkflow:
    label = name or getattr(function, "__name__", "")
    if not inspect.iscoroutinefunction(function):
        raise NotTyped(f"workflow {label!r}: write an `async def`")
    parameters = parameters_of(function, f"workflow {label!r}", Workflow)
    first = next(iter(inspect.signature(function).parameters), "")
    if not parameters.special or parameters.special != first:
        raise NotTyped(f"workflow {label!r}: its first parameter is `flow: Workflow`")
    return WorkflowFunction(function, label, parameters, session)


async def run_workflow(
    session: HostedSession, function: AnyWorkflow, arguments: Json, *, tell: Callable[[str], None], place: str = ""
) -> Any:
    """Run the workflow, or continue the run with its id, and return the result.

    Raises the exceptions of the workflow, and `WorkflowChanged` for other arguments than before.
    """
    run = function.run_id or short_id("flow", session.id, function.name, time.time_ns())
    journal = await load_journal(session, run)
    if journal is None:
        row = WorkflowRow(
            id=run,
            name=function.name,
            place=place or function.place,
            code=function.code,
            args=arguments,
            created_at=time.time(),
            budget_usd=function.budget_usd,
        )
        await session.commit(Put(workflow_key(session.id, run), row.encode(), 0))
        journal = await load_journal(session, run)
        assert journal is not None, "the row was written a moment ago"
    elif (journal.row.name, journal.row.args) != (function.name, arguments):
        message = (
            f"workflow {run} was started as {journal.row.name} with {journal.row.args}, not as {function.name} with"
        )
        raise WorkflowChanged(f"{message} {arguments}: pass the same arguments, or start a new run with another id", "")
    return await go_on(session, function, journal, tell)


async def go_on(
    session: HostedSession, function: AnyWorkflow, journal: FlowJournal, tell: Callable[[str], None]
) -> Any:
    """Continue from the first unfinished step and return the result. For a finished run, return its stored result."""
    row = journal.row
    if row.status == "done":
        return stored_value(row.result, function.returns, "result")
    if row.code and function.code and row.code != function.code:
        tell(f"the code of workflow {row.id} has changed since its start: each step is compared with its first run")
    if row.status == "failed":
        await journal.drop_failed()
    budget = row.budget_usd if function.budget_usd is None else function.budget_usd
    await journal.settle(status="running", ended_at=None, error="", budget_usd=budget)
    flow = Workflow(WorkflowState(session, journal, tell))
    args, kwargs = function.taken.bind(row.args, flow)
    try:
        made = await function.function(*args, **kwargs)
        result = function.result_json(made)
    except anyio.get_cancelled_exc_class():
        raise  # a resume continues it from its journal
    except Exception as failed:
        await journal.settle(status="failed", ended_at=time.time(), error=f"{type(failed).__name__}: {failed}")
        raise
    await journal.settle(status="done", ended_at=time.time(), result=result)
    return made
