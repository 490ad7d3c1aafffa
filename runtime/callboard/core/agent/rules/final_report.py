"""Text of a teammate's final report to the lead, and of the state block that survives a compaction. Pure.

The runtime sends the report at the end of the teammate's turn or life.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from callboard.core.agent.authority import own_authority
from callboard.core.agent.state import AgentState
from callboard.core.keys import short_id
from callboard.core.messaging.envelopes import CONTINUES
from callboard.core.recovery.retry_policy import without_advice
from callboard.core.team.subagents import in_background
from callboard.core.team.unfinished import fates, kept_tasks_text
from callboard.types.agent_spec import AgentSpec
from callboard.types.events import BackgroundStarted
from callboard.types.messages import StateBlock
from callboard.types.records import AgentRow, Envelope, Request, Task
from callboard.types.schedules import Schedule
from callboard.types.steps import EndTurn


def turn_end_messages(
    state: AgentState,
    step: EndTurn,
    lead: AgentRow | None,
    *,
    now: float,
    released: Sequence[Task] = (),
    continues: bool = False,
) -> tuple[Envelope, ...]:
    """Return the messages of a teammate to its lead at the end of a turn.

    The runtime writes them, so that no teammate ends silently.

    An error if the turn failed or left tasks unfinished (`released`: their current rows); a result if one is due;
    otherwise a note that it is idle, unless a result was sent in the same turn. `life_end_messages` covers a stop.

    `continues`: the board has another task that this agent will claim.
    """
    if state.me.kind != "teammate" or lead is None or state.turn is None or step.reason == "stopped":
        return ()
    spoken = state.turn.text
    if step.reason == "interrupted":
        return _interrupted(state, lead, now)
    last = f"\nIts last words: {spoken}" if spoken else ""
    if step.reason in ("failed", "overflow", "refused", "limit"):
        how = "stopped at a limit" if step.reason == "limit" else "could not continue"
        unfinished = f"\nUnfinished: {fates(released)}." if released else ""
        text = f"{state.me.name} {how}: {without_advice(step.why)}{unfinished}{last}"
        return (_to_lead(state, lead, "error", text, now=now, status="limit" if step.reason == "limit" else "failed"),)
    if released:
        text = f"{state.me.name} ended its turn and did not finish {fates(released)}.{last}"
        return (_to_lead(state, lead, "error", text, now=now, status="unfinished"),)
    if state.work.tasks:
        text = kept_tasks_text(state) + last
        envelope = _to_lead(state, lead, "idle_notification", text, now=now, status="unfinished")
        stuck = state.turn.reminded and not state.waits.fresh  # nobody will answer: the lead has to look at it
        return (envelope.model_copy(update={"mode": "wake"}) if stuck else envelope,)
    if state.work.assignment and (begun := in_background(state)):
        # Its report follows the reports of its subagents (test_a_teammate_reports_only_after_its_subagent).
        names = ", ".join(task.id for task in begun)
        text = f"{state.me.name} has not reported yet: it waits for its subagents ({names}).{last}"
        return (_to_lead(state, lead, "idle_notification", text, now=now),)
    if state.work.assignment:
        text = spoken or "(it ended its turn without a word)"
        result = _to_lead(state, lead, "result", text, now=now, status="done")
        more = {**result.metadata, CONTINUES: True}
        return (result.model_copy(update={"metadata": more}) if continues else result,)
    if state.work.reported:
        return ()
    return (_to_lead(state, lead, "idle_notification", spoken or "(idle)", now=now),)


def _interrupted(state: AgentState, lead: AgentRow, now: float) -> tuple[Envelope, ...]:
    """Return the message after an interrupt.

    The user continues the work, so the lead gets the message with its next mail, and the report is still due. After a
    hook that stopped the turn, no one continues the work.
    """
    if not state.work.assignment or state.turn is None:
        return ()
    if state.turn.halted:
        text = f"{state.me.name} was halted by a hook: {state.turn.halted}"
        return (_to_lead(state, lead, "error", text, now=now, status="interrupted"),)
    text = f"A person has interrupted {state.me.name}; it has not reported yet."
    return (_to_lead(state, lead, "idle_notification", text, now=now, status="interrupted"),)


def subagent_report(state: AgentState) -> str:
    """Return the text for a subagent's caller: its final text, preceded by the reason if its turn was cut short."""
    reason = without_advice(state.turns.last_why)
    if state.turns.last_reason == "end" or not reason:
        return state.turns.last_text or reason
    return f"{reason}\nIts last words: {state.turns.last_text}" if state.turns.last_text else reason


def life_end_messages(state: AgentState, lead: AgentRow | None, reason: str, now: float) -> tuple[Envelope, ...]:
    """Return the envelope that informs the lead that a teammate's life ended while its report was still due.

    The report is due even if the teammate never read the assignment.
    """
    # Also for an assignment that was never read
    # (test_a_teammate_that_is_killed_before_its_first_record_is_reported_to_the_lead).
    owes = state.work.assignment or any(envelope.metadata.get("assignment") for envelope in state.inbox.mail)
    if state.me.kind != "teammate" or lead is None or not owes:
        return ()
    return (_to_lead(state, lead, "error", unreported_end(state.me.name, reason), now=now, status="stopped"),)


def unreported_end(name: str, reason: str) -> str:
    """Return the text for the lead after a life that ended before its report."""
    return f"{name} ended without a report: {reason}"


def _to_lead(state: AgentState, lead: AgentRow, kind: str, text: str, *, now: float, status: str = "") -> Envelope:
    reports = kind in ("result", "error")
    return Envelope.model_validate(
        {
            "id": short_id(
                "env", state.identity.session, state.me.name, state.identity.incarnation, state.turns.count, kind
            ),
            "sender": state.me.name,
            "recipient": lead.name,
            "incarnation": lead.incarnation,
            "type": kind,
            "mode": "wake" if reports else "queue",
            "content": text,
            "cause": own_authority(state),
            "caused_by": state.turn.cause if state.turn else "",
            "sender_incarnation": state.identity.incarnation,
            "reply_to": (state.work.assigned or None) if reports else None,
            "depth": (state.turn.depth + 1) if state.turn else 1,
            "metadata": {"status": status} if status else {},
            "sent_at": now,
        }
    )


def state_block(
    state: AgentState,
    team: Sequence[AgentRow],
    *,
    schedules: Sequence[Schedule],
    tasks: Sequence[str],
    requests: Sequence[Request] = (),
) -> StateBlock:
    """Return the runtime's state for the text after a compaction."""
    gate = state.work.gate
    plan = ""
    if gate.plan or gate.gate != "open":
        chosen = f"\nThe option that was chosen: {gate.choice}" if gate.choice else ""
        plan = f"{gate.status or gate.gate}: {gate.plan}{chosen}" if gate.plan else f"gate: {gate.gate}"
    background = state.work.background.values()
    running = [_background_line(task.began) for task in background if task.status == "running"]
    others = [row for row in team if row.name != state.me.name]
    living = [row for row in others if row.life != "stopped"]
    mates = [f"{row.name} ({row.role or row.agent_type}): {row.life}" for row in living]
    if ended := len(others) - len(living):
        mates.append(f"and {ended} that {'has' if ended == 1 else 'have'} ended")
    return StateBlock(
        todos=tuple(f"[{todo.status}] {todo.content}" for todo in state.work.todos),
        tasks=tuple(tasks),
        plan=plan,
        teammates=tuple(mates),
        background=tuple(running),
        schedules=tuple(f"{s.id}: {s.cron} {s.timezone}: {s.prompt}" for s in schedules if s.state == "active"),
        files_read=tuple(path for path in state.work.files if path not in state.work.changed),
        files_changed=state.work.changed,
        skills=state.work.skills,
        requests=tuple(_open_requests(state.me, requests)),
    )


def _background_line(began: BackgroundStarted) -> str:
    return f"{began.id}: {'subagent: ' if began.agent else ''}{began.command} (running)"


def _open_requests(me: AgentSpec, requests: Sequence[Request]) -> Iterator[str]:
    """Yield the requests that this agent made, and those that it has to answer."""
    for request in requests:
        if request.status == "pending" and request.asked_by == me.name:
            yield f"{request.id} ({request.kind}) {request.subject}".rstrip()
        elif request.status == "pending" and me.kind == "lead" and "lead" in request.may_answer:
            yield f"{request.id} ({request.kind} of {request.asked_by}, you may answer) {request.subject}".rstrip()
