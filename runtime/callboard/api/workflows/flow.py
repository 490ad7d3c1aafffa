"""What a workflow does: runs agents, alone, in parallel and in pipelines, does work of its own, asks the person.

Every step has an id that follows from its place: `agent#2` is the second agent that is asked for here,
`map#1[3]/step#1` the first own work for the fourth item. What runs at the same time gets a `Workflow` of its own, so
that the ids do not depend on who is faster; `key=` names a step where the order may change.
"""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

import anyio
import anyio.to_thread

from callboard.api.agents import Agent
from callboard.api.errors import BudgetSpent, UsageError
from callboard.api.results import Wanted
from callboard.api.workflows.agents import AgentCall, run_agent
from callboard.api.workflows.asking import ask_person
from callboard.api.workflows.journal import FlowJournal, digest_of
from callboard.api.workflows.values import read_value, value_of
from callboard.app import Session as HostedSession
from callboard.core.names import short_id
from callboard.words.errors import heart_of
from callboard.words.values import Budget, Usage
from callboard.words.workflows import StepKind, WorkflowNoted

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
R = TypeVar("R")
P = ParamSpec("P")

LIMIT = 8
"""How many items are at work at once, where nothing else is said."""


class AgentStep(TypedDict, total=False):
    """What `Workflow.agent` takes beside the agent and its prompt."""

    key: str
    """The step's name, where its place may change: letters, digits, `_`, `-` and `.`."""
    label: str
    """A few words, shown beside the agent."""
    model: str
    """One that the session knows."""
    budget: float | Budget
    """US dollars, or a `Budget`, for this agent."""
    tries: int
    """How often an answer that does not fit is asked for again. Left out: 3."""


@dataclass(slots=True)
class Shared:
    """What all parts of one run have in common."""

    here: HostedSession
    journal: FlowJournal
    tell: Callable[[str], None]
    agents: set[str] = field(default_factory=set[str])
    """Those that were started by it."""
    failing: bool = False
    """A part has failed, and the others are ended for it."""


class Workflow:
    """One run of a workflow, or a part of it that runs beside others. The function that `@workflow` stands over gets it
    as its first argument."""

    def __init__(self, shared: Shared, path: str = "") -> None:
        self._shared, self._path = shared, path
        self._counts: dict[str, int] = {}

    @property
    def id(self) -> str:
        """The run's id, by which it is resumed."""
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
        """Run an agent for one task and return its last words, or the value that they are.

        `agent`: a type of the session (`explore`, one of yours). `result`: a pydantic model, dataclass, `TypedDict` or
        other type: asked for as JSON, and asked for again, with what is wrong, up to `tries` times.

        Raises, when awaited, `AgentFailed` for an agent that did not finish, `WrongResult` when no answer fits,
        `BudgetSpent`, `LimitReached`, `UsageError` for a type that there is not, and `WorkflowChanged`.
        """
        name = agent if isinstance(agent, str) else agent.name
        wanted: Wanted[Any] | None = None if result is None else Wanted(result)
        step = self._step("agent", more.get("key", ""))
        budget = more.get("budget")
        call = AgentCall(
            step=step,
            agent_type=name,
            prompt=prompt,
            wanted=wanted,
            label=more.get("label") or f"{name}: {' '.join(prompt.split())[:60]}",
            model=more.get("model", ""),
            budget=budget if isinstance(budget, Budget) else Budget(cost_usd=budget),
            tries=more.get("tries", 3),
        )
        return run_agent(self._shared, call, self._rest)

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
        """Do work of your own once: whatever happens, it is not run a second time. `name` is its name here. What it
        returns has to be JSON, or of the type that its annotation says. One that is not async runs in a thread.

        Raises, when awaited, what the function raises, and `StepUnknown` where it was cut off with its process.
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
        """The same for work that may be done again when it was cut off, such as reading. Done is done all the same."""
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
        """Ask the person, and return the answer. The question waits in the session, for any terminal, for `callboard
        answer`, for `session.answer`; `seconds`: so long; None: as the setting `ask.deadline` says.

        Raises `AnswerNeeded` when nobody can answer, or nobody has in time.
        """
        digest = digest_of(question, list(options))
        step = self._step("ask", key)
        known = self._shared.journal.meet(step, "ask", digest)
        if known is not None and known.t == "ended":
            return str(known.value)
        record = _began(step, "ask", digest, " ".join(question.split())[:60], again=True)
        await self._shared.journal.began(record, known)
        answer = await ask_person(self._shared.here, (self.id, step), question, options, seconds)
        await self._shared.journal.ended(record, answer)
        return answer

    async def now(self) -> float:
        """The time (Unix seconds), the same when the workflow is resumed."""
        return float(await self._once("now", "", "", _now, again=True))

    async def sleep(self, seconds: float) -> None:
        """Wait until so many seconds after this was first asked for; over a resume too."""
        until = await self._once("sleep", "", digest_of(seconds), lambda: _later(seconds), again=True)
        await anyio.sleep(max(0.0, float(until) - time.time()))

    def random(self) -> float:
        """A number from 0 to 1, the same when the workflow is resumed."""
        return random.Random(f"{self.id}/{self._step('random')}").random()  # noqa: S311  # reproducible, not secret

    def new_id(self, prefix: str = "id") -> str:
        """An id that nothing else has, the same when the workflow is resumed."""
        return short_id(prefix, self._shared.here.id, self.id, self._step("id"))

    def tell(self, text: str) -> None:
        """Tell whoever looks on how far it is: an event `Notice` of the agent `workflow`."""
        self._shared.tell(text)

    def spent(self) -> Usage:
        """What the agents of this run have used so far, as far as they lived in this process."""
        states = [self._shared.here.state(name) for name in self._shared.agents]
        return reduce(Usage.plus, (one.usage for one in states if one is not None), Usage())

    # Several at once

    @overload
    async def parallel(self, one: Awaitable[T], two: Awaitable[U], /) -> tuple[T, U]: ...
    @overload
    async def parallel(self, one: Awaitable[T], two: Awaitable[U], three: Awaitable[V], /) -> tuple[T, U, V]: ...
    @overload
    async def parallel(self, *these: Awaitable[T]) -> tuple[T, ...]: ...
    async def parallel(self, *these: Awaitable[Any]) -> tuple[Any, ...]:
        """Wait for several steps at once: `a, b = await flow.parallel(flow.agent(...), flow.agent(...))`. The results
        stand in the order of the steps. When one fails, the others are ended, and it is raised."""
        found: list[Any] = [None] * len(these)

        async def one(place: int) -> None:
            found[place] = await these[place]

        await self._together([lambda place=place: one(place) for place in range(len(these))], len(these))
        return tuple(found)

    async def map(
        self, items: Sequence[T], function: Callable[[Workflow, T], Awaitable[R]], *, limit: int = LIMIT
    ) -> list[R]:
        """The function for each item, at most `limit` at once: `await flow.map(paths, review)`, with `async def
        review(flow: Workflow, path: str) -> Report`. The results stand in the order of the items. When one fails, the
        others are ended, and it is raised."""
        part = self._step("map")
        found: list[Any] = [None] * len(items)

        async def one(place: int) -> None:
            found[place] = await function(Workflow(self._shared, f"{part}[{place}]/"), items[place])

        await self._together([lambda place=place: one(place) for place in range(len(items))], limit)
        return cast("list[R]", found)

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
        """Each item through the stages, one after the other; no item waits for another one. At most `limit` at once."""

        async def through(flow: Workflow, item: Any) -> Any:
            for stage in stages:
                item = await stage(flow, item)
            return item

        return await self.map(items, through, limit=limit)

    async def _together(self, parts: Sequence[Callable[[], Awaitable[None]]], limit: int) -> None:
        if limit < 1:
            raise UsageError("limit: a whole number from 1")
        places = anyio.CapacityLimiter(limit)

        async def one(part: Callable[[], Awaitable[None]]) -> None:
            try:
                async with places:
                    await part()
            except Exception:
                self._shared.failing = True  # what the others have under way is ended
                raise

        try:
            async with anyio.create_task_group() as group:
                for part in parts:
                    group.start_soon(one, part)
        except BaseExceptionGroup as failed:
            self._shared.failing = False
            raise heart_of(failed) from failed

    # Inside

    def below(self, path: str) -> Workflow:
        """The part at that path of this run."""
        return Workflow(self._shared, path)

    def once(
        self, kind: StepKind, label: str, digest: str, work: Callable[[str], Awaitable[Any]], *, returns: Any
    ) -> Coroutine[Any, Any, Any]:
        """Work with steps of its own, which is not begun again once it has ended. It is told its path."""
        step = self._step(kind)
        inside = lambda: work(f"{step}/")  # noqa: E731  # its path is known here alone
        return self._kept(step, kind, digest, inside, again=True, returns=returns, label=label)

    def _step(self, kind: str, key: str = "") -> str:
        if key:
            if not all(one.isalnum() or one in "_-." for one in key):
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
        return self._kept(self._step(kind), kind, digest, work, again=again, returns=returns, label=label)

    async def _kept(
        self, step: str, kind: StepKind, digest: str, work: Callable[[], Awaitable[Any]], **more: Any
    ) -> Any:
        journal = self._shared.journal
        known = journal.meet(step, kind, digest)
        if known is not None and known.t == "ended":
            return read_value(known.value, more.get("returns"), step)
        record = _began(step, kind, digest, more.get("label", ""), again=more["again"])
        await journal.began(record, known)
        made = await work()
        plain = value_of(made, more.get("returns"), step)
        await journal.ended(record, plain)
        return made

    def _rest(self) -> Budget:
        """What a new agent may cost at most. Raises `BudgetSpent`."""
        limit = self._shared.journal.row.budget_usd
        if limit is None:
            return Budget()
        spent = self.spent().cost_usd
        if spent >= limit:
            words = f"workflow {self.id} has used ${spent:.4f} of ${limit:.4f}: resume it with a larger budget"
            raise BudgetSpent(words, spent, limit)
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
    """The type that the function says it returns; None where it does not say, or it cannot be found."""
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
