"""Resources of MCP servers that a person names in what they say: `@server:uri`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

MOST = 10
"""Resources that one message brings along."""
LONGEST = 50_000
"""Characters of one of them; what follows is left out, and that is told."""
_MENTION = re.compile(r"(?<![\w@\\])@([A-Za-z0-9_.-]+):(\S+)")
_ENDS = ".,;:!?)]}>\"'`"


def mentioned(text: str, servers: Mapping[str, frozenset[str]]) -> tuple[tuple[str, str], ...]:
    """(server, uri) of each mention, in order, once. `servers`: name -> the resources that it lists; others than these
    count too (a server may know more than it lists), without the punctuation behind them."""
    found: dict[tuple[str, str], None] = {}
    for match in _MENTION.finditer(text):
        server, uri = match[1], match[2]
        if server in servers:
            found[server, uri if uri in servers[server] else _plain(uri, servers[server])] = None
    return tuple(one for one in found if one[1])[:MOST]


def _plain(uri: str, listed: frozenset[str]) -> str:
    bare = uri
    while bare and bare[-1] in _ENDS and bare not in listed:
        bare = bare[:-1]
    return bare


def cut(text: str) -> str:
    """A text of a resource as it is shown."""
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n[Cut: {len(text) - LONGEST:,} more characters.]"
