"""What becomes of files written for Claude Code: each field and rule honoured, ignored or refused, and why."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from callboard.adapters.agent_files import load_agents
from callboard.adapters.files import Note
from callboard.adapters.files import Places as FilePlaces
from callboard.adapters.front_matter_hooks import front_matter_hooks
from callboard.adapters.hook_files import HookEntry
from callboard.adapters.skill_files import load_skills
from callboard.adapters.trust import SERVERS
from callboard.assembly import Places
from callboard.hooking import hook_entries, hook_notes
from callboard.settings import load_settings
from callboard.trusting import standing

FAILS_OPEN = (
    "a crash, a time-out or an exit code but 0 and 2 lets the call proceed, as documented: `onFailure: block` closes it"
)


@dataclass(frozen=True, slots=True)
class Told:
    """One line of `doctor --compat`."""

    where: str
    """`file`, or `file:line`."""
    field: str
    """Empty: the whole file."""
    verdict: str
    """`honoured`, `ignored` or `refused`."""
    why: str = ""


def told(places: Places) -> list[Told]:
    """Every file, field and rule, as they would be used in this workspace now. Raises `SettingsError`."""
    now = standing(places.workspace, places.config)
    brought, trusted, environ = now.brought, now.trusted, dict(os.environ)
    loaded = load_settings(environ, workspace=places.workspace, trusted=trusted, brought=brought)
    found = [
        Told(f"{one.path}:{one.line}", one.name, one.verdict, one.why) for file in loaded.claude for one in file.told
    ]
    found += [Told(one.path, "", "refused", one.broken) for one in loaded.claude if one.broken]
    found += _hooks(hook_entries(loaded, places.workspace, environ))
    found += _notes(hook_notes(loaded, places.workspace, environ))
    files = FilePlaces(places.workspace, places.config, Path.home(), trusted=trusted, brought=brought)
    agents, skills = load_agents(files), load_skills(files)
    for path in (*(one.path for one in agents.items.values()), *(str(one.path) for one in skills.items.values())):
        if "/.claude/" in path:
            found.append(Told(path, "", "honoured"))
    found += _notes((*agents.notes, *skills.notes))
    for one in front_matter_hooks(agents.items.values(), skills.items.values(), str(places.workspace)):
        found += (*_hooks(one.read.entries), *_notes(one.read.notes))
    if SERVERS in brought.content:
        found.append(Told(str(places.workspace / SERVERS), "", "ignored", "no MCP server is connected in this version"))
    return found


def _hooks(entries: Iterable[HookEntry]) -> Iterator[Told]:
    """Each hook of a compatible file; of a guard that a fault of its own opens, what to write."""
    seen: set[tuple[str, str]] = set()
    for one in entries:
        path, field = one.place
        if "/.claude/" not in path or one.place in seen:
            continue
        seen.add(one.place)
        opens = one.fail_open and one.event == "PreToolUse" and not one.terms.background
        yield Told(path, field, "honoured", FAILS_OPEN if opens else "")


def _notes(notes: Iterable[Note]) -> Iterator[Told]:
    return (Told(note.where, note.field, note.verdict, note.why) for note in notes)
