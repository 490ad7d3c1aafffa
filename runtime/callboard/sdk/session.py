"""Session in a Python program: open it with `async with`, send prompts, follow events, resume it.

    async with Session(".", model="claude-sonnet-4-5", tools=[weather]) as session:
        result = await session.run("What should I wear in Oslo tomorrow?")
        print(result.text, result.usage.cost_usd)

A session lives in the event loop that opens it. It handles no signals, prints nothing, does not change logging, and has
no global state, so a process may have several sessions. Every event is durable when it happens: a cancelled or killed
program loses nothing, and `Session.resume` continues.

The task that enters one of anyio's cancel scopes has to leave it. A web service opens sessions in one task (its
start-up, a request) and closes them in another, so a separate task (`ContextTask`) holds the scopes of each session and
does nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack, cast, overload

import anyio
from anyio.abc import TaskGroup

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.ports.model import Delta
from callboard.sdk.approvers import Said, answer_of
from callboard.sdk.errors import SessionClosed, UsageError, WrongResult
from callboard.sdk.events import Rested
from callboard.sdk.options import SessionKeywords, session_request
from callboard.sdk.results import Result, TypedResult, result_of, retry_prompt
from callboard.sdk.streams import Relay, Stream
from callboard.sdk.workflows.decorator import WorkflowFunction, go_on, run_workflow
from callboard.sdk.workflows.journal import find_row, load_journal, rows_of
from callboard.sessions.attached import AttachedSession
from callboard.sessions.base import OpenSession
from callboard.sessions.hosted import HostedSession
from callboard.sessions.open import Attach, open_as
from callboard.sessions.result import AgentSummary
from callboard.types.choices import unknown
from callboard.types.errors import Conflict, heart_of
from callboard.types.records import Json, Request, Task, Usage
from callboard.types.schedules import Schedule
from callboard.types.workflows import WorkflowRow

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

TRIES = 3
"""Attempts to get an answer of the requested type."""


class Session:
    """One workspace, one lead and its team. Open it with `async with`; it can be opened once.

    Any task of the event loop may open, use and close it.
    """

    def __init__(self, workspace: str | Path = ".", /, **options: Unpack[SessionKeywords]) -> None:
        """Prepare a new session in a folder. Nothing happens before it is opened.

        Raises `UsageError` for options that do not fit together. Opening the session raises the errors of
        `PersonCanAct` for faults that you can fix (`CredentialsMissing`, `UnknownModel`, `SettingsError`,
        `WorkspaceUnusable`), and `NobodyCanAct` if the store is damaged or full.
        """
        self._asked = session_request(workspace, options, session=None)
        self._attach: Attach = "never"
        self._relay = Relay()
        self._keeper: ContextTask[OpenSession] | None = None
        self._open: OpenSession | None = None
        self._group: TaskGroup | None = None
        self._used = False
        self._identity: tuple[str, Path] | None = None
        """Id and workspace, from the opening on."""
        self._prompts = asyncio.Lock()
        """Held from a prompt of `run` or `stream` to the rest after it: the answer is that to this prompt."""

    @classmethod
    def resume(
        cls, workspace: str | Path = ".", session: str | None = None, **options: Unpack[SessionKeywords]
    ) -> Self:
        """Prepare to resume a session, by its id or a prefix of it; None: the newest session.

        Opening the session continues interrupted work. Pass the tools, hooks and agents from Python again.
        """
        made = cls(workspace, **options)
        made._asked = session_request(workspace, options, resume=True, session=session)
        return made

    @classmethod
    def attach(cls, workspace: str | Path = ".", session: str | None = None) -> Self:
        """Prepare to follow a session that another process hosts: send prompts, answer requests, read events.

        Closing it does not affect the other process. Opening it raises `UsageError` if no process hosts the session.
        """
        made = cls(workspace)
        request = session_request(workspace, {}, resume=True, session=session)
        hosting = replace(request.options.hosting, live_text=True)
        made._asked = replace(request, options=replace(request.options, hosting=hosting))
        made._attach = "only"
        return made

    async def __aenter__(self) -> Self:
        if self._used:
            raise UsageError("a session can be opened only once: create another, or use Session.resume")
        self._used = True
        if self._asked.approvers:
            refuse_inside_tool("Answering requests by an approver")
        _refuse_other_loops()
        keeper = self._keeper = ContextTask(self._enter)
        opened_session = await keeper.open()
        if self._keeper is not keeper:
            raise SessionClosed("the session was closed while it was being opened")
        self._open = opened_session
        self._identity = (opened_session.id, opened_session.workspace)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        keeper, self._keeper = self._keeper, None
        self._open = None
        if keeper is not None:
            await keeper.close()

    async def _enter(self, stack: AsyncExitStack) -> OpenSession:
        request = self._asked
        approvers = (self._relay, *request.approvers)
        inner = open_as(self._attach, request.options, (self._relay, *request.observers), approvers)
        opened_session = await stack.enter_async_context(inner)
        self._group = await stack.enter_async_context(_tending())
        stack.callback(self._close_streams)
        await self._add_schedules(opened_session)
        return opened_session

    # Properties

    @property
    def id(self) -> str:
        """Return the id of the session, also after it was closed.

        Use it to resume the session, to attach to it, and on the command line.
        """
        return self._opened[0]

    @property
    def workspace(self) -> Path:
        """Return the absolute path of the workspace, also after the session was closed."""
        return self._opened[1]

    @property
    def model(self) -> str:
        """Return the current model of the lead."""
        return self._current.model_of()

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a line for each setting that takes effect in another way than written."""
        return self._current.notes

    # Running

    @overload
    async def run(self, prompt: str) -> Result[None]: ...
    @overload
    async def run(self, prompt: str, *, result: type[T]) -> Result[T]: ...
    async def run(self, prompt: str, *, result: Any = None) -> Result[Any]:
        """Send a prompt to the lead and wait until it and its team have nothing left to do.

        `result`: a pydantic model, dataclass, `TypedDict` or other type for the final answer. The answer is requested
        as JSON, up to three times, with the error of the previous attempt. If this call is cancelled, the turn
        continues: `session.rest()` waits for it, and `session.interrupt()` stops it.

        The result says whether the run ended well (`ok`, `why`, `check()`). With a typed result, a failed run raises
        `RunFailed`, and `WrongResult` if no answer matches the type. Runs at the same time take their turns one after
        another; `say` sends into the current turn.
        """
        self._refuse_attached()
        async with self._prompts:
            return await (self._run(prompt) if result is None else self._run_typed(prompt, TypedResult(result)))

    async def _run(self, prompt: str) -> Result[None]:
        await self.say(prompt)
        return await self.rest()

    async def _run_typed(self, prompt: str, form: TypedResult[Any]) -> Result[Any]:
        await self.say(f"{prompt}\n\n{form.words()}")
        wrongs: list[str] = []
        while True:
            end = (await self.rest()).check()
            value, wrong = form.read(end.text)
            if not wrong:
                return replace(end, value=value)
            wrongs.append(wrong)
            if len(wrongs) > TRIES:
                message = f"the answer did not fit the schema {len(wrongs)} times: {wrong}"
                raise WrongResult(message, wrongs, end.text)
            await self.say(retry_prompt(wrong))

    async def rest(self) -> Result[None]:
        """Wait until nothing is left to do, without a new prompt: after a resume, or after a cancelled run."""
        self._refuse_attached()
        return await self._guarded(self._rested(self._current))

    def stream(self, prompt: str, *, raw: bool = False) -> Stream:
        """Send a prompt like `run`, and yield events: `async for event in session.stream("...")`.

        The prompt is sent when the stream is first read. The last event is `Rested`. `raw`: include the records of the
        journals, as `Raw`.
        """

        def begin(stream: Stream) -> None:
            current = self._current  # raises if the session is not open any more
            if self._group is None:
                raise SessionClosed("the session is being closed")
            self._relay.add(stream)
            stream.waits = not isinstance(current, AttachedSession)
            self._group.start_soon(self._until_rest, stream, prompt, current)

        _ = self._current  # raises if the session is not open
        return Stream(begin, raw=raw)

    def events(self, *, raw: bool = False) -> Stream:
        """Return a stream of all events from now until the session is closed."""
        stream = Stream(raw=raw)
        _ = self._current  # raises if the session is not open
        self._relay.add(stream)  # now, so that no event is missed before the first read
        return stream

    async def _until_rest(self, stream: Stream, prompt: str, current: OpenSession) -> None:
        """Send the prompt of a stream and close the stream at the rest.

        A task of the session does this, so that a reader that stops waiting for the next event cuts nothing off.
        """
        try:
            if isinstance(current, AttachedSession):
                await self.say(prompt)
                return
            async with self._prompts:
                stream.waits = False
                await self.say(prompt)
                stream.push(Rested("lead", await self._rested(current)))
        except Exception as error:  # noqa: BLE001 - raised again in the reader; other uses of the session continue
            stream.fail(error)
        stream.close()

    # Workflows

    async def workflow(self, function: WorkflowFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a workflow and return its result.

        `function.named("nightly")` gives the run an id. Running it again under that id, also after a kill, continues
        from its journal and repeats no finished step. Raises the exceptions of the function, `UsageError` for invalid
        arguments, `WorkflowChanged`, and `StepUnknown`.
        """
        return await self.run_workflow(function, function.arguments(args, kwargs))

    async def run_workflow(self, function: WorkflowFunction[..., T], given: Json, *, place: str = "") -> T:
        """Run a workflow with its arguments as a JSON object. `place`: location of the function, `FILE:NAME`."""
        return cast(
            "T", await self._guarded(run_workflow(self._hosted, function, given, tell=self._notify, place=place))
        )

    async def resume_workflow(
        self, function: WorkflowFunction[..., T], run: str | None = None, *, redo: Sequence[str] = ()
    ) -> T:
        """Resume a run of a workflow with its original arguments, by its id or a prefix of it; None: the newest run.

        `redo`: ids of steps to run again. Raises the same exceptions as `workflow`.
        """
        row = await find_row(self._hosted.store, self.id, run)
        journal = await load_journal(self._hosted, row.id)
        if journal is None or row.name != function.name:
            raise UsageError(f"workflow {row.id} is a run of {row.name}, not of {function.name}")
        await journal.drop(redo)
        if redo and row.status == "done":
            await journal.settle(status="running")
        return cast("T", await self._guarded(go_on(self._hosted, function, journal, self._notify)))

    async def workflows(self) -> Sequence[WorkflowRow]:
        """Return the workflows of this session, newest first."""
        return await rows_of(self._hosted.store, self.id)

    # Messages and answers

    async def say(self, text: str, to: str = "lead") -> None:
        """Send a message from the user to an agent; `/name args` works as at the prompt line.

        Does not wait for the effect. Raises `UsageError` for an unknown agent.
        """
        await self._current.say(text, to)

    async def interrupt(self, name: str | None = None) -> None:
        """Stop the current turn of the lead and of every working agent; with `name`, only of this agent.

        Raises `UsageError` for an unknown agent.
        """
        await self._current.interrupt(name)

    async def stop(self, name: str) -> None:
        """End an agent permanently. Raises `UsageError` for an unknown agent."""
        await self._current.command("stop", to=name)

    async def compact(self, focus: str = "", to: str = "lead") -> None:
        """Summarize an agent's conversation. `focus`: what to keep."""
        await self._current.command("compact", to=to, text=focus)

    async def use_model(self, name: str, to: str = "lead") -> None:
        """Switch an agent to this model from its next call on. Raises `UnknownModel`, `UsageError`."""
        await self._current.use_model(name, to)

    def requests(self) -> Sequence[Request]:
        """Return the requests that wait for an answer."""
        return self._current.requests()

    async def answer(self, request: Request | str, said: Said, reason: str = "") -> None:
        """Answer a request as the user.

        `said`: True or False, with a reason for the agent; a string for a question; or an `Answer`.

        `request`: the request or its id. Raises `UsageError`, with the reason, if the answer is not accepted.
        """
        requests = {row.id: row for row in self._current.requests(pending_only=False)}
        match = requests.get(request if isinstance(request, str) else request.id)
        if match is None:
            raise UsageError(unknown("request", request, requests))
        answer = answer_of(match, said, reason)
        if answer is None:
            raise UsageError("None is not an answer: pass True, False, or a string")
        lost = await self._current.answer(
            match.id, answer.status, answer.reason, word=answer.word, always=answer.always
        )
        if lost is not None:
            raise UsageError(f"the answer to {match.id} was not accepted: {lost}")

    # State

    def team(self) -> Sequence[AgentSummary]:
        """Return every agent, the lead first: name, kind, lifecycle, outcome, usage."""
        return self._current.team()

    def tasks(self) -> Sequence[Task]:
        """Return the task board."""
        return self._current.tasks()

    def schedules(self) -> Sequence[Schedule]:
        """Return the schedules of the session."""
        return self._current.schedules()

    def cost(self) -> Usage:
        """Return the usage of all agents so far: tokens, and US dollars in `cost_usd`."""
        return self._current.usage()

    @property
    def runtime(self) -> OpenSession:
        """Return the session of the runtime, for features that this class does not offer.

        It may change in any version.
        """
        return self._current

    # Inside

    @property
    def _opened(self) -> tuple[str, Path]:
        if self._identity is None:
            raise _not_open()
        return self._identity

    @property
    def _current(self) -> OpenSession:
        if self._open is None:
            raise _not_open()
        if self._keeper is not None:
            self._keeper.refuse_other_loop()
            if self._keeper.ended:
                raise self._keeper.error or SessionClosed("the session has ended")
        return self._open

    async def _guarded(self, work: Awaitable[T]) -> T:
        """Wait for `work`, at most until the session is closed."""
        assert self._keeper is not None, "it is open"
        return await self._keeper.guard(work)

    @property
    def _hosted(self) -> HostedSession:
        if isinstance(self._current, HostedSession):
            return self._current
        raise UsageError("another process hosts this session: workflows run where it is hosted")

    def _refuse_attached(self) -> None:
        if isinstance(self._current, AttachedSession):
            raise UsageError("another process hosts this session: use session.say() and session.events()")

    def _notify(self, text: str) -> None:
        self._relay.on_delta("workflow", Delta("notice", text))

    async def _rested(self, current: OpenSession) -> Result[None]:
        end = await current.wait_finished()
        if isinstance(current, HostedSession):
            await current.mark_ended(end.of_run().exit_code)
        return result_of(end, current.id, None)

    def _close_streams(self) -> None:
        self._group = None  # it ends now, and starts nothing any more
        self._relay.close()

    async def _add_schedules(self, current: OpenSession) -> None:
        for schedule in self._asked.schedules:
            if isinstance(current, HostedSession) and not any(
                existing.id == schedule.id for existing in current.schedules()
            ):
                try:
                    await current.add_schedule(schedule)
                except Conflict:
                    continue  # another process has added the same schedule


def _not_open() -> SessionClosed:
    return SessionClosed("the session is not open: use it inside `async with Session(...) as session:`")


def _refuse_other_loops() -> None:
    """Raise `UsageError` outside asyncio: the HTTP client of the model service requires asyncio."""
    try:
        asyncio.get_running_loop()
    except RuntimeError as other:
        message = "sessions run on asyncio (anyio.run does by default): run this one in a thread with asyncio.run"
        raise UsageError(message) from other


@asynccontextmanager
async def _tending() -> AsyncGenerator[TaskGroup]:
    """Yield a task group for the session. An exception in the block leaves it unchanged, not as an exception group."""
    try:
        async with anyio.create_task_group() as group:
            yield group
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failed:
        raise heart_of(failed) from failed


class ContextTask(Generic[T]):
    """Hold the result of `enter` open until `close`."""

    def __init__(self, enter: Callable[[AsyncExitStack], Awaitable[T]]) -> None:
        """Store `enter`, which opens the value on the given exit stack and returns it."""
        self._enter = enter
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[T] = self._loop.create_future()
        self._closing = asyncio.Event()
        self._ended = anyio.Event()
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def error(self) -> BaseException | None:
        """Return the error that ended the task before `close`, or while it closed; None if there is none."""
        return self._error

    @property
    def ended(self) -> bool:
        """Return True once the value is closed."""
        return self._ended.is_set()

    def refuse_other_loop(self) -> None:
        """Raise `UsageError` in another event loop. Without one, as in a thread, the state may be read."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if loop is not self._loop:
            raise UsageError(
                "the session belongs to the event loop that opened it: from another thread, use "
                "asyncio.run_coroutine_threadsafe with that loop"
            )

    async def open(self) -> T:
        """Open the value and return it.

        Raises the exceptions of `enter`. If this call is cancelled, it closes the value first.
        """
        self._task = self._loop.create_task(self._keep())
        try:
            return await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            self._task.cancel()
            with anyio.CancelScope(shield=True):
                await self._ended.wait()
            raise

    async def close(self) -> None:
        """Close the value and wait until it is closed, even in a cancelled task. Idempotent.

        Raises the exception that ended the task, and `UsageError` in another event loop than the one that opened the
        value.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError("a session is closed in the event loop that it was opened in")
        self._closing.set()
        with anyio.CancelScope(shield=True):
            await self._ended.wait()
        if self._error is not None:
            raise self._error

    async def guard(self, work: Awaitable[R]) -> R:
        """Wait for `work`, at most until the value is closed.

        Raises the exception that ended the task, or `SessionClosed`.
        """
        done: list[R] = []
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._cancel_at_end, group.cancel_scope)
                done.append(await work)
                group.cancel_scope.cancel()
        except BaseExceptionGroup as failed:
            raise heart_of(failed) from failed
        if not done:
            raise self._error or SessionClosed("the session was closed")
        return done[0]

    async def _cancel_at_end(self, scope: anyio.CancelScope) -> None:
        await self._ended.wait()
        scope.cancel()

    async def _keep(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                opened = await self._enter(stack)
                self._opened.set_result(opened)
                await self._closing.wait()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - raised again in the task that opens, uses or closes it
            if not self._opened.done():
                self._fail_opening(error)
            elif not isinstance(error, asyncio.CancelledError):
                self._error = error
        finally:
            self._ended.set()

    def _fail_opening(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            self._opened.cancel()
            return
        self._opened.set_exception(error)
        self._opened.exception()  # marks the exception as retrieved: a cancelled opener never reads it
