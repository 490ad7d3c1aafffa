"""Reads hooks in the compatible form: the `hooks` of a settings file, a `hooks/hooks.json`, a front matter's.

What this version cannot do is refused with its place and the reason, never run half, and what has no effect is told.
What a workspace brings is read only after a person trusted it: that is the caller's to know.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from callboard.adapters.files import LARGEST_FILE, Note
from callboard.adapters.hook_fields import HandlerFields, HookOrigin, HttpLimits, Refused, mapping, sequence
from callboard.adapters.yaml_files import Address, dotted
from callboard.core.hooks.rules import Misfit, read_matcher
from callboard.core.hooks.subjects import MATCHED, fits_nothing
from callboard.ports.hooks import HookHandler, Terms
from callboard.words.errors import SettingsError
from callboard.words.hooks import FITTING, TOOL_EVENTS

WITHOUT_MOMENT: Mapping[str, str] = MappingProxyType(
    {
        "Setup": "there is no set-up run",
        "InstructionsLoaded": "instructions are read when the prompt is composed, not one by one",
        "UserPromptExpansion": "there are no prompts that are expanded",
        "MessageDisplay": "what is shown passes no hooks",
        "PermissionDenied": "there is no mode `auto` that would deny by itself",
        "ConfigChange": "settings are read when a session begins, and not again",
        "DirectoryAdded": "no folder is added while a session runs",
        "FileChanged": "no file is watched",
        "Elicitation": "no MCP server is connected",
        "ElicitationResult": "no MCP server is connected",
    }
)
"""Documented events that never happen here, and why."""

_SWITCHES = ("allowManagedHooksOnly",)


@dataclass(frozen=True, slots=True)
class HookEntry:
    """One hook, ready for `HookRegistry.add(event, handler, matcher, terms=terms)`."""

    event: str
    handler: HookHandler
    matcher: str = ""
    terms: Terms = Terms(fail_open=True)
    place: tuple[str, str] = field(default=("", ""), compare=False)
    """File and field."""

    @property
    def fail_open(self) -> bool:
        """Its faults stop nothing."""
        return self.terms.fail_open


@dataclass(frozen=True, slots=True)
class HooksRead:
    """The hooks of one file, in its order, and what of it is not honoured."""

    entries: tuple[HookEntry, ...] = ()
    notes: tuple[Note, ...] = ()
    all_off: bool = False
    """The file says `disableAllHooks`: no hook of any file is to run."""


@dataclass
class _Reading:
    """One file under way."""

    path: str
    origin: HookOrigin
    entries: list[HookEntry] = field(default_factory=list[HookEntry])
    notes: list[Note] = field(default_factory=list[Note])

    def ignore(self, address: Address, why: str) -> None:
        self.notes.append(Note(self.path, dotted(address), "ignored", why))

    def attempt(self, read: Callable[[], None]) -> None:
        """Read one part; when it is refused the rest is still read."""
        try:
            read()
        except Refused as refusal:
            self.notes.append(Note(self.path, dotted(refusal.address), "refused", str(refusal)))

    def events(self, hooks: object) -> None:
        for event, groups in mapping(hooks, ("hooks",)).items():
            self.attempt(lambda event=event, groups=groups: self._event(event, groups))

    def _event(self, event: str, groups: object) -> None:
        at: Address = ("hooks", event)
        if event in WITHOUT_MOMENT:
            raise Refused(at, f"this event never happens here: {WITHOUT_MOMENT[event]}")
        if event not in FITTING:
            raise Refused(at, f"there is no such event; there are {', '.join(sorted(FITTING))}")
        if event == "WorktreeCreate":
            self.ignore(at, "may refuse a worktree; a path that it prints is not used")
        for number, group in enumerate(sequence(groups, at)):
            here: Address = (*at, number)
            self.attempt(lambda group=group, here=here: self._group(event, group, here))

    def _group(self, event: str, group: object, at: Address) -> None:
        fields = mapping(group, at)
        matcher = self._matcher(event, fields.get("matcher", ""), (*at, "matcher"))
        for name in sorted(fields.keys() - {"matcher", "hooks"}):
            self.ignore((*at, name), "there is no such field")
        for number, handler in enumerate(sequence(fields.get("hooks"), (*at, "hooks"))):
            here: Address = (*at, "hooks", number)
            self.attempt(lambda handler=handler, here=here: self._handler(event, matcher, handler, here))

    def _matcher(self, event: str, text: object, at: Address) -> str:
        if not isinstance(text, str):
            raise Refused(at, "a matcher is a text")
        if event not in MATCHED:
            if text not in ("", "*"):
                self.ignore(at, f"{event} has no matcher: its hooks run each time")
            return ""
        try:
            matcher = read_matcher(text)
        except Misfit as misfit:
            raise Refused(at, str(misfit)) from misfit
        if fits_nothing(event, matcher):
            what = "no tool that there is" if event in TOOL_EVENTS else "nothing that happens here"
            self.ignore(at, f"{text!r} matches {what}: its hooks never run")
        return text

    def _handler(self, event: str, matcher: str, handler: object, at: Address) -> None:
        made, terms = HandlerFields(event, mapping(handler, at), at, self.origin, self.ignore).read()
        # A teammate's turn ends with `Stop`, a subagent's with the other.
        both = event == "Stop" and self.origin.agent_type
        for name in (event, "SubagentStop") if both else (event,):
            self.entries.append(HookEntry(name, made, matcher, terms, (self.path, dotted(at))))


def read_hooks(hooks: object, path: str, origin: HookOrigin) -> HooksRead:
    """The hooks of a `hooks` mapping that was parsed already; `path` names its file in the notes. Raises nothing."""
    reading = _Reading(path, origin)
    reading.attempt(lambda: reading.events(hooks))
    return HooksRead(tuple(reading.entries), tuple(reading.notes))


def load_hooks(path: Path, origin: HookOrigin, raw: bytes | None = None) -> HooksRead:
    """The hooks of a `settings.json` or `hooks.json`; none when there is no such file. `raw`: what stands in it.

    Raises `SettingsError`, with the line, for a file that cannot be read or is no JSON object.
    """
    if raw is None:
        raw = _read(path)
    if raw is None:
        return HooksRead()
    data, notes = _parsed(raw, str(path))
    notes += [Note(str(path), name, "ignored", "has no effect here") for name in _SWITCHES if name in data]
    if data.get("disableAllHooks") is True:
        notes.append(Note(str(path), "disableAllHooks", "ignored", "is set: no hook runs"))
        return HooksRead((), tuple(notes), all_off=True)
    own = _limits(data, str(path), notes)
    origin = replace(origin, limits=joined_limits((origin.limits, own)))
    read = read_hooks(data.get("hooks", {}), str(path), origin)
    return replace(read, notes=(*notes, *read.notes))


def http_limits(path: Path, raw: bytes | None = None) -> HttpLimits:
    """What a settings file says of all `http` handlers, its own and those of other files. Raises `SettingsError`."""
    raw = _read(path) if raw is None else raw
    return HttpLimits() if raw is None else _limits(_parsed(raw, str(path))[0], str(path), [])


def joined_limits(limits: Sequence[HttpLimits]) -> HttpLimits:
    """The limits of several files together: their lists are merged, and bind all as soon as one has a list."""

    def merged(lists: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
        given = [one for one in lists if one is not None]
        return tuple(dict.fromkeys(name for one in given for name in one)) if given else None

    return HttpLimits(merged([one.urls for one in limits]), merged([one.variables for one in limits]))


def _limits(data: Mapping[str, Any], path: str, notes: list[Note]) -> HttpLimits:
    def texts(name: str) -> tuple[str, ...] | None:
        values: object = data.get(name)
        if values is None:
            return None
        if not isinstance(values, list) or not all(isinstance(one, str) for one in cast("list[object]", values)):
            notes.append(Note(path, name, "refused", "has to be a list of texts: nothing is allowed"))
            return ()
        return tuple(cast("list[str]", values))

    return HttpLimits(texts("allowedHttpHookUrls"), texts("httpHookAllowedEnvVars"))


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"cannot be read: {error.strerror or error}", str(path)) from error


def _parsed(raw: bytes, path: str) -> tuple[Mapping[str, Any], list[Note]]:
    notes: list[Note] = []

    def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        names = [name for name, _ in pairs]
        doubled = sorted(name for name in fields if names.count(name) > 1)
        notes.extend(Note(path, name, "ignored", "is written twice: only the last one counts") for name in doubled)
        return fields

    if len(raw) > LARGEST_FILE:
        raise SettingsError(f"is larger than {LARGEST_FILE:,} bytes", path)
    try:
        data = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=once_each)
    except json.JSONDecodeError as error:
        raise SettingsError(f"is not valid JSON: {error.msg}", f"{path}:{error.lineno}") from error
    except (ValueError, RecursionError) as error:
        raise SettingsError("is not valid JSON in UTF-8", path) from error
    if not isinstance(data, dict):
        raise SettingsError("is a JSON object (`{ ... }`)", path)
    return cast("Mapping[str, Any]", data), notes
