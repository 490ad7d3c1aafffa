"""Which rules are about a call: of the shell, of file tools, of all others. Pure.

The rules of all scopes are one set: deny binds before ask, ask before allow, and their order does not matter. A rule
that names a path is asked twice, for the path as it is written and for where it leads: a deny or ask rule holds when it
names either, an allow rule when it names both.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence

from callboard.core.permission import gitignore, rules
from callboard.core.permission.analysis import Analysis
from callboard.core.permission.effects import Touch
from callboard.core.permission.filetools import Named
from callboard.core.permission.rules import Match
from callboard.core.permission.values import CallFacts, PathFact, PathQuery, Rule, ToolCall

UNKNOWN = PathFact("malformed", why="it was not looked up")


def absolute(root: str, text: str) -> str:
    """The path from the root on, without `.` and `..` as the text has them."""
    return "/" + posixpath.normpath(posixpath.join(root, text)).lstrip("/")


# The shell.


def first_on_shell(
    among: Sequence[Rule], call: ToolCall, facts: CallFacts, analysis: Analysis
) -> tuple[Rule, Match] | None:
    """The first deny or ask rule that is about the command, else the first that may be."""
    unsure: Rule | None = None
    for rule in among:
        found = _on_shell(rule, call, facts, analysis)
        if found == "yes":
            return rule, found
        unsure = unsure or (rule if found == "maybe" else None)
    return (unsure, "maybe") if unsure else None


def _on_shell(rule: Rule, call: ToolCall, facts: CallFacts, analysis: Analysis) -> Match:
    if rules.names_tool(rule, "bash", allow=False):
        if rules.matches_parameter(rule, call):
            return "yes"
        found = {rules.hits(rule, part) for part in analysis.parts}
        return "yes" if "yes" in found else "maybe" if "maybe" in found else "no"
    if rule.specifier is None:
        return "no"
    if rule.tool in ("Read", "Edit", "read_file", "edit_file"):
        return _path_rule_on_shell(rule, facts, analysis)
    if rule.tool == "Cd":
        return "yes" if any(_cd_names(rule, path, facts, loose=True) for path in _worked_in(facts, analysis)) else "no"
    return "no"


def _path_rule_on_shell(rule: Rule, facts: CallFacts, analysis: Analysis) -> Match:
    pattern, anchors = rule.specifier or "", rules.anchors_of(rule, facts)
    writes_only = rule.tool in ("Edit", "edit_file")
    paths = _paths_of(analysis, facts, writes_only=writes_only)
    if any(gitignore.names_path(pattern, path, anchors, loose=True) for path in paths):
        return "yes"
    trees = () if writes_only else _trees(analysis, facts)
    return "maybe" if any(fact.beneath_cut for fact in trees) else "no"


def _trees(analysis: Analysis, facts: CallFacts) -> Iterable[PathFact]:
    effects = (effect for part in analysis.parts for effect in part.effects if isinstance(effect, Touch))
    return (facts.paths.get(effect.query, UNKNOWN) for effect in effects if effect.query.tree)


def _paths_of(analysis: Analysis, facts: CallFacts, *, writes_only: bool) -> Iterable[str]:
    """Yield every absolute path that a script names: as written, where it leads, and what it reads beneath."""
    for part in analysis.parts:
        for effect in part.effects:
            if isinstance(effect, Touch) and not (writes_only and effect.access == "read"):
                yield absolute(facts.root, effect.query.text)
                fact = facts.paths.get(effect.query, UNKNOWN)
                yield from (path for path in (fact.resolved, *fact.matches, *fact.beneath) if path)
        for word in () if writes_only else part.words:
            for text in {word, word.partition("=")[2], word.partition("@")[2], word[2:] if word[:1] == "-" else ""}:
                yield from (absolute(facts.root, posixpath.join(folder, text)) for folder in analysis.folders if text)


def folder_not_listed(listed: Sequence[Rule], facts: CallFacts, analysis: Analysis) -> str:
    """A folder that a command goes to although the `Cd` rules among these allow rules name others; empty: none."""
    about = [rule for rule in listed if rule.tool == "Cd"]
    if not about:
        return ""
    folders = _worked_in(facts, analysis)
    return next((f for f in folders if not any(_cd_allows(rule, f, facts) for rule in about)), "")


def _worked_in(facts: CallFacts, analysis: Analysis) -> list[str]:
    """The folders that a command goes to: as written, and where they lead."""
    written = [absolute(facts.root, folder) for folder in analysis.folders if folder]
    led = (facts.paths.get(PathQuery(folder), UNKNOWN).resolved for folder in analysis.folders if folder)
    return list(dict.fromkeys((*written, *(path for path in led if path))))


def _cd_allows(rule: Rule, path: str, facts: CallFacts) -> bool:
    return rule.specifier is None or _cd_names(rule, path, facts, loose=False)


def _cd_names(rule: Rule, path: str, facts: CallFacts, *, loose: bool) -> bool:
    return gitignore.names_path(rule.specifier or "", path, rules.anchors_of(rule, facts), loose=loose)


# File tools.


def first_on_files(
    among: Sequence[Rule], call: ToolCall, found: Sequence[tuple[Named, PathFact]], facts: CallFacts, *, allow: bool
) -> Rule | None:
    """The first rule that is about a call of a file tool, whose paths and facts are given."""
    return next((rule for rule in among if _on_files(rule, call, found, facts, allow=allow)), None)


def _on_files(
    rule: Rule, call: ToolCall, found: Sequence[tuple[Named, PathFact]], facts: CallFacts, *, allow: bool
) -> bool:
    named = rules.names_tool(rule, call.name, allow=allow)
    if named and (rule.specifier is None or (not allow and rules.matches_parameter(rule, call))):
        return True
    reads = not allow and rule.tool in ("Read", "read_file") and rule.specifier is not None
    if not (named or reads) or rule.tool not in rules.PATH_RULES:
        return False
    hits = [_names_where(rule, one, fact, facts, allow=allow) for one, fact in found]
    return all(hits) if allow else any(hits)


def _names_where(rule: Rule, named: Named, fact: PathFact, facts: CallFacts, *, allow: bool) -> bool:
    written = absolute(facts.root, named.query.text)
    anchors = rules.anchors_of(rule, facts)
    paths = {written, fact.resolved or written}
    hits = [gitignore.names_path(rule.specifier or "", path, anchors, loose=not allow) for path in paths]
    return all(hits) if allow else any(hits)


# All other tools.


def first_on_others(among: Sequence[Rule], call: ToolCall, *, allow: bool) -> Rule | None:
    """The first rule that is about a call of a tool that is neither a shell nor a file tool."""
    return next(
        (
            rule
            for rule in among
            if rules.names_tool(rule, call.name, allow=allow) and rules.matches_input(rule, call, allow=allow)
        ),
        None,
    )
