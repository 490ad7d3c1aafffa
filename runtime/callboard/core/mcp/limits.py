"""How long and how much a server may take: the person's environment, the server's own entry, what is built in. Pure.

Names and numbers are those that people know from other programs (docs/mcp.md); milliseconds there, seconds here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from callboard.core.mcp.results import CHARACTERS_PER_TOKEN, MOST_OF_ITS_OWN, SHOWN_TOKENS
from callboard.words.settings_model import McpSettings

START = 30.0
"""Seconds until a server must be ready (`MCP_TIMEOUT`)."""
CALL = 100_000.0
"""Seconds that a call may take at most (`MCP_TOOL_TIMEOUT`; about 28 hours)."""
IDLE: Mapping[str, float] = MappingProxyType({"stdio": 1_800.0, "sdk": 1_800.0, "http": 300.0, "sse": 300.0})
"""Seconds of a call without a word of the server (`CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT`)."""
LISTING = 30.0
"""Seconds for a list, a prompt or a resource."""
HELPER = 10.0
"""Seconds for a `headersHelper`."""

RECONNECTS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each attempt to reach a remote server again."""
RESTARTS, RESTARTS_WITHIN = 3, 60.0
"""How often a server's process is started within so many seconds."""
PAUSES = (0.0, 1.0, 2.0)
"""Seconds before a start, by how many there were in that time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds and characters for one session's servers."""

    start: float = START
    call: float = CALL
    idle: float | None = None
    """None: by the transport (`IDLE`)."""
    shown: int = SHOWN_TOKENS * CHARACTERS_PER_TOKEN
    """Characters of a result that are shown."""

    def idle_of(self, transport: str, own: float | None) -> float:
        """Seconds of silence that end a call. A server's own `timeout` is the least."""
        return max(self.idle or IDLE[transport], own or 0.0)

    def call_of(self, own: float | None) -> float:
        """Seconds that one call may take at most."""
        return own if own is not None else self.call

    def shown_of(self, asked: object) -> int:
        """Characters of a tool's result that are shown. `asked`: what the tool's `_meta` wants."""
        if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0:
            return max(self.shown, min(asked, MOST_OF_ITS_OWN))
        return self.shown


def limits_of(environment: Mapping[str, str], settings: McpSettings | None = None) -> Limits:
    """As the environment says, then the settings. A variable that is no number above 0 counts as not there."""
    wanted = settings or McpSettings()
    tokens = _number(environment, "MAX_MCP_OUTPUT_TOKENS") or wanted.result_tokens
    return Limits(
        _number(environment, "MCP_TIMEOUT") / 1000 or wanted.start,
        _number(environment, "MCP_TOOL_TIMEOUT") / 1000 or wanted.call,
        _number(environment, "CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT") / 1000 or wanted.idle,
        int(tokens * CHARACTERS_PER_TOKEN),
    )


def wait_before_start(starts: Sequence[float], now: float) -> float | None:
    """Seconds to wait before a process is started again, by when it was started before; None: too often already."""
    recent = sum(1 for at in starts if now - at < RESTARTS_WITHIN)
    return PAUSES[recent] if recent < RESTARTS else None


def _number(environment: Mapping[str, str], name: str) -> float:
    try:
        found = float(environment.get(name, ""))
    except ValueError:
        return 0.0
    return found if 0 < found < 1e12 else 0.0
