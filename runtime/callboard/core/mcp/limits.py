"""Limits on a server's time and output: from the person's environment, the server's own entry, or the defaults. Pure.

Names and numbers are those of other programs (docs/mcp.md); milliseconds there, seconds here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from callboard.core.mcp.results import CHARACTERS_PER_TOKEN, MOST_OF_ITS_OWN, SHOWN_TOKENS
from callboard.types.lazy_dataclass import dataclass
from callboard.types.settings import McpSettings

START = 30.0
"""Seconds until a server must be ready (`MCP_TIMEOUT`)."""
CALL = 100_000.0
"""Maximum seconds of a call (`MCP_TOOL_TIMEOUT`; about 28 hours)."""
IDLE: Mapping[str, float] = MappingProxyType({"stdio": 1_800.0, "sdk": 1_800.0, "http": 300.0, "sse": 300.0})
"""Maximum seconds of silence from the server during a call (`CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT`)."""
LISTING = 30.0
"""Maximum seconds for a list, a prompt or a resource."""
HELPER = 10.0
"""Maximum seconds for a `headersHelper`."""

RECONNECTS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each attempt to reconnect to a remote server."""
STEADY = 10.0
"""Seconds after which a connection to a remote server that is lost again counts as a new loss."""
RESTARTS = 3
RESTARTS_WITHIN = 60.0
"""Seconds within which a server's process is started at most `RESTARTS` times."""
PAUSES = (0.0, 1.0, 2.0)
"""Seconds before a start, by the number of starts within that time."""


@dataclass(frozen=True, slots=True)
class McpLimits:
    """Seconds and characters for one session's servers."""

    start: float = START
    call: float = CALL
    idle: float | None = None
    """Idle timeout for all transports; None: by the transport (`IDLE`)."""
    shown: int = SHOWN_TOKENS * CHARACTERS_PER_TOKEN
    """Maximum characters shown of a result."""

    def idle_of(self, transport: str, own: float | None) -> float:
        """Return the seconds of silence that end a call. A server's own `timeout` is the minimum."""
        return max(self.idle or IDLE[transport], own or 0.0)

    def call_of(self, own: float | None) -> float:
        """Return the maximum seconds of one call."""
        return own if own is not None else self.call

    def shown_of(self, requested: object) -> int:
        """Return the maximum characters shown of a tool's result. `requested`: the value in the tool's `_meta`."""
        if isinstance(requested, int) and not isinstance(requested, bool) and requested > 0:
            return max(self.shown, min(requested, MOST_OF_ITS_OWN))
        return self.shown


def limits_of(environment: Mapping[str, str], settings: McpSettings | None = None) -> McpLimits:
    """Return the limits from the environment, then from the settings.

    A variable that is not a number above 0 is ignored.
    """
    chosen = settings or McpSettings()
    tokens = _number(environment, "MAX_MCP_OUTPUT_TOKENS") or chosen.result_tokens
    return McpLimits(
        _number(environment, "MCP_TIMEOUT") / 1000 or chosen.start,
        _number(environment, "MCP_TOOL_TIMEOUT") / 1000 or chosen.call,
        _number(environment, "CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT") / 1000 or chosen.idle,
        int(tokens * CHARACTERS_PER_TOKEN),
    )


def wait_before_start(starts: Sequence[float], now: float) -> float | None:
    """Return the seconds to wait before a process is restarted; None after too many starts.

    The wait depends on the times of earlier starts.
    """
    recent = sum(1 for at in starts if now - at < RESTARTS_WITHIN)
    return PAUSES[recent] if recent < RESTARTS else None


def _number(environment: Mapping[str, str], name: str) -> float:
    try:
        number = float(environment.get(name, ""))
    except ValueError:
        return 0.0
    return number if 0 < number < 1e12 else 0.0
