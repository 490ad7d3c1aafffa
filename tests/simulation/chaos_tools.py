"""The rest of a chaos's world: tools that fail, hang and run in the background, hooks, approvers, bugs of ours.

What tools do outside the store stands in `Wilderness`, which no crash reaches.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from tests.simulation.evidence import BUG
from tests.simulation.outside import Outside, OutsideTool, bash, schema

from callboard.core.keys import short_id
from callboard.engine.hooks.registry import HookRegistry
from callboard.ports.environment import Answer
from callboard.ports.model import Delta
from callboard.ports.tool import CallContext, Tool, ToolOutcome, ToolSpec
from callboard.ports.worktrees import WorktreeKeeper
from callboard.testing import NoLauncher, SteadyClock
from callboard.types.errors import ToolRefused
from callboard.types.events import BackgroundEnded, BackgroundStarted, Event, SkillLoaded
from callboard.types.hook_answers import (
    FITTING,
    AddContext,
    Ask,
    Deny,
    GoOn,
    Halt,
    HookEvent,
    PostToolUse,
    PreToolUse,
    Stop,
    UserPromptSubmit,
)
from callboard.types.records import Envelope, Grant, Json, Request

Draw = random.Random
_RAISED: tuple[type[Exception], ...] = (ValueError, RuntimeError, OSError, KeyError, ToolRefused, ExceptionGroup)


@dataclass
class Process:
    """A background command: it lives on when the runtime dies."""

    until: float
    code: int
    ended: anyio.Event = field(default_factory=anyio.Event)


@dataclass
class Processes(NoLauncher):
    """The background commands of all processes of the runtime, by their output file."""

    clock: SteadyClock
    seed: int
    running: dict[int, Process] = field(default_factory=dict[int, Process])
    by_output: dict[str, int] = field(default_factory=dict[str, int])
    starts: Counter[str] = field(default_factory=Counter[str])

    async def start(self, command: str, folder: Path, output: Path, grants: Sequence[Grant] = ()) -> tuple[int, float]:
        await anyio.lowlevel.checkpoint()
        draw, pid = Draw(f"{self.seed}/{output}"), len(self.running) + 1
        self.running[pid] = Process(self.clock.now() + draw.choice((0, 5, 200, 5_000)), draw.choice((0, 0, 3)))
        self.by_output[str(output)] = pid
        self.starts[str(output)] += 1
        return pid, 1.0

    async def wait(self, pid: int, started: float, output: Path) -> int | None:
        one = self.running[pid]
        with anyio.move_on_after(max(0.0, one.until - self.clock.now())):
            await one.ended.wait()
        return one.code

    async def end(self, pid: int, started: float) -> bool:
        await anyio.lowlevel.checkpoint()
        one = self.running[pid]
        if one.until <= self.clock.now():
            return False
        one.until, one.code = self.clock.now(), 143
        one.ended.set()
        return True


@dataclass
class Wilderness(Outside):
    """The world outside, with commands in the background, tools that raise and a tool that hangs."""

    hung: int = 0
    processes: Processes = field(init=False)
    worktrees: WorktreeKeeper | None = None

    def open(self, clock: SteadyClock, seed: int) -> None:
        """Before anything else."""
        self.processes = Processes(clock, seed)

    def tools(self) -> dict[str, Tool]:
        command = {
            "type": "object",
            "properties": {"command": {"type": "string"}, "run_in_background": {"type": "boolean"}},
            "required": ["command"],
        }
        more: Sequence[Tool] = (
            _Shell(ToolSpec("bash", "Run.", command, "unknown"), self, bash),
            OutsideTool(ToolSpec("glob", "Raise.", schema("pattern"), "read", "shared"), self, _raise),
            OutsideTool(ToolSpec("grep", "Hang.", schema("pattern"), "read", "shared"), self, _hang),
            OutsideTool(ToolSpec("load_skill", "Load.", schema("name"), "read"), self, _load),
            OutsideTool(ToolSpec("task_stop", "Stop.", schema("id"), "unknown"), self, _stop),
        )
        return {**super().tools(), **{tool.spec.name: tool for tool in more}}


@dataclass(frozen=True)
class _Shell(OutsideTool):
    """`bash`: waited for, or in the background and then found again."""

    async def run(self, given: Json, context: CallContext) -> ToolOutcome:
        if not given.get("run_in_background"):
            return await super().run(given, context)
        output = Path(f"{context.call}.out")
        self.outside.commanded[context.call] += 1
        pid, started = await context.launcher.start(given["command"], Path("/"), output)
        return _started(given, context, pid, started)

    async def repair(self, given: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        assert isinstance(self.outside, Wilderness)
        pid = self.outside.processes.by_output.get(f"{context.call}.out")
        if given.get("run_in_background") and pid is not None:
            return _started(given, context, pid, 1.0)
        return ToolOutcome("Its outcome is unknown: the process ended while it ran.", is_error=True)


def _started(given: Json, context: CallContext, pid: int, started: float) -> ToolOutcome:
    name = short_id("bg", context.call)
    deadline = context.now + 1_000 if pid % 3 == 0 else None
    event = BackgroundStarted(
        at=context.now,
        id=name,
        command=given["command"],
        pid=pid,
        started=started,
        output=f"{context.call}.out",
        deadline=deadline,
    )
    return ToolOutcome(f"[Background task {name} started]", events=(event,))


async def _raise(outside: Outside, given: Json, context: CallContext) -> ToolOutcome:
    await anyio.lowlevel.checkpoint()
    kind = Draw(context.call).choice(_RAISED)
    raise ExceptionGroup("several", [ValueError("a"), OSError("b")]) if kind is ExceptionGroup else kind("a fault")


async def _hang(outside: Outside, given: Json, context: CallContext) -> ToolOutcome:
    """Until it is cancelled, and then it takes its time."""
    assert isinstance(outside, Wilderness)
    outside.hung += 1
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(2)
    raise AssertionError("a tool that hangs never returns")


async def _load(outside: Outside, given: Json, context: CallContext) -> ToolOutcome:
    await anyio.lowlevel.checkpoint()
    return ToolOutcome("how it is done", events=(SkillLoaded(at=context.now, name=given["name"]),))


async def _stop(outside: Outside, given: Json, context: CallContext) -> ToolOutcome:
    task = context.background.get(given["id"])
    if task is None or task.status != "running":
        raise ToolRefused("nothing of that name runs")
    if not await context.launcher.end(task.pid, task.started):
        return ToolOutcome("it had just ended")
    return ToolOutcome("stopped", events=(BackgroundEnded(at=context.now, id=task.id, status="stopped"),))


@dataclass
class Moody:
    """Answers most requests, one way or the other, sooner or later."""

    seed: int
    clock: SteadyClock
    due: dict[str, float] = field(default_factory=dict[str, float])
    """When which request is answered (Unix seconds), if nobody is faster."""

    async def answer(self, request: Request) -> Answer | None:
        draw = Draw(f"{self.seed}/{request.id}")
        after = draw.choice((0, 1, 40, 1_000))
        self.due[request.id] = self.clock.now() + after
        await anyio.sleep(after)
        if request.kind == "shutdown" or draw.random() < 0.15:
            return None
        yes = "answered" if request.kind == "question" else draw.choice(("approved", "approved", "rejected"))
        return Answer(yes, "person", "that is how it is")


class Bug(Exception):
    """A fault of our own code."""


@dataclass
class Bugs:
    """An observer that stands for bugs of ours: at these of a process's records the agent's code raises."""

    at: frozenset[int]
    seen: int = 0
    raised: list[str] = field(default_factory=list[str])

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        self.seen += 1
        if self.seen in self.at:
            self.raised.append(agent)
            raise Bug(f"{BUG} {self.seen}")

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Nothing is recorded for it."""

    def on_mail(self, envelope: Envelope) -> None:
        """Its record tells the same."""


MOMENTS = (
    *("SessionStart", "SubagentStart", "EnvelopeDelivered", "PostToolBatch", "PostToolUseFailure", "SubagentStop"),
    *(
        "TeammateIdle",
        "TaskCreated",
        "TaskCompleted",
        "PlanSubmitted",
        "RequestAnswered",
        "BudgetReached",
        "PreCompact",
    ),
    *("PostCompact", "Notification", "StopFailure"),
)
"""What `moment` hears of; the events with a hook of their own are not among them."""


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

    async def moment(event: HookEvent) -> Deny | GoOn | AddContext | None:
        name = type(event).__name__
        about = [getattr(event, field, "") for field in ("id", "task", "subject", "text", "plan", "trigger", "blocks")]
        chance = draw(name, event.by.name, *about)
        await anyio.sleep(chance * 2)
        answers = ((0.1, Deny("not so")), (0.1, GoOn("and one more")), (0.3, AddContext("mind this")))
        return next((one for most, one in answers if chance < most and isinstance(one, FITTING[name])), None)

    hooks = HookRegistry()
    for name in MOMENTS:
        hooks.add(name, moment)
    for name, handler in (("PreToolUse", before), ("PostToolUse", after), ("UserPromptSubmit", prompt), ("Stop", stop)):
        hooks.add(name, handler)
    return hooks
