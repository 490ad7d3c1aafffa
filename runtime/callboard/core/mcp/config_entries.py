"""Entries of `mcpServers` as values, field by field; their variables; and enabled or disabled servers. Pure.

The entries are those of `.mcp.json` and other files of that form.

A fault makes only its own entry unusable, or only its own field if the server works without it. Each fault is reported
once with line and field. docs/mcp.md lists the fields; they are those that `.mcp.json` has in other programs. Variables
are `${VAR}` and `${VAR:-default}`; their values are passed as a mapping.

Servers are enabled or disabled by name, command or address. The keys are those of existing settings:
`enabledMcpjsonServers`, `disabledMcpjsonServers`, `enableAllProjectMcpServers` (for the workspace's `.mcp.json`),
`allowedMcpServers` and `deniedMcpServers` (for all servers). Restrictions apply from any source; permissions only from
a person or a trusted source.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Literal
from urllib.parse import urlsplit

from callboard.core.trust.yaml_nodes import YamlNode, plain
from callboard.types.choices import choose
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import ServerEntry, ServerScope, Transport

RESERVED = frozenset({"workspace", "claude-in-chrome", "computer-use", "Claude Preview", "Claude Browser"})
TYPES: Mapping[str, Transport] = MappingProxyType(
    {
        "stdio": "stdio",
        "http": "http",
        "streamable-http": "http",
        "streamableHttp": "http",
        "sse": "sse",
        "sdk": "sdk",
    }
)
"""Values of `type` -> transport to the server."""
_REMOTE_ONLY = frozenset({"url", "headers", "headersHelper"})
_LOCAL_ONLY = frozenset({"command", "args", "env"})
_KNOWN = _REMOTE_ONLY | _LOCAL_ONLY | {"type", "timeout", "alwaysLoad", "oauth", "disabled"}
_QUIET = frozenset({"description", "$schema", "name", "comment", "_comment"})
"""Fields that a server does not need."""
_OAUTH = "signing in by OAuth is not there in this version; give a token by `headers` or `headersHelper`"
_WS = "WebSocket servers are not reached in this version; use the server's `http` address"
_NO_TYPE = 'has a `url` and no `type` (url_missing_type): add `"type": "http"` (or "sse")'


@dataclass(frozen=True, slots=True)
class EntryFault:
    """A fault of an entry."""

    line: int
    field: str
    why: str
    verdict: Literal["ignored", "refused"] = "refused"


@dataclass(slots=True)
class ConfigEntries:
    """The entries of one document."""

    entries: dict[str, ServerEntry] = field(default_factory=dict[str, ServerEntry])
    faults: list[EntryFault] = field(default_factory=list[EntryFault])
    lines: dict[str, int] = field(default_factory=dict[str, int])
    """Line of each entry's name."""
    off: dict[str, str] = field(default_factory=dict[str, str])
    """Entries that disable themselves -> the reason."""


class _Unusable(Exception):
    """Error for an entry that cannot be used. Carries its fault."""

    def __init__(self, fault: EntryFault) -> None:
        super().__init__(fault.why)
        self.fault = fault


def read_document(document: YamlNode, path: str, scope: ServerScope) -> ConfigEntries:
    """Return the servers of a document with the field `mcpServers`."""
    result = ConfigEntries()
    if document.members is None:
        result.faults.append(EntryFault(document.line, "", 'is an object with the field "mcpServers"'))
        return result
    named = [node for name, node in document.members if name == "mcpServers"]
    if not named:
        names = ", ".join(f"`{name}`" for name, _ in document.members) or "nothing"
        result.faults.append(
            EntryFault(document.line, "mcpServers", f"is missing: the servers stand in it; there is {names}")
        )
        return result
    return read_servers_node(named[-1], path, scope)


def read_servers_node(servers: YamlNode, path: str, scope: ServerScope, at: str = "mcpServers") -> ConfigEntries:
    """Return the servers of a mapping name -> entry. `at`: its name in its document."""
    result = ConfigEntries()
    if servers.members is None:
        result.faults.append(EntryFault(servers.line, at, "is an object: the name of each server -> its entry"))
        return result
    for name, node in servers.members:
        where = f"{at}.{name}"
        if name in result.entries:
            result.faults.append(EntryFault(node.line, where, "is there twice: the last one counts", "ignored"))
            del result.entries[name]
        try:
            result.entries[name] = _Entry(name, node, where, result).read(path, scope)
            result.lines[name] = node.line
        except _Unusable as error:
            result.faults.append(error.fault)
    return result


class _Entry:
    """One entry while it is read."""

    def __init__(self, name: str, node: YamlNode, at: str, into: ConfigEntries) -> None:
        self._name = name
        self._node = node
        self._at = at
        self._into = into
        self._fields: dict[str, YamlNode] = {}

    def read(self, path: str, scope: ServerScope) -> ServerEntry:
        self._named()
        transport = self._transport(scope)
        self._report_unused_fields(transport)
        if transport == "stdio":
            self._needed("command")
        elif transport != "sdk":
            self._address()
        return ServerEntry(
            self._name,
            transport,
            scope,
            path,
            command=self._text("command") if transport == "stdio" else "",
            args=self._list("args") if transport == "stdio" else (),
            env=self._texts("env") if transport == "stdio" else {},
            url=self._text("url") if transport in ("http", "sse") else "",
            headers=self._texts("headers") if transport in ("http", "sse") else {},
            headers_helper=self._text("headersHelper") if transport in ("http", "sse") else "",
            timeout=self._timeout(),
            always_load=self._flag("alwaysLoad"),
        )

    def _named(self) -> None:
        if self._name in RESERVED:
            self._refuse(self._node, "", f"`{self._name}` is a reserved name: give the server another one")
        if not self._name.strip() or len(self._name) > 200:
            self._refuse(self._node, "", "a server has a name of 1 to 200 characters")
        if self._node.members is None:
            self._refuse(self._node, "", f"is an object of named fields, not {plain(self._node)!r:.80}")
        for name, node in self._node.members or ():
            self._fields[name] = node

    def _transport(self, scope: ServerScope) -> Transport:
        declared = self._fields.get("type")
        if declared is None:
            if "url" in self._fields and "command" not in self._fields:
                self._refuse(self._node, "", _NO_TYPE)
            return "stdio"
        if declared.value in ("ws", "websocket"):
            self._refuse(declared, "type", _WS)
        transport = TYPES.get(declared.value) if isinstance(declared.value, str) else None
        if transport is None or (transport == "sdk" and scope != "run"):
            types = [name for name in TYPES if name not in ("sdk", "streamableHttp")]
            self._refuse(declared, "type", f"unknown type {plain(declared)!r:.80}: {choose(types)}")
        assert transport is not None
        if transport == "sse":
            self._report(declared, "type", "`sse` is deprecated; servers speak `http` by now", "ignored")
        return transport

    def _report_unused_fields(self, transport: Transport) -> None:
        """Report the fields without a meaning for this type of server."""
        strange = {"stdio": _REMOTE_ONLY, "sdk": frozenset[str]()}.get(transport, _LOCAL_ONLY)
        for name, node in self._fields.items():
            if name in strange:
                self._report(node, name, f"says nothing for a server of type {transport}", "ignored")
            elif name not in _KNOWN and name not in _QUIET:
                self._report(node, name, "is not a field of a server here", "ignored")
        if "oauth" in self._fields:
            self._report(self._fields["oauth"], "oauth", _OAUTH)
        if self._flag("disabled"):
            self._into.off[self._name] = "its entry says `disabled`"

    def _needed(self, name: str) -> None:
        if not self._text(name).strip():
            self._refuse(self._fields.get(name, self._node), name, "is missing or empty")

    def _address(self) -> None:
        self._needed("url")
        url = self._text("url").strip()
        if not url.lower().startswith(("http://", "https://", "${")):
            self._refuse(self._fields["url"], "url", "is an address that begins with http:// or https://")
        elif url.lower().startswith("http") and not _has_host(url):
            self._refuse(self._fields["url"], "url", "is an address with a host, as https://example.org/mcp")

    def _text(self, name: str) -> str:
        node = self._fields.get(name)
        if node is None:
            return ""
        return self._one_text(node, name)

    def _one_text(self, node: YamlNode, name: str) -> str:
        if not isinstance(node.value, str):
            self._refuse(node, name, f"is a text, not {plain(node)!r:.80}")
        text = str(node.value)
        if "\0" in text:
            self._refuse(node, name, "holds a NUL character")
        if text != text.strip():
            self._report(node, name, "has white space at an end, which is kept as it is written", "ignored")
        return text

    def _list(self, name: str) -> tuple[str, ...]:
        node = self._fields.get(name)
        if node is None:
            return ()
        if node.items is None:
            self._refuse(node, name, "is a list of texts")
        return tuple(self._one_text(item, f"{name}[{number}]") for number, item in enumerate(node.items or ()))

    def _texts(self, name: str) -> dict[str, str]:
        node = self._fields.get(name)
        if node is None:
            return {}
        if node.members is None:
            self._refuse(node, name, "is an object: names -> texts")
        return {key: self._pair(key, value, name) for key, value in node.members or ()}

    def _pair(self, key: str, node: YamlNode, name: str) -> str:
        bad = not key or "\0" in key or (name == "env" and "=" in key) or (name == "headers" and not _header(key))
        if bad:
            self._refuse(node, f"{name}.{key}", "cannot be used as a name")
        text = self._one_text(node, f"{name}.{key}")
        if name == "headers" and any(character in text for character in "\r\n"):
            self._refuse(node, f"{name}.{key}", "holds a line break")
        return text

    def _timeout(self) -> float | None:
        node = self._fields.get("timeout")
        if node is None:
            return None
        value = node.value
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
            self._report(node, "timeout", f"is a number of milliseconds, not {plain(node)!r:.80}", "ignored")
            return None
        if value < 1000:
            self._report(node, "timeout", "is in milliseconds, and one under 1000 does not count", "ignored")
            return None
        return float(value) / 1000

    def _flag(self, name: str) -> bool:
        node = self._fields.get(name)
        if node is not None and not isinstance(node.value, bool):
            self._report(node, name, f"is true or false, not {plain(node)!r:.80}", "ignored")
            return False
        return node is not None and node.value is True

    def _report(
        self, node: YamlNode, name: str, message: str, verdict: Literal["ignored", "refused"] = "refused"
    ) -> None:
        fault = EntryFault(node.line, f"{self._at}.{name}", message, verdict)
        if fault not in self._into.faults:
            self._into.faults.append(fault)

    def _refuse(self, node: YamlNode, name: str, message: str) -> None:
        raise _Unusable(EntryFault(node.line, f"{self._at}.{name}" if name else self._at, message))


def _has_host(url: str) -> bool:
    try:
        return bool(urlsplit(url).hostname)
    except ValueError:  # brackets without an address
        return False


def _header(name: str) -> bool:
    """Return True if this is a valid header name (RFC 9110, section 5.1)."""
    return name.isascii() and all(character.isalnum() or character in "!#$%&'*+-.^_`|~" for character in name)


def header_fault(name: str, value: str) -> str:
    """Return the reason why a header cannot be sent; empty if it can. It contains no part of the value: a secret."""
    if not _header(name):
        return f"{name!r} cannot be used as the name of a header"
    if any(character in value for character in "\r\n\0"):
        return f"the value of its header `{name}` contains a line break or NUL"
    return "" if value.isascii() else f"the value of its header `{name}` contains a character that is not ASCII"


KEYS = frozenset(
    {
        "enabledMcpjsonServers",
        "disabledMcpjsonServers",
        "enableAllProjectMcpServers",
        "allowedMcpServers",
        "deniedMcpServers",
        "disabledMcpServers",
    }
)
_TIGHTENS = frozenset({"disabledMcpjsonServers", "deniedMcpServers", "disabledMcpServers"})


@dataclass(frozen=True, slots=True)
class Approval:
    """One of the approval keys, and its location."""

    key: str
    value: YamlNode
    place: str
    """`file:line`."""
    trusted: bool = True
    """True if a person set or trusted it."""

    @property
    def counts(self) -> bool:
        return self.trusted or self.key in _TIGHTENS


def off_by(entry: ServerEntry, approvals: Sequence[Approval]) -> str:
    """Return the reason why these approvals disable a server; empty if they do not."""
    active = [approval for approval in approvals if approval.counts]
    for approval in active:
        if approval.key == "deniedMcpServers" and _matches(entry, approval.value):
            return f"deniedMcpServers names it ({approval.place})"
        if approval.key == "disabledMcpServers" and entry.name in _names(approval.value):
            return f"disabledMcpServers names it ({approval.place})"
        by_project_list = approval.key == "disabledMcpjsonServers" and entry.scope == "workspace"
        if by_project_list and entry.name in _names(approval.value):
            return f"disabledMcpjsonServers names it ({approval.place})"
    allowed = [approval for approval in active if approval.key == "allowedMcpServers"]
    if allowed and not any(_matches(entry, approval.value) for approval in allowed):
        return f"allowedMcpServers does not name it ({allowed[0].place})"
    return _not_enabled(entry, active) if entry.scope == "workspace" else ""


def _not_enabled(entry: ServerEntry, approvals: Sequence[Approval]) -> str:
    """Return the reason if lists of enabled servers of `.mcp.json` exist and none includes this one.

    Empty if all are enabled.
    """
    if any(approval.key == "enableAllProjectMcpServers" and approval.value.value is True for approval in approvals):
        return ""
    lists = [approval for approval in approvals if approval.key == "enabledMcpjsonServers" and _names(approval.value)]
    if not lists or any(entry.name in _names(approval.value) for approval in lists):
        return ""
    return f"enabledMcpjsonServers does not name it ({lists[0].place})"


def _names(node: YamlNode) -> frozenset[str]:
    return frozenset(item.value for item in node.items or () if isinstance(item.value, str))


def _matches(entry: ServerEntry, node: YamlNode) -> bool:
    """Return True if an item matches.

    Items are names, or objects with `serverName`, `serverCommand` (all its words) or `serverUrl` (`*` matches any
    text).
    """
    for item in node.items or ():
        if item.value == entry.name:
            return True
        fields = {name: plain(inner) for name, inner in item.members or ()}
        if fields.get("serverName") == entry.name:
            return True
        if entry.command and fields.get("serverCommand") == [entry.command, *entry.args]:
            return True
        pattern = fields.get("serverUrl")
        if entry.url and isinstance(pattern, str) and fnmatchcase(entry.url, pattern):
            return True
    return False


_VARIABLE = late_pattern(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


@dataclass(slots=True)
class VariableExpansion:
    """Expansion of variables in texts, with a record of the variables without a value."""

    variables: Mapping[str, str]
    unset: dict[str, None] = field(default_factory=dict[str, None])
    """Names without value and default, in order; their placeholders stay as written."""

    def text(self, text: str) -> str:
        """Return the text with its variables expanded. As in a shell, a default also replaces an empty value."""
        return _VARIABLE.sub(self._value, text)

    def texts(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return a mapping with its values expanded."""
        return {name: self.text(value) for name, value in values.items()}

    def _value(self, match: re.Match[str]) -> str:
        name = match["name"]
        default = match["default"]
        value = self.variables.get(name)
        if default is not None:
            return value or default
        if value is None:
            self.unset[name] = None
            return match[0]
        return value


def expand_variables(entry: ServerEntry, variables: Mapping[str, str]) -> tuple[ServerEntry, tuple[str, ...]]:
    """Return the entry with its variables expanded, and the names of unset variables.

    Variables are expanded in command, args, env, url and headers.
    """
    expanding = VariableExpansion(variables)
    filled = replace(
        entry,
        command=expanding.text(entry.command),
        args=tuple(expanding.text(argument) for argument in entry.args),
        env=expanding.texts(entry.env),
        url=expanding.text(entry.url),
        headers=expanding.texts(entry.headers),
    )
    return filled, tuple(expanding.unset)
