"""Events that show whether an agent is stuck: they change `Turn.stuck` in addition to their own rules. Pure.

`core.stuck` has the measures. The reaction is a rule of `core.decide`, a step and `StuckNoticed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from callboard.core.agent import stuck_detector as st
from callboard.core.agent.changes import Rule
from callboard.core.agent.state import AgentState
from callboard.core.frozen import replace
from callboard.core.replies import GOES_ON
from callboard.types import events as ev

Look = Callable[[st.Stuck, AgentState, Any], st.Stuck]
"""Repetition that an event shows: takes the repetition before the event, the state before it, and the event."""


def watched(rules: Mapping[type, Rule]) -> Mapping[type, Rule]:
    """Return the rules, extended for events that show repetition."""
    return {kind: _looking(rule, _LOOKS[kind]) if kind in _LOOKS else rule for kind, rule in rules.items()}


def _looking(rule: Rule, look: Look) -> Rule:
    def both(state: AgentState, event: Any) -> AgentState:
        after = rule(state, event)
        if after.turn is None or not after.me.stuck_after:
            return after
        seen = look(after.turn.stuck, state, event)
        return after if seen is after.turn.stuck else replace(after, turn=replace(after.turn, stuck=seen))

    return both


def _merged(stuck: st.Stuck, state: AgentState, e: ev.ResultsMerged) -> st.Stuck:
    outcomes = [st.CallOutcome(item.call, item.content, item.is_error, item.denied) for item in state.calls]
    return st.stepped(stuck, outcomes, state.me.stuck_after, waits=e.waits)


def _replied(stuck: st.Stuck, state: AgentState, e: ev.ModelReplied) -> st.Stuck:
    # A paused reply is not over: the service goes on with it.
    return stuck if e.stop_reason in GOES_ON else st.replied(stuck, e.blocks, calls=bool(e.calls))


def _delivered(stuck: st.Stuck, state: AgentState, e: ev.EnvelopesDelivered) -> st.Stuck:
    return st.after_news(stuck)


def _answered(stuck: st.Stuck, state: AgentState, e: ev.AnswerTaken) -> st.Stuck:
    """Skip answers to permission requests: they show in the result of the call, so an agent that is denied the same
    thing again and again is stuck."""
    return stuck if e.kind == "permission" else st.after_news(stuck)


def _file_seen(stuck: st.Stuck, state: AgentState, e: ev.FileSeen) -> st.Stuck:
    return st.after_change(stuck, "file", e.path, e.digest) if e.changed else stuck


def _task_held(stuck: st.Stuck, state: AgentState, e: ev.TaskHeld) -> st.Stuck:
    return st.after_change(stuck, "task", e.task, str(e.held))


_LOOKS: Mapping[type, Look] = {
    ev.ResultsMerged: _merged,
    ev.ModelReplied: _replied,
    ev.EnvelopesDelivered: _delivered,
    ev.AnswerTaken: _answered,
    ev.FileSeen: _file_seen,
    ev.TaskHeld: _task_held,
}
