"""A team that does anything at any time: a model, a person and a service drawn from one seed, a store that is killed.

Nothing here is likely to be useful work. What counts is that whatever happens is legal, that it ends, and that the
promises of `evidence` hold. One seed is one run.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import anyio
from tests.engine.team_world import TeamWorld, spawn, team_world
from tests.simulation.evidence import Evidence, gather
from tests.simulation.little_session import SESSION
from tests.simulation.outside import Outside

from callboard.adapters.memory import Crashed, MemoryStore
from callboard.core.names import agent_key, session_key
from callboard.engine.hooks import HookRegistry
from callboard.ports.model import CallFault, ModelRequest, OnDelta, Reply
from callboard.ports.world import Answer
from callboard.testing import AllowAll, HostedSession, ScriptedModel, fault, say, use
from callboard.words.errors import UsageError
from callboard.words.hooks import AddContext, Ask, Deny, GoOn, Halt, PostToolUse, PreToolUse, Stop, UserPromptSubmit
from callboard.words.values import Fault, Json, Request

CALLS = 25
"""After so many replies an agent says no more, so that every run ends."""
FAULTS = 3
"""Faults in a row for one call."""
PATIENCE = 500_000.0
"""Virtual seconds after which a run is taken to hang."""
NAMES = ("alice", "bob", "carol")
Draw = random.Random


class WildModel(ScriptedModel):
    """Says something of everything; the same agent's same call says the same whenever it is asked again."""

    def __init__(self, seed: int) -> None:
        super().__init__({})
        self._seed = seed
        self._tries: Counter[tuple[str, int, str]] = Counter()

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        call = (request.agent, request.ordinal, request.purpose)
        self._tries[call] += 1
        draw = Draw(f"{self._seed}/{call}/{self._tries[call]}")
        await anyio.sleep(draw.choice((0, 0, 0.1, 3)))
        if self._tries[call] <= FAULTS and draw.random() < 0.2:
            raise CallFault(draw.choice(_FAULTS))
        return await super().complete(request, on_delta)

    def _entry(self, request: ModelRequest) -> Reply:
        draw = Draw(f"{self._seed}/{request.agent}/{request.ordinal}")
        said = b"\n".join(request.messages).decode()
        if request.ordinal > CALLS:
            return say("enough")
        actions = [*_ANYONE, *(_LEAD if request.agent == "lead" else _MATE)]
        return draw.choice(actions)(draw, said)


_FAULTS: tuple[Fault, ...] = (
    fault("overloaded", status=529),
    fault("overloaded", status=529),
    fault("rate_limited", status=429, retry_after=2.0),
    fault("rate_limited", status=429, retry_after=600.0),
    fault("server", status=500),
    fault("connection"),
    fault("silence"),
    fault("too_long", status=400, message="prompt is too long"),
    fault("invalid", status=400),
)


def _call(name: str, **given: object) -> tuple[str, Json]:
    return name, dict(given)


def _some_calls(draw: Draw, said: str) -> Reply:
    calls = [draw.choice(_CALLS)(draw, said) for _ in range(draw.randint(1, 6))]
    return use(*calls[0], *calls[1:], text=draw.choice(("", "Let me see.")))


def _task_id(said: str) -> str:
    found = re.findall(r"task_[a-z2-7]{12}", said)
    return found[-1] if found else "task_none"


_CALLS: tuple[Callable[[Draw, str], tuple[str, Json]], ...] = (
    lambda draw, said: _call("read_file", path=draw.choice("ab")),
    lambda draw, said: _call("read_file", path="long.txt"),
    lambda draw, said: _call("write_file", path=draw.choice("ab"), text=str(draw.random())),
    lambda draw, said: _call("bash", command=str(draw.random())),
    lambda draw, said: _call("bash", command="refuse"),
    lambda draw, said: _call("bahs", command="no such tool"),
    lambda draw, said: _call("read_file", file="no such field"),
    lambda draw, said: _call("todo_write", todos=[{"content": "x", "status": draw.choice(("pending", "completed"))}]),
    lambda draw, said: _call("task", description="d", prompt="p", agent_type="explore"),
    lambda draw, said: _call("create_task", subject=f"do {draw.random()}"),
    lambda draw, said: _call("claim_task", task_id=_task_id(said)),
    lambda draw, said: _call("complete_task", task_id=_task_id(said), result="r"),
    lambda draw, said: _call("send_message", to=draw.choice((*NAMES, "lead")), content="hello"),
    lambda draw, said: _call("ask_person", question="which?"),
)
_ANYONE: tuple[Callable[[Draw, str], Reply], ...] = (
    _some_calls,
    _some_calls,
    _some_calls,
    lambda draw, said: say("that is all"),
    lambda draw, said: say("cut", "max_tokens"),
    lambda draw, said: replace(_some_calls(draw, said), stop_reason="max_tokens"),
    lambda draw, said: say("paused", "pause_turn"),
    lambda draw, said: say("no", "refusal") if draw.random() < 0.3 else say(""),
    lambda draw, said: use("compact", {}, _call("bash", command="after the barrier")),
)
_LEAD: tuple[Callable[[Draw, str], Reply], ...] = (
    lambda draw, said: use(*spawn(draw.choice(NAMES), plan_required=draw.random() < 0.4), spawn(draw.choice(NAMES))),
    lambda draw, said: use(*spawn(draw.choice(NAMES))),
    lambda draw, said: use("request_plan", {"teammate": draw.choice(NAMES), "task": "the roof"}),
    lambda draw, said: use("request_shutdown", {"teammate": draw.choice(NAMES)}),
    lambda draw, said: use("broadcast", {"content": "news"}),
)
_MATE: tuple[Callable[[Draw, str], Reply], ...] = (
    lambda draw, said: use("report", {"status": draw.choice(("done", "failed", "blocked")), "result": "so it is"}),
    lambda draw, said: use("submit_plan", {"plan": f"plan {draw.random()}"}, _call("bash", command="too soon")),
)


@dataclass
class Moody:
    """Answers most requests, one way or the other, sooner or later."""

    seed: int

    async def answer(self, request: Request) -> Answer | None:
        draw = Draw(f"{self.seed}/{request.id}")
        await anyio.sleep(draw.choice((0, 1, 40)))
        if request.kind == "shutdown" or draw.random() < 0.1:
            return None
        yes = "answered" if request.kind == "question" else draw.choice(("approved", "approved", "rejected"))
        return Answer(yes, "person", "that is how it is")  # type: ignore[arg-type]


def wild_hooks(seed: int) -> HookRegistry:
    """Hooks that take their time and deny, add, block, go on and halt as it comes."""

    def draw(*origin: object) -> float:
        return Draw(f"{seed}/hook/{origin}").random()

    async def before(event: PreToolUse) -> Deny | AddContext | Ask | Halt | None:
        chance = draw("pre", event.call.id)
        await anyio.sleep(chance * 3)
        if chance < 0.02:
            return Halt("enough")
        answers = ((0.1, Deny("not that")), (0.15, Ask("sure?")), (0.3, AddContext("mind")))
        return next((answer for most, answer in answers if chance < most), None)

    async def after(event: PostToolUse) -> AddContext | None:
        await anyio.sleep(draw("post", event.call.id) * 3)
        return AddContext("noted") if draw("post", event.call.id) < 0.3 else None

    async def prompt(event: UserPromptSubmit) -> Deny | AddContext | None:
        await anyio.sleep(1)
        chance = draw("prompt", event.text, event.by.name)
        return Deny("not now") if chance < 0.1 else AddContext("it is late") if chance < 0.4 else None

    async def stop(event: Stop) -> GoOn | None:
        await anyio.sleep(1)
        return GoOn("one more thing") if draw("stop", event.by.name, len(event.view)) < 0.3 else None

    hooks = HookRegistry()
    for name, handler in (("PreToolUse", before), ("PostToolUse", after), ("UserPromptSubmit", prompt), ("Stop", stop)):
        hooks.add(name, handler)
    return hooks


@dataclass
class Run:
    """One run of one seed: several processes, one after the other, on one store."""

    seed: int
    outside: Outside = field(default_factory=lambda: Outside(slow=5.0))
    kills: int = 0

    def __post_init__(self) -> None:
        tools = self.outside.tools().values()
        self.world: TeamWorld = team_world(WildModel(self.seed), *tools, judge=AllowAll(ask=["bash"]))
        self.world.approvers = [Moody(self.seed)]
        self.world.seed = self.seed
        self.world.hooks = wild_hooks(self.seed) if self.seed % 2 else self.world.hooks
        self.world.spec = {"fallback_models": ("two",), "limits": {"seconds": 3_000}, "context_limit": 4_000}

    async def whole(self) -> Evidence:
        """Processes that are killed, then one that is not; what is left when all is quiet."""
        draw = Draw(f"{self.seed}/kills")
        store = self.world.store = MemoryStore(crash_after=draw.randint(1, 120))
        for process in range(draw.randint(0, 3)):
            await self._until_killed(process)
            if not store.dead:
                break
            self.kills += 1
            point = draw.choice(("before", "after"))
            store = self.world.store = store.reopen(crash_after=draw.randint(1, 200), crash_point=point)
        self.world.store = store.reopen()
        await self._live(9)
        return await gather(self.world.store, SESSION)

    async def _until_killed(self, process: int) -> None:
        try:
            await self._live(process)
        except* Crashed:
            pass  # the next process takes over

    async def _live(self, process: int) -> None:
        begun = await self.world.store.get(session_key(SESSION)) is not None
        with anyio.fail_after(PATIENCE):
            async with self.world.session(SESSION, resume=begun) as session:
                session._said = process * 100
                await self._person(session, Draw(f"{self.seed}/person/{process}"))
                await session.quiet()

    async def _person(self, session: HostedSession, draw: Draw) -> None:
        """Somebody who talks, interrupts, stops and compacts as it comes."""
        await session.prompt("Do it all.")
        for number in range(draw.randint(0, 8)):
            await anyio.sleep(draw.choice((0, 0.05, 1, 7, 60)))
            name = draw.choice(("lead", "lead", *NAMES))
            if await self.world.store.get(agent_key(SESSION, name)) is None:
                continue
            what = draw.choice(("prompt", "prompt", "interrupt", "compact", "stop"))
            await _act(session, what if name != "lead" or what != "stop" else "interrupt", name, f"word {number}")


async def _act(session: HostedSession, what: str, name: str, text: str) -> None:
    try:
        if what == "prompt":
            await session.prompt(text, to=name)
        else:
            await session.command(what, to=name)  # type: ignore[arg-type]
    except UsageError:
        pass  # nobody of that name any more
