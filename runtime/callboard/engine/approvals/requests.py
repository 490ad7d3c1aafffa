"""Answers to requests: one compare-and-swap for every source of an answer. `broker.py` asks the approvers of a process.

The row decides; the accompanying envelope only wakes the agent.
"""

from __future__ import annotations

from callboard.core.approvals import requests as request_rules
from callboard.core.approvals.plans import apply_answer_details
from callboard.core.approvals.session_rules import created_rules
from callboard.core.decoding import read_value
from callboard.core.keys import agent_key, request_envelope_id, request_key, rule_key, screen_leases, short_id
from callboard.core.mcp.elicitation import question_in, read
from callboard.core.messaging.authority import answer_authority
from callboard.core.messaging.envelopes import envelope_write
from callboard.engine.runtime import SessionRuntime
from callboard.ports.environment import Answer, Policy
from callboard.ports.store import Commit, Put, Store, Write
from callboard.types.errors import Conflict
from callboard.types.records import AgentRow, Envelope, EnvelopeType, Json, Request, SessionRule

_ANSWER_TYPES: dict[str, EnvelopeType] = {
    "plan": "plan_approval_response",
    "permission": "permission_response",
    "shutdown": "shutdown_response",
    "question": "answer",
}
NOBODY_WAITS: dict[str, str] = {
    "question": "Nobody answered in time. Decide yourself, and say in your result what you assumed.",
    "shutdown": "{teammate} has not stopped in time, and is ended.",
}
"""Text for each kind of request that the broker withdraws at its deadline, because no call and no gate waits for it."""


async def answer_request(
    store: Store, session: str, request_id: str, answer: Answer, *, now: float, commit: Commit | None = None
) -> str | None:
    """Answer a request, from any process.

    Return None if the answer is accepted, otherwise the reason why not: unknown request, already decided, or no
    permission to answer it. The request's history records both. `commit`: that of the caller, if not the store's.
    """
    while True:
        row = await store.get(request_key(session, request_id))
        if row is None or row.value is None:
            return f"there is no request {request_id} in session {session}"
        request = read_value(Request, row.value, row.key)
        answered = request_rules.answer(
            request, request.kind, by=answer.by, status=answer.status, reason=answer.reason, now=now
        )
        if isinstance(answered, Request):
            answered = request_rules.with_user(answered, answer.word.user)
            answered = apply_answer_details(request, answered, answer.word, by=answer.by, now=now)
        if isinstance(answered, Request) and _changes_input(answered, answer):
            answered = answered.model_copy(update={"input": answer.input})
        if isinstance(answered, Request) and (unread := _form_fault(request, answer)):
            return unread
        ruled = _created_rules(request, answered, answer, now)
        answered = ruled if isinstance(ruled, request_rules.AnswerRefusal) else answered
        outcome = (
            answered if isinstance(answered, Request) else request_rules.with_refusal(request, answer.by, answered, now)
        )
        writes: list[Write] = [Put(row.key, outcome.encode(), expected=row.revision)] if outcome else []
        asker = await store.get(agent_key(session, request.asked_by))
        if isinstance(answered, Request) and asker is not None and asker.value is not None:
            row_of = read_value(AgentRow, asker.value, asker.key)
            # The call that waits passes the answer to a server's question on. A new life of the name gets no answer.
            tells_asker = question_in(request) is None and not request.payload.get("waits")
            if tells_asker and row_of.incarnation == request.incarnation:
                writes.append(envelope_write(session, _answer_envelope(answered, row_of, answer, now)))
        if not isinstance(ruled, request_rules.AnswerRefusal):
            writes += [Put(rule_key(session, rule.id), rule.encode()) for rule in ruled]
        try:
            await (commit or store.commit)(*writes)
            return None if isinstance(answered, Request) else answered.text
        except Conflict:
            continue  # the request changed meanwhile: read again; the first answer wins


def _form_fault(request: Request, answer: Answer) -> str:
    """Return the reason why a text does not answer the question of an MCP server; empty if it does.

    The user may answer again.
    """
    elicitation = question_in(request)
    reading = read(elicitation, answer.reason) if elicitation is not None else ""
    return f"{request.id}: {reading}" if isinstance(reading, str) and reading else ""


def _changes_input(answered: Request, answer: Answer) -> bool:
    """Return True if the user allowed the call with another input."""
    allowed = (answered.kind, answered.status, answer.by) == ("permission", "approved", "person")
    return allowed and answer.input is not None


def _created_rules(
    request: Request, answered: Request | request_rules.AnswerRefusal, answer: Answer, now: float
) -> tuple[SessionRule, ...] | request_rules.AnswerRefusal:
    """Return the session rules that an answer creates, or the reason why it creates none.

    A rejected answer creates none.
    """
    if answer.always is None or not isinstance(answered, Request):
        return ()
    if answered.status != "approved":
        return request_rules.AnswerRefusal("status", f"{request.id}: only what is allowed can be allowed for always")
    return created_rules(request, answer.always, answer.by, now)


def _answer_envelope(request: Request, asker: AgentRow, answer: Answer, now: float) -> Envelope:
    return Envelope(
        id=short_id("env", request.id, request.status, request.revision),
        sender=answer.by,
        recipient=asker.name,
        incarnation=asker.incarnation,
        type=_ANSWER_TYPES[request.kind],
        content=answer.reason,
        request_id=request.id,
        reply_to=None if answer.by in ("person", "policy", "runtime") else request_envelope_id(request.id, answer.by),
        cause=answer_authority(request, answer.by),
        metadata={"status": request.status} | _answer_details(answer),
        sent_at=now,
    )


def _answer_details(answer: Answer) -> Json:
    """Return the answer for a recording of the session, so that a replay can repeat it."""
    word = answer.word
    edited = {} if answer.input is None else {"input": answer.input}
    choices = {"option": word.option, "plan": word.plan, "mode": word.mode}
    return edited | {name: value for name, value in choices.items() if value}


async def overdue_request(
    runtime: SessionRuntime, request_id: str, seconds: float, *, attended: bool, passed: float = 0.0
) -> None:
    """Handle the deadline of an unanswered request: put it to the next approver for `seconds` more, or close it.

    If no call or gate of the agent waits for a closed request, the agent is notified. An answer that arrives first
    counts. `attended`: a person can be asked here; a person at an attached screen counts as well. `passed`: the
    deadline that was waited for in full, in case the clock was set back.
    """
    match = runtime.rows.request(request_id)
    if match is None:
        return
    clock = runtime.clock.now()
    now = max(clock, passed)
    attended = attended or await _has_screen(runtime)
    changed = request_rules.escalate(match[0], now, seconds, _reachable(runtime, match[0], attended))
    if not isinstance(changed, Request):
        return
    if changed.status == "pending" and changed.expires_at is not None:  # the next approver's time begins by the clock
        changed = changed.model_copy(update={"expires_at": changed.expires_at - (now - clock)})
    writes: list[Write] = [Put(request_key(runtime.session, request_id), changed.encode(), expected=match[1])]
    asker = runtime.rows.agent(changed.asked_by)
    waits = question_in(changed) is not None or bool(changed.payload.get("waits"))
    told_to_asker = changed.status == "expired" and changed.kind in NOBODY_WAITS and not waits
    if (
        told_to_asker
        and asker
        and asker[0].incarnation == changed.incarnation
        and asker[0].life not in ("stopped", "crashed")
    ):
        text = NOBODY_WAITS[changed.kind].format(teammate=changed.payload.get("teammate"))
        refusal = Answer("rejected", "runtime", text)
        writes.append(envelope_write(runtime.session, _answer_envelope(changed, asker[0], refusal, now)))
    try:
        await runtime.commit(*writes)
    except Conflict as lost:
        await runtime.refresh(lost.what)


def _reachable(runtime: SessionRuntime, request: Request, attended: bool) -> set[str]:
    """Return the members of the escalation chain (`person`, `lead`, `policy`) that can be asked now."""
    lead = runtime.rows.agent("lead")
    present = {"person"} if attended else set[str]()
    if lead is not None and lead[0].life not in ("stopped", "crashed"):
        present.add("lead")
    if any(isinstance(approver, Policy) and approver.decides(request) for approver in runtime.services.approvers):
        present.add("policy")
    return present


async def _has_screen(runtime: SessionRuntime) -> bool:
    """Return True if a person is attached to the session from another process."""
    for lease in screen_leases(runtime.session):
        if await runtime.services.store.holder(lease) is not None:
            return True
    return False
