"""Requests as a list, and one in full. Pure.

A request in full has its content, the differences from the previous revision, its history, and how to answer it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from callboard.cli.terminal.terminal import Block, Line, stacked, visible
from callboard.cli.views.events import answer_words, first_line, shorten
from callboard.cli.views.listings import by_words, render_listing
from callboard.cli.views.question import request_block
from callboard.cli.views.revisions import diff_lines, outcome_text, since_earlier, since_title
from callboard.core.approvals.plans import options_of, previous_revision, submitted_of, unified_diff
from callboard.core.approvals.session_rules import offered_rules
from callboard.core.keys import one_by_id
from callboard.sessions.inspect.resources import REQUESTS, plain_row, when
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json, Request, Said, SessionRow


@dataclass(frozen=True, slots=True)
class RequestDetails:
    """Request with its previous revision. `note`: changes around it since it was asked."""

    request: Request
    earlier: Request | None = None
    note: str = ""


def details_of(request: Request, requests: Sequence[Request], note: str = "") -> RequestDetails:
    """Return the request with its previous revision, which is one of `requests`, all of the session's requests."""
    return RequestDetails(request, previous_revision(request, requests), note)


def request_page(details: RequestDetails) -> Block:
    """Return the whole request for a person."""
    request = details.request
    lines = [
        *request_block(request, details.note).lines,
        *diff_lines(since_title(details.earlier) if details.earlier else "", since_earlier(request, details.earlier)),
        *diff_lines("by the person's edit", _by_edit(request)),
        Line("  history", "dim"),
        *(_history_line(entry) for entry in _history(request)),
        *_ending(request),
    ]
    return Block(tuple(lines))


def request_json(details: RequestDetails) -> Json:
    """Return the request as JSON for a script.

    The fields are those of the row, `previous` (an id), `diff` and `edit` (unified diffs, empty if none), and `note`.
    """
    extra = {
        "previous": details.earlier.id if details.earlier else None,
        "diff": "\n".join(since_earlier(details.request, details.earlier)),
        "edit": "\n".join(_by_edit(details.request)),
        "note": details.note,
    }
    return {**plain_row(details.request), **extra}


def _by_edit(request: Request) -> list[str]:
    submitted = submitted_of(request)
    if not submitted:
        return []
    return unified_diff(str(submitted["plan"]), str(request.payload["plan"]), "submitted", "approved")


def _history(request: Request) -> Sequence[Said]:
    """Return the messages of a request; for a row that an older version wrote, derived from its other fields."""
    if request.history:
        return request.history
    opening = Said(at=request.created_at, by=request.asked_by, what="asked")
    if request.status == "pending":
        return (opening,)
    return (opening, Said(at=0.0, by=request.answered_by or "", what=request.status, reason=request.reason))


def _history_line(entry: Said) -> Line:
    reason = f": {visible(entry.reason)}".replace("\n", "\\n") if entry.reason else ""
    user = f" ({visible(entry.user)})" if entry.user else ""
    return Line(f"    {f'{when(entry.at)} ' if entry.at else ''}{entry.what}{by_words(entry.by)}{user}{reason}")


def _ending(request: Request) -> Iterator[Line]:
    """Yield how the request ended, or how to answer it and its deadline."""
    if request.status != "pending":
        chosen = f", option: {visible(request.choice)}" if request.choice else ""
        yield Line(f"  {outcome_text(request)}{chosen}", "strong")
        return
    answerers = " or ".join(request.may_answer)
    until = f" until {when(request.expires_at)}" if request.expires_at is not None else ""
    yield Line(f"  waits for {answerers}{until}", "strong")
    if "person" not in request.may_answer:
        return
    if request.kind == "question":
        yield Line(f'  callboard answer {request.id} "…"', "dim")
        return
    option = " [--option N]" if options_of(request) else " [--always]" if offered_rules(request) else ""
    edit = f"  |  callboard edit {request.id}" if request.kind == "plan" else ""
    text = f'  callboard approve {request.id}{option}{edit}  |  callboard reject {request.id} --why "…"'
    yield Line(text, "dim")


def requests_table(rows: Sequence[Request]) -> Block:
    """Return the id, kind, asker, revision of a plan, start, deadline, and a line of each request.

    Plain rows are pending; others show how they ended.
    """
    listed = render_listing(REQUESTS, rows)
    return stacked(listed, Line("in full: callboard show ID", "dim")) if rows else listed


def waiting_line(waiting: tuple[SessionRow, int]) -> Line:
    """Return a line on another session with this number of pending requests."""
    row, count = waiting
    title = f" ({shorten(first_line(row.prompt), 40)})" if row.prompt else ""
    requests = f"{count} request{'s' if count > 1 else ''}"
    return Line(f"another session has {requests} for you{title}: callboard plans --session {row.id}", "warn")


def requests_block(rows: Sequence[Request], *, attended: bool = True) -> Block:
    """Return each request in full, with how to answer it while it is pending."""
    if not rows:
        return render_listing(REQUESTS, rows)
    lines: list[Line] = []
    for row in rows:
        lines += request_block(row).lines
        lines += [_hint(row, attended), Line("")]
    return Block(tuple(lines[:-1]))


def find_request(rows: Sequence[Request], request_id: str) -> Request:
    """Return the request with that id, or the only one with that prefix. Raises `UsageError`."""
    by_id = {row.id: row for row in rows}
    waiting = (row.id for row in rows if row.status == "pending")
    return by_id[one_by_id("request", by_id, request_id, offered=waiting)]


def _hint(row: Request, attended: bool) -> Line:
    if row.status != "pending":
        return Line(f"  {row.status}{by_words(row.answered_by)}{': ' + row.reason if row.reason else ''}", "dim")
    return Line(f"  {answer_words(row, attended=attended)}", "dim")
