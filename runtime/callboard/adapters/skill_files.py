"""Skills: folders with a `SKILL.md`. Name and description stand in the catalogue, the body comes when it is asked for.

A skill with broken front matter still loads, and says what is broken. Scanned again when a file has changed. What a
skill's front matter would grant (tools, commands run on load) is not granted, and told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from callboard.adapters.files import (
    Loaded,
    Mark,
    Note,
    Places,
    Shelf,
    Source,
    body_after_front_matter,
    read_text,
    skill_paths,
    sources,
    withheld,
)
from callboard.adapters.yaml_files import load_front_matter
from callboard.ports.tool import SkillText
from callboard.words.errors import SettingsError, ToolRefused

LONGEST_DESCRIPTION = 1_536
"""Characters of a description in the catalogue."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LATER = "is not honoured in this version"
_NOT_HONOURED: Mapping[str, str] = MappingProxyType(
    {
        "allowed-tools": "grants nothing: permissions are asked as usual",
        "disallowed-tools": _LATER,
        "model": _LATER,
        "effort": _LATER,
        "context": _LATER,
        "agent": _LATER,
        "background": _LATER,
        "paths": _LATER,
        "shell": _LATER,
        "arguments": _LATER,
        "argument-hint": _LATER,
        "user-invocable": _LATER,
    }
)
_HONOURED = frozenset(
    {"name", "description", "when_to_use", "disable-model-invocation", "license", "compatibility", "metadata", "hooks"}
)
_YES = frozenset({"true", "yes", "on", "1"})


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill as it was scanned."""

    text: SkillText
    path: Path
    source: Source
    person_only: bool = False
    """Its author wants only a person to start it: it stands in no catalogue."""
    hooks: object = None
    """As written, for `adapters.hook_files.read_hooks`."""


class SkillLibrary:
    """The skills of one session: implements the port `Skills`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._sources = sources("skills", places)
        self._marks: tuple[Mark, ...] | None = None
        self._loaded: Loaded[Skill] = Loaded({})

    @property
    def notes(self) -> tuple[Note, ...]:
        """What was not honoured."""
        return self._current().notes

    def catalogue(self) -> Sequence[SkillText]:
        """The skills that a model may load, by name, without their bodies."""
        return [skill.text for skill in self._current().items.values() if not skill.person_only]

    def load(self, name: str) -> SkillText:
        """The body. Raises `ToolRefused` naming those there are."""
        skill = self._current().items.get(name)
        if skill is None:
            known = ", ".join(text.name for text in self.catalogue())
            raise ToolRefused(f"no skill {name!r}; there {'are ' + known if known else 'is none'}")
        if skill.person_only:
            raise ToolRefused(f"the skill {name} is for a person to start, not for a model")
        try:
            return replace(skill.text, body=_body(skill.source, skill.path))
        except OSError as error:
            raise ToolRefused(f"the skill {name} cannot be read: {error}") from error

    def _current(self) -> Loaded[Skill]:
        marks = tuple(mark for source in self._sources for mark in skill_paths(source).marks)
        if marks != self._marks:
            self._loaded = load_skills(self._places)
            self._marks = marks
        return self._loaded


def load_skills(places: Places) -> Loaded[Skill]:
    """Every skill that these places define, the winning one of each name."""
    shelf = Shelf[Skill](notes=withheld("skills", places))
    for source in sources("skills", places):
        _scan(source, shelf)
    return shelf.loaded()


def _scan(source: Source, shelf: Shelf[Skill]) -> None:
    found = skill_paths(source)
    shelf.notes.extend(found.notes)
    for path in found.paths:
        skill = _read(source, path, shelf.notes)
        if skill is not None:
            shelf.add(skill.text.name, skill, path)


def _read(source: Source, path: Path, notes: list[Note]) -> Skill | None:
    problem, fields = "", dict[str, object]()
    try:
        text = read_text(source, path)
        body = body_after_front_matter(text)
    except OSError as error:
        notes.append(Note(str(path), "", "refused", f"cannot be read: {error}"))
        return None
    try:
        fields, _ = load_front_matter(path if source.brought is None else text, str(path))
    except SettingsError as error:
        problem = f"its front matter is broken: {error}"
        notes.append(Note(str(path), "", "ignored", problem))
    for field in fields:
        if field not in _HONOURED:
            notes.append(Note(str(path), field, "ignored", _NOT_HONOURED.get(field, "is no field of a skill")))
    name = _name(path, fields, notes)
    if name is None:
        return None
    told = SkillText(name, _description(path, fields, body, notes), str(path.parent), None, problem)
    person_only = str(fields.get("disable-model-invocation", "")).lower() in _YES
    return Skill(told, path, source, person_only, fields.get("hooks"))


def _name(path: Path, fields: Mapping[str, object], notes: list[Note]) -> str | None:
    written, folder = str(fields.get("name") or "").strip(), path.parent.name
    if _NAME.fullmatch(written):
        return written
    if written:
        notes.append(Note(str(path), "name", "ignored", f"{written!r} is no name: the folder's name counts"))
    if _NAME.fullmatch(folder):
        return folder
    notes.append(Note(str(path), "name", "refused", "write letters, digits, dots and hyphens, at most 64"))
    return None


def _description(path: Path, fields: Mapping[str, object], body: str, notes: list[Note]) -> str:
    """From the front matter, else the first line of the body; on one line, cut where the catalogue must stay small."""
    written = " ".join(str(fields.get(key) or "") for key in ("description", "when_to_use"))
    first = next((line.strip().lstrip("#") for line in body.splitlines() if line.strip()), "")
    text = " ".join(written.split()) or " ".join(first.split()) or "(no description)"
    if len(text) > LONGEST_DESCRIPTION:
        why = f"only its first {LONGEST_DESCRIPTION:,} characters stand in the catalogue"
        notes.append(Note(str(path), "description", "ignored", why))
    return text[:LONGEST_DESCRIPTION]


def _body(source: Source, path: Path) -> str:
    return body_after_front_matter(read_text(source, path))
