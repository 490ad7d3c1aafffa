"""The catalogue of skills within its budget. Pure.

Every name is listed. If the descriptions together are too long, those of the least used skills are dropped first, and
of these the longest (docs/skills.md, "The catalogue").

Also texts of skills that a summary removed from a conversation, and the texts to restore. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from callboard.types.messages import Injection, ViewMessage
from callboard.types.records import Json
from callboard.types.skills import SkillText

LONGEST_DESCRIPTION = 1_536
"""Maximum characters of a description in the catalogue."""
SHARE = 0.01
"""Share of the context window for the catalogue."""
CHARACTERS = 4
"""Characters per token, for this budget."""


def budget_of(window: int, share: float = SHARE) -> int:
    """Return the maximum characters of the catalogue, for a window of this many tokens."""
    return round(window * share * CHARACTERS)


def listed(skills: Sequence[SkillText], uses: Mapping[str, int], budget: int) -> list[tuple[str, str]]:
    """Return name and description of each skill, in their order; the description is empty if it was dropped. `uses`:
    how often each was loaded; `budget`: characters."""
    whole = sum(_cost(skill) for skill in skills)
    dropped = set[str]()
    for skill in sorted(skills, key=lambda skill: (uses.get(skill.name, 0), -len(skill.description), skill.name)):
        if whole <= budget:
            break
        if skill.description:
            whole -= len(skill.description) + 2
            dropped.add(skill.name)
    return [(skill.name, "" if skill.name in dropped else skill.description) for skill in skills]


def _cost(skill: SkillText) -> int:
    """Return the characters of its line: `- name: description` and the line end."""
    return len(skill.name) + 3 + (len(skill.description) + 2 if skill.description else 0)


LONGEST = 20_000
MOST = 100_000
"""Maximum characters of one text, and of all: 5,000 and 25,000 tokens of four characters (Claude Code's own limits)."""
CARRIED_SHARE = 0.5
"""Characters of all texts per token of the window: an eighth of the window."""
_CUT = "[The rest is cut: load the skill again for all of it.]"
_HEAD = "The conversation was summarised. These skills were loaded in it and hold on:"


def lost(texts: Mapping[str, str], messages: Iterable[ViewMessage]) -> list[str]:
    """Return the skills whose text is in none of these messages, newest first. `texts`: skill -> its text's blob, in
    the order of loading."""
    visible_text = "\n".join(_block_text(block.data) for message in messages for block in message.blocks)
    return [name for name in reversed(list(texts)) if f"Skill {name}, folder " not in visible_text]


def carried(texts: Sequence[str], window: int) -> Injection | None:
    """Return the reminder that restores these texts, newest first, as many as fit; None if none fits. `window`: tokens
    of the model's window."""
    remaining = min(MOST, round(window * CARRIED_SHARE))
    parts: list[str] = []
    for text in texts:
        most = min(LONGEST, remaining)
        if most < len(_CUT):
            break
        part = text if len(text) <= most else f"{text[: most - len(_CUT)]}\n{_CUT}"
        parts.append(part)
        remaining -= len(part)
    if not parts:
        return None
    return Injection(kind="system-reminder", text="\n\n".join([_HEAD, *parts]), source="skill", key="skills")


def _block_text(data: Json) -> str:
    """Return the texts of a block, including those in a result."""
    inner: Any = data.get("content")
    parts = [str(data.get("text", "")), inner if isinstance(inner, str) else ""]
    if isinstance(inner, list | tuple):
        parts += [str(part.get("text", "")) for part in cast("Sequence[Json]", inner)]
    return "\n".join(parts)
