"""Which mail may enter the conversation now, and in a replay: which mail entered it then.

In a team it depends on time which envelopes an agent has before a model call. A recorded run fixes that: each delivery
of the recording is made again, whole, in its order, in a new turn where it began one. Nothing else is delivered. What
has not arrived yet is waited for until `Expected.until`; from then on whatever is there is delivered.
"""

from __future__ import annotations

from itertools import takewhile

from callboard.core.state import AgentState, Delivery, Expected, Facts
from callboard.words import steps as st
from callboard.words.values import Envelope


def deliverable(state: AgentState, facts: Facts) -> list[Envelope]:
    """What goes into the next user message, in order. A schedule's prompt that wants a turn of its own waits for the
    end of this one."""
    expected = _in_force(facts)
    if expected is not None:
        return _as_recorded(state, expected)
    if state.turn is None:
        return list(state.mail)
    own_turn = [e for e in state.mail if e.type == "scheduled" and e.metadata.get("deliver", "turn") == "turn"]
    if state.turn.wakes == () and own_turn and own_turn[0].id == state.turn.cause:
        return own_turn[:1]
    return [e for e in state.mail if e not in own_turn]


def await_recorded(state: AgentState, facts: Facts) -> st.Step | None:
    """In a replay: wait for what the recording delivered at this point, or for somebody to give it up; else None.

    Between turns an agent that has no mail, or a task to claim, goes on: what it does brings the mail.
    """
    expected = _in_force(facts)
    if expected is None:
        return None
    if state.turn is not None:
        due = _next(state, expected)
        return st.Wait(expected.until, "mail, as recorded") if due is not None else None
    waking = any(envelope.mode == "wake" for envelope in state.mail)
    return st.Wait(expected.until, "mail, as recorded") if waking and facts.claimable is None else None


def _in_force(facts: Facts) -> Expected | None:
    """The recording, unless it was waited for in vain."""
    return facts.expected if facts.expected and facts.now < facts.expected.until else None


def _as_recorded(state: AgentState, expected: Expected) -> list[Envelope]:
    """The next delivery of the recording, if all of it is there; for a new turn, if all that came in it before its
    first model call is there: what an agent tells itself, of a task that it took, it can only tell while it is idle."""
    due = _next(state, expected)
    if due is None:
        return []
    later = takewhile(lambda one: not one.begins_turn, expected.deliveries[1:]) if state.turn is None else ()
    there = {envelope.id: envelope for envelope in state.mail}
    complete = all(one in there for delivery in (due, *later) for one in delivery.ids)
    return [there[one] for one in due.ids] if complete else []


def _next(state: AgentState, expected: Expected) -> Delivery | None:
    """The delivery that is due in this turn or begins one; None when this turn has had all of its own."""
    if not expected.deliveries:
        return None
    due = expected.deliveries[0]
    under_way = state.turn is not None and state.turn.wakes != ()
    return None if due.begins_turn and under_way else due
