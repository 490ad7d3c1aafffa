"""Conversion between permission updates of the compatible format and the runtime's rules. Pure.

`permission_suggestions`, `updatedPermissions` and `can_use_tool` contain `{type, rules: [{toolName, ruleContent}],
behavior, destination}`. The runtime's rules are texts: `Tool(specifier)`. Only adding allow rules for this session is
supported. Everything else is listed, so that nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from callboard.core.permissions.rules import parse_rule
from callboard.core.tool_access import COMPATIBLE
from callboard.types.agent_spec import READ_AS
from callboard.types.records import Json


def suggestions_of(rules: Sequence[str]) -> tuple[Json, ...]:
    """Return the rules that "always" would add, as one update; empty for no rules."""
    if not rules:
        return ()
    entries = [_entry(text) for text in rules]
    return ({"type": "addRules", "rules": entries, "behavior": "allow", "destination": "session"},)


def _entry(text: str) -> Json:
    rule = parse_rule(text)
    names = {own_name: alias for alias, all_of in reversed(list(COMPATIBLE.items())) for own_name in all_of}
    entry: Json = {"toolName": names.get(rule.tool, rule.tool)}
    return entry if rule.specifier is None else {**entry, "ruleContent": rule.specifier}


def rules_of(updates: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the rules that updates would allow in this session, and a line for each unsupported part."""
    if updates is None:
        return (), ()
    if not isinstance(updates, list | tuple):
        return (), ("permission updates are a list",)
    allowed: list[str] = []
    refused: list[str] = []
    for update in cast("Sequence[object]", updates):
        fields = cast("Json", update) if isinstance(update, dict) else {}
        change = tuple(fields.get(name) for name in ("type", "behavior", "destination"))
        if change == ("addRules", "allow", "session"):
            texts = list(_texts(fields.get("rules")))
            allowed += [text for text in texts if text]
            refused += ["a rule without a toolName, or that cannot be read"] * texts.count("")
        else:
            refused.append(f"an update {' '.join(str(part) for part in change if part) or 'without a type'}")
    return tuple(dict.fromkeys(allowed)), tuple(refused)


def mode_of(updates: object) -> str:
    """Return the permission mode that updates select for this session, by its runtime name; empty if none."""
    chosen = ""
    for update in cast("Sequence[object]", updates) if isinstance(updates, list | tuple) else ():
        fields = cast("Json", update) if isinstance(update, dict) else {}
        if fields.get("type") == "setMode" and isinstance(fields.get("mode"), str):
            chosen = READ_AS.get(fields["mode"], fields["mode"])
    return chosen


def _texts(entries: Any) -> Iterator[str]:
    """Yield each entry as a readable rule, or empty."""
    for entry in cast("Sequence[object]", entries) if isinstance(entries, list | tuple) else ():
        fields = cast("Json", entry) if isinstance(entry, dict) else {}
        tool = fields.get("toolName")
        content = fields.get("ruleContent")
        if not isinstance(tool, str) or not isinstance(content, str | None):
            yield ""
            continue
        text = f"{tool}({content})" if content else tool
        try:
            parse_rule(text)
        except ValueError:
            text = ""
        yield text
