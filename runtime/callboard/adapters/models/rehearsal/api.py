"""Values that the Messages API promises: its errors, its models, and its ids and signatures.

This module reads no request. Signatures are made from a fixed key, not from secrets. They prove to this emulator that a
thinking block was returned unchanged, even after the emulator was killed and restarted.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType

from callboard.types.lazy_dataclass import dataclass

ERROR_STATUS: Mapping[str, int] = MappingProxyType(
    {
        "invalid_request_error": 400,
        "authentication_error": 401,
        "billing_error": 402,
        "permission_error": 403,
        "not_found_error": 404,
        "request_too_large": 413,
        "rate_limit_error": 429,
        "api_error": 500,
        "timeout_error": 504,
        "overloaded_error": 529,
    }
)
"""The API's error types and their statuses."""

STOP_REASONS = frozenset(
    {
        "end_turn",
        "max_tokens",
        "stop_sequence",
        "tool_use",
        "pause_turn",
        "refusal",
        "model_context_window_exceeded",
        "compaction",
    }
)

THINKING_TYPES = frozenset({"enabled", "adaptive", "between_tools", "disabled"})

_KEY = b"callboard rehearsal"


@dataclass(frozen=True, slots=True)
class ApiError:
    """Error with the API's text. `retry_after` is in seconds; `code`, if not empty, is sent with the type."""

    type: str
    message: str
    status: int
    retry_after: float | None = None
    code: str | None = None

    def body(self, request_id: str) -> dict[str, object]:
        """Return the JSON body of the API's response."""
        error: dict[str, object] = {"type": self.type, "message": self.message}
        if self.code is not None:
            error["details"] = {"error_code": self.code}
        return {"type": "error", "error": error, "request_id": request_id}


def invalid(message: str) -> ApiError:
    """Return a 400: the request is wrong."""
    return ApiError("invalid_request_error", message, 400)


def of_status(status: int, message: str = "", kind: str | None = None) -> ApiError:
    """Return the error that the API sends with a status; unknown statuses are mapped by their first digit."""
    usual = next((name for name, number in ERROR_STATUS.items() if number == status), None)
    kind = kind or usual or ("api_error" if status >= 500 else "invalid_request_error")
    messages = {"overloaded_error": "Overloaded", "api_error": "Internal server error"}
    return ApiError(kind, message or messages.get(kind, f"rehearsed {kind}"), status)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Limits of one model, in tokens; the flags define the permitted contents of its requests."""

    id: str
    window: int = 200_000
    max_output: int = 64_000
    min_cache: int = 1_024
    """Smallest prefix that is cached, in tokens."""
    thinking: frozenset[str] = field(default=frozenset({"adaptive", "enabled", "disabled"}))
    sampling: bool = False
    """True if it accepts `temperature`, `top_p` and `top_k`. Newer models refuse them."""
    prefill: bool = False
    """True if it accepts a last assistant message to continue. Newer models refuse it."""
    system_messages: bool = True
    """True if it accepts `role: system` messages inside the conversation. Older models refuse them."""

    def to_json(self) -> dict[str, object]:
        """Return the model as shown by `/v1/models`."""
        kinds = {kind: {"supported": kind in self.thinking} for kind in sorted(THINKING_TYPES)}
        return {
            "type": "model",
            "id": self.id,
            "display_name": self.id,
            "created_at": "2026-01-01T00:00:00Z",
            "lifecycle": "active",
            "max_input_tokens": self.window,
            "max_tokens": self.max_output,
            "capabilities": {"thinking": {"supported": bool(self.thinking - {"disabled"}), "types": kinds}},
        }


_NEW = frozenset({"adaptive", "disabled"})
_OLD = frozenset({"enabled", "disabled"})

CATALOGUE: Mapping[str, ModelSpec] = MappingProxyType(
    {
        spec.id: spec
        for spec in (
            ModelSpec("rehearsal"),
            ModelSpec("rehearsal-small"),
            ModelSpec("claude-opus-5-5", 1_000_000, 128_000, thinking=_NEW),
            ModelSpec("claude-sonnet-5-5", 1_000_000, 128_000, thinking=_NEW),
            ModelSpec("claude-haiku-5-5", thinking=_NEW),
            ModelSpec("claude-opus-4-8", 1_000_000, 128_000, thinking=_NEW),
            ModelSpec(
                "claude-sonnet-4-5", min_cache=1_024, thinking=_OLD, sampling=True, prefill=True, system_messages=False
            ),
            ModelSpec(
                "claude-haiku-4-5", min_cache=4_096, thinking=_OLD, sampling=True, prefill=True, system_messages=False
            ),
        )
    }
)
"""Models of a scenario that names none. Limits that the vendor does not publish are placeholders."""


def request_id(seed: str) -> str:
    """Return the id of one HTTP exchange."""
    return "req_011" + _letters(f"request {seed}", 21)


def message_id(seed: str) -> str:
    """Return the id of one reply."""
    return "msg_01" + _letters(f"message {seed}", 22)


def tool_use_id(seed: str) -> str:
    """Return the id of one call. The same seed gives the same id, so that a repeated request gets the same reply."""
    return "toolu_01" + _letters(f"tool {seed}", 22)


def service_use_id(seed: str) -> str:
    """Return the id of one call that the service runs itself."""
    return "srvtoolu_01" + _letters(f"service {seed}", 22)


def sign(model: str, thinking: str) -> str:
    """Return the signature of a thinking block, valid only for this text by this model."""
    return base64.b64encode(_mac(model, thinking)).decode()


def is_signed(model: str, thinking: str, signature: str) -> bool:
    """Return True if `sign` made this signature."""
    return hmac.compare_digest(sign(model, thinking).encode(), signature.encode())


def redact(model: str, thinking: str) -> str:
    """Return the data of a redacted thinking block."""
    digest = hashlib.sha256(thinking.encode()).hexdigest()[:16]
    return f"{digest}.{base64.b64encode(_mac(model, 'redacted ' + digest)).decode()}"


def is_redacted(model: str, data: str) -> bool:
    """Return True if `redact` made this data."""
    digest, _, mac = data.partition(".")
    return hmac.compare_digest(base64.b64encode(_mac(model, "redacted " + digest)), mac.encode())


def _mac(model: str, text: str) -> bytes:
    return hmac.new(_KEY, f"{model}\0{text}".encode("utf-8", "surrogatepass"), hashlib.sha256).digest()


def _letters(seed: str, length: int) -> str:
    digest = hashlib.blake2b(seed.encode("utf-8", "surrogatepass"), digest_size=32).digest()
    return base64.b32encode(digest).decode().rstrip("=")[:length]
