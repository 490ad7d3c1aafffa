"""Views of the policy for a person: a call with its parts, failing examples, lint, the log, session rules. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from callboard.cli.terminal.terminal import Block, Line, Style, stacked
from callboard.cli.views.events import first_line, shorten
from callboard.cli.views.listings import by_words, render_listing, table
from callboard.core.keys import count_words
from callboard.core.permissions.explain import CallExplanation, PartExplanation, PathExplanation, meaning_of
from callboard.core.permissions.lint import CheckedExample, LintFinding
from callboard.core.reports.decisions import Decision
from callboard.sessions.inspect.resources import RULES, RuleStatus, plain_row, when
from callboard.types.records import Json, SessionRule

_STYLES: Mapping[str, Style] = {"allow": "good", "ask": "warn", "deny": "bad"}
_LIFTS: Mapping[str, str] = {
    "mode": "an allow rule or acceptEdits lifts it",
    "rule": "an allow rule lifts it",
    "bypass": "only bypassPermissions lifts it",
    "named": "only an allow rule that names the program lifts it",
    "person": "only a person's answer lifts it",
    "never": "nothing lifts it",
}
_VERBS: Mapping[str, str] = {"read": "reads", "write": "writes", "delete": "deletes"}
_CALL = 100
"""Limit of the columns of a call's text in its first line."""
_MOST_PARTS = 40


def call_block(report: CallExplanation, text: str, *, whose: str, hooks: Sequence[str], inert: str = "") -> Block:
    """Return the decision and its reason, each part of the call, the hooks that run first, and the effect of "always".

    `text`: the call in one line. `whose`: the owner and number of the rules. `inert`: rules that have no effect.
    """
    lines = [
        Line(f"{report.decision}  {report.tool}  {shorten(first_line(text), _CALL)}", _STYLES[report.decision]),
        Line(f"  why    {report.why}"),
        Line(f"  by     {_by(report.by)}"),
        Line(f"  in     mode {report.mode}, {whose}"),
    ]
    if inert:
        lines.append(Line(f"  {inert}", "dim"))
    for number, part in enumerate(report.parts[:_MOST_PARTS], 1):
        lines += _part(number, part)
    if len(report.parts) > _MOST_PARTS:
        lines.append(Line(f"  ... and {len(report.parts) - _MOST_PARTS} more parts", "dim"))
    for hook in hooks:
        lines.append(Line(f"  asked before the rules: {hook}"))
    if report.always:
        lines.append(Line(f'  "always" would allow: {", ".join(report.always)}'))
    elif report.decision == "ask":
        lines.append(Line('  "always" is not offered: no narrow rule would lift this', "dim"))
    return Block(tuple(lines))


def call_json(report: CallExplanation, agent_type: str, hooks: Sequence[str]) -> Json:
    """Return the decision as JSON for a script.

    The fields are `decision`, `by`, `reason`, `letter` in words, `parts`, `hooks`, and `always`.
    """
    row: Json = plain_row(report)
    reason = row.pop("why")
    return {**row, "reason": reason, "meaning": meaning_of(report.by), "agent_type": agent_type, "hooks": list(hooks)}


def tried_block(results: Sequence[CheckedExample]) -> Block:
    """Return each failing example with the expected and the actual decision and the reason; then how many passed."""
    if not results:
        return Block(
            (Line("there are no examples: put some into permission.examples or .callboard/policy-tests.yaml"),)
        )
    failed = [each for each in results if each.wrong]
    lines: list[Line] = []
    for each in failed:
        lines.append(Line(f"FAILED {each.example.place}", "bad"))
        lines.append(Line(f"  {each.wrong}: {shorten(first_line(each.example.call_text), _CALL)}"))
        lines.append(Line(f"  {_by(each.verdict.rule)}", "dim"))
        lines.append(Line(f"  {each.verdict.why}", "dim"))
    held = f"{len(results) - len(failed)} of {len(results)} examples pass"
    return Block((*lines, Line(held, "bad" if failed else "good")))


def tried_json(tried: CheckedExample) -> Json:
    """Return the failing examples as JSON for a script."""
    example = tried.example
    got = tried.verdict
    return {
        "place": example.place,
        "call": example.call,
        "expected": {"decision": example.decision, "by": example.by},
        "got": {"decision": got.decision, "by": got.rule, "reason": got.why},
        "holds": not tried.wrong,
    }


def lint_block(findings: Sequence[LintFinding]) -> Block:
    """Return each finding with its location and reason; then their number. Notes are shown but not counted."""
    lines: list[Line] = []
    for finding in findings:
        lines.append(Line(f"{finding.code} {finding.place}", "dim" if finding.code == "note" else "warn"))
        if finding.text:
            lines.append(Line(f"  {shorten(first_line(finding.text), _CALL)}"))
        lines.append(Line(f"  {finding.why}", "dim"))
    wrong = sum(finding.code != "note" for finding in findings)
    text = count_words(wrong, "finding") if wrong else "no findings"
    return Block((*lines, Line(text, "warn" if wrong else "good")))


def log_table(decisions: Sequence[Decision], *, total: int) -> Block:
    """Return a table of decisions: time, agent, call, decision, its origin, mode, and the answer to a question.

    `total`: the number of decisions of the session, of which these are a part.
    """
    cells = [
        [
            f"{datetime.fromtimestamp(decision.at).astimezone():%Y-%m-%d %H:%M:%S}",
            f"{decision.agent} ({decision.agent_type})"
            if decision.agent_type not in ("", decision.agent)
            else decision.agent,
            f"{decision.tool} {decision.about}".strip(),
            decision.verdict,
            decision.by,
            decision.mode,
            answer_words(decision),
            decision.digest[:12],
        ]
        for decision in decisions
    ]
    heads = ["AT", "AGENT", "CALL", "VERDICT", "BY", "MODE", "ANSWER", "INPUT"]
    return table(heads, cells, "no decision fits" if total else "no decisions yet")


def answer_words(decision: Decision) -> str:
    """Return the answer to the question of a decision, and who gave it; empty if nobody was asked."""
    if decision.answer is None:
        return "waits" if decision.verdict == "ask" else ""
    return f"{decision.answer.status}{by_words(decision.answer.by)}"


def _by(by: str) -> str:
    meaning = meaning_of(by)
    return f"{by}: {meaning}" if meaning else by


def _part(number: int, part: PartExplanation) -> Iterator[Line]:
    yield Line(f"  part {number}  {part.text}", "strong")
    if part.program and part.program != part.text.partition(" ")[0]:
        yield Line(f"    runs {part.program}")
    for touch in part.touches:
        yield Line(f"    {_VERBS[touch.access]} {_path(touch)}")
    for objection in part.against:
        yield Line(f"    {objection.letter}: {objection.why} ({_LIFTS[objection.lifted_by]})", "warn")
    for rule in part.rules:
        yield Line(f"    rule: {rule}")
    if not part.against:
        yield Line("    no objections", "dim")


def _path(touch: PathExplanation) -> str:
    leads = f" -> {touch.resolved}" if touch.resolved and not touch.resolved.endswith(f"/{touch.path}") else ""
    return f"{touch.path}{leads} ({touch.place}{f': {touch.why}' if touch.why else ''})"


def revoked_words(rule: SessionRule) -> str:
    """Return the message after a rule was revoked."""
    after = {"allow": "asks again", "ask": "no longer asks", "deny": "is no longer denied"}[rule.effect]
    return f"{rule.id} revoked: {rule.rule} {after}"


def rules_table(rows: Sequence[SessionRule], now: float, *, ended: bool = False) -> Block:
    """Return the id, text, scope, start, and end or expiry of each rule.

    `now`: Unix seconds. `ended`: True if the session also has rules that are no longer in force.
    """
    nothing = "no session rule is in force: `callboard policy rules --all` lists the others" if ended else ""
    return render_listing(RULES, [RuleStatus(rule, now) for rule in rows], nothing=nothing)


def permissions_block(
    mode: str, written: Sequence[tuple[str, str, str]], session_rules: Sequence[SessionRule], now: float
) -> Block:
    """Return the text of `/permissions`.

    The text has the mode, the rules of the settings, and those that the person allowed in this session. `written`:
    (kind, rule, place), in the order in which they are considered. `now`: Unix seconds.
    """
    width = max((len(kind) for kind, _, _ in written), default=0)
    lines = [Line(f"mode {mode}; deny rules win over ask rules, and these over allow rules", "dim")]
    lines += [Line(f"{kind:<{width}}  {rule}  ({place})") for kind, rule, place in written]
    if not written:
        lines.append(Line("the settings have no permission rules", "dim"))
    parts: list[Block | Line] = [*lines]
    if session_rules:
        parts.append(Line("rules of this session (/rules revoke ID revokes one):", "dim"))
        parts.append(rules_table(session_rules, now))
    return stacked(*parts, Line("how a call would be decided: callboard policy explain 'COMMAND'", "dim"))


def created_rule_lines(rows: Sequence[SessionRule]) -> tuple[Line, ...]:
    """Return the rules that an answer created, one line each, and how to revoke them."""
    return tuple(
        Line(
            f"  {rule.rule} is allowed {f'to {rule.agent}' if rule.agent else 'here'} until "
            f"{when(rule.expires_at) or 'the session ends'}; to revoke it: callboard policy revoke {rule.id}",
            "dim",
        )
        for rule in rows
    )
