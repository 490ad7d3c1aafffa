"""A person chooses another model for an agent: from its next call on, with its prices, in this process and the next."""

from __future__ import annotations

import pytest
from tests.engine.team.team_world import spawn, team_world

from callboard.core.agent.apply import apply
from callboard.core.agent.state import AgentState
from callboard.core.recovery.retry_policy import model_in_use
from callboard.engine.commands import model_command
from callboard.testing import ScriptedModel, say, use
from callboard.types.agent_spec import AgentSpec, ModelLimits
from callboard.types.events import AgentStarted, EnvelopeReceived, ModelSwitched
from callboard.types.records import Envelope

pytestmark = pytest.mark.anyio

OTHER = ModelLimits(window=50_000, max_output=4_000, price_input=7.0)


async def test_the_next_call_asks_it_and_a_resume_and_a_new_conversation_keep_it() -> None:
    model = ScriptedModel({"lead": [say("one"), say("two"), say("three"), say("four")]})
    world = team_world(model)
    command = model_command("other", OTHER)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        await team.command("model", text=command.text)
        await team.prompt("again")
        await team.quiet()
        assert [one.model for one in model.requests][1:] == ["other"]
        assert team.state("lead").me.limits_of("other") == OTHER
    async with world.session(resume=True) as team:
        await team.prompt("and again")
        await team.quiet()
        assert model.requests[-1].model == "other"


async def test_an_agent_that_is_started_afterwards_knows_what_its_parent_asks() -> None:
    model = ScriptedModel({"lead": [use(*spawn("alice")), *[say("w")] * 3], "alice": [say("here")]})
    world = team_world(model)
    async with world.session() as team:
        await team.command("model", text=model_command("other", OTHER).text)
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").me.model == "other"


def heard(state: AgentState, text: str) -> AgentState:
    envelope = Envelope(
        id="env_m", sender="person", recipient="lead", type="command", content=text, metadata={"action": "model"}, seq=1
    )
    return apply(state, EnvelopeReceived(at=2.0, envelope=envelope))


def begun() -> AgentState:
    spec = AgentSpec(name="lead", kind="lead", agent_type="lead", model="first", fallback_models=("second",))
    return apply(AgentState(), AgentStarted(at=1.0, spec=spec, session="s", incarnation=1))


def test_a_choice_also_counts_where_a_fallback_has_taken_over() -> None:
    state = apply(begun(), ModelSwitched(at=1.5, model="second"))
    assert model_in_use(state.model.recovery, state.me) == "second"
    after = heard(state, model_command("other", OTHER).text)
    assert model_in_use(after.model.recovery, after.me) == "other"


@pytest.mark.parametrize("text", ["", "other", "{}", '{"name": "other"}'])
def test_what_is_no_choice_changes_nothing(text: str) -> None:
    state = begun()
    assert heard(state, text).me == state.me
