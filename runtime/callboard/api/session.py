"""A session in a program: opened with `async with`, talked to, watched, resumed.

    async with Session(".", model="claude-sonnet-4-5", tools=[weather]) as session:
        result = await session.run("What should I wear in Oslo tomorrow?")
        print(result.text, result.usage.cost_usd)

It lives in the event loop that it is opened in, takes no signals, prints nothing, changes no logging and holds nothing
global; a process may have several. Everything that happens is durable when it has happened: a cancelled or killed
program loses nothing, and `Session.resume` goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack, cast, overload

import anyio
from anyio.abc import TaskGroup

from callboard.api.asking import Said, answer_of
from callboard.api.errors import SessionClosed, UsageError, WrongResult
from callboard.api.events import Rested
from callboard.api.options import SessionOptions, asked_for
from callboard.api.results import Result, Wanted, again, result_of
from callboard.api.streams import Relay, Stream
from callboard.api.workflows.journal import find_row, load_journal, rows_of
from callboard.api.workflows.running import WorkflowFunction, go_on, run_workflow
from callboard.app import Session as HostedSession
from callboard.attaching import Attach, AttachedSession, opened
from callboard.ending import AgentSummary, End
from callboard.ports.model import Delta
from callboard.session import OpenSession
from callboard.words.errors import Conflict, heart_of
from callboard.words.schedules import Schedule
from callboard.words.values import Json, Request, Task, Usage
from callboard.words.workflows import WorkflowRow

T = TypeVar("T")
P = ParamSpec("P")

TRIES = 3
"""How often an answer that does not fit is asked for again."""


class Session:
    """One workspace, one lead and its team. Open it with `async with`; it can be opened once."""

    def __init__(self, workspace: str | Path = ".", /, **options: Unpack[SessionOptions]) -> None:
        """A new session on a folder; nothing is done before it is opened.

        Raises `UsageError` for options that do not fit. Opening it raises the errors of `PersonCanAct` for what you can
        mend (`CredentialsMissing`, `UnknownModel`, `SettingsError`, `WorkspaceUnusable`), and `NobodyCanAct` when the
        store is damaged or full.
        """
        self._asked = asked_for(workspace, options, session=None)
        self._attach: Attach = "never"
        self._relay = Relay()
        self._stack: AsyncExitStack | None = None
        self._open: OpenSession | None = None
        self._group: TaskGroup | None = None
        self._used = False

    @classmethod
    def resume(cls, workspace: str | Path = ".", session: str | None = None, **options: Unpack[SessionOptions]) -> Self:
        """A session that there is already: the one of that id, or a beginning of it; None: the newest. What was cut off
        goes on when it is opened. Tools, hooks and agents from Python are to be given again."""
        made = cls(workspace, **options)
        made._asked = asked_for(workspace, options, resume=True, session=session)
        return made

    @classmethod
    def attach(cls, workspace: str | Path = ".", session: str | None = None) -> Self:
        """A session that another process hosts, followed from here: words, answers, events. Leaving it leaves the other
        process alone. Opening it raises `UsageError` when nobody hosts it."""
        made = cls(workspace)
        made._asked = asked_for(workspace, {}, resume=True, session=session)
        made._attach = "only"
        return made

    async def __aenter__(self) -> Self:
        if self._used:
            raise UsageError("a session is opened once: make another, or use Session.resume")
        self._used = True
        asked = self._asked
        _refuse_other_loops()
        approvers = (self._relay, *asked.approvers)
        async with AsyncExitStack() as stack:
            inner = opened(self._attach, asked.options, (self._relay, *asked.observers), approvers)
            self._open = await stack.enter_async_context(inner)
            self._group = await stack.enter_async_context(_tending())
            stack.callback(self._relay.close)
            await self._add_schedules(self._open)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        stack, self._stack = self._stack, None
        try:
            return await stack.__aexit__(kind, error, trace) if stack is not None else None
        finally:
            self._open = self._group = None

    # What it is

    @property
    def id(self) -> str:
        """By which it is resumed, attached to, and named on the command line."""
        return self._here.id

    @property
    def workspace(self) -> Path:
        """The folder, absolute."""
        return self._here.workspace

    @property
    def model(self) -> str:
        """The model that the lead asks at the moment."""
        return self._here.model_of()

    @property
    def notes(self) -> tuple[str, ...]:
        """Which settings are heeded in another way than they say, a line each."""
        return self._here.notes

    # Running

    @overload
    async def run(self, prompt: str) -> Result[None]: ...
    @overload
    async def run(self, prompt: str, *, result: type[T]) -> Result[T]: ...
    async def run(self, prompt: str, *, result: Any = None) -> Result[Any]:
        """Say something to the lead and wait until it and its team have nothing left to do.

        `result`: a pydantic model, dataclass, `TypedDict` or other type that the last words are to be: asked for as
        JSON, and asked for again, with what is wrong, up to three times. Cancelled: the turn goes on, and
        `session.rest()` waits for it; `session.interrupt()` stops it.

        A run that does not end well is told by the result (`ok`, `why`, `check()`). Raises, where a typed result is
        wanted, `RunFailed` instead, and `WrongResult` when no answer fits.
        """
        if result is None:
            await self.say(prompt)
            return await self.rest()
        wanted: Wanted[Any] = Wanted(result)
        await self.say(f"{prompt}\n\n{wanted.words()}")
        wrongs: list[str] = []
        while True:
            end = (await self.rest()).check()
            value, wrong = wanted.read(end.text)
            if not wrong:
                return replace(end, value=value)
            wrongs.append(wrong)
            if len(wrongs) > TRIES:
                words = f"the answer did not fit the schema {len(wrongs)} times: {wrong}"
                raise WrongResult(words, wrongs, end.text)
            await self.say(again(wrong))

    async def rest(self) -> Result[None]:
        """Wait until nothing is left to do, without saying anything: after a resume, or a run that was cancelled."""
        here = self._here
        if isinstance(here, AttachedSession):
            raise UsageError("another process hosts this session: say something and follow session.events()")
        end = await here.finished()
        if isinstance(here, HostedSession):
            await here.mark_ended(end.exit_code)
        return self._result(end)

    def stream(self, prompt: str, *, raw: bool = False) -> Stream:
        """The same as `run`, watched: `async for event in session.stream("...")`. Begins when it is first read; its
        last event is `Rested`. `raw`: with the records of the journals, as `Raw`."""

        async def begin(stream: Stream) -> None:
            self._relay.add(stream)
            await self.say(prompt)
            if self._group is not None and not isinstance(self._open, AttachedSession):
                self._group.start_soon(self._until_rest, stream)

        _ = self._here  # raises where the session is not open
        return Stream(begin, raw=raw)

    def events(self, *, raw: bool = False) -> Stream:
        """All that happens from now on, until the session is closed."""

        async def begin(stream: Stream) -> None:
            """It was added already: nothing is missed between here and the first look."""

        stream = Stream(begin, raw=raw)
        _ = self._here  # raises where the session is not open
        self._relay.add(stream)
        return stream

    async def _until_rest(self, stream: Stream) -> None:
        result = await self.rest()
        stream.push(Rested("lead", result))
        stream.close()

    # Workflows

    async def workflow(self, function: WorkflowFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a workflow and return what it returns. `function.named("nightly")` gives the run an id: run again under
        that id, also after a kill, it goes on from its journal and repeats nothing that was done.

        Raises what the function raises, `UsageError` for arguments that do not fit, `WorkflowChanged`, `StepUnknown`.
        """
        return await self.run_workflow(function, function.arguments(args, kwargs))

    async def run_workflow(self, function: WorkflowFunction[..., T], given: Json, *, place: str = "") -> T:
        """The same with the arguments as a JSON object. `place`: where the function is found again, `FILE:NAME`."""
        return cast("T", await run_workflow(self._hosted, function, given, self._tell, place))

    async def resume_workflow(
        self, function: WorkflowFunction[..., T], run: str | None = None, *, redo: Sequence[str] = ()
    ) -> T:
        """Go on with a run of a workflow, with the arguments that it was begun with: the one of that id, or a beginning
        of it; None: the newest. `redo`: ids of steps that are to run again. Raises what `workflow` raises."""
        row = await find_row(self._hosted.store, self.id, run)
        journal = await load_journal(self._hosted, row.id)
        if journal is None or row.name != function.name:
            raise UsageError(f"workflow {row.id} is one of {row.name}, not of {function.name}")
        await journal.drop(redo)
        if redo and row.status == "done":
            await journal.settle(status="running")
        return cast("T", await go_on(self._hosted, function, journal, self._tell))

    async def workflows(self) -> Sequence[WorkflowRow]:
        """The workflows of this session, newest first."""
        return await rows_of(self._hosted.store, self.id)

    # Words and answers

    async def say(self, text: str, to: str = "lead") -> None:
        """A person's words to an agent; `/name args` as at the prompt line. Does not wait for what comes of it. Raises
        `UsageError` for an agent that there is not."""
        await self._here.say(text, to)

    async def interrupt(self, name: str | None = None) -> None:
        """Stop the turn of the lead and of everyone at work; `name`: of this agent alone."""
        await self._here.interrupt(name)

    async def stop(self, name: str) -> None:
        """End an agent for good. Raises `UsageError` for one that there is not."""
        await self._here.command("stop", to=name)

    async def compact(self, focus: str = "", to: str = "lead") -> None:
        """Have an agent's conversation summarised. `focus`: what to keep."""
        await self._here.command("compact", to=to, text=focus)

    async def use_model(self, name: str, to: str = "lead") -> None:
        """Have an agent ask this model from its next call on. Raises `UnknownModel`, `UsageError`."""
        await self._here.use_model(name, to)

    def requests(self) -> Sequence[Request]:
        """What waits for an answer."""
        return self._here.requests()

    async def answer(self, request: Request | str, said: Said, reason: str = "") -> None:
        """Answer as the person: True or False, with a reason that the asker reads; a text to a question; or an
        `Answer`. `request`: it, or its id. Raises `UsageError` when the answer does not count, with why."""
        known = {one.id: one for one in self._here.requests(pending_only=False)}
        meant = known.get(request if isinstance(request, str) else request.id)
        if meant is None:
            raise UsageError(f"there is no request {request!r}; there are: {', '.join(known) or 'none'}")
        answer = answer_of(meant, said, reason)
        if answer is None:
            raise UsageError("None is no answer: say True, False, or a text")
        lost = await self._here.answer(meant.id, answer.status, answer.reason, answer.word, answer.always)
        if lost is not None:
            raise UsageError(f"the answer to {meant.id} does not count: {lost}")

    # How it stands

    def team(self) -> Sequence[AgentSummary]:
        """Every agent, the lead first: name, kind, life, outcome, what it used."""
        return self._here.team()

    def tasks(self) -> Sequence[Task]:
        """The task board."""
        return self._here.tasks()

    def schedules(self) -> Sequence[Schedule]:
        """The schedules of the session."""
        return self._here.schedules()

    def cost(self) -> Usage:
        """What all agents have used so far: tokens, and US dollars in `cost_usd`."""
        return self._here.usage()

    @property
    def runtime(self) -> OpenSession:
        """The session as the runtime has it, for what this class does not offer. It may change from version to
        version."""
        return self._here

    # Inside

    @property
    def _here(self) -> OpenSession:
        if self._open is None:
            raise SessionClosed("the session is not open: use it inside `async with Session(...) as session:`")
        return self._open

    @property
    def _hosted(self) -> HostedSession:
        if isinstance(self._here, HostedSession):
            return self._here
        raise UsageError("another process hosts this session: workflows run where it is hosted")

    def _tell(self, text: str) -> None:
        self._relay.on_delta("workflow", Delta("notice", text))

    def _result(self, end: End) -> Result[None]:
        return result_of(end, self.id, None)

    async def _add_schedules(self, here: OpenSession) -> None:
        for one in self._asked.schedules:
            if isinstance(here, HostedSession) and not any(known.id == one.id for known in here.schedules()):
                try:
                    await here.add_schedule(one)
                except Conflict:
                    continue  # another process was faster with the same one


def _refuse_other_loops() -> None:
    """The transport of the model service runs on asyncio alone. Raises `UsageError`."""
    try:
        asyncio.get_running_loop()
    except RuntimeError as other:
        words = "sessions run on asyncio (anyio.run does by default): run this one in a thread with asyncio.run"
        raise UsageError(words) from other


@asynccontextmanager
async def _tending() -> AsyncGenerator[TaskGroup]:
    """Tasks of the session; an exception inside leaves as itself, not as a group."""
    try:
        async with anyio.create_task_group() as group:
            yield group
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failed:
        raise heart_of(failed) from failed
