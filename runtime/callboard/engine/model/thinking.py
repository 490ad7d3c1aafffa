"""Model calls of turns as operations. Retry and fallback are rules, not loops here; summaries stand in `summaries`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import anyio

from callboard.core.budget.tree import Amount
from callboard.core.context.cache.anchors import anchored, marks, unmarked
from callboard.core.context.cache.health import Sent
from callboard.core.decide import MODEL, SUMMARY
from callboard.core.names import call_id
from callboard.core.recovery.fallback import reader_of
from callboard.core.recovery.turns import is_too_long, model_in_use, next_output_limit, output_limit
from callboard.engine.governor import HELD, asking_of
from callboard.engine.loop import Agent
from callboard.engine.money.budgets import reached
from callboard.engine.schedules.pausing import pause_for
from callboard.engine.tools.servers import unwrapped
from callboard.ports.model import CallFault, Delta, ModelRequest, OnDelta, Reply
from callboard.words import events as ev
from callboard.words import steps as st
from callboard.words.errors import Conflict
from callboard.words.specs import ModelLimits
from callboard.words.values import Fault, Json, ToolCall, Usage


async def ask_model(agent: Agent, step: st.AskModel) -> None:
    """Note that the call is made, then make it: it changes nothing outside, and its end is recorded with this.

    Where a budget holds, the worst that it may cost is held back first, and the note is durable before the call: what
    is in flight when the process dies counts as spent.
    """
    worst = Amount(step.reserved_tokens, step.reserved_usd, 1)
    if step.reserved_tokens and agent.host.budgets.reserve(agent.state, worst):
        return  # another agent was faster: `decide` sees it
    called = ev.ModelCalled(
        at=agent.host.clock.now(),
        ordinal=step.ordinal,
        attempt=step.attempt,
        model=step.model,
        max_tokens=step.max_tokens,
        reserved_tokens=step.reserved_tokens,
        reserved_usd=step.reserved_usd,
        wind_down=step.wind_down,
    )
    await (agent.record(called) if step.reserved_tokens else agent.note(called))
    agent.start(MODEL, lambda: _turn_call(agent, step))


async def reach_budget(agent: Agent, step: st.ReachBudget) -> None:
    """The next call does not fit: say so; the state knows whether a last one is left. A schedule whose own budget is
    used up pauses with it."""
    event = reached(step, agent.host.clock.now(), winds_down=step.winds_down)
    try:
        await agent.record(event, writes=pause_for(agent.host, step))
    except Conflict as lost:  # a person has changed the schedule: `decide` sees it as it stands now
        await agent.host.refresh(lost.what)


async def lose_call(agent: Agent, step: st.LoseCall) -> None:
    """The process that made the call is gone."""
    call = agent.state.call
    assert call is not None, "a call without an owner is in the state"
    fault = Fault(kind="lost", message="the process that made the call ended", may_bill=True)
    await agent.record(call_failed(agent, call, fault))


async def remember_sent(agent: Agent) -> None:
    """After a resume: what stands now is what was sent before, as far as anybody here can know."""
    state = agent.state
    if state.system:
        system, tools = await agent.prompt_bytes()
        model = model_in_use(state.recovery, state.me)
        agent.watch.resumes(Sent(model, system, tools, state.conversation.messages))


async def _turn_call(agent: Agent, step: st.AskModel) -> None:
    said: list[str] = []
    shown = False

    def heard(delta: Delta) -> None:
        nonlocal shown
        shown = delta.kind in ("text", "thinking", "tool") or (shown and delta.kind != "dropped")
        if delta.kind == "text":
            said.append(delta.text)
        agent.host.streamed(agent.name, delta)

    call = agent.state.call
    if call is None:
        return
    try:
        reply = await complete(agent, await _request(agent, step), heard)
    except CallFault as failed:
        if shown:  # whatever follows, a retry, a switch or the end: what streamed is void
            heard(Delta("dropped", f"{failed.fault.kind}: {failed.fault.message}"))
        await agent.record(call_failed(agent, call, failed.fault))
    except anyio.get_cancelled_exc_class():
        if agent.operations[MODEL].cancel_called:  # interrupted by a rule, not by the end of the process
            interrupted = ev.ReplyInterrupted(at=agent.host.clock.now(), ordinal=call.ordinal, text="".join(said))
            await agent.record(interrupted, unless=lambda state: state.call != call)
        raise
    else:
        await _take_reply(agent, call, reply)


async def complete(agent: Agent, request: ModelRequest, heard: OnDelta) -> Reply:
    """One call, as one of those that the governor lets through together. Raises `CallFault`."""
    prefix = agent.watch.prefix(request, agent.state.me.limits_of(request.model))
    async with agent.host.governor.slot(asking_of(agent.state, request), prefix) as call:
        if call.held > HELD:
            now = agent.host.clock.now()
            await agent.note(ev.CallHeld(at=now, ordinal=request.ordinal, seconds=call.held, why=call.why))

        def hear(delta: Delta) -> None:
            if delta.kind in ("text", "thinking", "tool"):
                call.begun()
            heard(delta)

        operation = SUMMARY if request.purpose == "summary" else MODEL
        agent.begun(operation)
        try:
            reply = await agent.host.ports.model.complete(replace(request, on_head=call.headed), hear)
        finally:
            agent.since.pop(operation, None)
        call.used(reply.usage)
        return reply


async def _request(agent: Agent, step: st.AskModel) -> ModelRequest:
    state = agent.state
    system, tools = await agent.prompt_bytes()
    limits = state.me.limits_of(step.model)
    if len(marks(state.conversation, state.cycle, limits)) > 2:
        tools = unmarked(tools)
    agent.watch.asks(Sent(step.model, system, tools, state.conversation.messages))
    return ModelRequest(
        session=state.session,
        agent=agent.name,
        ordinal=step.ordinal,
        attempt=step.attempt,
        model=step.model,
        max_tokens=step.max_tokens,
        effort=((state.turn.effort if state.turn else "") or state.me.effort) if limits.effort else "",
        system=system,
        tools=tools,
        messages=anchored(state.conversation, state.cycle, limits, reader_of(state.me, step.model)),
        first_byte_timeout=state.me.first_byte,
        idle_timeout=state.me.idle,
        total_timeout=state.me.total,
    )


async def _take_reply(agent: Agent, call: ev.ModelCalled, reply: Reply) -> None:
    """A whole reply: keep it, or ask again with a higher output limit, or treat it as a prompt that was too long."""
    state, now = agent.state, agent.host.clock.now()
    usage = priced(reply.usage, state.me.limits_of(call.model))
    if is_too_long(reply.stop_reason):
        full = "the context window is full"
        agent.host.streamed(agent.name, Delta("dropped", full))
        fault = Fault(kind="too_long", type=reply.stop_reason, message=full, usage=usage, may_bill=True)
        await agent.record(call_failed(agent, call, fault))
        return
    blocks, stop = list(reply.blocks), reply.stop_reason
    if stop == "refusal":  # what it had begun to call before it refused never runs
        blocks = [block for block in blocks if block.get("type") == "text"]
    if stop == "max_tokens":
        # One that a budget allowed less output than the agent would ask for is cut for good: more is not to be had.
        lowered = call.max_tokens < output_limit(state.recovery, state.me)
        higher = None if lowered else next_output_limit(state.recovery, state.me)
        if higher is not None:
            agent.host.streamed(agent.name, Delta("dropped", "cut at the output limit"))
            await agent.record(
                ev.ReplyDropped(at=now, ordinal=call.ordinal, why="cut at the output limit", usage=usage),
                ev.OutputRaised(at=now, limit=higher),
            )
            return
        blocks = [block for block in blocks if block.get("type") == "text"]
    blocks = _sendable(blocks, stop)
    replied = ev.ModelReplied(
        at=now,
        ordinal=call.ordinal,
        model=reply.model or call.model,
        stop_reason=stop,
        blocks=tuple(blocks),
        calls=_calls(agent, call.ordinal, blocks, reply.bad_inputs),
        usage=usage,
        message_id=reply.message_id,
        draw=agent.host.ports.dice.draw(),
    )
    thrash = agent.watch.replied(state, replied)
    await agent.record(*((replied, thrash) if thrash else (replied,)))


def _sendable(blocks: list[Json], stop: str) -> list[Json]:
    """The blocks as they may be sent back: no empty text, no white space at the very end."""
    kept = [block for block in blocks if block.get("type") != "text" or str(block.get("text", "")).strip()]
    if kept and kept[-1].get("type") == "text":
        kept[-1] = {**kept[-1], "text": str(kept[-1]["text"]).rstrip()}
    return kept


def _calls(agent: Agent, ordinal: int, blocks: Sequence[Json], bad: dict[int, str]) -> tuple[ToolCall, ...]:
    """The tool calls of a reply, named by the number of the call that brought it."""
    state = agent.state
    calls: list[ToolCall] = []
    for place, block in enumerate(blocks):
        if block.get("type") != "tool_use":
            continue
        raw = block.get("input")
        given = cast("Json", raw) if isinstance(raw, dict) else {}
        wrong = bad.get(place) or (None if isinstance(raw, dict) else "the input is not a JSON object")
        calls.append(
            unwrapped(
                ToolCall(
                    id=call_id(state.session, agent.name, state.incarnation, ordinal, place),
                    use_id=str(block.get("id", "")),
                    name=str(block.get("name", "")),
                    input=given,
                    bad_input=wrong,
                )
            )
        )
    return tuple(calls)


def priced(usage: Usage, limits: ModelLimits) -> Usage:
    """The usage with its cost in US dollars."""
    return usage.model_copy(update={"cost_usd": limits.cost_of(usage)})


def call_failed(agent: Agent, call: ev.ModelCalled, fault: Fault) -> ev.CallFailed:
    """The record of a call that ended without a reply, with what it is known to have cost."""
    if fault.usage is not None:
        fault = fault.model_copy(update={"usage": priced(fault.usage, agent.state.me.limits_of(call.model))})
    return ev.CallFailed(
        at=agent.host.clock.now(),
        ordinal=call.ordinal,
        attempt=call.attempt,
        model=call.model,
        purpose=call.purpose,
        fault=fault,
        draw=agent.host.ports.dice.draw(),
    )
