"""What `callboard policy lint` says: rules, matchers and hooks of the settings that do not do what they seem to do.

Composition. Everything is read and looked up; nothing is obeyed or run, also of a workspace that nobody trusted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from callboard.adapters.hook_scripts import missing_programs
from callboard.adapters.yaml_files import Address, dotted
from callboard.core.hooks.lint import lint_matcher, matcher_notes
from callboard.core.permission.given import GivenCall, GivenRules, Misread
from callboard.core.permission.grammar import Kind
from callboard.core.permission.lint import Found, Written, lint_rules, sample_of
from callboard.core.permission.rules import parse_rule
from callboard.explaining import Explaining, InForce
from callboard.hooking import hook_notes
from callboard.settings import rules_of

Tree = Mapping[str, object]

_OF_ALL = len(("permission", "allow", 0))
"""Parts of the address of a rule that is for all agents; of one of a type, or of schedules, there are more."""


def lint(force: InForce, explaining: Explaining) -> list[Found]:
    """All that is to be said: of rules, then of hooks, then what the files say of fields that are not honoured."""
    written = list(_rules(force))
    found = lint_rules(written)
    told = {(one.place, one.text) for one in found}
    without = (_without_effect(one, explaining) for one in written)
    found += [one for one in without if one is not None and (one.place, one.text) not in told]
    places = {f"{one.place}: " for one in found}
    return [*found, *_hooks(force), *_notes(force, tuple(places))]


def _rules(force: InForce) -> Iterator[Written]:
    loaded = force.loaded
    for address, text in rules_of(loaded.settings):
        scope = str(address[-3]) if len(address) > _OF_ALL else ""
        yield Written(text, cast("Kind", address[-2]), loaded.place(address), scope)


def _without_effect(written: Written, explaining: Explaining) -> Found | None:
    """A rule that does not even decide the plainest call that it names, as it is judged here and now."""
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
    why = f"it {does} nothing: `{sample.shown}` gets {verdict.decision} all the same ({verdict.rule}: {verdict.why})"
    return Found(written.place, "no-effect", f"{written.kind} {written.text}", why)


# Hooks


def _hooks(force: InForce) -> Iterator[Found]:
    for where, event, address, group in _groups(force):
        matcher = group.get("matcher", "")
        if isinstance(matcher, str):
            at = where((*address, "matcher"))
            yield from (Found(at, "matcher", f"{event} {matcher}", why) for why in lint_matcher(event, matcher))
            yield from (Found(at, "note", f"{event} {matcher}", why) for why in matcher_notes(event, matcher))
        for number, handler in enumerate(_list(group.get("hooks"))):
            yield from _scripts(force, handler, where((*address, "hooks", number)))


def _scripts(force: InForce, handler: Tree, place: str) -> Iterator[Found]:
    command, args = handler.get("command"), handler.get("args")
    if handler.get("type", "command") != "command" or not isinstance(command, str):
        return
    words = [str(word) for word in cast("Sequence[object]", args)] if isinstance(args, list) else None
    for why in missing_programs(command, words, force.places.workspace):
        yield Found(place, "dead-script", command.partition("\n")[0], why)


class _Where:
    """Where an address of one file's hooks stands."""

    def __init__(self, force: InForce, file: str, offsets: Mapping[str, int]) -> None:
        self._loaded, self._file, self._offsets = force.loaded, file, offsets

    def __call__(self, address: Address) -> str:
        """File, line and field; of a file of another format file and field."""
        if self._file:
            return f"{self._file}: {dotted(address)}"
        hooks, event, number, *rest = address
        moved = (hooks, event, cast("int", number) + self._offsets.get(str(event), 0), *rest)
        return self._loaded.place(moved)


def _groups(force: InForce) -> Iterator[tuple[_Where, str, Address, Tree]]:
    """Every group of handlers in settings: of ours the person's before the workspace's, then those of the other
    format."""
    offsets: dict[str, int] = {}
    for hooks in force.loaded.hooks.values():
        yield from _of_file(_Where(force, "", dict(offsets)), hooks)
        for event, groups in hooks.items():
            offsets[event] = offsets.get(event, 0) + len(groups)
    for one in force.loaded.claude:
        try:
            given: object = json.loads(one.raw or b"{}")
        except (ValueError, RecursionError):
            continue  # what is no JSON is told among the notes
        hooks = cast("Tree", given).get("hooks") if isinstance(given, dict) else None
        if isinstance(hooks, dict):
            yield from _of_file(_Where(force, one.path, {}), cast("Tree", hooks))


def _of_file(where: _Where, hooks: Tree) -> Iterator[tuple[_Where, str, Address, Tree]]:
    for event, groups in hooks.items():
        for number, group in enumerate(_list(groups)):
            yield where, event, ("hooks", event, number), group


def _list(value: object) -> list[Tree]:
    """The mappings of a list; what is none is told by who reads hooks."""
    if not isinstance(value, list | tuple):
        return []
    return [cast("Tree", one) for one in cast("Sequence[object]", value) if isinstance(one, dict)]


def _notes(force: InForce, told: tuple[str, ...]) -> Iterator[Found]:
    """What reading the files told already, but for rules and matchers: those are looked at more closely here."""
    for note in hook_notes(force.loaded, force.places.workspace, dict(os.environ)):
        if not note.field.endswith("matcher"):
            yield Found(f"{note.path}: {note.field}".rstrip(": "), "hook", note.verdict, note.why)
    for line in force.loaded.notes:
        if line.startswith(told):
            continue
        place, _, why = line.partition(": ")
        yield Found(place, "setting", "", why)
