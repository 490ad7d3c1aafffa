"""What the events of budgets, of the rate governor and of repetition change. Pure; `apply.py` finds the rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from callboard.core.budget.limits import last_words_asked, used_up_key
from callboard.core.budget.tree import raised, used_up
from callboard.core.changes import Rule, queue
from callboard.core.frozen import replace
from callboard.core.recovery.turns import on_switched
from callboard.core.state import AgentState
from callboard.core.stuck import nudge_words, told
from callboard.words import events as ev
from callboard.words.context import Injection
from callboard.words.specs import ModelChoice, PermissionMode
from callboard.words.values import Budget


def _held(state: AgentState, e: ev.CallHeld) -> AgentState:
    return state


def budget_raised(state: AgentState, text: str) -> AgentState:
    """A person raises what it was given. `text`: a `Budget` as JSON; what is none changes nothing."""
    try:
        more = Budget.model_validate_json(text)
    except ValueError:
        return state
    budget = raised(state.me.budget, more)
    return replace(state, spec=state.me.model_copy(update={"budget": budget}))


def mode_chosen(state: AgentState, text: str) -> AgentState:
    """A person chooses the permission mode in which the agent's next calls are judged; what is none changes nothing."""
    if text not in get_args(PermissionMode):
        return state
    return replace(state, spec=state.me.model_copy(update={"permission_mode": text}))


def asking_chosen(state: AgentState, text: str) -> AgentState:
    """How many seconds what the agent asks waits from now on; 0: nobody is there to answer. What is none changes
    nothing."""
    try:
        seconds = float(text)
    except ValueError:
        return state
    if not 0 <= seconds < float("inf"):
        return state
    return replace(state, spec=state.me.model_copy(update={"ask_deadline": seconds}))


def model_chosen(state: AgentState, text: str) -> AgentState:
    """A person chooses the model that is asked from the next call on, also where a fallback model has taken over.
    `text`: a `ModelChoice` as JSON; what is none changes nothing."""
    try:
        chosen = ModelChoice.model_validate_json(text)
    except ValueError:
        return state
    models = {**state.me.models, chosen.name: chosen.limits}
    spec = state.me.model_copy(update={"model": chosen.name, "models": models})
    return replace(state, spec=spec, recovery=on_switched(state.recovery, ""))


def _budget_reached(state: AgentState, e: ev.BudgetReached) -> AgentState:
    if state.turn is None or e.kind in ("agents", "depth"):
        return state  # a new agent was refused: its caller is told, and goes on
    why = used_up(e.budget, e.kind, e.limit, e.spent, e.wanted)
    state = replace(state, turn=replace(state.turn, winding_down=why, last_call=e.winds_down))
    if not e.winds_down:
        return state
    state = replace(state, wound_down=used_up_key(e.budget, e.kind, e.limit))
    return queue(state, Injection(kind="system-reminder", text=last_words_asked(why), key="budget"))


def _stuck(state: AgentState, e: ev.StuckNoticed) -> AgentState:
    if state.turn is None:
        return state
    state = replace(state, turn=replace(state.turn, stuck=told(state.turn.stuck)))
    if e.action == "stop":
        return state
    return queue(state, Injection(kind="system-reminder", text=nudge_words(e.what, e.count), key="stuck"))


LIMIT_RULES: Mapping[type, Rule] = {
    ev.CallHeld: _held,
    ev.BudgetReached: _budget_reached,
    ev.StuckNoticed: _stuck,
}
"""Budgets, rates, repetition."""
