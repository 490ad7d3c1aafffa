"""Rules for mail: envelopes that may enter the conversation now, and limits on the messages and tasks of a reply. Pure.

In a replay, the envelopes are those of the recording.

In a team, timing decides which envelopes an agent has before a model call. A recorded run fixes them: each delivery of
the recording is repeated, complete and in order, in a new turn if it began one. Nothing else is delivered. Missing
envelopes are awaited until `ExpectedDeliveries.until`; after that, all available ones are delivered.

The limits are those of `core.messaging.floods`. Rules here count the events and deny the messages and tasks beyond the
limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from callboard.core.agent.changes import Rule
from callboard.core.agent.open_calls import CallState
from callboard.core.agent.state import AgentState, Delivery, ExpectedDeliveries, Facts
from callboard.core.frozen import replace
from callboard.core.messaging import floods as limits
from callboard.core.messaging.envelopes import CONTINUES
from callboard.core.messaging.floods import MAIL_TOOLS, TASK_TOOLS, MailCounts, seconds_muted
from callboard.types import events as ev
from callboard.types import steps as st
from callboard.types.records import Envelope

BURST: Mapping[str, float] = MappingProxyType({"message": 0.25, "task_notification": 0.25, "result": 1.0})
"""Type of an envelope -> seconds that it waits for others before it wakes an idle agent."""

SERIES = 60.0
"""Seconds that the result of an agent waits if the agent continues with another task (`CONTINUES`)."""
_CLAIM = 2.0
"""Seconds in which such an agent has begun its next turn. If nobody is at work by then, the result waits no longer."""


def deliverable(state: AgentState, facts: Facts) -> list[Envelope]:
    """Return the envelopes for the next user message, in order.

    A schedule's prompt with its own turn waits for the end of the current turn.
    """
    expected = _in_force(facts)
    if expected is not None:
        return _as_recorded(state, expected)
    if state.turn is None:
        return list(state.inbox.mail)
    own_turn = [e for e in state.inbox.mail if e.type == "scheduled" and e.metadata.get("deliver", "turn") == "turn"]
    # The turn that was begun for this prompt (test_a_schedule_that_wants_its_own_turn_waits_for_the_end_of_this_one).
    if state.turn.wakes == () and own_turn and own_turn[0].id == state.turn.cause:
        return own_turn[:1]
    return [e for e in state.inbox.mail if e not in own_turn]


def await_recorded(state: AgentState, facts: Facts) -> st.Step | None:
    """Wait, in a replay, for the delivery that the recording has at this point, until the wait is over.

    Otherwise return None. Between turns an agent with no mail, or with a task to claim, continues: its actions produce
    the mail.
    """
    expected = _in_force(facts)
    if expected is None:
        return None
    if state.turn is not None:
        due = _next(state, expected)
        return st.Wait(expected.until, "recorded mail") if due is not None else None
    wakes = any(envelope.mode == "wake" for envelope in state.inbox.mail)
    return st.Wait(expected.until, "recorded mail") if wakes and facts.claimable is None else None


def _in_force(facts: Facts) -> ExpectedDeliveries | None:
    """Return the recording, unless the wait for its mail is over."""
    # In a replay, mail from outside may never come (test_when_it_was_waited_for_in_vain_a_turn_goes_on).
    return facts.expected if facts.expected and facts.now < facts.expected.until else None


def _as_recorded(state: AgentState, expected: ExpectedDeliveries) -> list[Envelope]:
    """Return the next delivery of the recording if all of it has arrived.

    For a new turn, all mail that arrived before its first model call must be there: an agent's own message about a
    claimed task can only be sent while it is idle.
    """
    due = _next(state, expected)
    if due is None:
        return []
    later = takewhile(lambda delivery: not delivery.begins_turn, expected.deliveries[1:]) if state.turn is None else ()
    mail = {envelope.id: envelope for envelope in state.inbox.mail}
    # The recorded request contained all of it (test_half_a_delivery_is_not_delivered).
    complete = all(envelope_id in mail for delivery in (due, *later) for envelope_id in delivery.ids)
    return [mail[envelope_id] for envelope_id in due.ids] if complete else []


def _next(state: AgentState, expected: ExpectedDeliveries) -> Delivery | None:
    """Return the delivery that is due in this turn or begins one; None if this turn has had all of its deliveries."""
    if not expected.deliveries:
        return None
    due = expected.deliveries[0]
    turn = state.turn
    if turn is None or turn.wakes == ():
        return due
    # A teammate that ends its turn with a held task is reminded before this mail came: both are in one message.
    return None if due.begins_turn or (due.reminded and not turn.reminded) else due


def _is_urgent(envelope: Envelope) -> bool:
    """Return True if the envelope begins a turn at once: every assignment, and all types that rarely come in bursts."""
    return envelope.type not in BURST or bool(envelope.metadata.get("assignment"))


def waking_envelopes(state: AgentState, ready: Sequence[Envelope], facts: Facts) -> list[Envelope]:
    """Return the envelopes that may begin a turn now. In a replay, those that did so in the recording."""
    return [envelope for envelope in ready if envelope.mode == "wake" and not _seconds_muted(state, envelope, facts)]


def muted_until(state: AgentState, facts: Facts) -> float | None:
    """Return the time at which the first muted envelope may wake the agent; None: there is none."""
    waits = [_seconds_muted(state, envelope, facts) for envelope in state.inbox.mail if envelope.mode == "wake"]
    seconds = min((wait for wait in waits if wait > 0), default=None)
    return None if seconds is None else facts.now + seconds


def _seconds_muted(state: AgentState, envelope: Envelope, facts: Facts) -> float:
    return 0.0 if _in_force(facts) else seconds_muted(state.inbox.counts, facts.mail_seconds, envelope)


def burst_until(waking: Sequence[Envelope], facts: Facts) -> float | None:
    """Return the time until which an idle agent waits for more mail before its turn begins; None: it begins now.

    Only messages, results and notifications wait, and only briefly while others are working: mail that arrives in that
    time is read in the same turn. Results of an agent that works off the board wait longer. Anything else begins the
    turn at once.
    """
    # Each result on its own would cost a turn of the lead (test_results_that_come_together_wake_the_lead_once,
    # test_a_single_message_waits_for_nobody_who_is_at_rest).
    if _in_force(facts) or any(map(_is_urgent, waking)):
        return None
    series = [envelope.sent_at for envelope in waking if _is_one_of_series(envelope)]
    ends = [envelope.sent_at + BURST[envelope.type] for envelope in waking if not _is_one_of_series(envelope)]
    if series:
        # test_a_teammate_that_works_off_the_board_wakes_its_lead_once_a_minute
        ends.append(min(series) + SERIES)
    if not facts.mates_at_work:
        ends = [max(series) + _CLAIM] if len(series) == len(waking) else []
    until = min(ends, default=None)
    return until if until is not None and until > facts.now else None


def _is_one_of_series(envelope: Envelope) -> bool:
    """Return True for the result of an agent that continues with another task of the board."""
    return envelope.type == "result" and bool(envelope.metadata.get(CONTINUES))


Count = Callable[[AgentState, AgentState, Any], AgentState]
"""Function (state before an event, state after it, event) that returns the state with updated counts."""

BY_LIMIT = "mail limit"
"""Name under which the mail limit denies a message."""
BY_TASK_LIMIT = "task limit"
"""Name under which the limit on tasks denies a new one."""


def with_mail_counts(rules: Mapping[type, Rule]) -> Mapping[type, Rule]:
    """Return the rules, extended for events that also change the mail counts."""
    return {kind: _counting(rule, _COUNTS[kind]) if kind in _COUNTS else rule for kind, rule in rules.items()}


def _counting(rule: Rule, count: Count) -> Rule:
    return lambda state, event: count(state, rule(state, event), event)


def too_much_mail(state: AgentState, facts: Facts) -> st.Step | None:
    """Deny the messages of the reply that exceed what the agent may send now."""
    calls = _not_denied(state, MAIL_TOOLS)
    counts = state.inbox.counts
    ids = _beyond(calls, limits.allowed_messages(counts, facts.mail_seconds)) if calls else ()
    return st.Skip(ids, limits.denied_words(counts, facts.mail_seconds), BY_LIMIT) if ids else None


def too_many_tasks(state: AgentState, facts: Facts) -> st.Step | None:
    """Deny the tasks of the reply that exceed what the agent may create now."""
    calls = _not_denied(state, TASK_TOOLS)
    counts = state.inbox.counts
    ids = _beyond(calls, limits.allowed_tasks(counts, facts.mail_seconds)) if calls else ()
    return st.Skip(ids, limits.denied_task_words(counts, facts.mail_seconds), BY_TASK_LIMIT) if ids else None


def _not_denied(state: AgentState, tools: frozenset[str]) -> list[CallState]:
    if state.calls.names.isdisjoint(tools):
        return []
    return [item for item in state.calls if item.call.name in tools and not item.denied]


def _beyond(calls: Sequence[CallState], most: int) -> tuple[str, ...]:
    """Return the proposed calls behind the first `most`."""
    return tuple(item.call.id for item in calls[most:] if item.stage == "proposed")


def _received(before: AgentState, after: AgentState, e: ev.EnvelopeReceived) -> AgentState:
    if e.refused:
        return after
    return _with_counts(after, limits.after_receipt(after.inbox.counts, e.envelope))


def _turn_began(before: AgentState, after: AgentState, e: ev.TurnBegan) -> AgentState:
    cause = next((envelope for envelope in before.inbox.mail if envelope.id == e.cause), None)
    return _with_counts(after, limits.after_wake(after.inbox.counts, cause, e.at))


def _merged(before: AgentState, after: AgentState, e: ev.ResultsMerged) -> AgentState:
    if before.calls.names.isdisjoint(_COUNTED):
        return after
    done = [item.call.name for item in before.calls if not item.is_error]
    sent = sum(name in MAIL_TOOLS for name in done)
    created = sum(name in TASK_TOOLS for name in done)
    if not sent and not created:
        return after
    counts = limits.after_sending(after.inbox.counts, sent, e.at)
    return _with_counts(after, limits.after_creating(counts, created, e.at))


def _stuck(before: AgentState, after: AgentState, e: ev.StuckNoticed) -> AgentState:
    if e.action == "stop" and (e.pattern == "mail" or e.pattern == "tasks"):
        return _with_counts(after, limits.after_flood(after.inbox.counts, e.pattern, e.at))
    return after


def _with_counts(state: AgentState, counts: MailCounts) -> AgentState:
    return replace(state, inbox=replace(state.inbox, counts=counts))


_COUNTED = MAIL_TOOLS | TASK_TOOLS
_COUNTS: Mapping[type, Count] = {
    ev.EnvelopeReceived: _received,
    ev.TurnBegan: _turn_began,
    ev.ResultsMerged: _merged,
    ev.StuckNoticed: _stuck,
}
