"""Reads the fields of a skill, of the open specification and of Claude Code: a value that is none is told
with file, line and field, and counts as left out. `docs/skills.md` has the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

from callboard.adapters.agent_fields import EFFORTS, Reading, flag_of, one_of, text_of
from callboard.core.permission.rules import parse_rule
from callboard.core.skills.substitution import argument_names
from callboard.words.skills import Effort

HONOURED = frozenset(
    {
        *("name", "description", "when_to_use", "argument-hint", "arguments", "disable-model-invocation"),
        *("user-invocable", "allowed-tools", "disallowed-tools", "model", "effort", "context", "agent", "background"),
        *("hooks", "paths", "shell", "metadata", "license", "compatibility"),
    }
)
"""Fields that mean something here; what is amiss with the value of one is told."""
_NEAR: Mapping[str, str] = MappingProxyType(
    {
        "allowed_tools": "allowed-tools",
        "tools": "allowed-tools",
        "argument_hint": "argument-hint",
        "args": "arguments",
        "user-invokable": "user-invocable",
        "user_invocable": "user-invocable",
        "when-to-use": "when_to_use",
        "globs": "paths",
    }
)
"""Names that people write, and those that are meant: neither is taken for the other."""


@dataclass(frozen=True, slots=True)
class SkillFields:
    """What the front matter says, checked."""

    hint: str
    arguments: tuple[str, ...]
    allowed: tuple[str, ...]
    disallowed: tuple[str, ...]
    model: str
    effort: Effort
    fork: bool
    agent: str
    for_model: bool
    for_person: bool
    paths: tuple[str, ...]
    powershell: bool


def fields_of(reading: Reading) -> SkillFields:
    """Every field that is honoured, with its default where it is left out or no value."""
    for field in reading.fields:
        if field not in HONOURED:
            meant = f": write {_NEAR[field]}" if field in _NEAR else ""
            reading.ignored(field, f"is no field of a skill{meant}")
    fork = text_of(reading, "context").lower()
    if fork not in ("", "fork"):
        reading.ignored("context", f"{fork} is none: write fork, or leave it out")
    _only_of_forks(reading, forks=fork == "fork")
    shell = text_of(reading, "shell").lower()
    if shell not in ("", "bash"):
        why = "there is no PowerShell here: its commands are not run" if shell == "powershell" else "write bash"
        reading.ignored("shell", why)
    model = text_of(reading, "model")
    return SkillFields(
        hint=_shown(reading.fields.get("argument-hint")),
        arguments=_names(reading),
        allowed=_rules(reading, "allowed-tools"),
        disallowed=_rules(reading, "disallowed-tools"),
        model="" if model in ("inherit", "default") else model,
        effort=one_of(reading, "effort", EFFORTS),
        fork=fork == "fork",
        agent=_agent(text_of(reading, "agent")),
        for_model=not flag_of(reading, "disable-model-invocation"),
        for_person=_for_person(reading),
        paths=_paths(reading),
        powershell=shell == "powershell",
    )


def _only_of_forks(reading: Reading, *, forks: bool) -> None:
    for field in ("agent", "background"):
        if field in reading.fields and not forks:
            reading.ignored(field, "counts only with context: fork")
    if forks and flag_of(reading, "background"):
        reading.ignored(
            "background", "whoever starts the skill waits for its answer; a teammate works in the background"
        )


def _for_person(reading: Reading) -> bool:
    """It is unless its author says no: a value that is none is no no."""
    if "user-invocable" not in reading.fields:
        return True
    told = len(reading.notes)
    return flag_of(reading, "user-invocable") or len(reading.notes) > told


def _paths(reading: Reading) -> tuple[str, ...]:
    value = reading.fields.get("paths")
    if value is not None and not isinstance(value, str | list | tuple):
        reading.ignored("paths", "write globs, such as src/**/*.ts")
        return ()
    return entries(cast("object", value), blanks=False)


def _agent(written: str) -> str:
    """Names of bundled types as Claude Code spells them are ours."""
    return {"": "general", "general-purpose": "general", "Explore": "explore", "Plan": "plan"}.get(written, written)


def _names(reading: Reading) -> tuple[str, ...]:
    value = reading.fields.get("arguments")
    if value is not None and not isinstance(value, str | list | tuple):
        reading.ignored("arguments", "write names, as a list or between blanks")
        return ()
    good, bad = argument_names(cast("object", value))
    for one in bad:
        reading.ignored("arguments", f"{one!r} is no name of an argument: write letters, digits, _ and -")
    return good


def _rules(reading: Reading, field: str) -> tuple[str, ...]:
    value = reading.fields.get(field)
    if value is not None and not isinstance(value, str | list | tuple):
        reading.ignored(field, "write rules, such as Bash(git diff *) Read")
        return ()
    good: list[str] = []
    for entry in entries(cast("object", value)):
        try:
            parse_rule(entry)
        except ValueError as wrong:
            reading.ignored(field, str(wrong))
        else:
            good.append(entry)
    return tuple(dict.fromkeys(good))


def entries(value: object, *, blanks: bool = True) -> tuple[str, ...]:
    """A list, or a text with entries between commas and (`blanks`) blanks; none of these separates in brackets."""
    if isinstance(value, list | tuple):
        return tuple(str(one).strip() for one in cast("Sequence[object]", value) if str(one).strip())
    parts, depth = [""], 0
    for character in value if isinstance(value, str) else "":
        depth += (character in "({") - (character in ")}")
        if depth <= 0 and (character == "," or (blanks and character.isspace())):
            parts.append("")
        else:
            parts[-1] += character
    return tuple(part.strip() for part in parts if part.strip())


def _shown(value: object) -> str:
    """A hint as its author wrote it: `[message]` is a list to YAML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(str(one) for one in cast('Sequence[object]', value))}]"
    return " ".join(str(value).split()) if isinstance(value, str | int) else ""
