"""Check of a rule as written: valid, ignored, or refused because it is not a rule, with the reason. Pure.

`callboard policy lint`, `doctor` and the start of a session report it, so that nobody relies on a rule without effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from callboard.core.permissions.rules import (
    ALIASES,
    NO_PARAMETERS,
    PATH_RULES,
    SPECIFIED_BY,
    UNHEEDED,
    names_tool,
    parse_rule,
)
from callboard.core.permissions.values import Rule
from callboard.core.tool_access import ALL_TOOLS
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

Kind = Literal["allow", "ask", "deny"]
_OTHERS = frozenset({"WebFetch", "web_fetch", "WebSearch", "web_search", "Cd"})
_READING = frozenset({"Glob", "Grep", "LS", "NotebookRead"})
"""Names that people use with paths and that `Read(path)` covers."""
_PARAMETER = late_pattern(r"([A-Za-z_][A-Za-z0-9_-]*):(?!\*).+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RuleNote:
    """One rule and the result of its check. `why` is empty for a rule that applies as written."""

    text: str
    kind: Kind
    status: Literal["honored", "ignored", "refused"]
    why: str = ""


def rule_note(text: str, kind: Kind, tools: Iterable[str] = ()) -> RuleNote:
    """Check one rule. `tools`: names of tools besides the built-in ones."""
    try:
        rule = parse_rule(text)
    except ValueError as wrong:
        return RuleNote(text, kind, "refused", str(wrong))
    reason = _name_ignored(rule, kind, frozenset(tools)) or _specifier_ignored(rule, kind)
    return RuleNote(text, kind, "ignored" if reason else "honored", reason)


def rule_notes(texts: Iterable[str], kind: Kind, tools: Iterable[str] = ()) -> tuple[RuleNote, ...]:
    """Check a list of rules. `tools`: names of tools besides the built-in ones."""
    tool_names = frozenset(tools)
    return tuple(rule_note(text, kind, tool_names) for text in texts)


def denied_tools(deny: Iterable[str]) -> tuple[str, ...]:
    """Return the deny rules that apply to whole tools, regardless of input."""
    return tuple(text for text in deny if (rule := _readable(text)) is not None and rule.specifier is None)


def allowed_tools(tools: Iterable[str], deny: Iterable[str]) -> tuple[str, ...]:
    """Return the tools that are not denied as a whole. The others are not in the model's context."""
    rules = [rule for text in denied_tools(deny) if (rule := _readable(text)) is not None]
    return tuple(tool for tool in tools if not any(names_tool(rule, tool, allow=False) for rule in rules))


def _readable(text: str) -> Rule | None:
    try:
        return parse_rule(text)
    except ValueError:
        return None


def _name_ignored(rule: Rule, kind: Kind, tools: frozenset[str]) -> str:
    name = rule.tool
    if name.startswith("mcp__"):
        if name.endswith("__"):
            return f"no tool has this name: write {name.rstrip('_')} for all tools of the server"
        literal = "*" not in name.split("__")[1]
        return "" if literal or kind != "allow" else "an allow rule names its server in full: mcp__server__*"
    if "*" in name:
        return "" if kind != "allow" else "a star in a tool's name is valid only in deny and ask rules"
    if name in ALIASES or name in ALL_TOOLS or name in _OTHERS or name in tools:
        return ""
    return f"there is no tool {name} here"


def _specifier_ignored(rule: Rule, kind: Kind) -> str:
    if rule.specifier is None:
        return ""
    parameter = _PARAMETER.fullmatch(rule.specifier)
    if rule.tool in UNHEEDED and not (parameter and kind != "allow"):
        right_tool = "Read" if rule.tool in _READING else "Edit"
        return f"{rule.tool} with a path is never consulted: write {right_tool}({rule.specifier})"
    if parameter and parameter[1] in NO_PARAMETERS and rule.tool not in PATH_RULES - UNHEEDED:
        return f"a rule cannot be about the input {parameter[1]}"
    if rule.tool in ("Bash", "bash"):
        return _command_ignored(rule.specifier)
    if rule.tool in PATH_RULES or rule.tool == "Cd":
        return _path_ignored(rule.specifier)
    return _other_ignored(rule, kind, parameter=bool(parameter))


_FROM_ROOT = late_pattern(r"/(?:home|Users)/[^/*]+/.*", re.DOTALL)
_NO_HOST = late_pattern(r".*[/@?#\s].*|[^:]*:\d*", re.DOTALL)
"""Text of a `domain:` rule that has more than a host: an address, a path, a port."""


def _path_ignored(specifier: str) -> str:
    if specifier.startswith("!"):
        return "negation is not supported: a pattern names the paths that it matches"
    if specifier.startswith("$"):
        return "variables are not replaced: write ~/ for the home, and a path without / for the agent's folder"
    if _FROM_ROOT.fullmatch(specifier):
        return f"a single / begins in the agent's folder: write /{specifier} for the path from the root"
    return ""


def _command_ignored(specifier: str) -> str:
    if ":*" in specifier.removesuffix(":*"):
        return "`:*` is a prefix at the end of a rule only; use * in the middle"
    if re.search(r"[\n;|&]|\$\(|`", specifier):
        return "a rule is about one simple command: what joins commands, or runs inside one, never matches"
    return ""


def _other_ignored(rule: Rule, kind: Kind, *, parameter: bool) -> str:
    if rule.tool in ("WebFetch", "web_fetch"):
        field, _, host = (rule.specifier or "").partition(":")
        if field == "domain":
            return "write only the host: WebFetch(domain:host)" if _NO_HOST.fullmatch(host) else ""
        return "" if field == "prompt" and parameter and kind != "allow" else "write WebFetch(domain:host)"
    if parameter:
        return "" if kind != "allow" else "a rule about an input is valid only in deny and ask rules"
    names = (rule.tool, *ALIASES.get(rule.tool, ()))
    return "" if any(name in SPECIFIED_BY for name in names) else f"{rule.tool} takes nothing in brackets"
