"""Checks of `callboard policy lint`: rules, matchers and hooks in settings that do not have their apparent effect.

Composition. Settings are only read and checked; nothing is applied or run, so this is safe for an untrusted workspace.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from callboard.adapters.extensions.hook_commands import missing_programs
from callboard.adapters.extensions.yaml import Address, dotted
from callboard.config.hooks import hook_notes
from callboard.config.settings import rules_of
from callboard.core.hooks.matching import lint_matcher, matcher_notes
from callboard.core.permissions.call_input import GivenCall, GivenRules, Misread
from callboard.core.permissions.lint import LintFinding, WrittenRule, lint_rules, sample_of
from callboard.core.permissions.rule_check import Kind
from callboard.core.permissions.rules import parse_rule
from callboard.sessions.inspect.policy import Explaining, InForce

Tree = Mapping[str, object]

_OF_ALL = len(("permission", "allow", 0))
"""Length of the address of a rule for all agents; the address of a rule for one type, or for schedules, is longer."""


def lint(force: InForce, explaining: Explaining) -> list[LintFinding]:
    """Return all findings: on rules, then on hooks, then the notes of the files on ignored fields."""
    written = list(_rules(force))
    findings = lint_rules(written)
    reported = {(finding.place, finding.text) for finding in findings}
    without = (_without_effect(rule, explaining) for rule in written)
    findings += [
        finding for finding in without if finding is not None and (finding.place, finding.text) not in reported
    ]
    places = {f"{finding.place}: " for finding in findings}
    return [*findings, *_hooks(force), *_notes(force, tuple(places))]


def _rules(force: InForce) -> Iterator[WrittenRule]:
    loaded = force.loaded
    for address, text in rules_of(loaded.settings):
        scope = str(address[-3]) if len(address) > _OF_ALL else ""
        yield WrittenRule(text, cast("Kind", address[-2]), loaded.place(address), scope)


def _without_effect(written: WrittenRule, explaining: Explaining) -> LintFinding | None:
    """Return a finding if a rule does not decide even the simplest call that it names, as judged now."""
    sample = sample_of(written)
    if sample is None:
        return None
    rule = (parse_rule(written.text),)
    rules = {"allow": GivenRules(allow=rule), "ask": GivenRules(ask=rule), "deny": GivenRules(deny=rule)}[written.kind]
    try:
        verdict = explaining.judge(GivenCall(sample.tool, sample.input, rules=rules)).verdict
    except Misread:
        return None
    fits = {"allow": ("allow",), "ask": ("ask", "deny"), "deny": ("deny",)}[written.kind]
    if verdict.decision in fits:
        return None
    does = {"allow": "allows", "ask": "asks for", "deny": "denies"}[written.kind]
    reason = f"it {does} nothing: `{sample.shown}` gets {verdict.decision} all the same ({verdict.rule}: {verdict.why})"
    return LintFinding(written.place, "no-effect", f"{written.kind} {written.text}", reason)


# Hooks


def _hooks(force: InForce) -> Iterator[LintFinding]:
    for where, event, address, group in _groups(force):
        matcher = group.get("matcher", "")
        if isinstance(matcher, str):
            at = where((*address, "matcher"))
            yield from (
                LintFinding(at, "matcher", f"{event} {matcher}", reason) for reason in lint_matcher(event, matcher)
            )
            yield from (
                LintFinding(at, "note", f"{event} {matcher}", reason) for reason in matcher_notes(event, matcher)
            )
        for number, handler in enumerate(_list(group.get("hooks"))):
            yield from _scripts(force, handler, where((*address, "hooks", number)))


def _scripts(force: InForce, handler: Tree, place: str) -> Iterator[LintFinding]:
    command = handler.get("command")
    args = handler.get("args")
    if handler.get("type", "command") != "command" or not isinstance(command, str):
        return
    arguments = [str(word) for word in cast("Sequence[object]", args)] if isinstance(args, list) else None
    for reason in missing_programs(command, arguments, force.places.workspace):
        yield LintFinding(place, "dead-script", command.partition("\n")[0], reason)


class _Where:
    """Locations of the hooks of one file."""

    def __init__(self, force: InForce, file: str, offsets: Mapping[str, int]) -> None:
        self._loaded = force.loaded
        self._file = file
        self._offsets = offsets

    def __call__(self, address: Address) -> str:
        """Return file, line and field; for a file of another format, file and field."""
        if self._file:
            return f"{self._file}: {dotted(address)}"
        hooks, event, number, *path = address
        moved = (hooks, event, cast("int", number) + self._offsets.get(str(event), 0), *path)
        return self._loaded.place(moved)


def _groups(force: InForce) -> Iterator[tuple[_Where, str, Address, Tree]]:
    """Yield every group of handlers in settings: in our format the person's before the workspace's, then those of the
    other format."""
    offsets: dict[str, int] = {}
    for hooks in force.loaded.hooks.values():
        yield from _of_file(_Where(force, "", dict(offsets)), hooks)
        for event, groups in hooks.items():
            offsets[event] = offsets.get(event, 0) + len(groups)
    for settings_file in force.loaded.claude:
        try:
            document: object = json.loads(settings_file.raw or b"{}")
        except (ValueError, RecursionError):
            continue  # what is no JSON is told among the notes
        hooks = cast("Tree", document).get("hooks") if isinstance(document, dict) else None
        if isinstance(hooks, dict):
            yield from _of_file(_Where(force, settings_file.path, {}), cast("Tree", hooks))


def _of_file(where: _Where, hooks: Tree) -> Iterator[tuple[_Where, str, Address, Tree]]:
    for event, groups in hooks.items():
        for number, group in enumerate(_list(groups)):
            yield where, event, ("hooks", event, number), group


def _list(value: object) -> list[Tree]:
    """Return the mappings of a list; the reader of hooks reports other values."""
    if not isinstance(value, list | tuple):
        return []
    return [cast("Tree", entry) for entry in cast("Sequence[object]", value) if isinstance(entry, dict)]


def _notes(force: InForce, covered: tuple[str, ...]) -> Iterator[LintFinding]:
    """Yield the notes made when the files were read, except those on rules and matchers, which are checked more closely
    here.
    """
    for note in hook_notes(force.loaded, force.places.workspace, dict(os.environ)):
        if not note.field.endswith("matcher"):
            yield LintFinding(f"{note.path}: {note.field}".rstrip(": "), "hook", note.verdict, note.reason)
    for line in force.loaded.notes:
        if line.startswith(covered):
            continue
        place, _, reason = line.partition(": ")
        yield LintFinding(place, "setting", "", reason)
