"""What an agent owes at the end of a turn and of its life, and what outlives a compaction of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from callboard.core.bus.authority import spoken
from callboard.core.names import short_id
from callboard.core.state import AgentState
from callboard.words.context import StateBlock
from callboard.words.schedules import Schedule
from callboard.words.specs import AgentSpec
from callboard.words.steps import EndTurn
from callboard.words.values import AgentRow, Envelope, Request


def farewell(state: AgentState, step: EndTurn, lead: AgentRow | None, now: float) -> tuple[Envelope, ...]:
    """What a teammate tells its lead when a turn ends: a result if it owes one, an error if the turn failed, else that
    it is idle (which is not sent when a result went out in the same turn). The runtime writes it, so that no teammate
    ends in silence. What a stop leaves unsaid, `last_words` says."""
    if state.me.kind != "teammate" or lead is None or state.turn is None or step.reason == "stopped":
        return ()
    said = state.turn.text
    if step.reason == "interrupted":
        return _interrupted(state, lead, now)
    if step.reason in ("failed", "overflow", "refused"):
        text = f"{state.me.name} could not go on: {step.why}" + (f"\nIts last words: {said}" if said else "")
        return (_to_lead(state, lead, "error", text, now, status="failed"),)
    if step.reason == "limit":
        text = f"{state.me.name} stopped at a limit: {step.why}" + (f"\nIts last words: {said}" if said else "")
        return (_to_lead(state, lead, "error", text, now, status="limit"),)
    if state.assignment:
        text = said or "(it ended its turn without a word)"
        return (_to_lead(state, lead, "result", text, now, status="done"),)
    if state.reported:
        return ()
    return (_to_lead(state, lead, "idle_notification", said or "(idle)", now),)


def _interrupted(state: AgentState, lead: AgentRow, now: float) -> tuple[Envelope, ...]:
    """A person who interrupts goes on with it himself: the lead hears of it with its next mail, and the report is still
    owed. A hook that halts leaves nobody who would."""
    if not state.assignment or state.turn is None:
        return ()
    if state.turn.halted:
        text = f"{state.me.name} was halted by a hook: {state.turn.halted}"
        return (_to_lead(state, lead, "error", text, now, status="interrupted"),)
    text = f"A person has interrupted {state.me.name}; it has not reported yet."
    return (_to_lead(state, lead, "idle_notification", text, now, status="interrupted"),)


def final_words(state: AgentState) -> str:
    """What a subagent's caller gets: its last text; behind the reason, where its turn did not end by itself."""
    if state.last_reason == "end" or not state.last_why:
        return state.last_text or state.last_why
    return f"{state.last_why}\nIts last words: {state.last_text}" if state.last_text else state.last_why


def last_words(state: AgentState, lead: AgentRow | None, why: str, now: float) -> tuple[Envelope, ...]:
    """What the runtime tells the lead when a teammate's life ends while it still owed a report, be it of work that it
    never came to read of."""
    owes = state.assignment or any(one.metadata.get("assignment") for one in state.mail)
    if state.me.kind != "teammate" or lead is None or not owes:
        return ()
    return (_to_lead(state, lead, "error", f"{state.me.name} ended without a report: {why}", now, status="stopped"),)


def _to_lead(state: AgentState, lead: AgentRow, kind: str, text: str, now: float, status: str = "") -> Envelope:
    wakes = kind in ("result", "error")
    return Envelope.model_validate(
        {
            "id": short_id("env", state.session, state.me.name, state.incarnation, state.turns, kind),
            "sender": state.me.name,
            "recipient": lead.name,
            "incarnation": lead.incarnation,
            "type": kind,
            "mode": "wake" if wakes else "queue",
            "content": text,
            "cause": spoken(state),
            "caused_by": state.turn.cause if state.turn else "",
            "sender_incarnation": state.incarnation,
            "reply_to": (state.assigned or None) if wakes else None,
            "depth": (state.turn.depth + 1) if state.turn else 1,
            "metadata": {"status": status} if status else {},
            "sent_at": now,
        }
    )


def state_block(
    state: AgentState,
    team: Sequence[AgentRow],
    schedules: Sequence[Schedule],
    tasks: Sequence[str],
    requests: Sequence[Request] = (),
) -> StateBlock:
    """What the runtime knows, for the words after a compaction."""
    gate = state.gate
    plan = ""
    if gate.plan or gate.gate != "open":
        chosen = f"\nThe option that was chosen: {gate.choice}" if gate.choice else ""
        plan = f"{gate.status or gate.gate}: {gate.plan}{chosen}" if gate.plan else f"gate: {gate.gate}"
    running = [f"{i}: {b.began.command} ({b.status})" for i, b in state.background.items() if b.status == "running"]
    mates = [f"{row.name} ({row.role or row.agent_type}): {row.life}" for row in team if row.name != state.me.name]
    return StateBlock(
        todos=tuple(f"[{todo.status}] {todo.content}" for todo in state.todos),
        tasks=tuple(tasks),
        plan=plan,
        teammates=tuple(mates),
        background=tuple(running),
        schedules=tuple(f"{s.id}: {s.cron} {s.timezone}: {s.prompt}" for s in schedules if s.state == "active"),
        files_read=tuple(path for path in state.files if path not in state.changed),
        files_changed=state.changed,
        skills=state.skills,
        requests=tuple(_open_requests(state.me, requests)),
    )


def _open_requests(me: AgentSpec, requests: Sequence[Request]) -> Iterator[str]:
    """What this agent waits for, and what waits for its word."""
    for one in requests:
        if one.status == "pending" and one.asked_by == me.name:
            yield f"{one.id} ({one.kind}) {one.subject}".rstrip()
        elif one.status == "pending" and me.kind == "lead" and "lead" in one.may_answer:
            yield f"{one.id} ({one.kind} of {one.asked_by}, you may answer) {one.subject}".rstrip()
