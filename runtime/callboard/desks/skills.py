"""The skills and commands of a workspace for a person: which there are, one in full, a new one, and the open rules."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from callboard.adapters.skill_files import Skill, load_skills
from callboard.adapters.skill_uses import SkillUses
from callboard.adapters.yaml_files import load_front_document
from callboard.assembly import find_places
from callboard.core.skills.commands import commands_in
from callboard.core.skills.open_rules import Problem, problems
from callboard.desks.agent_types import FieldLine, file_places
from callboard.desks.starters import write_starter
from callboard.words.errors import SettingsError, UsageError
from callboard.words.values import Json

_OURS = frozenset(
    {
        *("when_to_use", "argument-hint", "arguments", "disable-model-invocation", "user-invocable"),
        *("disallowed-tools", "model", "effort", "context", "agent", "background", "hooks", "paths", "shell"),
    }
)
"""Fields that are honoured here and that the open specification does not know."""


@dataclass(frozen=True, slots=True)
class SkillLine:
    """One definition in a listing."""

    name: str
    description: str
    kind: str
    """`skill`, or `command`: a file of a commands folder."""
    source: str
    """`bundled`, `person`, `workspace` or `plugin NAME`."""
    path: str
    hint: str
    started_by: str
    """`anyone`, `person` or `model`."""
    uses: int
    """How often it was loaded in this workspace."""
    shadowed_by: str = ""
    """The path of the definition that counts instead; empty: this one does."""


@dataclass(frozen=True, slots=True)
class SkillListing:
    """All of them. `notes`: what of any file is not honoured; a file that is not loaded stands only there."""

    lines: tuple[SkillLine, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SkillShown:
    """One skill in full."""

    name: str
    path: str
    source: str
    fields: tuple[FieldLine, ...]
    commands: tuple[str, ...]
    """What runs before it is read."""
    files: tuple[str, ...]
    """What else is in its folder, by paths relative to it."""
    notes: tuple[str, ...]
    body: str


@dataclass(frozen=True, slots=True)
class Checked:
    """What the rules of the open specification say of one skill."""

    path: str
    problems: tuple[str, ...]
    """What its validator refuses, a line each, with file, line and field."""
    advice: tuple[str, ...]


def list_skills(workspace: Path, plugins: Sequence[Path], *, trust: bool = False) -> SkillListing:
    """The skills and commands of a workspace, those first that count. Raises `WorkspaceUnusable`."""
    places = find_places(workspace, writable=False)
    files, told = file_places(places, plugins, trust=trust)
    loaded = load_skills(files)
    uses = SkillUses(places.state / "skill-uses.json").counts()
    lines = [_line(one, uses.get(name, 0)) for name, one in loaded.items.items()]
    lines += [_line(one, 0, by) for one, by in loaded.hidden]
    return SkillListing(tuple(lines), tuple(str(note) for note in (*told, *loaded.notes)))


def show_skill(workspace: Path, plugins: Sequence[Path], name: str, *, trust: bool = False) -> SkillShown:
    """One of them. Raises `UsageError` with the names there are, `WorkspaceUnusable`."""
    files, told = file_places(find_places(workspace, writable=False), plugins, trust=trust)
    loaded = load_skills(files)
    skill = loaded.items.get(name.removeprefix("/"))
    if skill is None:
        refused = "".join(f"\n{note}" for note in (*told, *loaded.notes) if note.verdict == "refused")
        raise UsageError(f"there is no skill {name!r}; there are: {', '.join(loaded.items)}{refused}")
    body = skill.body()
    return SkillShown(
        name=skill.text.name,
        path=str(skill.path),
        source=_source(skill),
        fields=tuple(_fields(skill)),
        commands=tuple(one.command for one in commands_in(body)),
        files=tuple(_files(skill)),
        notes=tuple(str(note) for note in loaded.notes if note.path == str(skill.path)),
        body=body,
    )


def check_skill(folder: Path, *, ours: bool = False) -> Checked:
    """Judge a skill's folder, or its `SKILL.md`. `ours`: fields that only Callboard and Claude Code know are advice.
    Raises `UsageError` for a folder without one."""
    path = folder if folder.name == "SKILL.md" else folder / "SKILL.md"
    if not path.is_file():
        raise UsageError(f"{path} is not there: a skill is a folder with a SKILL.md")
    try:
        document, body = load_front_document(path)
    except SettingsError as error:
        return Checked(str(path), (str(error),), ())
    fields = cast("Json", document.data)
    if not fields:
        return Checked(str(path), (f"{path}:1: there is no front matter: fields between two `---` lines",), ())
    bad: list[str] = []
    advice: list[str] = []
    for one in problems(fields, path.resolve().parent.name, body):
        allowed = not one.fatal or (ours and one.field in _OURS)
        line = document.lines.get((one.field.partition(".")[0],), 1)
        (advice if allowed else bad).append(_told(path, line, one))
    return Checked(str(path), tuple(bad), tuple(advice))


def _told(path: Path, line: int, one: Problem) -> str:
    return f"{path}:{line}: {one.field}: {one.text}" if one.field else f"{path}: {one.text}"


def _line(skill: Skill, uses: int, by: str = "") -> SkillLine:
    text = skill.text
    who = "anyone" if text.for_model and text.for_person else "model" if text.for_model else "person"
    who = who if text.for_model or text.for_person else "nobody"
    return SkillLine(text.name, text.description, text.kind, _source(skill), str(skill.path), text.hint, who, uses, by)


def _source(skill: Skill) -> str:
    return f"plugin {skill.source.plugin}" if skill.source.plugin else skill.source.scope


def _fields(skill: Skill) -> Iterator[FieldLine]:
    text, said = skill.text, skill.lines
    values = {
        "description": text.description,
        "argument-hint": text.hint,
        "arguments": ", ".join(text.arguments),
        "disable-model-invocation": "" if text.for_model else "true",
        "user-invocable": "" if text.for_person else "false",
        "allowed-tools": ", ".join(text.allowed),
        "disallowed-tools": ", ".join(text.disallowed),
        "model": text.model,
        "effort": text.effort,
        "context": "fork" if text.fork else "",
        "agent": text.agent if text.fork else "",
        "hooks": "yes" if skill.hooks is not None else "",
    }
    for name, value in values.items():
        where = f"{skill.path}:{said[name]}" if said.get(name) else str(skill.path)
        yield FieldLine(name, value or "-", where if name in said else "default")


def _files(skill: Skill) -> Iterator[str]:
    folder = skill.path.parent
    if skill.text.kind != "skill":
        return
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            if path != skill.path:
                yield str(path.relative_to(folder))


def new_skill(workspace: Path, name: str, *, person: bool) -> Path:
    """Write a commented skill, to the workspace or the person's own folder. Raises `UsageError` for what is no name by
    the open specification, and for one that is there."""
    wrong = next((one for one in problems({"name": name, "description": "d"}, name, "b") if one.fatal), None)
    if wrong is not None:
        raise UsageError(f"{name!r} is no name of a skill: it {wrong.text.partition(' ')[2] or wrong.text}")
    places = find_places(workspace, writable=not person)
    path = (places.config if person else places.workspace / ".callboard") / "skills" / name / "SKILL.md"
    write_starter(path, STARTER.replace("NAME", name))
    return path


STARTER = """\
---
name: NAME
# What it does and when to use it. This alone stands in every prompt: models choose by it.
description: Does one kind of work step by step. Use when ...

# Every field below may be left out (docs/skills.md tells each).
# argument-hint: <issue> [branch]
# arguments: [issue, branch]      # $issue and $branch in the text; $ARGUMENTS is all of it
# allowed-tools: Bash(git diff *) Read   # not asked for in the turn that starts it
# disallowed-tools: Edit Write
# disable-model-invocation: true  # only a person starts it
# context: fork                   # runs as a subagent, and its answer comes back
# agent: explore
---

# NAME

Say the steps in order, each with how to see that it is done.

1. Look at ...
2. Do ...
3. Check ... and report what you saw.

What is long, or seldom needed, goes into files beside this one: `references/`, `scripts/`.
"""
