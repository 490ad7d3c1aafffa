"""Reader of hooks in the compatible form: the `hooks` of a settings file, a `hooks/hooks.json`, or front matter.

An unsupported hook is refused with its place and the reason, never run partly. Parts without effect are reported. The
caller ensures that a workspace's hooks are read only after the user trusted them.

Hooks of an agent file apply only to agents of its type, hooks of a skill only to agents that loaded it. They are read
when a session begins, with everything else that the user trusts then.

The user trusted a certain content. Before each run of a workspace's hook, the scripts that were trusted with it are
checked again. A script that was changed since is not run, whatever changed it; the next session asks about it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

import anyio.to_thread

from callboard.adapters.extensions.agents import AgentFile
from callboard.adapters.extensions.discovery import LARGEST_FILE, DiscoveryNote
from callboard.adapters.extensions.hook_fields import (
    FieldRefused,
    HandlerFields,
    HandlerInside,
    HookOrigin,
    HttpLimits,
    read_mapping,
    sequence,
)
from callboard.adapters.extensions.skills import Skill
from callboard.adapters.extensions.trust import scripts_as_trusted
from callboard.adapters.extensions.yaml import Address, dotted_address
from callboard.adapters.system.regular_files import read_regular
from callboard.core.hooks.matching import MATCHED, fits_nothing
from callboard.core.hooks.merge import InvalidHook, read_matcher
from callboard.core.json_depth import check_json_limits
from callboard.core.trust.claims import WorkspaceClaims
from callboard.ports.hooks import HookHandler, HookTerms
from callboard.types.choices import unknown
from callboard.types.errors import SettingsError
from callboard.types.hook_answers import FITTING, TOOL_EVENTS, HandlerResult
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

WITHOUT_MOMENT: Mapping[str, str] = MappingProxyType(
    {
        "Setup": "there is no set-up run",
        "InstructionsLoaded": "instructions are read when the prompt is composed, not one by one",
        "UserPromptExpansion": "the text of a command passes no hooks; the prompt passes `UserPromptSubmit`",
        "MessageDisplay": "what is shown passes no hooks",
        "PermissionDenied": "there is no mode `auto` that would deny by itself",
        "ConfigChange": "settings are read when a session begins, and not again",
        "DirectoryAdded": "no folder is added while a session runs",
        "FileChanged": "no file is watched",
        "Elicitation": "no MCP server is connected",
        "ElicitationResult": "no MCP server is connected",
    }
)
"""Documented events that never happen here, and the reasons."""

_SWITCHES = ("allowManagedHooksOnly",)


@dataclass(frozen=True, slots=True)
class HookEntry:
    """One hook, ready for `HookRegistry.add(event, handler, matcher, terms=terms)`."""

    event: str
    handler: HookHandler
    matcher: str = ""
    terms: HookTerms = HookTerms(fail_open=True)
    place: tuple[str, str] = field(default=("", ""), compare=False)
    """File and field of the hook."""

    @property
    def fail_open(self) -> bool:
        """Return True if its faults stop nothing."""
        return self.terms.fail_open


@dataclass(frozen=True, slots=True)
class HooksRead:
    """Hooks of one file in order, and notes on parts without effect."""

    entries: tuple[HookEntry, ...] = ()
    notes: tuple[DiscoveryNote, ...] = ()
    all_off: bool = False
    """True if the file says `disableAllHooks`: no hook of any file runs."""


@dataclass
class _Reading:
    """Reading of one file."""

    path: str
    origin: HookOrigin
    entries: list[HookEntry] = field(default_factory=list[HookEntry])
    notes: list[DiscoveryNote] = field(default_factory=list[DiscoveryNote])

    def ignore(self, address: Address, reason: str) -> None:
        self.notes.append(DiscoveryNote(self.path, dotted_address(address), "ignored", reason))

    def attempt(self, read: Callable[[], None]) -> None:
        """Read one part. If it is refused, the rest is still read."""
        try:
            read()
        except FieldRefused as refusal:
            self.notes.append(DiscoveryNote(self.path, dotted_address(refusal.address), "refused", str(refusal)))

    def events(self, hooks: object) -> None:
        for event, groups in read_mapping(hooks, ("hooks",)).items():
            self.attempt(lambda event=event, groups=groups: self._event(event, groups))

    def _event(self, event: str, groups: object) -> None:
        at: Address = ("hooks", event)
        if event in WITHOUT_MOMENT:
            raise FieldRefused(at, f"this event never happens here: {WITHOUT_MOMENT[event]}")
        if event not in FITTING:
            raise FieldRefused(at, unknown("event", event, sorted(FITTING)))
        if event == "WorktreeCreate":
            self.ignore(at, "may refuse a worktree; a path that it prints is not used")
        for number, group in enumerate(sequence(groups, at)):
            group_at: Address = (*at, number)
            self.attempt(lambda group=group, group_at=group_at: self._group(event, group, group_at))

    def _group(self, event: str, group: object, at: Address) -> None:
        fields = read_mapping(group, at)
        matcher = self._matcher(event, fields.get("matcher", ""), (*at, "matcher"))
        for name in sorted(fields.keys() - {"matcher", "hooks"}):
            self.ignore((*at, name), "there is no such field")
        for number, handler in enumerate(sequence(fields.get("hooks"), (*at, "hooks"))):
            handler_at: Address = (*at, "hooks", number)
            self.attempt(
                lambda handler=handler, handler_at=handler_at: self._handler(event, matcher, handler, handler_at)
            )

    def _matcher(self, event: str, text: object, at: Address) -> str:
        if not isinstance(text, str):
            raise FieldRefused(at, "a matcher is a text")
        if event not in MATCHED:
            if text not in ("", "*"):
                self.ignore(at, f"{event} has no matcher: its hooks run each time")
            return ""
        try:
            matcher = read_matcher(text)
        except InvalidHook as misfit:
            raise FieldRefused(at, str(misfit)) from misfit
        if fits_nothing(event, matcher):
            target = "no tool that there is" if event in TOOL_EVENTS else "nothing that happens here"
            self.ignore(at, f"{text!r} matches {target}: its hooks never run")
        return text

    def _handler(self, event: str, matcher: str, handler: object, at: Address) -> None:
        made, terms = HandlerFields(event, read_mapping(handler, at), at, self.origin, self.ignore).read()
        # A teammate's turn ends with `Stop`, a subagent's with `SubagentStop`.
        both = event == "Stop" and self.origin.agent_type
        for name in (event, "SubagentStop") if both else (event,):
            self.entries.append(HookEntry(name, made, matcher, terms, (self.path, dotted_address(at))))


def read_hooks(hooks: object, path: str, origin: HookOrigin) -> HooksRead:
    """Return the hooks of a parsed `hooks` mapping; `path` names its file in the notes. Raises nothing."""
    reading = _Reading(path, origin)
    reading.attempt(lambda: reading.events(hooks))
    return HooksRead(tuple(reading.entries), tuple(reading.notes))


def load_hooks(path: Path, origin: HookOrigin, raw: bytes | None = None) -> HooksRead:
    """Return the hooks of a `settings.json` or `hooks.json`; none if there is no such file. `raw`: its content.

    Raises `SettingsError`, with the line, for a file that cannot be read or is not a JSON object.
    """
    if raw is None:
        raw = _read(path)
    if raw is None:
        return HooksRead()
    data, notes = _parsed(raw, str(path))
    notes += [DiscoveryNote(str(path), name, "ignored", "has no effect here") for name in _SWITCHES if name in data]
    outside = [name for name in data if name in FITTING or name in WITHOUT_MOMENT]
    notes += [
        DiscoveryNote(str(path), name, "ignored", "is an event: it counts only inside of `hooks`") for name in outside
    ]
    if data.get("disableAllHooks") is True:
        notes.append(DiscoveryNote(str(path), "disableAllHooks", "ignored", "is set: no hook runs"))
        return HooksRead((), tuple(notes), all_off=True)
    own = _limits(data, str(path), notes)
    origin = replace(origin, limits=joined_limits((origin.limits, own)))
    read = read_hooks(data.get("hooks", {}), str(path), origin)
    return replace(read, notes=(*notes, *read.notes))


def http_limits(path: Path, raw: bytes | None = None) -> HttpLimits:
    """Return a settings file's limits for all `http` handlers in any file. Raises `SettingsError`."""
    raw = _read(path) if raw is None else raw
    return HttpLimits() if raw is None else _limits(_parsed(raw, str(path))[0], str(path), [])


def joined_limits(limits: Sequence[HttpLimits]) -> HttpLimits:
    """Return the combined limits of several files.

    Their lists are merged, and apply to all files as soon as one file has a list.
    """

    def merge_lists(lists: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
        present = [entries for entries in lists if entries is not None]
        return tuple(dict.fromkeys(name for entries in present for name in entries)) if present else None

    return HttpLimits(merge_lists([limit.urls for limit in limits]), merge_lists([limit.variables for limit in limits]))


def _limits(data: Mapping[str, Any], path: str, notes: list[DiscoveryNote]) -> HttpLimits:
    def texts(name: str) -> tuple[str, ...] | None:
        values: object = data.get(name)
        if values is None:
            return None
        if not isinstance(values, list) or not all(isinstance(entry, str) for entry in cast("list[object]", values)):
            notes.append(DiscoveryNote(path, name, "refused", "has to be a list of texts: nothing is allowed"))
            return ()
        return tuple(cast("list[str]", values))

    return HttpLimits(texts("allowedHttpHookUrls"), texts("httpHookAllowedEnvVars"))


def _read(path: Path) -> bytes | None:
    try:
        return read_regular(path, LARGEST_FILE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"cannot be read: {error.strerror or error}", str(path)) from error


def _parsed(raw: bytes, path: str) -> tuple[Mapping[str, Any], list[DiscoveryNote]]:
    notes: list[DiscoveryNote] = []

    def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        names = [name for name, _ in pairs]
        doubled = sorted(name for name in fields if names.count(name) > 1)
        notes.extend(
            DiscoveryNote(path, name, "ignored", "is written twice: only the last one counts") for name in doubled
        )
        return fields

    if len(raw) > LARGEST_FILE:
        raise SettingsError(f"is larger than {LARGEST_FILE:,} bytes", path)
    try:
        text = raw.decode("utf-8-sig")
        check_json_limits(text)
        data = json.loads(text, object_pairs_hook=once_each)
    except json.JSONDecodeError as error:
        raise SettingsError(f"is not valid JSON: {error.msg}", f"{path}:{error.lineno}") from error
    except UnicodeDecodeError as error:
        raise SettingsError("is not valid JSON in UTF-8", path) from error
    except ValueError as error:
        raise SettingsError(str(error), path) from error
    if not isinstance(data, dict):
        raise SettingsError("is a JSON object (`{ ... }`)", path)
    return cast("Mapping[str, Any]", data), notes


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """Hooks of one file's front matter."""

    source: Literal["agent", "skill"]
    read: HooksRead
    of_workspace: bool
    """True if the file is the workspace's, not the user's or Callboard's."""


def front_matter_hooks(
    agents: Iterable[AgentFile], skills: Iterable[Skill], project: str, limits: HttpLimits | None = None
) -> Iterator[FrontMatter]:
    """Yield the hooks of each file that has any. `project`: absolute path of the workspace."""
    limits = limits or HttpLimits()
    for agent in agents:
        if agent.hooks is not None:
            origin = HookOrigin(project, agent.compatible, agent_type=agent.name, limits=limits)
            read = read_hooks(agent.hooks, agent.path, origin)
            line = dict(agent.lines).get("hooks", 0)
            read = replace(read, notes=tuple(replace(note, line=line) for note in read.notes))
            yield FrontMatter("agent", read, agent.scope == "workspace")
    for skill in skills:
        if skill.hooks is not None:
            root = str(skill.source.root) if skill.source.plugin else ""
            origin = HookOrigin(project, skill.source.compatible, root, skill=skill.text.name, limits=limits)
            read = read_hooks(skill.hooks, str(skill.path), origin)
            yield FrontMatter("skill", read, skill.source.scope == "workspace")


@dataclass(frozen=True, slots=True)
class TrustedHandler(HandlerInside):
    """A `HookHandler` of the workspace. Equal handlers are the same hook, even from different files."""

    workspace_claims: WorkspaceClaims = field(compare=False, repr=False)

    async def run(self, event_json: Json, timeout: float) -> HandlerResult:
        """Run it if its scripts are still the trusted ones; else report the change as its fault.

        See `HookHandler.run`.
        """
        problem = await anyio.to_thread.run_sync(scripts_as_trusted, self.workspace_claims)
        if problem:
            return HandlerResult(fault=f"{problem}: it was not run; `callboard trust` decides on it again")
        return await self.handler.run(event_json, timeout)
