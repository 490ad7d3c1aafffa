"""Subagents: the texts about their end, and those that run in the background. Pure.

outcome    status of the background task    words
---------  -------------------------------  -----------------------------------------
`done`     completed                        (its report alone)
`stopped`  stopped                          was stopped before it was done
`limit`    failed                           reached its limit before it was done
any other  failed                           failed
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from callboard.core.agent.state import AgentState
from callboard.types.events import BackgroundStarted
from callboard.types.records import Cause

ReportStatus = Literal["completed", "failed", "stopped"]
_STATUS: Mapping[str, ReportStatus] = MappingProxyType({"done": "completed", "stopped": "stopped"})
_ENDINGS: Mapping[str, str] = MappingProxyType(
    {"done": "", "limit": "reached its limit before it was done", "stopped": "was stopped before it was done"}
)


def in_background(state: AgentState) -> tuple[BackgroundStarted, ...]:
    """Return the running subagents for which no call of this agent waits."""
    return tuple(task.began for task in state.work.background.values() if task.began.agent and task.status == "running")


def begun_in_background(name: str, description: str, output: str, *, now: float, authority: Cause) -> BackgroundStarted:
    """Return the record that a subagent works and no call waits for it. `output`: file for its report."""
    return BackgroundStarted(
        at=now,
        id=name,
        command=description,
        pid=0,
        started=0.0,
        output=output,
        authority=authority,
        agent=name,
    )


def begun_text(name: str) -> str:
    """Return the result of the call that started a subagent in the background."""
    return (
        f"[Background task {name} started] Its report comes as a message when it has ended: go on with what does "
        "not depend on it, or end your turn."
    )


def report_status(outcome: str) -> ReportStatus:
    """Return the status of a background task for the outcome of its subagent."""
    return _STATUS.get(outcome, "failed")


def ending_words(outcome: str) -> str:
    """Return how a subagent ended that did not finish; empty if it is done."""
    return _ENDINGS.get(outcome, "failed")


def report_text(outcome: str, text: str) -> str:
    """Return a subagent's final text for its caller, with the reason if it did not finish."""
    answer = text.strip() or "(it said nothing)"
    ending = ending_words(outcome)
    return f"[status: {outcome}] The subagent {ending}:\n{answer}" if ending else answer


def notification_text(began: BackgroundStarted, outcome: str, text: str) -> str:
    """Return the message that brings the report of a subagent in the background to its caller."""
    status = report_status(outcome)
    return f"{began.id} {status}\nsubagent: {began.command}\nits report:\n{report_text(outcome, text)}"
