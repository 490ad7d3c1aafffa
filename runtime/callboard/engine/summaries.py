"""Summaries as operations: the transcript first, then the calls, then the edit. A summary never ends the loop."""

from __future__ import annotations

import json

from callboard.core.context.pipeline import budget_of
from callboard.core.context.summary import SummaryPrompt, accept_summary, summary_edits, summary_fault, summary_request
from callboard.core.decide import SUMMARY
from callboard.core.recovery import back_off, model_in_use, output_limit
from callboard.engine import transcripts
from callboard.engine.loop import Agent
from callboard.engine.memory import history
from callboard.engine.thinking import call_failed, complete, priced
from callboard.ports.model import CallFault, ModelRequest, Reply
from callboard.words import events as ev
from callboard.words import steps as st
from callboard.words.values import Usage

SUMMARY_CHUNK = 400_000
"""Characters of one summary call's data; more is summarised in several."""


async def summarise(agent: Agent, step: st.Summarise) -> None:
    """Write the transcript, record that a summary is wanted, make the calls."""
    if not step.begun:
        transcript = await transcripts.write(agent)
        revision = agent.state.conversation.revision
        await agent.record(
            ev.SummaryBegan(at=agent.host.clock.now(), wanted=step.wanted, revision=revision, transcript=transcript)
        )
    agent.start(SUMMARY, lambda: _summary(agent))


async def _summary(agent: Agent) -> None:
    state = agent.state
    wanted = state.summary
    if wanted is None:
        return
    messages = await history(agent.host.ports.store, state)
    prompts = summary_request(state.conversation, wanted, SUMMARY_CHUNK, messages)
    text, usage = "", Usage()
    for prompt in prompts:
        try:
            reply = await _summary_call(agent, prompt, text)
        except CallFault as failed:
            await _summary_failed(agent, f"{failed.fault.kind}: {failed.fault.message}", usage)
            return
        usage = usage.plus(priced(reply.usage, state.me.limits_of(_summary_model(agent))))
        accepted = accept_summary(reply.blocks, reply.stop_reason)
        if accepted is None:
            await _summary_failed(agent, summary_fault(reply.blocks, reply.stop_reason), usage)
            return
        text = accepted
    agent.host.money.spent += usage.cost_usd
    await _place_summary(agent, text, usage)


async def _place_summary(agent: Agent, text: str, usage: Usage) -> None:
    state = agent.state
    wanted = state.summary
    if wanted is None:
        return
    spec = state.me
    limits = spec.limits_of(model_in_use(state.recovery, spec))
    budget = budget_of(limits, output_limit(state.recovery, spec), state.conversation.overhead, spec.context_limit)
    transcript = state.summary_transcript
    edits = summary_edits(state.conversation, wanted, text, agent.host.known(state), transcript, budget)
    if not edits:
        await _summary_failed(agent, "it would not make the conversation smaller", usage)
        return
    event = ev.ContextEdited(
        at=agent.host.clock.now(),
        stage=wanted.stage,
        trigger=wanted.trigger,
        revision=state.conversation.revision,
        edits=tuple(edits),
        transcript=transcript,
        usage=usage,
    )
    await agent.record(transcripts.measured(state, event), unless=lambda s: s.summary != wanted)


async def _summary_failed(agent: Agent, why: str, usage: Usage) -> None:
    failed = ev.SummaryFailed(at=agent.host.clock.now(), why=why, usage=usage)
    await agent.record(failed, unless=lambda state: state.summary is None)


def _summary_model(agent: Agent) -> str:
    return agent.state.me.small_model or model_in_use(agent.state.recovery, agent.state.me)


async def _summary_call(agent: Agent, prompt: SummaryPrompt, previous: str) -> Reply:
    """One summary call with a recovery of its own: what is transient is tried again, waits included."""
    spec, clock = agent.state.me, agent.host.clock
    attempt = 0
    while True:
        attempt += 1
        request = ModelRequest(
            session=agent.state.session,
            agent=agent.name,
            ordinal=agent.state.compactions + 1,
            attempt=attempt,
            model=_summary_model(agent),
            max_tokens=prompt.max_tokens,
            system=json.dumps([{"type": "text", "text": prompt.system}]).encode(),
            tools=b"[]",
            messages=prompt.messages(previous),
            purpose="summary",
        )
        try:
            return await complete(agent, request, lambda delta: None)
        except CallFault as failed:
            transient = failed.fault.kind in (
                "rate_limited",
                "overloaded",
                "server",
                "connection",
                "silence",
                "bad_reply",
            )
            if not transient or attempt >= spec.attempts:
                raise
            wait = min(failed.fault.retry_after or back_off(attempt - 1, agent.host.ports.dice.draw()), spec.max_wait)
            call = ev.ModelCalled(
                at=clock.now(),
                ordinal=request.ordinal,
                attempt=attempt,
                model=request.model,
                max_tokens=request.max_tokens,
                purpose="summary",
            )
            await agent.record(call_failed(agent, call, failed.fault))
        await clock.sleep_until(clock.now() + wait)
