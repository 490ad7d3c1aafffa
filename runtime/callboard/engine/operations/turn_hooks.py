"""Hooks around a turn: on content that enters the conversation, at the beginning, on a batch of results, at the end.

Their decisions are part of the record of the operation that ran them. An operation that was cut off runs them again.

A file that the user names as `@path` in a prompt is read as by `read_file` at the delivery of the prompt, if the rules
allow it without a question.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import anyio

from callboard.core.agent.apply import fold
from callboard.core.agent.rules.hooks import BATCH_HOOKS, PROMPT_HOOKS, SKILLS, START_HOOKS, STOP_HOOKS
from callboard.core.context.project_instructions import includes_in
from callboard.core.context.system_prompt import one_line
from callboard.core.context.view.sendable import with_attachments
from callboard.core.messaging.envelopes import defused_parts, injection_block
from callboard.core.recovery.retry_policy import model_in_use
from callboard.core.team.lifecycle import AT_WORK
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.hooks.caller import caller, notice
from callboard.engine.operations.permission_query import permission_query
from callboard.engine.operations.receive import delivery_blocks
from callboard.engine.operations.skills import ExpandedSkill, call_after_hooks, expand, has_expansion, is_prompt
from callboard.engine.operations.tool_context import tool_context
from callboard.ports.tool import ToolOutcome
from callboard.types import events as ev
from callboard.types import hook_answers as hk
from callboard.types import steps as st
from callboard.types.errors import CallboardError, NobodyCanAct, ToolRefused
from callboard.types.late_pattern import late_pattern
from callboard.types.messages import Injection, Placed
from callboard.types.records import Envelope, Json, ToolCall

PROMPTS = frozenset({"prompt", "scheduled"})

_SUBMITTED = Injection(kind="user-prompt-submit-hook", text="", source="hook")
_DELIVERED = Injection(kind="envelope-delivered-hook", text="", source="hook")
_BATCH = Injection(kind="post-tool-batch-hook", text="", source="hook")
_SUBAGENT = Injection(kind="subagent-start-hook", text="", source="hook")
_SESSION = Injection(kind="session-start-hook", text="", source="hook")


def needs_hooks(agent: AgentRuntime, envelopes: Sequence[Envelope]) -> bool:
    """Return True if hooks run before these envelopes enter the conversation.

    Also True if an envelope contains a slash command or may name a file.
    """
    has = agent.runtime.services.hooks.has
    if any(_has_more(agent, envelope) for envelope in envelopes):
        return True
    prompts = any(envelope.type in PROMPTS for envelope in envelopes)
    return has("EnvelopeDelivered") or (prompts and has("UserPromptSubmit"))


def deliver_with_hooks(agent: AgentRuntime, envelopes: Sequence[Envelope]) -> None:
    """Run the hooks for each envelope, then add the accepted ones to the conversation."""
    agent.start(
        SKILLS if any(_has_more(agent, envelope) for envelope in envelopes) else PROMPT_HOOKS,
        partial(_run_delivery_hooks, agent, envelopes),
    )


async def _run_delivery_hooks(agent: AgentRuntime, envelopes: Sequence[Envelope]) -> None:
    """Run UserPromptSubmit for each prompt of the user or a schedule, and EnvelopeDelivered for everything accepted.

    A blocked prompt never enters the conversation. Slash commands are expanded.
    """
    now = agent.runtime.clock.now()
    has = agent.runtime.services.hooks.has
    events: list[ev.Event] = []
    passed: list[Envelope] = []
    skills: dict[str, ExpandedSkill] = {}
    for envelope in envelopes:
        if envelope.type in PROMPTS and has("UserPromptSubmit"):
            submitted = await _ask_prompt_hooks(agent, envelope)
            events += submitted
            if any(isinstance(event, ev.EnvelopesDropped) for event in submitted):
                continue
        if _has_more(agent, envelope):
            expansion = await _expansion_or_drop(agent, envelope)
            if not isinstance(expansion, ExpandedSkill):
                events.append(expansion)
                continue
            skills[envelope.id] = expansion
        passed.append(envelope)
        if has("EnvelopeDelivered"):
            events += await _ask_delivery_hooks(agent, envelope)
    if not passed:
        await agent.record(*events)
        return
    blocks = await delivery_blocks(agent, passed)
    placed = [
        (*with_attachments(envelope, block), *_expansion_of(skills, envelope).blocks)
        for envelope, block in zip(passed, blocks, strict=True)
    ]
    delivery = ev.EnvelopesDelivered(
        at=now, ids=tuple(e.id for e in passed), blocks=tuple(block for row in placed for block in row)
    )
    skill_events = [event for envelope in passed for event in _expansion_of(skills, envelope).events]
    writes = [write for envelope in passed for write in _expansion_of(skills, envelope).writes]
    while True:
        # A reminder can be queued while the hooks run. The record must contain it, or it would be lost.
        before = agent.state.context.injections
        waiting = fold(events, agent.state).context.injections
        # Injections come before the words of the prompt.
        first = (
            [ev.InjectionsDelivered(at=now, blocks=tuple(injection_block(injection) for injection in waiting))]
            if waiting
            else []
        )
        together = (*events, *first, delivery, *skill_events)
        if await agent.record(
            *together, writes=writes, unless=lambda state, seen=before: state.context.injections != seen
        ):
            return


def _has_more(agent: AgentRuntime, envelope: Envelope) -> bool:
    """Return True if the envelope has text to expand, or may name files."""
    return has_expansion(agent, envelope) or bool(_file_names(agent, envelope))


def _expansion_of(skills: Mapping[str, ExpandedSkill], envelope: Envelope) -> ExpandedSkill:
    return skills.get(envelope.id, ExpandedSkill())


async def _expansion_or_drop(agent: AgentRuntime, envelope: Envelope) -> ExpandedSkill | ev.EnvelopesDropped:
    """Return the expansion of a slash command and the named files, or after a failure the record that drops the text.

    The user is informed of the failure. An interrupted command is dropped and does not start again by itself.
    """
    try:
        expansion = await expand(agent, envelope) if has_expansion(agent, envelope) else ExpandedSkill()
        files = await _attached_files(agent, envelope)
        return expansion.join(files)
    except (CallboardError, OSError, ValueError) as wrong:
        if isinstance(wrong, NobodyCanAct):
            raise
        reason = str(wrong) if isinstance(wrong, ToolRefused) else f"{envelope.content.split()[0]}: {wrong}"
        notice(agent.runtime, agent.name, (reason,))
        return ev.EnvelopesDropped(at=agent.runtime.clock.now(), ids=(envelope.id,), why=reason, refused=True)
    except anyio.get_cancelled_exc_class():
        turn = agent.state.turn
        now = agent.runtime.clock.now()
        if turn is not None and turn.interrupted:
            await agent.record(ev.EnvelopesDropped(at=now, ids=(envelope.id,), why="interrupted while it began"))
        raise


async def _ask_prompt_hooks(agent: AgentRuntime, envelope: Envelope) -> list[ev.Event]:
    origin: Literal["person", "schedule"] = "person" if envelope.type == "prompt" else "schedule"
    prompt = hk.UserPromptSubmit(envelope.content, origin, caller(agent.runtime, agent.state))
    verdict = await agent.runtime.services.hooks.user_prompt_submit(prompt)
    notice(agent.runtime, agent.name, verdict.notices)
    blocked = verdict.block or verdict.halt
    now = agent.runtime.clock.now()
    if blocked:
        reason = f"a hook blocked the prompt: {blocked}"
        return [ev.EnvelopesDropped(at=now, ids=(envelope.id,), why=reason, refused=True, by_hook=True)]
    return _hook_texts(agent, _SUBMITTED, verdict.context, f"{envelope.id} ")


async def _ask_delivery_hooks(agent: AgentRuntime, envelope: Envelope) -> list[ev.Event]:
    event = hk.EnvelopeDelivered(
        id=envelope.id,
        type=envelope.type,
        sender=envelope.sender,
        text=envelope.content,
        request_id=envelope.request_id or "",
        by=caller(agent.runtime, agent.state),
    )
    verdict = await agent.runtime.services.hooks.fire(event)
    notice(agent.runtime, agent.name, verdict.notices)
    return _hook_texts(agent, _DELIVERED, verdict.context, f"{envelope.id} ")


def _hook_texts(agent: AgentRuntime, form: Injection, texts: Sequence[str], key: str = "") -> list[ev.Event]:
    """Return injections with texts of hooks for the next user message, each in the tag of its event."""
    now = agent.runtime.clock.now()
    notes = [form.model_copy(update={"text": text, "key": f"{key}{n}"}) for n, text in enumerate(texts)]
    return [ev.InjectionQueued(at=now, injection=note) for note in notes]


# Beginnings


async def ask_start_hooks(agent: AgentRuntime, step: st.AskStartHooks) -> None:
    """Run the SessionStart or SubagentStart hooks. Their texts precede the next model call."""
    agent.start(START_HOOKS, partial(_run_start_hooks, agent, step.source))


async def _run_start_hooks(agent: AgentRuntime, source: hk.StartSource) -> None:
    runtime = agent.runtime
    state = agent.state
    life = (agent.name, state.identity.incarnation)
    event: hk.HookEvent
    if state.me.kind == "subagent":
        event = hk.SubagentStart(caller(agent.runtime, agent.state))
        form = _SUBAGENT
    else:
        model = model_in_use(state.model.recovery, state.me)
        event = hk.SessionStart(source, model, caller(agent.runtime, agent.state))
        form = _SESSION
    runtime.start_hooks_ran[life] = True  # the conversation was summarized meanwhile: the hooks run once more
    finished = False
    try:
        verdict = await runtime.services.hooks.fire(event)
        notice(agent.runtime, agent.name, verdict.notices)
        notes = _hook_texts(agent, form, verdict.context)
        if notes:
            await agent.record(*notes)
        finished = True
    finally:
        if not finished:
            del runtime.start_hooks_ran[life]


# Results


def merge_with_hooks(agent: AgentRuntime, waits: bool) -> None:
    """Run PostToolBatch for the calls of a reply, then add their results to the conversation."""
    agent.start(BATCH_HOOKS, partial(_run_batch_hooks, agent, waits))


async def _run_batch_hooks(agent: AgentRuntime, waits: bool) -> None:
    calls = agent.state.calls
    done = tuple(hk.CallDone(call.call, hk.HookToolResult(call.content, call.is_error, call.data)) for call in calls)
    verdict = await agent.runtime.services.hooks.fire(hk.PostToolBatch(done, caller(agent.runtime, agent.state)))
    notice(agent.runtime, agent.name, verdict.notices)
    now = agent.runtime.clock.now()
    events: list[ev.Event] = [ev.ResultsMerged(at=now, waits=waits)]
    events += _hook_texts(agent, _BATCH, verdict.context)
    stopped = verdict.halt or (f"{verdict.by}: {verdict.block}" if verdict.block else "")
    if stopped:
        events.append(ev.Interrupted(at=now, by=stopped))
    await agent.record(*events, unless=lambda state: state.calls != calls)


# Ends


async def ask_stop_hooks(agent: AgentRuntime, step: st.AskStopHooks) -> None:
    """Run Stop, SubagentStop and TeammateIdle hooks, which decide whether the turn may end."""
    agent.start(STOP_HOOKS, partial(_run_stop_hooks, agent))


async def _run_stop_hooks(agent: AgentRuntime) -> None:
    state = agent.state
    turn = state.turn
    if turn is None:
        return
    by = caller(agent.runtime, agent.state)
    hooks = agent.runtime.services.hooks
    event = hk.SubagentStop if state.me.kind == "subagent" else hk.Stop
    view = tuple(state.context.conversation.messages)
    verdict = await hooks.stop(event(view, turn.text, turn.stop_blocks, *_ongoing_work(agent), by))
    notice(agent.runtime, agent.name, (*verdict.notices, *([verdict.halt] if verdict.halt else [])))
    go_on = verdict.go_on
    halt = verdict.halt
    if not go_on and not halt and state.me.kind == "teammate" and hooks.has("TeammateIdle"):
        idle = await hooks.fire(hk.TeammateIdle(turn.text, turn.stop_blocks, by))
        notice(agent.runtime, agent.name, (*idle.notices, *([idle.halt] if idle.halt else [])))
        go_on = idle.block
        halt = idle.halt
        if halt:
            await _stop_teammate(agent, halt, turn.id)
            return
    ran = ev.StopHookRan(at=agent.runtime.clock.now(), go_on="" if halt else go_on)
    await agent.record(ran, unless=lambda now: now.turn is None or now.turn.id != turn.id)


def _ongoing_work(agent: AgentRuntime) -> tuple[tuple[Json, ...], tuple[Json, ...]]:
    """Return the agent's work that continues after its turn, and work that starts by itself.

    Both are in the documented fields.
    """
    rows = agent.runtime.rows
    name = agent.name
    commands: list[Json] = [
        {
            "id": id,
            "type": "shell",
            "status": "running",
            "description": background.began.command,
            "command": background.began.command,
        }
        for id, background in agent.state.work.background.items()
        if background.status == "running" and not background.began.agent  # subagents are among the agents
    ]
    agents: list[Json] = [
        {"id": row.name, "type": row.kind, "status": row.life, "description": "", "agent_type": row.agent_type}
        for row in rows.children(name)
        if row.life in AT_WORK
    ]
    crons: list[Json] = [
        {"id": schedule.id, "schedule": schedule.cron, "recurring": schedule.recurring, "prompt": schedule.prompt}
        for schedule in rows.schedules()
        if schedule.state == "active" and schedule.enabled and schedule.target == name
    ]
    return (*commands, *agents), tuple(crons)


async def _stop_teammate(agent: AgentRuntime, reason: str, turn: str) -> None:
    """End the life of an idle teammate that a hook stops, as documented."""
    now = agent.runtime.clock.now()
    events = [ev.StopHookRan(at=now, go_on=""), ev.StopAsked(at=now, by="hook", why=reason)]
    await agent.record(*events, unless=lambda state: state.turn is None or state.turn.id != turn)


_READ = "read_file"
_MOST_FILES = 20
"""Most files of one prompt whose content is attached."""
_PIPED = late_pattern(r"<piped-input\b[^>]*>.*?</piped-input>", re.DOTALL)
_LINES = late_pattern(r"(.+)#L?(\d+)(?:-L?(\d+))?")
"""A path with lines of the file: `src/app.py#L10-20`."""


async def _attached_files(agent: AgentRuntime, envelope: Envelope) -> ExpandedSkill:
    """Return the content of the files that the text names, and the records that the agent has read them."""
    blocks: list[Json] = []
    events: list[ev.Event] = []
    for number, word in enumerate(_file_names(agent, envelope)):
        outcome = await _read_named(agent, f"{envelope.id}.file.{number}", word)
        if outcome is None:
            continue
        parts = [{"type": "text", "text": outcome.content}] if isinstance(outcome.content, str) else outcome.content
        blocks += [{"type": "text", "text": f"[The content of {one_line(word)}, which the prompt names:]"}, *parts]
        events += outcome.events
    files = tuple(Placed(data=block, source="skill") for block in defused_parts(blocks))
    return ExpandedSkill(files, tuple(events))


def _file_names(agent: AgentRuntime, envelope: Envelope) -> Sequence[str]:
    """Return the words behind an `@` that may be files, for an agent that may read files. Piped input names none."""
    if "@" not in envelope.content or not is_prompt(envelope) or _READ not in agent.state.me.tools:
        return ()
    return includes_in(_PIPED.sub("", envelope.content))[:_MOST_FILES]


async def _read_named(agent: AgentRuntime, key: str, word: str) -> ToolOutcome | None:
    """Return what `read_file` returns for a named file, or why the rules do not allow it; None if it is no file.

    A name behind an `@` may also be a person or a package, so a missing file is not reported.
    """
    services = agent.runtime.services
    lines = _LINES.fullmatch(word)
    given: Json = {"path": lines[1] if lines else word}
    if lines:
        first = int(lines[2])
        last = int(lines[3] or first)
        given |= {"offset": max(first, 1), "limit": max(1, last - first + 1)}
    call = await call_after_hooks(agent, ToolCall(id=key, use_id=key, name=_READ, input=given))
    if isinstance(call, str):
        return ToolOutcome(f"(not read: {call})")
    decision = await services.judge.judge(permission_query(agent.runtime, agent.state, call))
    if decision.decision != "allow":
        return ToolOutcome(f"(not read: {decision.why} ({decision.rule}). Read it yourself if you need it)")
    try:
        outcome = await services.tools[_READ].run(call.input, tool_context(agent, key))
    except ToolRefused:
        return None
    except OSError as failed:
        return ToolOutcome(f"(not read: {failed.strerror or failed})")
    return None if outcome.is_error else outcome
