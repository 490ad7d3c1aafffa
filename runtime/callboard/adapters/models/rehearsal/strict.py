"""Checks that the Messages API would accept a request. Pure: `check_request` refuses with the API's own texts.

An emulator that is less strict than the real API would prove nothing. So doubtful requests are refused, and so are
server tools and beta fields. `strict_blocks` checks the shapes of blocks. This module checks the fields of a request,
and the order of a conversation: roles, calls and their results, cache marks, and thinking that must be returned.

The API treats neighbouring messages of one role as one turn. Error paths use the request's own message numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain, pairwise
from typing import cast

from callboard.adapters.models.rehearsal.api import ApiError, ModelSpec, invalid, is_redacted, is_signed
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
from callboard.types.lazy_dataclass import dataclass

_MAX_MARKS = 4
_THINKING = ("thinking", "redacted_thinking")
__all__ = ["MAX_BODY", "VERSIONS", "CheckContext", "check_headers", "check_request"]
MAX_BODY = 32 * 1024 * 1024
"""Most bytes of a body. A longer one gets a 413."""
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


@dataclass(frozen=True, slots=True)
class CheckContext:
    """Inputs of a check besides the request."""

    models: Mapping[str, ModelSpec]
    issued: Mapping[str, frozenset[tuple[str, ...]]] = field(default_factory=dict[str, frozenset[tuple[str, ...]]])
    """Signatures of the thinking before the calls of each reply that this agent got, by `calls_digest`."""
    version: str = "2026-10-21"
    """Requested `anthropic-version`: the newest has no sampling parameters."""
    paused: bool = False
    """True if this agent's last reply stopped with `pause_turn`: the conversation may end with it."""


@dataclass(slots=True)
class RoleTurn:
    """Neighbouring messages of one role."""

    role: str
    blocks: list[Json]
    places: list[tuple[int, int]]
    """Message number and position of each block."""
    first: int


def fold_turns(messages: Sequence[Json]) -> list[RoleTurn]:
    """Return the conversation with neighbours of the same role merged, and strings converted to text blocks."""
    folded: list[RoleTurn] = []
    for number, message in enumerate(messages):
        role = cast("str", message["role"])
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not folded or folded[-1].role != role:
            folded.append(RoleTurn(role, [], [], number))
        turn = folded[-1]
        for position, block in enumerate(cast("list[Json]", blocks)):
            turn.blocks.append(block)
            turn.places.append((number, position))
    return folded


def calls_digest(blocks: Sequence[Json]) -> str:
    """Return a digest of the names and inputs of a reply's calls, in order.

    It does not depend on their ids. '' without calls.
    """
    calls = [[block["name"], block["input"]] for block in blocks if block["type"] == "tool_use"]
    text = json.dumps(calls, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20] if calls else ""


def thinking_marks(blocks: Sequence[Json]) -> tuple[str, ...]:
    """Return the signatures and data of a reply's thinking blocks, in order."""
    return tuple(str(block.get("signature", block.get("data"))) for block in blocks if block["type"] in _THINKING)


def cache_marks(request: Json) -> Check:
    """Check that at most four blocks are marked, and that longer-lived marks come first."""
    marks = list(_marks(request))
    if isinstance(request.get("cache_control"), dict):
        marks.append(str(cast("Json", request["cache_control"]).get("ttl", "5m")))
    if len(marks) > _MAX_MARKS:
        yield invalid(f"A maximum of {_MAX_MARKS} blocks with cache_control may be provided. Found {len(marks)}.")
    if any(before == "5m" and after == "1h" for before, after in pairwise(marks)):
        yield invalid(
            "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. "
            "Note that blocks are processed in the following order: `tools`, `system`, `messages`."
        )


def _marks(request: Json) -> Iterator[str]:
    for block in _all_blocks(request):
        inner = block.get("content")
        parts = cast("list[Json]", inner) if isinstance(inner, list) else []
        for marked in (block, *parts):
            if marked.get("cache_control") is not None:
                yield str(cast("Json", marked["cache_control"]).get("ttl", "5m"))


def _all_blocks(request: Json) -> Iterator[Json]:
    yield from cast("list[Json]", request.get("tools") or [])
    if isinstance(request.get("system"), list):
        yield from cast("list[Json]", request["system"])
    for message in cast("list[Json]", request["messages"]):
        if isinstance(message["content"], list):
            yield from cast("list[Json]", message["content"])


def turns(request: Json, rules: CheckContext) -> Check:
    """Check the order of the messages."""
    spec = rules.models[cast("str", request["model"])]
    folded = fold_turns(cast("list[Json]", request["messages"]))
    yield from _roles(folded, spec)
    yield from _last(folded[-1], spec, paused=rules.paused)
    yield from _pairs(folded)
    yield from _searches(folded, paused=rules.paused)
    if not request.get("tools") and any(block["type"] == "tool_use" for turn in folded for block in turn.blocks):
        yield invalid("Requests which include `tool_use` or `tool_result` blocks must define tools")
    yield from _signatures(folded, spec)
    yield from _loop_thinking(request, folded, rules)


def _roles(folded: Sequence[RoleTurn], spec: ModelSpec) -> Check:
    if folded[0].role == "system":
        yield invalid("messages.0: use the top-level 'system' parameter for the initial system prompt")
    if folded[0].role != "user":
        yield invalid('messages: first message must use the "user" role')
    for position, turn in enumerate(folded):
        if turn.role != "system":
            continue
        if not spec.system_messages:
            yield invalid(f"messages.{turn.first}: role 'system' is not supported on this model")
        after = folded[position + 1].role if position + 1 < len(folded) else "assistant"
        if folded[position - 1].role != "user" or after != "assistant":
            rule = (
                "a system message must directly follow a user message, and be last or followed by an assistant message"
            )
            yield invalid(f"messages.{turn.first}: {rule}")


def _last(turn: RoleTurn, spec: ModelSpec, *, paused: bool) -> Check:
    if turn.role != "assistant":
        return
    if turn.blocks and turn.blocks[-1]["type"] == "text":
        text = cast("str", turn.blocks[-1]["text"])
        if text != text.rstrip():
            yield invalid("messages: final assistant content cannot end with trailing whitespace")
    if not (spec.prefill or paused) and not any(block["type"] == "tool_use" for block in turn.blocks):
        rule = "The conversation must end with a user message."
        yield invalid(f"This model does not support assistant message prefill. {rule}")


def _calls(turn: RoleTurn) -> list[tuple[str, tuple[int, int]]]:
    """Return the ids and the places of the calls in a turn."""
    placed = zip(turn.blocks, turn.places, strict=True)
    return [(cast("str", block["id"]), place) for block, place in placed if block["type"] == "tool_use"]


def _pairs(folded: Sequence[RoleTurn]) -> Check:
    seen: set[str] = set()
    expected: set[str] = set()
    for position, turn in enumerate(folded):
        calls = _calls(turn) if turn.role == "assistant" else []
        for call, place in calls:
            if call in seen:
                yield invalid(f"messages.{place[0]}.content.{place[1]}: `tool_use` ids must be unique")
            seen.add(call)
        if turn.role == "assistant":
            expected = {call for call, _ in calls}
            yield from _unanswered(turn, folded[position + 1] if position + 1 < len(folded) else None)
        else:
            yield from _results(turn, expected)
            expected = set()


def _unanswered(turn: RoleTurn, after: RoleTurn | None) -> Check:
    calls = [cast("str", block["id"]) for block in turn.blocks if block["type"] == "tool_use"]
    if not calls:
        return
    answered: set[str] = set()
    for block in after.blocks if after is not None else ():
        if block["type"] != "tool_result":
            break
        answered.add(cast("str", block["tool_use_id"]))
    missing = [call for call in calls if call not in answered]
    if missing:
        number = max(
            place[0] for block, place in zip(turn.blocks, turn.places, strict=True) if block["type"] == "tool_use"
        )
        yield invalid(
            f"messages.{number}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the next "
            "message."
        )


def _results(turn: RoleTurn, expected: set[str]) -> Check:
    answered: set[str] = set()
    for block, place in zip(turn.blocks, turn.places, strict=True):
        if block["type"] != "tool_result":
            continue
        call = cast("str", block["tool_use_id"])
        where = f"messages.{place[0]}.content.{place[1]}"
        if call not in expected:
            yield invalid(
                f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {call}. "
                "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        if call in answered:
            rule = "each tool_use must have a single result. Found multiple `tool_result` blocks with id"
            yield invalid(f"{where}: {rule}: {call}")
        answered.add(call)


def _searches(folded: Sequence[RoleTurn], *, paused: bool) -> Check:
    """Check that each search of the service has its results in the same turn, unless the service paused in it."""
    for turn in folded:
        calls = [str(block["id"]) for block in turn.blocks if block["type"] == "server_tool_use"]
        answered = [str(block["tool_use_id"]) for block in turn.blocks if block["type"] == "web_search_tool_result"]
        if stray := next((call for call in answered if call not in calls), None):
            yield invalid(f"messages.{turn.first}: unexpected `tool_use_id` in `web_search_tool_result`: {stray}")
        missing = [call for call in calls if call not in answered]
        if missing and not (paused and turn is folded[-1]):
            rule = "tool use with id was found without a corresponding `web_search_tool_result` block"
            yield invalid(f"messages.{turn.first}: `web_search` {rule}: {', '.join(missing)}")


def _signatures(folded: Sequence[RoleTurn], spec: ModelSpec) -> Check:
    for turn in folded:
        for block, place in zip(turn.blocks, turn.places, strict=True):
            where = f"messages.{place[0]}.content.{place[1]}"
            kind = block["type"]
            if kind == "thinking" and not is_signed(spec.id, str(block["thinking"]), str(block["signature"])):
                yield invalid(f"{where}: Invalid `signature` in `thinking` block")
            if kind == "redacted_thinking" and not is_redacted(spec.id, str(block["data"])):
                yield invalid(f"{where}: Invalid `data` in `redacted_thinking` block")


def _loop_thinking(request: Json, folded: Sequence[RoleTurn], rules: CheckContext) -> Check:
    """Check that, during a tool loop, the thinking before its calls is returned unchanged."""
    kind = cast("Json", request.get("thinking") or {}).get("type")
    if kind not in ("enabled", "adaptive", "between_tools"):
        return
    loop = _open_loop(folded)
    if kind == "enabled" and loop and loop[0].blocks[0]["type"] not in _THINKING:
        turn = loop[0]
        yield invalid(
            f"messages.{turn.first}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
            f"`{turn.blocks[0]['type']}`. When `thinking` is enabled, a final `assistant` message must start with a "
            "thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks)."
        )
    for turn in loop:
        issued = rules.issued.get(calls_digest(turn.blocks))
        if issued is not None and thinking_marks(turn.blocks) not in issued:
            yield _modified(turn)


def _modified(turn: RoleTurn) -> ApiError:
    number, position = turn.places[0]
    return invalid(
        f"messages.{number}.content.{position}: `thinking` or `redacted_thinking` blocks in the latest assistant "
        "message cannot be modified. These blocks must remain as they were in the original response."
    )


def _open_loop(folded: Sequence[RoleTurn]) -> list[RoleTurn]:
    """Return the assistant turns of the tool loop that the last message continues, oldest first."""
    if folded[-1].role == "assistant":
        return []
    loop: list[RoleTurn] = []
    for turn in reversed(folded):
        if turn.role == "assistant":
            if not any(block["type"] == "tool_use" for block in turn.blocks):
                break
            loop.append(turn)
        elif turn.role == "user" and not any(block["type"] == "tool_result" for block in turn.blocks):
            break
    return loop[::-1]


def check_headers(headers: Mapping[str, str], keys: frozenset[str] | None = None) -> ApiError | None:
    """Return the refusal of a request's headers (names in lower case), or None.

    `keys` are the accepted keys; None: any.
    """
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
