"""The catalogue of skills within its budget. Pure.

Every name stands in it. Where the descriptions together are too long, those of the skills that were used least go
first, of these the longest (docs/skills.md, "The catalogue").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from callboard.words.skills import SkillText

LONGEST_DESCRIPTION = 1_536
"""Characters of a description in the catalogue."""
SHARE = 0.01
"""Of the context window that the catalogue may fill."""
CHARACTERS = 4
"""Of a token, for this budget."""


def budget_of(window: int, share: float = SHARE) -> int:
    """Characters that the catalogue may have, for a window of so many tokens."""
    return round(window * share * CHARACTERS)


def listed(skills: Sequence[SkillText], uses: Mapping[str, int], budget: int) -> list[tuple[str, str]]:
    """Name and description of each skill, in their order; the description is empty where it had to go. `uses`: how
    often each was loaded; `budget`: characters."""
    whole = sum(_cost(one) for one in skills)
    dropped = set[str]()
    for one in sorted(skills, key=lambda one: (uses.get(one.name, 0), -len(one.description), one.name)):
        if whole <= budget:
            break
        if one.description:
            whole -= len(one.description) + 2
            dropped.add(one.name)
    return [(one.name, "" if one.name in dropped else one.description) for one in skills]


def _cost(skill: SkillText) -> int:
    """Of its line: `- name: description` and the end of the line."""
    return len(skill.name) + 3 + (len(skill.description) + 2 if skill.description else 0)
