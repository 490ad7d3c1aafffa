"""Agents and skills of a session while it runs: the content of their files, and changes to them.

Working agents keep the definition with which they started; a change applies to agents started later. Content of the
workspace is used as it was trusted; changed content is used once a person has trusted it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TypeVar

import anyio.to_thread
import structlog

from callboard.adapters.extensions.agents import AgentFile, load_agents
from callboard.adapters.extensions.discovery import (
    DiscoveryNote,
    ExtensionPaths,
    Kind,
    Mark,
    agent_paths,
    skill_paths,
    sources,
    withheld,
)
from callboard.adapters.extensions.output_styles import Voice
from callboard.adapters.extensions.skill_uses import SkillUses
from callboard.adapters.extensions.skills import Skill, SkillChoices, SkillLibrary, load_skills
from callboard.adapters.system.folder_watch import WatchFactory
from callboard.config.settings import LoadedSettings
from callboard.config.trust import Trust, stored_trust
from callboard.sessions.agent_specs import LiveTypes
from callboard.sessions.options import ExtensionOptions, LeadOptions
from callboard.types.agent_spec import AgentSpec
from callboard.types.lazy_dataclass import dataclass

KINDS: tuple[Kind, ...] = ("agents", "skills", "commands")
MOST_TOLD = 5
"""Limit of the refused files that are listed when a session begins; the others are counted."""
_SPAWNERS = frozenset({"task", "spawn_teammate"})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DefinitionChanges:
    """Differences in one kind of definition, by name."""

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = (("new", self.new), ("changed", self.changed), ("gone", self.gone))
        return ", ".join(f"{word} {' '.join(names)}" for word, names in parts if names)


def changes(before: Mapping[str, T], now: Mapping[str, T]) -> DefinitionChanges:
    """Return the names that were added, changed, and removed, each sorted."""
    return DefinitionChanges(
        tuple(sorted(now.keys() - before.keys())),
        tuple(sorted(name for name in before.keys() & now.keys() if before[name] != now[name])),
        tuple(sorted(before.keys() - now.keys())),
    )


@dataclass
class Definitions:
    """Definitions of a session. `agents` makes the types from the current files (`open.read_definitions`)."""

    files: ExtensionPaths
    agents: Callable[[Mapping[str, AgentFile]], Mapping[str, AgentFile]]
    library: SkillLibrary
    config: Path
    by_flag: bool = False
    """True if the workspace is trusted for this run only, with its content at the start."""
    plugin_notes: tuple[DiscoveryNote, ...] = ()
    """Notes on the ignored parts of plugins."""
    notes: tuple[DiscoveryNote, ...] = ()
    """Notes on the ignored parts of the files, as they are now."""
    watches: WatchFactory = field(default_factory=WatchFactory)
    """Watches of the process."""
    types: LiveTypes = field(default_factory=lambda: LiveTypes({}))
    voice: Voice = Voice()
    """Manner of the lead's answers."""
    _skills: Mapping[str, object] = field(default_factory=dict[str, object])
    _asked_digest: str = ""
    """Digest of the newest content of the workspace that was reported as not used."""
    _news: tuple[str, ...] = ()

    def read(self) -> None:
        """Read the current content of all files, in the calling thread."""
        agents = load_agents(self.files)
        skills = load_skills(self.files)
        self.types.replace_all(self.agents(agents.items))
        self._skills = {name: _facts(skill) for name, skill in skills.items.items()}
        missing = missing_skills(self.types.values(), skills.items)
        self.notes = (*self.plugin_notes, *self.voice.notes, *agents.notes, *skills.notes, *missing)

    def descriptions(self) -> dict[str, str]:
        """Return the description of each agent type but the lead's, by name."""
        return {name: kind.description for name, kind in self.types.items() if name != "lead"}

    def refusals(self, hook_notes: Iterable[DiscoveryNote]) -> tuple[str, ...]:
        """Return a line for each refused file, and the number of further ones, for the start of a session.

        `hook_notes`: notes on the hooks of plugins, agents and skills.
        """
        lines = [str(note) for note in _refused((*self.notes, *hook_notes), self.files)]
        remainder = (
            [f"and {len(lines) - MOST_TOLD} more: `callboard doctor --compat`"] if len(lines) > MOST_TOLD else []
        )
        return (*lines[:MOST_TOLD], *remainder)

    def look(self, now: Trust | None) -> tuple[str, ...]:
        """Read the files again, and return a line for the person on each change.

        `now`: the workspace's current content and whether exactly that is trusted; None if it has none.
        """
        lines: list[str] = []
        if now is not None and now.workspace_claims != self.files.workspace_claims:
            lines += self._take(now)
        before = dict(self.types)
        skills = self._skills
        notes = set(self.notes)
        self.read()
        self.library.use_places(self.files)
        differences = changes(before, self.types), changes(skills, self._skills)
        lines += [
            f"{kind}: {change}" for kind, change in zip(("agents", "skills"), differences, strict=True) if str(change)
        ]
        lines += [str(note) for note in _refused(self.notes, self.files) if note not in notes]
        if str(differences[0]):
            self._news = tuple(_news(differences[0], self.types))
        return tuple(lines)

    def look_again(self) -> tuple[str, ...]:
        """Read the files again as the workspace is now, and return a line for the person on each change."""
        workspace = self.files.workspace
        return self.look(None if workspace is None else stored_trust(workspace, self.config))

    def _take(self, now: Trust) -> list[str]:
        """Use changed content of the workspace if a person trusted it.

        Otherwise return a line that says it is not used.
        """
        if now.trusted and not self.by_flag:
            self.files = replace(self.files, trusted=True, workspace_claims=now.workspace_claims)
            return []
        if self._asked_digest == now.workspace_claims.digest or not self.files.trusted:
            return []
        self._asked_digest = now.workspace_claims.digest
        remedy = "you start again with --trust" if self.by_flag else "`callboard trust` decides"
        return [f"the content of this workspace has changed: the change is not used until {remedy}"]

    def reminder(self, spec: AgentSpec) -> str:
        """Return the reminder of types that changed after they were listed in the tools of an agent.

        Only an agent that can start others gets one.
        """
        return "\n".join(self._news) if _SPAWNERS & set(spec.tools) else ""

    def marks(self) -> tuple[Mark, ...]:
        """Return the marks that change with the files, including files of the workspace, trusted or not."""
        places = replace(self.files, workspace_claims=None, trusted=True, bundled=False)
        paths = {"agents": agent_paths, "skills": skill_paths, "commands": agent_paths}
        marks = [mark for kind in KINDS for source in sources(kind, places) for mark in paths[kind](source).marks]
        return (*marks, *_mark(self.config / "trust.json"))

    def folders(self) -> tuple[Path, ...]:
        """Return the folders to watch for changes."""
        places = replace(self.files, workspace_claims=None, trusted=True, bundled=False)
        return (self.config, *(source.folder for kind in KINDS for source in sources(kind, places)))


def missing_skills(agents: Iterable[AgentFile], skills: Mapping[str, Skill]) -> Iterator[DiscoveryNote]:
    """Yield a note for each skill that an agent lists for its start but does not get."""
    for agent in agents:
        for name in agent.skills:
            skill = skills.get(name)
            if skill is None or not skill.text.for_model:
                reason = f"there is no skill {name}" if skill is None else f"only a person can start {name}"
                yield DiscoveryNote(agent.path, "skills", "ignored", reason, dict(agent.lines).get("skills", 0))


def _refused(notes: Iterable[DiscoveryNote], files: ExtensionPaths) -> list[DiscoveryNote]:
    """Return the notes on refused files and fields.

    The note that a whole workspace is not trusted is left out, because it is reported elsewhere.
    """
    untrusted = {note for kind in KINDS for note in withheld(kind, files)}
    return [note for note in notes if note.verdict == "refused" and note not in untrusted]


def _facts(skill: Skill) -> object:
    """Return the identity of a version of a skill: its fields, its hooks, its bytes."""
    try:
        raw = skill.source.read(skill.path)
    except (OSError, KeyError):
        raw = b""
    return skill.text, skill.hooks, raw


def _news(changes: DefinitionChanges, types: Mapping[str, AgentFile]) -> Iterable[str]:
    yield "The agent types changed after your tools were listed. What counts now:"
    for name in (*changes.new, *changes.changed):
        yield f"- {'new' if name in changes.new else 'changed'}: {name}: {types[name].description[:300]}"
    for name in changes.gone:
        yield f"- gone: {name}"


def _mark(path: Path) -> tuple[Mark, ...]:
    try:
        facts = path.stat()
    except OSError:  # the file does not exist
        return ()
    return ((str(path), facts.st_mtime_ns, facts.st_size),)


async def keep_reading(definitions: Definitions, tell: Callable[[str], None]) -> None:
    """Read the files again whenever one has changed, until cancelled.

    `tell` receives a line for the person on each change. The kernel reports the changes; nothing is polled.
    """
    log = structlog.get_logger("callboard.sessions.definitions")
    try:
        watch = await anyio.to_thread.run_sync(definitions.watches.watch, definitions.folders())
    except OSError as none:
        log.warning("changes to agent and skill files are not detected", why=none.strerror)
        return
    try:
        marks = await anyio.to_thread.run_sync(definitions.marks)
        while True:
            await watch.wait_changed()
            now = await anyio.to_thread.run_sync(definitions.marks)
            if now == marks:
                continue
            marks = now
            for line in await anyio.to_thread.run_sync(definitions.look_again):
                log.info("files changed", what=line)
                tell(line)
    finally:
        watch.close()


def library_of(
    files: ExtensionPaths, loaded: LoadedSettings, state: Path, extensions: ExtensionOptions
) -> SkillLibrary:
    """Return the skills of a workspace, filtered by its settings; its state folder has how often each was loaded."""
    settings = loaded.settings
    characters = loaded.environment.get("SLASH_COMMAND_TOOL_CHAR_BUDGET", "")
    choices = SkillChoices(
        overrides=settings.skills.overrides,
        longest=settings.skills.description,
        share=settings.skills.catalogue,
        characters=int(characters) if characters.isdecimal() else None,
        commands=settings.skills.commands,
        only=extensions.skills,
        off=extensions.without_skills,
    )
    return SkillLibrary(files, choices, SkillUses(state / "skill-uses.json"))


def agent_types(
    agents: Mapping[str, AgentFile], loaded: LoadedSettings, extensions: ExtensionOptions, lead_options: LeadOptions
) -> Mapping[str, AgentFile]:
    """Return the agent types with the options' changes, without a permission mode that a settings file disables."""
    agents = {**agents, **extensions.agents}
    lead_type = lead_options.agent_type or "lead"
    lead = agents.get(lead_type)
    if lead is not None:
        agents = {**agents, lead_type: _chosen_lead(lead, lead_options, extensions.own)}
    if not loaded.bypass_off:
        return agents
    bound = {name: agent for name, agent in agents.items() if agent.permission_mode == "bypassPermissions"}
    return {**agents, **{name: replace(agent, permission_mode=None) for name, agent in bound.items()}}


def _chosen_lead(lead: AgentFile, options: LeadOptions, own_of_all: tuple[str, ...]) -> AgentFile:
    """Return the lead's type with the instructions and tools of the options.

    `tools` selects among the runtime's tools. Tools of the program (`own_of_all`) stay unless they are disallowed by
    name.
    """
    lead = replace(lead, instructions=options.instructions or lead.instructions)
    own = lead.own
    if own is None and (options.tools is not None or lead.tools is None):
        own = own_of_all
    if own is not None:
        own = tuple(name for name in own if name not in options.disallowed)
    return replace(lead, tools=lead.tools if options.tools is None else options.tools, own=own)
