"""Facts of a decision: each is read when a rule first asks for it, once, and the engine can read all of them."""

from __future__ import annotations

from dataclasses import fields

import pytest
from tests.engine.team.team_world import team_world

from callboard.core.agent.decide import decide
from callboard.core.agent.state import Facts
from callboard.engine.facts import facts_of
from callboard.testing import ScriptedModel, say

pytestmark = pytest.mark.anyio


async def test_every_fact_can_be_read_and_stays_as_it_was_read_first() -> None:
    async with team_world(ScriptedModel({"lead": [say("done")]})).session() as team:
        await team.prompt("go")
        await team.quiet()
        runtime, state = team.team.runtime, team.state("lead")
        facts = facts_of(runtime, state, frozenset())
        first = {field.name: getattr(facts, field.name) for field in fields(Facts)}
        assert first["folder"], "read from the archive"
        assert {name: getattr(facts, name) for name in first} == first
        assert decide(state, facts) == decide(state, Facts(**first))
        with pytest.raises(AttributeError, match="weather"):
            getattr(facts, "weather")  # noqa: B009 - no such fact
