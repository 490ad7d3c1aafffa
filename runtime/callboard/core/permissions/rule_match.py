"""Matching of rules to calls of the shell, of file tools, and of other tools; and the files that a search skips. Pure.

A search through many files skips those of which reading one alone would ask or be denied.

The rules of all scopes are one set: deny takes precedence over ask, ask over allow, and their order does not matter. A
rule with a path is matched against the path as written and against its target: a deny or ask rule must match either, an
allow rule both.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import replace

from callboard.core.permissions import gitignore, rules
from callboard.core.permissions.effects import (
    WHOLE_REPOSITORY,
    Analysis,
    CallFacts,
    GitContent,
    PathAccess,
    commit_named,
    tracked_in,
)
from callboard.core.permissions.file_tools import NamedPath
from callboard.core.permissions.gitignore import Anchors
from callboard.core.permissions.rules import Match
from callboard.core.permissions.sensitive_paths import is_secret
from callboard.core.permissions.values import PathFact, PathQuery, ProposedCall, Rule

UNKNOWN = PathFact("malformed", why="it was not looked up")


def absolute(root: str, text: str) -> str:
    """Return the absolute path, with `.` and `..` in the text resolved."""
    return "/" + posixpath.normpath(posixpath.join(root, text)).lstrip("/")


# The shell.


def first_on_shell(
    among: Sequence[Rule], call: ProposedCall, facts: CallFacts, analysis: Analysis
) -> tuple[Rule, Match] | None:
    """Return the first deny or ask rule that matches the command, otherwise the first that may match it."""
    unsure: Rule | None = None
    for rule in among:
        match = _on_shell(rule, call, facts, analysis)
        if match == "yes":
            return rule, match
        unsure = unsure or (rule if match == "maybe" else None)
    return (unsure, "maybe") if unsure else None


def _on_shell(rule: Rule, call: ProposedCall, facts: CallFacts, analysis: Analysis) -> Match:
    if rules.names_tool(rule, "bash", allow=False):
        if rules.matches_parameter(rule, call):
            return "yes"
        matches = {rules.hits(rule, part) for part in analysis.parts}
        return "yes" if "yes" in matches else "maybe" if "maybe" in matches else "no"
    if rule.specifier is None:
        return "no"
    if rule.tool in ("Read", "Edit", "read_file", "edit_file"):
        return _path_rule_on_shell(rule, facts, analysis)
    if rule.tool == "Cd":
        return "yes" if any(_cd_names(rule, path, facts, loose=True) for path in _worked_in(facts, analysis)) else "no"
    return "no"


def _path_rule_on_shell(rule: Rule, facts: CallFacts, analysis: Analysis) -> Match:
    pattern = rule.specifier or ""
    anchors = rules.anchors_of(rule, facts)
    writes_only = rule.tool in ("Edit", "edit_file")
    paths = _paths_of(analysis, facts, writes_only=writes_only)
    if any(gitignore.names_path(pattern, path, anchors, loose=True) for path in paths):
        return "yes"
    trees = () if writes_only else _trees(analysis, facts)
    return "maybe" if any(fact.beneath_cut for fact in trees) else "no"


def _trees(analysis: Analysis, facts: CallFacts) -> Iterable[PathFact]:
    for effect in (effect for part in analysis.parts for effect in part.effects):
        if isinstance(effect, PathAccess) and effect.query.tree:
            yield facts.paths.get(effect.query, UNKNOWN)
        elif isinstance(effect, GitContent):
            yield from tracked_trees(effect, facts)


def tracked_trees(content: GitContent, facts: CallFacts) -> Sequence[PathFact]:
    """Return the trees of tracked files that a git command can print."""

    def fact_of(path: str) -> PathFact:
        return facts.paths.get(tracked_in(path), UNKNOWN)

    if content.trees:
        whole = facts.paths.get(WHOLE_REPOSITORY, UNKNOWN)
        beneath, secrets = (
            tuple(path for path in paths if any(f"/{tree}/" in f"{path}/" for tree in content.trees))
            for paths in (whole.beneath, whole.secrets)
        )
        return (replace(whole, beneath=beneath, secrets=secrets),)
    paths = [*content.paths, *(word for word in content.words if fact_of(word).exists)]
    if doubtful_object(content, facts) or (not paths and not content.restricted):
        return (facts.paths.get(WHOLE_REPOSITORY, UNKNOWN),)
    return [fact_of(path) for path in (*paths, *content.doubtful)]


def doubtful_object(content: GitContent, facts: CallFacts) -> str:
    """Return the first name that may mean the content of a file: neither a certain commit nor a path; empty if none."""
    for name, path in content.objects:
        is_path = bool(path) and facts.paths.get(tracked_in(path), UNKNOWN).exists
        if not is_path and not facts.paths.get(commit_named(name), UNKNOWN).exists:
            return name
    return ""


def printed_secrets(content: GitContent, facts: CallFacts) -> Sequence[str]:
    """Return the tracked files with names of secrets that a git command can print.

    An empty string means unknown files.
    """
    secrets: list[str] = []
    for fact in tracked_trees(content, facts):
        if fact.beneath_cut or fact.place == "malformed":
            secrets.append("")
        secrets += (path for path in fact.secrets if not _is_left_out(path, content.without, facts.root))
    return secrets


def _is_left_out(path: str, without: Sequence[str], root: str) -> bool:
    """Return True if git excludes a path. A pattern that ends with a slash excludes a folder, never a file."""
    for pattern in without:
        place = absolute(root, pattern)
        if path.startswith(f"{place}/") or (path == place and posixpath.basename(pattern) not in ("", ".", "..")):
            return True
    return False


def _paths_of(analysis: Analysis, facts: CallFacts, *, writes_only: bool) -> Iterable[str]:
    """Yield every absolute path of a script: as written, its target, and the files read beneath it."""
    for part in analysis.parts:
        for effect in part.effects:
            if isinstance(effect, PathAccess) and not (writes_only and effect.access == "read"):
                yield absolute(facts.root, effect.query.text)
                fact = facts.paths.get(effect.query, UNKNOWN)
                yield from (path for path in (fact.resolved, *fact.matches, *fact.beneath) if path)
            elif isinstance(effect, GitContent) and not writes_only:
                yield from (path for fact in tracked_trees(effect, facts) for path in fact.beneath)
        for word in () if writes_only else part.words:
            for text in {word, word.partition("=")[2], word.partition("@")[2], word[2:] if word[:1] == "-" else ""}:
                yield from (absolute(facts.root, posixpath.join(folder, text)) for folder in analysis.folders if text)


def folder_not_listed(listed: Sequence[Rule], facts: CallFacts, analysis: Analysis) -> str:
    """Return a folder that a command changes to although `Cd` rules name others; empty if none.

    The `Cd` rules are those among these allow rules.
    """
    about = [rule for rule in listed if rule.tool == "Cd"]
    if not about:
        return ""
    folders = _worked_in(facts, analysis)
    return next((f for f in folders if not any(_cd_allows(rule, f, facts) for rule in about)), "")


def _worked_in(facts: CallFacts, analysis: Analysis) -> list[str]:
    """Return the folders that a command changes to: as written, and their targets."""
    written = [absolute(facts.root, folder) for folder in analysis.folders if folder]
    led = (facts.paths.get(PathQuery(folder), UNKNOWN).resolved for folder in analysis.folders if folder)
    return list(dict.fromkeys((*written, *(path for path in led if path))))


def _cd_allows(rule: Rule, path: str, facts: CallFacts) -> bool:
    return rule.specifier is None or _cd_names(rule, path, facts, loose=False)


def _cd_names(rule: Rule, path: str, facts: CallFacts, *, loose: bool) -> bool:
    return gitignore.names_path(rule.specifier or "", path, rules.anchors_of(rule, facts), loose=loose)


# File tools.


def first_on_files(
    among: Sequence[Rule],
    call: ProposedCall,
    path_facts: Sequence[tuple[NamedPath, PathFact]],
    facts: CallFacts,
    *,
    allow: bool,
) -> Rule | None:
    """Return the first rule that matches a call of a file tool with these paths and facts."""
    for rule in among:
        if _on_files(rule, call, path_facts, facts, allow=allow):
            return rule
    return None


def _on_files(
    rule: Rule, call: ProposedCall, path_facts: Sequence[tuple[NamedPath, PathFact]], facts: CallFacts, *, allow: bool
) -> bool:
    named = rules.names_tool(rule, call.name, allow=allow)
    if named and (rule.specifier is None or (not allow and rules.matches_parameter(rule, call))):
        return True
    reads = not allow and rule.tool in ("Read", "read_file") and rule.specifier is not None
    if not (named or reads) or rule.tool not in rules.PATH_RULES:
        return False
    hits = [_names_where(rule, path, fact, facts, allow=allow) for path, fact in path_facts]
    return all(hits) if allow else any(hits)


def _names_where(rule: Rule, named: NamedPath, fact: PathFact, facts: CallFacts, *, allow: bool) -> bool:
    written = absolute(facts.root, named.query.text)
    anchors = rules.anchors_of(rule, facts)
    paths = {written, fact.resolved or written}
    hits = [gitignore.names_path(rule.specifier or "", path, anchors, loose=not allow) for path in paths]
    return all(hits) if allow else any(hits)


# All other tools.


def first_on_others(among: Sequence[Rule], call: ProposedCall, *, allow: bool) -> Rule | None:
    """Return the first rule that matches a call of a tool that is neither a shell nor a file tool."""
    return next(
        (
            rule
            for rule in among
            if rules.names_tool(rule, call.name, allow=allow) and rules.matches_input(rule, call, allow=allow)
        ),
        None,
    )


def rules_on_reading(deny: Sequence[Rule], ask: Sequence[Rule]) -> tuple[Rule, ...]:
    """Return the rules for paths that are not read without asking."""
    named = ("Read", "read_file")
    return tuple(rule for rule in (*deny, *ask) if rule.tool in named and rule.specifier is not None)


def readable_rules(texts: Iterable[str]) -> list[Rule]:
    """Return the rules among texts; texts that are not rules are skipped."""
    readable: list[Rule] = []
    for text in texts:
        try:
            readable.append(rules.parse_rule(text))
        except ValueError:
            continue
    return readable


def is_left_out(path: str, start: str, unread: Sequence[Rule], *, root: str, home: str) -> bool:
    """Return True if a search of a folder skips a file beneath that folder.

    Both paths are absolute. The path in the search call itself has already been judged.
    """
    if start == path:
        return False
    if is_secret(_inside(path, root)) and not is_secret(_inside(start, root)):
        return True
    return any(
        gitignore.names_path(rule.specifier or "", path, Anchors(root, home, rule.base), loose=True) for rule in unread
    )


def _inside(path: str, root: str) -> list[str]:
    return path.removeprefix(root).strip("/").split("/")
