"""A team in memory, played by a scripted model: what a program gives to `callboard.Session`, without files, processes,
network and waiting.

    team = Rehearsal({"lead": [use("weather", {"city": "Oslo"}), say("Take a coat.")]}, tools=[weather])

    async def main() -> None:
        async with team.session() as session:
            result = await session.run("What should I wear in Oslo?")
            assert result.text == "Take a coat."
            assert_that(await session.record()).lead.called("weather", city="Oslo")

    run_virtual(main)

The engine, the store's laws, the mail, the board, plans, requests, schedules and hooks are the real ones. Tools that
touch the machine (files, shell) are not there: `pretend` stands in for one.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from callboard.adapters.memory import MemoryStore
from callboard.adapters.tools.board import board_tools
from callboard.adapters.tools.control import control_tools
from callboard.adapters.tools.cron import cron_tools
from callboard.adapters.tools.plan import plan_tools
from callboard.adapters.tools.team import team_tools
from callboard.adapters.tools.todo import todo_tools
from callboard.api.agents import Agent
from callboard.api.asking import ApproverFunction, Said, answer_of, approver_of
from callboard.api.errors import UsageError
from callboard.api.in_process import InProcessTool
from callboard.api.results import Result, result_of
from callboard.api.tools import AnyTool
from callboard.api.tools import Tool as FunctionTool
from callboard.core.names import request_key
from callboard.core.toolset import tools_for
from callboard.ending import AgentSummary, End, exit_code_of, summarise
from callboard.engine.asking.requests import answer_request
from callboard.engine.hooks.registry import HookRegistry
from callboard.engine.host import Host
from callboard.engine.supervision.team import Team
from callboard.ports.tool import Tool, ToolContext, ToolOutcome, ToolSpec
from callboard.testing.records import Recorded, read_record
from callboard.testing.scripts import Played, ScriptedModel
from callboard.testing.world import AllowAll, HostedSession, SteadyClock, World
from callboard.words.specs import AgentSpec
from callboard.words.values import Budget, Json, Request, Task, Usage

_STORE_TOOLS = (board_tools, control_tools, cron_tools, plan_tools, team_tools, todo_tools)
Pretended = str | Callable[[Json], str]


@dataclass(frozen=True, slots=True)
class Pretender:
    """A tool that only says what a test wants. The port `Tool`."""

    spec: ToolSpec
    says: Pretended

    def key(self, given: Json) -> str:
        """No two calls of it touch one thing."""
        return ""

    async def prepare(self, given: Json, context: ToolContext) -> Json:
        """Nothing to look at."""
        return {}

    async def run(self, given: Json, context: ToolContext) -> ToolOutcome:
        """What the test wants; an exception of its function is the engine's to tell."""
        return ToolOutcome(self.says if isinstance(self.says, str) else self.says(given))

    async def repair(self, given: Json, marks: Json, context: ToolContext) -> ToolOutcome | None:
        """A call that was cut off is answered with that, as a command is."""
        return ToolOutcome("The call was cut off: its outcome is not known.", is_error=True)


def pretend(name: str, says: Pretended, *, reads: bool = False) -> Pretender:
    """A stand-in for a tool that touches the machine (`bash`, `read_file`, a tool of an MCP server), with any input.

    `says`: its result, or a function of the input that returns it. `reads`: it changes nothing, so a plan that waits
    does not hold it back.
    """
    schema: Json = {"type": "object", "properties": {}, "additionalProperties": True}
    return Pretender(ToolSpec(name, f"Stands in for {name}.", schema, "read" if reads else "unknown", "shared"), says)


@dataclass
class Rehearsal:
    """A team and its script. One rehearsal may open any number of sessions, one after the other, each a new one."""

    model: ScriptedModel | Mapping[str, Sequence[Played]]
    """What the model says, by agent: replies in their order (`say`, `use`, `fault`), or a model."""
    tools: Sequence[AnyTool | Tool] = ()
    """Functions with `@tool`, and stand-ins; everybody has them. They run in the event loop, also those not async."""
    hooks: Sequence[Callable[..., Any]] = ()
    """Functions with `@hook`; they run in the event loop too."""
    agents: Sequence[Agent] = ()
    """Agent types, beside any others that a call names: their prompt, and the tools that they name."""
    ask: Sequence[str] = ()
    """Names of tools whose every call asks for permission."""
    deny: Sequence[str] = ()
    """Names of tools whose every call is refused."""
    approver: ApproverFunction | None = None
    """Who answers plans, permissions and questions. None: `session.answer` does, while `answerable`."""
    answerable: bool = False
    """What is asked waits for `session.answer` up to 30 minutes; else it is refused at once."""
    budget: Budget = field(default_factory=Budget)
    """Of each session."""
    start: float = 1_800_000_000.0
    """The time at which a session begins, in Unix seconds (2027-01-15 08:00 UTC)."""
    seed: int = 0
    """Decides every draw: jitter, waits between tries."""

    def world(self, store: MemoryStore | None = None) -> World:
        """The world of one process on this store. Its model starts anew; share `ScriptedModel` objects to go on."""
        kept = [_registered(one) for one in self.tools]
        tools = {tool.spec.name: tool for family in _STORE_TOOLS for tool in family()}
        own = {tool.spec.name: tool for tool in kept}
        hooks = HookRegistry()
        for one in self.hooks:
            hooks.include(_in_the_loop(one))
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
            types={one.name: one for one in self.agents},
            own=frozenset(own),
        )

    @asynccontextmanager
    async def session(self, session: str = "rehearsal") -> AsyncGenerator[RehearsedSession]:
        """A new session, hosted until the block ends."""
        async with self.world().session(session) as hosted:
            yield RehearsedSession(hosted.world, hosted.team, session)

    async def run(self, prompt: str) -> Recorded:
        """Say this to the lead of a new session, wait until nothing is left to do, and read what was recorded."""
        async with self.session() as session:
            await session.run(prompt)
            return await session.record()


class RehearsedSession(HostedSession):
    """A session in memory, with the methods of `callboard.Session` that make sense there."""

    def __init__(self, world: World, team: Team, session: str) -> None:
        super().__init__(world, team, session)

    async def run(self, prompt: str) -> Result[None]:
        """Say something to the lead and wait until it and its team have nothing left to do."""
        await self.say(prompt)
        return await self.rest()

    async def say(self, text: str, to: str = "lead") -> None:
        """A person's words to an agent. Does not wait for what comes of it."""
        await self.prompt(text, to)

    async def rest(self) -> Result[None]:
        """Wait until nothing is left to do."""
        await self.quiet()
        found = [m.agent for (name, _), m in self.team.members.items() if name == "lead" and m.agent]
        lead = found[-1].state if found else None
        record = await self.record()
        code, why = exit_code_of(record.agent("lead").row, lead, record.requests)
        text = lead.last_text if lead is not None else ""
        return result_of(End(code, text, why, self.cost(), list(self.team_now())), self.id, None)

    async def requests(self) -> Sequence[Request]:
        """What waits for an answer."""
        return [one for one in (await self.record()).requests if one.status == "pending"]

    async def asked(self) -> Request:
        """A request that waits, once there is one."""
        async with self.world.store.watch(request_key(self.id, "")) as changes:
            async for row in changes:
                request = Request.model_validate_json(row.value) if row.value is not None else None
                if request is not None and request.status == "pending":
                    return request
        raise UsageError("the session ended, and nothing waits for an answer")

    async def answer(self, request: Request | str, said: Said, reason: str = "") -> None:
        """Answer as the person: True or False, a text to a question, or an `Answer`. Raises `UsageError` when the
        answer does not count, with why."""
        wanted = request if isinstance(request, str) else request.id
        known = {one.id: one for one in (await self.record()).requests}
        if wanted not in known:
            raise UsageError(f"there is no request {wanted!r}; there are: {', '.join(known) or 'none'}")
        answer = answer_of(known[wanted], said, reason)
        if answer is None:
            raise UsageError("None is no answer: say True, False, or a text")
        lost = await answer_request(self.world.store, self.id, wanted, answer, self.world.clock.now())
        if lost is not None:
            raise UsageError(f"the answer to {wanted} does not count: {lost}")

    async def tasks(self) -> Sequence[Task]:
        """The task board."""
        return (await self.record()).tasks

    async def record(self) -> Recorded:
        """What has been recorded up to now, for assertions."""
        return await read_record(self.world.store, self.id)

    def cost(self) -> Usage:
        """What all agents have used so far: tokens, and US dollars in `cost_usd`."""
        total = Usage()
        for member in self.team.members.values():
            total = total.plus(member.agent.state.usage) if member.agent else total
        return total

    def team_now(self) -> Sequence[AgentSummary]:
        """Every agent that lived in this process: name, kind, life, outcome, what it used."""
        members = self.team.members.values()
        return [summarise(one.agent.row, one.agent.state) for one in members if one.agent is not None]


@dataclass
class _RehearsedWorld(World):
    """Agents have the tools of their kind, and those that the test gives."""

    types: Mapping[str, Agent] = field(default_factory=dict[str, Agent])
    own: frozenset[str] = frozenset()

    def host(self, session: str) -> Host:
        host = super().host(session)
        host.ports = replace(host.ports, own=tuple(sorted(self.own)))
        return host

    def spec_of(self, agent_type: str, name: str, parent: AgentSpec | None) -> AgentSpec:
        made = re.fullmatch(rf"{re.escape(agent_type)}-[a-z2-7]{{12}}", name) is not None
        kind = "lead" if parent is None else "subagent" if made else "teammate"
        given = self.types.get(agent_type)
        tools, own = {*tools_for(kind, None).names} & set(self.tools), None
        if given is not None and given.tools is not None:
            named = {one if isinstance(one, str) else one.name for one in given.tools}
            tools, own = tools & named, tuple(sorted(self.own & named))
        base = super().spec_of(agent_type, name, parent)
        changed: Json = {
            "kind": kind,
            "tools": tuple(sorted(tools)),
            "own": own,
            "claims_tasks": kind == "teammate",
            "instructions": given.prompt if given is not None else base.instructions,
        }
        return AgentSpec.model_validate({**base.model_dump(), **changed})


def _registered(given: AnyTool | Tool) -> Tool:
    """The engine's tool of a function; one that is no tool of ours is the engine's already."""
    if not isinstance(given, FunctionTool):
        return given
    made = copy.copy(given)
    made.function = _in_the_loop(made.function)
    return InProcessTool(made, anyio.CapacityLimiter(1))


def _in_the_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is called where the loop runs: no thread, whose end a virtual clock would not wait for."""
    if inspect.iscoroutinefunction(function):
        return function

    @functools.wraps(function)
    async def called(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        return await found if inspect.isawaitable(found) else found

    return called
