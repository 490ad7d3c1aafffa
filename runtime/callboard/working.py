"""Pieces of work that a program hands to agents by itself, without a model in between: what workflows stand on.

Each runs as a subagent of the lead, under its rules and budgets, and is found again by its `call`: after a crash the
same piece of work is the same agent, which goes on from its own journal.
"""

from __future__ import annotations

from dataclasses import dataclass

from callboard.core.names import subagent_suffix
from callboard.core.toolset import tools_for
from callboard.engine.supervision.team import Team
from callboard.words.errors import LimitReached, ToolRefused, UsageError
from callboard.words.specs import AgentSpec
from callboard.words.values import Budget


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work."""

    call: str
    """What names it for ever."""
    agent_type: str
    prompt: str
    role: str = ""
    """A few words, shown to the person."""
    model: str = ""
    """One that the session knows; empty: as its type says."""
    budget: Budget = Budget()

    @property
    def agent(self) -> str:
        """The name of the agent that does it."""
        return self.agent_type.replace(":", "-")[:40] + subagent_suffix(self.call)


async def work(team: Team, asked: Work) -> tuple[str, str]:
    """Have it done, or wait for whom it was given to already: (outcome, last words).

    Raises `UsageError` for an agent type or model that there is not, and `LimitReached` where no budget has room.
    """
    lead = team.agent("lead")
    if lead is None or lead.spawner is None:
        raise UsageError("the lead of this session has ended: start a new session")
    try:
        spec = _spec(lead.spawner.spec_for(asked.agent_type, asked.agent, lead.state.me), asked)
        granted = lead.spawner.grant(spec, asked.budget)
    except ToolRefused as refused:
        raise UsageError(str(refused)) from refused
    if not isinstance(granted, AgentSpec):
        words = f"the budget of {granted.budget} has no room for another agent: {granted.kind} {granted.limit:g}"
        raise LimitReached(words, granted.kind)
    return await lead.spawner.subagent(granted, asked.prompt, call=asked.call)


def _spec(spec: AgentSpec, asked: Work) -> AgentSpec:
    if asked.model and asked.model not in spec.models:
        raise UsageError(f"the session knows no model {asked.model!r}; it knows {', '.join(sorted(spec.models))}")
    return spec.model_copy(
        update={
            "kind": "subagent",
            "parent": "lead",
            "role": asked.role,
            "tools": tools_for("subagent", spec.tools).names,
            "model": asked.model or spec.model,
            "plan_required": False,
            "claims_tasks": False,
        }
    )
