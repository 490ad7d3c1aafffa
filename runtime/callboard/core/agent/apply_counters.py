"""Counters that events change in addition to their own rules: the account, and the signs of repetition. Pure.

A reply is charged as billed. A call without a reply is charged as the service reported it. If the service reported
nothing but may bill the call (it was cut off, or the process died), its whole reservation is charged.

Signs of repetition are in `Turn.stuck`, as `stuck_detector` measures them. A rule of `decide` reacts to them, with a
step and `StuckNoticed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from callboard.core.agent import stuck_detector as st
from callboard.core.agent.changes import Rule
from callboard.core.agent.state import AgentState
from callboard.core.budgets.tree import NOTHING, Account, Amount, amount_of
from callboard.core.frozen import finished, replace
from callboard.core.replies import GOES_ON
from callboard.types import events as ev
from callboard.types.records import Usage

ONE_CALL = Amount(steps=1)

Charge = Callable[[AgentState, Any], Account]
"""Function (state before the event, event) that returns the account after it."""


def _called(state: AgentState, e: ev.ModelCalled) -> Account:
    account = state.budget.account
    if e.purpose == "summary":
        account = replace(_summary_used(state, e.used), summary=amount_of(e.used, 0))
    return replace(account, held=Amount(e.reserved_tokens, e.reserved_usd, 1))


def _replied(state: AgentState, e: ev.ModelReplied | ev.ReplyDropped) -> Account:
    return state.budget.account.with_usage(amount_of(e.usage), _cause(state))


def _interrupted(state: AgentState, e: ev.ReplyInterrupted) -> Account:
    return state.budget.account.with_usage(state.budget.account.held or ONE_CALL, _cause(state))


def _failed(state: AgentState, e: ev.CallFailed) -> Account:
    used = state.budget.account.held or ONE_CALL if e.fault.may_bill or e.fault.kind == "lost" else ONE_CALL
    if e.fault.usage is not None:
        used = amount_of(e.fault.usage)
    return state.budget.account.with_usage(used, _cause(state))


def _edited(state: AgentState, e: ev.ContextEdited) -> Account:
    if e.undoes or state.compaction.summary is None or e.stage != state.compaction.summary.stage:
        return state.budget.account
    return replace(_summary_used(state, e.usage), summary=NOTHING)


def _summary_failed(state: AgentState, e: ev.SummaryFailed) -> Account:
    if e.skipped is not None:
        return state.budget.account
    account = _summary_used(state, e.usage)
    if account.held is not None:  # earlier reports say nothing about this call: it was cut off
        account = account.with_usage(account.held, _cause(state))
    return replace(account, summary=NOTHING)


def _summary_used(state: AgentState, usage: Usage) -> Account:
    """Return the account with the total usage that calls of a summary have reported so far."""
    account = state.budget.account
    used = amount_of(usage, 0).minus(account.summary)
    return account.with_usage(used.plus(ONE_CALL), _cause(state)) if used.tokens else account


def _resumed(state: AgentState, e: ev.AgentResumed) -> Account:
    """Charge the call of a summary whose process is gone. `CallFailed` handles the call of a turn."""
    account = state.budget.account
    if account.held is None or state.model.call is not None:
        return account
    return replace(account.with_usage(account.held, _cause(state)), summary=NOTHING)


def _turn_began(state: AgentState, e: ev.TurnBegan) -> Account:
    account = state.budget.account
    return account if account.fire == NOTHING else replace(account, fire=NOTHING)


def _cause(state: AgentState) -> str:
    return state.turn.cause if state.turn else ""


_CHARGES: Mapping[type, Charge] = {
    ev.ModelCalled: _called,
    ev.ModelReplied: _replied,
    ev.ReplyDropped: _replied,
    ev.ReplyInterrupted: _interrupted,
    ev.CallFailed: _failed,
    ev.ContextEdited: _edited,
    ev.SummaryFailed: _summary_failed,
    ev.AgentResumed: _resumed,
    ev.TurnBegan: _turn_began,
}
"""Events that change an account. Any other event leaves it unchanged."""


def with_account(rules: Mapping[type, Rule]) -> Mapping[type, Rule]:
    """Return the rules, extended for events that also change the account."""
    return {kind: _charging(rule, _CHARGES[kind]) if kind in _CHARGES else rule for kind, rule in rules.items()}


def _charging(rule: Rule, charge: Charge) -> Rule:
    def both(state: AgentState, event: Any) -> AgentState:
        account = charge(state, event)
        after = rule(state, event)
        if account is after.budget.account:
            return after
        return finished(after, state, budget=finished(after.budget, state.budget, account=account))

    return both


Look = Callable[[st.Stuck, AgentState, Any], st.Stuck]
"""Function (repetition before the event, state before it, event) that returns the repetition after the event."""


def with_repetition(rules: Mapping[type, Rule]) -> Mapping[type, Rule]:
    """Return the rules, extended for events that show repetition."""
    return {kind: _looking(rule, _LOOKS[kind]) if kind in _LOOKS else rule for kind, rule in rules.items()}


def _looking(rule: Rule, look: Look) -> Rule:
    def both(state: AgentState, event: Any) -> AgentState:
        after = rule(state, event)
        turn = after.turn
        if turn is None or not after.me.stuck_after:
            return after
        seen = look(turn.stuck, state, event)
        return after if seen is turn.stuck else finished(after, state, turn=replace(turn, stuck=seen))

    return both


def _merged(stuck: st.Stuck, state: AgentState, e: ev.ResultsMerged) -> st.Stuck:
    outcomes = [st.CallOutcome(item.call, item.content, item.is_error, item.denied) for item in state.calls]
    return st.after_step(stuck, outcomes, state.me.stuck_after, waits=e.waits)


def _reply_compared(stuck: st.Stuck, state: AgentState, e: ev.ModelReplied) -> st.Stuck:
    # A paused reply is not over: the service continues it.
    return stuck if e.stop_reason in GOES_ON else st.after_reply(stuck, e.blocks, calls=bool(e.calls))


def _delivered(stuck: st.Stuck, state: AgentState, e: ev.EnvelopesDelivered) -> st.Stuck:
    return st.after_news(stuck)


def _answered(stuck: st.Stuck, state: AgentState, e: ev.AnswerTaken) -> st.Stuck:
    """Return the repetition after an answer.

    An answer to a permission request changes nothing, because it shows in the result of the call: an agent that is
    denied the same thing again and again is stuck.
    """
    return stuck if e.kind == "permission" else st.after_news(stuck)


def _file_seen(stuck: st.Stuck, state: AgentState, e: ev.FileSeen) -> st.Stuck:
    return st.after_change(stuck, "file", e.path, e.digest) if e.changed else stuck


def _task_held(stuck: st.Stuck, state: AgentState, e: ev.TaskHeld) -> st.Stuck:
    return st.after_change(stuck, "task", e.task, str(e.held))


_LOOKS: Mapping[type, Look] = {
    ev.ResultsMerged: _merged,
    ev.ModelReplied: _reply_compared,
    ev.EnvelopesDelivered: _delivered,
    ev.AnswerTaken: _answered,
    ev.FileSeen: _file_seen,
    ev.TaskHeld: _task_held,
}
