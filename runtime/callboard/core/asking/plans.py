"""Plans as content: what a request for one holds, an option of it, a person's edit, what has changed round it. Pure.

An approval is bound to what was read. Whoever answers names the digest of the content that he saw; when the request
holds another content by then, the answer is void. An edit is an approval of the edited text: it makes a new content,
with a digest and a revision of its own, and keeps the submitted one beside it, so that its author knows it for his.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, cast

from callboard.core.asking.requests import Refusal, digest_of, unsound
from callboard.words.events import AnswerTaken
from callboard.words.values import Json, Request, Said

SHOWN = 10
"""Digits of a commit that are shown."""


@dataclass(frozen=True, slots=True)
class Word:
    """What an answer says beside yes or no."""

    option: int = 0
    """The option of the plan that is approved, counted from 1; 0: the plan as it stands."""
    plan: str = ""
    """The text that is approved in place of the submitted one, whole; empty: as it was submitted."""
    seen: str = ""
    """The digest of the content that was read; empty: it is not known which."""


AS_IT_STANDS = Word()
"""Nothing but yes or no, to whatever content stands there."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The piece of work that a plan is for, and where it was written."""

    task_id: str | None = None
    """The task in its author's hands."""
    assignment: str = ""
    """The envelope that gave its author the assignment."""
    folder: str = ""
    """Where its author's tools run."""
    base: str = ""
    """The commit that was checked out there; empty: none, or not known."""


def payload_of(plan: str, options: Iterable[str], bound: Bound) -> Json:
    """The content that an approval is for, as a request holds it."""
    return {
        "plan": plan,
        "options": list(options),
        "task_id": bound.task_id,
        "assignment": bound.assignment,
        "folder": bound.folder,
        "base": bound.base,
    }


def same_work(request: Request, bound: Bound) -> bool:
    """Whether a plan is for this piece of work."""
    held = request.payload
    return (held.get("task_id"), str(held.get("assignment") or "")) == (bound.task_id, bound.assignment)


def subject_of(plan: str) -> str:
    """One line for a person: the first that says something, without its Markdown."""
    line = next((line for line in plan.splitlines() if line.strip()), "")
    return line.strip().lstrip("#").strip() or line.strip()


def options_of(request: Request) -> tuple[str, ...]:
    """The alternatives that it names, in order."""
    given: Any = request.payload.get("options")
    return tuple(str(one) for one in cast("list[Any]", given)) if isinstance(given, list | tuple) else ()


def submitted_of(request: Request) -> Json:
    """`plan` and `digest` as they were submitted, where a person edited it; else empty."""
    kept: Any = request.payload.get("submitted")
    return cast("Json", kept) if isinstance(kept, dict) else {}


def with_word(asked: Request, answered: Request, word: Word, by: str, now: float) -> Request | Refusal:
    """The answered request with all that its answer says: the option, the edited text. Or why it does not count: the
    content is not what was read, there is no such option, an agent edits, the edited text is empty.

    `asked`: the request as it stands; `answered`: the same, as `requests.answer` makes it.
    """
    if word.seen and word.seen != asked.digest:
        text = f"{asked.id}: its content has changed since you read it, so your answer is void; look at it again"
        return Refusal("changed", text)
    if not word.option and not word.plan:
        return answered
    if asked.kind != "plan" or answered.status != "approved":
        return Refusal("status", f"{asked.id}: an option or an edited text goes with the approval of a plan")
    if word.plan and (by != "person" or not word.plan.strip()):
        why = "the edited plan is empty: reject it instead" if by == "person" else "only a person edits a plan"
        return Refusal("not_yours", f"{asked.id}: {why}")
    options = options_of(asked)
    if word.option and not 1 <= word.option <= len(options):
        there_are = f"it has 1 to {len(options)}" if options else "it names none"
        return Refusal("status", f"{asked.id} has no option {word.option}; {there_are}")
    chosen = answered.model_copy(update={"choice": options[word.option - 1] if word.option else ""})
    same = not word.plan or word.plan == asked.payload.get("plan")
    return chosen if same else _edited(asked, chosen, word.plan, by, now)


def _edited(asked: Request, answered: Request, plan: str, by: str, now: float) -> Request:
    kept = {"plan": asked.payload.get("plan", ""), "digest": asked.digest}
    payload: Json = {**asked.payload, "plan": plan, "submitted": kept}
    said = Said(at=now, by=by, what="edited")
    history = (*asked.history, said, *answered.history[len(asked.history) :])
    update = {
        "payload": payload,
        "digest": digest_of("plan", payload),
        "revision": asked.revision + 1,
        "subject": subject_of(plan),
        "history": history,
    }
    return answered.model_copy(update=update)


@dataclass(frozen=True, slots=True)
class Now:
    """How it stands round the author of a plan when he hears of the answer."""

    at: float
    """Unix seconds."""
    tasks: Collection[str] = ()
    """Ids of those in his hands."""
    commit: str = ""
    """What is checked out in his folder; empty: not known."""
    moved_is_void: bool = False
    """An approval does not count when that is not the commit that the plan is based on."""
    folder: str = ""
    """Where his tools run; empty: not known."""
    asked: str = ""
    """The digest of the call that waits for a permission."""


def taken(request: Request, now: Now) -> AnswerTaken:
    """What the author of a request writes down of its answer."""
    note, void = "", unsound(request) or another(request, now.asked) or elsewhere(request, now.folder)
    if not void and request.kind == "plan" and request.status == "approved":
        note = moved(request, now.commit)
        void = note if now.moved_is_void else ""
        task = str(request.payload.get("task_id") or "")
        void = void if not task or task in now.tasks else f"{task} is no longer in your hands."
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
            "plan": request.payload.get("plan", "") if submitted else "",
            "submitted": submitted.get("digest", ""),
            "note": note,
            "void": void,
        }
    )


def another(request: Request, asked: str) -> str:
    """Why an approval is not one of the call that waits for it; empty when it is, and for what is no permission."""
    same = request.kind != "permission" or request.status != "approved" or request.digest == asked or not asked
    return "" if same else "what was approved is not what was asked for"


def elsewhere(request: Request, folder: str) -> str:
    """Why an approval does not count where its asker's tools run by now; empty when it does."""
    then = request.payload.get("folder")
    if request.status != "approved" or not then or not folder or then == folder:
        return ""
    return f"it was asked for in {then}, and this is {folder}"


def moved(request: Request, commit: str) -> str:
    """What is to be said when another commit is checked out by now; empty when it is the same, or one is not known."""
    base = str(request.payload.get("base") or "")
    if not base or not commit or base == commit:
        return ""
    folder = request.payload.get("folder")
    return f"{folder} has moved from commit {base[:SHOWN]} to {commit[:SHOWN]} since this plan was submitted."


def void_of(answer: AnswerTaken, digest: str) -> str:
    """Why an approval does not open the gate of a plan with this digest; empty when it does."""
    if (answer.submitted or answer.digest) != digest:
        return "What was approved is not the plan that you submitted."
    return answer.void


def decision(answer: AnswerTaken, void: str) -> str:
    """What an author reads of the answer to his plan: the word, what was changed, the feedback, what he may do now."""
    by = answer.by or "nobody"
    if void:
        head = f"Your plan was approved by {by}, but the approval is void: {void}"
    else:
        head = f"Your plan is {answer.status} by {by}."
    lines = [head]
    if answer.choice:
        lines.append(f"Of its options this one was chosen: {answer.choice}")
    if answer.plan and not void:
        lines.append(f"It was edited before. What is approved is this text, and not yours:\n\n{answer.plan}\n")
    if answer.reason:
        lines.append(answer.reason)
    if answer.note and not void:
        lines.append(f"{answer.note} See whether it still fits.")
    if answer.status == "approved" and not void:
        lines.append("You may carry it out now, and only this plan.")
    else:
        lines.append("Still reads only: revise the plan and submit it again, or report why you cannot.")
    return "\n".join(lines)


def earlier_of(request: Request, requests: Iterable[Request]) -> Request | None:
    """The revision before it: the newest plan of the same life for the same piece of work that came before."""
    held = request.payload
    bound = Bound(held.get("task_id"), str(held.get("assignment") or ""))
    found = [
        one
        for one in requests
        if one.kind == "plan"
        and (one.asked_by, one.incarnation) == (request.asked_by, request.incarnation)
        and same_work(one, bound)
        and one.id != request.id
        and one.created_at <= request.created_at
        and one.revision < request.revision
    ]
    return max(found, key=lambda one: (one.created_at, one.revision), default=None)


def changes(old: str, new: str, old_name: str, new_name: str) -> list[str]:
    """What differs between two texts, as the lines of a unified diff; none when nothing does."""
    return list(difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, lineterm=""))
