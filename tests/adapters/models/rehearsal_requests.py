"""Requests to the Messages API, in the form that tests write."""

from __future__ import annotations

import base64
from typing import Any

from callboard.adapters.models.rehearsal.api import CATALOGUE, ApiError, ModelSpec, sign
from callboard.adapters.models.rehearsal.strict import CheckContext, check_request

Json = dict[str, Any]

RULES = CheckContext(CATALOGUE)

OLD_API = CheckContext(
    {"old": ModelSpec("old", sampling=True, prefill=True, system_messages=False)}, version="2023-06-01"
)

TOOLS = [{"name": "read", "input_schema": {"type": "object"}}, {"name": "bash", "input_schema": {"type": "object"}}]

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


def request(*messages: Json, **fields: Any) -> Json:
    """Return a request for `rehearsal` with two tools."""
    body = {"model": "rehearsal", "max_tokens": 4_000, "messages": list(messages) or [user("hello")], "tools": TOOLS}
    return {name: value for name, value in {**body, **fields}.items() if value is not ...}


def user(*blocks: Json | str) -> Json:
    return {"role": "user", "content": blocks[0] if len(blocks) == 1 and isinstance(blocks[0], str) else list(blocks)}


def assistant(*blocks: Json | str) -> Json:
    return {**user(*blocks), "role": "assistant"}


def text(content: str, **more: Any) -> Json:
    return {"type": "text", "text": content, **more}


def call(number: int, name: str = "read", **given: Any) -> Json:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": given}


def result(number: int, content: Any = "ok", **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": content, **more}


def signed(thinking: str, model: str = "rehearsal") -> Json:
    return {"type": "thinking", "thinking": thinking, "signature": sign(model, thinking)}


def rejection_of(body: object, rules: CheckContext = RULES) -> ApiError:
    error = check_request(body, rules)
    assert error is not None
    return error
