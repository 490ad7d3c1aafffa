"""The `if` of a hook: one permission rule, and whether a call is what it names. Pure.

The rule is matched as an ask rule is: through wrappers, in every part of a command line. What cannot be known before
it runs counts as named, so that a guard is rather asked once too often than left out.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import cast

from callboard.core.hooks.names import from_compatible
from callboard.core.permission import rules
from callboard.core.permission.analysis import Analysis, analyse
from callboard.core.permission.filetools import FILE_TOOLS, named_paths
from callboard.core.permission.values import Floor, Parsed, Rule, ToolCall, Unparsed
from callboard.core.toolset import COMPATIBLE
from callboard.words.values import Json

CONDITIONAL = frozenset({"PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest"})
"""The events whose handlers may have an `if`: on any other such a handler never runs."""


def read_condition(text: str) -> Rule:
    """The rule of an `if`. Raises ValueError, saying what is wrong."""
    rule = rules.parse_rule(text)
    if rule.tool == "*" or not rule.tool:
        raise ValueError(f"{text!r} names no tool: write Tool(specifier), for example Bash(git *)")
    return rule


def call_told(event_json: Json) -> ToolCall | None:
    """The call that the event is about, in our names and fields; None for an event without one."""
    name, given = event_json.get("tool_name"), event_json.get("tool_input")
    if not isinstance(name, str) or not isinstance(given, dict):
        return None
    ours = COMPATIBLE.get(name, (name,))[0]
    fields = from_compatible(ours, {}, cast("Json", given), str(event_json.get("cwd", "/")))
    return ToolCall(ours, fields, "unknown")


def is_meant(rule: Rule, call: ToolCall, scripts: Mapping[str, Parsed], root: str, home: str) -> bool:
    """Whether the call is one that the rule names. `scripts`: what the parser made of each script text of a command."""
    if not rules.names_tool(rule, call.name, allow=False):
        return False
    if rule.specifier is None:
        return True
    if call.name == "bash":
        return _command_is_meant(rule, call, scripts, home)
    if call.name not in FILE_TOOLS:
        return rules.matches_input(rule, call, allow=False)
    named = named_paths(call)
    if isinstance(named, Unparsed):
        return True
    paths = [posixpath.normpath(posixpath.join(root, one.query.text)) for one in named]
    return any(rules.names_path(rule.specifier, path, root, home, anywhere=True) for path in paths)


def _command_is_meant(rule: Rule, call: ToolCall, scripts: Mapping[str, Parsed], home: str) -> bool:
    command = call.input.get("command")
    if not isinstance(command, str) or isinstance(scripts.get(command), Unparsed):
        return True
    found = analysis_of(command, scripts, home)
    return any(rules.hits(rule, part) != "no" for part in found.parts)


def analysis_of(command: str, scripts: Mapping[str, Parsed], home: str) -> Analysis:
    """The parts of a command, and the scripts inside it that are still to be parsed."""
    return analyse(command, scripts, home, Floor())
