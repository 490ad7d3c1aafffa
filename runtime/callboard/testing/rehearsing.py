"""A team in memory, driven by a scripted model: like `callboard.Session`, without files, processes, network or waiting.

    team = Rehearsal({"lead": [use("weather", {"city": "Oslo"}), say("Take a coat.")]}, tools=[weather])

    async def main() -> None:
        async with team.session() as session:
            result = await session.run("What should I wear in Oslo?")
            assert result.text == "Take a coat."
            assert_that(await session.record()).lead.called("weather", city="Oslo")

    run_virtual(main)

The engine and the rules of the store, mail, board, plans, requests, schedules and hooks are real. Tools that touch the
machine (files, shell) do not exist: `pretend` replaces one.

`survive` injects faults into a rehearsal: model calls fail, and the process is killed at its commits and started again
from its store. One seed determines everything, so that the same seed gives the same run.
"""

from __future__ import annotations

import copy
import functools
import inspect
import random
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field, replace
from typing import Any, cast

import anyio

from callboard.adapters.storage.memory import Crashed, MemoryStore
from callboard.adapters.tools.board import board_tools
from callboard.adapters.tools.control import control_tools
from callboard.adapters.tools.cron import cron_tools
from callboard.adapters.tools.plan_and_report import plan_tools
from callboard.adapters.tools.team import team_tools
from callboard.adapters.tools.todo import todo_tools
from callboard.core.keys import request_key
from callboard.core.tool_access import tools_for
from callboard.engine.approvals.requests import answer_request
from callboard.engine.hooks.registry import HookRegistry
from callboard.engine.runtime import SessionRuntime
from callboard.engine.team.supervisor import Team
from callboard.ports.model import CallFault, ModelRequest, OnDelta, Reply
from callboard.ports.tool import CallContext, Folders, Tool, ToolOutcome, ToolSpec
from callboard.sdk.agents import Agent
from callboard.sdk.approvers import ApproverFunction, Said, answer_of, approver_of
from callboard.sdk.errors import UsageError
from callboard.sdk.function_tool import InProcessTool
from callboard.sdk.results import Result, result_of
from callboard.sdk.tools import AnyTool, FunctionTool
from callboard.sessions.result import AgentSummary, RunEnd, outcome_of, summarise
from callboard.testing.records import Recorded, read_record
from callboard.testing.scripts import Played, ScriptedModel
from callboard.testing.world import AllowAll, SteadyClock, World, WorldSession, plain_tracebacks
from callboard.types.agent_spec import AgentSpec
from callboard.types.choices import unknown
from callboard.types.errors import heart_of
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Budget, Fault, FaultKind, Json, Request, Task, Usage

_STORE_TOOLS = (board_tools, control_tools, cron_tools, plan_tools, team_tools, todo_tools)
Pretended = str | Callable[[Json], str]


@dataclass(frozen=True, slots=True)
class Pretender:
    """Tool that returns a fixed result. Implements the port `Tool`."""

    spec: ToolSpec
    says: Pretended

    def key(self, tool_input: Json, folders: Folders) -> str:
        """Return an empty key: calls never conflict."""
        return ""

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        """Return no marks."""
        return {}

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        """Return the test's result. The engine handles an exception of its function."""
        return ToolOutcome(self.says if isinstance(self.says, str) else self.says(tool_input))

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        """Return a result saying that the call was cut off, as for a command."""
        return ToolOutcome("The call was cut off: its outcome is not known.", is_error=True)


def pretend(name: str, says: Pretended, *, reads: bool = False) -> Pretender:
    """Make a replacement, with any input, for a tool that touches the machine.

    Such a tool is `bash`, `read_file`, or a tool of an MCP server.

    `says`: its result, or a function of the input that returns it. `reads`: it changes nothing, so that a waiting plan
    does not hold it back.
    """
    schema: Json = {"type": "object", "properties": {}, "additionalProperties": True}
    return Pretender(ToolSpec(name, f"Stands in for {name}.", schema, "read" if reads else "unknown", "shared"), says)


@dataclass
class Rehearsal:
    """A team and its script. A rehearsal may open any number of new sessions, one after the other."""

    model: ScriptedModel | Mapping[str, Sequence[Played]]
    """Replies of the model by agent, in order (`say`, `use`, `fault`), or a model."""
    tools: Sequence[AnyTool | Tool] = ()
    """Functions with `@tool`, and replacements, for all agents. All of them run in the event loop, even if not
    async."""
    hooks: Sequence[Callable[..., Any]] = ()
    """Functions with `@hook`. They run in the event loop too."""
    agents: Sequence[Agent] = ()
    """Agent types, with their prompt and tools, in addition to any others that a call names."""
    ask: Sequence[str] = ()
    """Names of tools whose calls all need permission."""
    deny: Sequence[str] = ()
    """Names of tools whose calls are all denied."""
    approver: ApproverFunction | None = None
    """Approver of plans, permissions and questions. None: `session.answer` answers them, while `answerable`."""
    answerable: bool = False
    """True if requests wait for `session.answer` up to 30 minutes; otherwise they are rejected at once."""
    budget: Budget = field(default_factory=Budget)
    """Budget of each session."""
    start: float = 1_800_000_000.0
    """Start time of a session, in Unix seconds (2027-01-15 08:00 UTC)."""
    seed: int = 0
    """Seed of all random draws: jitter, waits between attempts."""

    def world(self, store: MemoryStore | None = None) -> World:
        """Return the world of one process on this store.

        Its model starts from the beginning; share `ScriptedModel` objects to continue.
        """
        registered = [_registered(tool) for tool in self.tools]
        tools = {tool.spec.name: tool for family in _STORE_TOOLS for tool in family()}
        own = {tool.spec.name: tool for tool in registered}
        hooks = HookRegistry()
        for hook in self.hooks:
            hooks.include(_in_the_loop(hook))
        waits = self.answerable or self.approver is not None
        return _RehearsedWorld(
            model=self.model if isinstance(self.model, ScriptedModel) else ScriptedModel(self.model),
            tools={**tools, **own},
            store=MemoryStore() if store is None else store,
            judge=AllowAll(self.ask, self.deny),
            hooks=hooks,
            clock=SteadyClock(self.start),
            approvers=() if self.approver is None else (approver_of(_in_the_loop(self.approver)),),
            spec={"ask_deadline": 1_800.0 if waits else 0},
            budget=self.budget,
            seed=self.seed,
            types={agent.name: agent for agent in self.agents},
            own=frozenset(own),
        )

    @asynccontextmanager
    async def session(self, session: str = "rehearsal") -> AsyncGenerator[RehearsedSession]:
        """Open a new session, hosted until the block ends. Raises the exceptions of the block, and of the approver."""
        try:
            async with plain_tracebacks(), self.world().session(session) as hosted:
                yield RehearsedSession(hosted.world, hosted.team, session)
        except BaseExceptionGroup as failed:
            raise heart_of(failed) from failed

    async def run(self, prompt: str) -> Recorded:
        """Send a prompt to the lead of a new session, wait until nothing is left to do, and return the records."""
        async with self.session() as session:
            await session.run(prompt)
            return await session.record()


class RehearsedSession(WorldSession):
    """Session in memory, with the methods of `callboard.Session` that apply there."""

    def __init__(self, world: World, team: Team, session: str) -> None:
        super().__init__(world, team, session)

    async def run(self, prompt: str) -> Result[None]:
        """Send a prompt to the lead and wait until it and its team have nothing left to do."""
        await self.say(prompt)
        return await self.rest()

    async def say(self, text: str, to: str = "lead") -> None:
        """Send a message from the user to an agent. Does not wait for the effect."""
        await self.prompt(text, to)

    async def rest(self) -> Result[None]:
        """Wait until nothing is left to do. Raises the exception of a function of the script."""
        await self.quiet()
        if self.world.model.failure is not None:
            raise self.world.model.failure
        lead = self.team.state("lead")
        record = await self.record()
        outcome = outcome_of(record.agent("lead").row, lead, record.requests)
        text = lead.turns.last_text if lead is not None else ""
        end = RunEnd(outcome.exit_code, text, outcome.why, self.cost(), list(self.team_now()), limit=outcome.limit)
        return result_of(end, self.id, None)

    async def requests(self) -> Sequence[Request]:
        """Return the requests that wait for an answer."""
        return [request for request in (await self.record()).requests if request.status == "pending"]

    async def asked(self) -> Request:
        """Wait for a request that is pending, and return it."""
        async with self.world.store.watch(request_key(self.id, "")) as changes:
            async for row in changes:
                request = Request.model_validate_json(row.value) if row.value is not None else None
                if request is not None and request.status == "pending":
                    return request
        raise UsageError("the session ended, and nothing waits for an answer")

    async def answer(self, request: Request | str, said: Said, reason: str = "") -> None:
        """Answer as the user: True or False, a string for a question, or an `Answer`.

        Raises `UsageError`, with the reason, if the answer is not accepted.
        """
        request_id = request if isinstance(request, str) else request.id
        requests = {row.id: row for row in (await self.record()).requests}
        if request_id not in requests:
            raise UsageError(unknown("request", request_id, requests))
        answer = answer_of(requests[request_id], said, reason)
        if answer is None:
            raise UsageError("None is not an answer: pass True, False, or a string")
        lost = await answer_request(self.world.store, self.id, request_id, answer, now=self.world.clock.now())
        if lost is not None:
            raise UsageError(f"the answer to {request_id} was not accepted: {lost}")

    async def tasks(self) -> Sequence[Task]:
        """Return the task board."""
        return (await self.record()).tasks

    async def record(self) -> Recorded:
        """Return the records up to now, for assertions."""
        return await read_record(self.world.store, self.id)

    def cost(self) -> Usage:
        """Return the usage of all agents so far: tokens, and US dollars in `cost_usd`."""
        total = Usage()
        for life in self.team.lives():
            total = total.plus(life.state.budget.usage)
        return total

    def team_now(self) -> Sequence[AgentSummary]:
        """Return every agent that lived in this process: name, kind, lifecycle, outcome, usage."""
        return [summarise(life.row, life.state) for life in self.team.lives()]


@dataclass
class _RehearsedWorld(World):
    """World whose agents have the tools of their kind and those of the test."""

    types: Mapping[str, Agent] = field(default_factory=dict[str, Agent])
    own: frozenset[str] = frozenset()

    def runtime(self, session: str) -> SessionRuntime:
        runtime = super().runtime(session)
        runtime.services = replace(runtime.services, own=tuple(sorted(self.own)))
        return runtime

    def spec_of(self, agent_type: str, name: str, parent: AgentSpec | None) -> AgentSpec:
        made = re.fullmatch(rf"{re.escape(agent_type)}-[a-z2-7]{{12}}", name) is not None
        kind = "lead" if parent is None else "subagent" if made else "teammate"
        agent = self.types.get(agent_type)
        tools = {*tools_for(kind, None).names} & set(self.tools)
        own = None
        if agent is not None and agent.tools is not None:
            named = {tool if isinstance(tool, str) else tool.name for tool in agent.tools}
            tools, own = tools & named, tuple(sorted(self.own & named))
        base = super().spec_of(agent_type, name, parent)
        changed: Json = {
            "kind": kind,
            "tools": tuple(sorted(tools)),
            "own": own,
            "claims_tasks": kind == "teammate",
            "instructions": agent.prompt if agent is not None else base.instructions,
        }
        return AgentSpec.model_validate({**base.model_dump(), **changed})


def _registered(tool: AnyTool | Tool) -> Tool:
    """Return the engine's tool for a function; any other tool unchanged.

    Raises `UsageError` for a function without `@tool`.
    """
    if not isinstance(tool, FunctionTool):
        if not hasattr(tool, "spec"):
            raise UsageError(f"{tool!r} is not a tool: decorate the function with `@tool`, or use `pretend`")
        return tool
    made = copy.copy(tool)
    made.function = _in_the_loop(made.function)
    return InProcessTool(made, anyio.CapacityLimiter(1))


def _in_the_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs in the event loop, because a virtual clock would not wait for a thread."""
    if inspect.iscoroutinefunction(function):
        return function

    @functools.wraps(function)
    async def called(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        return await value if inspect.isawaitable(value) else value

    return called


KINDS: tuple[FaultKind, ...] = ("overloaded", "server", "connection", "silence", "rate_limited", "bad_reply")
"""Kinds of injected faults: those that pass when the call is repeated."""
IN_A_ROW = 2
"""Limit of the consecutive faults of one call, so that each run ends."""
SPAN = 30
"""Limit of the commits before a kill; a small run of a team makes about a hundred."""


@dataclass(frozen=True, slots=True)
class Survived:
    """A run with its kills and faults."""

    record: Recorded
    kills: int
    """Number of times that the run's process was killed."""
    faults: int
    """Number of model calls that failed."""
    text: str
    """The lead's final text."""


class _Stormy(ScriptedModel):
    """Model whose calls fail at random. The replies do not depend on the faults."""

    def __init__(self, inner: ScriptedModel, seed: int, share: float) -> None:
        super().__init__({})
        self._inner = inner
        self._seed = seed
        self._share = share
        self.requests = inner.requests
        self._tried: dict[tuple[str, int, str], int] = {}
        self.faults = 0

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        key = (request.agent, request.ordinal, request.purpose)
        tried = self._tried[key] = self._tried.get(key, 0) + 1
        draw = random.Random(f"{self._seed}/{key}/{tried}")  # noqa: S311 - reproducible, not secret
        if tried <= IN_A_ROW and draw.random() < self._share:
            self.faults += 1
            raise CallFault(Fault(kind=draw.choice(KINDS), message="of the rehearsal"))
        try:
            return await self._inner.complete(request, on_delta)
        finally:
            self.failure = self._inner.failure


async def survive(
    team: Rehearsal, prompt: str, *, seed: int, kills: int = 2, faults: float = 0.2, session: str = "rehearsal"
) -> Survived:
    """Send a prompt to the lead of a new session and run it to its end through faults and kills.

    `kills`: number of times that the process dies, before or after a commit, and a new one takes over the session from
    its store. `faults`: share of model calls that fail, from 0 to 1. Run it on a virtual clock (`run_virtual`): it
    waits as long as the runtime does.
    """
    draw = random.Random(seed)  # noqa: S311 - reproducible, not secret
    inner = team.model if isinstance(team.model, ScriptedModel) else ScriptedModel(team.model)
    model = _Stormy(inner, seed, faults)
    store = MemoryStore()
    clock = SteadyClock(team.start)
    killed = 0
    while True:
        store = store.reopen(
            crash_after=draw.randint(2, SPAN) if killed < kills else None,
            crash_point=draw.choice(("before", "after")),
        )
        world = team.world(store)
        world.model = model
        world.clock = clock
        begun = await _has_begun(store, session)
        try:
            async with plain_tracebacks(), world.session(session, resume=begun) as hosted:
                rehearsed = RehearsedSession(hosted.world, hosted.team, session)
                result = await rehearsed.run(prompt)
                record = await read_record(store, session)
                return Survived(record, killed, model.faults, result.text)
        except BaseException as ended:
            if _is_kill(ended):
                killed += 1
            elif isinstance(ended, BaseExceptionGroup):
                raise heart_of(cast("BaseExceptionGroup[BaseException]", ended)) from ended
            else:
                raise


async def _has_begun(store: MemoryStore, session: str) -> bool:
    return await store.get(f"s/{session}") is not None


def _is_kill(ended: BaseException) -> bool:
    """Return True if only the end of the store ended the process."""
    if isinstance(ended, BaseExceptionGroup):
        return all(map(_is_kill, cast("BaseExceptionGroup[BaseException]", ended).exceptions))
    return isinstance(ended, Crashed)
