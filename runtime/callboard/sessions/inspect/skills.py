"""Skills and commands of a workspace for a person.

A person lists them, reads one in full, creates one, and checks one by the open specification.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from callboard.adapters.extensions.skill_uses import SkillUses
from callboard.adapters.extensions.skills import Skill, load_skills
from callboard.adapters.extensions.yaml import load_front_document
from callboard.core.skills.catalog import Problem, problems
from callboard.core.skills.substitution import commands_in
from callboard.sessions.inspect.agents import FieldLine, file_places, readable_places
from callboard.sessions.inspect.scaffold import write_starter
from callboard.sessions.places import find_places
from callboard.types.choices import unknown
from callboard.types.errors import SettingsError, UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

_OURS = frozenset(
    {
        *("when_to_use", "argument-hint", "arguments", "disable-model-invocation", "user-invocable"),
        *("disallowed-tools", "model", "effort", "context", "agent", "background", "hooks", "paths", "shell"),
    }
)
"""Supported fields that are not part of the open specification."""


@dataclass(frozen=True, slots=True)
class SkillEntry:
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
    """Number of times that the skill was loaded in this workspace."""
    shadowed_by: str = ""
    """Path of the definition that applies instead; empty if this one does."""


@dataclass(frozen=True, slots=True)
class SkillListing:
    """All skills and commands. `notes`: the ignored parts of any file; a file that is not loaded appears only there."""

    lines: tuple[SkillEntry, ...]
    notes: tuple[str, ...]
    fault: SettingsError | None = None
    """Error of settings that cannot be read; the list then lacks the installed plugins."""


@dataclass(frozen=True, slots=True)
class SkillDetails:
    """One skill in full."""

    name: str
    path: str
    source: str
    fields: tuple[FieldLine, ...]
    commands: tuple[str, ...]
    """Commands that run before the skill is read."""
    files: tuple[str, ...]
    """Other files in the skill's folder, as paths relative to it."""
    notes: tuple[str, ...]
    body: str


@dataclass(frozen=True, slots=True)
class SkillCheck:
    """Check of one skill against the rules of the open specification."""

    path: str
    problems: tuple[str, ...]
    """A line with file, line and field for each fault that the specification's validator rejects."""
    advice: tuple[str, ...]


def list_skills(workspace: Path, plugins: Sequence[Path], *, trust: bool = False) -> SkillListing:
    """Return the skills and commands of a workspace, those in effect first. Raises `WorkspaceUnusable`."""
    places = find_places(workspace, writable=False)
    files, notes, fault = readable_places(places, plugins, trust=trust)
    loaded = load_skills(files)
    uses = SkillUses(places.state / "skill-uses.json").counts()
    lines = [_line(skill, uses.get(name, 0)) for name, skill in loaded.items.items()]
    lines += [_line(skill, 0, by) for skill, by in loaded.hidden]
    return SkillListing(tuple(lines), tuple(str(note) for note in (*notes, *loaded.notes)), fault)


def show_skill(workspace: Path, plugins: Sequence[Path], name: str, *, trust: bool = False) -> SkillDetails:
    """Return one skill. Raises `UsageError` with the existing names, `WorkspaceUnusable`."""
    files, notes = file_places(find_places(workspace, writable=False), plugins, trust=trust)
    loaded = load_skills(files)
    skill = loaded.items.get(name.removeprefix("/"))
    if skill is None:
        refused = "".join(f"\n{note}" for note in (*notes, *loaded.notes) if note.verdict == "refused")
        raise UsageError(unknown("skill", name, loaded.items) + refused)
    body = skill.body()
    return SkillDetails(
        name=skill.text.name,
        path=str(skill.path),
        source=_source(skill),
        fields=tuple(_fields(skill)),
        commands=tuple(shell_command.command for shell_command in commands_in(body)),
        files=tuple(_files(skill)),
        notes=tuple(str(note) for note in loaded.notes if note.path == str(skill.path)),
        body=body,
    )


def check_skill(folder: Path, *, own_format: bool = False) -> SkillCheck:
    """Check a skill's folder, or its `SKILL.md`.

    `own_format`: fields that only Callboard and Claude Code know are reported as advice. Raises `UsageError` for a
    folder without one.
    """
    path = folder if folder.name == "SKILL.md" else folder / "SKILL.md"
    if not path.is_file():
        if folder.is_file():
            raise UsageError(f"{folder} is not a SKILL.md: give the folder of a skill, or its SKILL.md")
        raise UsageError(f"{path} does not exist: a skill is a folder with a SKILL.md")
    try:
        document, body = load_front_document(path)
    except SettingsError as error:
        return SkillCheck(str(path), (str(error),), ())
    fields = cast("Json", document.data)
    if not fields:
        return SkillCheck(str(path), (f"{path}:1: there is no front matter: fields between two `---` lines",), ())
    bad: list[str] = []
    advice: list[str] = []
    for problem in problems(fields, path.resolve().parent.name, body):
        allowed = not problem.fatal or (own_format and problem.field in _OURS)
        line = document.lines.get((problem.field.partition(".")[0],), 1)
        (advice if allowed else bad).append(_problem_line(path, line, problem))
    return SkillCheck(str(path), tuple(bad), tuple(advice))


def _problem_line(path: Path, line: int, problem: Problem) -> str:
    return f"{path}:{line}: {problem.field}: {problem.text}" if problem.field else f"{path}: {problem.text}"


def _line(skill: Skill, uses: int, by: str = "") -> SkillEntry:
    text = skill.text
    starters = "anyone" if text.for_model and text.for_person else "model" if text.for_model else "person"
    starters = starters if text.for_model or text.for_person else "nobody"
    return SkillEntry(
        text.name, text.description, text.kind, _source(skill), str(skill.path), text.hint, starters, uses, by
    )


def _source(skill: Skill) -> str:
    return f"plugin {skill.source.plugin}" if skill.source.plugin else skill.source.scope


def _fields(skill: Skill) -> Iterator[FieldLine]:
    text = skill.text
    line_numbers = skill.lines
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
        where = f"{skill.path}:{line_numbers[name]}" if line_numbers.get(name) else str(skill.path)
        yield FieldLine(name, value or "-", where if name in line_numbers else "default")


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
    """Write a commented skill to the workspace or the person's own folder.

    Raises `UsageError` for a name that the open specification does not allow, and for an existing one.
    """
    wrong = next(
        (problem for problem in problems({"name": name, "description": "d"}, name, "b") if problem.fatal), None
    )
    if wrong is not None:
        raise UsageError(f"{name!r} is not a valid name of a skill: it {wrong.text.partition(' ')[2] or wrong.text}")
    places = find_places(workspace, writable=not person)
    path = (places.config if person else places.workspace / ".callboard") / "skills" / name / "SKILL.md"
    write_starter(path, STARTER.replace("NAME", name))
    return path


STARTER = """\
---
name: NAME
# What it does and when to use it. Every prompt contains only this text: models choose by it.
description: Does one kind of work step by step. Use when ...

# Every field below is optional (docs/skills.md describes each).
# argument-hint: <issue> [branch]
# arguments: [issue, branch]      # $issue and $branch in the text; $ARGUMENTS is the whole text
# allowed-tools: Bash(git diff *) Read   # these calls do not ask in the turn that starts it
# disallowed-tools: Edit Write
# disable-model-invocation: true  # only a person starts it
# context: fork                   # runs as a subagent, and returns its answer
# agent: explore
---

# NAME

List the steps in order, each with a way to check that it is done.

1. Look at ...
2. Do ...
3. Check ... and report what you saw.

Put long or rarely needed content into files next to this one: `references/`, `scripts/`.
"""
