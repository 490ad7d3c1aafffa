"""What wakes a lead that rests: a plan that it may answer. Results stand in `test_team.py`, commands that end in
`test_background.py`."""

from __future__ import annotations

import re

import pytest
from tests.engine.team.team_world import spawn, team_world

from callboard.ports.model import ModelRequest, Reply
from callboard.testing import ScriptedModel, say, use

pytestmark = pytest.mark.anyio


def approves(request: ModelRequest) -> Reply:
    """The lead has read of a plan, and approves that one."""
    asked = re.findall(rb"req_[a-z2-7]{12}", request.messages[-1])
    return use("review_plan", {"request_id": asked[-1].decode(), "approve": True})


async def test_a_plan_wakes_an_idle_lead() -> None:
    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice", plan_required=True)), say("waiting"), approves, say("go on"), say("good")],
            "alice": [
                use("submit_plan", {"plan": "count, then sum"}),
                use("report", {"status": "done", "result": "it is seven"}),
            ],
        }
    )
    world = team_world(model)
    world.spec = {"plan_approver": "lead"}
    async with world.session() as team:
        await team.prompt("add it up")
        await team.quiet()
        assert team.state("lead").turns.last_text == "good"
        assert team.state("alice").work.reported == "it is seven"
        woken = [request for request in model.requests if request.agent == "lead"][2]
        assert b"count, then sum" in woken.messages[-1]
