"""The catalogue of skills, the texts of skills after a summary, and the rules for a skill's fields. Pure.

The catalogue lists every name. If the descriptions together are too long, those of the least used skills are dropped
first, and of these the longest (docs/skills.md, "The catalogue"). A summary can remove the text of a skill from a
conversation; then this module chooses the texts to restore. The rules are those of the open Agent Skills specification
(agentskills.io/specification, 2026-08-09).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from callboard.types.choices import choose
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
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


def list_skills(skills: Sequence[SkillText], uses: Mapping[str, int], budget: int) -> list[tuple[str, str]]:
    """Return name and description of each skill, in their order; the description is empty if it was dropped.

    `uses`: how often each was loaded; `budget`: characters.
    """
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
_HEAD = "The conversation was summarised. These skills were loaded in it and still apply:"


def lost_skills(texts: Mapping[str, str], messages: Iterable[ViewMessage]) -> list[str]:
    """Return the skills whose text is in none of these messages, newest first.

    `texts`: skill -> its text's blob, in the order of loading.
    """
    visible_text = "\n".join(_block_text(block.data) for message in messages for block in message.blocks)
    return [name for name in reversed(list(texts)) if f"Skill {name}, folder " not in visible_text]


def restored_texts(texts: Sequence[str], window: int) -> Injection | None:
    """Return the reminder that restores these texts, newest first, as many as fit; None if none fits.

    `window`: tokens of the model's window.
    """
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


FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
"""All fields of the specification; its validator refuses any other."""
LONGEST_NAME = 64
SPECIFIED_DESCRIPTION = 1_024
LONGEST_COMPATIBILITY = 500
BODY_LINES = 500
"""Recommended maximum lines of a body: longer content belongs in separate files."""
_NAME = late_pattern(r"[a-z0-9-]+")


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in a field; `field` is empty for the whole file. `fatal`: the validator refuses the file."""

    field: str
    text: str
    fatal: bool = True


def problems(fields: Mapping[str, object], folder: str, body: str = "") -> Iterator[Problem]:
    """Yield the problems of a front matter and body in a folder of this name."""
    yield from _name(fields.get("name"), folder)
    yield from _sized("description", fields.get("description"), SPECIFIED_DESCRIPTION, required=True)
    yield from _sized("compatibility", fields.get("compatibility"), LONGEST_COMPATIBILITY)
    yield from _sized("license", fields.get("license"), None)
    yield from _sized("allowed-tools", fields.get("allowed-tools"), None)
    yield from _metadata(fields.get("metadata"))
    for name in fields:
        if name not in FIELDS:
            yield Problem(name, f"is not a field of the specification: {choose(FIELDS)}")
    if not body.strip():
        yield Problem("", "has no instructions after its front matter", fatal=False)
    if body.count("\n") > BODY_LINES:
        yield Problem("", f"is longer than {BODY_LINES} lines: move what is not always needed into references/", False)


def _name(value: object, folder: str) -> Iterator[Problem]:
    if not isinstance(value, str) or not value.strip():
        yield Problem("name", "is missing")
        return
    if len(value) > LONGEST_NAME:
        yield Problem("name", f"has {len(value)} characters; {LONGEST_NAME} are the most")
    if not _NAME.fullmatch(value):
        yield Problem("name", f"{value!r} has other characters than a-z, 0-9 and hyphens")
    if value.startswith("-") or value.endswith("-") or "--" in value:
        yield Problem("name", f"{value!r} begins or ends with a hyphen, or has two in a row")
    if value != folder:
        yield Problem("name", f"{value!r} is not the name of its folder, {folder!r}")


def _sized(name: str, value: object, most: int | None, *, required: bool = False) -> Iterator[Problem]:
    if value is None and not required:
        return
    if not isinstance(value, str) or not value.strip():
        yield Problem(name, "is missing" if value is None else "is a text that is not empty")
    elif most is not None and len(value) > most:
        yield Problem(name, f"has {len(value):,} characters; {most:,} are the most")


def _metadata(value: object) -> Iterator[Problem]:
    if value is None:
        return
    if not isinstance(value, Mapping):
        yield Problem("metadata", "is a mapping of texts")
        return
    for key, item in cast("Mapping[object, object]", value).items():
        if not isinstance(item, str):
            yield Problem(f"metadata.{key}", "is a text: put it in quotes")
