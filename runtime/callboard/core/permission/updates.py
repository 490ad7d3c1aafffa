"""Permission updates of the compatible format, and rules as we write them: turned into each other. Pure.

`permission_suggestions`, `updatedPermissions` and `can_use_tool` speak of `{type, rules: [{toolName, ruleContent}],
behavior, destination}`. Ours are texts: `Tool(specifier)`. Only an addition of allow rules for this session is taken;
all else is named, so that nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from callboard.core.permission.rules import parse_rule
from callboard.core.toolset import COMPATIBLE
from callboard.words.values import Json


def suggestions_of(rules: Sequence[str]) -> tuple[Json, ...]:
    """What "always" would allow, as one update; none for no rules."""
    if not rules:
        return ()
    entries = [_entry(text) for text in rules]
    return ({"type": "addRules", "rules": entries, "behavior": "allow", "destination": "session"},)


def _entry(text: str) -> Json:
    rule = parse_rule(text)
    names = {ours: theirs for theirs, all_of in reversed(list(COMPATIBLE.items())) for ours in all_of}
    entry: Json = {"toolName": names.get(rule.tool, rule.tool)}
    return entry if rule.specifier is None else {**entry, "ruleContent": rule.specifier}


def rules_of(updates: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The rules that updates would allow in this session, and what of them is not taken, a line each."""
    if updates is None:
        return (), ()
    if not isinstance(updates, list | tuple):
        return (), ("permission updates are a list",)
    taken: list[str] = []
    left: list[str] = []
    for update in cast("Sequence[object]", updates):
        fields = cast("Json", update) if isinstance(update, dict) else {}
        what = tuple(fields.get(name) for name in ("type", "behavior", "destination"))
        if what == ("addRules", "allow", "session"):
            texts = list(_texts(fields.get("rules")))
            taken += [text for text in texts if text]
            left += ["a rule without a toolName, or that cannot be read"] * texts.count("")
        else:
            left.append(f"an update {' '.join(str(one) for one in what if one) or 'without a type'}")
    return tuple(dict.fromkeys(taken)), tuple(left)


def _texts(given: Any) -> Iterator[str]:
    """Each as a rule that can be read, or empty."""
    for entry in cast("Sequence[object]", given) if isinstance(given, list | tuple) else ():
        fields = cast("Json", entry) if isinstance(entry, dict) else {}
        tool, content = fields.get("toolName"), fields.get("ruleContent")
        if not isinstance(tool, str) or not isinstance(content, str | None):
            yield ""
            continue
        text = f"{tool}({content})" if content else tool
        try:
            parse_rule(text)
        except ValueError:
            text = ""
        yield text
