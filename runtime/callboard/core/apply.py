"""What each event changes: `state = apply(state, event)`. Pure; one function for each event, found by its type.

The journal position of an event is `state.seq + 1`: it names the messages and calls that the event opens. Here stand
its life, its mail, its turns and what waits to be said; `apply_calls` and `apply_tools` hold the other themes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from callboard.core.apply_calls import CALL_RULES
from callboard.core.apply_limits import LIMIT_RULES, asking_chosen, budget_raised, mode_chosen, model_chosen
from callboard.core.apply_lives import LIFE_RULES, waiting
from callboard.core.apply_tools import TOOL_RULES
from callboard.core.budget.charging import charged
from callboard.core.bus.authority import after, raises
from callboard.core.changes import Rule, gate_moved, queue, said_to
from callboard.core.context.guidance import is_guidance
from callboard.core.context.reminders import is_reminder
from callboard.core.context.undoing import undo_asked
from callboard.core.context.view.conversation import with_overhead
from callboard.core.frozen import replace
from callboard.core.names import END_FIRE
from callboard.core.noticing import watched
from callboard.core.recovery import turns as rec
from callboard.core.state import AgentState, Ended, Gate, Turn
from callboard.words import events as ev
from callboard.words.values import Envelope

RUNTIME_MAIL = frozenset({"command", "shutdown_request", "plan_approval_response", "permission_response"})
"""Envelopes that the runtime heeds at receipt and that never enter a conversation: the row is the truth of an answer,
the envelope only rings the bell."""


def apply(state: AgentState, event: ev.Event) -> AgentState:
    """The state after one more record. Raises `KeyError` for an event that no rule knows: a bug, not damage."""
    return replace(_RULES[type(event)](state, event), seq=state.seq + 1)


def fold(events: Iterable[ev.Event], state: AgentState | None = None) -> AgentState:
    """The state after all of `events`, from `state` or from nothing."""
    state = state or AgentState()
    for event in events:
        state = apply(state, event)
    return state


def _started(state: AgentState, e: ev.AgentStarted) -> AgentState:
    gate = Gate("required") if e.spec.plan_required else Gate()
    return replace(
        state,
        spec=e.spec,
        session=e.session,
        incarnation=e.incarnation,
        began_at=e.at,
        gate=gate,
        assignment=e.assignment,
        ordinal=e.ordinal,
        summaries=e.summaries,
    )


def _same(state: AgentState, e: ev.Event) -> AgentState:
    return state


def _prompt_set(state: AgentState, e: ev.PromptSet) -> AgentState:
    conversation = with_overhead(state.conversation, e.overhead_tokens)
    state = replace(state, system=e.system, tools=e.tools, conversation=conversation)
    return (
        state if e.instructions is None else replace(state, instructed={**(state.instructed or {}), **e.instructions})
    )


def _spec_changed(state: AgentState, e: ev.SpecChanged) -> AgentState:
    return replace(state, spec=e.spec)


def _stop_asked(state: AgentState, e: ev.StopAsked) -> AgentState:
    return replace(state, stop="asked", stop_by=e.by, stop_request=e.request_id)


def _stopped(state: AgentState, e: ev.AgentStopped) -> AgentState:
    return replace(state, ended=Ended(e.outcome, e.result), turn=None, wants_reply=False)


def _received(state: AgentState, e: ev.EnvelopeReceived) -> AgentState:
    envelope = e.envelope
    state = replace(state, position=max(state.position, envelope.seq))
    if e.refused:
        return state
    if envelope.type in RUNTIME_MAIL:
        return _heed(state, envelope)
    if envelope.type == "plan_request":
        state = gate_moved(state, Gate("required"))
    return replace(state, mail=(*state.mail, envelope))


def _heed(state: AgentState, envelope: Envelope) -> AgentState:
    """The envelope is for the runtime: it takes effect with its receipt."""
    action = str(envelope.metadata.get("action", "")) if envelope.type == "command" else envelope.type
    if action in ("shutdown_request", "stop"):
        return replace(state, stop="asked", stop_by=envelope.sender, stop_request=envelope.request_id)
    if action == "interrupt" and state.turn:
        return replace(state, turn=replace(state.turn, interrupted=True))
    if action == "new" and state.me.kind == "lead" and not state.stop:
        return replace(state, stop="asked", stop_by=envelope.sender, renew="carry" if envelope.content else "fresh")
    if action == "interrupt":
        return replace(state, compact=None, summary_halted=state.summary is not None)
    if action == "compact":
        return replace(state, compact=envelope.content, compact_by="person")
    change = _COMMANDS.get(action)
    return change(state, envelope.content) if change is not None else state


def _end_fire(state: AgentState, fire: str) -> AgentState:
    """One fire of a schedule ends: the turn that it began, and no other one; or it leaves the mail unread."""
    if state.turn is not None and state.turn.cause == fire:
        return replace(state, turn=replace(state.turn, interrupted=True))
    return replace(state, mail=tuple(one for one in state.mail if one.id != fire))


_COMMANDS: Mapping[str, Callable[[AgentState, str], AgentState]] = {
    "undo": undo_asked,
    "budget": budget_raised,
    "model": model_chosen,
    "mode": mode_chosen,
    "asking": asking_chosen,
    END_FIRE: _end_fire,
}
"""Commands that are all said by their content."""


def _delivered(state: AgentState, e: ev.EnvelopesDelivered) -> AgentState:
    gone = set(e.ids)
    taken = [envelope for envelope in state.mail if envelope.id in gone]
    given = [envelope.id for envelope in taken if envelope.metadata.get("assignment")]
    owes = bool(given)
    turn = state.turn
    authority = state.authority
    if turn:
        authority = after(turn.authority, taken, state.me.kind)
        wakes = (*turn.wakes, *(envelope.type for envelope in taken))
        turn = replace(turn, wakes=wakes, stop_asked=False, authority=authority)
        if turn.denies and any(raises(envelope) for envelope in taken):
            turn = replace(turn, denies=())
    return replace(
        said_to(state, e.blocks, e.at),
        mail=tuple(envelope for envelope in state.mail if envelope.id not in gone),
        heard=state.heard + 1,
        commands_begun=state.commands_begun - gone,
        turn=turn,
        authority=authority,
        assignment=state.assignment or owes,
        assigned=given[-1] if given else state.assigned,
        reported="" if owes else state.reported,
        gate=Gate("required") if owes and state.me.plan_required else state.gate,
    )


def _dropped(state: AgentState, e: ev.EnvelopesDropped) -> AgentState:
    left = tuple(envelope for envelope in state.mail if envelope.id not in set(e.ids))
    turn = state.turn
    if e.refused and turn is not None:
        turn = replace(turn, refused=e.why)
    begun = state.commands_begun - set(e.ids)
    return replace(state, mail=left, heard=state.heard + 1, commands_begun=begun, turn=turn)


def _turn_began(state: AgentState, e: ev.TurnBegan) -> AgentState:
    turn = Turn(id=e.turn, began_at=e.at, cause=e.cause, depth=e.depth, authority=e.authority)
    state = replace(state, tried=frozenset(), skipped=frozenset())
    return replace(state, turn=turn, turns=state.turns + 1, authority=e.authority)


def _interrupted(state: AgentState, e: ev.Interrupted) -> AgentState:
    halted = "" if e.by == "person" else e.by
    return replace(state, turn=replace(state.turn, interrupted=True, halted=halted)) if state.turn else state


def _turn_ended(state: AgentState, e: ev.TurnEnded) -> AgentState:
    return replace(
        state,
        turn=None,
        wants_reply=False,
        last_text=e.text,
        last_reason=e.reason,
        last_why=e.why,
        recovery=rec.on_turn_end(state.recovery),
        compact=None if state.compact_by == "tool" else state.compact,
        summary=None,
    )


def _queued(state: AgentState, e: ev.InjectionQueued) -> AgentState:
    return queue(state, e.injection)


def _injected(state: AgentState, e: ev.InjectionsDelivered) -> AgentState:
    # A reminder alone asks for no reply: the prompt behind it may be blocked by a hook.
    asks = state.wants_reply or not all(is_reminder(one) or is_guidance(one) for one in state.injections)
    return replace(said_to(state, e.blocks, e.at), injections=(), wants_reply=asks)


_RULES: Mapping[type, Rule] = charged(
    waiting(
        watched(
            {
                ev.AgentStarted: _started,
                ev.AgentResumed: _same,
                ev.PromptSet: _prompt_set,
                ev.SpecChanged: _spec_changed,
                ev.StopAsked: _stop_asked,
                ev.AgentStopped: _stopped,
                ev.EnvelopeReceived: _received,
                ev.EnvelopesDelivered: _delivered,
                ev.EnvelopesDropped: _dropped,
                ev.TurnBegan: _turn_began,
                ev.Interrupted: _interrupted,
                ev.TurnEnded: _turn_ended,
                ev.InjectionQueued: _queued,
                ev.InjectionsDelivered: _injected,
                **CALL_RULES,
                **LIMIT_RULES,
                **TOOL_RULES,
                **LIFE_RULES,
            }
        )
    )
)
