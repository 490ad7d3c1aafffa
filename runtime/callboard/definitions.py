"""The agents and skills of a session while it runs: what its files say, and what changes in them meanwhile.

Agents that are at work stay as they began: a change is there for the next one that is started. What the workspace
brings counts as it was trusted; when it changes it is used again once a person has trusted that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import anyio.to_thread
import structlog

from callboard.adapters.agent_files import AgentFile, load_agents
from callboard.adapters.files import Kind, Mark, Note, Places, agent_paths, skill_paths, sources, withheld
from callboard.adapters.folder_watch import FolderWatch
from callboard.adapters.skill_files import Skill, SkillLibrary, load_skills
from callboard.agent_types import LiveTypes
from callboard.trusting import Trust, standing
from callboard.words.specs import AgentSpec

KINDS: tuple[Kind, ...] = ("agents", "skills", "commands")
MOST_TOLD = 5
"""Refused files that are told line by line when a session begins; the rest is counted."""
_SPAWNERS = frozenset({"task", "spawn_teammate"})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Changes:
    """What is different in one kind of definition, by name."""

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = (("new", self.new), ("changed", self.changed), ("gone", self.gone))
        return ", ".join(f"{word} {' '.join(names)}" for word, names in parts if names)


def changes(before: Mapping[str, T], now: Mapping[str, T]) -> Changes:
    """The names that came, that stand for something else, and that went, each sorted."""
    return Changes(
        tuple(sorted(now.keys() - before.keys())),
        tuple(sorted(name for name in before.keys() & now.keys() if before[name] != now[name])),
        tuple(sorted(before.keys() - now.keys())),
    )


@dataclass
class Definitions:
    """What a session has of them. `agents` makes the types of what the files say now (`hosting.agents_of`)."""

    files: Places
    agents: Callable[[Mapping[str, AgentFile]], Mapping[str, AgentFile]]
    library: SkillLibrary
    config: Path
    by_flag: bool = False
    """The workspace is trusted for this run only, as it was when it began."""
    plugin_notes: tuple[Note, ...] = ()
    """What is not honoured of the plugins."""
    hook_notes: tuple[Note, ...] = ()
    """The same of the hooks of plugins, agents and skills."""
    notes: tuple[Note, ...] = ()
    """The same of the files, as they are now."""
    types: LiveTypes = field(default_factory=lambda: LiveTypes({}))
    _skills: Mapping[str, object] = field(default_factory=dict[str, object])
    _asked: str = ""
    """The digest of the newest content of the workspace that somebody was told is not used."""
    _news: tuple[str, ...] = ()

    def read(self) -> None:
        """Read all files as they stand now, in the thread that calls."""
        agents, skills = load_agents(self.files), load_skills(self.files)
        self.types.become(self.agents(agents.items))
        self._skills = {name: _facts(one) for name, one in skills.items.items()}
        amiss = missing_skills(self.types.values(), skills.items)
        self.notes = (*self.plugin_notes, *agents.notes, *skills.notes, *amiss)

    def told_at_first(self) -> tuple[str, ...]:
        """The files that are refused, a line each, and how many more: what a person is told when a session begins."""
        lines = [str(note) for note in _refused((*self.notes, *self.hook_notes), self.files)]
        more = [f"and {len(lines) - MOST_TOLD} more: `callboard doctor --compat`"] if len(lines) > MOST_TOLD else []
        return (*lines[:MOST_TOLD], *more)

    def look(self, now: Trust | None) -> tuple[str, ...]:
        """Read the files anew; a line for the person on each thing that is different. `now`: the workspace as it stands
        and whether exactly that is trusted; None: it has none."""
        lines: list[str] = []
        if now is not None and now.brought != self.files.brought:
            lines += self._take(now)
        before, skills, notes = dict(self.types), self._skills, set(self.notes)
        self.read()
        self.library.become(self.files)
        found = changes(before, self.types), changes(skills, self._skills)
        lines += [f"{kind}: {one}" for kind, one in zip(("agents", "skills"), found, strict=True) if str(one)]
        lines += [str(note) for note in _refused(self.notes, self.files) if note not in notes]
        if str(found[0]):
            self._news = tuple(_news(found[0], self.types))
        return tuple(lines)

    def _take(self, now: Trust) -> list[str]:
        """What the workspace brings has changed: it is used where a person trusted it."""
        if now.trusted and not self.by_flag:
            self.files = replace(self.files, trusted=True, brought=now.brought)
            return []
        if self._asked == now.brought.digest or not self.files.trusted:
            return []
        self._asked = now.brought.digest
        what = "you begin anew with --trust" if self.by_flag else "`callboard trust` decides"
        return [f"what this workspace brings has changed: the change is not used until {what}"]

    def reminder(self, spec: AgentSpec) -> str:
        """What an agent that can start others is told of the types that changed since its tools were listed."""
        return "\n".join(self._news) if _SPAWNERS & set(spec.tools) else ""

    def marks(self) -> tuple[Mark, ...]:
        """What changes when a file does, of the workspace too, trusted or not."""
        places = replace(self.files, brought=None, trusted=True, bundled=False)
        paths = {"agents": agent_paths, "skills": skill_paths, "commands": agent_paths}
        found = [mark for kind in KINDS for source in sources(kind, places) for mark in paths[kind](source).marks]
        return (*found, *_mark(self.config / "trust.json"))

    def folders(self) -> tuple[Path, ...]:
        """Where changes are heard of."""
        places = replace(self.files, brought=None, trusted=True, bundled=False)
        return (self.config, *(source.folder for kind in KINDS for source in sources(kind, places)))


def missing_skills(agents: Iterable[AgentFile], skills: Mapping[str, Skill]) -> Iterator[Note]:
    """What agents name as skills from the start and do not get."""
    for agent in agents:
        for name in agent.skills:
            skill = skills.get(name)
            if skill is None or not skill.text.for_model:
                why = f"there is no skill {name}" if skill is None else f"{name} is for a person to start"
                yield Note(agent.path, "skills", "ignored", why, dict(agent.lines).get("skills", 0))


def _refused(notes: Iterable[Note], files: Places) -> list[Note]:
    """The refusals of files and fields; that a whole workspace is not trusted is told elsewhere."""
    known = {note for kind in KINDS for note in withheld(kind, files)}
    return [note for note in notes if note.verdict == "refused" and note not in known]


def _facts(skill: Skill) -> object:
    """What makes a skill another one: its fields, its hooks, its bytes."""
    try:
        raw = skill.source.read(skill.path)
    except (OSError, KeyError):
        raw = b""
    return skill.text, skill.hooks, raw


def _news(found: Changes, types: Mapping[str, AgentFile]) -> Iterable[str]:
    yield "The agent types changed after your tools were listed. What counts now:"
    for name in (*found.new, *found.changed):
        yield f"- {'new' if name in found.new else 'changed'}: {name}: {types[name].description[:300]}"
    for name in found.gone:
        yield f"- gone: {name}"


def _mark(path: Path) -> tuple[Mark, ...]:
    try:
        facts = path.stat()
    except OSError:  # there is none
        return ()
    return ((str(path), facts.st_mtime_ns, facts.st_size),)


async def keep_reading(definitions: Definitions, tell: Callable[[str], None]) -> None:
    """Read the files again whenever one has changed, until cancelled. `tell` gets a line for the person on each thing
    that is different. The kernel wakes it; nothing is looked at in between."""
    log = structlog.get_logger("callboard.definitions")
    try:
        watch = await anyio.to_thread.run_sync(FolderWatch, definitions.folders())
    except OSError as none:
        log.warning("changes of agent and skill files are not noticed", why=none.strerror)
        return
    try:
        marks = await anyio.to_thread.run_sync(definitions.marks)
        while True:
            await watch.changed()
            now = await anyio.to_thread.run_sync(definitions.marks)
            if now == marks:
                continue
            marks = now
            for line in await anyio.to_thread.run_sync(_look, definitions):
                log.info("files changed", what=line)
                tell(line)
    finally:
        watch.close()


def _look(definitions: Definitions) -> tuple[str, ...]:
    workspace = definitions.files.workspace
    return definitions.look(None if workspace is None else standing(workspace, definitions.config))
