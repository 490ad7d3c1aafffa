"""What a model reads of the agent types that there are: short enough for a tool's description. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

LONGEST = 600
"""Characters of one description, where there are few."""
ALL = 12_000
"""Characters of all of them together; with more types each has less, and never less than `SHORTEST`."""
SHORTEST = 80

_EXAMPLE = re.compile(r"<example>.*?(?:</example>|$)", re.DOTALL | re.IGNORECASE)
_COMMENTARY = re.compile(r"<commentary>.*?(?:</commentary>|$)", re.DOTALL | re.IGNORECASE)
_LEFT_OVER = re.compile(r"\s*(?:Examples?|For example)\s*:\s*[-*]*\s*$", re.IGNORECASE)


def fitted(descriptions: Mapping[str, str]) -> dict[str, str]:
    """The descriptions without their examples, each on one line, cut at the end of a sentence or word where all of them
    together would be too long."""
    most = max(SHORTEST, min(LONGEST, ALL // max(1, len(descriptions))))
    return {name: _cut(_plain(text), most) for name, text in descriptions.items()}


def _plain(text: str) -> str:
    bare = " ".join(_COMMENTARY.sub(" ", _EXAMPLE.sub(" ", text)).split())
    return _LEFT_OVER.sub("", bare) or " ".join(text.split())


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    head = text[: most - 1]
    sentence = head.rfind(". ")
    if sentence >= most // 2:
        return head[: sentence + 1]
    return head.rsplit(" ", 1)[0].rstrip(",;:") + "…"
