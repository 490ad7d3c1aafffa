"""Skills: folders with a `SKILL.md`, and files in `commands` folders, which are skills of one file.

The catalogue lists name and description; the body is loaded on request. The folders are read again when a file has
changed, except for bundled skills. A skill with broken front matter still loads, and reports the broken part. The
fields are those of the open specification and of Claude Code: an invalid value is reported with file, line and field,
and counts as omitted (`docs/skills.md` has the table).

The number of loads of each skill in a workspace is counted, so that a catalogue that is too long drops the descriptions
of the least used skills. A lost count only changes that order: the file is written without a lock, and an unreadable
file counts as empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal, cast

from callboard.adapters.extensions.agent_fields import EFFORTS, AgentFields, flag_of, kind_of, one_of, text_of
from callboard.adapters.extensions.discovery import (
    UNTRUSTED,
    DefinitionCollector,
    DiscoveryNote,
    ExtensionPaths,
    LoadedItems,
    Mark,
    Source,
    agent_paths,
    body_after_front_matter,
    broken,
    decode_text,
    invalid_line,
    read_text,
    skill_paths,
    sources,
    withheld,
)
from callboard.adapters.extensions.skill_uses import SkillUses
from callboard.adapters.extensions.yaml import YamlDocument, load_front_document
from callboard.core.permissions.rules import parse_rule
from callboard.core.skills.catalog import LONGEST_DESCRIPTION, SHARE, budget_of, list_skills
from callboard.core.skills.substitution import argument_names
from callboard.types.errors import SettingsError, ToolRefused
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.skills import CommandKind, Effort, PersonCommand, SkillText

Shown = Literal["on", "name-only", "user-invocable-only", "off"]
"""Visibility of a skill: complete; only its name in the catalogue; only for the user; hidden."""

_NAME = late_pattern(r"\w[\w.-]{0,63}")
_NO_POWERSHELL = "it asks for PowerShell, which is not there"
_INVALID = "is not UTF-8 text: its invalid bytes are read as \ufffd; save it as UTF-8"
_RESERVED = "synced"
"""Folder name that Claude Code reserves."""


@dataclass(frozen=True, slots=True)
class SkillChoices:
    """Settings for skills."""

    overrides: Mapping[str, Shown] = field(default_factory=dict[str, Shown])
    longest: int = LONGEST_DESCRIPTION
    """Most characters of a description in the catalogue."""
    share: float = SHARE
    """Share of the context window for the catalogue."""
    characters: int | None = None
    """Most characters of the catalogue; None: `share` decides."""
    commands: bool = True
    """True: run commands in the texts of skills. Those of bundled skills always run."""
    only: tuple[str, ...] | None = None
    """The only skills that a model may load, each by its full name or the part after the last colons; None: all."""
    off: bool = False
    """True: there are none."""


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill as it was scanned."""

    text: SkillText
    path: Path
    source: Source
    hooks: object = None
    """Hooks, unchanged, for `adapters.extensions.hooks.read_hooks`."""
    lines: Mapping[str, int] = field(default_factory=dict[str, int])
    """Field -> its line in the file."""

    def body(self) -> str:
        """Return the text after the front matter. Raises `ToolRefused`."""
        try:
            return body_after_front_matter(read_text(self.source, self.path))
        except (OSError, KeyError) as error:
            raise ToolRefused(f"the skill {self.text.name} cannot be read: {error}") from error


class SkillLibrary:
    """Skills of one session. Implements the port `Skills`."""

    def __init__(
        self, places: ExtensionPaths, choices: SkillChoices | None = None, uses: SkillUses | None = None
    ) -> None:
        self._places = places
        self._choices = choices or SkillChoices()
        self._uses = uses or SkillUses()
        self._marks: tuple[Mark, ...] | None = None
        self._changing: tuple[Sequence[Source], Sequence[Source]] | None = None
        """Folders of skills and of commands whose files may change. Found once, because each prompt of a fan-out looks
        at their files; a repository that is made around the workspace meanwhile adds none."""
        self._loaded: LoadedItems[Skill] = LoadedItems({})
        self._aliases: dict[str, str] = {}
        self._catalogues: dict[int, tuple[LoadedItems[Skill], Mapping[str, int], Sequence[SkillText]]] = {}
        """Newest catalogue for each window, after what it was made from."""

    def folders(self) -> tuple[Path, ...]:
        """Return the folders of skills and plugins outside the workspace, whose content agents may read and run.

        Each is listed as written, and with every link resolved.
        """
        origins = [*sources("skills", self._places), *sources("commands", self._places)]
        folders = dict.fromkeys(Path(source.root if source.plugin else source.folder) for source in origins)
        folders.update(dict.fromkeys(skill.path.parent for skill in self._current().items.values()))
        for plugin in self._places.plugins:
            folders[plugin.root] = None
        both = dict.fromkeys(path for folder in folders if folder.is_dir() for path in (folder, folder.resolve()))
        return tuple(path for path in both if not self._is_too_wide(path))

    def _is_too_wide(self, folder: Path) -> bool:
        """Return True if a folder is or contains a home or the workspace, or is inside the workspace.

        Inside the workspace agents may read anyway.
        """
        real = folder.resolve()
        home = Path.home().resolve()
        if self._places.workspace is None:
            return home.is_relative_to(real)
        workspace = self._places.workspace.resolve()
        return home.is_relative_to(real) or workspace.is_relative_to(real) or real.is_relative_to(workspace)

    def use_places(self, places: ExtensionPaths) -> None:
        """Use these places from now on, for example after the user trusted the workspace."""
        self._places = places
        self._marks = None
        self._changing = None

    @property
    def notes(self) -> tuple[DiscoveryNote, ...]:
        """Return notes on parts without effect."""
        return self._current().notes

    def catalogue(self, window: int = 0) -> Sequence[SkillText]:
        """Return the skills that a model may load, by name, without their bodies.

        `window`: the model's window in tokens. If the descriptions are too long for it, those of the least used skills
        are empty; 0: all descriptions.
        """
        loaded = self._current()
        counts = self._uses.counts()
        newest = self._catalogues.get(window)
        if newest is None or newest[0] is not loaded or newest[1] is not counts:
            newest = self._catalogues[window] = (loaded, counts, self._skill_texts(loaded, counts, window))
        return newest[2]

    def _skill_texts(self, loaded: LoadedItems[Skill], counts: Mapping[str, int], window: int) -> Sequence[SkillText]:
        visible = {"name-only": "", "on": None}
        texts: list[SkillText] = []
        for skill in loaded.items.values():
            seen = self._seen(skill.text)
            if skill.text.for_model and seen in visible:
                texts.append(skill.text if seen == "on" else replace(skill.text, description=""))
        if not window:
            return texts
        budget = self._choices.characters
        budget = budget_of(window, self._choices.share) if budget is None else budget
        fitting = list_skills(texts, counts, budget)
        return [
            skill_text if skill_text.description == text else replace(skill_text, description=text)
            for skill_text, (_, text) in zip(texts, fitting, strict=True)
        ]

    def load(self, name: str) -> SkillText:
        """Return the body for a model. Raises `ToolRefused` with the existing skills."""
        skill = self._find(name)
        if skill is None or self._seen(skill.text) == "off":
            names = ", ".join(text.name for text in self.catalogue())
            raise ToolRefused(f"no skill {name!r}; there {'are ' + names if names else 'is none'}")
        if not skill.text.for_model or self._seen(skill.text) == "user-invocable-only":
            raise ToolRefused(f"the skill {name} is for a person to start, not for a model")
        return self._with_body(skill)

    def names_of(self, name: str) -> tuple[str, ...]:
        """Return all names of the skill with this name, its own first; empty for an unknown name."""
        skill = self._find(name)
        if skill is None:
            return ()
        return skill.text.name, *(alias for alias, of in self._aliases.items() if of == skill.text.name)

    def commands(self) -> Sequence[PersonCommand]:
        """Return the skills that the user may start with a slash, as commands."""
        short: dict[str, list[str]] = {}
        for alias, name in self._aliases.items():
            short.setdefault(name, []).append(alias)
        return [
            PersonCommand(text.name, text.hint, text.description, text.kind, tuple(short.get(text.name, ())))
            for text in (skill.text for skill in self._current().items.values())
            if text.for_person and self._seen(text) != "off"
        ]

    def command(self, name: str) -> SkillText | None:
        """Return a skill that the user may start, with its body. Raises `ToolRefused` if it cannot be read."""
        skill = self._find(name)
        if skill is None or not skill.text.for_person or self._seen(skill.text) == "off":
            return None
        return self._with_body(skill)

    def awaits_trust(self, name: str) -> bool:
        """Return True if the workspace has a command of this name that is not used because it is not trusted."""
        if self._choices.off or self._places.trusted or self._places.workspace is None:
            return False
        skill = load_skills(replace(self._places, texts=True, bundled=False)).items.get(name)
        return skill is not None and skill.source.scope == "workspace" and skill.text.for_person

    def _find(self, name: str) -> Skill | None:
        items = self._current().items
        bare = name.removeprefix("/")
        return items.get(name) or items.get(bare) or items.get(self._aliases.get(bare, ""))

    def _seen(self, text: SkillText) -> Shown:
        names = [name for name in (text.name, text.second) if name]
        shown = self._choices.overrides.get(text.name) or self._choices.overrides.get(text.second, "on")
        only = self._choices.only
        if shown != "off" and only is not None and not _is_named(names, only):
            return "user-invocable-only"
        return shown

    def _with_body(self, skill: Skill) -> SkillText:
        body = skill.body()
        self._uses.add(skill.text.name)
        off = "the setting skills.commands switches them off"
        reason = skill.text.no_commands or (
            off if not self._choices.commands and skill.source.scope != "bundled" else ""
        )
        return replace(skill.text, body=body, no_commands=reason)

    def _current(self) -> LoadedItems[Skill]:
        if self._choices.off:
            return self._loaded
        if self._changing is None:
            self._changing = (
                [source for source in sources("skills", self._places) if source.may_change],
                [source for source in sources("commands", self._places) if source.may_change],
            )
        skills, commands = self._changing
        marks = tuple(mark for source in skills for mark in skill_paths(source).marks)
        marks += tuple(mark for source in commands for mark in agent_paths(source).marks)
        if marks != self._marks:
            self._loaded = load_skills(self._places, self._choices.longest)
            self._aliases = aliases_of(self._loaded.items)
            self._marks = marks
        return self._loaded


def _is_named(names: Sequence[str], only: Iterable[str]) -> bool:
    return any(f":{name}".endswith(f":{named}") for name in names for named in only)


def load_skills(places: ExtensionPaths, longest: int = LONGEST_DESCRIPTION) -> LoadedItems[Skill]:
    """Return every skill that these places define, for each name the one that takes precedence.

    A skill takes precedence over a command of its name.
    """
    shelf = DefinitionCollector[Skill](notes=[*withheld("skills", places), *withheld("commands", places)])
    for source in sources("skills", places):
        listing = skill_paths(source)
        shelf.notes.extend(listing.notes)
        for path in sorted(listing.paths, key=lambda path: path.parent.is_symlink()):  # a link counts after its target
            if path.parent.name == _RESERVED:
                shelf.notes.append(
                    DiscoveryNote(str(path), "name", "refused", f"the folder name {_RESERVED} is reserved")
                )
                continue
            _add(shelf, _read(source, path, otherwise=path.parent.name, longest=longest, notes=shelf.notes), path)
    for source in sources("commands", places):
        listing = agent_paths(source)
        shelf.notes.extend(listing.notes)
        for path in listing.paths:
            _add(shelf, _command(shelf, source, path, longest), path)
    return shelf.loaded_items()


def _add(shelf: DefinitionCollector[Skill], skill: Skill | None, path: Path) -> None:
    if skill is not None:
        shelf.add(skill.text.name, skill, path, once=skill.text.kind == "skill" and not skill.source.plugin)


def _command(shelf: DefinitionCollector[Skill], source: Source, path: Path, longest: int) -> Skill | None:
    """Read a command, which is named `folder:name`; a plugin's is named `plugin:folder:name`."""
    skill = _read(source, path, otherwise=source.name or path.stem, longest=longest, notes=shelf.notes, kind="command")
    folders = path.parent.relative_to(source.folder).parts
    if skill is None or not folders:
        return skill
    plugin = (source.plugin,) if source.plugin else ()
    name = ":".join((*plugin, *folders, path.stem))
    return replace(skill, text=replace(skill.text, name=name))


def aliases_of(skills: Mapping[str, Skill]) -> dict[str, str]:
    """Return the shorter names that belong to exactly one skill -> its full name.

    They are the name without plugin or folders, and the second name of a skill: front matter and folder may differ.
    """
    candidates: dict[str, set[str]] = {}
    for name, skill in skills.items():
        parts = name.split(":")
        short = {":".join(parts[at:]) for at in range(1, len(parts))}
        if skill.source.plugin and len(parts) > 2:
            short.add(f"{parts[0]}:{parts[-1]}")
        if skill.text.kind == "skill":
            second = skill.text.second
            short |= {second, f"{skill.source.plugin}:{second}"} if skill.source.plugin else {second}
        for alias in short - {"", *skills}:
            candidates.setdefault(alias, set()).add(name)
    return {alias: next(iter(names)) for alias, names in candidates.items() if len(names) == 1}


def _read(
    source: Source, path: Path, *, otherwise: str, longest: int, notes: list[DiscoveryNote], kind: CommandKind = "skill"
) -> Skill | None:
    try:
        raw = source.read(path)
    except (OSError, KeyError) as error:
        notes.append(DiscoveryNote(str(path), "", "refused", f"cannot be read: {error}"))
        return None
    text = decode_text(raw)
    problem = _INVALID if (fault := invalid_line(raw)) else ""
    if problem:
        notes.append(DiscoveryNote(str(path), "", "ignored", problem, fault))
    document = YamlDocument({}, str(path))
    try:
        document, _ = load_front_document(text, str(path))
    except SettingsError as error:
        note = broken(path, error, "ignored")
        problem = f"its front matter is broken: {note.reason}"
        notes.append(replace(note, reason=problem))
    reading = AgentFields(str(path), source.scope, document, notes, source.plugin, inert=source.inert)
    name, second = _both_names(reading, otherwise, kind, is_source=path.parent == source.folder)
    if not name:
        return None
    name = f"{source.plugin}:{name}" if source.plugin else name
    folder = str(path.parent)
    variables = _variables(source, folder)
    fields = fields_of(reading, variables)
    skill_text = _text(name, reading, fields, body=body_after_front_matter(text), longest=longest)
    skill_text = replace(skill_text, second=second, folder=folder, problem=problem, kind=kind, variables=variables)
    lines = {name: reading.line(name) for name in reading.fields}
    hooks = None if reading.refuses("hooks", "") else reading.fields.get("hooks")
    return Skill(skill_text, path, source, hooks, lines)


def _text(name: str, reading: AgentFields, fields: SkillFields, *, body: str, longest: int) -> SkillText:
    return SkillText(
        name,
        _description(reading, body, fields.paths, longest),
        "",
        hint=fields.hint,
        arguments=fields.arguments,
        allowed=() if reading.refuses("allowed-tools", "") else fields.allowed,
        disallowed=fields.disallowed,
        model=fields.model,
        effort=fields.effort,
        fork=fields.fork,
        agent=fields.agent,
        background=fields.background,
        for_model=fields.for_model,
        for_person=fields.for_person,
        no_commands=UNTRUSTED if reading.inert else _NO_POWERSHELL if fields.powershell else "",
    )


def _variables(source: Source, folder: str) -> Mapping[str, str]:
    variables = {"CLAUDE_SKILL_DIR": folder}
    if source.plugin:
        variables |= {"CLAUDE_PLUGIN_ROOT": str(source.root), "CLAUDE_PLUGIN_DATA": str(source.root / "data")}
    return variables


def _both_names(reading: AgentFields, otherwise: str, kind: CommandKind, *, is_source: bool) -> tuple[str, str]:
    """Return the name of a skill and its second name; an empty name if no name is valid.

    Claude Code 2.1 names a skill after its folder, and accepts the name of its front matter too. A plugin's folder that
    is a skill itself (`is_source`) is named by its front matter. A command is always named after its file.
    """
    given = reading.fields.get("name")
    written = "" if given is None or kind == "command" else str(given).strip()
    if written and not _NAME.fullmatch(written):
        text = f"{written[:80]!r}" if isinstance(given, str) else kind_of(given)
        reading.note_ignored("name", f"{text} is not a valid name: the folder's name counts")
        written = ""
    folder = otherwise if _NAME.fullmatch(otherwise) else ""
    name = (written or folder) if is_source and kind == "skill" else (folder or written)
    if name:
        return name, next((other for other in (written, folder) if other not in ("", name)), "")
    short = "-".join(otherwise.split(" "))
    if not _NAME.fullmatch(short):
        reading.note_refused("name", "write letters, digits, dots and hyphens, at most 64")
        return "", ""
    reading.note_ignored("name", f"{otherwise!r} is read as {short}: write letters, digits, dots and hyphens")
    return short, ""


def _description(reading: AgentFields, body: str, paths: Sequence[str], longest: int) -> str:
    """Return the description from the front matter, otherwise the first line of the body.

    The description is on one line, shortened to keep the catalogue small.
    """
    written = " ".join(_field_text(reading, key) for key in ("description", "when_to_use"))
    first = next((line.strip().lstrip("#") for line in body.splitlines() if line.strip()), "")
    text = " ".join(written.split()) or " ".join(first.split()) or "(no description)"
    if paths:
        text = f"{text} (for work on {', '.join(paths)})"
    if len(text) > longest:
        reading.note_ignored("description", f"only its first {longest:,} characters are in the catalogue")
    return text[:longest]


def _field_text(reading: AgentFields, key: str) -> str:
    value = reading.fields.get(key)
    if value is not None and not isinstance(value, str | int):
        reading.note_ignored(key, "write a text")
        return ""
    return str(value if value is not None else "")


HONOURED = frozenset(
    {
        *("name", "description", "when_to_use", "argument-hint", "arguments", "disable-model-invocation"),
        *("user-invocable", "allowed-tools", "disallowed-tools", "model", "effort", "context", "agent", "background"),
        *("hooks", "paths", "shell", "metadata", "license", "compatibility"),
    }
)
"""Fields that have an effect here. An invalid value of one is reported."""
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
"""Common wrong names, and the names to suggest. A wrong name is not read as the right one."""


@dataclass(frozen=True, slots=True)
class SkillFields:
    """Fields of a skill's front matter, checked."""

    hint: str
    arguments: tuple[str, ...]
    allowed: tuple[str, ...]
    disallowed: tuple[str, ...]
    model: str
    effort: Effort
    fork: bool
    agent: str
    background: bool
    for_model: bool
    for_person: bool
    paths: tuple[str, ...]
    powershell: bool


_VARIABLE = late_pattern(r"\$\{(CLAUDE_[A-Z_]+)\}")


def fields_of(reading: AgentFields, variables: Mapping[str, str]) -> SkillFields:
    """Return every supported field, with its default if it is omitted or invalid.

    `variables`: those for the folders of the skill and its plugin, for its rules.
    """
    for name in reading.fields:
        if name not in HONOURED:
            suggestion = f": write {_NEAR[name]}" if name in _NEAR else ""
            reading.note_ignored(name, f"is not a field of a skill{suggestion}")
    fork = text_of(reading, "context").lower()
    if fork not in ("", "fork"):
        reading.note_ignored("context", f"{fork} is unknown: write fork, or leave it out")
    _only_of_forks(reading, forks=fork == "fork")
    shell = text_of(reading, "shell").lower()
    if shell not in ("", "bash"):
        reason = "there is no PowerShell here: its commands are not run" if shell == "powershell" else "write bash"
        reading.note_ignored("shell", reason)
    model = text_of(reading, "model")
    return SkillFields(
        hint=_hint_text(reading.fields.get("argument-hint")),
        arguments=_names(reading),
        allowed=_rules(reading, "allowed-tools", variables),
        disallowed=_rules(reading, "disallowed-tools", variables),
        model="" if model in ("inherit", "default") else model,
        effort=one_of(reading, "effort", EFFORTS),
        fork=fork == "fork",
        agent=_agent(text_of(reading, "agent")),
        background=fork == "fork" and flag_of(reading, "background"),
        for_model=not flag_of(reading, "disable-model-invocation"),
        for_person=_for_person(reading),
        paths=_paths(reading),
        powershell=shell == "powershell",
    )


def _only_of_forks(reading: AgentFields, *, forks: bool) -> None:
    for name in ("agent", "background"):
        if name in reading.fields and not forks:
            reading.note_ignored(name, "counts only with context: fork")


def _for_person(reading: AgentFields) -> bool:
    """Return False only if the skill's author excludes the user. An invalid value does not exclude the user."""
    if "user-invocable" not in reading.fields:
        return True
    note_count = len(reading.notes)
    return flag_of(reading, "user-invocable") or len(reading.notes) > note_count


def _paths(reading: AgentFields) -> tuple[str, ...]:
    value = reading.fields.get("paths")
    if value is not None and not isinstance(value, str | list | tuple):
        reading.note_ignored("paths", "write globs, such as src/**/*.ts")
        return ()
    return entries(cast("object", value), blanks=False)


def _agent(written: str) -> str:
    """Return Callboard's name for a bundled type, also from Claude Code's spelling."""
    return {"": "general", "general-purpose": "general", "Explore": "explore", "Plan": "plan"}.get(written, written)


def _names(reading: AgentFields) -> tuple[str, ...]:
    value = reading.fields.get("arguments")
    if value is not None and not isinstance(value, str | list | tuple):
        reading.note_ignored("arguments", "write names, as a list or between blanks")
        return ()
    good, bad = argument_names(cast("object", value))
    for name in bad:
        reading.note_ignored("arguments", f"{name!r} is not a valid argument name: write letters, digits, _ and -")
    return good


def _rules(reading: AgentFields, field: str, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the rules of a field, with the variables for the folders of skill and plugin replaced."""
    value = reading.fields.get(field)
    if value is not None and not isinstance(value, str | list | tuple):
        reading.note_ignored(field, "write rules, such as Bash(git diff *) Read")
        return ()
    good: list[str] = []
    for written in entries(cast("object", value)):
        entry = _VARIABLE.sub(lambda match: variables.get(match[1], match[0]), written)
        if unknown := _VARIABLE.search(entry):
            reading.note_ignored(field, f"{written}: {unknown[0]} is not known here")
            continue
        if "*" in "".join(variables[match[1]] for match in _VARIABLE.finditer(written)):
            reading.note_ignored(field, f"{written}: a star in the path of the folder would match anything")
            continue
        try:
            parse_rule(entry)
        except ValueError as wrong:
            reading.note_ignored(field, str(wrong))
        else:
            good.append(entry)
    return tuple(dict.fromkeys(good))


def entries(value: object, *, blanks: bool = True) -> tuple[str, ...]:
    """Return the entries of a list, or of a text separated by commas and (`blanks`) blanks.

    Separators inside brackets do not count.
    """
    if isinstance(value, list | tuple):
        return tuple(str(entry).strip() for entry in cast("Sequence[object]", value) if str(entry).strip())
    parts = [""]
    depth = 0
    for character in value if isinstance(value, str) else "":
        depth += (character in "({") - (character in ")}")
        if depth <= 0 and (character == "," or (blanks and character.isspace())):
            parts.append("")
        else:
            parts[-1] += character
    return tuple(part.strip() for part in parts if part.strip())


def _hint_text(value: object) -> str:
    """Return a hint as its author wrote it: YAML parses `[message]` as a list."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(str(entry) for entry in cast('Sequence[object]', value))}]"
    return " ".join(str(value).split()) if isinstance(value, str | int) else ""
