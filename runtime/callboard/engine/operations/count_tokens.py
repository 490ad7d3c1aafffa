"""Token count by the service, as an operation. Only the next model call waits for it.

Nothing is journalled before its end, so that `decide` simply asks again after a crash. The service limits counts
separately from messages, so counts have a separate limiter, and a refused count delays no message.
"""

from __future__ import annotations

import anyio

from callboard.core.agent.rules.compaction import COUNT, may_later
from callboard.core.context.cache.breakpoints import anchored, marks, unmarked
from callboard.core.rate_limits.key_state import TRY_AGAIN, counts_of
from callboard.core.recovery.fallback import reader_of
from callboard.core.recovery.retry_policy import model_in_use
from callboard.engine.loop import AgentRuntime
from callboard.engine.rate_limits.limiter import asking_of
from callboard.ports.model import CallFault, CannotCount, ModelRequest
from callboard.types import events as ev
from callboard.types import steps as st

LONGEST = 20.0
"""Seconds after which the estimate is used instead."""


async def count_tokens(agent: AgentRuntime, step: st.CountTokens) -> None:
    agent.start(COUNT, lambda: _count(agent, step))


async def _count(agent: AgentRuntime, step: st.CountTokens) -> None:
    counted = agent.state.conversation
    tokens, reason, later = await _answer(agent, await _request(agent))
    now = agent.host.clock.now()
    until = max(now + TRY_AGAIN, _parked_until(agent)) if later else None
    event = ev.TokensCounted(at=now, revision=step.revision, tokens=tokens, why=reason, until=until)
    await agent.record(event, unless=lambda state: tokens is not None and state.conversation != counted)


async def _answer(agent: AgentRuntime, request: ModelRequest) -> tuple[int | None, str, bool]:
    """Return the count; or None, the reason, and whether it may be available later."""
    if _parked_until(agent) > agent.host.clock.now() + LONGEST:
        return None, "counts of tokens are parked", True
    sent = False
    with anyio.move_on_after(LONGEST):
        try:
            async with agent.host.governor.counting(asking_of(agent.state, request)):
                sent = True
                return await agent.host.ports.model.count(request), "", False
        except CannotCount as no:
            return None, str(no), may_later(no.fault)
        except CallFault as refused:
            return None, str(refused), True
    return None, f"no answer within {LONGEST:g} s", not sent


def _parked_until(agent: AgentRuntime) -> float:
    """Return the time until which counts of the current model are parked."""
    return agent.host.governor.parked_until(counts_of(model_in_use(agent.state.recovery, agent.state.me)))


async def _request(agent: AgentRuntime) -> ModelRequest:
    """Return the request as the next call would send it."""
    state = agent.state
    system, tools = await agent.prompt_bytes()
    model = model_in_use(state.recovery, state.me)
    limits = state.me.limits_of(model)
    if len(marks(state.conversation, state.cycle, limits)) > 2:  # as the call does: four marks are all that may be
        tools = unmarked(tools)
    return ModelRequest(
        session=state.session,
        agent=agent.name,
        ordinal=state.ordinal + 1,
        attempt=state.conversation.revision,
        model=model,
        max_tokens=0,
        system=system,
        tools=tools,
        messages=anchored(state.conversation, state.cycle, limits, reader_of(state.me, model)),
        purpose="count",
        total_timeout=LONGEST,
    )
