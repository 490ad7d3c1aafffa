"""Lifecycle of an agent: its states, the changes between them, and the journal events that cause each change. Pure.

A state is derived from the journal (`life`) and stored in the agent's row, with the reason and the beginning of a wait.
The row is written only in the commit of the event that changed the state. While no process hosts the session, the
states are those of the last host, and `team` says so.

    state      meaning
    ---------  ------------------------------------------------------------------------------------------------
    starting   before the first turn, or after a crash of its code that is about to be restarted
    working    in a turn, or writing a summary between turns
    waiting    the agent cannot continue before the event that `waiting_for` names
    idle       between turns; a message, a prompt or a task of the board wakes the agent
    stopping   after an order to stop: running work is ended, open work is settled
    stopped    the life is over; the same name may begin another one
    crashed    after too many crashes of its code in a row: parked until a person resumes the agent

    from       to         by
    ---------  ---------  ------------------------------------------------------------------------------------------
    starting   working    TurnBegan, AgentResumed
    starting   waiting    AgentResumed
    starting   idle       AgentResumed
    starting   stopping   EnvelopeReceived, StopAsked, AgentResumed
    starting   crashed    AgentCrashed
    working    waiting    ApprovalNeeded, CallJudged, ToolStarted, ToolFinished, ToolSettled, ResultsMerged,
                          AnswerTaken, RetryPlanned, WaitBegan, ContextEdited, SummaryFailed, TurnEnded
    working    idle       TurnEnded, ContextEdited, SummaryFailed
    working    starting   AgentCrashed
    working    crashed    AgentCrashed
    working    stopping   EnvelopeReceived, StopAsked, TurnEnded
    waiting    working    AnswerTaken, ToolFinished, ModelCalled, SummaryBegan, BudgetReached, Interrupted, TurnBegan,
                          EnvelopeReceived, AgentResumed
    waiting    idle       EnvelopeReceived, AnswerTaken, TurnEnded
    waiting    starting   AgentCrashed
    waiting    crashed    AgentCrashed
    waiting    stopping   EnvelopeReceived, StopAsked, TurnEnded
    idle       working    TurnBegan, SummaryBegan
    idle       starting   AgentCrashed
    idle       crashed    AgentCrashed
    idle       stopping   EnvelopeReceived, StopAsked
    stopping   starting   AgentCrashed
    stopping   crashed    AgentCrashed
    stopping   stopped    AgentStopped
    crashed    starting   AgentResumed
    crashed    working    AgentResumed
    crashed    waiting    AgentResumed
    crashed    idle       AgentResumed
    crashed    stopping   AgentResumed

The supervisor writes `AgentCrashed` and `AgentResumed`; the agent's own rules decide on the events of a turn. An
`EnvelopeReceived` delivers a stop, an answer, or a request for another plan.
"""

from __future__ import annotations

from callboard.core.agent.rules.worktree import worktree_in_use
from callboard.core.agent.state import AgentState
from callboard.types.records import AgentLife, AgentRow, AgentTotals

_SAID = 200
"""Most characters of an ended agent's final text to store in its row."""

RESTART = "restart"
AT_WORK = frozenset({"starting", "working", "waiting", "stopping"})
"""Lifecycle states of an agent that may still act. A waiting agent continues when its answer comes."""
SUBAGENTS = "subagents"


def life(state: AgentState) -> AgentLife:
    """Return the lifecycle state for the agent's row."""
    return _life(state, waiting_for(state))


def _life(state: AgentState, waits: str) -> AgentLife:
    if state.lifecycle.ended is not None:
        return "stopped"
    if state.waits.crash:
        return "crashed" if state.waits.crash == "parked" else "starting"
    if state.lifecycle.stop:
        return "stopping"
    if waits:
        return "waiting"
    # A summary that a person requested needs no turn, and the same keys stop it
    # (test_it_stops_a_compaction_between_turns_and_says_so).
    if state.turn is not None or state.compaction.summary is not None:
        return "working"
    return "idle" if state.turns.count > 0 else "starting"


def waiting_for(state: AgentState) -> str:
    """Return what the whole agent waits for; empty if some work is in progress, or the life is over.

    `plan ID`, `permission ID`, `question ID` (of requests), `rate`, `budget`, `subagents`, `restart`.
    """
    if state.lifecycle.ended is not None or state.waits.crash:
        return RESTART if state.lifecycle.ended is None and state.waits.crash == "restarting" else ""
    if state.lifecycle.stop:
        return ""
    if state.calls:
        return _waiting_calls(state)
    if state.work.gate.gate == "pending":
        return f"plan {state.work.gate.request_id}"
    if state.turn is None:
        return f"question {state.waits.questions[0]}" if state.waits.questions else ""
    if state.model.call is not None or state.compaction.summary is not None:
        return ""
    return "rate" if state.model.recovery.parked else state.waits.held if state.context.wants_reply else ""


def _waiting_calls(state: AgentState) -> str:
    """Return the common reason why all calls of a reply wait: permissions, or subagents; empty if there is none."""
    stages = state.calls.stages - {"settled"}
    if stages == {"asking"}:
        return f"permission {state.calls.at('asking')[0].request_id}"
    if stages != {"started"}:
        return ""
    children = not state.calls.names - {"task"} or all(call.call.name == "task" for call in state.calls.at("started"))
    return SUBAGENTS if children else ""


def row_after(row: AgentRow, state: AgentState, at: float) -> AgentRow:
    """Return the agent's row with the state from its journal; the same object if nothing changed.

    `at`: time of the newest event (Unix seconds), the beginning of a changed state.
    """
    waiting = waiting_for(state)
    word = _life(state, waiting)
    outcome = state.lifecycle.ended.outcome if state.lifecycle.ended else "failed" if word == "crashed" else ""
    spec = state.identity.spec
    worktree = worktree_in_use(spec) if spec else row.worktree
    if row.life == word and row.waiting_for == waiting and row.outcome == outcome:
        return row if row.worktree == worktree else row.model_copy(update={"worktree": worktree})
    changed = {"life": word, "waiting_for": waiting, "outcome": outcome, "since": at, "worktree": worktree}
    return row.model_copy(update={**changed, "totals": _totals(state) if state.lifecycle.ended else None})


def _totals(state: AgentState) -> AgentTotals:
    """Return the totals of an ended life for its row."""
    message = " ".join(
        (
            state.work.reported
            or (state.lifecycle.ended.result if state.lifecycle.ended else "")
            or state.turns.last_text
        ).split()
    )
    return AgentTotals(
        steps=state.turns.steps,
        usage=state.budget.usage,
        said=message if len(message) <= _SAID else f"{message[: _SAID - 1]}…",
        compacted=dict(sorted(state.compaction.by_stage.items())),
        rereads=state.costs.forgotten.rereads,
    )
