"""State changes by events of model calls and of context management. Pure; `apply.py` selects the rule of an event.

Cost of edits, summaries and re-reads for an agent: stored next to its state, folded from its events. Pure.

It decides nothing; the stage `economic` decides with these figures.
"""

from __future__ import annotations

from collections.abc import Mapping

from callboard.core.agent.changes import Rule, billed, queue, said_to
from callboard.core.agent.plan_mode import with_mode_reminder
from callboard.core.agent.state import AgentState, CallState
from callboard.core.context.cache.cost import edit_price, is_warm, prices_of, step_price
from callboard.core.context.cache.health import CacheHealth, health_seen, thrash_told
from callboard.core.context.cache.rereads import called, taken_away
from callboard.core.context.cache.tracker import cache_seen, edit_made, step_made
from callboard.core.context.project_instructions import noted_after
from callboard.core.context.reminders import MODE, told_after
from callboard.core.context.stage_input import failed_at, still_failed
from callboard.core.context.view.conversation import add_assistant, counted, edited, size, usage_seen
from callboard.core.context.view.undo import asked_for, spared_after
from callboard.core.frozen import replace
from callboard.core.recovery import retry_policy as rec
from callboard.core.recovery.retry_policy import model_in_use
from callboard.core.replies import GOES_ON, going_on
from callboard.types import events as ev
from callboard.types.events import ContextEdited, ModelReplied
from callboard.types.messages import Placed, SummaryWanted
from callboard.types.records import Usage


def _called(state: AgentState, e: ev.ModelCalled) -> AgentState:
    if e.purpose == "summary":
        return state
    recovery = replace(state.recovery, waiting_until=0.0, parked=False)
    return replace(state, call=e, asked=state.asked + 1, heard=0, recovery=recovery)


def _replied(state: AgentState, e: ev.ModelReplied) -> AgentState:
    cut = e.stop_reason == "max_tokens"
    paused = e.stop_reason in GOES_ON
    conversation = usage_seen(state.conversation, e.usage)
    turn = state.turn
    if turn:
        spoken = turn.said.after(e.blocks, e.stop_reason, e.trimmed)
        turn = replace(turn, steps=turn.steps + 1, usage=turn.usage.plus(e.usage), said=spoken, last_call=False)
    if e.blocks:
        model = state.call.model if state.call else e.model
        conversation = add_assistant(
            conversation, state.seq + 1, e.blocks, at=e.at, turn=turn.id if turn else "", by=model
        )
    return replace(
        reply_booked(state, e),
        call=None,
        ordinal=e.ordinal,
        conversation=conversation,
        turn=turn,
        calls=tuple(CallState(call) for call in e.calls),
        recovery=rec.on_reply(
            state.recovery, cut=cut, cut_call=e.cut_call, paused=paused, react_limit=state.me.react_limit
        ),
        wants_reply=paused,
        stop_reason=e.stop_reason,
        last_fault="",
        usage=state.usage.plus(e.usage),
        cache=cache_seen(state.cache, e.usage, e.at, state.conversation.revision),
        health=health_after(state, e),
        batch="",
        steps=state.steps + 1,
        steps_since_todo=state.steps_since_todo + 1,
    )


def _reply_dropped(state: AgentState, e: ev.ReplyDropped) -> AgentState:
    recovery = replace(state.recovery, cut_call=e.cut_call, cut_characters=e.cut_characters)
    return billed(replace(state, call=None, ordinal=e.ordinal, wants_reply=True, recovery=recovery), e.usage)


def _reply_interrupted(state: AgentState, e: ev.ReplyInterrupted) -> AgentState:
    conversation = state.conversation
    if e.text.strip():
        blocks = ({"type": "text", "text": e.text.rstrip()},)
        conversation = add_assistant(
            conversation, state.seq + 1, blocks, at=e.at, turn=state.turn.id if state.turn else ""
        )
        if state.turn and state.turn.said.seam is not None:  # the person has seen it as the rest of what came before
            state = replace(state, turn=replace(state.turn, said=state.turn.said.after(blocks, "")))
    return replace(state, call=None, ordinal=e.ordinal, conversation=conversation, wants_reply=False)


def _call_failed(state: AgentState, e: ev.CallFailed) -> AgentState:
    state = billed(state, e.fault.usage) if e.fault.usage else state
    if e.purpose == "summary":
        return state
    return replace(state, call=None, recovery=rec.on_failed(state.recovery, e), last_fault=e.fault.kind)


def _retry_planned(state: AgentState, e: ev.RetryPlanned) -> AgentState:
    if e.purpose == "summary":
        return replace(state, summary_until=e.until)
    return replace(state, recovery=rec.on_retry(state.recovery, e.until, e.parked, e.at))


def _switched(state: AgentState, e: ev.ModelSwitched) -> AgentState:
    if e.purpose == "summary":
        return state
    return replace(state, recovery=rec.on_switched(state.recovery, e.model))


def _learned(state: AgentState, e: ev.LimitsLearned) -> AgentState:
    stated = {"max_output": e.max_output, "window": e.window}
    limits = state.me.limits_of(e.model).model_copy(update={k: v for k, v in stated.items() if v is not None})
    spec = state.me.model_copy(update={"models": {**state.me.models, e.model: limits}})
    return replace(state, spec=spec, recovery=rec.on_learned(state.recovery))


def _raised(state: AgentState, e: ev.OutputRaised) -> AgentState:
    return replace(state, recovery=replace(state.recovery, output_limit=e.limit, escalated=True))


def _continued(state: AgentState, e: ev.ContinuationAsked) -> AgentState:
    text = rec.SMALLER_PROMPT.format(call=e.call) if e.call else rec.CONTINUATION_PROMPT
    prompt = Placed(data={"type": "text", "text": text}, source="reminder")
    state = replace(state, recovery=replace(state.recovery, continuations=e.count, cut=False))
    return said_to(state, (prompt,), e.at)


def _react_asked(state: AgentState, e: ev.ReactAsked) -> AgentState:
    return replace(state, recovery=replace(state.recovery, failure=None, react=True, reacted=True))


def _edited(state: AgentState, e: ev.ContextEdited) -> AgentState:
    if e.undoes:
        return edit_booked(state, _undone(state, e), e)
    state = billed(state, e.usage) if e.usage.prompt_tokens or e.usage.output_tokens else state
    if not e.edits:
        faulty = state.faulty | {e.stage} if e.why else state.faulty
        return replace(_compacted(state, e), tried=state.tried | {(e.stage, e.revision)}, faulty=faulty)
    by = f"{e.stage}/{e.trigger}"
    after = replace(
        _compacted(state, e),
        conversation=edited(state.conversation, e.edits),
        tried=still_failed(state.tried),
        skipped=frozenset(),
        batch=e.stage,
        compactions=state.compactions + 1,
        compacted={**state.compacted, by: state.compacted.get(by, 0) + 1},
        spared=spared_after(state.spared, e) if state.spared else (),
        told=told_after(state.told, e.edits),
        noted=noted_after(state.noted, e.edits),
    )
    if after.turn is not None and MODE in state.told and MODE not in after.told:
        after = with_mode_reminder(after)
    return _reminded_of_part(state, edit_booked(state, after, e))


def _reminded_of_part(before: AgentState, state: AgentState) -> AgentState:
    """Show the model the end of a reply that is to be continued again, if the edits removed that part of the reply."""
    spoken = state.turn.said if state.turn else None
    if spoken is None or spoken.seam is None or not state.wants_reply:
        return state
    part = next((message.id for message in reversed(before.conversation.messages) if message.role == "assistant"), None)
    if any(message.id == part for message in state.conversation.messages):
        return state
    return queue(state, going_on(spoken.text))


def _compacted(state: AgentState, e: ev.ContextEdited) -> AgentState:
    """Clear the request that asked for this compaction."""
    turn = replace(state.turn, summaries_failed=0) if state.turn and state.summary and e.edits else state.turn
    recovery = replace(state.recovery, react=False) if e.trigger == "reactive" else state.recovery
    state = replace(state, turn=turn, recovery=recovery)
    return _summary_over(_compact_done(state) if e.trigger == "manual" else state)


def _compact_done(state: AgentState) -> AgentState:
    """End the requested compaction. If the `compact` tool requested it, the turn may end too."""
    ends = state.compact is not None and state.compact_by == "tool" and state.me.after_compact == "end_turn"
    turn = replace(state.turn, ending=True) if state.turn and ends else state.turn
    return replace(state, compact=None, turn=turn)


def _summary_over(state: AgentState) -> AgentState:
    return replace(state, summary=None, summary_transcript="", summary_halted=False, summary_until=0.0)


def _summary_began(state: AgentState, e: ev.SummaryBegan) -> AgentState:
    return replace(state, summary=e.wanted, summary_transcript=e.transcript, summaries=state.summaries + 1)


def _summary_failed(state: AgentState, e: ev.SummaryFailed) -> AgentState:
    if e.skipped is not None:
        return _summary_skipped(state, e.skipped)
    state = billed(state, e.usage)
    turn = replace(state.turn, summaries_failed=state.turn.summaries_failed + 1) if state.turn else None
    request = state.summary
    tried = state.tried | {failed_at(request, state.conversation.revision)} if request else state.tried
    state = replace(state, turn=turn, tried=tried)
    return _summary_over(_compact_done(state) if request and request.trigger == "manual" else state)


def _summary_skipped(state: AgentState, skipped: SummaryWanted) -> AgentState:
    """Settle a skipped summary: a manual request is done; the pipeline does not ask again before the next edit
    or turn.
    """
    if skipped.trigger == "manual":
        return _compact_done(state)
    return replace(state, skipped=state.skipped | {failed_at(skipped, state.conversation.revision)})


def _counted(state: AgentState, e: ev.TokensCounted) -> AgentState:
    if e.tokens is None and e.until is not None:
        return replace(state, uncounted_until=e.until)
    if e.tokens is None or e.revision != state.conversation.revision:
        return replace(state, uncountable=state.uncountable or e.tokens is None)
    return replace(state, conversation=counted(state.conversation, e.tokens))


def health_after(state: AgentState, e: ev.ModelReplied) -> CacheHealth:
    """Return the agent's cache health after this reply."""
    call = state.call
    limits = state.me.limits_of(call.model if call else e.model)
    return health_seen(state.health, e.usage, limits, call.at if call else e.at)


def _thrashed(state: AgentState, e: ev.CacheThrash) -> AgentState:
    return replace(state, health=thrash_told(state.health))


CALL_RULES: Mapping[type, Rule] = {
    ev.ModelCalled: _called,
    ev.ModelReplied: _replied,
    ev.ReplyDropped: _reply_dropped,
    ev.ReplyInterrupted: _reply_interrupted,
    ev.CallFailed: _call_failed,
    ev.RetryPlanned: _retry_planned,
    ev.ModelSwitched: _switched,
    ev.OutputRaised: _raised,
    ev.LimitsLearned: _learned,
    ev.ContinuationAsked: _continued,
    ev.ContextEdited: _edited,
    ev.SummaryBegan: _summary_began,
    ev.SummaryFailed: _summary_failed,
    ev.ReactAsked: _react_asked,
    ev.TokensCounted: _counted,
    ev.CacheThrash: _thrashed,
}
"""Model calls, recovery, edits and summaries."""


def reply_booked(state: AgentState, e: ModelReplied) -> AgentState:
    """Return the state before a reply, with the cost of the request and the reply's calls added."""
    limits = state.me.limits_of(state.call.model if state.call else e.model)
    forgotten = called(state.forgotten, e.calls, state.steps + 1)
    charged = 0.0
    if forgotten.rereads > state.forgotten.rereads:
        reread = forgotten.reread_tokens - state.forgotten.reread_tokens
        whole = size(state.conversation)
        # The step that asked, and the storing of what it brings.
        charged = step_price(prices_of(limits), whole + reread, whole) + limits.price_output * e.usage.output_tokens
    cycle = step_made(state.cycle, state.conversation.messages, limits, charged)
    return replace(state, cycle=cycle, forgotten=forgotten)


def edit_booked(before: AgentState, after: AgentState, e: ContextEdited) -> AgentState:
    """Return the state after an edit of the view, with its cost and savings added."""
    old = before.conversation.messages
    new = after.conversation.messages
    if not e.edits or old == new:
        return after
    limits = before.me.limits_of(model_in_use(before.recovery, before.me))
    start, _ = new.span(min(edit.message for edit in e.edits), new[-1].id)
    behind = sum(message.tokens for message in new[start:])
    # What an edit before it has changed at this same moment is paid for already.
    warm = not before.cycle.touched and is_warm(before.cache.used_at, e.at, limits.cache_ttl)
    price = edit_price(prices_of(limits), behind, warm=warm) + _price_of(e.usage, before)
    cycle = edit_made(before.cycle, old, new, edits=e.edits, cost=(price, before.steps))
    return replace(after, cycle=cycle, forgotten=taken_away(before.forgotten, old, e.edits, before.steps))


def _price_of(usage: Usage, state: AgentState) -> float:
    """Return the price of a summary's calls, in the unit of these figures."""
    if usage.cost_usd:
        return usage.cost_usd * 1_000_000
    limits = state.me.limits_of(model_in_use(state.recovery, state.me))
    return limits.cost_of(usage) * 1_000_000


def undo_asked(state: AgentState, text: str) -> AgentState:
    """Return the state once a person asked to take back the edits at these journal positions."""
    positions = asked_for(text)
    return replace(state, undo=(*state.undo, positions)) if positions else state


def _undone(state: AgentState, event: ContextEdited) -> AgentState:
    """Return the state after the record of an undo, done or refused. Other requests stay open. A summary of the
    previous view that a dead process began is void."""
    pending = list(state.undo)
    if event.undoes in pending:
        pending.remove(event.undoes)
    state = replace(state, undo=tuple(pending))
    if not event.edits:
        return state
    return replace(
        state,
        conversation=edited(state.conversation, event.edits),
        tried=frozenset(),
        summary=None,
        summary_transcript="",
        summary_halted=False,
        spared=spared_after(state.spared, event),
    )
