"""Proposed calls: schema, PreToolUse hooks, schema again, plan gate, rules and mode, hooks in the person's place, ask.

A hook that allows lifts what an allow rule lifts: no deny rule, no ask rule, no floor. Refuses to run anything: what is
allowed here is run by `calling.py`, and each verdict is an event.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from callboard.core.state import CallState
from callboard.engine.asking.permissions import (
    Proposed,
    always_of,
    answered_by_hook,
    ask_person,
    previewed,
    refused_by_gate,
    ruling_of,
    unfit,
    void,
)
from callboard.engine.loop import Agent
from callboard.engine.tasks.checking import judge_check, with_check
from callboard.engine.tools.calls import caller, find_call, gone_from, notice
from callboard.words import events as ev
from callboard.words import hooks as hk
from callboard.words import steps as st
from callboard.words.values import ToolCall


async def judge(agent: Agent, step: st.Judge) -> None:
    """Hooks and commands may take their time: such a call is judged in an operation of its own. What is judged in a
    few looks at a path is judged here and now, since an operation costs more than that."""
    hooks = agent.host.ports.hooks
    hooked = hooks.has("PreToolUse") or hooks.has("PermissionRequest")
    for call_id in step.calls:
        one = find_call(agent.state, call_id)
        tool = agent.host.ports.tools.get(one.call.name) if one else None
        if not hooked and (tool is None or tool.spec.concurrency == "shared"):
            await _judge(agent, call_id)
        else:
            agent.start(f"judge:{call_id}", partial(_judge, agent, call_id))


async def _judge(agent: Agent, call_id: str) -> None:
    one = find_call(agent.state, call_id)
    if one is None:
        return
    call, context, by_hook = with_check(agent, one.call), (), None
    refusal = unfit(agent, call)
    if refusal is None and agent.host.ports.hooks.has("PreToolUse"):
        verdict = await agent.host.ports.hooks.pre_tool_use(hk.PreToolUse(call, caller(agent)))
        context, by_hook = verdict.context, verdict
        notice(agent, verdict.notices)
        if verdict.decision == "deny" or verdict.halt:
            await _refuse(agent, call_id, verdict.by, verdict.why or verdict.halt, verdict.context)
            await _halt(agent, verdict.by, verdict.halt)
            return
        if verdict.input is not None:
            call = with_check(agent, call.model_copy(update={"input": verdict.input}))
            refusal = unfit(agent, call)
    if refusal is not None:
        await _deny(agent, call_id, refusal, "schema", context)
        return
    await _rule(agent, one, call, context, by_hook)


async def _rule(
    agent: Agent, one: CallState, call: ToolCall, context: tuple[str, ...], hooked: hk.PreVerdict | None
) -> None:
    """Gate, rules and mode; a hook's allow lifts what an allow rule lifts, its ask always asks."""
    gate = agent.state.gate
    ruling = await ruling_of(agent, call, hooked)
    closed = refused_by_gate(agent, call, ruling, gate)
    if closed is not None:
        await _deny(agent, call.id, closed, "plan gate", context)
        return
    ruling = await judge_check(agent, call, ruling)
    asks = hooked is not None and hooked.decision == "ask"
    if hooked is not None and asks and ruling.decision == "allow":
        ruling = replace(ruling, decision="ask", rule=hooked.by, why=hooked.why)
    changed = call.input if call.input is not one.call.input else None
    await _settle(agent, Proposed(call, changed, ruling, gate, context, by_hook=asks))


async def _settle(agent: Agent, about: Proposed) -> None:
    """Deny, allow or ask: as the ruling says, or as hooks answer in the person's place."""
    always: tuple[str, ...] = ()
    if about.ruling.decision == "ask":
        always = await always_of(agent, about)
        about = await answered_by_hook(agent, about, always)
    call, ruling = about.call, about.ruling
    match ruling.decision:
        case "ask":
            shown = await previewed(agent, about)
            if isinstance(shown, str):
                await _deny(agent, call.id, shown, "tool", about.context)
            else:
                await ask_person(agent, shown, always)
        case "deny":
            await _refuse(agent, call.id, ruling.rule, ruling.why, about.context, ruling.mode)
            await _halt(agent, ruling.rule, about.halt)
        case "allow":
            judged = ev.CallJudged(
                at=agent.host.clock.now(),
                call=call.id,
                verdict="allow",
                by=ruling.rule,
                input=about.input,
                context=about.context,
                mode=ruling.mode or agent.state.me.permission_mode,
                level=ruling.level,
            )
            await agent.note(judged, unless=void(call.id, about.gate))


async def _refuse(agent: Agent, call_id: str, by: str, why: str, context: tuple[str, ...], mode: str = "") -> None:
    await _deny(agent, call_id, f"Permission denied: {why} ({by})", by, context, mode)


async def _deny(agent: Agent, call_id: str, why: str, by: str, context: tuple[str, ...] = (), mode: str = "") -> None:
    now = agent.host.clock.now()
    mode = mode or agent.state.me.permission_mode
    denied = ev.CallJudged(at=now, call=call_id, verdict="deny", by=by, why=why, context=context, mode=mode)
    await agent.note(denied, unless=gone_from(call_id, "proposed"))


async def _halt(agent: Agent, by: str, why: str) -> None:
    if why:
        await agent.record(ev.Interrupted(at=agent.host.clock.now(), by=by))
