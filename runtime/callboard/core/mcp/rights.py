"""Which tools of MCP servers an agent has, by the entries of its type: `mcp__server`, `mcp__server__*`, `mcp__*`. Pure.

A list narrows, a denial takes away, and a child never has more than its parent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from callboard.words.specs import AgentSpec

PREFIX = "mcp__"
"""With which the name of each tool of a server begins."""
_REFUSED = re.compile(r"[^A-Za-z0-9_*-]")


def covers(entry: str, name: str) -> bool:
    """Whether an entry of a tools list is about the tool of this name, or about all that another entry names."""
    return re.fullmatch(".*".join(map(re.escape, _whole(entry).split("*"))), _whole(name)) is not None


def _whole(entry: str) -> str:
    """An entry as models know names; a server's alone stands for all of its tools."""
    plain = _REFUSED.sub("_", entry)
    return f"{plain}__*" if "*" not in plain and "__" not in plain.removeprefix(PREFIX) else plain


def may_have(spec: AgentSpec, name: str) -> bool:
    """Whether an agent has this tool, where there is one."""
    if any(covers(entry, name) for entry in spec.mcp_denied):
        return False
    return spec.mcp is None or any(covers(entry, name) for entry in spec.mcp)


def has_any(spec: AgentSpec) -> bool:
    """Whether it may have tools of servers at all."""
    return spec.mcp != () and not any(covers(entry, "mcp__*") for entry in spec.mcp_denied)


def sees(spec: AgentSpec, server: str) -> bool:
    """Whether it may have a tool of this server."""
    every = f"{PREFIX}{_REFUSED.sub('_', server)}__*"
    if any(covers(entry, every) for entry in spec.mcp_denied):
        return False
    return spec.mcp is None or any(covers(entry, every) or covers(every, entry) for entry in spec.mcp)


def bounded(child: AgentSpec, parent: AgentSpec) -> AgentSpec:
    """The child with what its parent has too, and no more."""
    denied = tuple(dict.fromkeys((*child.mcp_denied, *parent.mcp_denied)))
    allowed = _both(child.mcp, parent.mcp)
    if allowed == child.mcp and denied == child.mcp_denied:
        return child
    return child.model_copy(update={"mcp": allowed, "mcp_denied": denied})


def _both(first: Sequence[str] | None, second: Sequence[str] | None) -> tuple[str, ...] | None:
    if first is None or second is None:
        either = first if second is None else second
        return None if either is None else tuple(either)
    return tuple(dict.fromkeys(_narrower(first, second)))


def _narrower(first: Iterable[str], second: Sequence[str]) -> Iterable[str]:
    for one in first:
        for other in second:
            if covers(other, one):
                yield one
            elif covers(one, other):
                yield other
