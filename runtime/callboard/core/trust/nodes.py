"""Values with the line on which each stands, every member of a doubled name kept. For telling, not for using.

The JSON parser of the standard library knows no lines. Texts stand in a document in the order in which they are parsed,
so the lines of their tokens are dealt out in that order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

Address = tuple[str | int, ...]

_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its line (from 1). A mapping is a row of names and nodes, so that no doubled name is lost."""

    value: object
    """A text, number, truth value or None; None for a mapping or a list."""
    line: int = 1
    members: Members | None = None
    """Of a mapping; None: it is none."""
    items: tuple[Node, ...] | None = None
    """Of a list; None: it is none."""


Members = tuple[tuple[str, Node], ...]


class _Pairs(list[tuple[str, object]]):
    """The members of an object as they were written."""


def json_node(text: str) -> Node:
    """The document. Raises ValueError (with the line) for what is no JSON, RecursionError for what is too deep."""
    data = cast("object", json.loads(text, object_pairs_hook=_Pairs))
    return _node(data, _Lines(_lines(text)))


def node_of(value: object, lines: Mapping[Address, int], at: Address = (), near: int = 1) -> Node:
    """A value that was parsed elsewhere, with the lines of its parts by their addresses. One without a line of its own
    has the line `near` it, of what it stands in."""
    line = lines.get(at, near)
    if isinstance(value, dict):
        members = cast("dict[object, object]", value).items()
        told = tuple((str(name), node_of(one, lines, (*at, str(name)), line)) for name, one in members)
        return Node(None, line, members=told)
    if isinstance(value, list):
        items = enumerate(cast("list[object]", value))
        return Node(None, line, items=tuple(node_of(one, lines, (*at, number), line) for number, one in items))
    return Node(value, line)


def _lines(text: str) -> Iterator[int]:
    line, last = 1, 0
    for found in _TEXT.finditer(text):
        line += text.count("\n", last, found.start())
        last = found.start()
        yield line


class _Lines:
    """Deals out the lines of the document's texts; a value that is none has the line of the text before it."""

    def __init__(self, lines: Iterator[int]) -> None:
        self._lines = lines
        self.last = 1

    def next(self) -> int:
        self.last = next(self._lines, self.last)
        return self.last


def _node(value: object, lines: _Lines) -> Node:
    if isinstance(value, str):
        return Node(value, lines.next())
    at = lines.last
    if isinstance(value, _Pairs):
        members: list[tuple[str, Node]] = []
        for number, (name, inner) in enumerate(value):
            line = lines.next()
            at = at if number else line
            members.append((name, _node(inner, lines)))
        return Node(None, at, members=tuple(members))
    if isinstance(value, list):
        return Node(None, at, items=tuple(_node(inner, lines) for inner in cast("list[object]", value)))
    return Node(value, at)


def plain(node: Node) -> object:
    """The value without lines; of a doubled name the last one counts, as everywhere."""
    if node.members is not None:
        return {name: plain(inner) for name, inner in node.members}
    if node.items is not None:
        return [plain(inner) for inner in node.items]
    return node.value
