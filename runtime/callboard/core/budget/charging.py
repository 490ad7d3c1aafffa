"""What each event changes in an agent's account, beside what its own rule changes in the state. Pure.

A reply is charged as it was billed. A call without a reply is charged as the service told; where it told nothing and
may bill it all the same (it was cut off, the process died), as all that was held back for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from callboard.core.budget.account import Account
from callboard.core.budget.tree import NOTHING, Amount, amount_of
from callboard.core.changes import Rule
from callboard.core.frozen import replace
from callboard.core.state import AgentState
from callboard.words import events as ev
from callboard.words.values import Usage

ONE_CALL = Amount(steps=1)

Charge = Callable[[AgentState, Any], Account]
"""(the state before the event, the event) -> the account after it."""


def _called(state: AgentState, e: ev.ModelCalled) -> Account:
    account = state.account
    if e.purpose == "summary":
        account = replace(_summary_used(state, e.used), summary=amount_of(e.used, 0))
    return replace(account, held=Amount(e.reserved_tokens, e.reserved_usd, 1))


def _replied(state: AgentState, e: ev.ModelReplied | ev.ReplyDropped) -> Account:
    return state.account.using(amount_of(e.usage), _cause(state))


def _interrupted(state: AgentState, e: ev.ReplyInterrupted) -> Account:
    return state.account.using(state.account.held or ONE_CALL, _cause(state))


def _failed(state: AgentState, e: ev.CallFailed) -> Account:
    used = state.account.held or ONE_CALL if e.fault.may_bill or e.fault.kind == "lost" else ONE_CALL
    if e.fault.usage is not None:
        used = amount_of(e.fault.usage)
    return state.account.using(used, _cause(state))


def _edited(state: AgentState, e: ev.ContextEdited) -> Account:
    if e.undoes or state.summary is None or e.stage != state.summary.stage:
        return state.account
    return replace(_summary_used(state, e.usage), summary=NOTHING)


def _summary_failed(state: AgentState, e: ev.SummaryFailed) -> Account:
    if e.skipped is not None:
        return state.account
    account = _summary_used(state, e.usage)
    if account.held is not None:  # what was told before it says nothing of this one: it was cut off
        account = account.using(account.held, _cause(state))
    return replace(account, summary=NOTHING)


def _summary_used(state: AgentState, usage: Usage) -> Account:
    """The account once calls of a summary told what they used so far, in all."""
    account = state.account
    told = amount_of(usage, 0).minus(account.summary)
    return account.using(told.plus(ONE_CALL), _cause(state)) if told.tokens else account


def _resumed(state: AgentState, e: ev.AgentResumed) -> Account:
    """The process that made a summary is gone, and its call with it. The call of a turn is told by `CallFailed`."""
    account = state.account
    if account.held is None or state.call is not None:
        return account
    return replace(account.using(account.held, _cause(state)), summary=NOTHING)


def _turn_began(state: AgentState, e: ev.TurnBegan) -> Account:
    return state.account if state.account.fire == NOTHING else replace(state.account, fire=NOTHING)


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
"""All that changes an account; any other event leaves it as it is."""


def charged(rules: Mapping[type, Rule]) -> Mapping[type, Rule]:
    """The rules, of which those of calls keep the account too."""
    return {kind: _charging(rule, _CHARGES[kind]) if kind in _CHARGES else rule for kind, rule in rules.items()}


def _charging(rule: Rule, charge: Charge) -> Rule:
    def both(state: AgentState, event: Any) -> AgentState:
        account, after = charge(state, event), rule(state, event)
        return after if account is after.account else replace(after, account=account)

    return both
