"""Reads hooks in the compatible form: the `hooks` of a settings file, a `hooks/hooks.json`, a front matter's.

What this version cannot do (other events, other types of handler, `if`, background) is refused with its place and the
reason, never run half. What a workspace brings is read only after a person trusted it: that is the caller's to know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from callboard.adapters.commands import CommandHandler
from callboard.adapters.files import LARGEST_FILE, Note
from callboard.adapters.yaml_files import Address, dotted
from callboard.core.hooks.rules import Misfit, never_fits, read_matcher
from callboard.words.errors import SettingsError
from callboard.words.hooks import FITTING, TOOL_EVENTS

SECONDS, PROMPT_SECONDS = 600.0, 30.0
"""The documented time-outs of commands in compatible files; of ours the registry's holds."""

LATER_EVENTS = frozenset(
    {
        "SessionStart",
        "Setup",
        "InstructionsLoaded",
        "UserPromptExpansion",
        "MessageDisplay",
        "PermissionRequest",
        "PermissionDenied",
        "PostToolUseFailure",
        "PostToolBatch",
        "Notification",
        "SubagentStart",
        "SubagentStop",
        "TaskCreated",
        "TaskCompleted",
        "StopFailure",
        "TeammateIdle",
        "ConfigChange",
        "CwdChanged",
        "DirectoryAdded",
        "FileChanged",
        "WorktreeCreate",
        "WorktreeRemove",
        "PreCompact",
        "PostCompact",
        "SessionEnd",
        "Elicitation",
        "ElicitationResult",
    }
)
"""Documented events that have no moment here yet."""
LATER_TYPES = frozenset({"http", "mcp_tool", "prompt", "agent"})

_KNOWN = frozenset({"type", "command", "args", "timeout", "shell"})
_WITHOUT_EFFECT = frozenset({"statusMessage", "once"})
_SWITCHES = ("allowManagedHooksOnly", "allowedHttpHookUrls", "httpHookAllowedEnvVars")
_PLACEHOLDER = re.compile(r"\$\{?(CLAUDE_PLUGIN_DATA|user_config\.\w+|CLAUDE_PLUGIN_ROOT)\b")


@dataclass(frozen=True, slots=True)
class HookOrigin:
    """Where the hooks come from, as far as their commands need to know."""

    project: str
    """The workspace, absolute."""
    compatible: bool = True
    """A file in the compatible format: its documented time-outs, and its faults let a call proceed."""
    root: str = ""
    """The folder that `${CLAUDE_PLUGIN_ROOT}` stands for; empty: there is none."""
    environment: Mapping[str, str] | None = None
    """See `CommandHandler.environment`."""


@dataclass(frozen=True, slots=True)
class HookEntry:
    """One hook, ready for `HookRegistry.add(event, handler, matcher, fail_open=fail_open)`."""

    event: str
    handler: CommandHandler
    matcher: str = ""
    fail_open: bool = True


@dataclass(frozen=True, slots=True)
class HooksRead:
    """The hooks of one file, in its order, and what of it is not honoured."""

    entries: tuple[HookEntry, ...] = ()
    notes: tuple[Note, ...] = ()
    all_off: bool = False
    """The file says `disableAllHooks`: no hook of any file is to run."""


class _Refused(Exception):
    """A part of the file that is not read; `address` is where, the text why."""

    def __init__(self, address: Address, why: str) -> None:
        super().__init__(why)
        self.address = address


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
        except _Refused as refusal:
            self.notes.append(Note(self.path, dotted(refusal.address), "refused", str(refusal)))

    def events(self, hooks: object) -> None:
        for event, groups in _mapping(hooks, ("hooks",)).items():
            self.attempt(lambda event=event, groups=groups: self._event(event, groups))

    def _event(self, event: str, groups: object) -> None:
        at: Address = ("hooks", event)
        if event in LATER_EVENTS:
            raise _Refused(at, "this event is not supported yet: its hooks never run")
        if event not in FITTING:
            raise _Refused(at, f"there is no such event; there are {', '.join(sorted(FITTING))}")
        for number, group in enumerate(_sequence(groups, at)):
            here: Address = (*at, number)
            self.attempt(lambda group=group, here=here: self._group(event, group, here))

    def _group(self, event: str, group: object, at: Address) -> None:
        fields = _mapping(group, at)
        matcher = self._matcher(event, fields.get("matcher", ""), (*at, "matcher"))
        for name in sorted(fields.keys() - {"matcher", "hooks"}):
            self.ignore((*at, name), "there is no such field")
        for number, handler in enumerate(_sequence(fields.get("hooks"), (*at, "hooks"))):
            here: Address = (*at, "hooks", number)
            self.attempt(lambda handler=handler, here=here: self._handler(event, matcher, handler, here))

    def _matcher(self, event: str, text: object, at: Address) -> str:
        if not isinstance(text, str):
            raise _Refused(at, "a matcher is a text")
        if event not in TOOL_EVENTS:
            if text not in ("", "*"):
                self.ignore(at, f"{event} is about no tool: its hooks run each time")
            return ""
        try:
            matcher = read_matcher(text)
        except Misfit as misfit:
            raise _Refused(at, str(misfit)) from misfit
        if never_fits(matcher):
            self.ignore(at, f"{text!r} matches no tool that there is: its hooks never run")
        return text

    def _handler(self, event: str, matcher: str, handler: object, at: Address) -> None:
        fields = _mapping(handler, at)
        self._refuse_later(fields, at)
        for name in sorted(fields.keys() - _KNOWN - {"if", "async", "asyncRewake"}):
            has_none = name in _WITHOUT_EFFECT
            self.ignore((*at, name), "has no effect here" if has_none else "there is no such field")
        made = CommandHandler(
            command=_command(fields, at),
            project=self.origin.project,
            args=_args(fields, at),
            timeout=_timeout(fields, at),
            root=self.origin.root,
            environment=self.origin.environment,
        )
        for word in (made.command, *(made.args or ())):
            self._check_placeholders(word, at)
        if made.timeout is None and self.origin.compatible:
            made = replace(made, timeout=PROMPT_SECONDS if event == "UserPromptSubmit" else SECONDS)
        self.entries.append(HookEntry(event, made, matcher, fail_open=self.origin.compatible))

    def _refuse_later(self, fields: Mapping[str, Any], at: Address) -> None:
        kind = fields.get("type")
        if kind != "command":
            later = isinstance(kind, str) and kind in LATER_TYPES
            why = f"handlers of type {kind!r} are not supported yet" if later else f"there is no type {kind!r}"
            raise _Refused((*at, "type"), f"{why}: write `command`")
        if fields.get("if"):
            raise _Refused((*at, "if"), "is not supported yet: test `tool_input` in the command")
        for name in ("async", "asyncRewake"):
            if fields.get(name):
                raise _Refused((*at, name), "hooks in the background are not supported yet")
        if fields.get("shell", "bash") != "bash" and "args" not in fields:
            raise _Refused((*at, "shell"), "the shell is bash")

    def _check_placeholders(self, word: str, at: Address) -> None:
        for found in _PLACEHOLDER.finditer(word):
            if found[1] != "CLAUDE_PLUGIN_ROOT" or not self.origin.root:
                raise _Refused((*at, "command"), f"{found[1]} stands for nothing here")


def read_hooks(hooks: object, path: str, origin: HookOrigin) -> HooksRead:
    """The hooks of a `hooks` mapping that was parsed already; `path` names its file in the notes. Raises nothing."""
    reading = _Reading(path, origin)
    reading.attempt(lambda: reading.events(hooks))
    return HooksRead(tuple(reading.entries), tuple(reading.notes))


def load_hooks(path: Path, origin: HookOrigin) -> HooksRead:
    """The hooks of a `settings.json` or `hooks.json`; none when there is no such file.

    Raises `SettingsError`, with the line, for a file that cannot be read or is no JSON object.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return HooksRead()
    except OSError as error:
        raise SettingsError(f"cannot be read: {error.strerror or error}", str(path)) from error
    data, notes = _parsed(raw, str(path))
    notes += [Note(str(path), name, "ignored", "has no effect here") for name in _SWITCHES if name in data]
    if data.get("disableAllHooks") is True:
        notes.append(Note(str(path), "disableAllHooks", "ignored", "is set: no hook runs"))
        return HooksRead((), tuple(notes), all_off=True)
    read = read_hooks(data.get("hooks", {}), str(path), origin)
    return replace(read, notes=(*notes, *read.notes))


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


def _mapping(value: object, at: Address) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in cast("Mapping[object, Any]", value)):
        raise _Refused(at, "has to be an object of named fields")
    return cast("Mapping[str, Any]", value)


def _sequence(value: object, at: Address) -> Sequence[object]:
    if not isinstance(value, list):
        raise _Refused(at, "has to be a list")
    return cast("Sequence[object]", value)


def _command(fields: Mapping[str, Any], at: Address) -> str:
    command = fields.get("command")
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise _Refused((*at, "command"), "has to be a text that is not empty")
    return command


def _args(fields: Mapping[str, Any], at: Address) -> tuple[str, ...] | None:
    if "args" not in fields:
        return None
    args = _sequence(fields["args"], (*at, "args"))
    if not all(isinstance(arg, str) and "\0" not in arg for arg in args):
        raise _Refused((*at, "args"), "has to be a list of texts")
    return tuple(cast("Sequence[str]", args))


def _timeout(fields: Mapping[str, Any], at: Address) -> float | None:
    """Seconds."""
    timeout: object = fields.get("timeout")
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= 86_400:
        raise _Refused((*at, "timeout"), "has to be a number of seconds above 0, and at most a day")
    return float(timeout)
