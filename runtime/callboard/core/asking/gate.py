"""What may run before a plan is approved. Reads only; the gate does not care who asks or what a text says.

gate       calls that may run                                   model is asked
---------  ---------------------------------------------------  --------------
open       all (permissions decide)                             yes
required   reads, shell commands that only read, submit_plan,   yes
           report, messages, questions, own todos
pending    none: the agent waits for the answer                 no
"""

from __future__ import annotations

from callboard.core.state import Gate

BEFORE_APPROVAL = frozenset(
    {
        "submit_plan",
        "report",
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
    }
)
"""Tools that change nothing but the agent's own notes and words, and so may run while a plan is required."""

NOT_RUN = "Not run: waiting for plan approval"


def gate_refuses(gate: Gate, tool: str, *, reads_only: bool) -> str | None:
    """Why the gate stops this call, None when it lets it pass. `reads_only`: effect class read, or a shell command
    that policy rule R allows."""
    if gate.gate == "open" or reads_only:
        return None
    if gate.gate == "pending":
        return f"{NOT_RUN} ({gate.request_id})."
    if tool in BEFORE_APPROVAL:
        return None
    return "Not run: a plan must be approved first. Read what you need, then call submit_plan with your plan."
