"""Tool calls as operations: run, repaired after a crash, settled. `judging.py` has spoken before.

The order for one call: schema -> plan gate -> PreToolUse hooks -> schema again -> rules and mode -> ask if needed ->
`ToolStarted` (durable) -> run -> `ToolFinished` (durable, with the tool's writes) -> PostToolUse -> `ToolSettled`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TypeVar

import structlog
from anyio.lowlevel import checkpoint

from callboard.core.context.view.images import fitting
from callboard.engine.guiding import touched
from callboard.engine.hooks.outcomes import after_failure, vetted
from callboard.engine.loop import Agent
from callboard.engine.tools.calls import caller, find_call, gone_from, notice
from callboard.engine.tools.context import tool_context
from callboard.ports.tool import Tool, ToolOutcome
from callboard.words import events as ev
from callboard.words import hooks as hk
from callboard.words import steps as st
from callboard.words.errors import CallboardError, Conflict, NobodyCanAct
from callboard.words.values import Json, ToolCall

CONFLICTS = 20
"""Tries of a tool whose writes lost a compare-and-swap, before it is told to the model."""

T = TypeVar("T")

log = structlog.get_logger("callboard.tools")


async def run(agent: Agent, step: st.Run) -> None:
    """Prepare, make the start durable, then run; what `prepare` refuses never starts."""
    for call_id in step.calls:
        agent.start(f"tool:{call_id}", partial(_prepare_and_run, agent, call_id))
    await checkpoint()  # what is done at once is done before the loop looks again


async def _prepare_and_run(agent: Agent, call_id: str) -> None:
    one = find_call(agent.state, call_id)
    if one is None or one.stage != "allowed":
        return
    tool = agent.host.ports.tools[one.call.name]
    prepared = await _told(agent, one.call, tool.prepare(one.call.input, tool_context(agent, call_id)))
    marks = {} if isinstance(prepared, ToolOutcome) else prepared
    started = ev.ToolStarted(at=agent.host.clock.now(), call=call_id, effect=tool.spec.effect, marks=marks)
    # Before a read or a store tool's result commits there is no effect: after a crash it would just run again.
    write_down = agent.note if tool.spec.effect in ("read", "store") else agent.record
    if not await write_down(started, unless=gone_from(call_id, "allowed")):
        return  # in the meantime the gate closed, or the turn was interrupted
    if isinstance(prepared, ToolOutcome):
        await _finish(agent, one.call, prepared)
    else:
        await _run(agent, tool, one.call)


async def _run(agent: Agent, tool: Tool, call: ToolCall) -> None:
    """Run a tool until its writes commit: who loses a compare-and-swap looks again, on fresh rows."""
    for _ in range(CONFLICTS):
        outcome = await _told(agent, call, tool.run(call.input, tool_context(agent, call.id)))
        try:
            await _finish(agent, call, outcome)
            return
        except Conflict as lost:
            await agent.host.refresh(lost.what)
    text = f"{call.name} gave up: others kept changing the same rows. Try again."
    await _finish(agent, call, ToolOutcome(text, is_error=True))


async def _told(agent: Agent, call: ToolCall, work: Awaitable[T]) -> T | ToolOutcome:
    """What a part of a tool returned. Its refusals and its bugs are results; damage and a full disk are not."""
    try:
        return await work
    except NobodyCanAct:
        raise
    except CallboardError as failed:
        return ToolOutcome(str(failed), is_error=True)
    except Exception as bug:  # any other exception of a tool is told to the model; the trace goes to the log
        log.exception("tool failed", agent=agent.name, tool=call.name, call=call.id)
        return ToolOutcome(f"{type(bug).__name__}: {bug}", is_error=True)


async def _finish(agent: Agent, call: ToolCall, outcome: ToolOutcome) -> None:
    outcome = await vetted(agent, call, outcome)
    content = _content(outcome.content)
    finished = ev.ToolFinished(
        at=agent.host.clock.now(),
        call=call.id,
        content=content,
        is_error=outcome.is_error,
        data=outcome.data,
        ends_turn=outcome.ends_turn,
    )
    void = gone_from(call.id, "started")
    events = (*outcome.events, *await touched(agent, outcome))
    if _runs_again(agent, call) and not outcome.writes:
        await agent.note(finished, *events, unless=void)
    else:
        with agent.host.mailboxes.coming(outcome.writes):
            await agent.record(finished, *events, writes=outcome.writes, unless=void)


def _runs_again(agent: Agent, call: ToolCall) -> bool:
    """A lost result of this call costs nothing but a second look: it reads, and no hook has acted on what it found."""
    tool = agent.host.ports.tools.get(call.name)
    has = agent.host.ports.hooks.has
    hooked = has("PostToolUse") or has("PostToolUseFailure")
    return tool is not None and tool.spec.effect == "read" and not hooked


def _content(given: str | Sequence[Json]) -> tuple[Json, ...]:
    if isinstance(given, str):
        return ({"type": "text", "text": given},) if given.strip() else ()
    return fitting(given)  # an image that no request could carry would end the session, not the call


async def repair(agent: Agent, step: st.Repair) -> None:
    """Calls that a process started which is gone: each is repaired as its effect class says."""
    for call_id in step.calls:
        agent.start(f"tool:{call_id}", partial(_repair, agent, call_id))


async def _repair(agent: Agent, call_id: str) -> None:
    one = find_call(agent.state, call_id)
    if one is None or one.stage != "started":
        return
    tool = agent.host.ports.tools.get(one.call.name)
    if tool is None:
        await _finish(agent, one.call, ToolOutcome(f"{one.call.name} is gone; its outcome is unknown.", is_error=True))
        return
    if one.effect in ("read", "store"):
        await _run(agent, tool, one.call)
        return
    outcome = await _told(agent, one.call, tool.repair(one.call.input, one.marks, tool_context(agent, call_id)))
    if outcome is None:
        await _run(agent, tool, one.call)
    else:
        await _finish(agent, one.call, outcome)


async def settle(agent: Agent, step: st.Settle) -> None:
    """Without hooks for it the results stand as they finished."""
    has = agent.host.ports.hooks.has
    if not has("PostToolUse") and not has("PostToolUseFailure"):
        now = agent.host.clock.now()
        await agent.note(*(ev.ToolSettled(at=now, call=call) for call in step.calls))
        return
    for call_id in step.calls:
        agent.start(f"settle:{call_id}", partial(_settle, agent, call_id))


async def _settle(agent: Agent, call_id: str) -> None:
    one = find_call(agent.state, call_id)
    if one is None:
        return
    result = hk.ToolResult(one.content, one.is_error, one.data)
    seconds, by = max(0.0, one.finished_at - one.started_at), caller(agent)
    verdict = await agent.host.ports.hooks.post_tool_use(hk.PostToolUse(one.call, result, seconds, by))
    failed = await after_failure(agent, one, seconds)
    notice(agent, verdict.notices)
    settled = ev.ToolSettled(
        at=agent.host.clock.now(),
        call=call_id,
        content=verdict.content,
        is_error=verdict.is_error,
        context=(*verdict.context, *failed.context),
    )
    events: list[ev.Event] = [settled]
    if verdict.halt or failed.halt:
        events.append(ev.Interrupted(at=settled.at, by=verdict.halt or failed.halt))
    await agent.record(*events, unless=gone_from(call_id, "finished"))
