"""Limits of a turn and of the session: which one stops the next model call. Pure."""

from __future__ import annotations

from callboard.core.state import AgentState, Facts
from callboard.words.specs import AgentSpec


def limit_reached(state: AgentState, facts: Facts) -> str:
    """Which limit of the turn or the session stops the next model call; empty when none does. 0 means none."""
    turn, limits = state.turn, state.me.limits
    if turn is None:
        return ""
    if limits.steps is not None and turn.steps >= limits.steps:
        return f"the limit of {limits.steps} model steps in a turn is reached"
    tokens = turn.usage.prompt_tokens + turn.usage.output_tokens
    if limits.tokens is not None and tokens >= limits.tokens:
        return f"the limit of {limits.tokens:,} tokens in a turn is reached"
    if limits.cost_usd is not None and turn.usage.cost_usd >= limits.cost_usd:
        return f"the limit of ${limits.cost_usd:.2f} in a turn is reached"
    if facts.cost_left is not None and facts.cost_left <= 0:
        return "the money limit of the session is reached"
    return ""


def out_of_time(spec: AgentSpec) -> str:
    """What a turn says that its time limit ended."""
    return f"the time limit of a turn ({spec.limits.seconds:g} s) is reached"
