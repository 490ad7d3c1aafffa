"""Checks of text that bash may read differently: odd characters, here-documents, extended patterns, and quotes.

Odd characters and sizes are refused before any parser sees them.

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
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from callboard.core.permissions.values import UnparsedScript
from callboard.types.late_pattern import late_pattern

MOST_CHARACTERS = 10_000
MOST_OPERATORS = 300
"""Most characters `&` and `|`, because chains of them nest, and the tree of a long chain grows with its square."""
_ODD_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})

_INVISIBLE = late_pattern(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0e\uffa0\U000e0100-\U000e01ef]"
    "|(?<![\u2000-\u2bff\U0001f000-\U0001faff])\ufe0f"
)
"""Invisible characters that Unicode counts as letters or marks. U+FE0F is permitted after a symbol."""


_SPLIT_SIGN = late_pattern(r"(?:[$<>({\[!#=~]|(?<!&)&)(?:\\\n)+[^\s]")
"""Sign that continues on the next line: bash joins `$` and `'x'`, where the parser sees two words."""
Json = Mapping[str, Any]

_ESCAPE = late_pattern(r"\\(.)", re.DOTALL)
_NOT_PLAIN = late_pattern(r"[$`'\"\\<>&;#\n]|\[[^\]]*[()]")
"""Text in an `@(...)` whose end or meaning needs more than counting parentheses."""
_ENDS_OR_EXPANDS = late_pattern(r'[$`"\\}]')
_ARITHMETIC = frozenset({"ArithmExp", "ArithmCmd", "LetClause", "CStyleLoop"})
_COMPARISONS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_SUBSCRIPT = late_pattern(r"\w\[.*(?:\$\(|\$$|`)", re.DOTALL)
_EVALUATED = frozenset({"Index", "Slice"})
_ESCAPE_IN_QUOTES = late_pattern(r'\\([$`"\\\n])')


def refuse_odd_text(source: str) -> UnparsedScript | None:
    """Return the refusal of a script that parsers and bash may read differently, or that is too large."""
    # Bash drops the character and reads on, but a parser may stop (test_a_nul_is_marked).
    if "\0" in source:
        return UnparsedScript("it holds a NUL character", nul=True)
    if len(source) > MOST_CHARACTERS:
        return UnparsedScript(f"it is longer than {MOST_CHARACTERS:,} characters")
    if sum(map(source.count, "&|")) > MOST_OPERATORS:
        return UnparsedScript("it joins too many commands")
    if source.isascii():
        odd = next((c for c in source if (c < " " and c not in "\t\n") or c == "\x7f"), None)
    else:
        odd = next((c for c in source if c not in "\t\n " and unicodedata.category(c) in _ODD_CATEGORIES), None)
        odd = odd or next((match[0] for match in _INVISIBLE.finditer(source)), None)
    if _SPLIT_SIGN.search(source):
        return UnparsedScript("a line continuation splits what may be one sign of the shell")
    if odd is not None:
        return UnparsedScript(f"it holds an invisible or odd character (U+{ord(odd):04X})")
    return None


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


def expands_quoted_text(tree: Any, *, quoted: bool = False, evaluated: bool = False) -> bool:
    """Return True if bash expands text in quotes, where shfmt's `tree` has only that text.

    `quoted`: in double quotes or a heredoc, where single quotes in `${x:-...}` are ordinary characters.
    `evaluated`: in arithmetic, a subscript, or `${x:=...}`, whose text bash can expand once more as arithmetic.
    """
    if isinstance(tree, list):
        inner = cast("list[Any]", tree)
        return any(expands_quoted_text(each, quoted=quoted, evaluated=evaluated) for each in inner)
    if not isinstance(tree, Mapping):
        return False
    node = cast("Json", tree)
    kind = node.get("Type")
    if kind in ("Lit", "SglQuoted"):
        text = str(node.get("Value", ""))
        odd = kind == "SglQuoted" and _ENDS_OR_EXPANDS.search(text) is not None
        return (quoted and odd) or (evaluated and _may_substitute(text, ansi=bool(node.get("Dollar"))))
    if "Stmts" in node and kind in ("CmdSubst", "ProcSubst"):
        quoted = evaluated = False
    evaluated |= kind in _ARITHMETIC
    return any(
        expands_quoted_text(
            child,
            quoted=(quoted or kind == "DblQuoted" or key == "Hdoc") and not _is_pattern(key, child),
            evaluated=evaluated or key in _EVALUATED or (key == "Exp" and child["Op"] in ("=", ":=")),
        )
        for key, child in node.items()
    )


def computes_with_quoted_text(tree: Any) -> bool:
    """Return True if a script with arithmetic has text that arithmetic would run: `read x <<< 'a[$(id)]'; ((x))`.

    The text can reach the arithmetic by a variable, an array, a parameter of a function, or a pipe.
    """
    nodes = list(_nodes(tree))
    computes = any(node.get("Type") in _ARITHMETIC or node.get("Op") in _COMPARISONS for node in nodes)
    return computes and any(_SUBSCRIPT.search(str(node.get("Value", ""))) for node in nodes)


def _nodes(tree: Any) -> Iterator[Json]:
    if isinstance(tree, Mapping):
        node = cast("Json", tree)
        yield node
        for child in node.values():
            yield from _nodes(child)
    elif isinstance(tree, list):
        for child in cast("list[Any]", tree):
            yield from _nodes(child)


def _is_pattern(key: str, child: Any) -> bool:
    """Return True for the pattern of `${x#...}` or `${x/.../}`, in which single quotes quote."""
    return key == "Repl" or (key == "Exp" and child["Op"].lstrip(":") not in ("-", "=", "+", "?"))


def _may_substitute(text: str, *, ansi: bool) -> bool:
    """Return True if the text has a substitution, or can be the first half of one."""
    plain = text.replace("\\", "")
    return "$(" in plain or plain.endswith("$") or "`" in plain or (ansi and plain != text)
