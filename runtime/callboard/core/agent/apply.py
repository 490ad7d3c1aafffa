"""State changes by events: `state = apply(state, event)`. Pure; one function for each event type.

The journal position of an event is `state.seq + 1`. It is the id of the messages and calls that the event opens. This
module has the events of lifecycle, mail, turns, injections, budgets, rate limits and repetition, and those of crashes,
waits and stalls (`AgentState.waits`). `apply_model` and `apply_tools` have the other events. Some events of other
themes also begin or end a wait; `with_waits` adds that to their own rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from callboard.core.agent.apply_counters import with_account, with_repetition
from callboard.core.agent.apply_model import CALL_RULES, undo_asked
from callboard.core.agent.apply_tools import TOOL_RULES
from callboard.core.agent.changes import (
    Rule,
    add_to_user_message,
    gate_moved,
    mode_chosen,
    queue,
    with_mode_reminder,
    with_recovery,
    with_spec,
)
from callboard.core.agent.rules.delivery import with_mail_counts
from callboard.core.agent.rules.limits import last_call_prompt, used_up_key
from callboard.core.agent.state import AgentState, LifeEnd, Turn, WaitReasons
from callboard.core.agent.stuck_detector import after_nudge, nudge_words
from callboard.core.approvals.plan_gate import PlanGate
from callboard.core.budgets.tree import BUDGET_LIMITS, raise_limits, used_up
from callboard.core.context.reminders import is_reminder
from callboard.core.context.view.conversation import add_assistant, add_user, with_overhead
from callboard.core.frozen import finished, replace
from callboard.core.keys import END_FIRE, short_id
from callboard.core.messaging.authority import authority_after, is_user_prompt
from callboard.core.recovery import retry_policy as rec
from callboard.core.recovery.retry_policy import on_prompt, on_switched
from callboard.core.team.unfinished import reminder_words
from callboard.types import events as ev
from callboard.types.agent_spec import Limits, ModelChoice, ThinkingChoice
from callboard.types.messages import Injection
from callboard.types.records import Budget, Envelope

Look = Callable[[WaitReasons, AgentState, Any], WaitReasons]
"""Function (waits before an event, state before it, event) that returns the waits after the event."""


def with_waits(rules: Mapping[type, Rule]) -> Mapping[type, Rule]:
    """Return the rules, extended for events that also change the waits."""
    return {kind: _looking(rule, _LOOKS[kind]) if kind in _LOOKS else rule for kind, rule in rules.items()}


def _looking(rule: Rule, look: Look) -> Rule:
    def both(state: AgentState, event: Any) -> AgentState:
        after = rule(state, event)
        waits = look(state.waits, state, event)
        return after if waits is after.waits else finished(after, state, waits=waits)

    return both


def _crashed(state: AgentState, e: ev.AgentCrashed) -> AgentState:
    """Apply a crash. The commit of a parked agent's crash also withdraws the agent's requests."""
    if e.again_at is None:
        return replace(state, waits=WaitReasons(crash="parked"))
    return replace(state, waits=replace(state.waits, crash="restarting", held="", stalled=()))


def _wait_began(state: AgentState, e: ev.WaitBegan) -> AgentState:
    return replace(state, waits=replace(state.waits, held=e.what))


def _stalled(state: AgentState, e: ev.StallNoticed) -> AgentState:
    return replace(state, waits=replace(state.waits, stalled=(*state.waits.stalled, e.operation)))


def _resumed(waits: WaitReasons, state: AgentState, e: ev.AgentResumed) -> WaitReasons:
    """Reset stalls and waits, because the agent's operations begin again."""
    return replace(waits, crash="", held="", stalled=()) if waits.crash or waits.held or waits.stalled else waits


def _without_wait(
    waits: WaitReasons, state: AgentState, e: ev.ModelCalled | ev.BudgetReached | ev.Interrupted
) -> WaitReasons:
    return replace(waits, held="") if waits.held else waits


def _waits_after_turn(waits: WaitReasons, state: AgentState, e: ev.TurnEnded) -> WaitReasons:
    if not (waits.held or waits.stalled or waits.fresh):
        return waits
    return replace(waits, held="", stalled=(), fresh=frozenset())


def _finished(waits: WaitReasons, state: AgentState, e: ev.ToolFinished) -> WaitReasons:
    """Begin a wait if the tool asked the user a question or sent a message to a teammate: the answer comes as mail."""
    item = state.calls.find(e.call)
    call = item.call if item else None
    if call is not None and call.name == "send_message" and not e.is_error:
        return _wrote(waits, str(e.data.get("to", "")), e.call)
    request_id = str(e.data.get("request_id", "")) if call is not None and call.name == "ask_person" else ""
    if not request_id or e.is_error or request_id in waits.questions:
        return waits
    return replace(waits, questions=(*waits.questions, request_id))


def _wrote(waits: WaitReasons, to: str, call: str) -> WaitReasons:
    read = {name: message for name, message in waits.read.items() if name != to}
    replies = {**waits.replies, to: short_id("env", call, to)}
    return replace(waits, replies=replies, fresh=waits.fresh | {to}, read=read)


def _waits_after_delivery(waits: WaitReasons, state: AgentState, e: ev.EnvelopesDelivered) -> WaitReasons:
    """Update the waits for delivered envelopes: end each wait that an envelope answers, and record read messages.

    A read message is one that the agent may answer.
    """
    for envelope in [other for other in state.inbox.mail if other.id in e.ids]:
        answered = [to for to, message_id in waits.replies.items() if _answers(envelope, to, message_id)]
        if answered:
            waits = replace(
                waits, replies={to: message_id for to, message_id in waits.replies.items() if to not in answered}
            )
        if envelope.type == "message":
            waits = replace(waits, read={**waits.read, envelope.sender: envelope.id})
    return waits


def _answers(envelope: Envelope, to: str, message_id: str) -> bool:
    """Return True if the envelope answers the message.

    The author of the envelope states that, or had read the message, or has ended the work. Return False if the two
    messages crossed.
    """
    if envelope.sender != to:
        return envelope.type == "dead_letter" and envelope.reply_to == message_id
    return envelope.type in ("result", "error") or message_id in (envelope.reply_to, envelope.metadata.get("read"))


def _waits_after_receipt(waits: WaitReasons, state: AgentState, e: ev.EnvelopeReceived) -> WaitReasons:
    if e.refused or e.envelope.type != "answer" or e.envelope.request_id not in waits.questions:
        return waits
    return replace(
        waits, questions=tuple(question for question in waits.questions if question != e.envelope.request_id)
    )


LIFE_RULES: Mapping[type, Rule] = {
    ev.AgentCrashed: _crashed,
    ev.WaitBegan: _wait_began,
    ev.StallNoticed: _stalled,
}
"""Crashes, waits, stalls."""

_LOOKS: Mapping[type, Look] = {
    ev.AgentResumed: _resumed,
    ev.ModelCalled: _without_wait,
    ev.BudgetReached: _without_wait,
    ev.Interrupted: _without_wait,
    ev.TurnEnded: _waits_after_turn,
    ev.ToolFinished: _finished,
    ev.EnvelopesDelivered: _waits_after_delivery,
    ev.EnvelopeReceived: _waits_after_receipt,
}


def _held(state: AgentState, e: ev.CallHeld) -> AgentState:
    return state


def budget_raised(state: AgentState, text: str) -> AgentState:
    """Raise the agent's budget, as the user ordered. `text`: a `Budget` as JSON; any other text changes nothing."""
    try:
        increase = Budget.model_validate_json(text)
    except ValueError:
        return state
    budget = raise_limits(state.me.budget, increase)
    return with_spec(state, state.me.model_copy(update={"budget": budget}))


def asking_chosen(state: AgentState, text: str) -> AgentState:
    """Set the seconds that the agent's requests wait from now on; 0: no one can answer.

    Text that is not such a number changes nothing.
    """
    try:
        seconds = float(text)
    except ValueError:
        return state
    if not 0 <= seconds < float("inf"):
        return state
    return with_spec(state, state.me.model_copy(update={"ask_deadline": seconds}))


def limits_chosen(state: AgentState, text: str) -> AgentState:
    """Change limits of the agent's turns from the next model call on.

    `text`: the changed limits as JSON; any other text changes nothing.
    """
    try:
        changed = Limits.model_validate_json(text)
    except ValueError:
        return state
    limits = state.me.limits.model_copy(update=changed.model_dump(exclude_unset=True))
    return with_spec(state, state.me.model_copy(update={"limits": limits}))


def thinking_chosen(state: AgentState, text: str) -> AgentState:
    """Change the thinking of the agent from the next model call on.

    `text`: a `ThinkingChoice` as JSON; empty for the service's default; any other text changes nothing.
    """
    try:
        choice = ThinkingChoice.model_validate_json(text) if text else None
    except ValueError:
        return state
    return with_spec(state, state.me.model_copy(update={"thinking": choice}))


def model_chosen(state: AgentState, text: str) -> AgentState:
    """Set the model from the next call on, as the user ordered, even if a fallback model has taken over.

    `text`: a `ModelChoice` as JSON; any other text changes nothing.
    """
    try:
        chosen = ModelChoice.model_validate_json(text)
    except ValueError:
        return state
    models = {**state.me.models, chosen.name: chosen.limits}
    if chosen.plan_name and chosen.plan_limits:
        models[chosen.plan_name] = chosen.plan_limits
    plan_model = chosen.plan_name if chosen.plan_name in models else None
    spec = state.me.model_copy(update={"model": chosen.name, "plan_model": plan_model, "models": models})
    return with_recovery(with_spec(state, spec), on_switched(state.model.recovery, ""))


def _budget_reached(state: AgentState, e: ev.BudgetReached) -> AgentState:
    if state.turn is None or e.kind in ("agents", "depth"):
        return state  # a new agent was refused: its caller gets the refusal and continues
    reason = used_up(e.budget, e.kind, limit=e.limit, spent=e.spent, needed=e.wanted)
    turn = replace(state.turn, winding_down=reason, winding_limit=BUDGET_LIMITS[e.kind], last_call=e.winds_down)
    if not e.winds_down:
        return replace(state, turn=turn)
    turn = replace(turn, said=turn.said.broken_off())  # the last reply reports, and continues nothing
    budget = replace(state.budget, wound_down=used_up_key(e.budget, e.kind, e.limit))
    state = replace(state, turn=turn, budget=budget)
    return queue(state, Injection(kind="system-reminder", text=last_call_prompt(reason), key="budget"))


def _stuck(state: AgentState, e: ev.StuckNoticed) -> AgentState:
    if state.turn is None:
        return state
    state = replace(state, turn=replace(state.turn, stuck=after_nudge(state.turn.stuck)))
    if e.action == "stop":
        return state
    return queue(state, Injection(kind="system-reminder", text=nudge_words(e.what, e.count), key="stuck"))


LIMIT_RULES: Mapping[type, Rule] = {
    ev.CallHeld: _held,
    ev.BudgetReached: _budget_reached,
    ev.StuckNoticed: _stuck,
}
"""Budgets, rates, repetition."""


RUNTIME_MAIL = frozenset({"command", "plan_approval_response", "permission_response"})
"""Envelopes that take effect at receipt and never enter a conversation. An answer is read from its row; the envelope
only wakes the agent."""


def is_for_runtime(envelope: Envelope) -> bool:
    """Return True if the envelope takes effect at receipt and never enters a conversation.

    The model reads a shutdown that belongs to a request; one without a request is an order.
    """
    return envelope.type in RUNTIME_MAIL or (envelope.type == "shutdown_request" and envelope.request_id is None)


def apply(state: AgentState, event: ev.Event) -> AgentState:
    """Return the state after one more record. Raises `KeyError` for an event without a rule, which is a bug."""
    after = _RULES[type(event)](state, event)
    if after is state:
        return replace(state, seq=state.seq + 1)
    vars(after)["seq"] = state.seq + 1  # nobody else has what the rule has just made
    return after


def apply_behind_hole(state: AgentState, seq: int, event: ev.Event) -> AgentState:
    """Return the state after record `seq` of a journal that lacks earlier records.

    The state is unchanged if the event needs those.
    """
    state = replace(state, seq=seq - 1)
    try:
        return apply(state, event)
    except Exception:  # noqa: BLE001 - a rule may fail in any way on events that do not follow each other
        return replace(state, seq=seq)


def fold(events: Iterable[ev.Event], state: AgentState | None = None) -> AgentState:
    """Return the state after all of `events`, starting from `state` or from an empty one."""
    state = state or AgentState()
    for event in events:
        state = apply(state, event)
    return state


def _started(state: AgentState, e: ev.AgentStarted) -> AgentState:
    gate = PlanGate("required") if e.spec.plan_required else PlanGate()
    return replace(
        state,
        identity=replace(state.identity, spec=e.spec, session=e.session, incarnation=e.incarnation, began_at=e.at),
        work=replace(state.work, gate=gate, assignment=e.assignment),
        model=replace(state.model, ordinal=e.ordinal),
        compaction=replace(state.compaction, summaries=e.summaries),
    )


def _same(state: AgentState, e: ev.Event) -> AgentState:
    return state


def _prompt_set(state: AgentState, e: ev.PromptSet) -> AgentState:
    conversation = with_overhead(state.context.conversation, e.overhead_tokens)
    context = replace(
        state.context,
        system=e.system,
        tools=e.tools,
        own_blocks=e.own_blocks,
        listed=state.me.tools,
        conversation=conversation,
    )
    if e.instructions is not None:
        context = replace(context, instructions={**(context.instructions or {}), **e.instructions})
    return replace(state, context=context)


def _spec_changed(state: AgentState, e: ev.SpecChanged) -> AgentState:
    return with_spec(state, e.spec)


def _stop_asked(state: AgentState, e: ev.StopAsked) -> AgentState:
    return replace(state, lifecycle=replace(state.lifecycle, stop="asked", stop_by=e.by, stop_request=e.request_id))


def _stopped(state: AgentState, e: ev.AgentStopped) -> AgentState:
    return replace(
        state,
        lifecycle=replace(state.lifecycle, ended=LifeEnd(e.outcome, e.result)),
        turn=None,
        context=replace(state.context, wants_reply=False),
    )


def _received(state: AgentState, e: ev.EnvelopeReceived) -> AgentState:
    envelope = e.envelope
    state = replace(state, inbox=replace(state.inbox, position=max(state.inbox.position, envelope.seq)))
    if e.refused:
        return state
    if is_for_runtime(envelope):
        return _apply_command(state, envelope)
    if envelope.type == "plan_request" or (envelope.type == "shutdown_request" and state.work.gate.gate == "pending"):
        state = gate_moved(state, PlanGate("required"))
    return replace(state, inbox=replace(state.inbox, mail=(*state.inbox.mail, envelope)))


def _apply_command(state: AgentState, envelope: Envelope) -> AgentState:
    """Apply an envelope for the runtime, which takes effect at its receipt."""
    action = str(envelope.metadata.get("action", "")) if envelope.type == "command" else envelope.type
    if action in ("shutdown_request", "stop"):
        return replace(
            state,
            lifecycle=replace(state.lifecycle, stop="asked", stop_by=envelope.sender, stop_request=envelope.request_id),
        )
    if action == "interrupt" and state.turn:
        return replace(state, turn=replace(state.turn, interrupted=True))
    if action == "new" and state.me.kind == "lead" and not state.lifecycle.stop:
        return replace(
            state,
            lifecycle=replace(
                state.lifecycle, stop="asked", stop_by=envelope.sender, renew="carry" if envelope.content else "fresh"
            ),
        )
    if action == "interrupt":
        return replace(
            state, compaction=replace(state.compaction, focus=None, summary_halted=state.compaction.summary is not None)
        )
    if action == "compact":
        return replace(state, compaction=replace(state.compaction, focus=envelope.content, requested_by="person"))
    change = _COMMANDS.get(action)
    return change(state, envelope.content) if change is not None else state


def _end_fire(state: AgentState, fire: str) -> AgentState:
    """End one fire of a schedule: the turn that it began, and no other. Remove it from the unread mail."""
    # Also in its turn: a process may have died before it delivered the fire, which would begin a second turn
    # (test_a_fire_that_is_ended_before_its_turn_has_read_it_begins_no_second_turn).
    state = replace(
        state, inbox=replace(state.inbox, mail=tuple(other for other in state.inbox.mail if other.id != fire))
    )
    if state.turn is None or state.turn.cause != fire:
        return state
    return replace(state, turn=replace(state.turn, interrupted=True))


_COMMANDS: Mapping[str, Callable[[AgentState, str], AgentState]] = {
    "undo": undo_asked,
    "budget": budget_raised,
    "model": model_chosen,
    "mode": mode_chosen,
    "asking": asking_chosen,
    "limits": limits_chosen,
    "thinking": thinking_chosen,
    END_FIRE: _end_fire,
}
"""Commands that only need the content of their envelope."""


def _delivered(state: AgentState, e: ev.EnvelopesDelivered) -> AgentState:
    gone = set(e.ids)
    entering = [envelope for envelope in state.inbox.mail if envelope.id in gone]
    assignments = [envelope.id for envelope in entering if envelope.metadata.get("assignment")]
    owes = bool(assignments)
    turn = state.turn
    leaving = [envelope for envelope in entering if envelope.type == "shutdown_request" and envelope.request_id]
    if leaving:
        state = replace(
            state, lifecycle=replace(state.lifecycle, leaving=leaving[-1].request_id or "", stop_by=leaving[-1].sender)
        )
    authority = state.turns.authority
    if turn:
        authority = authority_after(turn.authority, entering, state.me.kind)
        wakes = (*turn.wakes, *(envelope.type for envelope in entering))
        turn = replace(turn, wakes=wakes, stop_asked=False, authority=authority)
        if turn.denies and any(is_user_prompt(envelope) for envelope in entering):
            turn = replace(turn, denies=())
    work = state.work
    recovery = on_prompt(state.model.recovery) if any(map(is_user_prompt, entering)) else state.model.recovery
    state = add_to_user_message(state, e.blocks, e.at)
    return replace(
        state,
        inbox=replace(
            state.inbox,
            mail=tuple(envelope for envelope in state.inbox.mail if envelope.id not in gone),
            deliveries=state.inbox.deliveries + 1,
        ),
        model=replace(state.model, recovery=recovery),
        work=replace(
            work,
            commands_begun=work.commands_begun - gone,
            assignment=work.assignment or owes,
            assigned=assignments[-1] if assignments else work.assigned,
            reported="" if owes else work.reported,
            gate=PlanGate("required") if owes and state.me.plan_required else work.gate,
        ),
        turn=turn,
        turns=replace(state.turns, authority=authority),
    )


def _dropped(state: AgentState, e: ev.EnvelopesDropped) -> AgentState:
    remaining = tuple(envelope for envelope in state.inbox.mail if envelope.id not in set(e.ids))
    turn = state.turn
    if e.refused and turn is not None:
        turn = replace(turn, refused=e.why, refused_by_hook=e.by_hook)
    begun = state.work.commands_begun - set(e.ids)
    return replace(
        state,
        inbox=replace(state.inbox, mail=remaining, deliveries=state.inbox.deliveries + 1),
        work=replace(state.work, commands_begun=begun),
        turn=turn,
    )


def _turn_began(state: AgentState, e: ev.TurnBegan) -> AgentState:
    turn = Turn(id=e.turn, began_at=e.at, cause=e.cause, depth=e.depth, authority=e.authority)
    state = replace(state, compaction=replace(state.compaction, tried=frozenset(), skipped=frozenset()))
    return with_mode_reminder(
        replace(state, turn=turn, turns=replace(state.turns, count=state.turns.count + 1, authority=e.authority))
    )


def _interrupted(state: AgentState, e: ev.Interrupted) -> AgentState:
    halted = "" if e.by in ("person", "runtime") else e.by
    return replace(state, turn=replace(state.turn, interrupted=True, halted=halted)) if state.turn else state


def _shutdown_refused(state: AgentState, e: ev.ShutdownRefused) -> AgentState:
    if state.lifecycle.leaving != e.request_id:
        return state
    return replace(state, lifecycle=replace(state.lifecycle, leaving=""))


def _turn_ended(state: AgentState, e: ev.TurnEnded) -> AgentState:
    if state.lifecycle.leaving:
        state = replace(
            state, lifecycle=replace(state.lifecycle, stop="asked", stop_request=state.lifecycle.leaving, leaving="")
        )
    conversation = state.context.conversation
    if state.model.recovery.cut_text:  # the text is in the turn's final words: the model knows its own text
        blocks = ({"type": "text", "text": state.model.recovery.cut_text},)
        conversation = add_assistant(
            conversation, state.seq + 1, blocks, at=e.at, turn=state.turn.id if state.turn else ""
        )
    return replace(
        state,
        turn=None,
        context=replace(state.context, conversation=conversation, wants_reply=False),
        turns=replace(state.turns, last_text=e.text, last_reason=e.reason, last_why=e.why, last_limit=e.limit),
        model=replace(state.model, recovery=rec.on_turn_end(state.model.recovery)),
        compaction=replace(
            state.compaction,
            focus=None if state.compaction.requested_by == "tool" else state.compaction.focus,
            summary=None,
        ),
    )


def _tasks_reminded(state: AgentState, e: ev.TasksReminded) -> AgentState:
    if state.turn is None:
        return state
    state = replace(state, turn=replace(state.turn, reminded=True), context=replace(state.context, wants_reply=True))
    tasks = {task: state.work.tasks.get(task, "") for task in e.tasks}
    return queue(state, Injection(kind="system-reminder", text=reminder_words(tasks), key="unfinished"))


def _queued(state: AgentState, e: ev.InjectionQueued) -> AgentState:
    return queue(state, e.injection)


def _injected(state: AgentState, e: ev.InjectionsDelivered) -> AgentState:
    # A reminder alone asks for no reply: a hook may block the prompt after it.
    asks = state.context.wants_reply or not all(
        is_reminder(injection) or injection.is_guidance for injection in state.context.injections
    )
    state = add_to_user_message(state, e.blocks, e.at)
    return replace(state, context=replace(state.context, injections=(), wants_reply=asks))


def _copied(state: AgentState, e: ev.MessageCopied) -> AgentState:
    conversation = state.context.conversation
    if e.role == "user":
        conversation = add_user(conversation, state.seq + 1, e.blocks, at=e.at, turn=e.turn)
    else:
        writer = next((block.by for block in e.blocks if block.by), "")
        data = [block.data for block in e.blocks]
        conversation = add_assistant(conversation, state.seq + 1, data, at=e.at, turn=e.turn, by=writer)
    return replace(state, context=replace(state.context, conversation=conversation))


_RULES: Mapping[type, Rule] = with_account(
    with_waits(
        with_mail_counts(
            with_repetition(
                {
                    ev.AgentStarted: _started,
                    ev.AgentResumed: _same,
                    ev.PromptSet: _prompt_set,
                    ev.SpecChanged: _spec_changed,
                    ev.StopAsked: _stop_asked,
                    ev.ShutdownRefused: _shutdown_refused,
                    ev.AgentStopped: _stopped,
                    ev.EnvelopeReceived: _received,
                    ev.EnvelopesDelivered: _delivered,
                    ev.EnvelopesDropped: _dropped,
                    ev.TurnBegan: _turn_began,
                    ev.Interrupted: _interrupted,
                    ev.TurnEnded: _turn_ended,
                    ev.TasksReminded: _tasks_reminded,
                    ev.InjectionQueued: _queued,
                    ev.InjectionsDelivered: _injected,
                    ev.MessageCopied: _copied,
                    **CALL_RULES,
                    **LIMIT_RULES,
                    **TOOL_RULES,
                    **LIFE_RULES,
                }
            )
        )
    )
)
