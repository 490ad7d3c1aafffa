"""Matchers of hooks: the values that they are compared with, the `if` of a hook, and a check for likely mistakes. Pure.

A matcher is compared with the tool of a call, the source of a start, or the reason of a failure. Hooks of any other
event have no matcher and always run.

The `if` of a hook is one permission rule. It is matched like an ask rule: through wrappers, in every part of a command
line. A part that cannot be known before it runs counts as a match, so that a guard runs too often rather than not at
all.

A matcher of letters, digits, `_`, `-`, spaces, commas and bars is a list of names. Anything else is a regular
expression that is searched anywhere in a name, which causes mistakes: `Bash*` is `Bas` and any number of `h`.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import cast, get_args

from callboard.core.hooks.merge import InvalidHook, Matcher, names_of, never_fits, read_matcher
from callboard.core.hooks.payloads import from_compatible
from callboard.core.permissions import rules
from callboard.core.permissions.effects import Analysis
from callboard.core.permissions.file_tools import FILE_TOOLS, named_paths
from callboard.core.permissions.shell_effects import analyse
from callboard.core.permissions.values import HardRules, Parsed, ProposedCall, Rule, UnparsedScript
from callboard.core.tool_access import ALL_TOOLS, COMPATIBLE
from callboard.types import hook_events
from callboard.types.hook_answers import TOOL_EVENTS
from callboard.types.hook_events import HookEvent
from callboard.types.late_pattern import late_pattern
from callboard.types.records import Json, StartSource

MATCHED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "PreToolUse": (),
        "PermissionRequest": (),
        "PostToolUse": (),
        "PostToolUseFailure": (),
        "SubagentStart": (),
        "SubagentStop": (),
        "EnvelopeDelivered": (),
        "RequestAnswered": (),
        "BudgetReached": (),
        "SessionStart": (*get_args(StartSource), "fork"),
        "SessionEnd": (*get_args(hook_events.EndReason), "resume", "logout"),
        "Notification": (
            *get_args(hook_events.NotificationType),
            *("auth_success", "elicitation_dialog", "elicitation_url_dialog"),
            *("elicitation_complete", "elicitation_response"),
        ),
        "StopFailure": (*get_args(hook_events.FailureKind), "oauth_org_not_allowed"),
        "PreCompact": get_args(hook_events.Trigger),
        "PostCompact": get_args(hook_events.Trigger),
    }
)
"""Events with a matcher, and their possible values; empty: tools, or names that are not known in advance."""

NEVER_HERE: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "SessionStart": frozenset({"fork"}),
        "SessionEnd": frozenset({"resume", "logout"}),
        "Notification": frozenset(set(MATCHED["Notification"]) - set(get_args(hook_events.NotificationType))),
        "StopFailure": frozenset({"oauth_org_not_allowed"}),
    }
)
"""Documented values that never occur in this runtime."""


def subjects_of(event: HookEvent) -> tuple[str, ...] | None:
    """Return the values that a matcher may match, any of them; None: the event has no matcher."""
    match event:
        case (
            hook_events.PreToolUse()
            | hook_events.PermissionRequest()
            | hook_events.PostToolUse()
            | hook_events.PostToolUseFailure()
        ):
            return names_of(event.call.name)
        case hook_events.SubagentStart() | hook_events.SubagentStop():
            return (event.by.agent_type,)
        case hook_events.SessionStart():
            return (event.source,)
        case hook_events.SessionEnd():
            return (event.reason,)
        case hook_events.Notification():
            return (event.notification_type,)
        case hook_events.StopFailure():
            return (event.error,)
        case hook_events.PreCompact() | hook_events.PostCompact():
            return (event.trigger,)
        case hook_events.EnvelopeDelivered():
            return (event.type,)
        case hook_events.RequestAnswered() | hook_events.BudgetReached():
            return (event.kind,)
        case _:
            return None


def fits_nothing(event: str, matcher: Matcher) -> bool:
    """Return True if a matcher of this event can never match: it names no tool, or none of the possible values."""
    if event in TOOL_EVENTS:
        return never_fits(matcher)
    values = set(MATCHED.get(event, ())) - NEVER_HERE.get(event, frozenset[str]())
    return bool(values) and not any(matcher.fits((value,)) for value in values)


CONDITIONAL = frozenset({"PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest"})
"""Events whose handlers may have an `if`. On any other event such a handler never runs."""


def read_condition(text: str) -> Rule:
    """Parse the rule of an `if`. Raises ValueError with the mistake."""
    rule = rules.parse_rule(text)
    if rule.tool == "*" or not rule.tool:
        raise ValueError(f"{text!r} names no tool: write Tool(specifier), for example Bash(git *)")
    return rule


def call_of_event(event_json: Json) -> ProposedCall | None:
    """Return the call of the event, with Callboard's names and fields; None for an event without one."""
    name = event_json.get("tool_name")
    tool_input = event_json.get("tool_input")
    if not isinstance(name, str) or not isinstance(tool_input, dict):
        return None
    tool = COMPATIBLE.get(name, (name,))[0]
    fields = from_compatible(tool, {}, cast("Json", tool_input), str(event_json.get("cwd", "/")))
    return ProposedCall(tool, fields, "unknown")


def rule_matches(rule: Rule, call: ProposedCall, scripts: Mapping[str, Parsed], *, root: str, home: str) -> bool:
    """Return True if the rule matches this call. `scripts`: the parser's result for each script text of a command."""
    if not rules.names_tool(rule, call.name, allow=False):
        return False
    if rule.specifier is None:
        return True
    if call.name == "bash":
        return _command_matches(rule, call, scripts, home)
    if call.name not in FILE_TOOLS:
        return rules.matches_input(rule, call, allow=False)
    named = named_paths(call)
    if isinstance(named, UnparsedScript):
        return True
    paths = [posixpath.normpath(posixpath.join(root, path.query.text)) for path in named]
    return any(rules.names_path(rule.specifier, path, root, home, anywhere=True) for path in paths)


def _command_matches(rule: Rule, call: ProposedCall, scripts: Mapping[str, Parsed], home: str) -> bool:
    command = call.input.get("command")
    if not isinstance(command, str) or isinstance(scripts.get(command), UnparsedScript):
        return True
    analysis = analysis_of(command, scripts, home)
    return any(rules.hits(rule, part) != "no" for part in analysis.parts)


def analysis_of(command: str, scripts: Mapping[str, Parsed], home: str) -> Analysis:
    """Return the parts of a command, and the scripts inside it that are still to be parsed."""
    return analyse(command, scripts, home, HardRules())


_SERVER = late_pattern(r"mcp__[^_]+(?:_[^_]+)*_*")
_LOOSE_DOT = late_pattern(r"\.(?![*+?{])")
_OPEN_EXCLUSION = late_pattern(r"(?<!\^)\(\?!")
_SHORT_EXCLUSION = late_pattern(r"\^\(\?!([A-Za-z_|]+)\)")
_REPEATED = late_pattern(r"([A-Za-z0-9_])\*")


def lint_matcher(event: str, text: str) -> Iterator[str]:
    """Yield the problems of a matcher at an event."""
    if event not in MATCHED:
        if text not in ("", "*"):
            yield f"{event} has no matcher: its hooks run each time"
        return
    try:
        matcher = read_matcher(text)
    except InvalidHook as misfit:
        yield str(misfit)
        return
    if matcher.names is not None:
        yield from (_of_name(event, name) for name in sorted(matcher.names) if _of_name(event, name))
    elif matcher.pattern is not None:
        yield from _of_pattern(text)
        if fits_nothing(event, matcher):
            yield f"{text!r} matches nothing that exists: its hooks never run"


def matcher_notes(event: str, text: str) -> Iterator[str]:
    """Yield notes on a valid matcher that is easily misread."""
    try:
        matcher = read_matcher(text)
    except InvalidHook:
        return
    if event in TOOL_EVENTS and matcher.excludes:
        yield f"{text!r} matches every other tool: also tools that only read, and tools that MCP servers add later"


def _of_name(event: str, name: str) -> str:
    """Return the problem with one name of a list; empty if there is none."""
    if event not in TOOL_EVENTS:
        fits = not fits_nothing(event, read_matcher(name))
        return "" if fits else f"{name!r} is not a value of {event}"
    if name.startswith("mcp__"):
        return (
            f"{name!r} is not a tool: write {name.rstrip('_')}__.* for all of its server"
            if _SERVER.fullmatch(name)
            else ""
        )
    if name in ALL_TOOLS or name in COMPATIBLE:
        return ""
    tool_names = sorted({*ALL_TOOLS, *COMPATIBLE})
    near = difflib.get_close_matches(name, tool_names, n=1, cutoff=0.6)
    near = near or [tool for tool in tool_names if tool.lower() == name.lower()]
    return f"there is no tool {name!r} here{f': did you mean {near[0]}?' if near else ''}"


def _of_pattern(text: str) -> Iterator[str]:
    bare = _without_brackets(text)
    if _OPEN_EXCLUSION.search(bare):
        yield f"{text!r} excludes nothing: without ^ before (?! it matches later in every name"
    if (short := _SHORT_EXCLUSION.search(text)) is not None:
        yield from _excluded_too(text, short[1])
    if _binds_one(bare):
        yield f"the ^ or $ in {text!r} applies to one alternative only: write ^({text.strip('^$')})$"
    if (star := _REPEATED.search(bare)) is not None:
        corrected = _REPEATED.sub(r"\1.*", text)
        yield f"{text!r} is a regular expression, in which {star[0]!r} repeats {star[1]!r}: write {corrected}"
    if _LOOSE_DOT.search(re.sub(r"\\.", "", bare)):
        yield f"a dot in {text!r} stands for any character: write \\."


def _excluded_too(text: str, names: str) -> Iterator[str]:
    """Yield tools that a `^(?!Name)` without an end also excludes."""
    excluded = tuple(names.split("|"))
    every = {name for tool in ALL_TOOLS for name in names_of(tool)}
    also_excluded = sorted(name for name in every - set(excluded) if name.startswith(excluded))
    if also_excluded:
        yield f"{text!r} also leaves out {', '.join(also_excluded)}: write ^(?!({names})$)"


def _binds_one(text: str) -> bool:
    """Return True if some of several top-level alternatives have an anchor and others do not."""
    parts = [""]
    depth = 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    starts = [part.startswith("^") for part in parts]
    ends = [part.endswith("$") for part in parts]
    return len(parts) > 1 and (any(starts) != all(starts) or any(ends) != all(ends))


def _without_brackets(text: str) -> str:
    """Return the expression without its character classes, in which these characters have no special meaning."""
    return re.sub(r"(?<!\\)\[\^?\]?(?:\\.|[^\]\\])*\]", "-", text)
