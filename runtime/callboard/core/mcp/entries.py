"""Entries of `mcpServers` as values: `.mcp.json` and all that has its shape, field by field. Pure.

A fault costs its own entry, or its own field where the server can do without; each is told once with line and field.
docs/mcp.md lists the fields; they are those that `.mcp.json` has in other programs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from callboard.core.trust.nodes import Node, plain
from callboard.words.mcp import ServerEntry, ServerScope, Transport

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
"""What stands in `type` -> how the server is reached."""
_REMOTE_ONLY = frozenset({"url", "headers", "headersHelper"})
_LOCAL_ONLY = frozenset({"command", "args", "env"})
_KNOWN = _REMOTE_ONLY | _LOCAL_ONLY | {"type", "timeout", "alwaysLoad", "oauth", "disabled"}
_QUIET = frozenset({"description", "$schema", "name", "comment", "_comment"})
"""Say nothing that a server needs."""
_OAUTH = "signing in by OAuth is not there in this version; give a token by `headers` or `headersHelper`"
_WS = "WebSocket servers are not reached in this version; use the server's `http` address"
_NO_TYPE = 'has a `url` and no `type` (url_missing_type): add `"type": "http"` (or "sse")'


@dataclass(frozen=True, slots=True)
class Fault:
    """What of an entry is not as it should be."""

    line: int
    field: str
    why: str
    verdict: Literal["ignored", "refused"] = "refused"


@dataclass(slots=True)
class Entries:
    """What one document says."""

    entries: dict[str, ServerEntry] = field(default_factory=dict[str, ServerEntry])
    faults: list[Fault] = field(default_factory=list[Fault])
    lines: dict[str, int] = field(default_factory=dict[str, int])
    """Of each entry's name."""
    off: dict[str, str] = field(default_factory=dict[str, str])
    """Entries that say themselves that they are off -> why."""


class _Unusable(Exception):
    """An entry that cannot be used. Carries its fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.why)
        self.fault = fault


def read_document(document: Node, path: str, scope: ServerScope) -> Entries:
    """The servers of a document with the field `mcpServers`."""
    found = Entries()
    if document.members is None:
        found.faults.append(Fault(document.line, "", 'is an object with the field "mcpServers"'))
        return found
    named = [node for name, node in document.members if name == "mcpServers"]
    if not named:
        there = ", ".join(f"`{name}`" for name, _ in document.members) or "nothing"
        found.faults.append(
            Fault(document.line, "mcpServers", f"is missing: the servers stand in it; there is {there}")
        )
        return found
    return read_servers_node(named[-1], path, scope)


def read_servers_node(servers: Node, path: str, scope: ServerScope, at: str = "mcpServers") -> Entries:
    """The servers of a mapping name -> entry. `at`: what it is called in its document."""
    found = Entries()
    if servers.members is None:
        found.faults.append(Fault(servers.line, at, "is an object: the name of each server -> its entry"))
        return found
    for name, node in servers.members:
        where = f"{at}.{name}"
        if name in found.entries:
            found.faults.append(Fault(node.line, where, "stands twice: the last one counts", "ignored"))
            del found.entries[name]
        try:
            found.entries[name] = _Entry(name, node, where, found).read(path, scope)
            found.lines[name] = node.line
        except _Unusable as error:
            found.faults.append(error.fault)
    return found


class _Entry:
    """One entry under way."""

    def __init__(self, name: str, node: Node, at: str, into: Entries) -> None:
        self._name, self._node, self._at, self._into = name, node, at, into
        self._fields: dict[str, Node] = {}

    def read(self, path: str, scope: ServerScope) -> ServerEntry:
        self._named()
        transport = self._transport(scope)
        self._told_fields(transport)
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
        given = self._fields.get("type")
        if given is None:
            if "url" in self._fields and "command" not in self._fields:
                self._refuse(self._node, "", _NO_TYPE)
            return "stdio"
        if given.value in ("ws", "websocket"):
            self._refuse(given, "type", _WS)
        transport = TYPES.get(given.value) if isinstance(given.value, str) else None
        if transport is None or (transport == "sdk" and scope != "run"):
            known = ", ".join(name for name in TYPES if name not in ("sdk", "streamableHttp"))
            self._refuse(given, "type", f"{plain(given)!r:.80} is no type: there are {known}")
        assert transport is not None
        if transport == "sse":
            self._tell(given, "type", "`sse` is deprecated; servers speak `http` by now", "ignored")
        return transport

    def _told_fields(self, transport: Transport) -> None:
        """What of the fields says nothing here."""
        strange = {"stdio": _REMOTE_ONLY, "sdk": frozenset[str]()}.get(transport, _LOCAL_ONLY)
        for name, node in self._fields.items():
            if name in strange:
                self._tell(node, name, f"says nothing for a server of type {transport}", "ignored")
            elif name not in _KNOWN and name not in _QUIET:
                self._tell(node, name, "is no field of a server here", "ignored")
        if "oauth" in self._fields:
            self._tell(self._fields["oauth"], "oauth", _OAUTH)
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

    def _text(self, name: str) -> str:
        node = self._fields.get(name)
        if node is None:
            return ""
        return self._one_text(node, name)

    def _one_text(self, node: Node, name: str) -> str:
        if not isinstance(node.value, str):
            self._refuse(node, name, f"is a text, not {plain(node)!r:.80}")
        text = str(node.value)
        if "\0" in text:
            self._refuse(node, name, "holds a NUL character")
        if text != text.strip():
            self._tell(node, name, "has white space at an end, which is kept as it is written", "ignored")
        return text

    def _list(self, name: str) -> tuple[str, ...]:
        node = self._fields.get(name)
        if node is None:
            return ()
        if node.items is None:
            self._refuse(node, name, "is a list of texts")
        return tuple(self._one_text(one, f"{name}[{number}]") for number, one in enumerate(node.items or ()))

    def _texts(self, name: str) -> dict[str, str]:
        node = self._fields.get(name)
        if node is None:
            return {}
        if node.members is None:
            self._refuse(node, name, "is an object: names -> texts")
        return {key: self._pair(key, one, name) for key, one in node.members or ()}

    def _pair(self, key: str, node: Node, name: str) -> str:
        bad = not key or "\0" in key or (name == "env" and "=" in key) or (name == "headers" and not _header(key))
        if bad:
            self._refuse(node, f"{name}.{key}", "is no name that can be used")
        text = self._one_text(node, f"{name}.{key}")
        if name == "headers" and any(one in text for one in "\r\n"):
            self._refuse(node, f"{name}.{key}", "holds a line break")
        return text

    def _timeout(self) -> float | None:
        node = self._fields.get("timeout")
        if node is None:
            return None
        value = node.value
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
            self._tell(node, "timeout", f"is a number of milliseconds, not {plain(node)!r:.80}", "ignored")
            return None
        if value < 1000:
            self._tell(node, "timeout", "is in milliseconds, and one under 1000 does not count", "ignored")
            return None
        return float(value) / 1000

    def _flag(self, name: str) -> bool:
        node = self._fields.get(name)
        if node is not None and not isinstance(node.value, bool):
            self._tell(node, name, f"is true or false, not {plain(node)!r:.80}", "ignored")
            return False
        return node is not None and node.value is True

    def _tell(self, node: Node, name: str, why: str, verdict: Literal["ignored", "refused"] = "refused") -> None:
        fault = Fault(node.line, f"{self._at}.{name}", why, verdict)
        if fault not in self._into.faults:
            self._into.faults.append(fault)

    def _refuse(self, node: Node, name: str, why: str) -> None:
        raise _Unusable(Fault(node.line, f"{self._at}.{name}" if name else self._at, why))


def _header(name: str) -> bool:
    """Whether a header may be called so (RFC 9110, section 5.1)."""
    return name.isascii() and all(one.isalnum() or one in "!#$%&'*+-.^_`|~" for one in name)
