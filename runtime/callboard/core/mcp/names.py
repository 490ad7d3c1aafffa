"""How models call the tools of servers: `mcp__server__tool`, and which of them clash. Pure.

Names are normalised as the service wants them (`core/toolset.normalised`). Two tools that a model could not tell apart
are never both there: the one that came first stays (row B30).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from callboard.core.toolset import clashes, normalised

PREFIX = "mcp__"


def tool_name(server: str, tool: str) -> str:
    """The name that a model calls a server's tool by. A plugin's server `plugin:p:s` is `mcp__plugin_p_s__tool`."""
    return normalised(f"{PREFIX}{server}__{tool}")


def own_clashes(server: str, tools: Iterable[str]) -> str:
    """What is wrong with one server's tools by themselves: two of one name. Empty: nothing."""
    groups = clashes(f"{PREFIX}{server}__{tool}" for tool in tools)
    told = (f"{_listed(group)} would all be called {normalised(group[0])}" for group in groups)
    return "; ".join(told)


def clashes_with(server: str, names: Iterable[str], taken: Mapping[str, Collection[str]]) -> str:
    """Which of a server's tools (as models call them) another server (name -> its tools) has already. Empty: none."""
    found: list[str] = []
    for name in sorted(names):
        owner = next((other for other, theirs in taken.items() if other != server and name in theirs), None)
        if owner is not None:
            found.append(f"{name} is a tool of the server {owner} already")
    return "; ".join(found)


def _listed(group: Sequence[str]) -> str:
    shown = [f"`{name.removeprefix(PREFIX)}`" for name in group[:4]]
    return ", ".join(shown) + (f" and {len(group) - 4} more" if len(group) > 4 else "")
