"""Reader of the profiles of Seatbelt: their syntax, and which operation on a path a profile allows.

It knows only what Callboard writes. It reads strings as the language does, so a path that could end its string would
add an expression here too. Names of folders are compared exactly, as Seatbelt compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """A string, in contrast to a symbol."""

    value: str


Expression = Text | str | tuple["Expression", ...]
_TOKEN = re.compile(r'\s+|(?P<open>\()|(?P<close>\))|"(?P<text>(?:[^"\\]|\\.)*)"|(?P<symbol>[^\s()"]+)', re.DOTALL)


def read_profile(text: str) -> tuple[Expression, ...]:
    """Return the expressions of a profile. Raises `ValueError` if it is not well formed."""
    stack: list[list[Expression]] = [[]]
    place = 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise ValueError(f"not an expression: {text[place : place + 40]!r}")
        place = token.end()
        if token["open"]:
            stack.append([])
        elif token["close"]:
            done = tuple(stack.pop())
            stack[-1].append(done)
        elif token["text"] is not None:
            stack[-1].append(Text(re.sub(r"\\(.)", r"\1", token["text"], flags=re.DOTALL)))
        elif token["symbol"]:
            stack[-1].append(token["symbol"])
    (top,) = stack
    return tuple(top)


def strings(expression: Expression) -> Iterator[str]:
    """Yield all strings of an expression."""
    if isinstance(expression, Text):
        yield expression.value
    elif isinstance(expression, tuple):
        for part in expression:
            yield from strings(part)


def shape(expression: Expression) -> object:
    """Return an expression without the content of its strings."""
    if isinstance(expression, Text):
        return Text("")
    return tuple(map(shape, expression)) if isinstance(expression, tuple) else expression


def allows(profile: tuple[Expression, ...], operation: str, path: str) -> bool:
    """Return True if the profile allows the operation on a path: `(deny default)`, and one rule for the operation."""
    assert profile[:2] == (("version", "1"), ("deny", "default"))
    assert all(isinstance(rule, tuple) and rule[0] == "allow" for rule in profile[2:])
    rules = [rule for rule in profile[2:] if isinstance(rule, tuple) and operation in rule]
    assert len(rules) <= 1, "a second rule for an operation would make their order matter"
    return any(_matches(part, path) for rule in rules for part in rule[1:] if isinstance(part, tuple))


def _matches(expression: Expression, path: str) -> bool:
    assert isinstance(expression, tuple)
    match expression:
        case ("literal", Text(value)):
            return path == value
        case ("subpath", Text(value)):
            return path == value or path.startswith(value.rstrip("/") + "/")
        case ("require-all", *parts):
            return all(_matches(part, path) for part in parts)
        case ("require-not", part):
            return not _matches(part, path)
        case ("regex", ("string-append", Text("^"), ("regex-quote", Text(base)), Text(pattern))):
            return re.match(re.escape(base) + pattern, path) is not None
        case _:
            raise ValueError(f"unknown filter {expression!r}")
