"""Hooks in the background: nobody waits for them, they decide nothing, and what they say reaches their agent later."""

from __future__ import annotations

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo, texts, tools
from tests.engine.hooks.hook_handlers import Handler, answering, call

from callboard.core.keys import schedule_key
from callboard.engine.hooks import registry as registry_module
from callboard.engine.hooks.registry import HookRegistry
from callboard.ports.hooks import HookTerms, LateHookOutput
from callboard.ports.store import Put
from callboard.testing import ScriptedModel, World, say, use
from callboard.types.hook_answers import AddContext, Caller, Deny, GoOn, HandlerResult, SessionStart, Stop
from callboard.types.schedules import Schedule

pytestmark = pytest.mark.anyio

IN_BACKGROUND = HookTerms(fail_open=True, background=True)
OTHERS = Schedule(id="s2", cron="0 3 * * *", prompt="x", target="coder")
REWAKES = HookTerms(fail_open=True, background=True, wakes=True)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_nobody_waits_for_it_and_it_decides_nothing() -> None:
    registry, go = HookRegistry(), anyio.Event()
    said: list[LateHookOutput] = []
    heard = anyio.Event()

    async def tell(late: LateHookOutput) -> None:
        said.append(late)
        heard.set()

    result = HandlerResult((Deny("no"), AddContext("lint is red")), notices=("for the person",))
    registry.add("PreToolUse", Handler(result, go=go), terms=IN_BACKGROUND)
    async with anyio.create_task_group() as group:
        group.start_soon(registry.run_background, tell)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(20):
            verdict = await registry.pre_tool_use(call())
            assert (verdict.decision, verdict.context, verdict.notices) == (None, (), ())
            go.set()
            await heard.wait()
        group.cancel_scope.cancel()
    assert said == [LateHookOutput("hook handler (person)", Caller(), ("lint is red",), ("for the person",))]


def test_its_time_is_no_time_that_anybody_waits() -> None:
    registry = HookRegistry(timeout=10, grace=1)
    registry.add("PreToolUse", answering(timeout=600), terms=IN_BACKGROUND)
    assert registry.longest() == 1
    registry.add("PreToolUse", answering(timeout=20))
    assert registry.longest() == 21


async def test_only_exit_code_2_of_one_that_may_wake_wakes() -> None:
    said: dict[str, LateHookOutput] = {}

    async def tell(late: LateHookOutput) -> None:
        said[late.hook] = late

    registry = HookRegistry()
    blocked = HandlerResult((GoOn("tests fail"),), blocked="tests fail")
    for name, terms, result in (
        ("wakes", REWAKES, blocked),
        ("may not", IN_BACKGROUND, blocked),
        ("says so", REWAKES, HandlerResult((AddContext("green"),))),
        ("fails", REWAKES, HandlerResult(fault="exit code 1")),
        ("silent", REWAKES, HandlerResult()),
    ):
        registry.add("Stop", Handler(result, name=name), terms=terms)
    async with anyio.create_task_group() as group:
        group.start_soon(registry.run_background, tell)
        await anyio.wait_all_tasks_blocked()
        assert (await registry.stop(Stop())).go_on == ""
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    found = {name.split(" (")[0].removeprefix("hook "): (one.wake, one.context) for name, one in said.items()}
    assert found == {"wakes": (True, ("tests fail",)), "says so": (False, ("green",)), "fails": (False, ())}
    assert said["hook fails (person)"].notices == ("failed: exit code 1",)


async def test_where_nobody_tends_them_and_where_there_are_too_many_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, go = HookRegistry(), anyio.Event()
    registry.add("PreToolUse", answering(Deny("no"), go=go), terms=IN_BACKGROUND)
    verdict = await registry.pre_tool_use(call())
    assert (verdict.decision, "nothing runs in the background" in verdict.notices[0]) == (None, True)
    monkeypatch.setattr(registry_module, "MOST", 1)

    async def tell(_: LateHookOutput) -> None:
        return

    async with anyio.create_task_group() as group:
        group.start_soon(registry.run_background, tell)
        await anyio.wait_all_tasks_blocked()
        assert (await registry.pre_tool_use(call())).notices == ()
        assert "run in the background already" in (await registry.pre_tool_use(call())).notices[0]
        go.set()
        await anyio.wait_all_tasks_blocked()
        assert (await registry.pre_tool_use(call())).notices == (), "its place is free again"
        group.cancel_scope.cancel()


async def test_what_it_says_waits_for_the_next_turn_or_wakes_a_rested_agent() -> None:
    for terms, result, turns in (
        (IN_BACKGROUND, HandlerResult((AddContext("the build is red"),)), 1),
        (REWAKES, HandlerResult(blocked="the build is red"), 2),
    ):
        go = anyio.Event()
        world = World(ScriptedModel({"lead": [use("echo", {"text": "x"}), say("done"), say("mended")]}), tools(Echo()))
        world.hooks.add("PreToolUse", Handler(result, go=go), terms=terms)
        async with world.session() as team:
            await team.prompt("go")
            await team.quiet()
            assert "the build is red" not in str(texts(world))
            go.set()
            await anyio.wait_all_tasks_blocked()
            await team.quiet()
            assert team.state("lead").turns.count == turns
            if turns == 1:
                await team.prompt("and now?")
                await team.quiet()
            assert "the build is red" in str(texts(world))


async def test_a_skills_hook_is_heard_by_those_that_have_loaded_it_and_once_where_it_says_so() -> None:
    registry, handler = HookRegistry(), answering(AddContext("x"))
    registry.add("SessionStart", handler, terms=HookTerms(skill="release"), source="skill")
    registry.add("SessionStart", handler, terms=HookTerms(agent_type="coder"), source="agent")
    registry.add("SessionStart", handler, terms=HookTerms(once=True))
    for by, times in (
        (Caller(), 1),
        (Caller(), 0),
        (Caller(skills=("other", "release")), 1),
        (Caller(agent_type="coder", skills=("release",)), 2),
    ):
        assert len((await registry.fire(SessionStart(by=by))).context) == times


@pytest.mark.slow
async def test_a_stop_hook_reads_what_begins_by_itself() -> None:
    world = World(ScriptedModel({"lead": [say("done")]}), tools(Echo()))
    seen: list[Stop] = []
    world.hooks.add("Stop", seen.append)
    nightly = Schedule(id="s1", cron="0 3 * * *", prompt="check the backups")
    async with world.session() as team:
        await world.store.commit(*(Put(schedule_key("s1", one.id), one.encode()) for one in (nightly, OTHERS)))
        await team.prompt("go")
        await team.quiet()
    (event,) = seen
    assert event.schedules == ({"id": "s1", "schedule": "0 3 * * *", "recurring": True, "prompt": "check the backups"},)
    assert event.background == ()
