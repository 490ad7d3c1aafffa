"""What stays in the memory of a process when the life of an agent has ended."""

from __future__ import annotations

import gc

import pytest
from tests.engine.team.team_world import team_world

from callboard.core.agent.state import without_history
from callboard.core.keys import mailbox
from callboard.engine.agent_runtime import AgentRuntime
from callboard.testing import ScriptedModel, say, use
from callboard.types.records import Json

pytestmark = pytest.mark.anyio

RESULT = "It is in the cellar."


def subagent(what: str) -> tuple[str, Json]:
    """A call of the tool that starts a subagent."""
    return "task", {"description": what, "prompt": f"find {what}", "agent_type": "explore"}


async def test_the_runtime_of_an_ended_subagent_is_freed_and_its_result_and_usage_stay() -> None:
    model = ScriptedModel({"lead": [use(*subagent("a"), subagent("b")), say("found")]}, end=RESULT)
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        gc.collect()
        runtime = team.team.runtime
        assert [one.name for one in gc.get_objects() if isinstance(one, AgentRuntime) and one.runtime is runtime] == [
            "lead"
        ]
        assert sorted(life.row.kind for life in team.team.lives()) == ["lead", "subagent", "subagent"]
        for name in team.team.past:
            assert await team.team.wait_ended(name, 1) == ("done", RESULT)
            assert team.state(name).budget.usage.output_tokens > 0
            runtime.mailboxes.note_sent(mailbox(team.id, name, 1), 9)
            assert runtime.mailboxes.load(mailbox(team.id, name, 1)).waiting == 0, "its mail is dead letters"


async def test_an_ended_life_shares_what_it_has_in_common_with_others() -> None:
    model = ScriptedModel({"lead": [use(*subagent("a"), subagent("b")), say("found")]}, end=RESULT)
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        first, second = (team.state(name) for name in team.team.past)
        assert first.identity.spec is not None
        assert second.identity.spec is not None
        assert first.identity.spec.model_fields_set is second.identity.spec.model_fields_set
        shared = {name for name, part in vars(first).items() if part is vars(second)[name]}
        assert {"compaction", "costs"} <= shared
        assert without_history(first) == first
