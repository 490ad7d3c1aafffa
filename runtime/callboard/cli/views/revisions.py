"""Differences between a plan and its previous revision, as lines for the screen. Pure.

Previous revisions are rows of the same session, because a rejected plan remains there in full, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from callboard.cli.terminal.terminal import Line, Style, visible
from callboard.core.approvals.plans import options_of, previous_revision, submitted_of, unified_diff
from callboard.types.records import Request

_STYLES: Mapping[str, Style] = {"+": "good", "-": "bad", "@": "dim"}


def since_earlier(plan: Request, earlier: Request | None) -> list[str]:
    """Return the lines of a unified diff from the previous revision; none without a previous one or a difference."""
    if plan.kind != "plan" or earlier is None:
        return []
    return unified_diff(_text_of(earlier), _text_of(plan), earlier.id, plan.id)


def revision_lines(plan: Request, requests: Sequence[Request]) -> tuple[Line, ...]:
    """Return the changes since the previous revision, which is one of `requests`, and the outcome of that one."""
    earlier = previous_revision(plan, requests) if plan.kind == "plan" else None
    return () if earlier is None else tuple(diff_lines(since_title(earlier), since_earlier(plan, earlier)))


def outcome_text(request: Request) -> str:
    """Return how a request ended: `approved by lead`, `expired`."""
    return f"{request.status} by {request.answered_by}" if request.answered_by else request.status


def since_title(earlier: Request) -> str:
    """Return a title with the previous revision and its outcome."""
    reason = f": {visible(earlier.reason)}".replace("\n", "\\n") if earlier.reason else ""
    ended = f"{outcome_text(earlier)}{reason}"
    return f"since revision {earlier.revision} ({earlier.id}, {ended})"


def diff_lines(title: str, lines: Sequence[str]) -> Iterator[Line]:
    """Yield a diff under its title, each line in its style; nothing if there is no difference."""
    if lines:
        yield Line(f"  changes {title}", "dim")
    for line in lines:
        yield Line(f"    {visible(line)}", _STYLES.get(line[:1], "plain"))


def _text_of(plan: Request) -> str:
    """Return a plan as its author wrote it, followed by its options."""
    text = str(submitted_of(plan).get("plan") or plan.payload.get("plan") or "")
    return "\n".join([text, *(f"option {number}: {option}" for number, option in enumerate(options_of(plan), 1))])
