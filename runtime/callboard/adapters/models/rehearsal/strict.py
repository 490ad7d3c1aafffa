"""Checks of whether the Messages API would accept a request. `check_request` is pure and refuses with the API's own
texts.

An emulator that is laxer than the real API would prove nothing. So doubtful requests are refused, and so are server
tools and beta fields. `strict_blocks` checks the shapes of blocks, `strict_turns` the order of a conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import cast

from callboard.adapters.models.rehearsal.api import ApiError, ModelSpec, invalid
from callboard.adapters.models.rehearsal.strict_blocks import (
    Check,
    Json,
    cache_control,
    extra_fields,
    is_int,
    message_shapes,
    missing_fields,
    system_shape,
    tool_shapes,
)
from callboard.adapters.models.rehearsal.strict_turns import CheckContext, cache_marks, turns

__all__ = ["MAX_BODY", "VERSIONS", "CheckContext", "check_headers", "check_request"]

MAX_BODY = 32 * 1024 * 1024
"""Most bytes of a body; a longer one gets a 413."""

VERSIONS = ("2023-06-01", "2026-10-21")
"""Supported API versions, oldest first."""

_FIELDS = frozenset(
    {
        "cache_control",
        "container",
        "diagnostics",
        "inference_geo",
        "max_tokens",
        "messages",
        "metadata",
        "model",
        "output_config",
        "service_tier",
        "speed",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
    }
)
_COUNT_FIELDS = frozenset(
    {"cache_control", "messages", "model", "output_config", "speed", "system", "thinking", "tool_choice", "tools"}
)
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_MIN_BUDGET = 1_024


def check_headers(headers: Mapping[str, str], keys: frozenset[str] | None = None) -> ApiError | None:
    """Return the refusal of a request's headers (names in lower case), or None. `keys` are the accepted keys; None:
    any."""
    bearer = headers.get("authorization", "")
    key = headers.get("x-api-key", "") or (bearer[7:].strip() if bearer.lower().startswith("bearer ") else "")
    if not key:
        return ApiError("authentication_error", "x-api-key header is required", 401)
    if keys is not None and key not in keys:
        return ApiError("authentication_error", "invalid x-api-key", 401)
    if not headers.get("anthropic-version"):
        return invalid("anthropic-version: header is required")
    if headers["anthropic-version"] not in VERSIONS:
        return invalid(f'anthropic-version: "{headers["anthropic-version"]}" is not a valid version')
    return None


def check_request(body: object, rules: CheckContext, *, counting: bool = False) -> ApiError | None:
    """Return the first mistake in a request's JSON body, or None. `counting`: the request is for `count_tokens`."""
    if not isinstance(body, dict):
        return invalid("Input should be an object")
    request = cast("Json", body)
    fields, needed = (
        (_COUNT_FIELDS, ("model", "messages")) if counting else (_FIELDS, ("model", "messages", "max_tokens"))
    )
    checks = chain(
        missing_fields(request, needed, ""),
        extra_fields(request, fields, ""),
        _model(request, rules.models),
        _limits(request, rules, counting=counting),
        _options(request),
        tool_shapes(request.get("tools")),
        _tool_choice(request),
        _thinking(request, rules.models),
        system_shape(request.get("system")),
        message_shapes(request.get("messages")),
        cache_marks(request),
        turns(request, rules),
    )
    return next(checks, None)


def _model(request: Json, models: Mapping[str, ModelSpec]) -> Check:
    name = request["model"]
    if not isinstance(name, str):
        yield invalid("model: Input should be a valid string")
    elif name not in models:
        yield ApiError("not_found_error", f"model: {name}", 404)


def _limits(request: Json, rules: CheckContext, *, counting: bool) -> Check:
    spec = rules.models[cast("str", request["model"])]
    if not counting:
        most = request["max_tokens"]
        if not is_int(most):
            yield invalid("max_tokens: Input should be a valid integer")
        elif most < 0:
            yield invalid("max_tokens: Input should be greater than or equal to 0")
        elif most > spec.max_output:
            clause = "which is the maximum allowed number of output tokens for"
            yield invalid(f"max_tokens: {most} > {spec.max_output}, {clause} {spec.id}")
    for name, top in (("temperature", 1.0), ("top_p", 1.0), ("top_k", None)):
        if name in request and rules.version >= "2026-10-21":
            yield invalid(f"{name}: Extra inputs are not permitted")
        yield from _sampling(request.get(name), name, top, spec)


def _sampling(value: object, name: str, top: float | None, spec: ModelSpec) -> Check:
    if value is None:
        return
    if not spec.sampling:
        yield invalid(f"`{name}` is deprecated for this model.")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        yield invalid(f"{name}: Input should be a valid number")
    elif value < 0 or (top is not None and value > top):
        yield invalid(f"{name}: range: 0..{'' if top is None else int(top)}")


def _options(request: Json) -> Check:
    stream = request.get("stream", False)
    if not isinstance(stream, bool):
        yield invalid("stream: Input should be a valid boolean")
    yield from _stop_sequences(request.get("stop_sequences"))
    yield from _metadata(request.get("metadata"))
    yield from _output_config(request.get("output_config"))
    if request.get("service_tier", "auto") not in ("auto", "standard_only"):
        yield invalid("service_tier: Input should be 'auto' or 'standard_only'")
    if request.get("speed") not in (None, "standard", "fast"):
        yield invalid("speed: Input should be 'standard' or 'fast'")
    for name in ("container", "inference_geo"):
        if not isinstance(request.get(name), str | None):
            yield invalid(f"{name}: Input should be a valid string")
    yield from cache_control(request.get("cache_control"), "")


def _stop_sequences(value: object) -> Check:
    if value is None:
        return
    if not isinstance(value, list):
        yield invalid("stop_sequences: Input should be a valid list")
        return
    for position, text in enumerate(cast("list[object]", value)):
        if not isinstance(text, str):
            yield invalid(f"stop_sequences.{position}: Input should be a valid string")
        elif not text.strip():
            yield invalid("stop_sequences: each stop sequence must contain non-whitespace")


def _metadata(value: object) -> Check:
    if value is None:
        return
    if not isinstance(value, dict):
        yield invalid("metadata: Input should be an object")
        return
    metadata = cast("Json", value)
    yield from extra_fields(metadata, frozenset({"user_id"}), "metadata.")
    if not isinstance(metadata.get("user_id"), str | None):
        yield invalid("metadata.user_id: Input should be a valid string")


def _output_config(value: object) -> Check:
    if value is None:
        return
    if not isinstance(value, dict):
        yield invalid("output_config: Input should be an object")
        return
    config = cast("Json", value)
    yield from extra_fields(config, frozenset({"effort", "format"}), "output_config.")
    if config.get("effort") not in (None, *_EFFORTS):
        yield invalid(f"output_config.effort: Input should be {', '.join(map(repr, _EFFORTS))}")
    shape = config.get("format")
    if shape is None:
        return
    output_format = cast("Json", shape) if isinstance(shape, dict) else {}
    if output_format.get("type") != "json_schema" or not isinstance(output_format.get("schema"), dict):
        yield invalid("output_config.format: Input should be a `json_schema` with a `schema`")


def _tool_choice(request: Json) -> Check:
    value = request.get("tool_choice")
    if value is None:
        return
    choice = cast("Json", value) if isinstance(value, dict) else {}
    kind = choice.get("type")
    if kind not in ("auto", "any", "tool", "none"):
        yield invalid("tool_choice: Input tag does not match any of the expected tags: 'auto', 'any', 'tool', 'none'")
        return
    allowed = {"type"} if kind == "none" else {"type", "disable_parallel_tool_use"}
    yield from extra_fields(
        choice, frozenset(allowed | ({"name"} if kind == "tool" else set())), f"tool_choice.{kind}."
    )
    if not request.get("tools"):
        yield invalid("tool_choice: tool_choice may only be specified while providing tools")
    if kind == "tool":
        names = [tool["name"] for tool in cast("list[Json]", request.get("tools") or [])]
        if choice.get("name") not in names:
            yield invalid(f"Tool '{choice.get('name')}' not found in provided tools")


def _thinking(request: Json, models: Mapping[str, ModelSpec]) -> Check:
    value = request.get("thinking")
    if value is None:
        return
    config = cast("Json", value) if isinstance(value, dict) else {}
    kind = config.get("type")
    spec = models[cast("str", request["model"])]
    if kind not in ("enabled", "adaptive", "between_tools", "disabled"):
        yield invalid("thinking: Input tag does not match any of the expected tags: 'adaptive', 'disabled', 'enabled'")
        return
    if kind not in spec.thinking:
        other = 'Use "thinking.type.adaptive" and "output_config.effort" to control thinking behavior.'
        yield invalid(f'"thinking.type.{kind}" is not supported for this model. {other}')
    fields = {"enabled": {"type", "budget_tokens", "display"}, "adaptive": {"type", "display"}}.get(kind, {"type"})
    yield from extra_fields(config, frozenset(fields), f"thinking.{kind}.")
    if config.get("display") not in (None, "summarized", "omitted"):
        yield invalid(f"thinking.{kind}.display: Input should be 'summarized' or 'omitted'")
    if kind == "enabled":
        yield from _budget(config.get("budget_tokens"), request.get("max_tokens"))
    yield from _thinking_with(request, kind)


def _budget(budget: object, most: object) -> Iterator[ApiError]:
    if budget is None:
        yield invalid("thinking.enabled.budget_tokens: Field required")
    elif not is_int(budget):
        yield invalid("thinking.enabled.budget_tokens: Input should be a valid integer")
    elif budget < _MIN_BUDGET:
        yield invalid(f"thinking.enabled.budget_tokens: Input should be greater than or equal to {_MIN_BUDGET}")
    elif is_int(most) and budget >= most:
        yield invalid("`max_tokens` must be greater than `thinking.budget_tokens`.")


def _thinking_with(request: Json, kind: str) -> Check:
    if kind not in ("enabled", "adaptive"):
        return
    choice = request.get("tool_choice")
    if isinstance(choice, dict) and cast("Json", choice).get("type") in ("any", "tool"):
        yield invalid("Thinking may not be enabled when tool_choice forces tool use.")
    if request.get("temperature") not in (None, 1, 1.0):
        yield invalid("`temperature` may only be set to 1 when thinking is enabled.")
    if request.get("top_k") is not None:
        yield invalid("`top_k` must be unset when thinking is enabled.")
