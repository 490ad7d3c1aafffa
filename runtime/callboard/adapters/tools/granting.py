"""The budget that an agent may give to one that it starts: an object in the input, and what comes of it.

Nobody gives more than they have left: that is refused with what there is. An agent for which no budget above has room
is refused by the budget's name, with the event that says so.
"""

from __future__ import annotations

from pydantic import Field

from callboard.adapters.tools.store_tool import Input
from callboard.core.budget.tree import used_up
from callboard.ports.tool import ToolContext, ToolOutcome
from callboard.words.events import BudgetReached
from callboard.words.specs import AgentSpec
from callboard.words.values import Budget


class Grant(Input):
    """What the new agent may use in all, with all that it starts."""

    cost_usd: float | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0, description="Of all its model calls, input and output")
    steps: int | None = Field(default=None, ge=0, description="Model calls")
    seconds: float | None = Field(default=None, ge=0)

    def value(self) -> Budget:
        """The same as a budget."""
        return Budget.model_validate(self.model_dump())


def granted(spec: AgentSpec, given: Grant, context: ToolContext) -> AgentSpec | ToolOutcome:
    """The spec of the new agent with its budget, or the refusal as a result. Raises `ToolRefused`."""
    found = context.spawner.grant(spec, given.value())
    if not isinstance(found, BudgetReached):
        return found
    why = used_up(found.budget, found.kind, found.limit, found.spent, found.wanted)
    text = f"not started: {why}. Do it yourself, or say what is left undone"
    return ToolOutcome(text, is_error=True, events=(found,), data={"budget": found.budget, "kind": found.kind})
