"""What the policy says, for a person to read: a call with its parts, failing examples, lint, the log. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from callboard.core.asking.decided import Decision
from callboard.core.permission.examples import Tried
from callboard.core.permission.letters import meaning_of
from callboard.core.permission.lint import Found
from callboard.core.permission.told import CallTold, PartTold, TouchTold
from callboard.faces.lines import first_line, shorten
from callboard.faces.pages.listings import plain_row, table
from callboard.faces.terminal import Block, Line, Style
from callboard.words.values import Json

_STYLES: Mapping[str, Style] = {"allow": "good", "ask": "warn", "deny": "bad"}
_LIFTS: Mapping[str, str] = {
    "mode": "an allow rule or acceptEdits lifts it",
    "rule": "an allow rule lifts it",
    "bypass": "only bypassPermissions lifts it",
    "person": "only a person's answer lifts it",
    "never": "nothing lifts it",
}
_VERBS: Mapping[str, str] = {"read": "reads", "write": "writes", "delete": "deletes"}
_CALL = 100
"""Columns of a call's text in its first line."""
_MOST_PARTS = 40


def call_block(told: CallTold, shown: str, whose: str, hooks: Sequence[str], inert: str = "") -> Block:
    """The decision, why, then each part of the call, the hooks that come first, and what "always" would mean.

    `shown`: the call in one line. `whose`: whose rules, and how many. `inert`: what does not count.
    """
    lines = [
        Line(f"{told.decision}  {told.tool}  {shorten(first_line(shown), _CALL)}", _STYLES[told.decision]),
        Line(f"  why    {told.why}"),
        Line(f"  by     {_by(told.by)}"),
        Line(f"  in     mode {told.mode}, {whose}"),
    ]
    if inert:
        lines.append(Line(f"  {inert}", "dim"))
    for number, part in enumerate(told.parts[:_MOST_PARTS], 1):
        lines += _part(number, part)
    if len(told.parts) > _MOST_PARTS:
        lines.append(Line(f"  ... and {len(told.parts) - _MOST_PARTS} more parts", "dim"))
    for hook in hooks:
        lines.append(Line(f"  asked before the rules: {hook}"))
    if told.always:
        lines.append(Line(f'  "always" would allow: {", ".join(told.always)}'))
    elif told.decision == "ask":
        lines.append(Line('  "always" is not offered: no narrow rule would lift this', "dim"))
    return Block(tuple(lines))


def call_json(told: CallTold, agent_type: str, hooks: Sequence[str]) -> Json:
    """The same for a script: `decision`, `by`, `reason`, `letter` in words, `parts`, `hooks`, `always`."""
    row: Json = plain_row(told)
    why = row.pop("why")
    return {**row, "reason": why, "meaning": meaning_of(told.by), "agent_type": agent_type, "hooks": list(hooks)}


def tried_block(found: Sequence[Tried]) -> Block:
    """Each example that fails, with what was expected, what came and why; then how many held."""
    if not found:
        return Block(
            (Line("there are no examples: put some into permission.examples or .callboard/policy-tests.yaml"),)
        )
    failed = [each for each in found if each.wrong]
    lines: list[Line] = []
    for each in failed:
        lines.append(Line(f"FAILED {each.example.place}", "bad"))
        lines.append(Line(f"  {each.wrong}: {shorten(first_line(each.example.shown), _CALL)}"))
        lines.append(Line(f"  {_by(each.verdict.rule)}", "dim"))
        lines.append(Line(f"  {each.verdict.why}", "dim"))
    held = f"{len(found) - len(failed)} of {len(found)} examples hold"
    return Block((*lines, Line(held, "bad" if failed else "good")))


def tried_json(tried: Tried) -> Json:
    """The same for a script."""
    example, got = tried.example, tried.verdict
    return {
        "place": example.place,
        "call": example.call,
        "expected": {"decision": example.decision, "by": example.by},
        "got": {"decision": got.decision, "by": got.rule, "reason": got.why},
        "holds": not tried.wrong,
    }


def lint_block(found: Sequence[Found]) -> Block:
    """Each finding with its place and why; then how many. Notes are told and are none."""
    lines: list[Line] = []
    for one in found:
        lines.append(Line(f"{one.code} {one.place}", "dim" if one.code == "note" else "warn"))
        if one.text:
            lines.append(Line(f"  {shorten(first_line(one.text), _CALL)}"))
        lines.append(Line(f"  {one.why}", "dim"))
    wrong = sum(one.code != "note" for one in found)
    said = f"{wrong} to look at" if wrong else "nothing to look at"
    return Block((*lines, Line(said, "warn" if wrong else "good")))


def log_table(found: Sequence[Decision]) -> Block:
    """When, who, what, the verdict, by what, in which mode, and how a question was answered."""
    cells = [
        [
            f"{datetime.fromtimestamp(one.at).astimezone():%Y-%m-%d %H:%M:%S}",
            f"{one.agent} ({one.agent_type})" if one.agent_type not in ("", one.agent) else one.agent,
            f"{one.tool} {one.about}".strip(),
            one.verdict,
            one.by,
            one.mode,
            _answered(one),
            one.digest[:12],
        ]
        for one in found
    ]
    heads = ["AT", "AGENT", "CALL", "VERDICT", "BY", "MODE", "ANSWER", "INPUT"]
    return table(heads, cells, "nothing was decided yet")


def _answered(one: Decision) -> str:
    if one.answer is None:
        return "waits" if one.verdict == "ask" else ""
    return f"{one.answer.status} by {one.answer.by or 'nobody'}"


def _by(by: str) -> str:
    meaning = meaning_of(by)
    return f"{by}: {meaning}" if meaning else by


def _part(number: int, part: PartTold) -> Iterator[Line]:
    yield Line(f"  part {number}  {part.text}", "strong")
    if part.program and part.program != part.text.partition(" ")[0]:
        yield Line(f"    runs {part.program}")
    for touch in part.touches:
        yield Line(f"    {_VERBS[touch.access]} {_path(touch)}")
    for one in part.against:
        yield Line(f"    {one.letter}: {one.why} ({_LIFTS[one.lifted_by]})", "warn")
    for rule in part.rules:
        yield Line(f"    rule: {rule}")
    if not part.against:
        yield Line("    nothing stands against it", "dim")


def _path(touch: TouchTold) -> str:
    leads = f" -> {touch.resolved}" if touch.resolved and not touch.resolved.endswith(f"/{touch.path}") else ""
    return f"{touch.path}{leads} ({touch.place}{f': {touch.why}' if touch.why else ''})"
