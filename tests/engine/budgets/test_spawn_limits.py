"""What the team has no room for is refused in the result of the call, which says what to do; nothing is made."""

from __future__ import annotations

import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.team.team_world import TeamWorld, spawn, team_world

from callboard.engine.runtime import SessionRuntime
from callboard.ports.environment import Answer
from callboard.testing import AllowAll, ScriptedModel, World, say, use
from callboard.types.agent_spec import AgentSpec
from callboard.types.records import Budget, Json, Request

pytestmark = pytest.mark.anyio

TASK: tuple[str, Json] = ("task", {"description": "d", "prompt": "p", "agent_type": "explore"})


class Small(TeamWorld):
    """A team of few agents, not deep."""

    agents, depth = 32, 3

    def runtime(self, session: str) -> SessionRuntime:
        runtime = super().runtime(session)
        runtime.max_agents, runtime.max_depth = self.agents, self.depth
        return runtime


def small(model: ScriptedModel, *, agents: int = 32, depth: int = 3) -> Small:
    world = Small(model, team_world(model).tools)
    world.agents, world.depth = agents, depth
    return world


def result_of(world: World, agent: str = "lead") -> str:
    return [request for request in world.model.requests if request.agent == agent][-1].messages[-1].decode()


async def test_a_full_team_refuses_a_teammate_and_names_who_is_idle() -> None:
    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice")), say("w"), use(*spawn("bob")), say("then alice does it")],
            "alice": [use("report", {"status": "done", "result": "here"})],
        }
    )
    world = small(model, agents=2)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert '"is_error":true' in result_of(world)
        assert "the team is full (2 agents, team.max_agents): give the work to one that is idle" in result_of(world)
        assert "request_shutdown first, for example alice" in result_of(world)
        assert sorted(row.name for row in team.team.runtime.rows.agents()) == ["alice", "lead"]
        assert team.state("lead").turns.last_text == "then alice does it"


@pytest.mark.parametrize("call", [spawn("alice"), TASK], ids=["spawn_teammate", "task"])
async def test_nobody_is_started_deeper_than_the_limit(call: tuple[str, Json]) -> None:
    world = small(ScriptedModel({"lead": [use(*call), say("myself, then")]}), depth=0)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert '"is_error":true' in result_of(world)
        told = "lead is 0 below the lead, and no agent may be deeper than 0 (team.max_depth): do this piece yourself"
        assert told in result_of(world)
        assert [row.name for row in team.team.runtime.rows.agents()] == ["lead"]


async def test_a_subagent_of_a_teammate_stands_one_deeper_than_it() -> None:
    script = {"lead": [use(*spawn("alice")), say("w"), say("ok")], "alice": [use(*TASK), say("did it myself")]}
    world = small(ScriptedModel(script), depth=1)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert "alice is 1 below the lead, and no agent may be deeper than 1" in result_of(world, "alice")
        assert sorted(row.name for row in team.team.runtime.rows.agents()) == ["alice", "lead"]


class Apart(TeamWorld):
    """A world whose subagents work in a git worktree."""

    def spec_of(self, agent_type: str, name: str, parent: AgentSpec | None) -> AgentSpec:
        spec = super().spec_of(agent_type, name, parent)
        return spec.model_copy(update={"isolation": "worktree"}) if spec.kind == "subagent" else spec


async def test_an_agent_whose_worktree_cannot_be_made_does_not_count() -> None:
    """The session has no git repository, so the subagent is refused, and the one agent of the budget is left."""
    model = ScriptedModel({"lead": [use(*TASK), use(*spawn("bob")), say("ok")]}, end="done")
    async with Apart(model, team_world(model).tools, budget=Budget(agents=1)).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert "works in a git worktree, and this session has none" in str(model.requests[1].messages[-1])
        assert sorted(row.name for row in team.team.runtime.rows.agents()) == ["bob", "lead"]


class Once:
    """Approves the first, and rejects all others."""

    def __init__(self) -> None:
        self.asked: list[Request] = []

    async def answer(self, request: Request) -> Answer | None:
        self.asked.append(request)
        return Answer("approved" if len(self.asked) == 1 else "rejected", "person")


async def test_an_approval_is_used_once_and_the_same_call_asks_again() -> None:
    touch, person = Echo(name="write_file", effect="unknown"), Once()
    same: tuple[str, Json] = ("write_file", {"text": "x"})
    model = ScriptedModel({"lead": [use(*same), use(*same), say("only once, then")]})
    world = team_world(model, touch, approvers=[person], judge=AllowAll(ask=["write_file"]))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert touch.ran == [{"text": "x"}], "what was approved ran, and nothing else on the same word"
        assert [one.kind for one in person.asked] == ["permission", "permission"]
        first, second = person.asked
        assert first.payload["input"] == second.payload["input"], "the premise: it is the very same thing"
        assert first.id != second.id
        assert "Permission denied" in result_of(world)
