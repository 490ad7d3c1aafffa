"""Rules for calls before a plan is approved. The gate allows only reads, and ignores the author and the text of a call.

gate       permitted calls                                      model is called
---------  ---------------------------------------------------  ---------------
open       all (permissions decide)                             yes
required   reads, shell commands that only read, submit_plan,   yes
           report, messages, questions, own todos
pending    none: the agent waits for the answer                 no
"""

from __future__ import annotations

from typing import Literal

from callboard.types.lazy_dataclass import dataclass

SUBMIT = "submit_plan"
"""Tool that submits a plan for approval."""
BEFORE_APPROVAL = frozenset(
    {
        SUBMIT,
        "report",
        "refuse_shutdown",
        "send_message",
        "ask_person",
        "todo_write",
        "check_inbox",
        "list_team",
        "list_tasks",
        "get_task",
        "list_crons",
        "load_skill",
        "compact",
        "task_output",
        "bash_output",
    }
)
"""Tools that change only the agent's own notes and messages, and therefore run while a plan is required."""

_NEVER = ("S", "K")
"""Reason codes of denials that no plan, rule or mode overrides."""
_RULE = "rule "
"""Beginning of the reason of a denial by a rule of the settings, which no plan overrides."""
NOT_RUN = "Not run: waiting for plan approval"


@dataclass(frozen=True)
class PlanGate:
    """Plan gate. An approval is bound to one assignment and one digest."""

    gate: Literal["open", "required", "pending"] = "open"
    request_id: str | None = None
    digest: str = ""
    plan: str = ""
    status: str = ""
    choice: str = ""
    """Option of the plan that was approved."""
    task: str = ""
    """Task of the plan; empty: the assignment."""


def gate_refusal(gate: PlanGate, tool: str, *, reads_only: bool, denied_by: str = "") -> str | None:
    """Return the reason for which the gate denies this call; None if the call may pass.

    `reads_only`: effect class read, or a shell command that policy rule R allows. `denied_by`: the reason code or the
    rule that denies the call in any case. A call that no plan permits passes the gate, so that its own denial is
    reported.
    """
    if gate.gate == "open" or reads_only or denied_by in _NEVER or denied_by.startswith(_RULE):
        return None
    if gate.gate == "pending":
        return f"{NOT_RUN} ({gate.request_id})."
    if tool in BEFORE_APPROVAL:
        return None
    return "Not run: a plan must be approved first. Read what you need, then call submit_plan with your plan."
