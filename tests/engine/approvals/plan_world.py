"""A team in which one mate must plan first, and people who answer: at a prompt, or from another process."""

from __future__ import annotations

from dataclasses import replace

import anyio
from tests.engine.team.team_world import TeamWorld, spawn

from callboard.core.approvals.plans import PLAIN_ANSWER, AnswerDetails
from callboard.core.keys import journal, rows_prefix
from callboard.engine.approvals.requests import answer_request
from callboard.engine.recall import events_of
from callboard.ports.environment import Answer
from callboard.ports.model import Reply
from callboard.testing import HostedSession, ScriptedModel, say, use
from callboard.types.events import AnswerTaken
from callboard.types.records import Request


class AtPrompt:
    """A person at a terminal who answers when `go` is set, and is told when that was too late."""

    def __init__(self, answer: Answer | None = None) -> None:
        self._answer = answer
        self.go, self.asked = anyio.Event(), list[Request]()
        self.given, self.taken_back, self.late = 0, 0, list[str]()

    async def answer(self, request: Request) -> Answer | None:
        self.asked.append(request)
        try:
            await self.go.wait()
        except anyio.get_cancelled_exc_class():
            self.taken_back += 1
            raise
        self.given += 1
        return self._answer and replace(self._answer, refused=self.late.append)


def planner(*alice: Reply) -> ScriptedModel:
    """A lead with one teammate who may only plan at first."""
    return ScriptedModel(
        {
            "lead": [use(*spawn("alice", plan_required=True)), say("waiting"), say("done")],
            "alice": [use("submit_plan", {"plan": "# Mend\n1. read", "options": ["by hand", "by tool"]}), *alice],
        }
    )


async def rows(team: HostedSession) -> list[Request]:
    found = await team.world.store.keys(rows_prefix("s1"))
    requests = [Request.model_validate_json(row.value or b"") for row in found if "/request/" in row.key]
    return sorted(requests, key=lambda one: (one.created_at, one.revision))


async def pending(team: HostedSession, count: int = 1) -> Request:
    """The first of the plans that wait, once there are so many."""
    while len(found := [one for one in await rows(team) if one.status == "pending"]) < count:
        await anyio.sleep(0.01)
    return found[0]


async def answered(
    team: HostedSession, request: Request, status: str, by: str = "person", word: AnswerDetails = PLAIN_ANSWER
) -> str | None:
    """What another process gets that answers: None, or why its answer does not count."""
    answer = Answer(status, by, f"from {by}", word)
    return await answer_request(team.world.store, "s1", request.id, answer, now=team.world.clock.now())


async def taken(team: HostedSession, name: str = "alice") -> list[AnswerTaken]:
    """What she wrote down of answers to her plans."""
    journalled = await events_of(team.world.store, journal("s1", name, 1))
    return [one for one in journalled if isinstance(one, AnswerTaken)]


def sent(world: TeamWorld, name: str = "alice") -> str:
    """All that the model was sent for an agent, last."""
    asked = [one for one in world.model.requests if one.agent == name]
    return b"\n".join(asked[-1].messages).decode()


def reported() -> Reply:
    """The end of her work."""
    return use("report", {"status": "done", "result": "mended"})
