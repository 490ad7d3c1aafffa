"""Which configured servers people have switched on or off by name, command or address. Pure.

The keys are those that people have in their settings already: `enabledMcpjsonServers`, `disabledMcpjsonServers`,
`enableAllProjectMcpServers` (about the workspace's `.mcp.json`), `allowedMcpServers` and `deniedMcpServers` (about
all). What tightens counts from anybody; what loosens, from a person or from what is trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from callboard.core.trust.nodes import Node, plain
from callboard.words.mcp import ServerEntry

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
    """One of the keys, where it stands."""

    key: str
    value: Node
    place: str
    """`file:line`."""
    trusted: bool = True
    """A person stands behind it."""

    @property
    def counts(self) -> bool:
        return self.trusted or self.key in _TIGHTENS


def off_by(entry: ServerEntry, approvals: Sequence[Approval]) -> str:
    """Why a server is off by these; empty: it is not."""
    there = [one for one in approvals if one.counts]
    for one in there:
        if one.key == "deniedMcpServers" and _matches(entry, one.value):
            return f"deniedMcpServers names it ({one.place})"
        if one.key == "disabledMcpServers" and entry.name in _names(one.value):
            return f"disabledMcpServers names it ({one.place})"
        mine = one.key == "disabledMcpjsonServers" and entry.scope == "workspace"
        if mine and entry.name in _names(one.value):
            return f"disabledMcpjsonServers names it ({one.place})"
    allowed = [one for one in there if one.key == "allowedMcpServers"]
    if allowed and not any(_matches(entry, one.value) for one in allowed):
        return f"allowedMcpServers does not name it ({allowed[0].place})"
    return _not_enabled(entry, there) if entry.scope == "workspace" else ""


def _not_enabled(entry: ServerEntry, there: Sequence[Approval]) -> str:
    """A list of servers of `.mcp.json` that are on leaves the others off, unless all are on."""
    if any(one.key == "enableAllProjectMcpServers" and one.value.value is True for one in there):
        return ""
    lists = [one for one in there if one.key == "enabledMcpjsonServers" and _names(one.value)]
    if not lists or any(entry.name in _names(one.value) for one in lists):
        return ""
    return f"enabledMcpjsonServers does not name it ({lists[0].place})"


def _names(node: Node) -> frozenset[str]:
    return frozenset(one.value for one in node.items or () if isinstance(one.value, str))


def _matches(entry: ServerEntry, node: Node) -> bool:
    """Items are names, or objects with `serverName`, `serverCommand` (all its words) or `serverUrl` (`*` fits all)."""
    for one in node.items or ():
        if one.value == entry.name:
            return True
        fields = {name: plain(inner) for name, inner in one.members or ()}
        if fields.get("serverName") == entry.name:
            return True
        if entry.command and fields.get("serverCommand") == [entry.command, *entry.args]:
            return True
        pattern = fields.get("serverUrl")
        if entry.url and isinstance(pattern, str) and fnmatchcase(entry.url, pattern):
            return True
    return False
