"""What a question for a permission says, and what may be typed to it. Pure.

It says what would run, in full and with nothing hidden; who asks, of which type, on whose word and in which folder; why
it asks, in words; what "always" would allow. A file's change is shown as a change.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import cast

from callboard.core.asking.session_rules import Always, offered
from callboard.core.permission.letters import meaning_of
from callboard.faces.terminal import Line, Style, visible
from callboard.words.values import Json, Request

_HIDDEN = re.compile(
    "[\x0b\x0c\x85\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180e\u2000-\u200f\u2028-\u202f"
    "\u205f-\u206f\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""What takes no place, or looks like a blank, or breaks a line, beside what `visible` spells out."""
_DURATION = re.compile(r"(\d{1,4})(s|m|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_WORD: Mapping[str, str] = {
    "person": "on a person's word",
    "lead": "on the lead's word",
    "teammate": "on a teammate's word",
    "schedule": "in a turn that a schedule began",
    "tool": "on the word of a tool's text",
}
_COMPARED = 40_000
"""Pairs of lines that are compared before a question is shown."""
_CHANGED: dict[str, Style] = {"+": "good", "-": "bad"}


def spelled(text: str) -> str:
    """The text with every character spelled out that a person would not see, or would take for another."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), visible(text))


def permission_lines(request: Request) -> tuple[Line, ...]:
    """The body of the question. Of what an older version asked, what it holds."""
    return (*_who(request), *_what(request.payload), *_why(request), *_always(request))


def until_line(request: Request, now: float) -> tuple[Line, ...]:
    """When it is too late to answer, on this machine's clock, how long that is from `now` (Unix seconds), and what
    happens then."""
    if request.expires_at is None:
        return ()
    at = datetime.fromtimestamp(request.expires_at).astimezone()
    words = f"  waits until {at:%H:%M:%S} ({left_words(request.expires_at - now)}); then {_afterwards(request)}"
    return (Line(words, "dim"),)


def left_words(seconds: float) -> str:
    """`29 min left`, rounded down: nobody counts on a minute that is not there."""
    if seconds <= 0:
        return "no time left"
    if seconds < 120:
        return f"{int(seconds)} s left"
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours} h {minutes} min left" if hours else f"{minutes} min left"


def _afterwards(request: Request) -> str:
    nobody = "its asker decides alone" if request.kind == "question" else "it is refused"
    further = {"policy": f"a policy decides, or {nobody}", "lead": "the lead is asked", "person": "it is asked again"}
    return further.get(request.escalation, nobody)


def _who(request: Request) -> Iterator[Line]:
    held = request.payload
    kind = _one_line(str(held.get("agent_type") or ""))
    folder = f", in {_one_line(str(held['folder']))}" if held.get("folder") else ""
    who = _one_line(request.asked_by) + (f" ({kind})" if kind and kind != request.asked_by else "")
    yield Line(f"  by: {who}, {_WORD.get(request.cause, 'on no word that is known')}{folder}", "dim")


def _what(held: Json) -> Iterator[Line]:
    tool, given = str(held.get("tool", "?")), held.get("input")
    yield Line(f"  tool: {_one_line(tool)}")
    if not isinstance(given, dict):
        return
    fields = cast("Json", given)
    diff = held.get("diff")
    change = diff.split("\n") if isinstance(diff, str) and diff else _change_of(tool, fields)
    for name, value in fields.items():
        if change and name in _CHANGES.get(tool, ()):
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        yield from _text(text, "    ", f"  {_one_line(name)}: ")
    for line in change:
        yield Line(f"    {spelled(line)}", _CHANGED.get(line[:1], "plain"))


_CHANGES: Mapping[str, tuple[str, ...]] = {
    "edit_file": ("old_text", "new_text"),
    "write_file": ("content",),
    "remember": ("content",),
}
"""Fields that are shown as a change."""


def _change_of(tool: str, fields: Json) -> Sequence[str]:
    """The lines that go and those that come; none for other tools, and for input that is no text."""
    wanted = _CHANGES.get(tool, ())
    texts = [text for name in wanted if isinstance(text := fields.get(name), str)]
    if not texts or len(texts) < len(wanted):
        return ()
    before, after = ("", *texts)[-2:]
    return _compared(before.split("\n") if before else [], after.split("\n"))


def _compared(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Line by line; of much text all that goes, then all that comes."""
    if len(before) * len(after) > _COMPARED:
        return [*(f"-{line}" for line in before), *(f"+{line}" for line in after)]
    compared = difflib.unified_diff(before, after, lineterm="", n=len(before))
    return list(compared)[3:] if before != after else [f" {line}" for line in after]


def _why(request: Request) -> Iterator[Line]:
    rule, why = str(request.payload.get("rule") or ""), str(request.payload.get("why") or "")
    meaning = meaning_of(rule)
    if rule:
        yield Line(f"  asks by: {_one_line(rule)}{f' ({meaning})' if meaning else ''}")
    if why:
        yield from _text(why, "    ", "  why: ")


def _always(request: Request) -> Iterator[Line]:
    rules = offered(request)
    if rules:
        yield Line(f"  always would allow, in this session: {_one_line(', '.join(rules))}")
    elif request.person_only:
        yield Line("  only a person answers this, for this one call", "dim")


def read_always(words: str) -> tuple[Always, str]:
    """`[agent] [for] [2h] words`: for whom, for how long, and the words that go to the agent."""
    always, left = Always(), words.split()
    if left[:1] == ["agent"]:
        always, left = Always(agent_only=True), left[1:]
    timed = left[1:] if left[:1] == ["for"] else left
    seconds = seconds_of(timed[0]) if timed else None
    if seconds is not None:
        always, left = Always(seconds, always.agent_only), timed[1:]
    return always, " ".join(left)


def seconds_of(text: str) -> float | None:
    """Seconds of `90s`, `30m`, `2h`, `1d`; None for what is no time, and for none at all."""
    found = _DURATION.fullmatch(text.lower())
    return float(found[1]) * _SECONDS[found[2]] or None if found else None


def _text(text: str, indent: str, first: str) -> tuple[Line, ...]:
    """Line for line, all of it."""
    lines = text.split("\n")
    return (Line(first + spelled(lines[0])), *(Line(indent + spelled(line)) for line in lines[1:]))


def _one_line(text: str) -> str:
    return spelled(text).replace("\n", "\\n")
