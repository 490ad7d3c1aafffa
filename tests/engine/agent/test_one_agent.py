"""One agent's life in a world of memory: turns, tools, faults, permissions, limits, interrupts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
import pytest

from callboard.core.call_order import READS_AT_ONCE
from callboard.core.context.view.invariants import invariants
from callboard.ports.environment import Answer
from callboard.ports.model import ModelRequest, OnDelta, Reply
from callboard.ports.tool import CallContext, Folders, Tool, ToolOutcome, ToolSpec
from callboard.testing import AllowAll, ScriptedModel, World, fault, say, use
from callboard.types.hook_answers import AddContext, Deny, GoOn, PostToolUse, PreToolUse, Stop
from callboard.types.records import Json, Request

pytestmark = pytest.mark.anyio


@dataclass
class Echo:
    """A tool of the test: says what it was given, or does what `act` does."""

    name: str = "echo"
    effect: str = "read"
    concurrency: str = "shared"
    act: Callable[[Json], Awaitable[str]] | None = None
    ran: list[Json] = field(default_factory=list)
    barrier: bool = False

    @property
    def spec(self) -> ToolSpec:
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": False}
        return ToolSpec(self.name, "Echo.", schema, self.effect, self.concurrency, self.barrier)

    def key(self, given: Json, folders: Folders) -> str:
        return str(given.get("text", ""))

    async def prepare(self, given: Json, context: CallContext) -> Json:
        return {}

    async def run(self, given: Json, context: CallContext) -> ToolOutcome:
        self.ran.append(given)
        return ToolOutcome(await self.act(given) if self.act else f"echo {given.get('text', '')}")

    async def repair(self, given: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        return None


def tools(*them: Tool) -> dict[str, Tool]:
    return {tool.spec.name: tool for tool in them}


def texts(world: World, agent: str = "lead") -> str:
    """All that the model was sent for an agent in its last request."""
    return b"\n".join([r for r in world.model.requests if r.agent == agent][-1].messages).decode()


async def test_a_prompt_is_answered_and_the_session_is_quiet() -> None:
    world = World(ScriptedModel({"lead": [say("hello")]}))
    async with world.session() as team:
        await team.prompt("hi")
        await team.quiet()
        assert team.state("lead").turns.last_text == "hello"
        assert team.state("lead").turn is None


async def test_parallel_results_stand_in_the_order_of_the_calls() -> None:
    async def slow_first(given: Json) -> str:
        await anyio.sleep(0.05 if given["text"] == "one" else 0)
        return given["text"]

    world = World(
        ScriptedModel({"lead": [use("echo", {"text": "one"}, ("echo", {"text": "two"})), say("done")]}),
        tools(Echo(act=slow_first)),
    )
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        sent = texts(world)
        assert sent.index('"content":"one"') < sent.index('"content":"two"')
        assert invariants(team.state("lead").context.conversation.messages, sent=False) == []


async def test_an_unknown_tool_and_a_wrong_input_are_results_and_the_turn_goes_on() -> None:
    world = World(
        ScriptedModel({"lead": [use("ehco", {}), use("echo", {"txt": "x"}), use("echo", {"text": "x"}), say("ok")]}),
        tools(Echo()),
    )
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        sent = texts(world)
        assert "Did you mean echo?" in sent
        assert "`txt` is no field of this tool" in sent
        assert team.state("lead").turns.last_text == "ok"


async def test_a_tool_that_raises_becomes_an_error_result() -> None:
    async def boom(given: Json) -> str:
        raise ZeroDivisionError("by nought")

    world = World(ScriptedModel({"lead": [use("echo"), say("saw it")]}), tools(Echo(act=boom)))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert "ZeroDivisionError: by nought" in texts(world)


async def test_a_tool_that_awaits_something_cancelled_becomes_an_error_result() -> None:
    async def cancelled(given: Json) -> str:
        raise asyncio.CancelledError

    world = World(ScriptedModel({"lead": [use("echo"), say("saw it")]}), tools(Echo(act=cancelled)))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert "AwaitedTaskCancelled: it was cancelled, or a task that it awaited" in texts(world)
        assert team.state("lead").turns.last_text == "saw it"


async def test_transient_faults_are_retried_and_final_ones_end_the_turn() -> None:
    world = World(ScriptedModel({"lead": [fault("server", status=500), fault("connection"), say("made it")]}))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_text == "made it"
    world = World(ScriptedModel({"lead": [fault("credentials", status=401)]}))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_reason == "failed"
        assert "ANTHROPIC_API_KEY" in team.state("lead").turns.last_why


async def test_two_overloads_switch_to_the_fallback_until_the_turn_ends() -> None:
    model = ScriptedModel({"lead": [fault("overloaded"), fault("overloaded"), say("by two"), say("by one")]})
    world = World(model, spec={"fallback_models": ("two",)})
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        await team.prompt("again")
        await team.quiet()
        assert [r.model for r in model.requests] == ["scripted", "scripted", "two", "scripted"]


async def test_a_reply_cut_at_the_output_limit_is_asked_again_with_a_higher_one() -> None:
    cut = use("echo", {"text": "x"})
    cut = type(cut)(cut.blocks, "max_tokens", cut.usage, cut.model)
    echo = Echo()
    model = ScriptedModel({"lead": [cut, cut, say("whole")]})
    world = World(model, tools(echo), spec={"models": {"scripted": {"max_output": 16_000}}})
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert [r.max_tokens for r in model.requests] == [8_000, 16_000, 16_000]
        assert "Output limit reached. Continue exactly" in texts(world)
        assert echo.ran == []
        assert team.state("lead").turns.last_text == "whole"


async def test_a_refusal_ends_the_turn_and_what_it_had_begun_to_call_never_runs() -> None:
    echo = Echo()
    half = use("echo", {"text": "x"}, text="I will not")
    refusal = type(half)(half.blocks, "refusal", half.usage, half.model)
    world = World(ScriptedModel({"lead": [refusal]}), tools(echo))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert echo.ran == []
        assert team.state("lead").turns.last_reason == "refused"
        assert len(world.model.requests) == 1


async def test_step_limits_end_the_turn_and_say_which() -> None:
    model = ScriptedModel({"lead": [use("echo") for _ in range(9)]})
    world = World(model, tools(Echo()), spec={"limits": {"steps": 3}})
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_reason == "limit"
        assert "3 model steps" in team.state("lead").turns.last_why
        assert len(model.requests) == 3


class Person:
    """Answers every request the same way."""

    def __init__(self, answer: Answer | None) -> None:
        self.answer_with, self.asked = answer, []

    async def answer(self, request: Request) -> Answer | None:
        self.asked.append(request)
        return self.answer_with


@pytest.mark.parametrize(("status", "runs"), [("approved", 1), ("rejected", 0)])
async def test_a_tool_that_asks_waits_for_the_word(status: str, runs: int) -> None:
    echo, person = Echo(), Person(Answer(status, "person", "because"))
    world = World(ScriptedModel({"lead": [use("echo"), say("ok")]}), tools(echo), judge=AllowAll(ask=["echo"]))
    world.approvers = [person]
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert len(echo.ran) == runs
        assert len(person.asked) == 1
        if not runs:
            assert "Permission denied" in texts(world)


async def test_where_nobody_can_answer_the_deadline_is_a_no_and_nothing_hangs() -> None:
    echo = Echo()
    world = World(ScriptedModel({"lead": [use("echo"), say("ok")]}), tools(echo), judge=AllowAll(ask=["echo"]))
    world.spec = {"ask_deadline": 0}
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert echo.ran == []
        assert "nobody can be asked in this run" in texts(world)


async def test_siblings_of_a_call_that_asks_go_on() -> None:
    echo, other = Echo(), Echo(name="other")
    seen: list[int] = []

    class Later(Person):
        async def answer(self, request: Request) -> Answer | None:
            while not other.ran:
                await anyio.sleep(0)
            seen.append(len(other.ran))
            return Answer("approved", "person")

    world = World(
        ScriptedModel({"lead": [use("echo", {}, ("other", {})), say("ok")]}),
        tools(echo, other),
        judge=AllowAll(ask=["echo"]),
    )
    world.approvers = [Later(None)]
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert seen == [1]
        assert len(echo.ran) == 1


async def test_interrupt_ends_the_tool_and_the_history_stays_valid() -> None:
    started = anyio.Event()

    async def hang(given: Json) -> str:
        started.set()
        await anyio.sleep_forever()
        return ""

    world = World(ScriptedModel({"lead": [use("echo"), say("on again")]}), tools(Echo(act=hang)))
    async with world.session() as team:
        await team.prompt("go")
        await started.wait()
        await team.command("interrupt")
        await team.quiet()
        assert team.state("lead").turns.last_reason == "interrupted"
        await team.prompt("go on")
        await team.quiet()
        assert "Interrupted before it finished." in texts(world)
        assert team.state("lead").turns.last_text == "on again"
        assert invariants(team.state("lead").context.conversation.messages, sent=False) == []


async def test_words_that_come_while_a_tool_runs_follow_its_result() -> None:
    running, go = anyio.Event(), anyio.Event()

    async def wait(given: Json) -> str:
        running.set()
        await go.wait()
        return "result"

    world = World(ScriptedModel({"lead": [use("echo"), say("ok")]}), tools(Echo(act=wait)))
    async with world.session() as team:
        await team.prompt("go")
        await running.wait()
        await team.prompt("and another thing")
        while not team.state("lead").inbox.mail:
            await anyio.sleep(0)
        go.set()
        await team.quiet()
        sent = texts(world)
        assert sent.index('"tool_result"') < sent.index("and another thing")
        assert len(world.model.requests) == 2


async def test_hooks_deny_add_and_go_on() -> None:
    echo = Echo()
    world = World(
        ScriptedModel({"lead": [use("echo", {"text": "bad"}), use("echo", {"text": "good"}), say("a"), say("b")]}),
        tools(echo),
    )
    said: list[str] = []

    async def guard(event: PreToolUse) -> Deny | None:
        return Deny("not that") if event.call.input.get("text") == "bad" else None

    async def note(event: PostToolUse) -> AddContext:
        return AddContext("mind the gap")

    async def more(event: Stop) -> GoOn | None:
        said.append(event.text)
        return GoOn("one more thing") if len(said) == 1 else None

    world.hooks.add("PreToolUse", guard)
    world.hooks.add("PostToolUse", note)
    world.hooks.add("Stop", more)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        sent = texts(world)
        assert "Permission denied: not that" in sent
        assert "<post-tool-use-hook>\\nmind the gap" in sent
        assert "<stop-hook>\\none more thing" in sent
        assert team.state("lead").turns.last_text == "b"
        assert echo.ran == [{"text": "good"}]


async def test_a_stop_hook_that_never_lets_go_is_capped() -> None:
    world = World(ScriptedModel({"lead": []}), spec={"stuck_after": 0})

    async def again(event: Stop) -> GoOn:
        return GoOn("again")

    world.hooks.add("Stop", again)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert len(world.model.requests) == 9


@pytest.mark.parametrize(
    ("calls", "effect", "concurrency", "together"),
    [
        (3, "unknown", "exclusive", [1, 1, 1]),
        (3, "read", "shared", [1, 2, 3]),
        (READS_AT_ONCE + 2, "read", "shared", [*range(1, READS_AT_ONCE + 1), READS_AT_ONCE, READS_AT_ONCE]),
    ],
)
async def test_an_exclusive_call_runs_alone_and_reads_run_together_up_to_a_limit(
    calls: int, effect: str, concurrency: str, together: list[int]
) -> None:
    at_once: list[int] = []
    running = 0

    async def count(given: Json) -> str:
        nonlocal running
        running += 1
        at_once.append(running)
        await anyio.sleep(0.01 * len(at_once))
        running -= 1
        return ""

    echo = Echo(effect=effect, concurrency=concurrency, act=count)
    reply = use("echo", {}, *[("echo", {})] * (calls - 1))
    world = World(ScriptedModel({"lead": [reply, say("ok")]}), tools(echo))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert at_once == together


@pytest.mark.parametrize(
    ("effect", "hooked", "durable"),
    [("read", False, False), ("read", True, True), ("store", False, True), ("unknown", False, True)],
)
async def test_only_what_a_crash_would_do_again_waits_for_the_next_reply(
    effect: str, hooked: bool, durable: bool
) -> None:
    """The journal on disk while the model answers to a result: one commit for a step that only reads."""
    seen: list[list[str]] = []

    class Looking(ScriptedModel):
        async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
            seen.append(await team.journal("lead"))
            return await super().complete(request, on_delta)

    async def quiet(event: PostToolUse) -> None:
        assert "tool_finished" in await team.journal("lead"), "a hook acts on what a crash does not take back"

    world = World(Looking({"lead": [use("echo", text="x"), say("done")]}), tools=tools(Echo(effect=effect)))
    if hooked:
        world.hooks.add("PostToolUse", quiet)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_text == "done"
        assert (await team.journal("lead")).count("tool_finished") == 1
    assert ("tool_finished" in seen[1]) is durable
    assert seen[1][-1] != "model_called", "a call that is only made is written with its end"
