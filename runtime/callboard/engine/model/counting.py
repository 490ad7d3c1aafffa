"""Counting a request with the service, as an operation: nothing waits for it but the model call that it is about.

Nothing is journalled before its end, so that after a crash `decide` just asks again.
"""

from __future__ import annotations

import anyio

from callboard.core.context.cache.anchors import anchored, marks, unmarked
from callboard.core.context.counting import COUNT
from callboard.core.recovery.fallback import reader_of
from callboard.core.recovery.turns import model_in_use
from callboard.engine.loop import Agent
from callboard.ports.model import CannotCount, ModelRequest
from callboard.words import events as ev
from callboard.words import steps as st

LONGEST = 20.0
"""Seconds after which the estimate must do."""


async def count_tokens(agent: Agent, step: st.CountTokens) -> None:
    agent.start(COUNT, lambda: _count(agent, step))


async def _count(agent: Agent, step: st.CountTokens) -> None:
    asked = agent.state.conversation
    tokens, why = None, f"no answer within {LONGEST:g} s"
    with anyio.move_on_after(LONGEST):
        try:
            tokens, why = await agent.host.ports.model.count(await _request(agent)), ""
        except CannotCount as no:
            why = str(no)
    event = ev.TokensCounted(at=agent.host.clock.now(), revision=step.revision, tokens=tokens, why=why)
    await agent.record(event, unless=lambda state: tokens is not None and state.conversation != asked)


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
