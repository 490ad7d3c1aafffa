"""How well the prompt cache serves an agent, and what of its requests changed when it does not. Pure.

A call *misses* when it finds less than half of what the call before had left in the cache. A miss that the cache's own
rules explain is not counted: a first call, a prompt below the smallest prefix that is cached, a wait longer than an
entry lives. `THRASH` counted misses in a row are told once, with the first block that is not what it was at the call
before, in the order in which the service caches: tools, system, messages. Nothing is compared before that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import cast

from callboard.core.frozen import replace
from callboard.words.context import Block, Message
from callboard.words.specs import ModelLimits
from callboard.words.values import Json, Usage

THRASH = 3
"""Misses in a row that are told."""
_SHOWN = 40
"""Characters of a section without a heading that name it."""


@dataclass(frozen=True)
class CacheHealth:
    """Folded from each reply. Times are Unix seconds, sizes tokens."""

    misses: int = 0
    """Counted misses in a row."""
    told: bool = False
    """They were told; the next hit ends the streak."""
    sent_at: float = 0.0
    """When the newest call that was answered was made."""
    prompt: int = 0
    """Its whole prompt."""
    left: int = 0
    """What of it stood in the cache afterwards: read or written."""
    reported: bool = False
    """The service has said something of a cache, at least once."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What a call was made of. Kept by reference: it costs nothing until a miss is to be explained."""

    model: str
    system: bytes
    """JSON array of text blocks."""
    tools: bytes
    """JSON array of tools."""
    messages: Sequence[Message]


def cache_hit_rate(usage: Usage) -> float:
    """The share (0..1) of all input that was read from the cache; 0 where there was no input."""
    return usage.cache_read_input_tokens / usage.prompt_tokens if usage.prompt_tokens else 0.0


def health_seen(health: CacheHealth, usage: Usage, limits: ModelLimits, sent_at: float) -> CacheHealth:
    """The health after the reply to a call that was made at `sent_at`. Without any usage nothing is known."""
    if not usage.prompt_tokens:
        return health
    hit = usage.cache_read_input_tokens > 0 and 2 * usage.cache_read_input_tokens >= min(
        health.left, usage.prompt_tokens
    )
    counts = not hit and not _explained(health, usage, limits, sent_at)
    left = usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    return CacheHealth(
        misses=0 if hit else health.misses + counts,
        told=health.told and not hit,
        sent_at=sent_at,
        prompt=usage.prompt_tokens,
        left=left,
        reported=health.reported or left > 0,
    )


def thrash_told(health: CacheHealth) -> CacheHealth:
    """The health once the streak is told."""
    return replace(health, told=True)


def thrashes(health: CacheHealth) -> bool:
    """A streak that is long enough and was not told."""
    return health.misses >= THRASH and not health.told


def what_changed(before: Sent, now: Sent, health: CacheHealth) -> str:
    """What a person is told of a streak: the first block that changed, or what it is if nothing of ours did."""
    changed = first_change(before, now)
    if changed:
        return changed
    if not health.reported:
        return (
            "nothing of ours: the service reports neither writes nor reads of a cache, so it has none, or what stands "
            "before it drops our marks or its counts"
        )
    if not health.left:
        return "nothing of ours: the service no longer writes its cache"
    return (
        "nothing of ours: the service did not find what it had written, so its entries end early, or calls reach "
        "services that share no cache"
    )


def first_change(before: Sent, now: Sent) -> str:
    """The first block of what was sent before that is not sent again as it was; empty when all of it is.

    In the cache's order: the model, tools, system, messages. Cache marks do not count. What came behind is no change.
    """
    if before.model != now.model:
        return f"the model (now {now.model}, before {before.model})"
    if before.tools != now.tools and (changed := _tool_change(_plain(before.tools), _plain(now.tools))):
        return changed
    if before.system != now.system and (changed := _section_change(_plain(before.system), _plain(now.system))):
        return changed
    return _message_change(before.messages, now.messages)


def _explained(health: CacheHealth, usage: Usage, limits: ModelLimits, sent_at: float) -> bool:
    """A miss that had to be: there was nothing to find."""
    too_small = min(health.prompt, usage.prompt_tokens) < limits.cache_minimum
    return health.prompt == 0 or too_small or sent_at - health.sent_at > limits.cache_ttl


def _plain(listed: bytes) -> list[Json]:
    """The blocks of a JSON array without their cache marks."""
    blocks = cast("list[Json]", json.loads(listed or b"[]"))
    return [{key: value for key, value in block.items() if key != "cache_control"} for block in blocks]


def _tool_change(before: Sequence[Json], now: Sequence[Json]) -> str:
    there, were = {str(tool.get("name")) for tool in now}, {str(tool.get("name")) for tool in before}
    for old, new in zip_longest(before, now):
        was, stands = _name_of(old), _name_of(new)
        if old == new:
            continue
        if was == stands:
            return f'tool "{was}"'
        if was and was not in there:
            return f'tool "{was}" (gone)'
        if stands and stands not in were:
            return f'tool "{stands}" (new)'
        return f'tool "{stands}" (in another place)'
    return ""


def _name_of(tool: Json | None) -> str:
    return str(tool.get("name")) if tool is not None else ""


def _section_change(before: Sequence[Json], now: Sequence[Json]) -> str:
    for number, (old, new) in enumerate(zip_longest(before, now), 1):
        if old != new:
            fate = " (gone)" if new is None else " (new)" if old is None else ""
            return f'system section {number} ("{_title(old or new or {})}"){fate}'
    return ""


def _title(section: Json) -> str:
    first = str(section.get("text", "")).strip().split("\n", 1)[0]
    return first.lstrip("# ")[:_SHOWN].rstrip()


def _message_change(before: Sequence[Message], now: Sequence[Message]) -> str:
    """Messages that are the same object, or the same bytes, are the same."""
    for number, (old, new) in enumerate(zip_longest(before, now), 1):
        if old is None:
            return ""
        if old is new or (new is not None and old.wire == new.wire):
            continue
        if new is None or old.role != new.role:
            return f"message {number} ({_words(old.blocks[0], before)}; it no longer stands there)"
        place = _block_change(old.blocks, new.blocks)
        if place is not None:
            return f"message {number} ({_words(old.blocks[place], before)})"
    return ""


def _block_change(before: Sequence[Block], now: Sequence[Block]) -> int | None:
    """The index of the first block that is not what it was; None when the message only grew."""
    for place, old in enumerate(before):
        if place >= len(now) or now[place].data != old.data:
            return place
    return None


_WORDS: Mapping[str, str] = {
    "person": "the person's words",
    "schedule": "a schedule's prompt",
    "reminder": "a reminder",
    "inbox": "mail",
    "hook": "a hook's text",
    "memory": "a note of memory",
    "instructions": "project instructions",
    "compactor": "a summary or a mark",
    "assistant": "a reply",
}


def _words(block: Block, messages: Sequence[Message]) -> str:
    """A block in a few words."""
    kind, data = block.data.get("type"), block.data
    if kind == "tool_use":
        return f"call of {data.get('name')}"
    if kind == "tool_result":
        return f"tool result of {_asked(str(data.get('tool_use_id')), messages)}"
    return _WORDS.get(block.source, f"text of {block.source}")


def _asked(use_id: str, messages: Sequence[Message]) -> str:
    blocks = (block.data for message in messages if message.role == "assistant" for block in message.blocks)
    found = (str(data.get("name")) for data in blocks if data.get("type") == "tool_use" and data.get("id") == use_id)
    return next(found, "a tool")
