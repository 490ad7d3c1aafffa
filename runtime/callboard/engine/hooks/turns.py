"""Hooks at both ends of a turn: what a person or a schedule says passes them, and a turn that ends asks them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from callboard.core.apply import fold
from callboard.core.bus.mail import injected
from callboard.engine.bus.delivering import delivered
from callboard.engine.loop import Agent
from callboard.engine.tools.calls import caller, notice
from callboard.words import events as ev
from callboard.words import hooks as hk
from callboard.words import steps as st
from callboard.words.context import Injection
from callboard.words.values import Envelope


async def submit_prompts(agent: Agent, envelopes: Sequence[Envelope]) -> None:
    """UserPromptSubmit for each prompt of a person or a schedule; what a hook blocks never enters the conversation."""
    now = agent.host.clock.now()
    events: list[ev.Event] = []
    passed: list[Envelope] = []
    for envelope in envelopes:
        if envelope.type not in ("prompt", "scheduled"):
            passed.append(envelope)
            continue
        origin: Literal["person", "schedule"] = "person" if envelope.type == "prompt" else "schedule"
        prompt = hk.UserPromptSubmit(envelope.content, origin, caller(agent))
        verdict = await agent.host.ports.hooks.user_prompt_submit(prompt)
        notice(agent, verdict.notices)
        blocked = verdict.block or verdict.halt
        if blocked:
            events.append(ev.EnvelopesDropped(at=now, ids=(envelope.id,), why=f"blocked by a hook: {blocked}"))
            continue
        passed.append(envelope)
        for number, text in enumerate(verdict.context):
            note = Injection(kind="user-prompt-submit-hook", text=text, source="hook", key=f"{envelope.id} {number}")
            events.append(ev.InjectionQueued(at=now, injection=note))
    if not passed:
        await agent.record(*events)
        return
    said = ev.EnvelopesDelivered(at=now, ids=tuple(e.id for e in passed), blocks=await delivered(agent, passed))
    while True:
        before = agent.state.injections
        waiting = fold(events, agent.state).injections
        # What is injected stands before the words.
        first = [ev.InjectionsDelivered(at=now, blocks=tuple(injected(one) for one in waiting))] if waiting else []
        if await agent.record(*events, *first, said, unless=lambda state, seen=before: state.injections != seen):
            return


async def ask_stop_hooks(agent: Agent, step: st.AskStopHooks) -> None:
    agent.start("stop-hooks", partial(_stop_hooks, agent))


async def _stop_hooks(agent: Agent) -> None:
    state = agent.state
    turn = state.turn
    if turn is None:
        return
    event = hk.Stop(tuple(state.conversation.messages), turn.text, turn.stop_blocks, caller(agent))
    verdict = await agent.host.ports.hooks.stop(event)
    notice(agent, (*verdict.notices, *([verdict.halt] if verdict.halt else [])))
    ran = ev.StopHookRan(at=agent.host.clock.now(), go_on="" if verdict.halt else verdict.go_on)
    await agent.record(ran, unless=lambda now: now.turn is None or now.turn.id != turn.id)
