"""Finds tools by what is wanted of them: the ranking behind `search_tools`. Pure, and the same for the same catalogue.

Words of the query are looked for in names, descriptions and the names of inputs; rare ones count more, names most. A
name that is written out comes first. Nothing is left to chance: what ranks the same stands by name.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from callboard.words.values import Json

NAME, INPUT, TEXT = 4.0, 1.5, 1.0
"""What a word counts in a tool's name, in the names of its inputs, in its description."""
_PART = 0.6
"""Of that, for a word that only begins with it."""
_WORDS = re.compile(r"[^\W_]+")
_HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SMALL = frozenset(
    {"a", "an", "and", "for", "from", "in", "of", "on", "or", "the", "to", "tool", "tools", "with", "mcp"}
)


@dataclass(frozen=True, slots=True)
class Found:
    """A tool as it is declared."""

    name: str
    description: str
    input_schema: Json


def ranked(query: str, tools: Sequence[Found], most: int) -> tuple[Found, ...]:
    """The tools that fit best, the best first, at most `most`; none, where no word of the query fits any."""
    wanted = [word for word in dict.fromkeys(words_of(query)) if word not in _SMALL]
    named = {part.strip(",;\"'`") for part in query.split()}
    weighed = {tool.name: _weighed(tool) for tool in tools}
    rarity = _rarity(wanted, list(weighed.values()))
    scores = {name: sum(_score(word, words) * rarity[word] for word in wanted) for name, words in weighed.items()}
    fitting = [tool for tool in tools if scores[tool.name] > 0 or tool.name in named]
    order = sorted(fitting, key=lambda tool: (tool.name not in named, -scores[tool.name], tool.name))
    return tuple(order[:most])


def words_of(text: str) -> list[str]:
    """The words of a text in small letters: also those that a name is put together of."""
    return [word.lower() for part in _WORDS.findall(text) for word in _HUMPS.split(part)]


def _weighed(tool: Found) -> Mapping[str, float]:
    """What each of its words counts: in the best place in which it stands, and a little more for each place."""
    properties = cast("Json", tool.input_schema.get("properties") or {})
    weights: defaultdict[str, float] = defaultdict(float)
    for weight, text in ((NAME, tool.name), (INPUT, " ".join(properties)), (TEXT, tool.description)):
        for word in set(words_of(text)):
            weights[word] += weight
    return weights


def _score(word: str, words: Mapping[str, float]) -> float:
    if word in words:
        return words[word]
    near = [weight for other, weight in words.items() if _begins(other, word)]
    return _PART * max(near, default=0.0)


def _begins(one: str, other: str) -> bool:
    """`file` and `files`, `commit` and `committed`: the shorter one begins the longer one."""
    short, long = sorted((one, other), key=len)
    return len(short) >= 3 and long.startswith(short)


def _rarity(wanted: Sequence[str], tools: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """A word that few tools have tells more."""
    there = {word: sum(_score(word, words) > 0 for words in tools) for word in wanted}
    return {word: math.log(1 + len(tools) / count) if count else 0.0 for word, count in there.items()}
