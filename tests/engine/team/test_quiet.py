"""All is quiet only when nothing is about to be written: not while a life begins, nor while one waits for it."""

from __future__ import annotations

import pytest
from tests.engine.team.team_world import spawn, team_world

from callboard.ports.model import Delta
from callboard.testing import ScriptedModel, say, use
from callboard.types.events import Event
from callboard.types.records import Envelope

pytestmark = pytest.mark.anyio


async def test_a_fresh_conversation_has_begun_when_all_is_quiet() -> None:
    async with team_world(ScriptedModel({"lead": [say("hello")]})).session() as team:
        await team.prompt("go")
        await team.quiet()
        await team.command("new")
        await team.quiet()
        assert (await team.journal("lead", 2))[-1] == "prompt_set"


class Bug:
    """Raises once, at the end of alice's first turn."""

    def __init__(self) -> None:
        self.left = 1

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        if agent == "alice" and event.t == "turn_ended" and self.left:
            self.left -= 1
            raise ValueError("a bug")

    def on_delta(self, agent: str, delta: Delta) -> None: ...
    def on_mail(self, envelope: Envelope) -> None: ...


async def test_a_team_is_not_quiet_while_one_of_it_waits_for_its_restart() -> None:
    model = ScriptedModel({"lead": [use(*spawn("alice")), say("waiting"), say("fine")], "alice": [say("done")]})
    async with team_world(model, observers=[Bug()]).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert "agent_resumed" in await team.journal("alice")
