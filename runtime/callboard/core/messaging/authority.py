"""Authority as data: the most that an envelope may claim, the authority of a turn, and actions that need more. Pure.

The causes are ordered: person > lead > teammate > schedule > tool. An envelope claims the weaker of its sender's own
rank and the authority of the turn that sent it, and so does everything that it causes: no agent passes on more
authority than it has. Only a prompt of the user raises the authority of a turn, and only for what follows it. Texts are
never examined, so no text can claim authority.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

from callboard.types.records import AgentRow, Cause, Envelope, Request

ORDER: tuple[Cause, ...] = ("person", "lead", "teammate", "schedule", "tool")
"""All causes, the strongest first."""
HIGHEST_AUTHORITY: Mapping[str, Cause] = {
    "person": "person",
    "policy": "person",
    "runtime": "person",
    "lead": "lead",
    "board": "lead",
    "schedule": "schedule",
}
"""Highest authority that a sender may claim; any other name is an agent's: `teammate`. A policy has the authority of
the user's settings. The runtime and the board only pass on reports."""


def weaker(first: Cause, other: Cause) -> Cause:
    """Return the weaker of two causes."""
    return other if is_at_least(first, other) else first


def weakest(causes: Iterable[Cause]) -> Cause:
    """Return the weakest of all causes; `tool` if there are none, because the origin is unknown."""
    return reduce(weaker, causes) if (causes := tuple(causes)) else "tool"


def is_at_least(has: Cause, needs: Cause) -> bool:
    """Return True if `has` is at least `needs`."""
    return ORDER.index(has) <= ORDER.index(needs)


def highest_authority(name: str) -> Cause:
    """Return the highest authority that a sender of this name may claim."""
    return HIGHEST_AUTHORITY.get(name, "teammate")


def claimed_authority(sender: str, of: Cause) -> Cause:
    """Return the authority of an envelope or request that `sender` makes in a turn of the authority `of`."""
    return weaker(highest_authority(sender), of)


def effective_authority(envelope: Envelope) -> Cause:
    """Return the effective authority of an envelope: never more than its sender may claim."""
    return claimed_authority(envelope.sender, envelope.cause)


def authority_in_turn(envelope: Envelope, kind: str) -> Cause:
    """Return the effective authority of an envelope in a turn of an agent of this kind.

    Messages of its own team do not lower a lead's authority.
    """
    cause = effective_authority(envelope)
    return "lead" if kind == "lead" and cause == "teammate" else cause


def is_user_prompt(envelope: Envelope) -> bool:
    """Return True for the user's own prompt, which gives the turn the user's authority."""
    return envelope.type == "prompt" and envelope.sender == "person" and envelope.cause == "person"


def is_note(envelope: Envelope) -> bool:
    """Return True for a note of the user that asks for nothing, such as the output of a `!command`."""
    return is_user_prompt(envelope) and envelope.mode == "queue"


def new_turn_authority(waking: Envelope | None, before: Cause, kind: str) -> Cause:
    """Return the authority of a new turn: that of the envelope that wakes the agent, or of the previous turn."""
    return before if waking is None else authority_in_turn(waking, kind)


def authority_after(has: Cause, entered: Iterable[Envelope], kind: str) -> Cause:
    """Return the authority of a turn after these envelopes have entered it, in order.

    The weakest counts, and a prompt of the user restores full authority.
    """
    for envelope in entered:
        has = "person" if is_user_prompt(envelope) else weaker(has, authority_in_turn(envelope, kind))
    return has


def answer_authority(request: Request, by: str) -> Cause:
    """Return the authority of the answer to a request.

    The authority is no more than that of the request, so that an approval raises no turn.
    """
    return claimed_authority(by, request.cause)


# Actions that need more authority

PRIVILEGED_TOOLS: Mapping[str, tuple[Cause, str]] = {
    "review_plan": ("lead", "approves a plan"),
    "schedule_cron": ("lead", "makes a schedule"),
}
"""Tools that give others more rights, or start turns later: the authority that they need, and a description. In a turn
with less authority, the user is asked. An envelope of a teammate, a schedule or a command never raises a turn."""


def missing_authority(tool: str, tool_input: Mapping[str, object], authority: Cause) -> str:
    """Return the reason why this call needs more authority than its turn has; empty if it does not."""
    needed = PRIVILEGED_TOOLS.get(tool)
    if (
        needed is None
        or is_at_least(authority, needed[0])
        or (tool == "review_plan" and tool_input.get("approve") is False)
    ):
        return ""
    return f"it {needed[1]}, in a turn that goes back to a {_ORIGIN_NAMES[authority]}"


_ORIGIN_NAMES: Mapping[Cause, str] = {
    "person": "person",
    "lead": "lead",
    "teammate": "teammate's message",
    "schedule": "schedule",
    "tool": "command",
}


def person_only_reason(tool: str, tool_input: Mapping[str, object]) -> str:
    """Return the reason why only the user may allow this call; empty if others may.

    The reason applies whatever rules, modes, hooks and policies say.
    """
    if tool == "remove_worktree" and tool_input.get("discard_changes"):
        return "it throws away work that is merged nowhere"
    return ""


# Envelopes with authority, and their permitted senders

COMMANDS: Mapping[str, frozenset[str]] = {
    "stop": frozenset({"person", "lead", "runtime"}),
    "interrupt": frozenset({"person", "lead", "runtime"}),
}
"""Senders besides the user that may send a command; the lead only to agents below it."""
_SENDERS: Mapping[str, frozenset[str]] = {
    "prompt": frozenset({"person"}),
    "scheduled": frozenset({"schedule"}),
    "task_notification": frozenset({"runtime"}),
    "dead_letter": frozenset({"runtime"}),
}
"""Types of envelopes -> the only senders that may use them."""
ANSWERED_KINDS: Mapping[str, str] = {
    "plan_approval_response": "plan",
    "permission_response": "permission",
    "shutdown_response": "shutdown",
    "answer": "question",
}
"""Type of an answering envelope -> kind of the request that it answers."""
REQUESTED_KINDS: Mapping[str, str] = {
    "plan_approval_request": "plan",
    "shutdown_request": "shutdown",
    "permission_request": "permission",
    "question": "question",
}
"""Type of an envelope that announces a request -> kind of the request."""


def rejection_reason(envelope: Envelope, me: AgentRow, request: Request | None) -> str:
    """Return the reason why an envelope in the mailbox of `me` is rejected, whatever it says; empty if it is accepted.

    Decided by its sender, its cause, its recipient, and the row of its request (None: no such request).
    """
    if (envelope.recipient, envelope.incarnation) != (me.name, me.incarnation):
        return f"it is for {envelope.recipient}, life {envelope.incarnation}, and this is {me.name}, {me.incarnation}"
    if envelope.sender in _SENDERS.get(envelope.type, {envelope.sender}):
        return _reject_content(envelope, me, request)
    return f"{envelope.sender} may not send mail of type {envelope.type}"


def _reject_content(envelope: Envelope, me: AgentRow, request: Request | None) -> str:
    """Return the reason for rejecting an envelope whose type its sender may use; empty if it is accepted."""
    is_outside = envelope.sender in ("person", "schedule") and envelope.type not in ANSWERED_KINDS
    if is_outside and envelope.cause != envelope.sender:
        return f"it is sent as the {envelope.sender} and caused by a {_ORIGIN_NAMES[envelope.cause]}"
    if envelope.type == "command":
        return _reject_command(envelope, me)
    if envelope.type in REQUESTED_KINDS:
        return _reject_request(envelope, me, request)
    if envelope.type in ANSWERED_KINDS:
        return _reject_answer(envelope, me, request)
    if (envelope.type == "plan_request" or envelope.metadata.get("assignment")) and not _is_above(envelope.sender, me):
        return f"{envelope.sender} gives {me.name} no work"
    return ""


def _is_above(sender: str, me: AgentRow) -> bool:
    """Return True if this sender may give orders to `me`: the user, the runtime itself, and agents above `me`."""
    if sender in ("person", "runtime", "board", "schedule"):
        return True
    return me.kind != "lead" and sender in ("lead", me.parent)


def _reject_command(envelope: Envelope, me: AgentRow) -> str:
    action = str(envelope.metadata.get("action", ""))
    allowed = COMMANDS.get(action, frozenset({"runtime"})) | {"person"}
    if envelope.sender in allowed and _is_above(envelope.sender, me):
        return ""
    return f"{envelope.sender} may not give {me.name} the command {action!r}"


def _reject_request(envelope: Envelope, me: AgentRow, request: Request | None) -> str:
    """Return the reason for rejecting an envelope that announces a request.

    The row proves that the request exists, and names its author and its approvers.
    """
    if envelope.type == "shutdown_request" and envelope.request_id is None and envelope.sender in ("person", "runtime"):
        return ""
    if request is None or request.kind != REQUESTED_KINDS[envelope.type]:
        return f"there is no {REQUESTED_KINDS[envelope.type]} request {envelope.request_id}"
    if request.asked_by != envelope.sender:
        return f"{request.id} was asked by {request.asked_by}, not by {envelope.sender}"
    if me.name not in request.may_answer:
        return f"{request.id} is not put to {me.name}"
    return _reject_shutdown(envelope, me, request) if envelope.type == "shutdown_request" else ""


def _reject_shutdown(envelope: Envelope, me: AgentRow, request: Request) -> str:
    if request.status != "pending":
        return f"{request.id} is {request.status} already"
    if request.payload.get("incarnation", me.incarnation) != me.incarnation:
        return f"{request.id} is for another life of {me.name}"
    return "" if _is_above(envelope.sender, me) else f"{envelope.sender} may not stop {me.name}"


def _reject_answer(envelope: Envelope, me: AgentRow, request: Request | None) -> str:
    """Return the reason for rejecting an envelope that announces an answer.

    The row proves that the request exists, and names its author and the sender of the answer.
    """
    kind = ANSWERED_KINDS[envelope.type]
    if request is None or request.kind != kind:
        return f"there is no {kind} request {envelope.request_id}"
    lives = range(1, me.incarnation + 1) if me.kind == "lead" else (me.incarnation,)  # /new passes open requests on
    if request.asked_by != me.name or request.incarnation not in lives:
        return f"{request.id} was not asked by {me.name}, life {me.incarnation}"
    if request.status == "pending":
        return f"{request.id} is not answered"
    if request.answered_by != envelope.sender and (request.answered_by or envelope.sender != "runtime"):
        return f"{request.id} was not answered by {envelope.sender}"
    if envelope.type == "answer" and request.answered_by and envelope.content != request.reason:
        return f"{request.id} was answered with another text"
    return ""
