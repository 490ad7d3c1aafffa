"""Names by which models call the tools of servers, clashes, an agent's tools, and mentioned resources. Pure.

A name `mcp__server__tool` is normalised as the service requires (`core/tool_access.normalised`). Of two tools that a
model could not distinguish, only the first one stays. The type of an agent names tools by `mcp__server`,
`mcp__server__*`, `mcp__*`: a list narrows, a denial removes, and a child never has more tools than its parent. A
resource is mentioned as `@server:uri`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from callboard.core.tool_access import clashes, normalise_name
from callboard.types.agent_spec import AgentSpec
from callboard.types.late_pattern import late_pattern

PREFIX = "mcp__"


def tool_name(server: str, tool: str) -> str:
    """Return the name by which a model calls a server's tool.

    For a plugin's server `plugin:p:s` it is `mcp__plugin_p_s__tool`.
    """
    return normalise_name(f"{PREFIX}{server}__{tool}")


def own_clashes(server: str, tools: Iterable[str]) -> str:
    """Return the tools of one server with the same name; empty if there are none."""
    groups = clashes(f"{PREFIX}{server}__{tool}" for tool in tools)
    clash_texts = (f"{_listed(group)} would all be called {normalise_name(group[0])}" for group in groups)
    return "; ".join(clash_texts)


def clashes_with(server: str, names: Iterable[str], owned: Mapping[str, Collection[str]]) -> str:
    """Return the tools of a server that another server already has; empty if there are none.

    `names`: the names by which a model calls the server's tools. `owned`: server -> its tools.
    """
    problems: list[str] = []
    for name in sorted(names):
        owner = next((other for other, owner_tools in owned.items() if other != server and name in owner_tools), None)
        if owner is not None:
            problems.append(f"{name} is a tool of the server {owner} already")
    return "; ".join(problems)


def _listed(group: Sequence[str]) -> str:
    quoted = [f"`{name.removeprefix(PREFIX)}`" for name in group[:4]]
    return ", ".join(quoted) + (f" and {len(group) - 4} more" if len(group) > 4 else "")


MOST = 10
"""Maximum number of resources that one message includes."""
LONGEST = 50_000
"""Maximum characters of one resource; the rest is omitted, with a note."""
_MENTION = late_pattern(r"(?<![\w@\\])@([A-Za-z0-9_.-]+):(\S+)")
_ENDS = ".,;:!?)]}>\"'`"


def find_mentions(text: str, servers: Mapping[str, frozenset[str]]) -> tuple[tuple[str, str], ...]:
    """Return (server, uri) of each mention, in order, once.

    `servers`: name -> its listed resources. Other resources count too, without trailing punctuation, because a server
    may know more than it lists.
    """
    mentions: dict[tuple[str, str], None] = {}
    for match in _MENTION.finditer(text):
        server = match[1]
        uri = match[2]
        if server in servers:
            mentions[server, uri if uri in servers[server] else _plain(uri, servers[server])] = None
    return tuple(mention for mention in mentions if mention[1])[:MOST]


def _plain(uri: str, listed: frozenset[str]) -> str:
    bare = uri
    while bare and bare[-1] in _ENDS and bare not in listed:
        bare = bare[:-1]
    return bare


def cut(text: str) -> str:
    """Return a text of a resource as it is shown."""
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n[Cut: {len(text) - LONGEST:,} more characters.]"


_REFUSED = late_pattern(r"[^A-Za-z0-9_*-]")


def covers(entry: str, name: str) -> bool:
    """Return True if an entry of a tools list covers the tool of this name, or all tools that another entry names."""
    return re.fullmatch(".*".join(map(re.escape, _model_name(entry).split("*"))), _model_name(name)) is not None


def _model_name(entry: str) -> str:
    """Return an entry in the form of model names; a server's name alone stands for all of its tools."""
    plain = _REFUSED.sub("_", entry)
    return f"{plain}__*" if "*" not in plain and "__" not in plain.removeprefix(PREFIX) else plain


def may_have(spec: AgentSpec, name: str) -> bool:
    """Return True if an agent may have this tool, if the tool exists."""
    if any(covers(entry, name) for entry in spec.mcp_denied):
        return False
    return spec.mcp is None or any(covers(entry, name) for entry in spec.mcp)


def has_any(spec: AgentSpec) -> bool:
    """Return True if the agent may have any tools of servers."""
    return spec.mcp != () and not any(covers(entry, "mcp__*") for entry in spec.mcp_denied)


def sees(spec: AgentSpec, server: str) -> bool:
    """Return True if the agent may have a tool of this server."""
    every = f"{PREFIX}{_REFUSED.sub('_', server)}__*"
    if any(covers(entry, every) for entry in spec.mcp_denied):
        return False
    return spec.mcp is None or any(covers(entry, every) or covers(every, entry) for entry in spec.mcp)


def limit_tools(child: AgentSpec, parent: AgentSpec) -> AgentSpec:
    """Return the child with only those tools that its parent also has."""
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
    for pattern in first:
        for other in second:
            if covers(other, pattern):
                yield pattern
            elif covers(pattern, other):
                yield other
