"""The budget in an agent file, and a tool's refusal if no budget has room."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.adapters.tools.tool_world import spec

from callboard.adapters.extensions.agents import load_agents
from callboard.adapters.extensions.discovery import ExtensionPaths
from callboard.adapters.tools.control import Grant, grant_budget
from callboard.types.agent_spec import AgentSpec
from callboard.types.events import BudgetReached
from callboard.types.records import Budget


@pytest.mark.parametrize(
    ("written", "budget", "told"),
    [
        ("budget: {cost_usd: 0.5, tokens: 300000, steps: 0}", Budget(cost_usd=0.5, tokens=300_000, steps=0), ""),
        ("budget: {tokens: 1.5, seconds: 60}", Budget(seconds=60), "budget.tokens"),
        ("budget: {cost_usd: -1}", Budget(), "budget.cost_usd"),
        ("budget: {steps: true}", Budget(), "budget.steps"),
        ("budget: {dollars: 1}", Budget(), "budget.dollars"),
        ("budget: 5", Budget(), "budget"),
    ],
)
def test_an_agent_file_states_a_budget_and_what_is_no_limit_is_told(
    tmp_path: Path, written: str, budget: Budget, told: str
) -> None:
    folder = tmp_path / "config" / "agents"
    folder.mkdir(parents=True)
    (folder / "thrifty.md").write_text(f"---\nname: thrifty\ndescription: It saves.\n{written}\n---\nSave.\n")
    found = load_agents(ExtensionPaths(workspace=tmp_path, config=tmp_path / "config", home=tmp_path, trusted=True))
    assert found.items["thrifty"].budget == budget
    assert [note.field for note in found.notes if note.path.endswith("thrifty.md")] == ([told] if told else [])


class FullSpawner:
    """Spawner whose budgets are exhausted."""

    def grant(self, spec: AgentSpec, asked: Budget) -> BudgetReached:
        return BudgetReached(at=1.0, budget="session", kind="agents", limit=3, spent=3, wanted=1)


class Context:
    spawner = FullSpawner()


def test_an_agent_that_no_budget_has_room_for_is_an_error_result_with_the_event() -> None:
    refused = grant_budget(spec("alice"), Grant(steps=3), Context())
    assert not isinstance(refused, AgentSpec)
    assert refused.is_error
    assert "the session may have 3 agents started in total" in str(refused.content)
    assert [event.t for event in refused.events] == ["budget_reached"]
