"""Who caused what in the end, as data: what an envelope may claim, what a turn has, what takes more than that. Pure.

The causes are an order: person > lead > teammate > schedule > tool. An envelope claims the weaker of its sender's own
standing and the authority of the turn that sent it, and so does all that it sets going: nobody passes on more than he
has. Only a person's prompt raises a turn, and only from then on. A text is never looked at, so none can claim anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

from callboard.core.state import AgentState
from callboard.words.values import AgentRow, Cause, Envelope, Request

ORDER: tuple[Cause, ...] = ("person", "lead", "teammate", "schedule", "tool")
"""The strongest first."""
STANDING: Mapping[str, Cause] = {
    "person": "person",
    "policy": "person",
    "runtime": "person",
    "lead": "lead",
    "board": "lead",
    "schedule": "schedule",
}
"""What a sender may claim at most; any other name is an agent's: `teammate`. A policy speaks by the person's settings;
the runtime and the board have no words of their own and pass on what they tell of."""


def weaker(one: Cause, other: Cause) -> Cause:
    """The weaker of two."""
    return other if reaches(one, other) else one


def weakest(causes: Iterable[Cause]) -> Cause:
    """The weakest of all; of none `tool`, since nobody can say whose it is."""
    return reduce(weaker, causes) if (causes := tuple(causes)) else "tool"


def reaches(has: Cause, needs: Cause) -> bool:
    """Whether `has` is at least `needs`."""
    return ORDER.index(has) <= ORDER.index(needs)


def standing(name: str) -> Cause:
    """What a sender of this name may claim at most."""
    return STANDING.get(name, "teammate")


def claim(sender: str, of: Cause) -> Cause:
    """What an envelope or a request of `sender` carries when it is made with the authority `of`."""
    return weaker(standing(sender), of)


def cause_of(envelope: Envelope) -> Cause:
    """What an envelope counts as, whatever it claims: never more than its sender may."""
    return claim(envelope.sender, envelope.cause)


def counts_as(envelope: Envelope, kind: str) -> Cause:
    """What it counts as in a turn of an agent of this kind. What its own team tells a lead leaves it the lead."""
    cause = cause_of(envelope)
    return "lead" if kind == "lead" and cause == "teammate" else cause


def raises(envelope: Envelope) -> bool:
    """A person's own prompt: from it on the turn is the person's."""
    return envelope.type == "prompt" and envelope.sender == "person" and envelope.cause == "person"


def turn_of(waking: Envelope | None, before: Cause, kind: str) -> Cause:
    """The authority of a turn that begins: of the envelope that wakes it, or, with none, of the turn before."""
    return before if waking is None else counts_as(waking, kind)


def after(has: Cause, taken: Iterable[Envelope], kind: str) -> Cause:
    """The authority of a turn once these have entered it, in their order: the weakest counts, a prompt restores."""
    for envelope in taken:
        has = "person" if raises(envelope) else weaker(has, counts_as(envelope, kind))
    return has


def authority_of(state: AgentState) -> Cause:
    """What an agent may pass on now: its turn's authority, between turns that of the newest; before the first one that
    of the mail that it has."""
    if state.turns:
        return state.authority
    return weakest(counts_as(envelope, state.me.kind) for envelope in state.mail)


def spoken(state: AgentState) -> Cause:
    """What an agent's own envelopes and requests carry now."""
    return claim(state.me.name, authority_of(state))


def answered(request: Request, by: str) -> Cause:
    """What the answer to a request carries: no more than what asked had, so that a `yes` raises no turn."""
    return claim(by, request.cause)


# What may only be done with more.

RAISES: Mapping[str, tuple[Cause, str]] = {
    "review_plan": ("lead", "approves a plan"),
    "schedule_cron": ("lead", "makes a schedule"),
}
"""Tools that give others more rights, or set turns going later: what they do at least takes, and what it is called. In
a turn with less a person is asked; an envelope of a teammate, a schedule or a command never raises anyone."""


def lacking(tool: str, given: Mapping[str, object], authority: Cause) -> str:
    """Why this call takes more than its turn has; empty when it does not."""
    needed = RAISES.get(tool)
    if needed is None or reaches(authority, needed[0]) or (tool == "review_plan" and given.get("approve") is False):
        return ""
    return f"it {needed[1]}, in a turn that goes back to a {_CALLED[authority]}"


_CALLED: Mapping[Cause, str] = {
    "person": "person",
    "lead": "lead",
    "teammate": "teammate's message",
    "schedule": "schedule",
    "tool": "command",
}


def for_person(tool: str, given: Mapping[str, object]) -> str:
    """Why only a person may allow this call, whatever rules, modes, hooks and policies say; empty when others may."""
    if tool == "remove_worktree" and given.get("discard_changes"):
        return "it throws away work that is merged nowhere"
    return ""


# Envelopes that count as a word, and from whom.

COMMANDS: Mapping[str, frozenset[str]] = {
    "stop": frozenset({"person", "lead", "runtime"}),
    "interrupt": frozenset({"person", "lead", "runtime"}),
}
"""Who may send a command beside the person; the lead only to those below it."""
_TOLD_BY: Mapping[str, frozenset[str]] = {
    "prompt": frozenset({"person"}),
    "scheduled": frozenset({"schedule"}),
    "task_notification": frozenset({"runtime"}),
    "dead_letter": frozenset({"runtime"}),
}
"""Types that nobody else may send."""
ANSWERS: Mapping[str, str] = {
    "plan_approval_response": "plan",
    "permission_response": "permission",
    "shutdown_response": "shutdown",
    "answer": "question",
}
"""Type of an answering envelope -> kind of the request that it answers."""
ASKS: Mapping[str, str] = {
    "plan_approval_request": "plan",
    "shutdown_request": "shutdown",
    "permission_request": "permission",
    "question": "question",
}
"""Type of an envelope that tells of a request -> its kind."""


def refusal(envelope: Envelope, me: AgentRow, request: Request | None) -> str:
    """Why an envelope in the mailbox of `me` does not count, whatever it says; empty when it does.

    Looked at are its sender, its cause, whom it is for, and the request's row (None: there is none of that id).
    """
    if (envelope.recipient, envelope.incarnation) != (me.name, me.incarnation):
        return f"it is for {envelope.recipient}, life {envelope.incarnation}, and this is {me.name}, {me.incarnation}"
    if envelope.sender in _TOLD_BY.get(envelope.type, {envelope.sender}):
        return _refused_word(envelope, me, request)
    return f"{envelope.sender} may not send a {envelope.type}"


def _refused_word(envelope: Envelope, me: AgentRow, request: Request | None) -> str:
    """The same, for an envelope whose type its sender may use."""
    theirs = envelope.sender in ("person", "schedule") and envelope.type not in ANSWERS
    if theirs and envelope.cause != envelope.sender:
        return f"it is sent as the {envelope.sender} and caused by a {_CALLED[envelope.cause]}"
    if envelope.type == "command":
        return _refused_command(envelope, me)
    if envelope.type in ASKS:
        return _refused_asking(envelope, me, request)
    if envelope.type in ANSWERS:
        return _refused_answer(envelope, me, request)
    if (envelope.type == "plan_request" or envelope.metadata.get("assignment")) and not _above(envelope.sender, me):
        return f"{envelope.sender} gives {me.name} no work"
    return ""


def _above(sender: str, me: AgentRow) -> bool:
    """Whether this sender may tell `me` what to do: the person, the runtime's own, and who stands above it."""
    if sender in ("person", "runtime", "board", "schedule"):
        return True
    return me.kind != "lead" and sender in ("lead", me.parent)


def _refused_command(envelope: Envelope, me: AgentRow) -> str:
    action = str(envelope.metadata.get("action", ""))
    allowed = COMMANDS.get(action, frozenset({"runtime"})) | {"person"}
    if envelope.sender in allowed and _above(envelope.sender, me):
        return ""
    return f"{envelope.sender} may not give {me.name} the command {action!r}"


def _refused_asking(envelope: Envelope, me: AgentRow, request: Request | None) -> str:
    """It tells of a request; the row says whether that was asked, by whom and of whom."""
    if envelope.type == "shutdown_request" and envelope.request_id is None and envelope.sender in ("person", "runtime"):
        return ""
    if request is None or request.kind != ASKS[envelope.type]:
        return f"there is no {ASKS[envelope.type]} request {envelope.request_id}"
    if request.asked_by != envelope.sender:
        return f"{request.id} was asked by {request.asked_by}, not by {envelope.sender}"
    if me.name not in request.may_answer:
        return f"{request.id} is not put to {me.name}"
    return _refused_shutdown(envelope, me, request) if envelope.type == "shutdown_request" else ""


def _refused_shutdown(envelope: Envelope, me: AgentRow, request: Request) -> str:
    if request.status != "pending":
        return f"{request.id} is {request.status} already"
    if request.payload.get("incarnation", me.incarnation) != me.incarnation:
        return f"{request.id} is for another life of {me.name}"
    return "" if _above(envelope.sender, me) else f"{envelope.sender} may not stop {me.name}"


def _refused_answer(envelope: Envelope, me: AgentRow, request: Request | None) -> str:
    """It rings for an answer; the row says whether there is one, whose it is, and to whom."""
    kind = ANSWERS[envelope.type]
    if request is None or request.kind != kind:
        return f"there is no {kind} request {envelope.request_id}"
    lives = range(1, me.incarnation + 1) if me.kind == "lead" else (me.incarnation,)  # /new hands on what is left
    if request.asked_by != me.name or request.incarnation not in lives:
        return f"{request.id} was not asked by {me.name}, life {me.incarnation}"
    if request.status == "pending":
        return f"{request.id} is not answered"
    if request.answered_by != envelope.sender and (request.answered_by or envelope.sender != "runtime"):
        return f"{request.id} was not answered by {envelope.sender}"
    if envelope.type == "answer" and request.answered_by and envelope.content != request.reason:
        return f"{request.id} was answered with other words"
    return ""
