"""Search for tools by description: the ranking behind `search_tools`. Pure, and deterministic for the same catalogue.

Words of the query are searched in names, descriptions and the names of inputs; rare words count more, and names count
most. A tool whose full name is in the query comes first. Tools of equal rank are sorted by name.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import cast

from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

NAME = 4.0
INPUT = 1.5
TEXT = 1.0
"""Weights of a word in a tool's name (`NAME`), in the names of its inputs (`INPUT`), and in its description
(`TEXT`).
"""
_PART = 0.6
"""Factor for a match in which one word is only the beginning of the other."""
_WORDS = late_pattern(r"[^\W_]+")
_HUMPS = late_pattern(r"(?<=[a-z0-9])(?=[A-Z])")
_SMALL = frozenset(
    {"a", "an", "and", "for", "from", "in", "of", "on", "or", "the", "to", "tool", "tools", "with", "mcp"}
)


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool and its declaration."""

    name: str
    description: str
    input_schema: Json


def rank_tools(query: str, tools: Sequence[DeclaredTool], most: int) -> tuple[DeclaredTool, ...]:
    """Return the best matching tools, the best first, at most `most`; none if no word of the query matches."""
    query_words = [word for word in dict.fromkeys(words_of(query)) if word not in _SMALL]
    named = {part.strip(",;\"'`") for part in query.split()}
    weighed = {tool.name: _word_weights(tool) for tool in tools}
    rarity = _rarity(query_words, list(weighed.values()))
    scores = {
        name: sum(_score(word, weights) * rarity[word] for word in query_words) for name, weights in weighed.items()
    }
    fitting = [tool for tool in tools if scores[tool.name] > 0 or tool.name in named]
    order = sorted(fitting, key=lambda tool: (tool.name not in named, -scores[tool.name], tool.name))
    return tuple(order[:most])


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, including the parts of compound names."""
    return [word.lower() for part in _WORDS.findall(text) for word in _HUMPS.split(part)]


def _word_weights(tool: DeclaredTool) -> Mapping[str, float]:
    """Return the weight of each of the tool's words: the sum of the weights of the places that contain it."""
    properties = cast("Json", tool.input_schema.get("properties") or {})
    weights: defaultdict[str, float] = defaultdict(float)
    for weight, text in ((NAME, tool.name), (INPUT, " ".join(properties)), (TEXT, tool.description)):
        for word in set(words_of(text)):
            weights[word] += weight
    return weights


def _score(word: str, weights: Mapping[str, float]) -> float:
    if word in weights:
        return weights[word]
    near = [weight for other, weight in weights.items() if _begins(other, word)]
    return _PART * max(near, default=0.0)


def _begins(word: str, other: str) -> bool:
    """Return True if the shorter word begins the longer one: `file` and `files`, `commit` and `committed`."""
    short, long = sorted((word, other), key=len)
    return len(short) >= 3 and long.startswith(short)


def _rarity(query_words: Sequence[str], tools: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """Return the weight of each word by its rarity: a word that few tools have counts more."""
    counts = {word: sum(_score(word, weights) > 0 for weights in tools) for word in query_words}
    return {word: math.log(1 + len(tools) / count) if count else 0.0 for word, count in counts.items()}
