"""Texts of skills that a summary took out of a conversation, and what of them comes back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from callboard.words.context import Injection, Message
from callboard.words.values import Json

LONGEST, MOST = 20_000, 100_000
"""Characters of one text, and of all: 5,000 and 25,000 tokens of four characters (Claude Code's own limits)."""
SHARE = 0.5
"""Characters for each token of the window that all of them may have: an eighth of it."""
_CUT = "[The rest is cut: load the skill again for all of it.]"
_HEAD = "The conversation was summarised. These skills were loaded in it and hold on:"


def lost(texts: Mapping[str, str], messages: Iterable[Message]) -> list[str]:
    """The skills whose text stands in none of these messages, the newest first. `texts`: skill -> its text's blob, in
    the order of loading."""
    there = "\n".join(_words(block.data) for one in messages for block in one.blocks)
    return [name for name in reversed(list(texts)) if f"Skill {name}, folder " not in there]


def carried(texts: Sequence[str], window: int) -> Injection | None:
    """The reminder that brings these texts back, the newest first, as many as fit; None: none does. `window`: tokens of
    the model's window."""
    left = min(MOST, round(window * SHARE))
    parts: list[str] = []
    for text in texts:
        most = min(LONGEST, left)
        if most < len(_CUT):
            break
        part = text if len(text) <= most else f"{text[: most - len(_CUT)]}\n{_CUT}"
        parts.append(part)
        left -= len(part)
    if not parts:
        return None
    return Injection(kind="system-reminder", text="\n\n".join([_HEAD, *parts]), source="skill", key="skills")


def _words(data: Json) -> str:
    """The texts of a block, those in a result too."""
    inner: Any = data.get("content")
    parts = [str(data.get("text", "")), inner if isinstance(inner, str) else ""]
    if isinstance(inner, list | tuple):
        parts += [str(one.get("text", "")) for one in cast("Sequence[Json]", inner)]
    return "\n".join(parts)
