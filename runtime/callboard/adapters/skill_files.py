"""Skills: folders with a `SKILL.md`, and files in `commands` folders, which are skills of one file.

Name and description stand in the catalogue, the body comes when it is asked for. A skill with broken front matter still
loads, and says what is broken. Scanned again when a file has changed. The fields are read in `skill_fields.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from callboard.adapters.agent_fields import Reading, kind_of
from callboard.adapters.files import (
    Loaded,
    Mark,
    Note,
    Places,
    Shelf,
    Source,
    agent_paths,
    body_after_front_matter,
    broken,
    read_text,
    skill_paths,
    sources,
    withheld,
)
from callboard.adapters.skill_fields import SkillFields, fields_of
from callboard.adapters.skill_uses import SkillUses
from callboard.adapters.yaml_files import YamlDocument, load_front_document
from callboard.core.skills.listing import LONGEST_DESCRIPTION, SHARE, budget_of, listed
from callboard.words.errors import SettingsError, ToolRefused
from callboard.words.skills import CommandKind, PersonCommand, SkillText

Shown = Literal["on", "name-only", "user-invocable-only", "off"]
"""How much of a skill is seen: all of it; in the catalogue its name alone; by the person alone; by nobody."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_RESERVED = "synced"
"""A folder of this name is kept free by Claude Code."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the settings say of skills."""

    overrides: Mapping[str, Shown] = field(default_factory=dict[str, Shown])
    longest: int = LONGEST_DESCRIPTION
    """Characters of a description in the catalogue."""
    share: float = SHARE
    """Of the context window, for the catalogue."""
    characters: int | None = None
    """The same as a number of characters, where somebody says one."""
    commands: bool = True
    """Commands in the texts of skills are run; those of bundled ones always."""


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill as it was scanned."""

    text: SkillText
    path: Path
    source: Source
    hooks: object = None
    """As written, for `adapters.hook_files.read_hooks`."""
    lines: Mapping[str, int] = field(default_factory=dict[str, int])
    """Field -> the line of its file."""

    def body(self) -> str:
        """What its author wrote behind the front matter. Raises `ToolRefused`."""
        try:
            return body_after_front_matter(read_text(self.source, self.path))
        except (OSError, KeyError) as error:
            raise ToolRefused(f"the skill {self.text.name} cannot be read: {error}") from error


class SkillLibrary:
    """The skills of one session: implements the port `Skills`."""

    def __init__(self, places: Places, wishes: Wishes | None = None, uses: SkillUses | None = None) -> None:
        self._places, self._wishes = places, wishes or Wishes()
        self._uses = uses or SkillUses()
        self._marks: tuple[Mark, ...] | None = None
        self._loaded: Loaded[Skill] = Loaded({})

    def become(self, places: Places) -> None:
        """Look in these places from here on: what a workspace brings may have been trusted anew."""
        self._places, self._marks = places, None

    @property
    def notes(self) -> tuple[Note, ...]:
        """What was not honoured."""
        return self._current().notes

    def catalogue(self, window: int = 0) -> Sequence[SkillText]:
        """The skills that a model may load, by name, without their bodies. `window`: of the model, in tokens: where the
        descriptions are too long for it the least used ones are empty; 0: all of them."""
        shown = {"name-only": "", "on": None}
        found: list[SkillText] = []
        for one in self._current().items.values():
            seen = self._seen(one.text.name)
            if one.text.for_model and seen in shown:
                found.append(one.text if seen == "on" else replace(one.text, description=""))
        if not window:
            return found
        budget = self._wishes.characters
        budget = budget_of(window, self._wishes.share) if budget is None else budget
        fitting = listed(found, self._uses.counts(), budget)
        return [replace(one, description=text) for one, (_, text) in zip(found, fitting, strict=True)]

    def load(self, name: str) -> SkillText:
        """The body, for a model. Raises `ToolRefused` naming those there are."""
        skill = self._found(name)
        if skill is None or self._seen(skill.text.name) == "off":
            known = ", ".join(text.name for text in self.catalogue())
            raise ToolRefused(f"no skill {name!r}; there {'are ' + known if known else 'is none'}")
        if not skill.text.for_model or self._seen(skill.text.name) == "user-invocable-only":
            raise ToolRefused(f"the skill {name} is for a person to start, not for a model")
        return self._taken(skill)

    def commands(self) -> Sequence[PersonCommand]:
        """What a person may start with a slash, by name."""
        there = (one.text for one in self._current().items.values())
        return [
            PersonCommand(one.name, one.hint, one.description, one.kind)
            for one in there
            if one.for_person and self._seen(one.name) != "off"
        ]

    def command(self, name: str) -> SkillText | None:
        """One that a person may start, with its body. Raises `ToolRefused` for one that cannot be read."""
        skill = self._found(name)
        if skill is None or not skill.text.for_person or self._seen(skill.text.name) == "off":
            return None
        return self._taken(skill)

    def _found(self, name: str) -> Skill | None:
        items = self._current().items
        return items.get(name) or items.get(name.removeprefix("/"))

    def _seen(self, name: str) -> Shown:
        return self._wishes.overrides.get(name, "on")

    def _taken(self, skill: Skill) -> SkillText:
        body = skill.body()
        self._uses.add(skill.text.name)
        self._uses.add(skill.text.name)
        off = "the setting skills.commands switches them off"
        why = skill.text.no_commands or (off if not self._wishes.commands and skill.source.scope != "bundled" else "")
        return replace(skill.text, body=body, no_commands=why)

    def _current(self) -> Loaded[Skill]:
        marks = tuple(mark for source in sources("skills", self._places) for mark in skill_paths(source).marks)
        marks += tuple(mark for source in sources("commands", self._places) for mark in agent_paths(source).marks)
        if marks != self._marks:
            self._loaded = load_skills(self._places, self._wishes.longest)
            self._marks = marks
        return self._loaded


def load_skills(places: Places, longest: int = LONGEST_DESCRIPTION) -> Loaded[Skill]:
    """Every skill that these places define, the winning one of each name. A skill beats a command of its name."""
    shelf = Shelf[Skill](notes=[*withheld("skills", places), *withheld("commands", places)])
    for source in sources("skills", places):
        found = skill_paths(source)
        shelf.notes.extend(found.notes)
        for path in found.paths:
            if path.parent.name == _RESERVED:
                shelf.notes.append(Note(str(path), "name", "refused", f"the folder name {_RESERVED} is reserved"))
                continue
            _add(shelf, _read(source, path, path.parent.name, longest, shelf.notes), path)
    for source in sources("commands", places):
        found = agent_paths(source)
        shelf.notes.extend(found.notes)
        for path in found.paths:
            _add(shelf, _command(shelf, source, path, longest), path)
    return shelf.loaded()


def _add(shelf: Shelf[Skill], skill: Skill | None, path: Path) -> None:
    if skill is not None:
        shelf.add(skill.text.name, skill, path)


def _command(shelf: Shelf[Skill], source: Source, path: Path, longest: int) -> Skill | None:
    """A command goes by its file's name; by `folder:name` where that is taken by another command of its own source."""
    skill = _read(source, path, path.stem, longest, shelf.notes, "command")
    if skill is None:
        return None
    folders = path.parent.relative_to(source.folder).parts
    taken = shelf.items.get(skill.text.name)
    if folders and taken is not None and taken.text.kind == "command" and taken.source == source:
        name = ":".join((*folders, skill.text.name))
        return replace(skill, text=replace(skill.text, name=name))
    return skill


def _read(
    source: Source, path: Path, otherwise: str, longest: int, notes: list[Note], kind: CommandKind = "skill"
) -> Skill | None:
    try:
        text = read_text(source, path)
    except (OSError, KeyError) as error:
        notes.append(Note(str(path), "", "refused", f"cannot be read: {error}"))
        return None
    problem, document = "", YamlDocument({}, str(path))
    try:
        document, _ = load_front_document(path if source.brought is None else text, str(path))
    except SettingsError as error:
        note = broken(path, error, "ignored")
        problem = f"its front matter is broken: {note.why}"
        notes.append(replace(note, why=problem))
    reading = Reading(str(path), source.scope, document, notes, source.plugin)
    name = _name(reading, otherwise, kind)
    if name is None:
        return None
    name = f"{source.plugin}:{name}" if source.plugin else name
    fields = fields_of(reading)
    told = _text(name, reading, fields, body_after_front_matter(text), longest)
    folder = str(path.parent)
    told = replace(told, folder=folder, problem=problem, kind=kind, variables=_variables(source, folder))
    lines = {name: reading.line(name) for name in reading.fields}
    return Skill(told, path, source, reading.fields.get("hooks"), lines)


def _text(name: str, reading: Reading, fields: SkillFields, body: str, longest: int) -> SkillText:
    return SkillText(
        name,
        _description(reading, body, fields.paths, longest),
        "",
        hint=fields.hint,
        arguments=fields.arguments,
        allowed=fields.allowed,
        disallowed=fields.disallowed,
        model=fields.model,
        effort=fields.effort,
        fork=fields.fork,
        agent=fields.agent,
        for_model=fields.for_model,
        for_person=fields.for_person,
        no_commands="it asks for PowerShell, which is not there" if fields.powershell else "",
    )


def _variables(source: Source, folder: str) -> Mapping[str, str]:
    found = {"CLAUDE_SKILL_DIR": folder}
    if source.plugin:
        found |= {"CLAUDE_PLUGIN_ROOT": str(source.root), "CLAUDE_PLUGIN_DATA": str(source.root / "data")}
    return found


def _name(reading: Reading, otherwise: str, kind: CommandKind) -> str | None:
    """As it is written, else the folder's or file's. A command always goes by its file."""
    written = reading.fields.get("name")
    given = "" if written is None or kind == "command" else str(written).strip()
    if _NAME.fullmatch(given):
        return given
    if given:
        what = f"{given[:80]!r}" if isinstance(written, str) else kind_of(written)
        reading.ignored("name", f"{what} is no name: the folder's name counts")
    if _NAME.fullmatch(otherwise):
        return otherwise
    reading.refused("name", "write letters, digits, dots and hyphens, at most 64")
    return None


def _description(reading: Reading, body: str, paths: Sequence[str], longest: int) -> str:
    """From the front matter, else the first line of the body; on one line, cut where the catalogue must stay small."""
    written = " ".join(_said(reading, key) for key in ("description", "when_to_use"))
    first = next((line.strip().lstrip("#") for line in body.splitlines() if line.strip()), "")
    text = " ".join(written.split()) or " ".join(first.split()) or "(no description)"
    if paths:
        text = f"{text} (for work on {', '.join(paths)})"
    if len(text) > longest:
        reading.ignored("description", f"only its first {longest:,} characters stand in the catalogue")
    return text[:longest]


def _said(reading: Reading, key: str) -> str:
    value = reading.fields.get(key)
    if value is not None and not isinstance(value, str | int):
        reading.ignored(key, "write a text")
        return ""
    return str(value if value is not None else "")
