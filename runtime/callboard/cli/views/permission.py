"""Text of a permission question, and the answers that may be typed. Pure.

It shows the call in full, with nothing hidden; who asks, of which type, on whose behalf and in which folder; the
reason, as text; and the effect of "always". A file's change is shown as a change.

A line for a denied call: the call, the rule, and how to allow it. Pure.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import cast

from callboard.cli.terminal.terminal import Block, Line, Style, block, visible
from callboard.cli.views.events import WIDTH, call_words, first_line, shorten
from callboard.core.approvals.session_rules import Always, offered
from callboard.core.permissions.explain import meaning_of
from callboard.core.permissions.suggest_rules import deletion_rule
from callboard.types.events import ApprovalNeeded, CallJudged
from callboard.types.records import Json, Request, ToolCall

_HIDDEN = re.compile(
    "[\x0b\x0c\x85\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180e\u2000-\u200f\u2028-\u202f"
    "\u205f-\u206f\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Characters that have no width, look like a blank, or break a line, in addition to those that `visible` spells out."""
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
"""Most pairs of lines that are compared before a question is shown."""
_CHANGED: dict[str, Style] = {"+": "good", "-": "bad"}


def spelled(text: str) -> str:
    """Return the text with every character spelled out that a person would not see, or would mistake for another."""
    return _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), visible(text))


def permission_lines(request: Request) -> tuple[Line, ...]:
    """Return the body of the question. For a request of an older version, only the fields that it has."""
    return (*_asker_lines(request), *_call_lines(request.payload), *_reason_lines(request), *_always(request))


def until_line(request: Request, now: float) -> tuple[Line, ...]:
    """Return the deadline for an answer in this machine's time, the time left from `now` (Unix seconds), and the
    consequence."""
    if request.expires_at is None:
        return ()
    at = datetime.fromtimestamp(request.expires_at).astimezone()
    text = f"  waits until {at:%H:%M:%S} ({left_words(request.expires_at - now)}); then {_afterwards(request)}"
    return (Line(text, "dim"),)


def left_words(seconds: float) -> str:
    """Return `29 min left`, rounded down, so that nobody relies on a minute too many."""
    if seconds <= 0:
        return "no time left"
    if seconds < 120:
        return f"{int(seconds)} s left"
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours} h {minutes} min left" if hours else f"{minutes} min left"


def _afterwards(request: Request) -> str:
    nobody = "the agent that asks decides" if request.kind == "question" else "it is refused"
    further = {"policy": f"a policy decides, or {nobody}", "lead": "the lead is asked", "person": "it is asked again"}
    return further.get(request.escalation, nobody)


def _asker_lines(request: Request) -> Iterator[Line]:
    held = request.payload
    kind = _one_line(str(held.get("agent_type") or ""))
    folder = f", in {_one_line(str(held['folder']))}" if held.get("folder") else ""
    asker = _one_line(request.asked_by) + (f" ({kind})" if kind and kind != request.asked_by else "")
    yield Line(f"  by: {asker}, {_WORD.get(request.cause, 'on no word that is known')}{folder}", "dim")


def _call_lines(held: Json) -> Iterator[Line]:
    tool = str(held.get("tool", "?"))
    tool_input = held.get("input")
    yield Line(f"  tool: {_one_line(tool)}")
    if not isinstance(tool_input, dict):
        return
    fields = cast("Json", tool_input)
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
    """Return the removed and the added lines; none for other tools, and for input that is not text."""
    names = _CHANGES.get(tool, ())
    texts = [text for name in names if isinstance(text := fields.get(name), str)]
    if not texts or len(texts) < len(names):
        return ()
    before, after = ("", *texts)[-2:]
    return _compared(before.split("\n") if before else [], after.split("\n"))


def _compared(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return a comparison line by line; for long texts all removed lines, then all added ones."""
    if len(before) * len(after) > _COMPARED:
        return [*(f"-{line}" for line in before), *(f"+{line}" for line in after)]
    compared = difflib.unified_diff(before, after, lineterm="", n=len(before))
    return list(compared)[3:] if before != after else [f" {line}" for line in after]


def _reason_lines(request: Request) -> Iterator[Line]:
    rule = str(request.payload.get("rule") or "")
    reason = str(request.payload.get("why") or "")
    meaning = meaning_of(rule)
    if rule:
        yield Line(f"  rule: {_one_line(rule)}{f' ({meaning})' if meaning else ''}")
    if reason:
        yield from _text(reason, "    ", "  why: ")


def _always(request: Request) -> Iterator[Line]:
    rules = offered(request)
    if rules:
        yield Line(f"  always would allow, in this session: {_one_line(', '.join(rules))}")
    elif request.person_only:
        yield Line("  only a person answers this, for this one call", "dim")


def read_always(text: str) -> tuple[Always, str]:
    """Parse `[agent] [for] [2h] words`: the agents, the duration, and the message to the agent."""
    always = Always()
    remaining = text.split()
    if remaining[:1] == ["agent"]:
        always = Always(agent_only=True)
        remaining = remaining[1:]
    timed = remaining[1:] if remaining[:1] == ["for"] else remaining
    seconds = seconds_of(timed[0]) if timed else None
    if seconds is not None:
        always = Always(seconds, always.agent_only)
        remaining = timed[1:]
    return always, " ".join(remaining)


def seconds_of(text: str) -> float | None:
    """Return the seconds of `90s`, `30m`, `2h`, `1d`; None for an invalid duration or zero."""
    match = _DURATION.fullmatch(text.lower())
    return float(match[1]) * _SECONDS[match[2]] or None if match else None


def _text(text: str, indent: str, first: str) -> tuple[Line, ...]:
    """Return all lines of the text."""
    lines = text.split("\n")
    return (Line(first + spelled(lines[0])), *(Line(indent + spelled(line)) for line in lines[1:]))


def _one_line(text: str) -> str:
    return spelled(text).replace("\n", "\\n")


_PREFIX = "Permission denied: "
_AGAIN = " Send the call again."
_WAYS = {
    "S": "no rule and no mode allows it; run it yourself if you mean it",
    "K": "the runtime's own files are yours to change",
    "plan gate": "it may run once a plan is approved",
    "schema": "the model sees this, and may call it again in another way",
    "read-only type": "give the work to another type of agent",
}
_MODES = {
    "plan": "it may run once a plan is approved, or in another mode (/mode)",
    "dontAsk": "allow it by a rule (--allowed-tools, permission.allow), or choose another mode",
}


def is_denial(event: CallJudged) -> bool:
    """Return True if permissions, the plan gate, a hook or the schema denied the call; otherwise it was not reached."""
    return event.verdict == "deny" and (event.by in ("plan gate", "schema") or event.why.startswith(_PREFIX))


def denial(agent: str, call: ToolCall | None, event: CallJudged) -> Block:
    """Return the line of a denied call."""
    reason = event.why.removeprefix(_PREFIX).removesuffix(f" ({event.by})").removesuffix(_AGAIN).rstrip(".")
    return denial_line(agent, call, f"{reason} ({event.by})", way_out(event.by, event.mode, call))


def denial_line(agent: str, call: ToolCall | None, reason: str, way: str) -> Block:
    """Return `denied: CALL: WHY (RULE). WAY`."""
    text = call_words(call) if call is not None else "a call"
    return block(
        f"denied: {text}: {shorten(first_line(reason), 2 * WIDTH)}. {way[:1].upper()}{way[1:]}", "warn", name=agent
    )


def unanswered(call: ToolCall | None, request: ApprovalNeeded, *, told_later: bool = False) -> str:
    """Return how to proceed after a question that nobody answered. `told_later`: the end of the run names the rule."""
    allowed = f", or {_by_rule(call)}" if request.rule == "D" and not told_later and _by_rule(call) else ""
    if request.expires_at is not None and request.expires_at <= request.at:
        return f"nobody can be asked in a run without a terminal; run it in a terminal{allowed}"
    return f"nobody answered in time; have it asked again, and answer on the screen or by `callboard approve`{allowed}"


def _by_rule(call: ToolCall | None) -> str:
    rule = deletion_rule(call.name, call.input) if call is not None else ""
    return f"allow it by a rule: --allowed-tools {shlex.quote(rule)}, or permission.allow in settings" if rule else ""


def way_out(by: str, mode: str, call: ToolCall | None = None) -> str:
    """Return how a person can allow such a call."""
    if by in _WAYS:
        return _WAYS[by]
    if by == "D" and mode != "plan" and (rule := _by_rule(call)):
        return rule
    if by.startswith("rule "):
        return "to allow it, change that rule in your settings (callboard policy log shows where it counts)"
    if mode in _MODES and len(by) == 1:  # a letter: the mode turned a question into a no
        return _MODES[mode]
    return f"{by} decided it: change that, or run it yourself"
