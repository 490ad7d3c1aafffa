"""Subagents in the background, for `task_output` and `task_stop`: read or wait for a report, or end the work.

Each report reaches the caller once: as mail, or as the result of the call of `task_output` that was the first to see
the end. That call records the end, and then no mail is sent.
"""

from __future__ import annotations

import anyio

from callboard.core.team.subagents import report_status, report_text
from callboard.ports.tool import BackgroundTask, CallContext, ToolOutcome
from callboard.types.events import BackgroundEnded

_OVER = ("stopped", "crashed")


async def agent_output(task: BackgroundTask, wait_s: float, context: CallContext) -> ToolOutcome:
    """Return the report of a subagent, or its state. Waits up to `wait_s` seconds for its end; 0: not at all."""
    ended: tuple[str, str] | None = None
    if _is_over(task, context):
        ended = await context.spawner.ended(task.agent)
    elif wait_s:
        with anyio.move_on_after(wait_s):
            ended = await context.spawner.ended(task.agent)
    if ended is None:
        state = "running" if task.status == "running" else f"{task.status}, and about to end"
        return ToolOutcome(f"[{task.id}: {state}]", data={"status": task.status})
    outcome, text = ended
    status = report_status(outcome) if task.status == "running" else task.status
    seen = BackgroundEnded(at=context.now, id=task.id, status=report_status(outcome), agent=task.agent)
    events = (seen,) if task.status == "running" else ()
    report = f"[{task.id}: {status}]\n{report_text(outcome, text)}"
    return ToolOutcome(report, events=events, data={"status": status, "outcome": outcome})


def agent_stop(task: BackgroundTask, context: CallContext) -> ToolOutcome:
    """Order a subagent to stop, in the commit of the result. No report follows."""
    if task.status != "running":
        return ToolOutcome(f"{task.id} has ended already: {task.status}.")
    if _is_over(task, context):
        return ToolOutcome(f"{task.id} had just ended by itself. Its report follows as a message.")
    event = BackgroundEnded(at=context.now, id=task.id, status="stopped", agent=task.agent)
    writes = context.spawner.stop_writes(task.agent)
    return ToolOutcome(f"{task.id} was stopped.", writes=writes, events=(event,), data={"id": task.id})


def _is_over(task: BackgroundTask, context: CallContext) -> bool:
    match = context.board.agent(task.agent)
    return match is not None and match[0].life in _OVER
