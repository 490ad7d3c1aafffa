"""What differs between a plan and the one before it, as lines for the screen. Pure.

Earlier revisions are rows of the same session: what a person rejected stands there, whole, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from callboard.core.asking.plans import changes, earlier_of, options_of, submitted_of
from callboard.faces.terminal import Line, Style, visible
from callboard.words.values import Request

_STYLES: Mapping[str, Style] = {"+": "good", "-": "bad", "@": "dim"}


def since_earlier(plan: Request, earlier: Request | None) -> list[str]:
    """The lines of a unified diff from the revision before; none where there is none, or nothing differs."""
    if plan.kind != "plan" or earlier is None:
        return []
    return changes(_text_of(earlier), _text_of(plan), earlier.id, plan.id)


def revision_lines(plan: Request, requests: Sequence[Request]) -> tuple[Line, ...]:
    """The changes since the revision before, which is one of `requests`, and what became of that one."""
    earlier = earlier_of(plan, requests) if plan.kind == "plan" else None
    return () if earlier is None else tuple(diff_lines(since_title(earlier), since_earlier(plan, earlier)))


def since_title(earlier: Request) -> str:
    """The revision before, and what became of it."""
    why = f": {visible(earlier.reason)}".replace("\n", "\\n") if earlier.reason else ""
    ended = f"{earlier.status} by {earlier.answered_by or 'nobody'}{why}"
    return f"since revision {earlier.revision} ({earlier.id}, {ended})"


def diff_lines(title: str, lines: Sequence[str]) -> Iterator[Line]:
    """A diff under its title, each line in the style of what it says; nothing where nothing differs."""
    if lines:
        yield Line(f"  changes {title}", "dim")
    for line in lines:
        yield Line(f"    {visible(line)}", _STYLES.get(line[:1], "plain"))


def _text_of(plan: Request) -> str:
    """A plan as its author wrote it, its options below."""
    text = str(submitted_of(plan).get("plan") or plan.payload.get("plan") or "")
    return "\n".join([text, *(f"option {number}: {one}" for number, one in enumerate(options_of(plan), 1))])
