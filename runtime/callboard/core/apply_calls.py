"""What the events of model calls and of context management change. Pure; `apply.py` finds the rule of an event."""

from __future__ import annotations

from collections.abc import Mapping

from callboard.core.changes import Rule, billed, said_to
from callboard.core.context.bookkeeping import edit_booked, reply_booked
from callboard.core.context.cache.health import CacheHealth, health_seen, thrash_told
from callboard.core.context.cache.state import cache_seen
from callboard.core.context.guidance import noted_after
from callboard.core.context.reminders import told_after
from callboard.core.context.stages.regions import failed_at, still_failed
from callboard.core.context.undoing import undone
from callboard.core.context.view.conversation import add_assistant, counted, edited, usage_seen
from callboard.core.context.view.spare import spared_after
from callboard.core.frozen import replace
from callboard.core.recovery import turns as rec
from callboard.core.state import AgentState, CallState
from callboard.words import events as ev
from callboard.words.context import Placed, SummaryWanted
from callboard.words.values import Json


def _called(state: AgentState, e: ev.ModelCalled) -> AgentState:
    if e.purpose == "summary":
        return state
    recovery = replace(state.recovery, waiting_until=0.0, parked=False)
    return replace(state, call=e, asked=state.asked + 1, heard=0, recovery=recovery)


def _replied(state: AgentState, e: ev.ModelReplied) -> AgentState:
    cut, paused = e.stop_reason == "max_tokens", e.stop_reason in rec.GOES_ON
    conversation = usage_seen(state.conversation, e.usage)
    turn = state.turn
    if turn:
        text = _text_of(e.blocks) or turn.text
        turn = replace(turn, steps=turn.steps + 1, usage=turn.usage.plus(e.usage), text=text, last_call=False)
    if e.blocks:
        asked = state.call.model if state.call else e.model
        conversation = add_assistant(conversation, state.seq + 1, e.blocks, e.at, turn.id if turn else "", asked)
    return replace(
        reply_booked(state, e),
        call=None,
        ordinal=e.ordinal,
        conversation=conversation,
        turn=turn,
        calls=tuple(CallState(call) for call in e.calls),
        recovery=rec.on_reply(state.recovery, cut=cut, paused=paused, react_limit=state.me.react_limit),
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
    return billed(replace(state, call=None, ordinal=e.ordinal, wants_reply=True), e.usage)


def _reply_interrupted(state: AgentState, e: ev.ReplyInterrupted) -> AgentState:
    conversation = state.conversation
    if e.text.strip():
        blocks = ({"type": "text", "text": e.text.rstrip()},)
        conversation = add_assistant(conversation, state.seq + 1, blocks, e.at, state.turn.id if state.turn else "")
    return replace(state, call=None, ordinal=e.ordinal, conversation=conversation, wants_reply=False)


def _call_failed(state: AgentState, e: ev.CallFailed) -> AgentState:
    state = billed(state, e.fault.usage) if e.fault.usage else state
    if e.purpose == "summary":
        return state
    return replace(state, call=None, recovery=rec.on_failed(state.recovery, e), last_fault=e.fault.kind)


def _retry_planned(state: AgentState, e: ev.RetryPlanned) -> AgentState:
    if e.purpose == "summary":
        return replace(state, summary_until=e.until)
    return replace(state, recovery=rec.on_retry(state.recovery, e.until, e.parked))


def _switched(state: AgentState, e: ev.ModelSwitched) -> AgentState:
    if e.purpose == "summary":
        return state
    return replace(state, recovery=rec.on_switched(state.recovery, e.model))


def _raised(state: AgentState, e: ev.OutputRaised) -> AgentState:
    return replace(state, recovery=replace(state.recovery, output_limit=e.limit, escalated=True))


def _continued(state: AgentState, e: ev.ContinuationAsked) -> AgentState:
    prompt = Placed(data={"type": "text", "text": rec.CONTINUATION_PROMPT}, source="reminder")
    state = replace(state, recovery=replace(state.recovery, continuations=e.count, cut=False))
    return said_to(state, (prompt,), e.at)


def _react_asked(state: AgentState, e: ev.ReactAsked) -> AgentState:
    return replace(state, recovery=replace(state.recovery, failure=None, react=True, reacted=True))


def _text_of(blocks: tuple[Json, ...]) -> str:
    return "\n".join(str(b.get("text", "")) for b in blocks if b.get("type") == "text").strip()


def _edited(state: AgentState, e: ev.ContextEdited) -> AgentState:
    if e.undoes:
        return edit_booked(state, undone(state, e), e)
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
    return edit_booked(state, after, e)


def _compacted(state: AgentState, e: ev.ContextEdited) -> AgentState:
    """What had asked for this compaction has had it."""
    turn = replace(state.turn, summaries_failed=0) if state.turn and state.summary and e.edits else state.turn
    recovery = replace(state.recovery, react=False) if e.trigger == "reactive" else state.recovery
    state = replace(state, turn=turn, recovery=recovery)
    return _summary_over(_compact_done(state) if e.trigger == "manual" else state)


def _compact_done(state: AgentState) -> AgentState:
    """The compaction that was asked for is over; where the `compact` tool asked, the turn may be over too."""
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
    wanted = state.summary
    tried = state.tried | {failed_at(wanted, state.conversation.revision)} if wanted else state.tried
    state = replace(state, turn=turn, tried=tried)
    return _summary_over(_compact_done(state) if wanted and wanted.trigger == "manual" else state)


def _summary_skipped(state: AgentState, skipped: SummaryWanted) -> AgentState:
    """What asked for it by hand has had its answer; the pipeline does not ask again before the next edit, or turn."""
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
    """How well the cache serves the agent, with this reply."""
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
    ev.ContinuationAsked: _continued,
    ev.ContextEdited: _edited,
    ev.SummaryBegan: _summary_began,
    ev.SummaryFailed: _summary_failed,
    ev.ReactAsked: _react_asked,
    ev.TokensCounted: _counted,
    ev.CacheThrash: _thrashed,
}
"""Model calls, recovery, edits and summaries."""
