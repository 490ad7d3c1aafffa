"""Model calls of turns as operations, and token counts by the service.

Retry and fallback are rules, not loops here; summaries are in `summarize`.

Only the next model call waits for a count. Nothing is journalled before the end of the count, so `decide` simply asks
again after a crash. The service limits counts separately from messages, so counts have a separate limiter, and a
refused count delays no message.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import anyio

from callboard.core.agent.decide import MODEL, SUMMARY
from callboard.core.agent.rules.compaction import COUNT, may_later
from callboard.core.agent.state import AgentState
from callboard.core.budgets.tree import Amount
from callboard.core.context.cache.breakpoints import marks, with_marks, without_mark
from callboard.core.context.cache.health import Sent
from callboard.core.context.view.messages import calls_of, is_result, is_thinking
from callboard.core.frozen import replace
from callboard.core.keys import call_id
from callboard.core.mcp.catalog import unwrap_call
from callboard.core.rate_limits.key_state import TEST_INTERVAL, count_limiter_name
from callboard.core.recovery.fallback import reader_of
from callboard.core.recovery.retry_policy import grows, is_too_long, model_in_use, next_output_limit, output_limit
from callboard.core.replies import reply_text
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.budgets.budgets import refusal_record
from callboard.engine.rate_limits.limiter import JOURNALLED_WAIT, priority_of
from callboard.engine.scheduling.fire import pause_for
from callboard.ports.model import CallFault, CannotCount, Delta, ModelRequest, OnDelta, Reply, StreamingReply
from callboard.types import events as ev
from callboard.types import steps as st
from callboard.types.agent_spec import ModelLimits
from callboard.types.errors import Conflict
from callboard.types.messages import ViewBlock, ViewMessage
from callboard.types.records import Fault, Json, ToolCall, Usage
from callboard.types.skills import Effort


async def ask_model(agent: AgentRuntime, step: st.AskModel) -> None:
    """Note the call, then make it. The call changes nothing outside; its end is recorded together with the note.

    If a budget applies, the highest possible cost is reserved first, and the note is durable before the call.
    """
    if await _limits_of_others(agent, step.model):
        return  # `decide` runs again with the limits that another agent learned
    worst = Amount(step.reserved_tokens, step.reserved_usd, 1)
    if step.reserved_tokens and agent.runtime.budgets.reserve(agent.state, worst):
        return  # another agent was faster: `decide` sees its reservation
    called = ev.ModelCalled(
        at=agent.runtime.clock.now(),
        ordinal=step.ordinal,
        attempt=step.attempt,
        model=step.model,
        max_tokens=step.max_tokens,
        reserved_tokens=step.reserved_tokens,
        reserved_usd=step.reserved_usd,
        wind_down=step.wind_down,
    )
    # Durable before the call if a budget applies: a call in flight at a crash counts as spent
    # (test_what_is_in_flight_when_the_process_dies_counts_as_spent_and_survives_a_resume).
    await (agent.record(called) if step.reserved_tokens else agent.note(called))
    agent.start(MODEL, lambda: _turn_call(agent, step))


async def learn_limits(agent: AgentRuntime, step: st.LearnLimits) -> None:
    """Record limits that the service stated, and inform the other agents with the same key."""
    stated = agent.runtime.key_limiter.stated.get(step.model, (None, None))
    agent.runtime.key_limiter.stated[step.model] = (step.max_output or stated[0], step.window or stated[1])
    now = agent.runtime.clock.now()
    await agent.record(
        ev.LimitsLearned(at=now, model=step.model, max_output=step.max_output, window=step.window, why=step.why)
    )


async def _limits_of_others(agent: AgentRuntime, model: str) -> bool:
    """Adopt limits that the service stated to another agent, if they are lower than the known ones."""
    stated = agent.runtime.key_limiter.stated.get(model)
    if stated is None:
        return False
    output, window = stated
    limits = agent.state.me.limits_of(model)
    lower = output if output is not None and output < limits.max_output else None
    smaller = window if window is not None and window < limits.window else None
    if lower is None and smaller is None:
        return False
    now = agent.runtime.clock.now()
    await agent.record(ev.LimitsLearned(at=now, model=model, max_output=lower, window=smaller))
    return True


async def reach_budget(agent: AgentRuntime, step: st.ReachBudget) -> None:
    """Record that the next call exceeds a budget; the state knows whether a last call is allowed.

    A schedule pauses when its own budget is used up.
    """
    event = refusal_record(step, agent.runtime.clock.now(), winds_down=step.winds_down)
    try:
        await agent.record(event, writes=pause_for(agent.runtime, step))
    except Conflict as lost:  # a user has changed the schedule: `decide` sees the new row
        await agent.runtime.refresh(lost.what)


async def lose_call(agent: AgentRuntime, step: st.LoseCall) -> None:
    """Record a call as failed, because the process that made it is gone."""
    call = agent.state.model.call
    assert call is not None, "a call without an owner is in the state"
    fault = Fault(kind="lost", message="the process that made the call ended", may_bill=True)
    await agent.record(call_failed(agent, call, fault))


async def remember_sent(agent: AgentRuntime) -> None:
    """Take the current view as the last request, after a resume."""
    state = agent.state
    if state.context.system:
        shared, tools = await agent.prompt_bytes()
        model = model_in_use(state.model.recovery, state.me)
        context = state.context
        agent.watch.resumes(Sent(model, shared, context.own_blocks, tools, context.conversation.messages))


async def _turn_call(agent: AgentRuntime, step: st.AskModel) -> None:
    call = agent.state.model.call
    if call is None:
        return
    streaming = StreamingReply(agent.name, agent.state.identity.incarnation, agent.written_position)
    visible = False

    def on_delta(delta: Delta) -> None:
        nonlocal visible
        # Shown text that is void must be marked in the output, and only such text
        # (test_partial_text_is_marked_as_dropped_whatever_follows, test_a_fault_before_any_word_drops_nothing).
        part = delta.kind in ("text", "thinking", "tool")
        visible = part or (visible and delta.kind != "dropped")
        if part:
            streaming.deltas.append(delta)
        agent.stream(delta, streaming)

    agent.runtime.replies[agent.name] = streaming
    try:
        reply = await complete(agent, await _request(agent, step), on_delta)
    except CallFault as failed:
        if visible:  # the streamed text is void, whether a retry, a switch or the end follows
            on_delta(Delta("dropped", f"{failed.fault.kind}: {failed.fault.message}"))
        await agent.record(call_failed(agent, call, failed.fault))
    except anyio.get_cancelled_exc_class():
        # The end of the process also cancels. The call then stays open in the journal, and the next process makes it
        # again (test_a_call_whose_process_died_is_made_again_and_says_that_the_first_may_be_billed).
        if agent.is_cancelled(MODEL):  # interrupted by a rule, not by the end of the process
            text = "".join(delta.text for delta in streaming.deltas if delta.kind == "text")
            interrupted = ev.ReplyInterrupted(at=agent.runtime.clock.now(), ordinal=call.ordinal, text=text)
            await agent.record(interrupted, unless=lambda state: state.model.call != call)
        raise
    else:
        await _take_reply(agent, call, reply)
    finally:
        if agent.runtime.replies.get(agent.name) is streaming:
            del agent.runtime.replies[agent.name]


async def complete(agent: AgentRuntime, request: ModelRequest, on_delta: OnDelta) -> Reply:
    """Make one call, as the rate limits allow. Raises `CallFault`."""
    prefix = agent.watch.prefix(request, agent.state.me)
    priority = priority_of(agent.state, request)
    agent.mark_call_urgent = partial(agent.runtime.key_limiter.mark_urgent, priority)
    async with agent.runtime.key_limiter.slot(priority, prefix) as call:
        if call.delay > JOURNALLED_WAIT:
            now = agent.runtime.clock.now()
            await agent.note(ev.CallHeld(at=now, ordinal=request.ordinal, seconds=call.delay, why=call.reason))

        def handle_delta(delta: Delta) -> None:
            if delta.kind in ("text", "thinking", "tool"):
                call.mark_reply_started()
            on_delta(delta)

        operation = SUMMARY if request.purpose == "summary" else MODEL
        # Its time counts from here, because a wait for the rate limits is not a stall
        # (test_a_stalled_lead_is_told_to_the_person_and_a_model_call_has_its_time_from_its_sending_on).
        agent.mark_started(operation)
        try:
            reply = await agent.runtime.services.model.complete(
                replace(request, on_head=call.apply_headers), handle_delta
            )
        finally:
            agent.since.pop(operation, None)
        call.set_usage(reply.usage)
        return reply


async def _request(agent: AgentRuntime, step: st.AskModel) -> ModelRequest:
    state = agent.state
    shared, tools, messages = await _prompt(agent, step.model)
    context = state.context
    agent.watch.asks(Sent(step.model, shared, context.own_blocks, tools, context.conversation.messages))
    return ModelRequest(
        session=state.identity.session,
        agent=agent.name,
        ordinal=step.ordinal,
        attempt=step.attempt,
        model=step.model,
        max_tokens=step.max_tokens,
        effort=effort_of(state, step.model),
        thinking=thinking_of(state, step.model, step.max_tokens),
        shared_system=shared,
        own_blocks=context.own_blocks,
        tools=tools,
        messages=messages,
        first_byte_timeout=state.me.first_byte,
        idle_timeout=state.me.idle,
        total_timeout=state.me.total,
        events=agent.runtime.audience.wants("event"),
    )


async def _prompt(agent: AgentRuntime, model: str) -> tuple[bytes, bytes, list[bytes]]:
    """Return the shared system blocks, the tools, and the messages of a request, with their cache marks."""
    state = agent.state
    shared, tools = await agent.prompt_bytes()
    conversation = state.context.conversation
    indexes = marks(conversation, state.costs.cycle, state.me.limits_of(model))
    # The service accepts four cache marks, and the system prompt and the tools take one each.
    if len(indexes) > 2:
        tools = without_mark(tools)
    return shared, tools, with_marks(conversation, indexes, reader_of(state.me, model))


def effort_of(state: AgentState, model: str) -> Effort:
    """Return the effort to request; empty for the service's default."""
    wanted = (state.turn.effort if state.turn else "") or state.me.effort
    return wanted if wanted and state.me.limits_of(model).effort else ""


def thinking_of(state: AgentState, model: str, max_tokens: int) -> Json | None:
    """Return the thinking to request from a model; None for none.

    A turn keeps the form in which it began: another one makes the service read the whole conversation again, and a
    budget is refused if the loop's first reply, as this model gets it, does not begin with thinking (the service's page
    on extended thinking, "Toggling thinking modes in conversations").
    """
    wire = state.me.thinking_wire(model, max_tokens)
    if wire is None or wire["type"] != "enabled":
        return wire
    first = _first_of_loop(state.context.conversation.messages, reader_of(state.me, model))
    return wire if not first or is_thinking(first[0].data) else None


def _first_of_loop(messages: Sequence[ViewMessage], reader: str) -> tuple[ViewBlock, ...]:
    """Return the blocks that `reader` gets of the first reply in the tool loop at the end; empty outside of a loop."""
    first: tuple[ViewBlock, ...] = ()
    for message in reversed(messages):
        if message.role == "assistant":
            sent = tuple(block for block in message.blocks if block.by in ("", reader))
            if sent and is_thinking(sent[0].data):
                return sent  # this loop had thinking before, so its first reply has it, too
            first = sent or first
        elif not any(map(is_result, message.blocks)):
            break
    return first


async def _take_reply(agent: AgentRuntime, call: ev.ModelCalled, reply: Reply) -> None:
    """Handle a complete reply: keep it, ask again with a higher output limit, or treat the prompt as too long."""
    state = agent.state
    now = agent.runtime.clock.now()
    usage = with_cost(reply.usage, state.me.limits_of(call.model))
    if is_too_long(reply.stop_reason):
        full = "the context window is full"
        agent.stream(Delta("dropped", full))
        fault = Fault(kind="too_long", type=reply.stop_reason, message=full, usage=usage, may_bill=True)
        # Shown to the user if the turn ends with it
        # (test_the_text_of_a_reply_that_a_full_window_cut_is_kept_if_the_turn_ends_by_it).
        text = reply_text(reply.blocks).strip()
        await agent.record(call_failed(agent, call, fault).model_copy(update={"text": text}))
        return
    blocks = list(reply.blocks)
    stop = reply.stop_reason
    # Calls that precede a refusal belong to the refused reply
    # (test_a_refusal_ends_the_turn_and_what_it_had_begun_to_call_never_runs).
    if stop == "refusal":  # these calls never run
        blocks = [block for block in blocks if block.get("type") == "text"]
    if stop == "max_tokens":
        # If a budget allowed less output than the agent would ask for, no higher limit is available.
        lowered = call.max_tokens < output_limit(state.model.recovery, state.me)
        higher = None if lowered else next_output_limit(state.model.recovery, state.me)
        name, characters = reply.cut_call or ("", 0)
        # A call whose input grows with the limit is not asked for again with a higher limit
        # (test_an_input_that_grows_with_the_limit_is_asked_for_in_smaller_parts).
        if higher is not None and not grows(state.model.recovery, name, characters):
            agent.stream(Delta("dropped", "cut at the output limit"))
            reason = "cut at the output limit"
            cut = {"cut_call": name, "cut_characters": characters}
            dropped = ev.ReplyDropped(at=now, ordinal=call.ordinal, why=reason, usage=usage).model_copy(update=cut)
            await agent.record(dropped, ev.OutputRaised(at=now, limit=higher))
            return
        blocks = [block for block in blocks if block.get("type") == "text"]
    blocks, trimmed = _sendable(_with_unique_ids(agent, blocks, call.ordinal))
    replied = ev.ModelReplied(
        at=now,
        ordinal=call.ordinal,
        model=reply.model or call.model,
        stop_reason=stop,
        blocks=tuple(blocks),
        calls=_calls(agent, call.ordinal, blocks, reply.bad_inputs),
        usage=usage,
        message_id=reply.message_id,
        draw=agent.runtime.services.dice.draw(),
        cut_call=reply.cut_call[0] if reply.cut_call else "",
        trimmed="\n" if reply.cut_call else trimmed if stop == "max_tokens" else "",
    )
    thrash = agent.watch.thrash_event(state, replied)
    await agent.record(*((replied, thrash) if thrash else (replied,)))


def _with_unique_ids(agent: AgentRuntime, blocks: list[Json], ordinal: int) -> list[Json]:
    """Return the blocks with another id for each call whose id the conversation has already.

    Some gateways use the same ids in each reply. The service refuses a conversation that has an id twice.
    """
    if not any(block.get("type") == "tool_use" for block in blocks):
        return blocks
    if agent.use_ids is None:  # later ids are added, because a search of a long conversation at each reply takes long
        messages = agent.state.context.conversation.messages
        agent.use_ids = {str(call.get("id")) for message in messages for call in calls_of(message)}
    known = agent.use_ids
    unique: list[Json] = []
    for block in blocks:
        if block.get("type") == "tool_use":
            use_id = str(block.get("id"))
            while use_id in known:
                use_id = f"{use_id}-{ordinal}"
            known.add(use_id)
            block = {**block, "id": use_id}
        unique.append(block)
    return unique


def _sendable(blocks: list[Json]) -> tuple[list[Json], str]:
    """Return the blocks in a form that may be sent back, and the removed white space.

    The sent form has no empty text, and no white space at the end.
    """
    sent = [block for block in blocks if block.get("type") != "text" or str(block.get("text", "")).strip()]
    if not sent or sent[-1].get("type") != "text":
        return sent, ""
    text = str(sent[-1]["text"])
    # The service refuses a request whose last assistant text ends with white space, or has an empty text block.
    sent[-1] = {**sent[-1], "text": text.rstrip()}
    return sent, text[len(text.rstrip()) :]


def _calls(agent: AgentRuntime, ordinal: int, blocks: Sequence[Json], bad: dict[int, str]) -> tuple[ToolCall, ...]:
    """Return the tool calls of a reply, with ids from the number of the model call."""
    state = agent.state
    calls: list[ToolCall] = []
    for place, block in enumerate(blocks):
        if block.get("type") != "tool_use":
            continue
        raw = block.get("input")
        tool_input = cast("Json", raw) if isinstance(raw, dict) else {}
        wrong = bad.get(place) or (None if isinstance(raw, dict) else "the input is not a JSON object")
        calls.append(
            unwrap_call(
                ToolCall(
                    id=call_id(
                        state.identity.session,
                        agent.name,
                        incarnation=state.identity.incarnation,
                        ordinal=ordinal,
                        index=place,
                    ),
                    use_id=str(block.get("id", "")),
                    name=str(block.get("name", "")),
                    input=tool_input,
                    bad_input=wrong,
                )
            )
        )
    return tuple(calls)


def with_cost(usage: Usage, limits: ModelLimits) -> Usage:
    """Return the usage with its cost in US dollars, or with its tokens as unpriced."""
    unpriced = 0 if limits.priced else usage.prompt_tokens + usage.output_tokens
    return usage.model_copy(update={"cost_usd": limits.cost_of(usage), "unpriced_tokens": unpriced})


def call_failed(agent: AgentRuntime, call: ev.ModelCalled, fault: Fault) -> ev.CallFailed:
    """Return the record of a call without a reply, with its known cost."""
    if fault.usage is not None:
        fault = fault.model_copy(update={"usage": with_cost(fault.usage, agent.state.me.limits_of(call.model))})
    return ev.CallFailed(
        at=agent.runtime.clock.now(),
        ordinal=call.ordinal,
        attempt=call.attempt,
        model=call.model,
        purpose=call.purpose,
        fault=fault,
        draw=agent.runtime.services.dice.draw(),
    )


LONGEST_COUNT = 20.0
"""Most seconds to wait for a count. After that the estimate is used."""


async def count_tokens(agent: AgentRuntime, step: st.CountTokens) -> None:
    """Start the operation that has the service count the tokens of the next request."""
    agent.start(COUNT, lambda: _count(agent, step))


async def _count(agent: AgentRuntime, step: st.CountTokens) -> None:
    counted = agent.state.context.conversation
    tokens, reason, later = await _count_answer(agent, await _count_request(agent))
    now = agent.runtime.clock.now()
    until = max(now + TEST_INTERVAL, _parked_until(agent)) if later else None
    event = ev.TokensCounted(at=now, revision=step.revision, tokens=tokens, why=reason, until=until)
    await agent.record(event, unless=lambda state: tokens is not None and state.context.conversation != counted)


async def _count_answer(agent: AgentRuntime, request: ModelRequest) -> tuple[int | None, str, bool]:
    """Return the count; or None, the reason, and True if it may be available later."""
    if _parked_until(agent) > agent.runtime.clock.now() + LONGEST_COUNT:
        return None, "counts of tokens are parked", True
    sent = False
    with anyio.move_on_after(LONGEST_COUNT):
        try:
            async with agent.runtime.key_limiter.count_slot(priority_of(agent.state, request)):
                sent = True
                return await agent.runtime.services.model.count(request), "", False
        except CannotCount as no:
            return None, str(no), may_later(no.fault)
        except CallFault as refused:
            return None, str(refused), True
    return None, f"no answer within {LONGEST_COUNT:g} s", not sent


def _parked_until(agent: AgentRuntime) -> float:
    """Return the time until which counts of the current model are parked."""
    return agent.runtime.key_limiter.parked_until(
        count_limiter_name(model_in_use(agent.state.model.recovery, agent.state.me))
    )


async def _count_request(agent: AgentRuntime) -> ModelRequest:
    """Return the request as the next call would send it."""
    state = agent.state
    model = model_in_use(state.model.recovery, state.me)
    shared, tools, messages = await _prompt(agent, model)
    return ModelRequest(
        session=state.identity.session,
        agent=agent.name,
        ordinal=state.model.ordinal + 1,
        attempt=state.context.conversation.revision,
        model=model,
        max_tokens=0,
        shared_system=shared,
        own_blocks=state.context.own_blocks,
        tools=tools,
        messages=messages,
        purpose="count",
        total_timeout=LONGEST_COUNT,
    )
