"""Expansion of a shell word to the form that a command receives: quote removal, brace expansion, tilde, globs.

Only parts that the grammar resolves without running code are resolved. A part that only running code can resolve stays
in the text as `HOLE`, a character that no real word can contain, so that no comparison with a literal ever succeeds by
chance. A word that expands into more than `MOST_WORDS` words is returned as one unknown word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, product

from callboard.core.permissions import globs
from callboard.core.permissions.values import HOLE, Arg, DynamicPart, Text, Word
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

NUMBER = "number"
"""Source of a `DynamicPart` that is a number (`$?`, `$#`, `$$`)."""
MOST_WORDS = 256
MOST_BRACES = 64

_SPECIAL = frozenset("{~*?[")
_SIMPLE_ESCAPES = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"} | {
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "?": "?",
}
_ESCAPE = late_pattern(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|c(.)|(.))", re.DOTALL
)
_SEQUENCE = late_pattern(r"([-+]?\d+|[a-zA-Z])\.\.([-+]?\d+|[a-zA-Z])(?:\.\.([-+]?\d+))?")
_ASSIGNS = late_pattern(r"[A-Za-z_]\w*\+?=")
_MOST_DIGITS = 6


@dataclass(frozen=True, slots=True)
class _Char:
    char: str
    quoted: bool


class _TooMany(Exception):
    """A word expands into too many words."""


def decode_ansi_c(body: str) -> str | None:
    """Return the text that bash makes of `$'body'`.

    None if that depends on the locale or is unusual (bytes above 127).
    """
    out: list[str] = []
    at = 0
    for match in _ESCAPE.finditer(body):
        out.append(body[at : match.start()])
        at = match.end()
        char = _escape(match)
        if char is None:
            return None
        if char == "\0":  # bash ends the string here
            return "".join(out)
        out.append(char)
    return "".join(out) + body[at:]


def _escape(match: re.Match[str]) -> str | None:
    two, four, eight, octal, control, other = match.groups()
    if two or octal:
        code = int(two, 16) if two else int(octal, 8) & 0xFF
        return chr(code) if code < 0x80 else None
    if four or eight:
        code = int(four or eight, 16)
        return chr(code) if code < 0xD800 else None
    if control:
        return chr(ord(control.upper()) & 0x1F) if control.isascii() else None
    if other in "xuUc":
        return None
    return _SIMPLE_ESCAPES.get(other, "\\" + other)


def expand(word: Word, home: str) -> tuple[Arg, ...]:
    """Return the words that `word` expands to; one with an unknown value if that is uncertain."""
    plain = _plain(word)
    if plain is not None:
        return (Arg(plain),)
    try:
        chars = _chars(word, home)
        alternatives = _braces(chars) if _few_braces(chars) and not _split_range(word) else [[_Char(HOLE, quoted=True)]]
    except (_TooMany, RecursionError):
        return (Arg(HOLE),)
    if not all(alternatives):  # `{-c,}` becomes one word, since an unquoted empty word is removed
        if any(isinstance(part, Text) and part.quoted for part in word.parts) or not any(alternatives):
            return (Arg(HOLE),)
        alternatives = [chars for chars in alternatives if chars]
    return tuple(_arg(chars, home, word) for chars in alternatives)


def _plain(word: Word) -> str | None:
    """Return the text of a word that needs no expansion.

    This applies to most words, and expanding by character is slow.
    """
    text = ""
    for part in word.parts:
        if not isinstance(part, Text) or (not part.quoted and not _SPECIAL.isdisjoint(part.text)):
            return None
        text += part.text
    return text


def _split_range(word: Word) -> bool:
    """Return True if empty quotes may be inside a range (`{a''..c}`), which then is not a range."""
    empty = any(isinstance(part, Text) and part.quoted and not part.text for part in word.parts)
    plain = "".join(part.text for part in word.parts if isinstance(part, Text) and not part.quoted)
    return empty and "{" in plain and ".." in plain


def _few_braces(chars: Sequence[_Char]) -> bool:
    return sum(char == _Char("{", quoted=False) for char in chars) <= MOST_BRACES


def literal(word: Word, home: str) -> Arg:
    """Return the word without brace expansion, as assignments, redirects of heredocs and tests see it."""
    plain = _plain(word)
    if plain is not None:
        return Arg(plain)
    return _arg(_chars(word, home), home, word)


def _chars(word: Word, home: str) -> list[_Char]:
    chars: list[_Char] = []
    for part, after in zip(word.parts, (*word.parts[1:], None), strict=True):
        if isinstance(part, Text):
            chars += [_Char(char, part.quoted) for char in part.text]
        elif part.source == "ProcSubst":
            chars += [_Char(char, quoted=True) for char in "/dev/fd/63"]
        elif isinstance(after, Text) and not after.quoted and after.text[:1] in ("{", "}", ","):
            chars.append(_Char(HOLE, quoted=True))  # bash treats braces as text: `$HOME{a,b}` is `$HOMEa $HOMEb`
        elif part.name == "HOME":
            chars += [_Char(char, quoted=True) for char in home]
        elif (
            part.name == "PWD" and not chars and (after is None or (isinstance(after, Text) and after.text[:1] == "/"))
        ):
            chars.append(_Char(".", quoted=True))  # not in `$PWD-other/x`, which is a neighbor of the folder
        else:
            chars.append(_Char(HOLE, quoted=True))
    return chars


def _arg(chars: Sequence[_Char], home: str, word: Word) -> Arg:
    of_user = _names_user(chars)
    chars = _tilde(chars, home)
    dynamic = [part for part in word.parts if isinstance(part, DynamicPart)]
    output_only = bool(dynamic) and all(part.runs_only for part in dynamic)
    variable = of_user or any(part.name for part in dynamic)
    number = is_number(word)
    text = "".join(c.char for c in chars)
    plain = "".join("\1" if c.quoted else c.char for c in chars)
    if not re.search(r"[*?]|\[.*\]", plain, re.DOTALL):
        return Arg(text, output_only=output_only, variable=variable, number=number)
    pattern = "".join(globs.escape(c.char) if c.quoted else c.char for c in chars)
    return Arg(text, glob=True, pattern=pattern, output_only=output_only, variable=variable)


def is_number(word: Word) -> bool:
    """Return True if a word is one number that the shell sets, and nothing else."""
    parts = [part for part in word.parts if not (isinstance(part, Text) and not part.text)]
    return len(parts) == 1 and isinstance(parts[0], DynamicPart) and parts[0].source == NUMBER


def _tilde(chars: Sequence[_Char], home: str) -> Sequence[_Char]:
    if not chars or chars[0] != _Char("~", quoted=False):
        return _tilde_in_assignment(chars)
    end = next((i for i, c in enumerate(chars) if c.char == "/"), len(chars))
    if any(c.quoted for c in chars[:end]):
        return chars
    user = "".join(c.char for c in chars[1:end])
    guess = f"/home/{user}" if re.fullmatch(r"[\w.-]+", user) else HOLE  # bash keeps the word of an unknown user
    folder = {"": home, "root": "/root", "+": ".", "-": HOLE}.get(user, guess)
    return [*(_Char(c, quoted=True) for c in folder), *chars[end:]]


def _names_user(chars: Sequence[_Char]) -> bool:
    """Return True if a word begins with `~NAME`: the home of a user, or text if there is no such user."""
    end = next((i for i, c in enumerate(chars) if c.char == "/"), len(chars))
    user = "".join(c.char for c in chars[1:end])
    unquoted = chars[:1] == [_Char("~", quoted=False)] and not any(c.quoted for c in chars[:end])
    return unquoted and bool(re.fullmatch(r"[\w.-]+", user)) and user not in ("root", "-")


def _tilde_in_assignment(chars: Sequence[_Char]) -> Sequence[_Char]:
    """Expand a tilde after `=` and `:` in every word that looks like an assignment (`dd of=~/x`), as bash does."""
    if not _ASSIGNS.match("".join(HOLE if c.quoted else c.char for c in chars)):
        return chars
    before = (None, *chars[:-1])
    tilde = _Char("~", quoted=False)
    return [
        _Char(HOLE, quoted=True) if c == tilde and b is not None and b.char in "=:" else c
        for b, c in zip(before, chars, strict=True)
    ]


def _braces(chars: list[_Char]) -> list[list[_Char]]:
    """Expand braces as bash does: left to right, innermost kept for recursion.

    Braces that are not an expansion stay literal.
    """
    for start, char in enumerate(chars):
        if char != _Char("{", quoted=False):
            continue
        if start == 0 and chars[1:2] == [_Char("}", quoted=False)]:
            continue  # `{}` at the start is never an expansion: a word of find
        closing = _closing(chars, start)
        if closing is None:
            continue
        end, commas = closing
        middle = _alternatives(chars[start + 1 : end], [c - start - 1 for c in commas])
        if middle is None:
            continue
        tails = _braces(chars[end + 1 :])
        if len(middle) * len(tails) > MOST_WORDS:
            raise _TooMany
        return [chars[:start] + m + t for m, t in product(middle, tails)]
    return [chars]


def _closing(chars: Sequence[_Char], start: int) -> tuple[int, list[int]] | None:
    depth = 0
    commas = list[int]()
    nearly_range = False
    for i in range(start, len(chars)):
        char = chars[i]
        if char.quoted:
            continue
        if char.char == "{":
            depth += 1
        elif char.char == "}" and depth == 1:
            if commas and nearly_range:
                raise _TooMany  # `{...},x}`: bash continues in its own way
            if commas or _SEQUENCE.fullmatch("".join(c.char for c in chars[start + 1 : i])):
                return i, commas
            # bash continues: in `{a},b}` the first brace closes nothing
            nearly_range |= ".." in "".join(c.char for c in chars[start + 1 : i])
            if nearly_range and _Char("{", quoted=False) in chars[start + 1 : i]:
                raise _TooMany  # `{a..b{c,d}}`: all text for bash
        elif char.char == "}":
            depth -= 1
        elif char.char == "," and depth == 1:
            commas.append(i)
    return None


def _alternatives(body: list[_Char], commas: Sequence[int]) -> list[list[_Char]] | None:
    if commas:
        edges = [-1, *commas, len(body)]
        pieces = [body[a + 1 : b] for a, b in pairwise(edges)]
        out = [alternative for piece in pieces for alternative in _braces(piece)]
        if len(out) > MOST_WORDS:
            raise _TooMany
        return out
    match = None if any(c.quoted for c in body) else _SEQUENCE.fullmatch("".join(c.char for c in body))
    if match is None:
        return None
    texts = list(_sequence(match[1], match[2], match[3]))
    return [[_Char(c, quoted=True) for c in text] for text in texts] or None


def _sequence(first: str, last: str, step: str | None) -> Iterator[str]:
    numeric = first.lstrip("-+").isdigit(), last.lstrip("-+").isdigit()
    if numeric[0] != numeric[1]:
        return
    if any(len(text) > _MOST_DIGITS for text in (first, last, step or "")):
        raise _TooMany
    if not numeric[0] and first.islower() != last.islower():  # brackets, a backslash and a backtick lie between
        raise _TooMany
    a, b = (int(first), int(last)) if numeric[0] else (ord(first), ord(last))
    stride = max(abs(int(step or "1")), 1)
    if abs(b - a) // stride >= MOST_WORDS:
        raise _TooMany
    padded = numeric[0] and any(re.match(r"-?0\d", text) for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    for value in range(a, b + 1, stride) if a <= b else range(a, b - 1, -stride):
        yield str(value).zfill(width) if numeric[0] else chr(value)
