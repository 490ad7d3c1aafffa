"""One request in full: what is asked, what differs from the revision before, every word on it, how to answer. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from callboard.core.asking.plans import changes, earlier_of, options_of, submitted_of
from callboard.core.asking.session_rules import offered
from callboard.faces.approvals import request_block
from callboard.faces.pages.listings import plain_row, when
from callboard.faces.revisions import diff_lines, since_earlier, since_title
from callboard.faces.terminal import Block, Line, visible
from callboard.words.values import Json, Request, Said


@dataclass(frozen=True, slots=True)
class Told:
    """A request, and what is to be told beside it. `note`: what has changed round it since it was asked."""

    request: Request
    earlier: Request | None = None
    note: str = ""


def told(request: Request, requests: Sequence[Request], note: str = "") -> Told:
    """`requests`: all of the session; the revision before is one of them."""
    return Told(request, earlier_of(request, requests), note)


def request_page(one: Told) -> Block:
    """The whole request for a person."""
    request = one.request
    lines = [
        *request_block(request, one.note).lines,
        *diff_lines(since_title(one.earlier) if one.earlier else "", since_earlier(request, one.earlier)),
        *diff_lines("by the person's edit", _by_edit(request)),
        Line("  history", "dim"),
        *(_said(said) for said in _history(request)),
        *_ending(request),
    ]
    return Block(tuple(lines))


def request_json(one: Told) -> Json:
    """The same for a script: the row, `previous` (an id), `diff` and `edit` (unified diffs, empty: none), `note`."""
    beside = {
        "previous": one.earlier.id if one.earlier else None,
        "diff": "\n".join(since_earlier(one.request, one.earlier)),
        "edit": "\n".join(_by_edit(one.request)),
        "note": one.note,
    }
    return {**plain_row(one.request), **beside}


def _by_edit(request: Request) -> list[str]:
    submitted = submitted_of(request)
    if not submitted:
        return []
    return changes(str(submitted["plan"]), str(request.payload["plan"]), "submitted", "approved")


def _history(request: Request) -> Sequence[Said]:
    """What was said; of a row that an older version wrote, what its other fields tell."""
    if request.history:
        return request.history
    asked = Said(at=request.created_at, by=request.asked_by, what="asked")
    if request.status == "pending":
        return (asked,)
    return (asked, Said(at=0.0, by=request.answered_by or "nobody", what=request.status, reason=request.reason))


def _said(said: Said) -> Line:
    reason = f": {visible(said.reason)}".replace("\n", "\\n") if said.reason else ""
    return Line(f"    {f'{when(said.at)} ' if said.at else ''}{said.what} by {said.by or 'nobody'}{reason}")


def _ending(request: Request) -> Iterator[Line]:
    """How it ended, or how it may be answered and until when."""
    if request.status != "pending":
        chosen = f", option: {visible(request.choice)}" if request.choice else ""
        yield Line(f"  {request.status} by {request.answered_by or 'nobody'}{chosen}", "strong")
        return
    who = " or ".join(request.may_answer)
    until = f" until {when(request.expires_at)}" if request.expires_at is not None else ""
    yield Line(f"  waits for {who}{until}", "strong")
    if request.kind == "question":
        yield Line(f'  callboard answer {request.id} "…"', "dim")
        return
    option = " [--option N]" if options_of(request) else " [--always]" if offered(request) else ""
    edit = f"  |  callboard edit {request.id}" if request.kind == "plan" else ""
    words = f'  callboard approve {request.id}{option}{edit}  |  callboard reject {request.id} --why "…"'
    yield Line(words, "dim")
