"""The registry: who is asked, in which order, what a failing hook costs, and that nothing of it escapes."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from tests.engine.hooks.hook_handlers import Handler, answering, call, result

from callboard.engine.hooks import registry as hooks
from callboard.engine.hooks.registry import HookRegistry
from callboard.ports.hooks import HookTerms
from callboard.types.hook_answers import (
    SOURCES,
    AddContext,
    Allow,
    Answer,
    Ask,
    Deny,
    GoOn,
    Halt,
    HandlerResult,
    PreToolUse,
    Rewrite,
    Stop,
)
from callboard.types.messages import ViewBlock, ViewMessage
from callboard.types.records import Json

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Real time: hooks run in threads, and a virtual clock would jump while they do."""
    return str(request.param)


async def test_without_hooks_nothing_is_decided() -> None:
    registry = HookRegistry()
    assert not registry.has("PreToolUse")
    verdict = await registry.pre_tool_use(call())
    assert (verdict.decision, verdict.input, verdict.context, verdict.halt) == (None, None, (), "")


async def test_plain_and_async_callables_answer_alike() -> None:
    class Guard:
        async def __call__(self, event: PreToolUse) -> Deny:
            return Deny(f"async object saw {event.call.name}")

    def plain(event: PreToolUse) -> Deny:
        return Deny(f"plain saw {event.call.name}")

    async def later(event: PreToolUse, who: str) -> Deny:
        return Deny(f"{who} saw {event.call.name}")

    for hooked, why in (
        (plain, "plain saw bash"),
        (Guard(), "async object saw bash"),
        (functools.partial(later, who="partial"), "partial saw bash"),
        (lambda event: later(event, "lambda"), "lambda saw bash"),
    ):
        registry = HookRegistry()
        registry.add("PreToolUse", hooked)
        verdict = await registry.pre_tool_use(call())
        assert (verdict.decision, verdict.why) == ("deny", why)


@pytest.mark.parametrize("value", ["", 0, True, [], {"decision": "allow"}, GoOn("x")])
async def test_a_guard_that_returns_anything_else_denies(value: object) -> None:
    registry = HookRegistry()
    registry.add("PreToolUse", lambda _: value)
    registry.add("PreToolUse", lambda _: Allow())
    verdict = await registry.pre_tool_use(call())
    assert verdict.decision == "deny"
    assert "it returned" in verdict.why
    assert verdict.by == "hook <lambda> (person)"


@pytest.mark.parametrize(
    "error", [ValueError("boom"), SystemExit(1), KeyError("x"), StopIteration(), asyncio.CancelledError()]
)
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_guard_that_raises_denies_and_ends_nothing(error: BaseException, kind: str) -> None:
    def plain(_: PreToolUse) -> None:
        raise error

    async def later(_: PreToolUse) -> None:
        raise error

    registry = HookRegistry()
    registry.add("PreToolUse", plain if kind == "plain" else later)
    verdict = await registry.pre_tool_use(call())
    assert verdict.decision == "deny"
    assert "failed" in verdict.why


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_guard_that_takes_too_long_denies(kind: str) -> None:
    released = threading.Event()

    def plain(_: PreToolUse) -> None:
        released.wait(30)

    async def later(_: PreToolUse) -> None:
        await anyio.sleep_forever()

    registry = HookRegistry(timeout=0.05)
    registry.add("PreToolUse", plain if kind == "plain" else later)
    try:
        with anyio.fail_after(20):
            verdict = await registry.pre_tool_use(call())
    finally:
        released.set()
    assert verdict.decision == "deny"
    assert "no answer within 0.05 s" in verdict.why


async def test_a_guard_that_waits_for_a_thread_has_not_begun_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "THREADS", 1)
    registry = HookRegistry(timeout=2.0)
    registry.add("PreToolUse", lambda _: time.sleep(0.2))
    verdicts: list[str | None] = []

    async def ask() -> None:
        verdicts.append((await registry.pre_tool_use(call())).decision)

    async with anyio.create_task_group() as group:
        for _ in range(15):  # one at once: the last waits longer for its thread than its time
            group.start_soon(ask)
    assert verdicts == [None] * 15


async def test_callables_speak_in_the_order_of_their_sources_on_what_was_rewritten() -> None:
    registry = HookRegistry()
    for source in reversed(SOURCES):
        for number in (1, 2):

            def add(event: PreToolUse, word: str = f"{source}{number}") -> Rewrite:
                return Rewrite({"command": f"{event.call.input['command']} {word}"})

            registry.add("PreToolUse", add, source=source)
    event = call(command="x")
    verdict = await registry.pre_tool_use(event)
    expected = "x " + " ".join(f"{source}{number}" for source in SOURCES for number in (1, 2))
    assert verdict.input == {"command": expected}
    assert event.call.input == {"command": "x"}


async def test_handlers_start_together_and_callables_see_what_they_rewrote() -> None:
    registry, go, begun = HookRegistry(), anyio.Event(), []

    def count() -> None:
        begun.append(1)
        if len(begun) == 3:
            go.set()

    for number in range(3):
        rewrite = Rewrite({"command": f"n{number}", "timeout": 2000})
        registry.add("PreToolUse", answering(rewrite, go=go, begun=count, name=f"h{number}"))
    seen: list[Json] = []
    registry.add("PreToolUse", lambda event: seen.append(event.call.input), source="builtin")
    with anyio.fail_after(20):
        verdict = await registry.pre_tool_use(call())
    assert verdict.input == {"command": "n2", "timeout_s": 2}
    assert seen == [verdict.input]


async def test_all_run_and_the_strongest_wins() -> None:
    registry, ran = HookRegistry(), []

    def saying(answer: Answer | None) -> Callable[[PreToolUse], Answer | None]:
        def guard(_: PreToolUse) -> Answer | None:
            ran.append(answer)
            return answer

        return guard

    registry.add("PreToolUse", answering(Allow("handler")))
    for answer in (Ask("ask"), Deny("first no"), AddContext("note"), Deny("second no"), None):
        registry.add("PreToolUse", saying(answer))
    verdict = await registry.pre_tool_use(call())
    assert (verdict.decision, verdict.why, verdict.context) == ("deny", "first no", ("note",))
    assert len(ran) == 5


async def test_a_halt_denies_the_call_too() -> None:
    registry = HookRegistry()
    registry.add("PreToolUse", lambda _: Halt("enough"))
    verdict = await registry.pre_tool_use(call())
    assert (verdict.decision, verdict.halt) == ("deny", "enough")


async def test_a_hook_changes_nothing_but_by_its_answer() -> None:
    def vandal(event: Any) -> None:
        event.call.input["command"] = "rm -rf /"
        with pytest.raises(AttributeError):
            event.call = None

    async def later(event: PreToolUse) -> None:
        event.call.input.clear()

    registry = HookRegistry()
    registry.add("PreToolUse", vandal)
    registry.add("PreToolUse", later)
    event = call(command="ls")
    verdict = await registry.pre_tool_use(event)
    assert (verdict.decision, verdict.input, event.call.input) == (None, None, {"command": "ls"})

    def clear(event: Stop) -> None:
        event.view[0].blocks[0].data.clear()

    registry.add("Stop", clear)
    block = ViewBlock({"type": "text", "text": "hi"}, "person", 1)
    stop = Stop((ViewMessage(1, "user", (block,), 1),))
    assert (await registry.stop(stop)).notices == ()
    assert block.data == {"type": "text", "text": "hi"}


async def test_matchers_choose_in_both_worlds() -> None:
    registry, seen = HookRegistry(), []
    registry.add("PreToolUse", lambda event: seen.append(event.call.name), "Bash|edit_file")
    registry.add("PostToolUse", lambda event: seen.append(event.call.name), "Read")
    for tool in ("bash", "edit_file", "read_file", "mcp__a__bash"):
        await registry.pre_tool_use(call(tool, path="x"))
    await registry.post_tool_use(result())
    assert seen == ["bash", "edit_file"]


async def test_a_failing_handler_is_a_no_unless_its_file_forgives() -> None:
    for handler, why in (
        (Handler(HandlerResult(fault="exit code 1: boom")), "boom"),
        (Handler(raises=RuntimeError("bug")), "bug"),
        (answering(GoOn("x")), "GoOn"),
        (answering(Rewrite({"a": object()})), "JSON"),
    ):
        for fail_open, decision in ((False, "deny"), (True, None)):
            registry = HookRegistry()
            registry.add("PreToolUse", handler, fail_open=fail_open)
            verdict = await registry.pre_tool_use(call())
            assert verdict.decision == decision
            assert why in verdict.notices[0]


async def test_a_handler_that_keeps_no_time_is_given_up() -> None:
    registry = HookRegistry(timeout=60, grace=0.05)
    registry.add("PreToolUse", answering(Allow(), go=anyio.Event(), timeout=0.05))
    with anyio.fail_after(20):
        verdict = await registry.pre_tool_use(call())
    assert verdict.decision == "deny"


async def test_the_same_handler_from_two_files_runs_once() -> None:
    registry, handler, other = HookRegistry(), answering(AddContext("once")), answering(AddContext("twice"))
    registry.add("PreToolUse", handler, source="person")
    registry.add("PreToolUse", handler, "Bash", source="workspace")
    registry.add("PreToolUse", other, source="skill")
    registry.add("PreToolUse", other, source="skill")
    assert (await registry.pre_tool_use(call())).context == ("once", "twice", "twice")


async def test_an_approval_counts_only_for_the_input_that_its_hook_saw() -> None:
    approving = answering(Allow())
    rewriting = answering(Rewrite(input={"command": "npm test; npm publish"}))
    registry = HookRegistry()
    registry.add("PreToolUse", approving)
    registry.add("PreToolUse", rewriting)
    verdict = await registry.pre_tool_use(call(command="npm test"))
    assert (verdict.decision, verdict.input) == (None, {"command": "npm test; npm publish"})
    assert any("its approval does not count" in notice for notice in verdict.notices)


async def test_an_approval_counts_for_what_its_own_hook_or_an_earlier_one_rewrote() -> None:
    own = HookRegistry()
    own.add("PreToolUse", answering(Allow(), Rewrite(input={"command": "ls -l"})))
    assert (await own.pre_tool_use(call())).decision == "allow"
    registry = HookRegistry()
    registry.add("PreToolUse", answering(Rewrite(input={"command": "ls -l"})))
    registry.add("PreToolUse", lambda event: Allow() if event.call.input == {"command": "ls -l"} else None)
    assert (await registry.pre_tool_use(call())).decision == "allow"


async def test_a_hook_that_runs_once_is_not_used_up_by_a_call_that_its_condition_excludes() -> None:
    registry, handler = HookRegistry(), answering(Deny("no"))
    handler.says = HandlerResult(skipped=True)
    registry.add("PreToolUse", handler, terms=HookTerms(once=True))
    assert (await registry.pre_tool_use(call())).decision is None
    handler.says = HandlerResult((Deny("no"),))
    assert (await registry.pre_tool_use(call())).decision == "deny"
    assert (await registry.pre_tool_use(call())).decision is None


async def test_a_hook_that_runs_once_does_not_run_for_two_calls_at_a_time() -> None:
    registry, handler = HookRegistry(), answering(Deny("no"), go=anyio.Event())
    registry.add("PreToolUse", handler, terms=HookTerms(once=True))
    decisions: list[str | None] = []

    async def ask() -> None:
        decisions.append((await registry.pre_tool_use(call())).decision)

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        await ask()
        assert handler.go is not None
        handler.go.set()
    assert decisions == [None, "deny"]
    assert len(handler.told) == 1
