"""The rule of counting: near the limit, with much that was never counted, the service is asked before anything is cut.

Pure. An estimate may be a third off; a compaction that was not needed costs a summary and a cached prefix, one that
came too late a refused call. It refuses to ask where that is not at stake, and never asks twice for the same view: what
was counted is no longer uncounted, and a service that could not count is not asked again in the agent's life.
"""

from __future__ import annotations

from callboard.core.budget.limits import limit_reached
from callboard.core.context.pipeline import budget_of
from callboard.core.context.view.conversation import Conversation, held
from callboard.core.recovery import turns as rec
from callboard.core.state import AgentState, Facts
from callboard.words import steps as st
from callboard.words.values import Fault

COUNT = "count"
"""The operation's name."""
NEAR = 0.9
"""Share of the budget from which the view is near the limit."""
PART = 0.1
"""Share of the budget that must be uncounted: less cannot turn the decision, whatever it counts."""
WORTH = 20_000
"""Tokens below which the uncounted part is not worth a call."""


def count(state: AgentState, facts: Facts) -> st.Step | None:
    """Ask the service how long the request is, if that may spare a compaction or a refused call."""
    if state.turn is None or not state.wants_reply or state.uncountable or limit_reached(state, facts):
        return None
    if state.recovery.react or state.compact is not None:
        return None  # it is compacted in any case
    if facts.now < state.uncounted_until:
        return None
    budget, conv = room(state), state.conversation
    if held(conv) < NEAR * budget or uncounted(conv) < max(WORTH, PART * budget):
        return None
    return st.CountTokens(conv.revision)


def may_later(fault: Fault | None) -> bool:
    """Whether a count that failed this way may be had later; else the service has no way to count."""
    return fault is not None and fault.kind not in ("not_found", "invalid", "bad_reply")


def room(state: AgentState) -> int:
    """Tokens that the messages may take with the model in use."""
    spec = state.me
    limits = spec.limits_of(rec.model_in_use(state.recovery, spec))
    return budget_of(limits, rec.output_limit(state.recovery, spec), state.conversation.overhead, spec.context_limit)


def uncounted(conv: Conversation) -> int:
    """Estimated tokens that came (or went) since the service counted last; all, before it did."""
    return abs(conv.overhead + conv.tokens - conv.counted_base)
