"""Steps of a workflow: agents alone, in parallel and in pipelines, own functions, and questions to the user.

The id of a step follows from its place: `agent#2` is the second agent requested here, `map#1[3]/step#1` the first own
function for the fourth item. Parallel parts have separate `Workflow` objects, so that ids do not depend on timing.
`key=` names a step whose place may change.

A question to the user is a request like any other. It is created once and awaited.
"""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import field
from functools import reduce
from typing import Any, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, cast, overload

import anyio
import anyio.to_thread

from callboard.core.approvals.requests import open_request
from callboard.core.budgets.tree import narrower
from callboard.core.decoding import read_value
from callboard.core.keys import request_key, short_id
from callboard.ports.store import Put
from callboard.sdk.agents import Agent
from callboard.sdk.errors import AgentFailed, BudgetSpent, UsageError, WrongResult
from callboard.sdk.results import TypedResult, retry_prompt
from callboard.sdk.workflows.journal import FlowJournal, digest_of, stored_value, value_of
from callboard.sessions.hosted import HostedSession, WorkItem
from callboard.sessions.result import FAILED, outcome_of
from callboard.types.errors import AnswerNeeded, Conflict, heart_of
from callboard.types.hook_answers import GoOn, SubagentStop
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Budget, Request, Usage
from callboard.types.workflows import StepKind, WorkflowNoted

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
R = TypeVar("R")
P = ParamSpec("P")

LIMIT = 8
"""Default number of items that run at once."""


class AgentStep(TypedDict, total=False):
    """Keyword options of `Workflow.agent`."""

    key: str
    """Name of the step, for a step whose place may change: letters, digits, `_`, `-` and `.`."""
    label: str
    """Short label, shown next to the agent."""
    model: str
    """Model of the agent, known to the session."""
    budget: float | Budget
    """Budget of this agent: US dollars, or a `Budget`."""
    tries: int
    """Attempts to get a valid answer. Default: 3."""


@dataclass(slots=True)
class WorkflowState:
    """State shared by all parts of one run."""

    session: HostedSession
    journal: FlowJournal
    tell: Callable[[str], None]
    agents: set[str] = field(default_factory=set[str])
    """Names of the agents that the run started."""
    failing: bool = False
    """True once a part has failed and the others are being ended."""


class Workflow:
    """One run of a workflow, or a parallel part of it.

    A function decorated with `@workflow` receives it as its first argument.
    """

    def __init__(self, shared: WorkflowState, path: str = "") -> None:
        self._shared = shared
        self._path = path
        self._counts: dict[str, int] = {}

    @property
    def id(self) -> str:
        """Return the id of the run. Use it to resume the run."""
        return self._shared.journal.row.id

    # Agents

    @overload
    def agent(self, agent: str | Agent, prompt: str, **more: Unpack[AgentStep]) -> Coroutine[Any, Any, str]: ...
    @overload
    def agent(
        self, agent: str | Agent, prompt: str, *, result: type[T], **more: Unpack[AgentStep]
    ) -> Coroutine[Any, Any, T]: ...
    def agent(
        self, agent: str | Agent, prompt: str, *, result: Any = None, **more: Unpack[AgentStep]
    ) -> Coroutine[Any, Any, Any]:
        """Run an agent for one task and return its final text, or the value parsed from it.

        `agent`: a type of the session (`explore`, one of yours). `result`: a pydantic model, dataclass, `TypedDict` or
        other type. The answer is requested as JSON, up to `tries` times, with the error of the previous attempt.

        Raises, when awaited, `AgentFailed` for an agent that did not finish, `WrongResult` if no answer is valid,
        `BudgetSpent`, `LimitReached`, `UsageError` for an unknown type, and `WorkflowChanged`.
        """
        name = agent if isinstance(agent, str) else agent.name
        form: TypedResult[Any] | None = None if result is None else TypedResult(result)
        step = self._step("agent", more.get("key", ""))
        budget = more.get("budget")
        call = AgentCall(
            step=step,
            agent_type=name,
            prompt=prompt,
            form=form,
            label=more.get("label") or f"{name}: {' '.join(prompt.split())[:60]}",
            model=more.get("model", ""),
            budget=budget if isinstance(budget, Budget) else Budget(cost_usd=budget),
            tries=more.get("tries", 3),
        )
        return run_agent(self._shared, call, self._remaining_budget)

    # Own work

    @overload
    def step(
        self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def step(
        self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Run a function once: it never runs a second time. `name` identifies the step.

        The result has to be JSON, or of the annotated type. A function that is not async runs in a thread. Raises, when
        awaited, the exceptions of the function, and `StepUnknown` if it was cut off with its process.
        """
        return self._own(name, function, args, kwargs, again=False)

    @overload
    def repeatable(
        self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def repeatable(
        self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    def repeatable(
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Coroutine[Any, Any, Any]:
        """Run a function that may run again after it was cut off, such as a read.

        A finished step does not run again.
        """
        return self._own(name, function, args, kwargs, again=True)

    def _own(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, again: bool
    ) -> Coroutine[Any, Any, Any]:
        digest = digest_of(name, _name_of(function), args, kwargs)
        returns = inspect.signature(function).return_annotation

        async def work() -> Any:
            return await _called(function, args, kwargs)

        return self._once("step", name, digest, work, again=again, returns=_returns(function, returns))

    async def ask_person(
        self, question: str, options: Sequence[str] = (), *, seconds: float | None = None, key: str = ""
    ) -> str:
        """Ask the user and return the answer.

        The question waits in the session for any terminal, for `callboard answer`, and for `session.answer`.

        `seconds`: how long it waits; None: as the setting `ask.deadline` says. Raises `AnswerNeeded` if no one can
        answer, or no one answered in time.
        """
        digest = digest_of(question, list(options))
        step = self._step("ask", key)
        stored = self._shared.journal.meet(step, "ask", digest)
        if stored is not None and stored.t == "ended":
            return str(stored.value)
        record = _began(step, "ask", digest, " ".join(question.split())[:60], again=True)
        await self._shared.journal.began(record, stored)
        answer = await ask_person(self._shared.session, (self.id, step), question, options=options, seconds=seconds)
        await self._shared.journal.note_end(record, answer)
        return answer

    async def now(self) -> float:
        """Return the time in Unix seconds. A resumed workflow gets the same value."""
        return float(await self._once("now", "", "", _now, again=True))

    async def sleep(self, seconds: float) -> None:
        """Wait until this many seconds have passed since the first call, including the time before a resume."""
        until = await self._once("sleep", "", digest_of(seconds), lambda: _later(seconds), again=True)
        await anyio.sleep(max(0.0, float(until) - time.time()))

    def random(self) -> float:
        """Return a number from 0 to 1. A resumed workflow gets the same value."""
        return random.Random(f"{self.id}/{self._step('random')}").random()  # noqa: S311 - reproducible, not secret

    def new_id(self, prefix: str = "id") -> str:
        """Return a unique id. A resumed workflow gets the same value."""
        return short_id(prefix, self._shared.session.id, self.id, self._step("id"))

    def tell(self, text: str) -> None:
        """Report progress as a `Notice` event of the agent `workflow`."""
        self._shared.tell(text)

    def spent(self) -> Usage:
        """Return the usage so far of the run's agents, counting only those that ran in this process."""
        states = [self._shared.session.state(name) for name in self._shared.agents]
        return reduce(Usage.plus, (state.budget.usage for state in states if state is not None), Usage())

    # Several at once

    @overload
    async def parallel(self, one: Awaitable[T], two: Awaitable[U], /) -> tuple[T, U]: ...
    @overload
    async def parallel(self, one: Awaitable[T], two: Awaitable[U], three: Awaitable[V], /) -> tuple[T, U, V]: ...
    @overload
    async def parallel(self, *these: Awaitable[T]) -> tuple[T, ...]: ...
    async def parallel(self, *these: Awaitable[Any]) -> tuple[Any, ...]:
        """Wait for several steps at once: `a, b = await flow.parallel(flow.agent(...), flow.agent(...))`.

        The results are in the order of the steps. If a step fails, the others are ended, and its exception is raised.
        """
        results: list[Any] = [None] * len(these)

        async def run_item(place: int) -> None:
            results[place] = await these[place]

        await self._run_parallel([lambda place=place: run_item(place) for place in range(len(these))], len(these))
        return tuple(results)

    async def map(
        self, items: Sequence[T], function: Callable[[Workflow, T], Awaitable[R]], *, limit: int = LIMIT
    ) -> list[R]:
        """Call the function for each item, at most `limit` at once: `await flow.map(paths, review)`.

        The function is, for example, `async def review(flow: Workflow, path: str) -> Report`. The results are in the
        order of the items. If a call fails, the others are ended, and its exception is raised.
        """
        part = self._step("map")
        results: list[Any] = [None] * len(items)

        async def run_item(place: int) -> None:
            results[place] = await function(Workflow(self._shared, f"{part}[{place}]/"), items[place])

        await self._run_parallel([lambda place=place: run_item(place) for place in range(len(items))], limit)
        return cast("list[R]", results)

    @overload
    async def pipeline(
        self, items: Sequence[T], one: Callable[[Workflow, T], Awaitable[R]], /, *, limit: int = LIMIT
    ) -> list[R]: ...
    @overload
    async def pipeline(
        self,
        items: Sequence[T],
        one: Callable[[Workflow, T], Awaitable[U]],
        two: Callable[[Workflow, U], Awaitable[R]],
        /,
        *,
        limit: int = LIMIT,
    ) -> list[R]: ...
    @overload
    async def pipeline(
        self,
        items: Sequence[T],
        one: Callable[[Workflow, T], Awaitable[U]],
        two: Callable[[Workflow, U], Awaitable[V]],
        three: Callable[[Workflow, V], Awaitable[R]],
        /,
        *,
        limit: int = LIMIT,
    ) -> list[R]: ...
    async def pipeline(
        self, items: Sequence[Any], /, *stages: Callable[[Workflow, Any], Awaitable[Any]], limit: int = LIMIT
    ) -> list[Any]:
        """Run each item through the stages in order, without waiting for other items, at most `limit` items at once."""

        async def through(flow: Workflow, item: Any) -> Any:
            for stage in stages:
                item = await stage(flow, item)
            return item

        return await self.map(items, through, limit=limit)

    async def _run_parallel(self, parts: Sequence[Callable[[], Awaitable[None]]], limit: int) -> None:
        if limit < 1:
            raise UsageError("limit: a whole number from 1")
        places = anyio.CapacityLimiter(limit)

        async def run_part(part: Callable[[], Awaitable[None]]) -> None:
            try:
                async with places:
                    await part()
            except Exception:
                self._shared.failing = True  # the running steps of the other parts are ended
                raise

        try:
            async with anyio.create_task_group() as group:
                for part in parts:
                    group.start_soon(run_part, part)
        except BaseExceptionGroup as failed:
            self._shared.failing = False
            raise heart_of(failed) from failed

    # Internals

    def below(self, path: str) -> Workflow:
        """Return the part at that path of this run."""
        return Workflow(self._shared, path)

    def once(
        self, kind: StepKind, label: str, digest: str, work: Callable[[str], Awaitable[Any]], *, returns: Any
    ) -> Coroutine[Any, Any, Any]:
        """Run `work`, which has steps of its own, and do not start it again once it has ended.

        `work` receives its path.
        """
        step = self._step(kind)
        return self._run_step(step, kind, digest, lambda: work(f"{step}/"), again=True, returns=returns, label=label)

    def _step(self, kind: str, key: str = "") -> str:
        if key:
            if not all(character.isalnum() or character in "_-." for character in key):
                raise UsageError(f"key: {key!r}: write letters, digits, `_`, `-` and `.`")
            return f"{self._path}{kind}:{key}"
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{self._path}{kind}#{self._counts[kind]}"

    def _once(
        self,
        kind: StepKind,
        label: str,
        digest: str,
        work: Callable[[], Awaitable[Any]],
        *,
        again: bool,
        returns: Any = None,
    ) -> Coroutine[Any, Any, Any]:
        return self._run_step(self._step(kind), kind, digest, work, again=again, returns=returns, label=label)

    async def _run_step(
        self, step: str, kind: StepKind, digest: str, work: Callable[[], Awaitable[Any]], **options: Any
    ) -> Any:
        journal = self._shared.journal
        stored = journal.meet(step, kind, digest)
        if stored is not None and stored.t == "ended":
            return stored_value(stored.value, options.get("returns"), step)
        record = _began(step, kind, digest, options.get("label", ""), again=options["again"])
        await journal.began(record, stored)
        made = await work()
        plain = value_of(made, options.get("returns"), step)
        await journal.note_end(record, plain)
        return made

    def _remaining_budget(self) -> Budget:
        """Return the cost limit of a new agent. Raises `BudgetSpent`."""
        limit = self._shared.journal.row.budget_usd
        if limit is None:
            return Budget()
        spent = self.spent().cost_usd
        if spent >= limit:
            message = f"workflow {self.id} has used ${spent:.4f} of ${limit:.4f}: resume it with a larger budget"
            raise BudgetSpent(message, spent, limit)
        return Budget(cost_usd=limit - spent)


def _began(step: str, kind: StepKind, digest: str, label: str, *, again: bool) -> WorkflowNoted:
    return WorkflowNoted(at=time.time(), t="began", step=step, kind=kind, digest=digest, label=label, again=again)


async def _now() -> float:
    return time.time()


async def _later(seconds: float) -> float:
    return time.time() + seconds


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__)).replace("<locals>.", "")


def _returns(function: Callable[..., Any], written: Any) -> Any:
    """Return the declared return type of the function; None if it has none, or if the type cannot be found."""
    if written is inspect.Signature.empty:
        return None
    try:
        return inspect.get_annotations(function, eval_str=True).get("return")
    except (NameError, SyntaxError, TypeError):
        return None


async def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    made = await anyio.to_thread.run_sync(lambda: function(*args, **kwargs))
    return await made if inspect.isawaitable(made) else made


ASKER = "workflow"
"""Sender of a workflow's questions: no agent has this name, so only a person can answer them."""


async def ask_person(
    session: HostedSession, origin: tuple[str, str], question: str, *, options: Sequence[str], seconds: float | None
) -> str:
    """Ask a question and return the answer.

    `origin`: run and step. Raises `AnswerNeeded`, and `UsageError` for an empty question.
    """
    if not question.strip():
        raise UsageError("the question is empty")
    spec = await session.wait_begun()
    wait = seconds if seconds is not None or spec is None else spec.ask_deadline
    if wait == 0:
        raise AnswerNeeded(
            f"nobody can answer in this run: {question.strip().splitlines()[0]!r}. Give the session an `approver`, or "
            "`answerable=True` and answer with session.answer or `callboard answer`"
        )
    now = time.time()
    request = open_request(
        Request(
            id=short_id("req", session.id, *origin),
            kind="question",
            asked_by=ASKER,
            may_answer=("person",),
            subject=question.strip().splitlines()[0],
            payload={"question": question, "options": list(options)},
            escalation="policy",
            created_at=now,
            expires_at=None if wait is None else now + wait,
        )
    )
    key = request_key(session.id, request.id)
    with suppress(Conflict):  # it was created before the process was cut off: it waits, or is answered
        await session.commit(Put(key, request.encode(), 0))
    return await _answer(session, key, question)


async def _answer(session: HostedSession, key: str, question: str) -> str:
    """Wait until the request is decided. Raises `AnswerNeeded`."""
    async with session.store.watch(key) as rows:
        async for row in rows:
            now = read_value(Request, row.value, row.key) if row.key == key and row.value is not None else None
            if now is None or now.status == "pending":
                continue
            if now.status == "answered":
                return now.reason
            raise AnswerNeeded(f"nobody answered in time: {question.strip().splitlines()[0]!r} ({now.id})")
    raise AnswerNeeded("the session was closed before anybody answered")


_ENDS = {"limit": "reached its limit before it was done", "stopped": "was stopped before it was done"}


class StepContext(Protocol):
    """Dependencies of a step: the parts of its run."""

    session: HostedSession
    journal: FlowJournal
    agents: set[str]
    failing: bool


@dataclass(frozen=True, slots=True)
class AgentCall:
    """Request of a workflow for the work of an agent."""

    step: str
    agent_type: str
    prompt: str
    form: TypedResult[Any] | None
    label: str
    model: str
    budget: Budget
    tries: int

    @property
    def digest(self) -> str:
        """Return the digest of the fields that identify this call."""
        schema = self.form.schema if self.form else None
        return digest_of(self.agent_type, self.prompt, schema, self.model)


async def run_agent(around: StepContext, call: AgentCall, remaining: Callable[[], Budget]) -> Any:
    """Run an agent and return its final text, or the value parsed from it.

    `remaining` returns the rest of the run's budget.
    """
    journal = around.journal
    stored = journal.meet(call.step, "agent", call.digest)
    if stored is not None and stored.agent:
        around.agents.add(stored.agent)
    if stored is not None and stored.t == "ended":
        return _value(call, stored.value)
    if stored is not None and stored.t == "failed":
        code = int(stored.value.get("exit_code", FAILED))
        raise _failed(call, str(stored.value["outcome"]), str(stored.value["text"]), code)
    attempt = 0
    wrongs = list[str]()
    prompt = _prompt(call)
    while True:
        attempt += 1
        # `--redo` starts another agent, because the previous one has ended.
        origin = f"{journal.row.id}/{call.step}/{attempt}/{journal.redone(call.step)}"
        budget = narrower(call.budget, remaining())
        work = WorkItem(origin, call.agent_type, prompt, call.label, call.model, budget)
        record = WorkflowNoted(
            at=time.time(),
            t="began",
            step=call.step,
            kind="agent",
            digest=call.digest,
            label=call.label,
            agent=work.agent,
            again=True,
        )
        await journal.began(record, stored)
        around.agents.add(work.agent)
        outcome, text = await _done(around, work, call, wrongs)
        if outcome != "done":
            code = _exit_code(around.session, work.agent, outcome)
            await journal.note_failure(record, outcome, {"outcome": outcome, "text": text, "exit_code": code})
            raise _failed(call, outcome, text, code)
        value, wrong = (text, "") if call.form is None else call.form.read(text)
        if not wrong:
            plain = text if call.form is None else call.form.adapter.dump_python(value, mode="json")
            await journal.note_end(record, plain)
            return value
        wrongs.append(wrong)  # answers that the hook returned to the agent count too, so that the loop ends
        if len(wrongs) > call.tries:
            message = f"step {call.step}: {work.agent} gave no valid answer in {len(wrongs)} tries: {wrong}"
            await journal.note_failure(record, message, {"outcome": "wrong", "text": text})
            raise WrongResult(message, wrongs, text)
        prompt = f"{_prompt(call)}\n\nAn earlier answer was:\n{text}\n\nIt is not valid: {wrong}. Answer again."


async def _done(around: StepContext, work: WorkItem, call: AgentCall, wrongs: list[str]) -> tuple[str, str]:
    """Wait for the agent's end.

    An invalid answer is returned to the agent before it ends. If another part of the workflow fails, the agent is
    ended.
    """
    form = call.form

    def fits(event: SubagentStop) -> GoOn | None:
        wrong = form.read(event.text)[1] if form is not None and event.by.name == work.agent else ""
        if not wrong or len(wrongs) >= call.tries:
            return None
        wrongs.append(wrong)
        return GoOn(retry_prompt(wrong))

    hook = around.session.hooks.add("SubagentStop", fits, source="builtin") if form is not None else None
    try:
        return await around.session.work(work)
    except anyio.get_cancelled_exc_class():
        if around.failing:
            with anyio.CancelScope(shield=True), suppress(UsageError):  # an agent that has not begun does not exist
                await around.session.command("stop", to=work.agent)
        raise
    finally:
        if hook is not None:
            hook.remove()


def _prompt(call: AgentCall) -> str:
    return call.prompt if call.form is None else f"{call.prompt}\n\n{call.form.words()}"


def _exit_code(session: HostedSession, agent: str, outcome: str) -> int:
    """Return the exit code for an agent that ended like this. The last turn of a stopped agent may have ended well."""
    state = session.state(agent) if outcome in {"limit", "failed"} else None
    return outcome_of(None, state, ()).exit_code or FAILED


def _failed(call: AgentCall, outcome: str, text: str, exit_code: int) -> AgentFailed | WrongResult:
    if outcome == "wrong":
        return WrongResult(f"step {call.step}: no valid answer", (), text)
    suffix = f": {text}" if text else ""
    message = f"step {call.step} ({call.label}) {_ENDS.get(outcome, 'failed')}{suffix}"
    return AgentFailed(message, outcome, text, exit_code=exit_code)


def _value(call: AgentCall, plain: Any) -> Any:
    return plain if call.form is None else call.form.adapter.validate_python(plain)
