"""Tool calls as operations: run, repaired after a crash, settled. `permission_check.py` has allowed them.

The order for one call: schema -> plan gate -> PreToolUse hooks -> schema again -> rules and mode -> ask if needed ->
`ToolStarted` (durable) -> run -> `ToolFinished` (durable, with the tool's writes) -> PostToolUse -> `ToolSettled`. The
last two only if there are hooks on results.

Hooks on the effects of a tool (a task added, a task completed, a plan submitted) run before the commit, so that a
rejected effect never happens: the result of the call contains the rejection. After a crash before the commit the call
runs again, or is repaired, and the hooks run again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from functools import partial
from typing import TypeVar, cast

import structlog
from anyio.lowlevel import checkpoint

from callboard.core.agent.open_calls import CallState
from callboard.core.context.view.sendable import sendable
from callboard.core.keys import request_key, task_key
from callboard.core.utf8 import storable
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.hooks.caller import caller, find_call, left_stage, notice
from callboard.engine.operations.elicit import ask, elicit
from callboard.engine.operations.skills import use_skill
from callboard.engine.operations.tool_context import ImmediateRun, tool_context
from callboard.ports.foreign_code import error_text, result_of_foreign
from callboard.ports.store import Put
from callboard.ports.tool import AnswersAtOnce, CallContext, Tool, ToolOutcome
from callboard.types import events as ev
from callboard.types import hook_answers as hk
from callboard.types import steps as st
from callboard.types.errors import CallboardError, Conflict, NobodyCanAct
from callboard.types.operations import Operation
from callboard.types.records import Grant, Json, Request, Task, ToolCall

CONFLICTS = 20
"""Most attempts of a tool whose writes lose a compare-and-swap. After that the model gets an error."""

T = TypeVar("T")

log = structlog.get_logger("callboard.tools")


async def run(agent: AgentRuntime, step: st.Run) -> None:
    """Prepare the calls, make their start durable, then run them. A call that `prepare` refuses never starts."""
    for call_id in step.calls:
        agent.start(Operation("tool", call_id), partial(prepare_and_run, agent, call_id))
    await checkpoint()  # immediate work is done before the loop continues


def immediate_runner(agent: AgentRuntime, tool: Tool) -> ImmediateRun | None:
    """Return the function that runs allowed calls of a tool if they need no wait.

    None for a tool that always waits, and if hooks change results: a result is durable before they run.
    """
    if getattr(tool, "at_hand", None) is None or _has_result_hooks(agent):
        return None
    return partial(_run_at_once, cast("AnswersAtOnce", tool))


async def _run_at_once(
    tool: AnswersAtOnce, agent: AgentRuntime, call: ToolCall, grants: tuple[Grant, ...]
) -> Sequence[ev.Event]:
    """Return the records of a call, from its start to its end; none if it needs a wait."""
    try:
        outcome = tool.at_hand(call.input, tool_context(agent, call.id, grants))
    except Exception as error:  # noqa: BLE001 - as from `run`
        outcome = _failure(agent, call, error)
    if outcome is None:
        return ()
    notice(agent.runtime, agent.name, outcome.notices)
    started = ev.ToolStarted(at=agent.runtime.clock.now(), call=call.id, effect="read")
    return (started, *await _end_of(agent, call, outcome))


async def prepare_and_run(agent: AgentRuntime, call_id: str) -> None:
    """Run a call if it is allowed and has not started."""
    allowed = find_call(agent.state, call_id)
    if allowed is None or allowed.stage != "allowed":
        return
    tool = agent.runtime.services.tools[allowed.call.name]
    context = _context_of(agent, call_id)
    prepared = await _outcome_of(agent, allowed.call, tool.prepare(allowed.call.input, context))
    marks = {} if isinstance(prepared, ToolOutcome) else prepared
    started = ev.ToolStarted(at=agent.runtime.clock.now(), call=call_id, effect=tool.spec.effect, marks=marks)
    # Before its result commits, a read or a store tool has no effect, so it simply runs again after a crash. A durable
    # start of each read would cost a sync of the disk and save nothing
    # (test_only_what_a_crash_would_do_again_waits_for_the_next_reply).
    at_once = tool.spec.effect in ("read", "store")
    write_down = agent.note if at_once else agent.record
    if not await write_down(started, unless=left_stage(call_id, "allowed")):
        return  # meanwhile the gate closed, or the turn was interrupted
    if isinstance(prepared, ToolOutcome):
        await _finish(agent, allowed.call, prepared)
    else:
        await _run(agent, tool, allowed.call, context if at_once else None)


async def _run(agent: AgentRuntime, tool: Tool, call: ToolCall, context: CallContext | None = None) -> None:
    """Run a tool until its writes commit. After a lost compare-and-swap it runs again on fresh rows.

    `context`: the context of the first attempt, if it was just made.
    """
    for _ in range(CONFLICTS):
        outcome = await _outcome_of(agent, call, tool.run(call.input, context or _context_of(agent, call.id)))
        context = None
        if tool.spec.effect not in ("read", "store"):
            await agent.runtime.check_answers()
        try:
            await _finish(agent, call, outcome)
            return
        except Conflict as lost:
            # The row in memory is older than the one that another process or agent wrote.
            await agent.runtime.refresh(lost.what)
    text = f"{call.name} gave up: others kept changing the same rows. Try again."
    await _finish(agent, call, ToolOutcome(text, is_error=True))


def _context_of(agent: AgentRuntime, call_id: str) -> CallContext:
    """Return the context of a running call: everything that its tool may use."""
    return tool_context(
        agent,
        call_id,
        ask=partial(ask, agent),
        elicit=partial(elicit, agent, call_id),
        use_skill=partial(use_skill, agent, call_id),
    )


async def _outcome_of(agent: AgentRuntime, call: ToolCall, work: Awaitable[T]) -> T | ToolOutcome:
    """Return the outcome of a part of a tool call.

    Refusals and bugs of the tool are outcomes; damage and a full disk raise.
    """
    try:
        return await result_of_foreign(work)
    except Exception as error:  # noqa: BLE001 - the model gets it
        return _failure(agent, call, error)


def _failure(agent: AgentRuntime, call: ToolCall, error: Exception) -> ToolOutcome:
    """Return the outcome for an exception of a tool, which is being handled. Raises one that is none for the model."""
    if isinstance(error, NobodyCanAct):  # a full disk or a damaged store
        raise error
    if isinstance(error, CallboardError):
        return ToolOutcome(storable(str(error)), is_error=True)
    log.error("tool failed", agent=agent.name, tool=call.name, call=call.id, exc_info=error)
    return ToolOutcome(storable(error_text(error)), is_error=True)


async def _finish(agent: AgentRuntime, call: ToolCall, outcome: ToolOutcome) -> None:
    notice(agent.runtime, agent.name, outcome.notices)
    # Before the commit, so that an effect that a hook refuses never happens
    # (test_a_task_that_a_hook_refuses_never_was).
    outcome = await checked_by_hooks(agent, call, outcome)
    void = left_stage(call.id, "started")
    events = await _end_of(agent, call, outcome)
    tool = agent.runtime.services.tools.get(call.name)
    if not _has_result_hooks(agent) and not outcome.writes and tool is not None and tool.spec.effect == "read":
        # It can simply run again after its result was lost
        # (test_only_what_a_crash_would_do_again_waits_for_the_next_reply).
        await agent.note(*events, unless=void)
    else:
        # Counted before the commit: calls of one reply run together, and could fill a mailbox beyond its limit
        # (test_what_is_under_way_counts_and_what_was_not_sent_does_not).
        with agent.runtime.mailboxes.count_coming(outcome.writes):
            await agent.record(*events, writes=outcome.writes, unless=void)


async def _end_of(agent: AgentRuntime, call: ToolCall, outcome: ToolOutcome) -> Sequence[ev.Event]:
    """Return the records of the end of a call: its result, and what the outcome changes."""
    events = (*outcome.events, *await instruction_events(agent, outcome))
    finished = ev.ToolFinished(
        at=agent.runtime.clock.now(),
        call=call.id,
        content=_content_blocks(outcome.content),
        is_error=outcome.is_error,
        data=outcome.data,
        ends_turn=outcome.ends_turn,
        settled=not _has_result_hooks(agent),
    )
    return (finished, *events)


async def instruction_events(agent: AgentRuntime, outcome: ToolOutcome) -> tuple[ev.Event, ...]:
    """Return records that queue the instructions about the files that a tool call touched.

    They commit with its result.
    """
    instructions = agent.runtime.services.instructions
    state = agent.state
    paths = [event.path for event in outcome.events if isinstance(event, ev.FileSeen)]
    if instructions is None or state.context.instructions is None or not paths:
        return ()
    root = str(agent.runtime.services.archive.folders(state.me).root)
    injections = await instructions.touched(state.me, root, paths, state.context.instructions)
    now = agent.runtime.clock.now()
    return tuple(ev.InjectionQueued(at=now, injection=injection) for injection in injections)


def _has_result_hooks(agent: AgentRuntime) -> bool:
    """Return True if hooks may change results of calls before the model reads them."""
    has = agent.runtime.services.hooks.has
    return has("PostToolUse") or has("PostToolUseFailure")


def _content_blocks(content: str | Sequence[Json]) -> tuple[Json, ...]:
    if isinstance(content, str):
        return ({"type": "text", "text": content},) if content.strip() else ()
    return sendable(content)


async def repair(agent: AgentRuntime, step: st.Repair) -> None:
    """Repair, by effect class, each call that a dead process had started."""
    for call_id in step.calls:
        agent.start(Operation("tool", call_id), partial(_repair, agent, call_id))


async def _repair(agent: AgentRuntime, call_id: str) -> None:
    cut_off = find_call(agent.state, call_id)
    if cut_off is None or cut_off.stage != "started":
        return
    tool = agent.runtime.services.tools.get(cut_off.call.name)
    if tool is None:
        await _finish(
            agent, cut_off.call, ToolOutcome(f"{cut_off.call.name} is gone; its outcome is unknown.", is_error=True)
        )
        return
    # Its result was never committed, so nothing happened: it runs again.
    if cut_off.effect in ("read", "store"):
        await _run(agent, tool, cut_off.call)
        return
    outcome = await _outcome_of(
        agent, cut_off.call, tool.repair(cut_off.call.input, cut_off.marks, _context_of(agent, call_id))
    )
    if outcome is None:
        await _run(agent, tool, cut_off.call)
    else:
        await _finish(agent, cut_off.call, outcome)


async def settle(agent: AgentRuntime, step: st.Settle) -> None:
    """Settle calls whose results were recorded alone. Without hooks the results stay unchanged."""
    if not _has_result_hooks(agent):
        now = agent.runtime.clock.now()
        await agent.note(*(ev.ToolSettled(at=now, call=call) for call in step.calls))
        return
    for call_id in step.calls:
        agent.start(Operation("settle", call_id), partial(_settle, agent, call_id))


async def _settle(agent: AgentRuntime, call_id: str) -> None:
    finished = find_call(agent.state, call_id)
    if finished is None:
        return
    result = hk.HookToolResult(finished.content, finished.is_error, finished.data)
    seconds = max(0.0, finished.finished_at - finished.started_at)
    by = caller(agent.runtime, agent.state)
    verdict = await agent.runtime.services.hooks.post_tool_use(hk.PostToolUse(finished.call, result, seconds, by))
    failed = await run_failure_hooks(agent, finished, seconds)
    notice(agent.runtime, agent.name, verdict.notices)
    settled = ev.ToolSettled(
        at=agent.runtime.clock.now(),
        call=call_id,
        content=verdict.content,
        is_error=verdict.is_error,
        context=(*verdict.context, *failed.context),
    )
    events: list[ev.Event] = [settled]
    if verdict.halt or failed.halt:
        events.append(ev.Interrupted(at=settled.at, by=verdict.halt or failed.halt))
    await agent.record(*events, unless=left_stage(call_id, "finished"))


_EVENTS = ("TaskCreated", "TaskCompleted", "PlanSubmitted")


async def checked_by_hooks(agent: AgentRuntime, call: ToolCall, outcome: ToolOutcome) -> ToolOutcome:
    """Return the outcome to commit: unchanged, or an error with a hook's reason and no writes."""
    hooks = agent.runtime.services.hooks
    if not outcome.writes or not any(hooks.has(event_name) for event_name in _EVENTS):
        return outcome
    for event in list(_hook_events(agent, outcome)):
        if not hooks.has(type(event).__name__):
            continue
        verdict = await hooks.fire(event)
        notice(agent.runtime, agent.name, verdict.notices)
        reason = verdict.block or verdict.halt
        if not reason:
            continue
        ends = (ev.Interrupted(at=agent.runtime.clock.now(), by=verdict.halt),) if verdict.halt else ()
        return ToolOutcome(f"{_refusal_text(event)}: {reason} ({verdict.by or 'a hook'})", is_error=True, events=ends)
    return outcome


def _hook_events(
    agent: AgentRuntime, outcome: ToolOutcome
) -> Iterator[hk.TaskCreated | hk.TaskCompleted | hk.PlanSubmitted]:
    """Yield the events that the outcome's writes would cause and that hooks may deny."""
    runtime = agent.runtime
    by = caller(agent.runtime, agent.state)
    for write in outcome.writes:
        if not isinstance(write, Put):
            continue
        if write.key.startswith(task_key(runtime.session, "")):
            yield from _task_events(agent, Task.model_validate_json(write.value), by)
        elif write.key.startswith(request_key(runtime.session, "")):
            request = Request.model_validate_json(write.value)
            if request.kind == "plan" and request.status == "pending" and runtime.rows.request(request.id) is None:
                yield hk.PlanSubmitted(str(request.payload.get("plan", "")), by)


def _task_events(agent: AgentRuntime, task: Task, by: hk.Caller) -> Iterator[hk.TaskCreated | hk.TaskCompleted]:
    before = agent.runtime.rows.task(task.id)
    if before is None:
        yield hk.TaskCreated(task.id, task.subject, task.description, by)
    elif task.status == "completed" and before[0].status != "completed":
        yield hk.TaskCompleted(task.id, task.subject, task.description, task.result or "", by)


def _refusal_text(event: hk.HookEvent) -> str:
    match event:
        case hk.TaskCreated():
            return f"The task {event.subject!r} is not created"
        case hk.TaskCompleted():
            return f"{event.task} is not completed"
        case _:
            return "The plan is rejected by a policy, and nobody was asked. Change it and submit it again"


async def run_failure_hooks(agent: AgentRuntime, call: CallState, seconds: float) -> hk.MomentVerdict:
    """Run the PostToolUseFailure hooks for a failed call."""
    hooks = agent.runtime.services.hooks
    if not call.is_error or not hooks.has("PostToolUseFailure"):
        return hk.MomentVerdict()
    text = "\n".join(str(block["text"]) for block in call.content if block.get("type") == "text")
    verdict = await hooks.fire(
        hk.PostToolUseFailure(call.call, text, seconds=seconds, by=caller(agent.runtime, agent.state))
    )
    notice(agent.runtime, agent.name, verdict.notices)
    return verdict
