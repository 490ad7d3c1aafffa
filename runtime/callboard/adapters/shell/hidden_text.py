"""Checks of text in shfmt's tree that bash may run: here-documents, extended patterns, and `let`.

bash must end each here-document at the line at which shfmt ends it. Otherwise it runs lines that the judge takes for
text. It looks for the end line by line before it reads any expansion (`read_secondary_line` and `make_here_document` in
its source), and differs from shfmt in these ways:

- With an unquoted delimiter, bash joins continued lines before it compares them.
- A line inside `${...}` or `$(...)` ends the heredoc too.
- In a command substitution, a line that only begins with the delimiter and has a `)` ends the heredoc, and bash runs
  the rest of the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from callboard.types.late_pattern import late_pattern

Json = Mapping[str, Any]

_ESCAPE = late_pattern(r"\\(.)", re.DOTALL)
_NOT_PLAIN = late_pattern(r"[$`'\"\\<>&;#\n]|\[[^\]]*[()]")
"""Text in an `@(...)` whose end or meaning needs more than counting parentheses."""
_ESCAPE_IN_QUOTES = late_pattern(r'\\([$`"\\\n])')


def heredoc_ends_elsewhere(tree: Any, source: bytes, *, substituted: bool = False, backquoted: bool = False) -> bool:
    """Return True if bash may end a heredoc of shfmt's `tree` at another line than shfmt.

    `substituted`, `backquoted`: `tree` is inside a command or process substitution, inside backquotes.
    """
    if isinstance(tree, list):
        inner = cast("list[Any]", tree)
        return any(heredoc_ends_elsewhere(x, source, substituted=substituted, backquoted=backquoted) for x in inner)
    if not isinstance(tree, Mapping):
        return False
    node = cast("Json", tree)
    substituted |= node.get("Type") in ("CmdSubst", "ProcSubst")
    backquoted |= bool(node.get("Backquotes"))
    if node.get("Hdoc") and _ends_elsewhere(node, source, substituted=substituted, backquoted=backquoted):
        return True
    inside = node.values()
    return any(heredoc_ends_elsewhere(x, source, substituted=substituted, backquoted=backquoted) for x in inside)


def _ends_elsewhere(redirect: Json, source: bytes, *, substituted: bool, backquoted: bool) -> bool:
    parts: Sequence[Json] = redirect["Word"].get("Parts") or ()
    delimiter = _delimiter(parts)
    if delimiter is None:
        return True
    span: Json = redirect["Hdoc"]
    text = source[span["Pos"]["Offset"] : span["End"]["Offset"]].decode(errors="replace")
    if backquoted and "\\" in text:
        return True  # bash removes a level of backslashes first
    if not is_quoted(parts):
        text = _ESCAPE.sub(lambda escape: "" if escape[1] == "\n" else escape[0], text)
    lines = [line.lstrip("\t") if redirect["Op"] == "<<-" else line for line in text.split("\n")]
    if substituted and any(line.startswith(delimiter) and ")" in line for line in lines):
        return True
    return lines.index(delimiter) != len(lines) - 1 if delimiter in lines else True


def is_quoted(delimiter: Sequence[Json]) -> bool:
    """Return True if the delimiter has quotes, so that bash expands nothing in the text."""
    return any(part["Type"] != "Lit" or "\\" in part.get("Value", "") for part in delimiter)


def _delimiter(parts: Sequence[Json]) -> str | None:
    """Return the delimiter without its quotes; None if it is not plain text."""
    text = ""
    for part in parts:
        inner: Sequence[Json] = part.get("Parts") or ()
        if part.get("Dollar"):
            return None
        if part["Type"] == "Lit":
            text += _ESCAPE.sub(r"\1", part.get("Value", ""))
        elif part["Type"] == "SglQuoted":
            text += part.get("Value", "")
        elif part["Type"] == "DblQuoted" and all(each["Type"] == "Lit" for each in inner):
            text += "".join(_ESCAPE_IN_QUOTES.sub(r"\1", each.get("Value", "")) for each in inner)
        else:
            return None
    return text


def pattern_may_hide(pattern: Json) -> bool:
    """Return True for an `@(...)` that may run a command, or end elsewhere: shfmt gives only its text."""
    text: str = (pattern.get("Pattern") or {"Value": "$"})["Value"]
    return _NOT_PLAIN.search(text) is not None


def quotes_substitution(tree: Any) -> bool:
    """Return True if literal text has a substitution: arithmetic expands a subscript once more, and runs it."""
    if isinstance(tree, Mapping):
        node = cast("Json", tree)
        text = str(node.get("Value", ""))
        return "$(" in text or "`" in text or any(map(quotes_substitution, node.values()))
    return isinstance(tree, list) and any(map(quotes_substitution, cast("list[Any]", tree)))
