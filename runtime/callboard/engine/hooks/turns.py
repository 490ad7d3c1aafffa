"""Hooks round a turn: asked of what enters the conversation, at a beginning, of a batch of results, and whether a turn
may end.

What they decide stands in the record of the operation that asked them: an operation that was cut asks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import anyio

from callboard.core.apply import fold
from callboard.core.bus.mail import injected
from callboard.core.hooks.moments import BATCH_HOOKS, PROMPT_HOOKS, SKILLS, START_HOOKS, STOP_HOOKS
from callboard.core.recovery.turns import model_in_use
from callboard.engine.bus.delivering import delivered
from callboard.engine.host import AT_WORK
from callboard.engine.loop import Agent
from callboard.engine.skills.expanding import Expanded, expanded, expands
from callboard.engine.tools.calls import caller, notice
from callboard.words import events as ev
from callboard.words import hooks as hk
from callboard.words import steps as st
from callboard.words.context import Injection
from callboard.words.errors import CallboardError, NobodyCanAct, ToolRefused
from callboard.words.values import Envelope, Json

PROMPTS = frozenset({"prompt", "scheduled"})

_SUBMITTED = Injection(kind="user-prompt-submit-hook", text="", source="hook")
_DELIVERED = Injection(kind="envelope-delivered-hook", text="", source="hook")
_BATCH = Injection(kind="post-tool-batch-hook", text="", source="hook")
_SUBAGENT = Injection(kind="subagent-start-hook", text="", source="hook")
_SESSION = Injection(kind="session-start-hook", text="", source="hook")


def hooked(agent: Agent, envelopes: Sequence[Envelope]) -> bool:
    """Whether hooks are asked before these envelopes enter the conversation, or slash commands stand in them."""
    has = agent.host.ports.hooks.has
    if any(expands(agent, one) for one in envelopes):
        return True
    prompts = any(one.type in PROMPTS for one in envelopes)
    return has("EnvelopeDelivered") or (prompts and has("UserPromptSubmit"))


def deliver(agent: Agent, envelopes: Sequence[Envelope]) -> None:
    """Ask the hooks of each, then put into the conversation what passes."""
    agent.start(
        SKILLS if any(expands(agent, one) for one in envelopes) else PROMPT_HOOKS, partial(_deliver, agent, envelopes)
    )


async def _deliver(agent: Agent, envelopes: Sequence[Envelope]) -> None:
    """UserPromptSubmit for each prompt of a person or a schedule: what a hook blocks never enters the conversation.
    EnvelopeDelivered for all that does. A slash command becomes what it stands for."""
    now, has = agent.host.clock.now(), agent.host.ports.hooks.has
    events: list[ev.Event] = []
    passed: list[Envelope] = []
    skills: dict[str, Expanded] = {}
    for envelope in envelopes:
        if envelope.type in PROMPTS and has("UserPromptSubmit"):
            asked = await _submitted(agent, envelope)
            events += asked
            if any(isinstance(one, ev.EnvelopesDropped) for one in asked):
                continue
        if expands(agent, envelope):
            found = await _expanded(agent, envelope)
            if not isinstance(found, Expanded):
                events.append(found)
                continue
            skills[envelope.id] = found
        passed.append(envelope)
        if has("EnvelopeDelivered"):
            events += await _told(agent, envelope)
    if not passed:
        await agent.record(*events)
        return
    blocks = await delivered(agent, passed)
    placed = [(block, *_of(skills, one).blocks) for one, block in zip(passed, blocks, strict=True)]
    said = ev.EnvelopesDelivered(
        at=now, ids=tuple(e.id for e in passed), blocks=tuple(b for row in placed for b in row)
    )
    more = [event for one in passed for event in _of(skills, one).events]
    while True:
        before = agent.state.injections
        waiting = fold(events, agent.state).injections
        # What is injected stands before the words.
        first = [ev.InjectionsDelivered(at=now, blocks=tuple(injected(one) for one in waiting))] if waiting else []
        together = (*events, *first, said, *more)
        if await agent.record(*together, unless=lambda state, seen=before: state.injections != seen):
            return


def _of(skills: Mapping[str, Expanded], envelope: Envelope) -> Expanded:
    return skills.get(envelope.id, Expanded())


async def _expanded(agent: Agent, envelope: Envelope) -> Expanded | ev.EnvelopesDropped:
    """What a slash command became, or that it came to nothing, which the person is told. Interrupted, it is over: it
    does not begin again by itself."""
    try:
        return await expanded(agent, envelope)
    except (CallboardError, OSError, ValueError) as wrong:
        if isinstance(wrong, NobodyCanAct):
            raise
        why = str(wrong) if isinstance(wrong, ToolRefused) else f"{envelope.content.split()[0]}: {wrong}"
        notice(agent, (why,))
        return ev.EnvelopesDropped(at=agent.host.clock.now(), ids=(envelope.id,), why=why, refused=True)
    except anyio.get_cancelled_exc_class():
        turn, now = agent.state.turn, agent.host.clock.now()
        if turn is not None and turn.interrupted:
            await agent.record(ev.EnvelopesDropped(at=now, ids=(envelope.id,), why="interrupted while it began"))
        raise


async def _submitted(agent: Agent, envelope: Envelope) -> list[ev.Event]:
    origin: Literal["person", "schedule"] = "person" if envelope.type == "prompt" else "schedule"
    prompt = hk.UserPromptSubmit(envelope.content, origin, caller(agent))
    verdict = await agent.host.ports.hooks.user_prompt_submit(prompt)
    notice(agent, verdict.notices)
    blocked, now = verdict.block or verdict.halt, agent.host.clock.now()
    if blocked:
        return [ev.EnvelopesDropped(at=now, ids=(envelope.id,), why=f"blocked by a hook: {blocked}")]
    return _notes(agent, _SUBMITTED, verdict.context, f"{envelope.id} ")


async def _told(agent: Agent, envelope: Envelope) -> list[ev.Event]:
    event = hk.EnvelopeDelivered(
        id=envelope.id,
        type=envelope.type,
        sender=envelope.sender,
        text=envelope.content,
        request_id=envelope.request_id or "",
        by=caller(agent),
    )
    verdict = await agent.host.ports.hooks.fire(event)
    notice(agent, verdict.notices)
    return _notes(agent, _DELIVERED, verdict.context, f"{envelope.id} ")


def _notes(agent: Agent, form: Injection, texts: Sequence[str], key: str = "") -> list[ev.Event]:
    """Texts of hooks that wait for the next user message, each in the tag of its moment, as `form` has it."""
    now = agent.host.clock.now()
    notes = [form.model_copy(update={"text": text, "key": f"{key}{n}"}) for n, text in enumerate(texts)]
    return [ev.InjectionQueued(at=now, injection=one) for one in notes]


# Beginnings


async def ask_start_hooks(agent: Agent, step: st.AskStartHooks) -> None:
    """SessionStart, or SubagentStart: what they add stands before the next words of the model."""
    agent.start(START_HOOKS, partial(_start_hooks, agent, step.source))


async def _start_hooks(agent: Agent, source: hk.StartSource) -> None:
    host, state = agent.host, agent.state
    life = (agent.name, state.incarnation)
    event: hk.HookEvent
    if state.me.kind == "subagent":
        event, form = hk.SubagentStart(caller(agent)), _SUBAGENT
    else:
        model = model_in_use(state.recovery, state.me)
        event, form = hk.SessionStart(source, model, caller(agent)), _SESSION
    host.begun[life] = True  # summarised meanwhile, it is asked once more
    asked = False
    try:
        verdict = await host.ports.hooks.fire(event)
        notice(agent, verdict.notices)
        notes = _notes(agent, form, verdict.context)
        if notes:
            await agent.record(*notes)
        asked = True
    finally:
        if not asked:
            del host.begun[life]


# Results


def merge(agent: Agent, waits: bool) -> None:
    """PostToolBatch for the calls of a reply, then their results into the conversation."""
    agent.start(BATCH_HOOKS, partial(_batch_hooks, agent, waits))


async def _batch_hooks(agent: Agent, waits: bool) -> None:
    calls = agent.state.calls
    done = tuple(hk.CallDone(one.call, hk.ToolResult(one.content, one.is_error, one.data)) for one in calls)
    verdict = await agent.host.ports.hooks.fire(hk.PostToolBatch(done, caller(agent)))
    notice(agent, verdict.notices)
    now = agent.host.clock.now()
    events: list[ev.Event] = [ev.ResultsMerged(at=now, waits=waits)]
    events += _notes(agent, _BATCH, verdict.context)
    stopped = verdict.halt or (f"{verdict.by}: {verdict.block}" if verdict.block else "")
    if stopped:
        events.append(ev.Interrupted(at=now, by=stopped))
    await agent.record(*events, unless=lambda state: state.calls != calls)


# Ends


async def ask_stop_hooks(agent: Agent, step: st.AskStopHooks) -> None:
    """Stop, SubagentStop, TeammateIdle: may this turn end?"""
    agent.start(STOP_HOOKS, partial(_stop_hooks, agent))


async def _stop_hooks(agent: Agent) -> None:
    state = agent.state
    turn = state.turn
    if turn is None:
        return
    by, hooks = caller(agent), agent.host.ports.hooks
    event = hk.SubagentStop if state.me.kind == "subagent" else hk.Stop
    view = tuple(state.conversation.messages)
    verdict = await hooks.stop(event(view, turn.text, turn.stop_blocks, *_left(agent), by))
    notice(agent, (*verdict.notices, *([verdict.halt] if verdict.halt else [])))
    go_on, halt = verdict.go_on, verdict.halt
    if not go_on and not halt and state.me.kind == "teammate" and hooks.has("TeammateIdle"):
        idle = await hooks.fire(hk.TeammateIdle(turn.text, turn.stop_blocks, by))
        notice(agent, (*idle.notices, *([idle.halt] if idle.halt else [])))
        go_on, halt = idle.block, idle.halt
        if halt:
            await _stop_teammate(agent, halt, turn.id)
            return
    ran = ev.StopHookRan(at=agent.host.clock.now(), go_on="" if halt else go_on)
    await agent.record(ran, unless=lambda now: now.turn is None or now.turn.id != turn.id)


def _left(agent: Agent) -> tuple[tuple[Json, ...], tuple[Json, ...]]:
    """What of an agent goes on when its turn ends, and what begins by itself, in the documented fields."""
    board, name = agent.host.board, agent.name
    commands: list[Json] = [
        {"id": id, "type": "shell", "status": "running", "description": one.began.command, "command": one.began.command}
        for id, one in agent.state.background.items()
        if one.status == "running"
    ]
    agents: list[Json] = [
        {"id": one.name, "type": one.kind, "status": one.life, "description": "", "agent_type": one.agent_type}
        for one in board.agents()
        if one.parent == name and one.life in AT_WORK
    ]
    crons: list[Json] = [
        {"id": one.id, "schedule": one.cron, "recurring": one.recurring, "prompt": one.prompt}
        for one in board.schedules()
        if one.state == "active" and one.enabled and one.target == name
    ]
    return (*commands, *agents), tuple(crons)


async def _stop_teammate(agent: Agent, why: str, turn: str) -> None:
    """A hook that halts an idle teammate ends its life, as it is documented."""
    now = agent.host.clock.now()
    events = [ev.StopHookRan(at=now, go_on=""), ev.StopAsked(at=now, by="hook", why=why)]
    await agent.record(*events, unless=lambda state: state.turn is None or state.turn.id != turn)
