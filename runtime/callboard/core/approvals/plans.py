"""Content of plans: the payload of a request, its options, an edit by the user, and changes of the situation. Pure.

An approval is bound to the content that was read: the answer names its digest, and is void if the request has other
content by then. An edit approves the edited text: it creates new content with its own digest and revision, and keeps
the submitted text, so that its author recognizes it. `plan.deadline` (`types/settings.py`) sets when a plan expires;
`requests.py` decides what happens then.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Any, cast

from callboard.core.approvals.requests import AnswerRefusal, approval_fault, digest_of
from callboard.types.events import AnswerTaken
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json, Request, Said

PLAN_MODES = ("default", "acceptEdits")
"""Modes to choose from for carrying out an approved plan."""
COMMIT_DIGITS = 10
"""Digits of a commit to show."""


@dataclass(frozen=True, slots=True)
class AnswerDetails:
    """Details of an answer in addition to yes or no."""

    option: int = 0
    """Number of the approved option, from 1; 0: the plan unchanged."""
    plan: str = ""
    """Full text that is approved in place of the submitted one; empty: the submitted text."""
    seen: str = ""
    """Digest of the content that was read; empty: unknown."""
    mode: str = ""
    """Permission mode for carrying out the approved plan (`PLAN_MODES`); empty: the default."""
    user: str = ""
    """Name of the person who answers, for the history of the request; empty: not stated."""


PLAIN_ANSWER = AnswerDetails()
"""Details of an answer that only says yes or no, for the current content."""


@dataclass(frozen=True, slots=True)
class PlanBinding:
    """Work that a plan is for, and the place where it was written."""

    task_id: str | None = None
    """Task that the author holds."""
    assignment: str = ""
    """Envelope with the author's assignment."""
    folder: str = ""
    """Folder in which the author's tools run."""
    base: str = ""
    """Commit that was checked out there; empty: none or unknown."""


def payload_of(plan: str, options: Iterable[str], bound: PlanBinding) -> Json:
    """Return the content that an approval is bound to, as stored in a request."""
    return {
        "plan": plan,
        "options": list(options),
        "task_id": bound.task_id,
        "assignment": bound.assignment,
        "folder": bound.folder,
        "base": bound.base,
    }


def same_work(request: Request, bound: PlanBinding) -> bool:
    """Return True if a plan is for this work."""
    payload = request.payload
    return (payload.get("task_id"), str(payload.get("assignment") or "")) == (bound.task_id, bound.assignment)


def subject_of(plan: str) -> str:
    """Return one line for the user: the first line with content, without its Markdown."""
    line = next((line for line in plan.splitlines() if line.strip()), "")
    return line.strip().lstrip("#").strip() or line.strip()


def options_of(request: Request) -> tuple[str, ...]:
    """Return the options of the plan, in order."""
    listed: Any = request.payload.get("options")
    return tuple(str(option) for option in cast("list[Any]", listed)) if isinstance(listed, list | tuple) else ()


def submitted_of(request: Request) -> Json:
    """Return `plan` and `digest` as submitted, if the user edited the plan; otherwise empty."""
    submitted: Any = request.payload.get("submitted")
    return cast("Json", submitted) if isinstance(submitted, dict) else {}


def apply_answer_details(
    pending: Request, answered: Request, details: AnswerDetails, *, by: str, now: float
) -> Request | AnswerRefusal:
    """Return the answered request with all details of its answer: the option, the edited text.

    Or return the reason for a rejection: the content differs from the content that was read, the option does not exist,
    an agent edits, or the edited text is empty.

    `pending` is the current request; `answered` is the same after `requests.answer`.
    """
    if details.seen and details.seen != pending.digest:
        text = f"{pending.id}: its content has changed since you read it, so your answer is void; look at it again"
        return AnswerRefusal("changed", text)
    if not details.option and not details.plan and not details.mode:
        return answered
    if pending.kind != "plan" or answered.status != "approved":
        return AnswerRefusal(
            "status", f"{pending.id}: an option, an edited text or a mode belongs to the approval of a plan"
        )
    if details.mode and (by not in ("person", "policy") or details.mode not in PLAN_MODES):
        person = by in ("person", "policy")
        problem = f"choose the mode {' or '.join(PLAN_MODES)}" if person else "only a person chooses the mode"
        return AnswerRefusal("not_yours", f"{pending.id}: {problem}")
    if details.plan and (by != "person" or not details.plan.strip()):
        problem = "the edited plan is empty: reject it instead" if by == "person" else "only a person edits a plan"
        return AnswerRefusal("not_yours", f"{pending.id}: {problem}")
    options = options_of(pending)
    if details.option and not 1 <= details.option <= len(options):
        choices = f"it has 1 to {len(options)}" if options else "it names none"
        return AnswerRefusal("status", f"{pending.id} has no option {details.option}; {choices}")
    choice = options[details.option - 1] if details.option else ""
    chosen = answered.model_copy(update={"choice": choice, "mode": details.mode})
    same = not details.plan or details.plan == pending.payload.get("plan")
    return chosen if same else _edited(pending, chosen, details.plan, by=by, now=now)


def _edited(pending: Request, answered: Request, plan: str, *, by: str, now: float) -> Request:
    original = {"plan": pending.payload.get("plan", ""), "digest": pending.digest}
    payload: Json = {**pending.payload, "plan": plan, "submitted": original}
    entry = Said(at=now, by=by, what="edited")
    history = (*pending.history, entry, *answered.history[len(pending.history) :])
    update = {
        "payload": payload,
        "digest": digest_of("plan", payload),
        "revision": pending.revision + 1,
        "subject": subject_of(plan),
        "history": history,
    }
    return answered.model_copy(update=update)


@dataclass(frozen=True, slots=True)
class AuthorSituation:
    """Situation of a plan's author when the answer arrives."""

    at: float
    """Unix seconds."""
    tasks: Collection[str] = ()
    """Ids of the tasks that the author holds."""
    commit: str = ""
    """Commit that is checked out in the author's folder; empty: unknown."""
    moved_is_void: bool = False
    """True if an approval is void when another commit is checked out than the base of the plan."""
    folder: str = ""
    """Folder in which the author's tools run; empty: unknown."""
    asked: str = ""
    """Digest of the call that waits for permission."""


def answer_record(request: Request, now: AuthorSituation) -> AnswerTaken:
    """Return the record of an answer that the author of the request keeps."""
    note = ""
    void = approval_fault(request) or digest_mismatch(request, now.asked) or folder_mismatch(request, now.folder)
    if not void and request.kind == "plan" and request.status == "approved":
        note = commit_change(request, now.commit)
        void = note if now.moved_is_void else ""
        task = str(request.payload.get("task_id") or "")
        void = void if not task or task in now.tasks else f"{task} is no longer held by you."
    submitted = submitted_of(request)
    return AnswerTaken.model_validate(
        {
            "at": now.at,
            "request_id": request.id,
            "kind": request.kind,
            "status": request.status,
            "by": request.answered_by or "",
            "reason": request.reason,
            "digest": digest_of(request.kind, request.payload),
            "choice": request.choice,
            "mode": request.mode,
            "plan": request.payload.get("plan", "") if submitted else "",
            "submitted": submitted.get("digest", ""),
            "note": note,
            "void": void,
        }
    )


def digest_mismatch(request: Request, waiting_digest: str) -> str:
    """Return the reason why an approval does not match the waiting call.

    Empty if it does, or the request is not an approved permission request.
    """
    same = (
        request.kind != "permission"
        or request.status != "approved"
        or request.digest == waiting_digest
        or not waiting_digest
    )
    return "" if same else "what was approved is not what was asked for"


def folder_mismatch(request: Request, folder: str) -> str:
    """Return the reason why an approval is void in the folder where the agent's tools run now; empty if it is valid."""
    then = request.payload.get("folder")
    if request.status != "approved" or not then or not folder or then == folder:
        return ""
    return f"it was asked for in {then}, and this is {folder}"


def commit_change(request: Request, commit: str) -> str:
    """Return a note that another commit is checked out now; empty if it is the same or unknown."""
    base = str(request.payload.get("base") or "")
    if not base or not commit or base == commit:
        return ""
    folder = request.payload.get("folder")
    old = base[:COMMIT_DIGITS]
    new = commit[:COMMIT_DIGITS]
    return f"{folder} has moved from commit {old} to {new} since this plan was submitted."


def void_reason(answer: AnswerTaken, digest: str) -> str:
    """Return the reason why an approval does not open the gate of a plan with this digest; empty if it does."""
    if (answer.submitted or answer.digest) != digest:
        return "What was approved is not the plan that you submitted."
    return answer.void


def decision_text(answer: AnswerTaken, void: str, mode: str = "") -> str:
    """Return the text for the author of a plan: the answer, the changes, the feedback, and the allowed next steps.

    `mode`: the permission mode after the approval; empty: unchanged.
    """
    by = f" by {answer.by}" if answer.by else ""
    if void:
        head = f"Your plan was approved{by}, but the approval is void: {void}"
    elif answer.status == "expired":
        head = "Your plan has expired: nobody answered it in time."
    else:
        head = f"Your plan is {answer.status}{by}."
    lines = [head]
    if answer.choice:
        lines.append(f"Of its options this one was chosen: {answer.choice}")
    if answer.plan and not void:
        lines.append(f"It was edited before. The approved text is this one, and not yours:\n\n{answer.plan}\n")
    if answer.reason:
        lines.append(answer.reason)
    if answer.note and not void:
        lines.append(f"{answer.note} Check that it still fits.")
    if answer.status == "approved" and not void:
        new_mode = f" You are in the permission mode {mode} now." if mode else ""
        lines.append(f"You may carry it out now, and only this plan.{new_mode}")
    else:
        lines.append("You may still only read: revise the plan and submit it again, or report why you cannot.")
    return "\n".join(lines)


def previous_revision(request: Request, requests: Iterable[Request]) -> Request | None:
    """Return the previous revision: the newest earlier plan of the same life for the same work."""
    payload = request.payload
    bound = PlanBinding(payload.get("task_id"), str(payload.get("assignment") or ""))
    plans = [
        plan
        for plan in requests
        if plan.kind == "plan"
        and (plan.asked_by, plan.incarnation) == (request.asked_by, request.incarnation)
        and same_work(plan, bound)
        and plan.id != request.id
        and plan.created_at <= request.created_at
        and plan.revision < request.revision
    ]
    return max(plans, key=lambda plan: (plan.created_at, plan.revision), default=None)


def unified_diff(old: str, new: str, old_name: str, new_name: str) -> list[str]:
    """Return the differences between two texts as the lines of a unified diff; empty if there are none."""
    return list(difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, lineterm=""))
