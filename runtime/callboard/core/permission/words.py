"""What a shell word becomes before a command sees it: quote removal, brace expansion, tilde, globs.

Only what the grammar resolves without running code is resolved. A part that only running code can resolve stays in the
text as `HOLE`, a character that no real word can hold, so that no comparison with a literal ever succeeds by chance.
Refuses words that expand into more than `MOST_WORDS`: they come back as one unknown word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from callboard.core.permission.values import Dynamic, Text, Word

HOLE = "\0"
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
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|c(.)|(.))", re.DOTALL
)
_SEQUENCE = re.compile(r"(-?\d{1,6}|[a-zA-Z])\.\.(-?\d{1,6}|[a-zA-Z])(?:\.\.(-?\d{1,6}))?")


@dataclass(frozen=True, slots=True)
class Arg:
    """One word as a command receives it, as far as it is known."""

    text: str
    """With `HOLE` where it is not known."""
    glob: bool = False
    pattern: str = ""
    """For globs: the text as a pattern, quoted glob characters in brackets."""
    output_only: bool = False
    """The unknown parts are outputs of commands, not variables."""
    variable: bool = False
    """A variable was read for it, though its value is known well enough to deny."""

    @property
    def known(self) -> bool:
        """Whether the text holds no hole."""
        return HOLE not in self.text


@dataclass(frozen=True, slots=True)
class _Char:
    char: str
    quoted: bool


class _TooMany(Exception):
    """A word expands into too many."""


def decode_ansi_c(body: str) -> str | None:
    """Return what `$'body'` means to bash, or None where that depends on the locale or is odd (bytes above 127)."""
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
    """Return the words that `word` becomes. One with an unknown value where it cannot be told."""
    plain = _plain(word)
    if plain is not None:
        return (Arg(plain),)
    try:
        chars = _chars(word, home)
        alternatives = _braces(chars) if _few_braces(chars) else [[_Char(HOLE, quoted=True)]]
    except (_TooMany, RecursionError):
        return (Arg(HOLE),)
    if not all(alternatives):  # of `{-c,}` one word is left, since an empty one that nobody quoted is none
        if any(isinstance(part, Text) and part.quoted for part in word.parts) or not any(alternatives):
            return (Arg(HOLE),)
        alternatives = [chars for chars in alternatives if chars]
    return tuple(_arg(chars, home, word) for chars in alternatives)


def _plain(word: Word) -> str | None:
    """Return the text of a word that nothing is done to: most words, and spelling them out by character is slow."""
    text = ""
    for part in word.parts:
        if not isinstance(part, Text) or (not part.quoted and not _SPECIAL.isdisjoint(part.text)):
            return None
        text += part.text
    return text


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
    for part in word.parts:
        if isinstance(part, Text):
            chars += [_Char(char, part.quoted) for char in part.text]
        elif part.source == "ProcSubst":
            chars += [_Char(char, quoted=True) for char in "/dev/fd/63"]
        elif part.name == "HOME":
            chars += [_Char(char, quoted=True) for char in home]
        elif part.name == "PWD" and not chars:
            chars.append(_Char(".", quoted=True))
        else:
            chars.append(_Char(HOLE, quoted=True))
    return chars


def _arg(chars: Sequence[_Char], home: str, word: Word) -> Arg:
    chars = _tilde(chars, home)
    dynamic = [part for part in word.parts if isinstance(part, Dynamic)]
    output_only = bool(dynamic) and all(part.runs_only for part in dynamic)
    variable = any(part.name for part in dynamic)
    text = "".join(c.char for c in chars)
    plain = "".join("\1" if c.quoted else c.char for c in chars)
    if not re.search(r"[*?]|\[.*\]", plain):
        return Arg(text, output_only=output_only, variable=variable)
    pattern = "".join(f"[{c.char}]" if c.quoted and c.char in "*?[" else c.char for c in chars)
    return Arg(text, glob=True, pattern=pattern, output_only=output_only, variable=variable)


def _tilde(chars: Sequence[_Char], home: str) -> Sequence[_Char]:
    if not chars or chars[0] != _Char("~", quoted=False):
        return chars
    end = next((i for i, c in enumerate(chars) if c.char == "/"), len(chars))
    if any(c.quoted for c in chars[:end]):
        return chars
    user = "".join(c.char for c in chars[1:end])
    folder = {"": home, "root": "/root", "+": ".", "-": HOLE}.get(user, f"/home/{user}")
    return [*(_Char(c, quoted=True) for c in folder), *chars[end:]]


def _braces(chars: list[_Char]) -> list[list[_Char]]:
    """Expand braces as bash does: left to right, innermost kept for recursion; what is no expansion stays literal."""
    for start, char in enumerate(chars):
        if char != _Char("{", quoted=False):
            continue
        if start == 0 and chars[1:2] == [_Char("}", quoted=False)]:
            continue  # `{}` at the start is never an expansion: find's word
        found = _closing(chars, start)
        if found is None:
            continue
        end, commas = found
        middle = _alternatives(chars[start + 1 : end], [c - start - 1 for c in commas])
        if middle is None:
            continue
        tails = _braces(chars[end + 1 :])
        if len(middle) * len(tails) > MOST_WORDS:
            raise _TooMany
        return [chars[:start] + m + t for m, t in product(middle, tails)]
    return [chars]


def _closing(chars: Sequence[_Char], start: int) -> tuple[int, list[int]] | None:
    depth, commas = 0, list[int]()
    for i in range(start, len(chars)):
        char = chars[i]
        if char.quoted:
            continue
        if char.char == "{":
            depth += 1
        elif char.char == "}" and depth == 1:
            if commas or _SEQUENCE.fullmatch("".join(c.char for c in chars[start + 1 : i])):
                return i, commas
            # bash reads on: in `{a},b}` the first brace closes nothing
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
    numeric = first.lstrip("-").isdigit(), last.lstrip("-").isdigit()
    if numeric[0] != numeric[1]:
        return
    a, b = (int(first), int(last)) if numeric[0] else (ord(first), ord(last))
    stride = max(abs(int(step or "1")), 1)
    if abs(b - a) // stride >= MOST_WORDS:
        raise _TooMany
    padded = numeric[0] and any(re.match(r"-?0\d", text) for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    for value in range(a, b + 1, stride) if a <= b else range(a, b - 1, -stride):
        yield str(value).zfill(width) if numeric[0] else chr(value)
