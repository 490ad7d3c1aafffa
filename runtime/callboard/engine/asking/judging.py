"""Proposed calls: schema, plan gate, PreToolUse hooks, schema again, rules and mode, and one durable request to ask.

Refuses to run anything: what is allowed here is run by `calling.py`, and each verdict is an event.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial

from callboard.core.asking.gate import gate_refuses
from callboard.core.asking.requests import asked
from callboard.core.bus.authority import authority_of
from callboard.core.names import request_key, short_id
from callboard.core.schema import check_input
from callboard.core.state import AgentState, CallState, Gate
from callboard.engine.loop import Agent
from callboard.engine.tasks.checking import about_losses, judge_check, with_check
from callboard.engine.tools.calls import caller, find_call, gone_from, notice
from callboard.ports.store import Put
from callboard.ports.world import Ruling
from callboard.words import events as ev
from callboard.words import hooks as hk
from callboard.words import steps as st
from callboard.words.values import Json, Request, ToolCall


async def judge(agent: Agent, step: st.Judge) -> None:
    """Hooks and commands may take their time: such a call is judged in an operation of its own. What is judged in a
    few looks at a path is judged here and now, since an operation costs more than that."""
    hooked = agent.host.ports.hooks.has("PreToolUse")
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
    refusal = _unfit(agent, call)
    if refusal is None and agent.host.ports.hooks.has("PreToolUse"):
        verdict = await agent.host.ports.hooks.pre_tool_use(hk.PreToolUse(call, caller(agent)))
        context, by_hook = verdict.context, verdict
        notice(agent, verdict.notices)
        if verdict.decision == "deny" or verdict.halt:
            why = f"Permission denied: {verdict.why or verdict.halt} ({verdict.by})"
            await _deny(agent, call_id, why, verdict.by, verdict.context)
            if verdict.halt:
                await agent.record(ev.Interrupted(at=agent.host.clock.now(), by=verdict.by))
            return
        if verdict.input is not None:
            call = with_check(agent, call.model_copy(update={"input": verdict.input}))
            refusal = _unfit(agent, call)
    if refusal is not None:
        await _deny(agent, call_id, refusal, "schema", context)
        return
    await _rule(agent, one, call, context, by_hook)


def _unfit(agent: Agent, call: ToolCall) -> str | None:
    """Why this call cannot be made as it stands: unknown, or its input does not fit."""
    tools = agent.host.ports.tools
    if call.name not in tools or call.name not in agent.state.me.tools:
        near = difflib.get_close_matches(call.name, agent.state.me.tools, n=3, cutoff=0.5)
        hint = f" Did you mean {', '.join(near)}?" if near else f" Your tools: {', '.join(agent.state.me.tools)}."
        return f"There is no tool `{call.name}` for you.{hint}"
    if call.bad_input is not None:
        return f"The input of {call.name} cannot be used: {call.bad_input}. Send the call again."
    wrong = check_input(tools[call.name].spec.input_schema, call.input)
    return f"The input of {call.name} does not fit: {wrong}. Send the call again." if wrong else None


async def _rule(
    agent: Agent, one: CallState, call: ToolCall, context: tuple[str, ...], hooked: hk.PreVerdict | None
) -> None:
    """Gate, rules and mode; a hook's allow lifts only the ask that the mode would make, its ask always asks."""
    ports, state = agent.host.ports, agent.state
    tool = ports.tools[call.name].spec
    ruling = await ports.judge.judge(call, tool, state.me, ports.archive.folders(state.me), authority_of(state))
    closed = gate_refuses(state.gate, call.name, reads_only=tool.effect == "read" or ruling.reads_only)
    if closed is not None:
        await _deny(agent, call.id, closed, "plan gate", context)
        return
    ruling = await judge_check(agent, call, ruling)
    decision, by, why = ruling.decision, ruling.rule, ruling.why
    if hooked is not None and hooked.decision == "ask" and decision == "allow":
        decision, by, why = "ask", hooked.by, hooked.why
    if hooked is not None and hooked.decision == "allow" and decision == "ask" and ruling.rule.startswith("mode"):
        decision, by, why = "allow", hooked.by, hooked.why
    changed = call.input if call.input is not one.call.input else None
    if decision == "deny":
        await _deny(agent, call.id, f"Permission denied: {why} ({by})", by, context)
    elif decision == "ask":
        why += await about_losses(agent, call)
        await _ask(agent, call, changed, Ruling("ask", by, why, person_only=ruling.person_only), context)
    else:
        judged = ev.CallJudged(
            at=agent.host.clock.now(), call=call.id, verdict="allow", by=by, input=changed, context=context
        )
        await agent.note(judged, unless=_void(call.id, state.gate))


def _void(call_id: str, gate: Gate) -> Callable[[AgentState], bool]:
    """True when the verdict no longer holds: the call is gone, or the gate has moved since it was judged."""
    gone = gone_from(call_id, "proposed")
    return lambda state: gone(state) or state.gate != gate


async def _deny(agent: Agent, call_id: str, why: str, by: str, context: tuple[str, ...] = ()) -> None:
    now = agent.host.clock.now()
    denied = ev.CallJudged(at=now, call=call_id, verdict="deny", by=by, why=why, context=context)
    await agent.note(denied, unless=gone_from(call_id, "proposed"))


async def _ask(agent: Agent, call: ToolCall, changed: Json | None, ruling: Ruling, context: tuple[str, ...]) -> None:
    """One durable request; where nobody can answer, the deadline is now and the answer is no."""
    state, now = agent.state, agent.host.clock.now()
    deadline = state.me.ask_deadline
    payload: Json = {
        "tool": call.name,
        "input": call.input,
        "rule": ruling.rule,
        "why": ruling.why,
        "call_id": call.id,
        "folder": str(agent.host.ports.archive.folders(state.me).root),
    }
    request = asked(
        Request(
            id=_new_id(agent, call.id),
            kind="permission",
            asked_by=agent.name,
            incarnation=state.incarnation,
            may_answer=("person",) if ruling.person_only else ("person", "policy"),
            subject=f"{agent.name} wants to run {call.name}: {ruling.why.partition(chr(10))[0]}",
            payload=payload,
            escalation="refuse" if ruling.person_only else "policy",
            created_at=now,
            expires_at=None if deadline is None else now + deadline,
            cause=authority_of(state),
            person_only=ruling.person_only,
        )
    )
    needed = ev.ApprovalNeeded(
        at=now,
        call=call.id,
        request_id=request.id,
        rule=ruling.rule,
        why=ruling.why,
        input=changed,
        expires_at=request.expires_at,
        context=context,
        digest=request.digest,
    )
    put = Put(request_key(agent.host.session, request.id), request.encode(), expected=0)
    await agent.record(needed, writes=[put], unless=_void(call.id, state.gate))


def _new_id(agent: Agent, call: str) -> str:
    """An answer serves once: a call that is asked for again, since the gate has moved, asks by another id."""
    number, found = 0, short_id("req", call)
    while agent.host.board.request(found) is not None:
        number += 1
        found = short_id("req", call, number)
    return found
