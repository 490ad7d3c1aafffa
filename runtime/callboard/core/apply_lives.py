"""What crashes, waits and stalls change (`AgentState.waits`). Pure; `apply.py` finds the rule of an event.

Some events of other themes end or begin a wait too: their own rules stand elsewhere, `waiting` adds to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from callboard.core.changes import Rule
from callboard.core.frozen import replace
from callboard.core.names import short_id
from callboard.core.state import AgentState, Waits
from callboard.words import events as ev
from callboard.words.values import Envelope

Look = Callable[[Waits, AgentState, Any], Waits]
"""What an event changes of the waits: those before it, the state before it, and the event in."""


def waiting(rules: Mapping[type, Rule]) -> Mapping[type, Rule]:
    """The rules, of which those of some events change the waits beside what they change."""
    return {kind: _looking(rule, _LOOKS[kind]) if kind in _LOOKS else rule for kind, rule in rules.items()}


def _looking(rule: Rule, look: Look) -> Rule:
    def both(state: AgentState, event: Any) -> AgentState:
        after = rule(state, event)
        waits = look(state.waits, state, event)
        return after if waits is after.waits else replace(after, waits=waits)

    return both


def _crashed(state: AgentState, e: ev.AgentCrashed) -> AgentState:
    """Who is parked has its requests taken back in the same commit."""
    if e.again_at is None:
        return replace(state, waits=Waits(crash="parked"))
    return replace(state, waits=replace(state.waits, crash="restarting", held="", stalled=()))


def _wait_began(state: AgentState, e: ev.WaitBegan) -> AgentState:
    return replace(state, waits=replace(state.waits, held=e.what))


def _stalled(state: AgentState, e: ev.StallNoticed) -> AgentState:
    return replace(state, waits=replace(state.waits, stalled=(*state.waits.stalled, e.operation)))


def _resumed(waits: Waits, state: AgentState, e: ev.AgentResumed) -> Waits:
    """Its operations begin anew: nothing is stalled yet, and what it waits for is looked at again."""
    return replace(waits, crash="", held="", stalled=()) if waits.crash or waits.held or waits.stalled else waits


def _goes_on(waits: Waits, state: AgentState, e: ev.ModelCalled | ev.BudgetReached | ev.Interrupted) -> Waits:
    return replace(waits, held="") if waits.held else waits


def _turn_ended(waits: Waits, state: AgentState, e: ev.TurnEnded) -> Waits:
    return replace(waits, held="", stalled=()) if waits.held or waits.stalled else waits


def _finished(waits: Waits, state: AgentState, e: ev.ToolFinished) -> Waits:
    """A question was put to the person, or a message to a mate: the answer comes as mail."""
    call = next((one.call for one in state.calls if one.call.id == e.call), None)
    if call is not None and call.name == "send_message" and not e.is_error:
        return _wrote(waits, str(e.data.get("to", "")), e.call)
    asked = str(e.data.get("request_id", "")) if call is not None and call.name == "ask_person" else ""
    if not asked or e.is_error or asked in waits.questions:
        return waits
    return replace(waits, questions=(*waits.questions, asked))


def _wrote(waits: Waits, to: str, call: str) -> Waits:
    read = {name: message for name, message in waits.read.items() if name != to}
    return replace(waits, replies={**waits.replies, to: short_id("env", call, to)}, read=read)


def _delivered(waits: Waits, state: AgentState, e: ev.EnvelopesDelivered) -> Waits:
    """What answers a message of its own ends the wait for that; a message to it is one that it may answer."""
    for envelope in [one for one in state.mail if one.id in e.ids]:
        answered = [to for to, mine in waits.replies.items() if _answers(envelope, to, mine)]
        if answered:
            waits = replace(waits, replies={to: mine for to, mine in waits.replies.items() if to not in answered})
        if envelope.type == "message":
            waits = replace(waits, read={**waits.read, envelope.sender: envelope.id})
    return waits


def _answers(envelope: Envelope, to: str, mine: str) -> bool:
    """Its author says so, or had read the message when he wrote, or has ended what he did. Not, if the two crossed."""
    if envelope.sender != to:
        return envelope.type == "dead_letter" and envelope.reply_to == mine
    return envelope.type in ("result", "error") or mine in (envelope.reply_to, envelope.metadata.get("read"))


def _received(waits: Waits, state: AgentState, e: ev.EnvelopeReceived) -> Waits:
    if e.refused or e.envelope.type != "answer" or e.envelope.request_id not in waits.questions:
        return waits
    return replace(waits, questions=tuple(one for one in waits.questions if one != e.envelope.request_id))


LIFE_RULES: Mapping[type, Rule] = {
    ev.AgentCrashed: _crashed,
    ev.WaitBegan: _wait_began,
    ev.StallNoticed: _stalled,
}
"""Crashes, waits, stalls."""

_LOOKS: Mapping[type, Look] = {
    ev.AgentResumed: _resumed,
    ev.ModelCalled: _goes_on,
    ev.BudgetReached: _goes_on,
    ev.Interrupted: _goes_on,
    ev.TurnEnded: _turn_ended,
    ev.ToolFinished: _finished,
    ev.EnvelopesDelivered: _delivered,
    ev.EnvelopeReceived: _received,
}
