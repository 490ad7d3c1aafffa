"""A session under each preset, and under a person's own stage: it runs to its end, and every request is one that the
service accepts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest
from tests.adapters.models.rehearsal_requests import RULES
from tests.engine.agent.test_one_agent import Echo, tools

from callboard.adapters.models.rehearsal.strict import check_request
from callboard.core.context.pipeline import PRESETS
from callboard.core.context.view.conversation import Conversation
from callboard.core.context.view.messages import is_result
from callboard.ports.model import ModelRequest
from callboard.testing import ScriptedModel, World, say, use
from callboard.testing.world import VirtualLoop
from callboard.types.events import ContextEdited, Event
from callboard.types.messages import Edit
from callboard.types.records import Json

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Return one loop: what is compared here is made above anyio."""
    return "asyncio", {"loop_factory": VirtualLoop}


LIMIT = 12_000
"""Tokens that the messages may take."""


def refusals(world: World) -> list[object]:
    """What the service has against the requests of a session."""
    return [error for request in world.model.requests if (error := check_request(body(request), RULES))]


def body(request: ModelRequest) -> Json:
    parts = json.loads(b"[" + b",".join(request.messages) + b"]")
    given = {"model": "rehearsal", "max_tokens": 4_000, "messages": parts, "system": json.loads(request.system)}
    listed = json.loads(request.tools)
    return {**given, "tools": listed} if listed else given


async def words(given: Json) -> str:
    kind, length = str(given.get("text", "")).split()
    return f"{kind} " * (int(length) // (len(kind) + 1))


def steps() -> list[Any]:
    """A turn of many small steps, one of large results, one of talk."""
    small = [use("echo", {"text": "small 300"}) for _number in range(30)]
    also = ("echo", {"text": "漢字 2000"})
    large = [use("echo", {"text": "large 9000"}, also, text="because " * 500) for _number in range(8)]
    giant = [use("echo", {"text": "giant 70000"}, ("echo", {"text": "giant 70000"}), ("echo", {"text": "giant 70000"}))]
    return [*small, say("Small done."), *large, say("Large done."), *giant, *large, say("All done.")]


class Edits:
    """Listens to what was edited."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.told: list[str] = []

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        if isinstance(event, ContextEdited):
            self.stages += [event.stage] if event.edits else []
            self.told += [event.why] if event.why and not event.edits else []

    def on_delta(self, agent: str, delta: object) -> None:
        """Not listened to."""

    def on_mail(self, envelope: object) -> None:
        """Not listened to."""


def world_under(pipeline: Any, edits: Edits, script: list[Any] | None = None) -> World:
    spec: Json = {"context_limit": LIMIT, "pipeline": pipeline, "stuck_after": 0}
    model = ScriptedModel({"lead": script or steps()})
    return World(model, tools(Echo(act=words)), spec=spec, observers=[edits])


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
async def test_a_session_under_each_preset_comes_to_its_end_with_requests_that_are_accepted(preset: str) -> None:
    edits = Edits()
    world = world_under(PRESETS[preset], edits)
    async with world.session() as team:
        for prompt in ("Take small steps.", "Take large ones.", "Now all of it."):
            await team.prompt(prompt)
            await team.quiet()
        state = team.state("lead")
        assert (state.turns.last_reason, state.turns.last_text) == ("end", "All done.")
        assert state.context.conversation.tokens <= LIMIT
        assert refusals(world) == []
        view = b"\n".join(world.model.requests[-1].messages).decode()
        assert all(prompt in view for prompt in ("Take small steps.", "Now all of it."))
    assert set(edits.stages) >= {one.stage for one in PRESETS[preset]} - {"persist_large_results", "summarize_all"}
    assert any(stage.startswith("summarize") for stage in edits.stages), edits.stages
    assert "persist_large_results" in edits.stages
    assert all(PurePosixPath(path).parent.name in ("lead", "transcripts") for path in world.archive.files)


@pytest.mark.slow
async def test_regions_are_named_by_the_turns_of_the_whole_life() -> None:
    world = world_under(PRESETS["regional"], Edits())
    async with world.session() as team:
        for prompt in ("Take small steps.", "Take large ones.", "Now all of it."):
            await team.prompt(prompt)
            await team.quiet()
    view = b"\n".join(world.model.requests[-1].messages).decode()
    assert "[compacted summary of turns 1-1]" in view or "[compacted summary of turns 2-2]" in view


def clear_all(view: Conversation, budget: int, now: float) -> list[Edit]:
    """A person's own stage: answered results go as soon as there are ten."""
    found = [
        Edit(kind="cleared", message=one.id, last=one.id, block=place, text="(gone)")
        for one in view.messages[:-1]
        for place, block in enumerate(one.blocks)
        if is_result(block) and block.tokens > 50
    ]
    return found if len(found) >= 10 else []


def shaky(view: Conversation, budget: int, now: float) -> list[Edit]:
    """One that fails once there is something to do."""
    if len(view.messages) > 9:
        raise ZeroDivisionError("budget")
    return []


async def test_a_persons_own_stage_edits_like_any_other() -> None:
    edits = Edits()
    world = world_under(({"stage": "mine:clear"},), edits)
    async with world.session() as team:
        team.team.runtime.services = replace(team.team.runtime.services, stages={"mine:clear": clear_all})
        await team.prompt("Take small steps.")
        await team.quiet()
        assert team.state("lead").turns.last_text == "Small done."
    assert edits.stages == ["mine:clear"] * 2
    assert edits.told == []
    assert refusals(world) == []


async def test_one_that_fails_is_told_once_and_the_agent_lives_on() -> None:
    edits = Edits()
    world = world_under(({"stage": "mine:shaky"}, {"stage": "clear_old_results", "params": {"over": 0.3}}), edits)
    async with world.session() as team:
        team.team.runtime.services = replace(team.team.runtime.services, stages={"mine:shaky": shaky})
        for prompt in ("Take small steps.", "Take large ones."):
            await team.prompt(prompt)
            await team.quiet()
        assert team.state("lead").turns.last_text == "Large done."
    assert edits.told == ["ZeroDivisionError: budget"]
    assert len(edits.stages) > 2
    assert refusals(world) == []
