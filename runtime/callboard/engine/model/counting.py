"""Counting a request with the service, as an operation: nothing waits for it but the model call that it is about.

Nothing is journalled before its end, so that after a crash `decide` just asks again. The service limits counts apart
from messages: they have a lane of their own at the governor, and one that is refused holds no message.
"""

from __future__ import annotations

import anyio

from callboard.core.context.cache.anchors import anchored, marks, unmarked
from callboard.core.context.counting import COUNT, may_later
from callboard.core.rate.key import TRY_AGAIN, counts_of
from callboard.core.recovery.fallback import reader_of
from callboard.core.recovery.turns import model_in_use
from callboard.engine.governor import asking_of
from callboard.engine.loop import Agent
from callboard.ports.model import CallFault, CannotCount, ModelRequest
from callboard.words import events as ev
from callboard.words import steps as st

LONGEST = 20.0
"""Seconds after which the estimate must do."""


async def count_tokens(agent: Agent, step: st.CountTokens) -> None:
    agent.start(COUNT, lambda: _count(agent, step))


async def _count(agent: Agent, step: st.CountTokens) -> None:
    asked = agent.state.conversation
    tokens, why, later = await _answer(agent, await _request(agent))
    now = agent.host.clock.now()
    until = max(now + TRY_AGAIN, _parked_until(agent)) if later else None
    event = ev.TokensCounted(at=now, revision=step.revision, tokens=tokens, why=why, until=until)
    await agent.record(event, unless=lambda state: tokens is not None and state.conversation != asked)


async def _answer(agent: Agent, request: ModelRequest) -> tuple[int | None, str, bool]:
    """The count; or None, why not, and whether it may be had later."""
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


def _parked_until(agent: Agent) -> float:
    return agent.host.governor.parked_until(counts_of(model_in_use(agent.state.recovery, agent.state.me)))


async def _request(agent: Agent) -> ModelRequest:
    """The request as the next call would send it."""
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
