"""A person raises the budget of one agent: it goes on, in this process and in the next, and nothing else changes."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.budgets.test_budgets import LOOK, of
from tests.engine.team.team_world import spawn, team_world

from callboard.core.budgets.tree import raise_limits
from callboard.testing import ScriptedModel, say, use
from callboard.types.records import Budget

pytestmark = pytest.mark.anyio

_LIMIT = st.none() | st.integers(0, 9)
_BUDGETS = st.builds(Budget, tokens=_LIMIT, steps=_LIMIT, agents=_LIMIT)


@given(_BUDGETS, _BUDGETS)
def test_a_raise_limits_nothing_anew_and_lowers_nothing(budget: Budget, more: Budget) -> None:
    after = raise_limits(budget, more)
    for kind in Budget.model_fields:
        old, new, now = getattr(budget, kind), getattr(more, kind), getattr(after, kind)
        assert (now is None) == (old is None)
        assert old is None or now == max(old, new if new is not None else old)
    assert raise_limits(after, more) == after, "told twice it counts once"


async def test_an_agent_whose_budget_is_raised_goes_on_and_a_resume_keeps_it() -> None:
    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice", budget={"steps": 2})), *[say("I see")] * 9],
            "alice": [use(LOOK), say("cut short"), use(LOOK), say("and now it is done"), say("again"), say("never")],
        }
    )
    world = team_world(model)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        await team.prompt("more", to="alice")
        await team.quiet()
        assert (len(of(model, "alice")), team.state("alice").turns.last_reason) == (2, "limit")
        await team.command("budget", to="alice", text='{"steps": 5}')
        await team.prompt("go on", to="alice")
        await team.quiet()
        assert team.state("alice").turns.last_text == "and now it is done"
        assert team.team.runtime.budgets.tree["alice"].budget == Budget(steps=5)
    async with world.session(resume=True) as team:
        await team.prompt("once more", to="alice")
        await team.prompt("and again", to="alice")
        await team.quiet()
        assert team.state("alice").me.budget == Budget(steps=5)
        assert len(of(model, "alice")) == 5, "the raised limit holds, and is one"


async def test_what_is_no_budget_changes_nothing() -> None:
    model = ScriptedModel({"lead": [use(*spawn("alice", budget={"steps": 2})), say("w")], "alice": [say("here")]})
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        await team.command("budget", to="alice", text="as much as it likes")
        await team.quiet()
        assert team.state("alice").me.budget == Budget(steps=2)


async def test_whoever_waits_for_room_looks_again_when_a_budget_is_raised() -> None:
    model = ScriptedModel({"lead": [use(*spawn("alice", budget={"steps": 9})), say("w")], "alice": [say("here")]})
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        budgets, woken = team.team.runtime.budgets, list[str]()

        async def waits() -> None:
            await budgets.wait_for_room()
            woken.append("waited")

        async with anyio.create_task_group() as group:
            group.start_soon(waits)
            await anyio.wait_all_tasks_blocked()
            budgets.wake_later(lambda: woken.append("called"))
            await team.command("budget", to="alice", text='{"steps": 12}')
            with anyio.fail_after(30):
                await team.quiet()
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        assert sorted(woken) == ["called", "waited"]
