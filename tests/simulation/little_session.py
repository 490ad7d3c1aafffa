"""A small session with something of everything, and a driver that takes it up again after each crash.

The lead keeps todos, puts two tasks on the board (one waits for the other), asks a subagent, compacts, and makes two
teammates: alice, whose plan must be approved, and bob, who works off the board. What the model says depends on the
conversation alone, so that it says the same to whoever asks again.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from tests.engine.team.team_world import TeamWorld, spawn, team_world
from tests.simulation.outside import Outside

from callboard.adapters.storage.memory import Crashed, MemoryStore
from callboard.core.keys import session_key
from callboard.ports.environment import Answer
from callboard.ports.model import CallFault, ModelRequest, OnDelta, Reply
from callboard.testing import HostedSession, ScriptedModel, fault, say, use
from callboard.types.agent_spec import AgentSpec
from callboard.types.records import Fault, Json, Request

SESSION = "s1"
PROMPT = "Do the two things, and have them checked."
TODO = [{"content": "the two things", "status": "in_progress"}]
DONE = [{"content": "the two things", "status": "completed"}]
RESULTS = ("alice made it", "bob is here to help", "first is done", "second is done")
MEAN = Callable[[ModelRequest], Fault | None]


class LittleModel(ScriptedModel):
    """Says what the little session needs. `mean(request)`: a fault to raise instead of a reply."""

    def __init__(self, mean: MEAN | None = None) -> None:
        super().__init__({})
        self._mean = mean or _once_a_server_error

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        wrong = self._mean(request)
        if wrong is not None:
            await anyio.lowlevel.checkpoint()
            raise CallFault(wrong)
        return await super().complete(request, on_delta)

    def _entry(self, request: ModelRequest) -> Reply:
        said = b"\n".join(request.messages).decode()
        who = request.agent if request.agent in _SPEAKERS else "subagent"
        return _SPEAKERS[who](request.ordinal, said)


def _once_a_server_error(request: ModelRequest) -> Fault | None:
    return fault("server", status=500) if (request.agent, request.ordinal, request.attempt) == ("alice", 2, 1) else None


def _lead(ordinal: int, said: str) -> Reply:
    steps = [
        lambda: use("todo_write", {"todos": TODO}),
        lambda: use("create_task", {"subject": "the first"}),
        lambda: use("create_task", {"subject": "the second", "blocked_by": [_tasks(said)[-1]]}),
        lambda: use("read_file", {"path": "long.txt"}, ("task", _EXPLORE), ("write_file", {"path": "l", "text": "l"})),
        lambda: use("compact", {}),
        lambda: use(*spawn("alice", "make it", plan_required=True, agent_type="shell"), spawn("bob", "help out")),
    ]
    if ordinal <= len(steps):
        return steps[ordinal - 1]()
    if not all(result in said for result in RESULTS):
        return say("waiting for the others")
    return say("All is done.") if '"status":"completed"' in said else use("todo_write", {"todos": DONE})


def _alice(ordinal: int, said: str) -> Reply:
    steps = [
        use("bash", {"command": "too early"}),
        use("submit_plan", {"plan": "make it with one command"}, ("bash", {"command": "in the same reply"})),
        use("bash", {"command": "make it"}, ("read_file", {"path": "l"})),
        use("report", {"status": "done", "result": "alice made it"}),
    ]
    return steps[ordinal - 1] if ordinal <= len(steps) else say("nothing more to do")


def _bob(ordinal: int, said: str) -> Reply:
    steps = [
        lambda: use("write_file", {"path": "a", "text": "a"}, ("write_file", {"path": "b", "text": "b"})),
        lambda: use("report", {"status": "done", "result": "bob is here to help"}),
        lambda: use("write_file", {"path": "a", "text": "first"}, ("read_file", {"path": "b"})),
        lambda: use("complete_task", {"task_id": _claimed(said), "result": "good"}),
        lambda: use("report", {"status": "done", "result": "first is done"}),
        lambda: use("bash", {"command": "second"}, ("write_file", {"path": "c", "text": "c"})),
        lambda: use("complete_task", {"task_id": _claimed(said), "result": "good"}),
        lambda: use("report", {"status": "done", "result": "second is done"}),
    ]
    return steps[ordinal - 1]() if ordinal <= len(steps) else say("nothing more to do")


def _subagent(ordinal: int, said: str) -> Reply:
    return use("read_file", {"path": "l"}) if ordinal == 1 else say("it is in retry.py")


_EXPLORE: Json = {"description": "find it", "prompt": "where is it?", "agent_type": "explore"}
_SPEAKERS = {"lead": _lead, "alice": _alice, "bob": _bob, "subagent": _subagent}


def _tasks(said: str) -> list[str]:
    return re.findall(r"task_[a-z2-7]{12}", said)


def _claimed(said: str) -> str:
    return re.findall(r"You claimed (task_[a-z2-7]{12})", said)[-1]


class Approves:
    """Says yes to every plan."""

    async def answer(self, request: Request) -> Answer | None:
        await anyio.lowlevel.checkpoint()
        return Answer("approved", "person", "go on") if request.kind == "plan" else None


@dataclass
class Play:
    """The world of one run; it outlives every crash of the process in it."""

    model: LittleModel = field(default_factory=LittleModel)
    outside: Outside = field(default_factory=Outside)
    store: MemoryStore = field(default_factory=MemoryStore)
    world: TeamWorld = field(init=False)

    def __post_init__(self) -> None:
        self.world = team_world(self.model, *self.outside.tools().values(), approvers=[Approves()], store=self.store)
        self.world.spec_of = self._spec_of

    def _spec_of(self, agent_type: str, name: str, parent: AgentSpec | None) -> AgentSpec:
        spec = TeamWorld.spec_of(self.world, agent_type, name, parent)
        if agent_type == "shell":  # who cannot write files leaves the board to others
            return spec.model_copy(update={"tools": tuple(t for t in spec.tools if t != "write_file")})
        return spec

    def reopen(self, crash_after: int | None = None) -> None:
        """The next process opens what the last one left."""
        self.store = self.world.store = self.store.reopen(crash_after=crash_after)

    @asynccontextmanager
    async def process(self) -> AsyncGenerator[HostedSession]:
        """One process that begins the session or takes it up."""
        begun = await self.store.get(session_key(SESSION)) is not None
        async with self.world.session(SESSION, resume=begun) as session:
            yield session

    async def to_the_end(self) -> None:
        """Say the prompt (the same envelope every time), and live until all is quiet."""
        async with self.process() as session:
            await session.prompt(PROMPT)
            await session.quiet()

    async def through_a_crash(self) -> bool:
        """The same, in a store that may be killed; whether it was."""
        killed = False
        try:
            await self.to_the_end()
        except* Crashed:
            killed = True
        return killed
