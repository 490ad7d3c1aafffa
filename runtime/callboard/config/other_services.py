"""Model services without the Messages API that variables of Claude Code select, and that Callboard cannot call.

Such a variable is never ignored silently: what a person sends to one service must not go to another one unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from callboard.types.lazy_dataclass import dataclass

_SERVICES: Mapping[str, str] = MappingProxyType(
    {
        "CLAUDE_CODE_USE_BEDROCK": "Amazon Bedrock",
        "CLAUDE_CODE_USE_VERTEX": "Google Vertex AI",
        "CLAUDE_CODE_USE_FOUNDRY": "Microsoft Foundry",
    }
)
_ON = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True, slots=True)
class OtherService:
    """The service that a variable selects."""

    variable: str
    name: str

    @property
    def missing(self) -> str:
        """Return the message for a session without credentials for a service that Callboard can call."""
        return (
            f"{self.variable} is set, but Callboard cannot call {self.name}, only services with the Messages API: set "
            f"ANTHROPIC_BASE_URL to a gateway for {self.name} and ANTHROPIC_AUTH_TOKEN to its token, or "
            "ANTHROPIC_API_KEY to use Anthropic's own service"
        )

    def note(self, host: str) -> str:
        """Return the line for a session whose model calls go to `host`."""
        return (
            f"{self.variable} is ignored: Callboard cannot call {self.name}, and model calls go to {host}. Unset the "
            f"variable, or set ANTHROPIC_BASE_URL to a gateway for {self.name} with the Messages API"
        )


def other_service(environment: Mapping[str, str]) -> OtherService | None:
    """Return the service that the environment or `env` of settings selects; None: one with the Messages API."""
    for variable, name in _SERVICES.items():
        if environment.get(variable, "").strip().lower() in _ON:
            return OtherService(variable, name)
    return None
