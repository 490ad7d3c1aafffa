"""State changes by events of model calls and of context management. Pure; `apply.py` selects the rule of an event.

The costs of edits, summaries and re-reads are stored next to the state, folded from the events. They only inform: the
stage `economic` decides with these figures.
"""

from __future__ import annotations

from collections.abc import Mapping

from callboard.core.agent.changes import (
    Rule,
    add_to_user_message,
    add_usage,
    queue,
    with_mode_reminder,
    with_recovery,
    with_spec,
)
from callboard.core.agent.open_calls import CallState, OpenCalls
from callboard.core.agent.state import AgentState, ViewCosts
from callboard.core.context.cache.cost import edit_price, is_warm, prices_of, step_price
from callboard.core.context.cache.health import CacheHealth, after_thrash_report, health_seen
from callboard.core.context.cache.rereads import after_calls, after_edits
from callboard.core.context.cache.tracker import after_edit, after_reply, cache_seen
from callboard.core.context.project_instructions import notes_after_edits
from callboard.core.context.reminders import MODE, reminders_after_edits
from callboard.core.context.stage_input import failed_at, still_failed
from callboard.core.context.view.conversation import add_assistant, apply_edits, size, usage_seen, with_count
from callboard.core.context.view.undo import spared_after, undo_positions
from callboard.core.frozen import replace
from callboard.core.recovery import retry_policy as rec
from callboard.core.recovery.refused_blocks import LEFT_OUT
from callboard.core.recovery.retry_policy import model_in_use
from callboard.core.replies import GOES_ON, going_on
from callboard.types import events as ev
from callboard.types.events import ContextEdited, ModelReplied
from callboard.types.messages import Placed, SummaryWanted
from callboard.types.records import Usage


def _called(state: AgentState, e: ev.ModelCalled) -> AgentState:
    if e.purpose == "summary":
        return state
    recovery = state.model.recovery
    if recovery.waiting_until or recovery.parked:
        recovery = replace(recovery, waiting_until=0.0, parked=False)
    return replace(
        state,
        model=replace(state.model, call=e, turn_calls=state.model.turn_calls + 1, recovery=recovery),
        inbox=replace(state.inbox, deliveries=0) if state.inbox.deliveries else state.inbox,
    )


def _replied(state: AgentState, e: ev.ModelReplied) -> AgentState:
    cut = e.stop_reason == "max_tokens"
    paused = e.stop_reason in GOES_ON
    conversation = usage_seen(state.context.conversation, e.usage)
    turn = state.turn
    if turn:
        spoken = turn.said.with_reply(e.blocks, e.stop_reason, e.trimmed)
        turn = replace(turn, steps=turn.steps + 1, usage=turn.usage.plus(e.usage), said=spoken, last_call=False)
    if e.blocks:
        model = state.model.call.model if state.model.call else e.model
        conversation = add_assistant(
            conversation, state.seq + 1, e.blocks, at=e.at, turn=turn.id if turn else "", by=model
        )
    return replace(
        state,
        model=replace(
            state.model,
            call=None,
            ordinal=e.ordinal,
            recovery=rec.on_reply(
                state.model.recovery, cut=cut, cut_call=e.cut_call, paused=paused, react_limit=state.me.react_limit
            ),
            stop_reason=e.stop_reason,
            last_fault="",
        ),
        context=replace(state.context, conversation=conversation, wants_reply=paused),
        turn=turn,
        calls=OpenCalls.of(CallState(call) for call in e.calls),
        budget=replace(state.budget, usage=state.budget.usage.plus(e.usage)),
        costs=costs_after_reply(state, e),
        compaction=replace(state.compaction, batch="") if state.compaction.batch else state.compaction,
        turns=replace(state.turns, steps=state.turns.steps + 1),
        work=replace(state.work, steps_since_todo=state.work.steps_since_todo + 1),
    )


def _reply_dropped(state: AgentState, e: ev.ReplyDropped) -> AgentState:
    recovery = replace(state.model.recovery, cut_call=e.cut_call, cut_characters=e.cut_characters)
    model = replace(state.model, call=None, ordinal=e.ordinal, recovery=recovery)
    return add_usage(replace(state, model=model, context=replace(state.context, wants_reply=True)), e.usage)


def _reply_interrupted(state: AgentState, e: ev.ReplyInterrupted) -> AgentState:
    conversation = state.context.conversation
    if e.text.strip():
        blocks = ({"type": "text", "text": e.text.rstrip()},)
        conversation = add_assistant(
            conversation, state.seq + 1, blocks, at=e.at, turn=state.turn.id if state.turn else ""
        )
        if state.turn and state.turn.said.seam is not None:  # the user has seen it as the rest of the earlier text
            state = replace(state, turn=replace(state.turn, said=state.turn.said.with_reply(blocks, "")))
    return replace(
        state,
        model=replace(state.model, call=None, ordinal=e.ordinal),
        context=replace(state.context, conversation=conversation, wants_reply=False),
    )


def _call_failed(state: AgentState, e: ev.CallFailed) -> AgentState:
    state = add_usage(state, e.fault.usage) if e.fault.usage else state
    if e.purpose == "summary":
        return state
    recovery = rec.on_failed(state.model.recovery, e)
    return replace(state, model=replace(state.model, call=None, recovery=recovery, last_fault=e.fault.kind))


def _retry_planned(state: AgentState, e: ev.RetryPlanned) -> AgentState:
    if e.purpose == "summary":
        return replace(state, compaction=replace(state.compaction, summary_until=e.until))
    return with_recovery(state, rec.on_retry(state.model.recovery, e.until, e.parked, e.at))


def _switched(state: AgentState, e: ev.ModelSwitched) -> AgentState:
    if e.purpose == "summary":
        return state
    return with_recovery(state, rec.on_switched(state.model.recovery, e.model))


def _learned(state: AgentState, e: ev.LimitsLearned) -> AgentState:
    stated = {"max_output": e.max_output, "window": e.window}
    limits = state.me.limits_of(e.model).model_copy(update={k: v for k, v in stated.items() if v is not None})
    spec = state.me.model_copy(update={"models": {**state.me.models, e.model: limits}})
    return with_recovery(with_spec(state, spec), rec.on_learned(state.model.recovery))


def _raised(state: AgentState, e: ev.OutputRaised) -> AgentState:
    return with_recovery(state, replace(state.model.recovery, output_limit=e.limit, escalated=True))


def _continued(state: AgentState, e: ev.ContinuationAsked) -> AgentState:
    text = rec.SMALLER_PROMPT.format(call=e.call) if e.call else rec.CONTINUATION_PROMPT
    prompt = Placed(data={"type": "text", "text": text}, source="reminder")
    state = with_recovery(state, replace(state.model.recovery, continuations=e.count, cut=False))
    return add_to_user_message(state, (prompt,), e.at)


def _react_asked(state: AgentState, e: ev.ReactAsked) -> AgentState:
    return with_recovery(state, replace(state.model.recovery, failure=None, react=True, reacted=True))


def _edited(state: AgentState, e: ev.ContextEdited) -> AgentState:
    if e.undoes:
        return edit_booked(state, _undone(state, e), e)
    state = add_usage(state, e.usage) if e.usage.prompt_tokens or e.usage.output_tokens else state
    compaction = state.compaction
    if not e.edits:
        after = _compacted(state, e)
        faulty = compaction.faulty | {e.stage} if e.why else compaction.faulty
        tried = compaction.tried | {(e.stage, e.revision)}
        return replace(after, compaction=replace(after.compaction, tried=tried, faulty=faulty))
    by = f"{e.stage}/{e.trigger}"
    after = _compacted(state, e)
    if e.stage == LEFT_OUT:
        after = with_recovery(after, rec.on_left_out(after.model.recovery))
    after = replace(
        after,
        context=replace(
            after.context,
            conversation=apply_edits(state.context.conversation, e.edits),
            reminders=reminders_after_edits(state.context.reminders, e.edits),
            notes=notes_after_edits(state.context.notes, e.edits),
        ),
        compaction=replace(
            after.compaction,
            tried=still_failed(compaction.tried),
            skipped=frozenset(),
            batch=e.stage,
            count=compaction.count + 1,
            by_stage={**compaction.by_stage, by: compaction.by_stage.get(by, 0) + 1},
            spared=spared_after(compaction.spared, e) if compaction.spared else (),
        ),
    )
    if after.turn is not None and MODE in state.context.reminders and MODE not in after.context.reminders:
        after = with_mode_reminder(after)
    return _reminded_of_part(state, edit_booked(state, after, e))


def _reminded_of_part(before: AgentState, state: AgentState) -> AgentState:
    """Remind the model of the end of a reply that is to be continued, if the edits removed that part of the reply.

    The reminder is added to the open user message.
    """
    spoken = state.turn.said if state.turn else None
    if spoken is None or spoken.seam is None or not state.context.wants_reply:
        return state
    earlier = reversed(before.context.conversation.messages)
    part = next((message.id for message in earlier if message.role == "assistant"), None)
    if any(message.id == part for message in state.context.conversation.messages):
        return state
    return queue(state, going_on(spoken.text))


def _compacted(state: AgentState, e: ev.ContextEdited) -> AgentState:
    """Clear the request that asked for this compaction."""
    turn = state.turn
    if turn and state.compaction.summary and e.edits:
        turn = replace(turn, summaries_failed=0)
    recovery = replace(state.model.recovery, react=False) if e.trigger == "reactive" else state.model.recovery
    state = replace(state, turn=turn, model=replace(state.model, recovery=recovery))
    return _summary_over(_compact_done(state) if e.trigger == "manual" else state)


def _compact_done(state: AgentState) -> AgentState:
    """End the requested compaction. If the `compact` tool requested it, the turn may end too."""
    request = state.compaction
    ends = request.focus is not None and request.requested_by == "tool" and state.me.after_compact == "end_turn"
    turn = replace(state.turn, ending=True) if state.turn and ends else state.turn
    return replace(state, compaction=replace(request, focus=None), turn=turn)


def _summary_over(state: AgentState) -> AgentState:
    compaction = replace(state.compaction, summary=None, summary_transcript="", summary_halted=False, summary_until=0.0)
    return replace(state, compaction=compaction)


def _summary_began(state: AgentState, e: ev.SummaryBegan) -> AgentState:
    return replace(
        state,
        compaction=replace(
            state.compaction,
            summary=e.wanted,
            summary_transcript=e.transcript,
            summaries=state.compaction.summaries + 1,
        ),
    )


def _summary_failed(state: AgentState, e: ev.SummaryFailed) -> AgentState:
    if e.skipped is not None:
        return _summary_skipped(state, e.skipped)
    state = add_usage(state, e.usage)
    turn = replace(state.turn, summaries_failed=state.turn.summaries_failed + 1) if state.turn else None
    request = state.compaction.summary
    tried = (
        state.compaction.tried | {failed_at(request, state.context.conversation.revision)}
        if request
        else state.compaction.tried
    )
    state = replace(state, turn=turn, compaction=replace(state.compaction, tried=tried))
    return _summary_over(_compact_done(state) if request and request.trigger == "manual" else state)


def _summary_skipped(state: AgentState, skipped: SummaryWanted) -> AgentState:
    """Settle a skipped summary.

    A manual request is done, and the pipeline does not ask again before the next edit or turn.
    """
    if skipped.trigger == "manual":
        return _compact_done(state)
    now_skipped = state.compaction.skipped | {failed_at(skipped, state.context.conversation.revision)}
    return replace(state, compaction=replace(state.compaction, skipped=now_skipped))


def _counted(state: AgentState, e: ev.TokensCounted) -> AgentState:
    if e.tokens is None and e.until is not None:
        return replace(state, model=replace(state.model, uncounted_until=e.until))
    if e.tokens is None or e.revision != state.context.conversation.revision:
        return replace(state, model=replace(state.model, uncountable=state.model.uncountable or e.tokens is None))
    return replace(state, context=replace(state.context, conversation=with_count(state.context.conversation, e.tokens)))


def health_after(state: AgentState, e: ev.ModelReplied) -> CacheHealth:
    """Return the agent's cache health after this reply."""
    call = state.model.call
    limits = state.me.limits_of(call.model if call else e.model)
    return health_seen(state.costs.health, e.usage, limits, call.at if call else e.at)


def _thrashed(state: AgentState, e: ev.CacheThrash) -> AgentState:
    return replace(state, costs=replace(state.costs, health=after_thrash_report(state.costs.health)))


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


def costs_after_reply(state: AgentState, e: ModelReplied) -> ViewCosts:
    """Return the costs after a reply: of its request, and of its calls."""
    limits = state.me.limits_of(state.model.call.model if state.model.call else e.model)
    forgotten = after_calls(state.costs.forgotten, e.calls, state.turns.steps + 1)
    charged = 0.0
    if forgotten.rereads > state.costs.forgotten.rereads:
        reread = forgotten.reread_tokens - state.costs.forgotten.reread_tokens
        whole = size(state.context.conversation)
        # The step that requested it, and the storing of its result.
        charged = step_price(prices_of(limits), whole + reread, whole) + limits.price_output * e.usage.output_tokens
    view = state.context.conversation
    return replace(
        state.costs,
        cache=cache_seen(state.costs.cache, e.usage, e.at, view.revision),
        cycle=after_reply(state.costs.cycle, view.messages, limits, charged),
        forgotten=forgotten,
        health=health_after(state, e),
    )


def edit_booked(before: AgentState, after: AgentState, e: ContextEdited) -> AgentState:
    """Return the state after an edit of the view, with its cost and savings added."""
    old = before.context.conversation.messages
    new = after.context.conversation.messages
    if not e.edits or old == new:
        return after
    limits = before.me.limits_of(model_in_use(before.model.recovery, before.me))
    start, _ = new.span(min(edit.message for edit in e.edits), new[-1].id)
    behind = sum(message.tokens for message in new[start:])
    # An earlier edit of the same moment has paid for its own changes already.
    warm = not before.costs.cycle.touched and is_warm(before.costs.cache.used_at, e.at, limits.cache_ttl)
    price = edit_price(prices_of(limits), behind, warm=warm) + _price_of(e.usage, before)
    cycle = after_edit(before.costs.cycle, old, new, edits=e.edits, cost=(price, before.turns.steps))
    forgotten = after_edits(before.costs.forgotten, old, e.edits, before.turns.steps)
    return replace(after, costs=replace(after.costs, cycle=cycle, forgotten=forgotten))


def _price_of(usage: Usage, state: AgentState) -> float:
    """Return the price of a summary's calls, in the unit of these figures."""
    if usage.cost_usd:
        return usage.cost_usd * 1_000_000
    limits = state.me.limits_of(model_in_use(state.model.recovery, state.me))
    return limits.cost_of(usage) * 1_000_000


def undo_asked(state: AgentState, text: str) -> AgentState:
    """Return the state after a person requested to undo the edits at these journal positions."""
    positions = undo_positions(text)
    if not positions:
        return state
    return replace(state, compaction=replace(state.compaction, undo=(*state.compaction.undo, positions)))


def _undone(state: AgentState, event: ContextEdited) -> AgentState:
    """Return the state after the record of an undo, done or refused.

    Other requests stay open. A summary of the previous view that was begun by a dead process is void.
    """
    pending = list(state.compaction.undo)
    if event.undoes in pending:
        pending.remove(event.undoes)
    state = replace(state, compaction=replace(state.compaction, undo=tuple(pending)))
    if not event.edits:
        return state
    return replace(
        state,
        context=replace(state.context, conversation=apply_edits(state.context.conversation, event.edits)),
        compaction=replace(
            state.compaction,
            tried=frozenset(),
            summary=None,
            summary_transcript="",
            summary_halted=False,
            spared=spared_after(state.compaction.spared, event),
        ),
    )
