"""What an MCP server asks in the middle of a call: a durable request, whose answer goes to the server alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.mcp.server_world import ServerWorld, sent

from callboard.adapters.mcp.memory import MemoryServers
from callboard.engine.approvals.requests import answer_request
from callboard.ports.environment import Answer
from callboard.ports.store import Put
from callboard.ports.tool import CallContext, ToolOutcome
from callboard.testing import HostedSession, ScriptedModel, say, use
from callboard.types.mcp import Elicitation, ElicitationAnswer
from callboard.types.records import Json, Request

pytestmark = pytest.mark.anyio

SCHEMA: Json = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


@dataclass
class Asks(Echo):
    """A tool of a server that asks the person."""

    name: str = "mcp__shop__buy"
    effect: str = "unknown"
    answers: list[ElicitationAnswer] = field(default_factory=list[ElicitationAnswer])

    async def run(self, given: Json, context: CallContext) -> ToolOutcome:
        self.answers.append(await context.elicit(Elicitation("shop", "How old are you?", SCHEMA)))
        return ToolOutcome("bought")

    async def repair(self, given: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        return ToolOutcome("the outcome is unknown", is_error=True)


def world(tool: Asks, **more: object) -> ServerWorld:
    servers = MemoryServers()
    servers.put("shop", [tool])
    script = {"lead": [use("mcp__shop__buy", {}), say("done")]}
    return ServerWorld(ScriptedModel(script), servers=servers, **more)


async def pending(team: HostedSession) -> Request:
    board = team.team.runtime.rows
    while not (found := [one for one in board.requests() if one.status == "pending"]):
        await anyio.sleep(0.005)
    return found[0]


async def answered(team: HostedSession, text: str) -> str | None:
    request = await pending(team)
    now = team.world.clock.now()
    return await answer_request(team.world.store, team.id, request.id, Answer("answered", "person", text), now=now)


async def test_the_answer_reaches_the_server_and_never_the_model() -> None:
    tool = Asks()
    here = world(tool)
    async with here.session() as team:
        await team.prompt("buy it")
        request = await pending(team)
        assert request.subject == "the MCP server shop asks: How old are you?"
        assert (request.may_answer, request.person_only) == (("person",), True)
        assert "a whole number" in (await answered(team, "old") or "")
        assert await answered(team, "4242") is None
        await team.quiet()
        assert not team.state("lead").inbox.mail
    assert tool.answers == [ElicitationAnswer("accept", {"age": 4242})]
    assert "4242" not in sent(here)


async def test_where_nobody_can_answer_the_person_has_declined() -> None:
    tool = Asks()
    async with world(tool, spec={"ask_deadline": 0}).session() as team:
        await team.prompt("buy it")
        await team.quiet()
        assert not team.team.runtime.rows.requests()
    assert tool.answers == [ElicitationAnswer("decline")]


async def test_at_the_deadline_it_ends_and_nobody_hears_of_it_by_mail() -> None:
    tool = Asks()
    here = world(tool, spec={"ask_deadline": 0.05})
    async with here.session() as team:
        await team.prompt("buy it")
        await team.quiet()
        assert [one.status for one in team.team.runtime.rows.requests()] == ["expired"]
    assert tool.answers == [ElicitationAnswer("cancel")]
    assert "Nobody answered" not in sent(here)


async def test_an_interrupt_takes_the_question_back() -> None:
    here = world(Asks())
    async with here.session() as team:
        await team.prompt("buy it")
        await pending(team)
        await team.command("interrupt")
        await team.quiet()
        assert [one.status for one in team.team.runtime.rows.requests()] == ["withdrawn"]


async def test_a_question_whose_process_died_is_taken_back_at_the_resume() -> None:
    tool = Asks()
    here = world(tool)
    async with here.session() as team:
        await team.prompt("buy it")
        request = await pending(team)
        key = f"s/{team.id}/request/{request.id}"
        row = await here.store.get(key)
        assert row is not None
        image = row.value
    # What a kill -9 leaves: the row as it stood, since nobody could take it back.
    assert image is not None
    await here.store.commit(Put(key, image))
    again = ServerWorld(here.model, servers=here.servers, store=here.store, clock=here.clock)
    async with again.session(resume=True) as team:
        await team.quiet()
        assert [one.status for one in team.team.runtime.rows.requests()] == ["withdrawn"]
        assert team.state("lead").turns.last_text == "done"
