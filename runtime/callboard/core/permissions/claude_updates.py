"""Conversion between permission updates of the compatible format and the runtime's rules. Pure.

`permission_suggestions`, `updatedPermissions` and `can_use_tool` contain `{type, rules: [{toolName, ruleContent}],
behavior, destination}`. The runtime's rules are texts: `Tool(specifier)`. Hooks may only add allow rules for this
session (`rules_of`); a client that acts as the person may also add rules that ask or deny, replace and remove rules,
choose a mode, and allow folders (`client_changes`). Everything else is listed, so that nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, cast, get_args

from callboard.core.permissions.rules import parse_rule
from callboard.core.tool_access import COMPATIBLE
from callboard.types.agent_spec import READ_AS
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json, RuleEffect


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


@dataclass(frozen=True, slots=True)
class RuleChange:
    """Change of the session rules with one effect."""

    kind: Literal["add", "replace", "remove"]
    """`replace` revokes all rules with this effect, then adds the rules."""
    effect: RuleEffect
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClientChanges:
    """Changes for this session that a client requests in an answer."""

    rules: tuple[RuleChange, ...] = ()
    """Changes of rules, in order."""
    mode: str = ""
    """Permission mode of the lead, by its runtime name; empty: no change."""
    ignored: tuple[str, ...] = ()
    """A line for each part without effect, or with less than the requested effect."""

    @property
    def allowed(self) -> tuple[str, ...]:
        """Return the rules that the changes allow."""
        return tuple(
            text
            for change in self.rules
            if change.effect == "allow" and change.kind != "remove"
            for text in change.rules
        )


def client_changes(updates: object) -> ClientChanges:
    """Return the changes that the updates of a client request. They last as long as the session."""
    if updates is None:
        return ClientChanges()
    if not isinstance(updates, list | tuple):
        return ClientChanges(ignored=("permission updates are a list",))
    changes: list[RuleChange] = []
    ignored: list[str] = []
    listed = cast("Sequence[object]", updates)
    for update in listed:
        fields = cast("Json", update) if isinstance(update, dict) else {}
        kind = str(fields.get("type"))
        effect = fields.get("behavior")
        if kind in _RULE_CHANGES and effect in get_args(RuleEffect):
            texts = list(_texts(fields.get("rules")))
            ignored += ["a rule without a toolName, or that cannot be read"] * texts.count("")
            rules = tuple(dict.fromkeys(filter(None, texts)))
            changes.append(RuleChange(_RULE_CHANGES[kind], cast("RuleEffect", effect), rules))
        elif kind in _FOLDER_CHANGES:
            folders = [str(folder) for folder in cast("Sequence[object]", fields.get("directories") or ())]
            rules = tuple(f"Read(/{folder.rstrip('/')}/**)" for folder in folders if folder.startswith("/"))
            ignored += [f"the directory {folder}: it is not absolute" for folder in folders if folder[:1] != "/"]
            changes.append(RuleChange(_FOLDER_CHANGES[kind], "allow", rules))
        elif kind != "setMode":
            named = " ".join(str(part) for part in (fields.get("type"), effect) if part)
            ignored.append(f"an update {named or 'without a type'}")
            continue
        if fields.get("destination") not in ("session", None):
            ignored.append(f"the destination {fields['destination']}: the change lasts as long as the session")
    return ClientChanges(tuple(changes), mode_of(listed), tuple(dict.fromkeys(ignored)))


_RULE_CHANGES: Mapping[str, Literal["add", "replace", "remove"]] = MappingProxyType(
    {"addRules": "add", "replaceRules": "replace", "removeRules": "remove"}
)
_FOLDER_CHANGES: Mapping[str, Literal["add", "remove"]] = MappingProxyType(
    {"addDirectories": "add", "removeDirectories": "remove"}
)


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
