"""One handler of a hook file: its fields, what each kind of handler makes of them, and what is not honoured.

`prompt`, `agent` and `mcp_tool` handlers are refused: a hook that asks a model would spend money that no budget counts,
and this runtime connects no MCP server. Pure reading: nothing is run, nothing is looked up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast
from urllib.parse import urlsplit

from callboard.adapters.commands import CommandHandler
from callboard.adapters.hook_conditions import OnlyIf
from callboard.adapters.hook_http import HttpHandler, variables_in
from callboard.adapters.yaml_files import Address
from callboard.core.hooks.conditions import CONDITIONAL, read_condition
from callboard.core.toolset import our_names
from callboard.ports.hooks import HookHandler, Terms
from callboard.words.hooks import FITTING, AddContext

SECONDS, PROMPT_SECONDS, ENDING_SECONDS = 600.0, 30.0, 1.5
"""The documented time-outs of handlers: in general, of `UserPromptSubmit`, of `SessionEnd`."""
LONGEST_ENDING = 60.0
"""Seconds that a `SessionEnd` handler may ask for."""

REFUSED_TYPES: Mapping[str, str] = {
    "prompt": "would ask a model beyond every budget",
    "agent": "would ask a model beyond every budget",
    "mcp_tool": "would call a tool of an MCP server past the rules that agents' calls are judged by",
}

_OF_ALL = frozenset({"type", "if", "timeout", "onFailure", "once", "statusMessage"})
_OF_KIND: Mapping[str, frozenset[str]] = {
    "command": frozenset({"command", "args", "shell", "async", "asyncRewake"}),
    "http": frozenset({"url", "headers", "allowedEnvVars"}),
}
_PLACEHOLDER = re.compile(r"\$\{?(CLAUDE_PLUGIN_DATA|user_config\.\w+|CLAUDE_PLUGIN_ROOT)\b")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What all settings files together allow to `http` handlers. None: nothing is limited."""

    urls: tuple[str, ...] | None = None
    """Patterns with `*`."""
    variables: tuple[str, ...] | None = None
    """Names of the environment that may stand in headers."""


@dataclass(frozen=True, slots=True)
class HookOrigin:
    """Where the hooks come from, as far as they need to know."""

    project: str
    """The workspace, absolute."""
    compatible: bool = True
    """A file in the compatible format: its documented time-outs, and its faults let a call proceed."""
    root: str = ""
    """The folder that `${CLAUDE_PLUGIN_ROOT}` stands for; empty: there is none."""
    environment: Mapping[str, str] | None = None
    """See `CommandHandler.environment`."""
    agent_type: str = ""
    """It is the front matter of this agent type."""
    skill: str = ""
    """It is the front matter of this skill."""
    limits: HttpLimits = HttpLimits()
    variables: Mapping[str, str] | None = None
    """The environment from which headers are filled in; None: ours."""


class Refused(Exception):
    """A part of the file that is not read; `address` is where, the text why."""

    def __init__(self, address: Address, why: str) -> None:
        super().__init__(why)
        self.address = address


@dataclass(frozen=True, slots=True)
class HandlerFields:
    """One handler under way; `ignore` takes a note of a field that is not honoured."""

    event: str
    fields: Mapping[str, Any]
    at: Address
    origin: HookOrigin
    ignore: Callable[[Address, str], None]

    def read(self) -> tuple[HookHandler, Terms]:
        """The handler, and on what terms it runs. Raises `Refused`."""
        kind = self.fields.get("type")
        if kind not in _OF_KIND:
            raise Refused((*self.at, "type"), self._why_no_kind(kind))
        handler = self._command() if kind == "command" else self._http()
        self._tell_rest(str(kind))
        return self._conditional(handler), self._terms(str(kind))

    def _why_no_kind(self, kind: object) -> str:
        if isinstance(kind, str) and kind in REFUSED_TYPES:
            return f"a handler of type {kind!r} {REFUSED_TYPES[kind]}: write `command` or `http`"
        return f"there is no type {kind!r}: write `command` or `http`"

    def _tell_rest(self, kind: str) -> None:
        known = _OF_ALL | _OF_KIND[kind]
        others = frozenset(name for names in _OF_KIND.values() for name in names)
        for name in sorted(self.fields.keys() - known):
            self.ignore(
                (*self.at, name), f"is no field of type {kind!r}" if name in others else "there is no such field"
            )
        if "statusMessage" in self.fields:
            self.ignore((*self.at, "statusMessage"), "has no effect here")
        if self.fields.get("once") and not self.origin.skill:
            self.ignore((*self.at, "once"), "is heeded only in a skill's front matter: it runs each time")

    def _terms(self, kind: str) -> Terms:
        rewakes = kind == "command" and self._flag("asyncRewake")
        background = rewakes or (kind == "command" and self._flag("async"))
        if background and any(answer is not AddContext for answer in FITTING[self.event]):
            self.ignore(
                (*self.at, "asyncRewake" if rewakes else "async"), "what it decides has no effect: nobody waits"
            )
        return Terms(
            fail_open=self._fail_open(),
            background=background,
            wakes=rewakes,
            once=bool(self.origin.skill) and self._flag("once"),
            agent_type=self.origin.agent_type,
            skill=self.origin.skill,
        )

    def _fail_open(self) -> bool:
        wanted = self.fields.get("onFailure")
        if wanted is None:
            return self.origin.compatible
        if wanted not in ("block", "allow"):
            raise Refused((*self.at, "onFailure"), "has to be `block` or `allow`")
        return wanted == "allow"

    def _flag(self, name: str) -> bool:
        value = self.fields.get(name, False)
        if not isinstance(value, bool):
            raise Refused((*self.at, name), "has to be true or false")
        return value

    def _conditional(self, handler: HookHandler) -> HookHandler:
        condition = self.fields.get("if")
        if condition is None or condition == "":
            return handler
        at: Address = (*self.at, "if")
        if self.event not in CONDITIONAL:
            raise Refused(at, f"is heeded only at {', '.join(sorted(CONDITIONAL))}: at {self.event} it never runs")
        try:
            rule = read_condition(condition if isinstance(condition, str) else repr(condition))
        except ValueError as error:
            raise Refused(at, str(error)) from error
        known = our_names(rule.tool) or rule.tool == "MultiEdit" or rule.tool.startswith("mcp__")
        if "*" not in rule.tool and not known:
            self.ignore(at, f"there is no tool {rule.tool}: it never runs")
        return OnlyIf(handler, str(condition))

    # The two kinds

    def _command(self) -> CommandHandler:
        if self.fields.get("shell", "bash") != "bash" and "args" not in self.fields:
            raise Refused((*self.at, "shell"), "the shell is bash")
        made = CommandHandler(
            command=self._text("command"),
            project=self.origin.project,
            args=self._texts("args") if "args" in self.fields else None,
            timeout=self._timeout(),
            root=self.origin.root,
            environment=self.origin.environment,
        )
        for word in (made.command, *(made.args or ())):
            self._check_placeholders(word)
        return made

    def _check_placeholders(self, word: str) -> None:
        for found in _PLACEHOLDER.finditer(word):
            if found[1] != "CLAUDE_PLUGIN_ROOT" or not self.origin.root:
                raise Refused((*self.at, "command"), f"{found[1]} stands for nothing here")

    def _http(self) -> HttpHandler:
        url, at = self._text("url"), (*self.at, "url")
        try:
            parts = urlsplit(url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            fits = False
        if not fits or not url.isprintable() or " " in url:
            raise Refused(at, "has to be an address that begins with http:// or https://")
        urls, limited = self.origin.limits.urls, self.origin.limits.variables
        if urls is not None and not any(fnmatchcase(url, pattern.replace("[", "[[]")) for pattern in urls):
            raise Refused(at, "is not among `allowedHttpHookUrls`")
        listed = self._texts("allowedEnvVars") if "allowedEnvVars" in self.fields else ()
        variables = tuple(name for name in listed if limited is None or name in limited)
        headers = self._headers()
        for name in sorted({name for _, text in headers for name in variables_in(text)} - set(variables)):
            self.ignore((*self.at, "headers"), f"${name} is not allowed in headers: nothing is filled in")
        return HttpHandler(url, headers, variables, self._timeout(), self.origin.variables)

    def _headers(self) -> tuple[tuple[str, str], ...]:
        given, at = self.fields.get("headers", {}), (*self.at, "headers")
        headers = mapping(given, at)
        for name, text in headers.items():
            if not _HEADER.fullmatch(name) or not isinstance(text, str) or not text.isprintable():
                raise Refused((*at, name), "is no header: write a name and a text")
        return tuple(headers.items())

    # Values

    def _text(self, name: str) -> str:
        value = self.fields.get(name)
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise Refused((*self.at, name), "has to be a text that is not empty")
        return value

    def _texts(self, name: str) -> tuple[str, ...]:
        values = sequence(self.fields[name], (*self.at, name))
        if not all(isinstance(value, str) and "\0" not in value for value in values):
            raise Refused((*self.at, name), "has to be a list of texts")
        return tuple(cast("Sequence[str]", values))

    def _timeout(self) -> float | None:
        """Seconds; None: the registry's."""
        timeout = _number(self.fields.get("timeout"))
        if timeout is None:
            if self.event == "SessionEnd":
                return ENDING_SECONDS
            if not self.origin.compatible:
                return None
            return PROMPT_SECONDS if self.event == "UserPromptSubmit" else SECONDS
        if not 0 < timeout <= 86_400:
            raise Refused((*self.at, "timeout"), "has to be a number of seconds above 0, and at most a day")
        return min(timeout, LONGEST_ENDING) if self.event == "SessionEnd" else timeout


def _number(value: object) -> float | None:
    """A number, also as the text that a fraction is in front matter; -1 for anything else, None for nothing."""
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch(r"\d+\.\d*|\.\d+", value):
        return float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else -1.0


def mapping(value: object, at: Address) -> Mapping[str, Any]:
    """The value as an object of named fields. Raises `Refused`."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in cast("Mapping[object, Any]", value)):
        raise Refused(at, "has to be an object of named fields")
    return cast("Mapping[str, Any]", value)


def sequence(value: object, at: Address) -> Sequence[object]:
    """The value as a list. Raises `Refused`."""
    if not isinstance(value, list | tuple):
        raise Refused(at, "has to be a list")
    return cast("Sequence[object]", value)
