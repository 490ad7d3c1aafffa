"""One handler of a hook file: its fields, their meaning for each kind of handler, and the fields without effect.

`prompt`, `agent` and `mcp_tool` handlers are refused: a hook that calls a model would spend money outside of all
budgets, and a hook that calls a tool of an MCP server would bypass the rules for agents' calls. Parsing runs and looks
up nothing.

A hook with an `if` runs only for calls that match its rule. Otherwise it works like any other hook.

A hook that is a URL gets one POST of the event's JSON, and answers with 2xx and an empty body, or with a JSON object.
Only that object can block. Redirects are not followed and no proxy is used, so that the content of headers reaches only
the one URL in the file. Headers may name variables of the environment, if these are listed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from callboard.adapters.extensions.hook_commands import CommandHandler
from callboard.adapters.extensions.yaml import Address
from callboard.adapters.shell.parser import BashParser
from callboard.core.hooks.matching import CONDITIONAL, analysis_of, call_of_event, read_condition, rule_matches
from callboard.core.hooks.output import http_meaning
from callboard.core.permissions.values import Parsed, ProposedCall, Rule
from callboard.core.tool_access import our_names
from callboard.ports.hooks import HookHandler, HookTerms
from callboard.types.hook_answers import FITTING, AddContext, HandlerResult
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

SECONDS = 600.0
PROMPT_SECONDS = 30.0
ENDING_SECONDS = 1.5
"""Documented timeouts of handlers in seconds: `SECONDS` in general, `PROMPT_SECONDS` for `UserPromptSubmit`,
`ENDING_SECONDS` for `SessionEnd`.
"""
LONGEST_ENDING = 60.0
"""Most seconds that a `SessionEnd` handler may request."""

REFUSED_TYPES: Mapping[str, str] = {
    "prompt": "would ask a model beyond every budget",
    "agent": "would ask a model beyond every budget",
    "mcp_tool": "would call a tool of an MCP server past the rules that agents' calls are judged by",
}

_OF_ALL = frozenset({"type", "if", "timeout", "onFailure", "once", "statusMessage"})
_OF_KIND: Mapping[str, frozenset[str]] = {
    "command": frozenset({"command", "args", "shell", "async", "asyncRewake", "sandbox"}),
    "http": frozenset({"url", "headers", "allowedEnvVars"}),
}
_PLACEHOLDER = late_pattern(r"\$\{?(CLAUDE_PLUGIN_DATA|user_config\.\w+|CLAUDE_PLUGIN_ROOT)\b")
_HEADER = late_pattern(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VARIABLE = late_pattern(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Combined limits of all settings files for `http` handlers. None: no limit."""

    urls: tuple[str, ...] | None = None
    """Allowed URLs, as patterns with `*`."""
    variables: tuple[str, ...] | None = None
    """Names of environment variables that headers may contain."""


@dataclass(frozen=True, slots=True)
class HookOrigin:
    """Origin of a file's hooks."""

    project: str
    """Absolute path of the workspace."""
    compatible: bool = True
    """True for a file in the compatible format: the documented timeouts apply, and a fault of its hook lets a call
    proceed."""
    root: str = ""
    """Folder for `${CLAUDE_PLUGIN_ROOT}`; empty: it has none."""
    environment: Mapping[str, str] | None = None
    """See `CommandHandler.environment`."""
    agent_type: str = ""
    """Agent type whose front matter defines the hooks; empty: none."""
    skill: str = ""
    """Skill whose front matter defines the hooks; empty: none."""
    limits: HttpLimits = HttpLimits()
    variables: Mapping[str, str] | None = None
    """Environment for the variables in headers; None: the runtime's own."""


class FieldRefused(Exception):
    """Refusal of a part of the file. `address` has its place, the text the reason."""

    def __init__(self, address: Address, reason: str) -> None:
        super().__init__(reason)
        self.address = address


@dataclass(frozen=True, slots=True)
class HandlerFields:
    """Reading of one handler; `ignore` adds a note about a field without effect."""

    event: str
    fields: Mapping[str, Any]
    at: Address
    origin: HookOrigin
    ignore: Callable[[Address, str], None]

    def read(self) -> tuple[HookHandler, HookTerms]:
        """Return the handler and its conditions. Raises `FieldRefused`."""
        kind = self.fields.get("type")
        if kind not in _OF_KIND:
            raise FieldRefused((*self.at, "type"), self._kind_fault(kind))
        handler = self._command() if kind == "command" else self._http()
        self._report_unknown_fields(str(kind))
        return self._conditional(handler), self._terms(str(kind))

    def _kind_fault(self, kind: object) -> str:
        if isinstance(kind, str) and kind in REFUSED_TYPES:
            return f"a handler of type {kind!r} {REFUSED_TYPES[kind]}: write `command` or `http`"
        return f"there is no type {kind!r}: write `command` or `http`"

    def _report_unknown_fields(self, kind: str) -> None:
        known_fields = _OF_ALL | _OF_KIND[kind]
        others = frozenset(name for names in _OF_KIND.values() for name in names)
        for name in sorted(self.fields.keys() - known_fields):
            self.ignore(
                (*self.at, name), f"is not a field of type {kind!r}" if name in others else "there is no such field"
            )
        if "statusMessage" in self.fields:
            self.ignore((*self.at, "statusMessage"), "has no effect here")
        if self.fields.get("once") and not self.origin.skill:
            self.ignore((*self.at, "once"), "is used only in a skill's front matter: it runs each time")

    def _terms(self, kind: str) -> HookTerms:
        rewakes = kind == "command" and self._flag("asyncRewake")
        background = rewakes or (kind == "command" and self._flag("async"))
        if background and any(answer is not AddContext for answer in FITTING[self.event]):
            self.ignore(
                (*self.at, "asyncRewake" if rewakes else "async"), "its decision has no effect: nothing waits for it"
            )
        return HookTerms(
            fail_open=self._fail_open(),
            background=background,
            wakes=rewakes,
            once=bool(self.origin.skill) and self._flag("once"),
            agent_type=self.origin.agent_type,
            skill=self.origin.skill,
        )

    def _fail_open(self) -> bool:
        choice = self.fields.get("onFailure")
        if choice is None:
            return self.origin.compatible
        if choice not in ("block", "allow"):
            raise FieldRefused((*self.at, "onFailure"), "has to be `block` or `allow`")
        return choice == "allow"

    def _flag(self, name: str) -> bool:
        value = self.fields.get(name, False)
        if not isinstance(value, bool):
            raise FieldRefused((*self.at, name), "has to be true or false")
        return value

    def _conditional(self, handler: HookHandler) -> HookHandler:
        condition = self.fields.get("if")
        if condition is None or condition == "":
            return handler
        at: Address = (*self.at, "if")
        if self.event not in CONDITIONAL:
            raise FieldRefused(at, f"is used only at {', '.join(sorted(CONDITIONAL))}: at {self.event} it never runs")
        try:
            rule = read_condition(condition if isinstance(condition, str) else repr(condition))
        except ValueError as error:
            raise FieldRefused(at, str(error)) from error
        is_tool = our_names(rule.tool) or rule.tool.startswith("mcp__")
        if "*" not in rule.tool and not is_tool:
            self.ignore(at, f"there is no tool {rule.tool}: it never runs")
        return ConditionalHandler(handler, str(condition))

    # The two kinds

    def _command(self) -> CommandHandler:
        if self.fields.get("shell", "bash") != "bash" and "args" not in self.fields:
            raise FieldRefused((*self.at, "shell"), "the shell is bash")
        made = CommandHandler(
            command=self._text("command"),
            project=self.origin.project,
            args=self._texts("args") if "args" in self.fields else None,
            timeout=self._timeout(),
            root=self.origin.root,
            environment=self.origin.environment,
            sandbox=self._flag("sandbox") if "sandbox" in self.fields else None,
        )
        for word in (made.command, *(made.args or ())):
            self._check_placeholders(word)
        return made

    def _check_placeholders(self, word: str) -> None:
        for match in _PLACEHOLDER.finditer(word):
            if match[1] != "CLAUDE_PLUGIN_ROOT" or not self.origin.root:
                raise FieldRefused((*self.at, "command"), f"{match[1]} has no value here")

    def _http(self) -> HttpHandler:
        url = self._text("url")
        at = (*self.at, "url")
        try:
            parts = urlsplit(url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            fits = False
        if not fits or not url.isprintable() or " " in url:
            raise FieldRefused(at, "has to be an address that begins with http:// or https://")
        urls = self.origin.limits.urls
        limited = self.origin.limits.variables
        if urls is not None and not any(fnmatchcase(url, pattern.replace("[", "[[]")) for pattern in urls):
            raise FieldRefused(at, "is not among `allowedHttpHookUrls`")
        listed = self._texts("allowedEnvVars") if "allowedEnvVars" in self.fields else ()
        variables = tuple(name for name in listed if limited is None or name in limited)
        headers = self._headers()
        for name in sorted({name for _, text in headers for name in variables_in(text)} - set(variables)):
            self.ignore((*self.at, "headers"), f"${name} is not allowed in headers: nothing is filled in")
        return HttpHandler(url, headers, variables, self._timeout(), self.origin.variables)

    def _headers(self) -> tuple[tuple[str, str], ...]:
        at = (*self.at, "headers")
        headers = read_mapping(self.fields.get("headers", {}), at)
        for name, text in headers.items():
            if not _HEADER.fullmatch(name) or not isinstance(text, str) or not text.isprintable():
                raise FieldRefused((*at, name), "is not a header: write a name and a text")
        return tuple(headers.items())

    # Values

    def _text(self, name: str) -> str:
        value = self.fields.get(name)
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise FieldRefused((*self.at, name), "has to be a text that is not empty")
        return value

    def _texts(self, name: str) -> tuple[str, ...]:
        values = sequence(self.fields[name], (*self.at, name))
        if not all(isinstance(value, str) and "\0" not in value for value in values):
            raise FieldRefused((*self.at, name), "has to be a list of texts")
        return tuple(cast("Sequence[str]", values))

    def _timeout(self) -> float | None:
        """Return its timeout in seconds; None: that of the registry."""
        timeout = _number(self.fields.get("timeout"))
        if timeout is None:
            if self.event == "SessionEnd":
                return ENDING_SECONDS
            if not self.origin.compatible:
                return None
            return PROMPT_SECONDS if self.event == "UserPromptSubmit" else SECONDS
        if not 0 < timeout <= 86_400:
            raise FieldRefused((*self.at, "timeout"), "has to be a number of seconds above 0, and at most a day")
        return min(timeout, LONGEST_ENDING) if self.event == "SessionEnd" else timeout


def _number(value: object) -> float | None:
    """Return a number, also from a text, because a fraction in front matter is a text.

    -1 for any other value, None without a value.
    """
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch(r"\d+\.\d*|\.\d+", value):
        return float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else -1.0


def read_mapping(value: object, at: Address) -> Mapping[str, Any]:
    """Return the value as an object of named fields. Raises `FieldRefused`."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in cast("Mapping[object, Any]", value)):
        raise FieldRefused(at, "has to be an object of named fields")
    return cast("Mapping[str, Any]", value)


def sequence(value: object, at: Address) -> Sequence[object]:
    """Return the value as a list. Raises `FieldRefused`."""
    if not isinstance(value, list | tuple):
        raise FieldRefused(at, "has to be a list")
    return cast("Sequence[object]", value)


MOST_ROUNDS = 8
"""Depth to which scripts inside scripts are followed."""


@dataclass(frozen=True, slots=True)
class HandlerInside:
    """Base of a `HookHandler` that decides on another one's runs."""

    handler: HookHandler

    @property
    def name(self) -> str:
        """See `HookHandler.name`."""
        return self.handler.name

    @property
    def timeout(self) -> float | None:
        """See `HookHandler.timeout`."""
        return self.handler.timeout


@dataclass(frozen=True, slots=True)
class ConditionalHandler(HandlerInside):
    """A `HookHandler` that runs another one only for calls that match a rule. Raises ValueError for an invalid rule."""

    condition: str
    _rule: Rule = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rule", read_condition(self.condition))

    async def run(self, event_json: Json, timeout: float) -> HandlerResult:
        """Run the handler if the rule matches, else return no answer. See `HookHandler.run`."""
        call = call_of_event(event_json)
        if call is None or not await self._names(call, str(event_json.get("cwd", "/"))):
            return HandlerResult(skipped=True)
        return await self.handler.run(event_json, timeout)

    async def _names(self, call: ProposedCall, root: str) -> bool:
        home = str(Path.home())
        if call.name != "bash" or self._rule.specifier is None:
            return rule_matches(self._rule, call, {}, root=root, home=home)
        return await anyio.to_thread.run_sync(self._names_command, call, root, home)

    def _names_command(self, call: ProposedCall, root: str, home: str) -> bool:
        """Return True if the rule matches a command.

        Its scripts are parsed, which starts a program. Runs in a worker thread.
        """
        command = call.input.get("command")
        parser = BashParser()
        scripts: dict[str, Parsed] = {}
        missing = (command,) if isinstance(command, str) else ()
        for _ in range(MOST_ROUNDS):
            scripts |= {text: parser.parse(text) for text in missing}
            missing = analysis_of(str(command), scripts, home).missing
            if not missing:
                break
        return rule_matches(self._rule, call, scripts, root=root, home=home)


@dataclass(frozen=True, slots=True)
class HttpHandler:
    """A `HookHandler` that calls a URL. Equal handlers are the same hook, even from different files."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    """Headers, with `$NAME` and `${NAME}` not yet replaced."""
    variables: tuple[str, ...] = ()
    """Names that may be replaced from the environment. Every other name is replaced by the empty text."""
    timeout: float | None = None
    environment: Mapping[str, str] | None = field(default=None, compare=False, repr=False)
    """Environment for the replacement; None: the runtime's own."""

    @property
    def name(self) -> str:
        """Return the URL without parts that may be secret, shortened."""
        parts = urlsplit(self.url)
        text = f"POST {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        return text if len(text) <= 60 else text[:59] + "…"

    async def run(self, event_json: Json, timeout: float) -> HandlerResult:
        """Send one request. See `HookHandler.run`."""
        try:
            with anyio.move_on_after(timeout):
                # Few sessions have such hooks, and the HTTP client takes 10 ms to import.
                from callboard.adapters.system.json_post import post_json  # noqa: PLC0415 - see above

                status, body = await post_json(self.url, event_json, self._filled(), timeout)
                return http_meaning(event_json, status, body)
        except (OSError, ValueError) as error:  # no connection, no HTTP, or an invalid header
            return HandlerResult(fault=f"{self.name} cannot be asked: {error or type(error).__name__}")
        return HandlerResult(fault=f"no answer within {timeout:g} s")

    def _filled(self) -> dict[str, str]:
        environment = os.environ if self.environment is None else self.environment

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            return environment.get(name, "") if name in self.variables else ""

        return {name: _VARIABLE.sub(value, text) for name, text in self.headers}


def variables_in(text: str) -> tuple[str, ...]:
    """Return the names to replace in a header's text."""
    return tuple(match[1] or match[2] for match in _VARIABLE.finditer(text))
