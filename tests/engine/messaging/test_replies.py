"""A reply in parts reaches whoever waits for it as one text: the person, a lead, a caller of a subagent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.engine.team.team_world import spawn, team_world

from callboard.ports.model import Reply
from callboard.testing import ScriptedModel, World, say, use

pytestmark = pytest.mark.anyio

LIMITS = {"output_tokens": 8_000, "output_escalated": 8_000, "models": {"scripted": {"max_output": 8_000}}}
"""The first limit is the highest: each cut asks for a continuation."""


def parts(*texts: str) -> list[Reply]:
    """Replies that are cut, up to the last."""
    replies = [say(text) for text in texts]
    return [*(replace(one, stop_reason="max_tokens") for one in replies[:-1]), replies[-1]]


async def test_a_reply_in_parts_is_one_text() -> None:
    world = World(ScriptedModel({"lead": parts("One, ", "two", " and three.")}), spec=LIMITS)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_text == "One, two and three."
        assert team.state("lead").turns.last_reason == "end"


async def test_what_was_said_before_the_last_limit_is_not_lost() -> None:
    replies = [replace(one, stop_reason="max_tokens") for one in parts("One,", " two,", " three,")]
    world = World(ScriptedModel({"lead": replies}), spec=LIMITS)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_text == "One, two, three,"
        assert "did not end" in team.state("lead").turns.last_why


async def test_a_subagents_result_and_a_teammates_mail_hold_all_parts() -> None:
    task = ("task", {"description": "look", "prompt": "look", "agent_type": "general"})
    model = ScriptedModel({"lead": [use(*spawn("bob"), task)], "bob": parts("From ", "bob."), "general": []})
    entry = model._entry
    for_sub = parts("A long ", "answer.")

    def played(request):
        if request.agent.startswith("general"):
            return for_sub[request.ordinal - 1]
        return entry(request)

    model._entry = played
    world = team_world(model, spec=LIMITS)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
    told = b"\n".join(message for request in model.requests if request.agent == "lead" for message in request.messages)
    assert b"A long answer." in told
    assert b"From bob." in told
