"""What hooks leave as it is: a journal that they say nothing to, and what they decide when the process is killed."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest
from tests.engine.agent.test_one_agent import texts
from tests.engine.hooks.test_moments import LOOK, TASK, listen, told
from tests.engine.team.team_world import TeamWorld, spawn, team_world

from callboard.core.keys import journal
from callboard.engine.recall import events_of
from callboard.testing import ScriptedModel, World, say, use
from callboard.types import hook_answers as hk
from callboard.types.hook_answers import AddContext, Deny

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> object:
    """Virtual time only; hooks are async functions, since a virtual clock jumps while threads run."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


def scenario() -> TeamWorld:
    """Something of everything: a task, a mate, a subagent, a failing call, results in parallel."""
    lead = [
        use(*TASK),
        use(*LOOK),
        use("list_tasks", {}, ("get_task", {"task_id": "no"})),
        use(*spawn("alice")),
        say("waiting"),
    ]
    return team_world(ScriptedModel({"lead": lead, "alice": [say("did it")]}, end="found"))


async def lives(world: World) -> dict[str, list[Any]]:
    """Every journal, without what depends on the moment."""
    found: dict[str, list[Any]] = {}
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        for agent in team.team.runtime.rows.agents():
            events = await events_of(world.store, journal("s1", agent.name, 1))
            found[agent.name] = [_plain(event.model_dump(mode="json")) for event in events]
    return found


def _plain(value: object) -> object:
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value).items()
        return {name: _plain(one) for name, one in fields if name not in ("at", "sent_at", "expires_at", "seq")}
    return [_plain(one) for one in cast("list[object]", value)] if isinstance(value, list) else value


async def test_hooks_that_say_nothing_change_no_journal_but_for_their_own_records() -> None:
    silent = scenario()
    heard = listen(silent, *hk.FITTING)
    with_hooks, without = await lives(silent), await lives(scenario())
    assert {type(one).__name__ for one in heard} >= {
        "SessionStart",
        "PreToolUse",
        "PostToolBatch",
        "TaskCreated",
        "Stop",
    }
    assert with_hooks.keys() == without.keys()
    for name, events in with_hooks.items():
        changes = [event["content"] or event["context"] for event in events if event["t"] == "tool_settled"]
        assert not any(changes), name
        own = [event for event in events if event["t"] not in ("stop_hook_ran", "tool_settled")]
        for event in own:
            event.update({"settled": True} if event["t"] == "tool_finished" else {})
        assert sorted(map(repr, own)) == sorted(map(repr, without[name])), name


@pytest.mark.parametrize("event", ["SessionStart", "PostToolBatch", "TaskCreated", "EnvelopeDelivered"])
async def test_what_a_hook_decides_is_asked_again_after_a_kill(event: str) -> None:
    """The process ends while the hook is asked; the next one asks it again, and heeds the answer."""
    world = team_world(ScriptedModel({"lead": [use(*TASK), say("ok")]}))
    hangs = [True]

    async def slow(_: Any) -> Any:
        if hangs[0]:
            await anyio.sleep_forever()
        return Deny("no") if event in ("TaskCreated", "PostToolBatch") else AddContext("no")

    heard = listen(world, event, says=slow)
    async with world.session() as team:
        await team.prompt("go")
        await told(heard)
    hangs[0] = False
    async with world.session(resume=True) as team:
        await team.quiet()
        state = team.state("lead")
        assert len(heard) >= 2
        if event == "TaskCreated":
            assert team.team.runtime.rows.tasks() == []
        if event == "PostToolBatch":
            assert state.turns.last_reason == "interrupted"
        else:
            assert "no" in texts(world)
