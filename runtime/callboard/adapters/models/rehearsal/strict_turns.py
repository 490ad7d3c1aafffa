"""Order of a conversation: roles, calls and their results, cache marks, and thinking that must be returned. Pure.

The API treats neighbouring messages of one role as one turn. Error paths use the request's own message numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

from callboard.adapters.models.rehearsal.api import ApiError, ModelSpec, invalid, redacted, signed
from callboard.adapters.models.rehearsal.strict_blocks import Check, Json

_MAX_MARKS = 4
_THINKING = ("thinking", "redacted_thinking")


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
    """Return a digest of the names and inputs of a reply's calls, in order. It does not depend on their ids. '' without
    calls."""
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


def _signatures(folded: Sequence[RoleTurn], spec: ModelSpec) -> Check:
    for turn in folded:
        for block, place in zip(turn.blocks, turn.places, strict=True):
            where = f"messages.{place[0]}.content.{place[1]}"
            kind = block["type"]
            if kind == "thinking" and not signed(spec.id, str(block["thinking"]), str(block["signature"])):
                yield invalid(f"{where}: Invalid `signature` in `thinking` block")
            if kind == "redacted_thinking" and not redacted(spec.id, str(block["data"])):
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
