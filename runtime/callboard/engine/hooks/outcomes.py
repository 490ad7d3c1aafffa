"""Hooks over what a tool would commit: a task on the board, a task completed, a plan put up. They are asked before the
commit, so that what they refuse has never been: the result of the call says so instead.

After a crash before the commit the call runs again, or is repaired, and they are asked again.
"""

from __future__ import annotations

from collections.abc import Iterator

from callboard.core.names import request_key, task_key
from callboard.core.state import CallState
from callboard.engine.loop import Agent
from callboard.engine.tools.calls import caller, notice
from callboard.ports.store import Put
from callboard.ports.tool import ToolOutcome
from callboard.words import events as ev
from callboard.words import hooks as hk
from callboard.words.values import Request, Task, ToolCall

_EVENTS = ("TaskCreated", "TaskCompleted", "PlanSubmitted")


async def vetted(agent: Agent, call: ToolCall, outcome: ToolOutcome) -> ToolOutcome:
    """The outcome as it may be committed: as it is, or an error with a hook's reason and nothing to write."""
    hooks = agent.host.ports.hooks
    if not outcome.writes or not any(hooks.has(one) for one in _EVENTS):
        return outcome
    for event in list(_moments(agent, outcome)):
        if not hooks.has(type(event).__name__):
            continue
        verdict = await hooks.fire(event)
        notice(agent, verdict.notices)
        why = verdict.block or verdict.halt
        if not why:
            continue
        ends = (ev.Interrupted(at=agent.host.clock.now(), by=verdict.halt),) if verdict.halt else ()
        return ToolOutcome(f"{_refused(event)}: {why} ({verdict.by or 'a hook'})", is_error=True, events=ends)
    return outcome


def _moments(agent: Agent, outcome: ToolOutcome) -> Iterator[hk.TaskCreated | hk.TaskCompleted | hk.PlanSubmitted]:
    """What the writes would do that hooks have a say in."""
    host, by = agent.host, caller(agent)
    for write in outcome.writes:
        if not isinstance(write, Put):
            continue
        if write.key.startswith(task_key(host.session, "")):
            yield from _of_task(agent, Task.model_validate_json(write.value), by)
        elif write.key.startswith(request_key(host.session, "")):
            request = Request.model_validate_json(write.value)
            if request.kind == "plan" and request.status == "pending" and host.board.request(request.id) is None:
                yield hk.PlanSubmitted(str(request.payload.get("plan", "")), by)


def _of_task(agent: Agent, task: Task, by: hk.Caller) -> Iterator[hk.TaskCreated | hk.TaskCompleted]:
    before = agent.host.board.task(task.id)
    if before is None:
        yield hk.TaskCreated(task.id, task.subject, task.description, by)
    elif task.status == "completed" and before[0].status != "completed":
        yield hk.TaskCompleted(task.id, task.subject, task.description, task.result or "", by)


def _refused(event: hk.HookEvent) -> str:
    match event:
        case hk.TaskCreated():
            return f"The task {event.subject!r} is not created"
        case hk.TaskCompleted():
            return f"{event.task} is not completed"
        case _:
            return "The plan is rejected by a policy, and nobody was asked. Change it and submit it again"


async def after_failure(agent: Agent, one: CallState, seconds: float) -> hk.MomentVerdict:
    """PostToolUseFailure for a call that has failed."""
    hooks = agent.host.ports.hooks
    if not one.is_error or not hooks.has("PostToolUseFailure"):
        return hk.MomentVerdict()
    text = "\n".join(str(block["text"]) for block in one.content if block.get("type") == "text")
    verdict = await hooks.fire(hk.PostToolUseFailure(one.call, text, seconds=seconds, by=caller(agent)))
    notice(agent, verdict.notices)
    return verdict
