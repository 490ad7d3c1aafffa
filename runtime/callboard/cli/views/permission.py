"""Text of a permission request, the durations that may be typed, and the line of a denied call. Pure.

The text has the call in full, with nothing hidden; the agent that asks, its type, its folder and on whose behalf it
acts; the reason, as text; and the effect of "always". A file's change is shown as a numbered diff. A frame
(`views/question.py`) uses the parts; a listing uses all of them. The line of a denied call has the call, the rule, and
how to allow it.
"""

from __future__ import annotations

import difflib
import json
import posixpath
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from callboard.cli.terminal.terminal import Block, Line, Style, block, visible
from callboard.cli.views.events import WIDTH, call_words, first_line, shorten, tool_words
from callboard.core.approvals.session_rules import AlwaysAllow, offered_rules
from callboard.core.call_words import relative_paths
from callboard.core.permissions.explain import meaning_of
from callboard.core.permissions.host_patterns import host_of
from callboard.core.permissions.hosts import is_local
from callboard.core.permissions.rules import WEB_FETCH
from callboard.core.permissions.suggest_rules import deletion_rule
from callboard.types.events import ApprovalNeeded, CallJudged
from callboard.types.late_pattern import late_pattern
from callboard.types.records import Json, Request, ToolCall

_HIDDEN = late_pattern(
    "[\x0b\x0c\x85\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180e\u2000-\u200f\u2028-\u202f"
    "\u205f-\u206f\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Characters that have no width, look like a blank, or break a line, in addition to those that `visible` spells out."""
_DURATION = late_pattern(r"(\d{1,4})(s|m|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_WORD: Mapping[str, str] = {
    "person": "on a person's authority",
    "lead": "on the lead's authority",
    "teammate": "on a teammate's authority",
    "schedule": "in a turn that a schedule began",
    "tool": "on the authority of a tool's text",
}
_COMPARED = 40_000
"""Limit of the pairs of lines that are compared before a question is shown."""
_CHANGED: dict[str, Style] = {"+": "good", "-": "bad", " ": "dim"}
_HUNK = late_pattern(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_CONTEXT = 3
"""Unchanged lines shown around a change."""
_DESCRIPTION = 74
"""Most columns of the description of a command in a frame: one row of a narrow screen. A listing has all of it."""


def spell_out(text: str) -> str:
    """Return the text with every character spelled out that a person would not see, or would mistake for another."""
    return _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), visible(text))


def permission_lines(request: Request) -> tuple[Line, ...]:
    """Return the body of the question. For a request of an older version, only the fields that it has."""
    return (*_asker_lines(request), *_call_lines(request.payload), *_reason_lines(request), *_always_lines(request))


def effect_at_deadline(request: Request) -> str:
    """Return what happens to a request that nobody answers in time."""
    nobody = "the agent that asks decides" if request.kind == "question" else "it is refused"
    further = {"policy": f"a policy decides, or {nobody}", "lead": "the lead is asked", "person": "it is asked again"}
    return further.get(request.escalation, nobody)


def call_title(request: Request, home: str = "") -> str:
    """Return what the call does, after `wants to`: `run a command`, `edit parse.py`.

    `home`: the folder to which paths are relative.
    """
    tool = str(request.payload.get("tool", "?"))
    name, field = _TITLES.get(tool, ("", ""))
    if not name:
        return f"use {_one_line(tool_words(tool))}"
    subject = relative_paths(_fields(request.payload), home).get(field)
    return f"{name} {_one_line(subject)}" if isinstance(subject, str) and field else name


def call_body(request: Request) -> tuple[Line, ...]:
    """Return the call in full for a frame whose title is `call_title`."""
    tool = str(request.payload.get("tool", "?"))
    title, titled = _TITLES.get(tool, ("", ""))
    fields = _fields(request.payload)
    change = _change(request.payload)
    lines: list[Line] = []
    for name, value in fields.items():
        if (name == titled and isinstance(value, str)) or (change and name in _CHANGES.get(tool, ())):
            continue
        plainly = title and not titled and name == "command" and isinstance(value, str)
        if tool == "bash" and name == "description":  # the model's words about it, and not what runs
            lines.append(Line(shorten(f"description: {_one_line(_json_text(value))}", _DESCRIPTION), "dim"))
        else:
            lines += _text(_json_text(value), "  ", "" if plainly else f"{_one_line(name)}: ")
    return (*lines, *change)


def has_change(held: Json) -> bool:
    """Return True if the call changes a file, and its question shows the change."""
    return bool(_change(held))


def about_line(request: Request, home: str) -> tuple[Line, ...]:
    """Return the reason with its rule, an authority other than the person's, and a folder other than `home`."""
    held = request.payload
    rule = _one_line(str(held.get("rule") or ""))
    reason = str(held.get("why") or meaning_of(rule))
    folder = str(held.get("folder") or "")
    further = [_WORD.get(request.cause, "on unknown authority")] if request.cause != "person" else []
    further += [f"in {_one_line(folder)}"] if folder and folder != home else []
    if _repeats_title(held, reason, folder or home):
        return (Line(", ".join(further), "dim"),) if further else ()
    parts = [f"rule {rule}", *further] if rule else further
    lines = _text(reason, "", "")
    last = lines[-1].text + (f" ({', '.join(parts)})" if parts else "")
    return tuple(Line(line.text, "dim") for line in (*lines[:-1], Line(last)) if line.text.strip())


def _repeats_title(held: Json, reason: str, folder: str) -> bool:
    """Return True if the reason only says that the file of the title is changed. `folder`: that of relative paths."""
    _, field = _TITLES.get(str(held.get("tool")), ("", ""))
    path = str(_fields(held).get(field, ""))
    return bool(field) and reason in (f"it changes {path}", f"it changes {posixpath.normpath(f'{folder}/{path}')}")


_TITLES: Mapping[str, tuple[str, str]] = {
    "bash": ("run a command", ""),
    "edit_file": ("edit", "path"),
    "multi_edit": ("edit", "path"),
    "edit_notebook": ("edit", "path"),
    "write_file": ("write", "path"),
}
"""Title of a tool's calls, and the field that belongs to it."""


def _fields(held: Json) -> Json:
    tool_input = held.get("input")
    return cast("Json", tool_input) if isinstance(tool_input, dict) else {}


def _json_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _asker_lines(request: Request) -> Iterator[Line]:
    held = request.payload
    kind = _one_line(str(held.get("agent_type") or ""))
    folder = f", in {_one_line(str(held['folder']))}" if held.get("folder") else ""
    asker = _one_line(request.asked_by) + (f" ({kind})" if kind and kind != request.asked_by else "")
    yield Line(f"  by: {asker}, {_WORD.get(request.cause, 'on unknown authority')}{folder}", "dim")


def _call_lines(held: Json) -> Iterator[Line]:
    tool = str(held.get("tool", "?"))
    yield Line(f"  tool: {_one_line(tool)}")
    change = _change(held)
    for name, value in _fields(held).items():
        if change and name in _CHANGES.get(tool, ()):
            continue
        yield from _text(_json_text(value), "    ", f"  {_one_line(name)}: ")
    for line in change:
        yield Line(f"    {line.text}", line.style)


def _change(held: Json) -> tuple[Line, ...]:
    """Return the change of a file as a numbered diff; none for other tools, and for input that is not text."""
    diff = held.get("diff")
    tool = str(held.get("tool", "?"))
    return number_lines(diff.split("\n") if isinstance(diff, str) and diff else _change_of(tool, _fields(held)))


def number_lines(diff: Sequence[str]) -> tuple[Line, ...]:
    """Return the lines of a unified diff with their numbers.

    They are of removed lines in the old text, of all others in the new text. Lines before the first change that are no
    file names stay as they are.
    """
    rows: list[tuple[int, str, str]] = []
    old = new = 1
    heads = next((at for at, line in enumerate(diff) if _HUNK.match(line)), 0)
    names = [line for line in diff[:heads] if not line.startswith(("--- ", "+++ "))]
    for line in [*names, *diff[heads:]]:
        if (hunk := _HUNK.match(line)) is not None:
            old = int(hunk[1])
            new = int(hunk[2])
            rows += [(0, "", "…")] if rows else []
        elif line[:1] in _CHANGED:
            rows.append((old if line[0] == "-" else new, line[0], line[1:]))
            old += line[0] != "+"
            new += line[0] != "-"
        elif line:
            rows.append((0, "", line))
    width = len(str(max((number for number, _, _ in rows), default=0)))
    return tuple(
        Line(f"{number:>{width}} {sign} {spell_out(text)}".rstrip(), _CHANGED[sign])
        if sign
        else Line(spell_out(text), "dim")
        for number, sign, text in rows
    )


_CHANGES: Mapping[str, tuple[str, ...]] = {
    "edit_file": ("old_text", "new_text"),
    "multi_edit": ("edits",),
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
    return _compared(_lines_of(before), _lines_of(after))


def _lines_of(text: str) -> list[str]:
    """Return the lines; the break that ends the last one begins none."""
    return text.removesuffix("\n").split("\n") if text else []


def _compared(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return a comparison line by line; for long texts all removed lines, then all added ones."""
    if len(before) * len(after) > _COMPARED:
        return [*(f"-{line}" for line in before), *(f"+{line}" for line in after)]
    return list(difflib.unified_diff(before, after, lineterm="", n=_CONTEXT)) or [f" {line}" for line in after]


def _reason_lines(request: Request) -> Iterator[Line]:
    rule = str(request.payload.get("rule") or "")
    reason = str(request.payload.get("why") or "")
    meaning = meaning_of(rule)
    if rule:
        yield Line(f"  rule: {_one_line(rule)}{f' ({meaning})' if meaning else ''}")
    if reason:
        yield from _text(reason, "    ", "  why: ")


def _always_lines(request: Request) -> Iterator[Line]:
    rules = offered_rules(request)
    if rules:
        yield Line(f"  always would allow, in this session: {_one_line(', '.join(rules))}")
    elif request.person_only:
        yield Line("  only a person answers this, for this one call", "dim")


def read_always(text: str) -> tuple[AlwaysAllow, str]:
    """Parse `[agent] [for] [2h] words`: the agents, the duration, and the message to the agent."""
    always = AlwaysAllow()
    remaining = text.split()
    if remaining[:1] == ["agent"]:
        always = AlwaysAllow(agent_only=True)
        remaining = remaining[1:]
    timed = remaining[1:] if remaining[:1] == ["for"] else remaining
    seconds = seconds_of(timed[0]) if timed else None
    if seconds is not None:
        always = AlwaysAllow(seconds, always.agent_only)
        remaining = timed[1:]
    return always, " ".join(remaining)


def seconds_of(text: str) -> float | None:
    """Return the seconds of `90s`, `30m`, `2h`, `1d`; None for an invalid duration or zero."""
    match = _DURATION.fullmatch(text.lower())
    return float(match[1]) * _SECONDS[match[2]] or None if match else None


def _text(text: str, indent: str, first: str) -> tuple[Line, ...]:
    """Return all lines of the text."""
    lines = text.split("\n")
    return (Line(first + spell_out(lines[0])), *(Line(indent + spell_out(line)) for line in lines[1:]))


def _one_line(text: str) -> str:
    return spell_out(text).replace("\n", "\\n")


_PREFIX = "Permission denied: "
_AGAIN = " Send the call again."
_ANOTHER_WAY = "the model sees this, and may call it again in another way"
_WAYS = {
    "S": "no rule and no mode allows it; run it yourself if you need it",
    "K": "the runtime's own files are yours to change",
    "plan gate": "it may run once a plan is approved",
    "schema": _ANOTHER_WAY,
    "path": _ANOTHER_WAY,
    "M": _ANOTHER_WAY,
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


def advice_unanswered(call: ToolCall | None, request: ApprovalNeeded, *, told_later: bool = False) -> str:
    """Return how to proceed after an unanswered question. `told_later`: the end of the run names the rule."""
    allowed = f", or {_by_rule(call)}" if request.rule == "D" and not told_later and _by_rule(call) else ""
    if request.expires_at is not None and request.expires_at <= request.at:
        if told_later:
            return "nobody can be asked in a run without a terminal; the last lines say how to allow it"
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
    fetched = host_of(str(call.input.get("url"))) if call is not None and call.name == WEB_FETCH else None
    if by == "N" and fetched and is_local(fetched):
        return "add that rule by --allowed-tools, or to permission.allow in settings"  # the reason names it
    if by.startswith("rule "):
        return "to allow it, change that rule in your settings (callboard policy log shows where it counts)"
    if mode in _MODES and len(by) == 1:  # a single letter: the mode turned a question into a denial
        return _MODES[mode]
    return f"{by} decided it: change that, or run it yourself"
