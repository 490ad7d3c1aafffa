"""JSON and YAML values with their line numbers; all members of a duplicate name are kept.

For reports, not for use as settings.

The JSON parser of the standard library reports no lines. Texts occur in a document in the order in which they are
parsed, so the lines of their tokens are assigned in that order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import cast

from callboard.core.json_depth import check_json_limits
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

Address = tuple[str | int, ...]

_TEXT = late_pattern(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A value and its line (from 1). A mapping is a list of names and nodes, so that no duplicate name is lost."""

    value: object
    """A text, number, boolean or None; None for a mapping or a list."""
    line: int = 1
    members: Members | None = None
    """Members of a mapping; None if the node is not a mapping."""
    items: tuple[YamlNode, ...] | None = None
    """Items of a list; None if the node is not a list."""


Members = tuple[tuple[str, YamlNode], ...]


class _Pairs(list[tuple[str, object]]):
    """The members of an object as they were written."""


def json_node(text: str) -> YamlNode:
    """Return the document. Raises ValueError, with the line, for text that is not JSON or exceeds a limit."""
    check_json_limits(text)
    data = cast("object", json.loads(text, object_pairs_hook=_Pairs))
    return _node(data, _Lines(_lines(text)))


def node_of(value: object, lines: Mapping[Address, int], at: Address = (), near: int = 1) -> YamlNode:
    """Return a node for a value that was parsed elsewhere, with the lines of its parts by their addresses.

    A part without a line gets that of its container, `near`.
    """
    line = lines.get(at, near)
    if isinstance(value, dict):
        members = cast("dict[object, object]", value).items()
        named_nodes = tuple((str(name), node_of(item, lines, (*at, str(name)), line)) for name, item in members)
        return YamlNode(None, line, members=named_nodes)
    if isinstance(value, list):
        items = enumerate(cast("list[object]", value))
        return YamlNode(None, line, items=tuple(node_of(item, lines, (*at, number), line) for number, item in items))
    return YamlNode(value, line)


def _lines(text: str) -> Iterator[int]:
    line = 1
    last = 0
    for match in _TEXT.finditer(text):
        line += text.count("\n", last, match.start())
        last = match.start()
        yield line


class _Lines:
    """Assigns the lines of the document's texts. A value that is not a text gets the line of the text before it."""

    def __init__(self, lines: Iterator[int]) -> None:
        self._lines = lines
        self.last = 1

    def next(self) -> int:
        self.last = next(self._lines, self.last)
        return self.last


def _node(value: object, lines: _Lines) -> YamlNode:
    if isinstance(value, str):
        return YamlNode(value, lines.next())
    at = lines.last
    if isinstance(value, _Pairs):
        members: list[tuple[str, YamlNode]] = []
        for number, (name, inner) in enumerate(value):
            line = lines.next()
            at = at if number else line
            members.append((name, _node(inner, lines)))
        return YamlNode(None, at, members=tuple(members))
    if isinstance(value, list):
        return YamlNode(None, at, items=tuple(_node(inner, lines) for inner in cast("list[object]", value)))
    return YamlNode(value, at)


def plain(node: YamlNode) -> object:
    """Return the value without lines. Of a duplicate name the last value counts, as everywhere."""
    if node.members is not None:
        return {name: plain(inner) for name, inner in node.members}
    if node.items is not None:
        return [plain(inner) for inner in node.items]
    return node.value
