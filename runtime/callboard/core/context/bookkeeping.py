"""What edits, summaries and re-reads cost an agent: kept beside its state, folded from its events. Pure.

It decides nothing: `economic` does, by these books.
"""

from __future__ import annotations

from callboard.core.context.cache.cost import edit_price, is_warm, prices_of, step_price
from callboard.core.context.cache.cycle import edit_made, step_made
from callboard.core.context.cache.forgotten import called, taken_away
from callboard.core.context.view.conversation import size
from callboard.core.frozen import replace
from callboard.core.recovery.turns import model_in_use
from callboard.core.state import AgentState
from callboard.words.events import ContextEdited, ModelReplied
from callboard.words.values import Usage


def reply_booked(state: AgentState, e: ModelReplied) -> AgentState:
    """The state before a reply, with what the request and the reply's calls change in the books."""
    limits = state.me.limits_of(state.call.model if state.call else e.model)
    forgotten = called(state.forgotten, e.calls, state.steps + 1)
    charged = 0.0
    if forgotten.rereads > state.forgotten.rereads:
        again = forgotten.reread_tokens - state.forgotten.reread_tokens
        whole = size(state.conversation)
        # The step that asked, and the storing of what it brings.
        charged = step_price(prices_of(limits), whole + again, whole) + limits.price_output * e.usage.output_tokens
    cycle = step_made(state.cycle, state.conversation.messages, limits, charged)
    return replace(state, cycle=cycle, forgotten=forgotten)


def edit_booked(before: AgentState, after: AgentState, e: ContextEdited) -> AgentState:
    """The state after an edit of the view, with what it cost and took away."""
    old, new = before.conversation.messages, after.conversation.messages
    if not e.edits or old == new:
        return after
    limits = before.me.limits_of(model_in_use(before.recovery, before.me))
    start, _ = new.span(min(edit.message for edit in e.edits), new[-1].id)
    behind = sum(message.tokens for message in new[start:])
    # What an edit before it has changed at this same moment is paid for already.
    warm = not before.cycle.touched and is_warm(before.cache.used_at, e.at, limits.cache_ttl)
    price = edit_price(prices_of(limits), behind, warm=warm) + _price_of(e.usage, before)
    cycle = edit_made(before.cycle, old, new, e.edits, (price, before.steps))
    return replace(after, cycle=cycle, forgotten=taken_away(before.forgotten, old, e.edits, before.steps))


def _price_of(usage: Usage, state: AgentState) -> float:
    """What a summary's calls cost, in the currency of the books."""
    if usage.cost_usd:
        return usage.cost_usd * 1_000_000
    limits = state.me.limits_of(model_in_use(state.recovery, state.me))
    return limits.cost_of(usage) * 1_000_000
