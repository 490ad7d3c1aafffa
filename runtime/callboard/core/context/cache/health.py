"""Measures of how well the prompt cache serves an agent, and of changes in its requests when the cache misses. Pure.

A call *misses* when it finds less than half of the tokens that the previous call had left in the cache. A miss that the
cache's own rules explain is not counted: a first call, a prompt below the smallest prefix that is cached, a wait longer
than the lifetime of an entry. `THRASH` counted misses in a row are reported once, with the first block that differs
from the previous call, in the order in which the service caches: tools, system, messages. Only a reported miss costs a
comparison.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import cast

from callboard.core.frozen import replace
from callboard.types.agent_spec import ModelLimits
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import ViewBlock, ViewMessage, joined_blocks
from callboard.types.records import Json, Usage

THRASH = 3
"""Misses in a row that are reported."""
_SHOWN = 40
"""Characters shown of a section without a heading."""


@dataclass(frozen=True)
class CacheHealth:
    """Cache health, folded from each reply. Times are Unix seconds, sizes tokens."""

    misses: int = 0
    """Counted misses in a row."""
    told: bool = False
    """True once the misses were reported; the next hit ends the streak."""
    sent_at: float = 0.0
    """Time of the newest answered call."""
    prompt: int = 0
    """Tokens of that call's whole prompt."""
    left: int = 0
    """Tokens of the newest prompt that were in the cache after the call: read or written."""
    reported: bool = False
    """True if the service has reported cache usage at least once."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Parts of a sent call. Kept by reference: they cost nothing until a miss needs an explanation."""

    model: str
    shared_system: bytes
    """JSON array of the system blocks that agents of a type share."""
    own_blocks: str
    """JSON array of the agent's own system blocks; empty if there are none."""
    tools: bytes
    """JSON array of tools."""
    messages: Sequence[ViewMessage]

    @property
    def system(self) -> bytes:
        """Return the JSON of all system blocks (an array)."""
        return joined_blocks(self.shared_system, self.own_blocks)


def cache_hit_rate(usage: Usage) -> float:
    """Return the share (0..1) of all input that was read from the cache; 0 without input."""
    return usage.cache_read_input_tokens / usage.prompt_tokens if usage.prompt_tokens else 0.0


def health_seen(health: CacheHealth, usage: Usage, limits: ModelLimits, sent_at: float) -> CacheHealth:
    """Return the health after the reply to a call that was made at `sent_at`. A reply without usage changes nothing."""
    prompt = usage.prompt_tokens
    read = usage.cache_read_input_tokens
    if not prompt:
        return health
    # Half of the tokens that can be found: after an edit the view is shorter than the content that the last call left
    # (test_a_read_of_less_than_half_of_what_was_left_is_a_miss, test_a_shorter_view_need_not_find_what_it_has_lost).
    hit = read > 0 and 2 * read >= min(health.left, prompt)
    counts = not hit and not _explained(health, prompt, limits, sent_at)
    cached_tokens = read + usage.cache_creation_input_tokens
    return replace(
        health,
        misses=0 if hit else health.misses + counts,
        told=health.told and not hit,
        sent_at=sent_at,
        prompt=prompt,
        left=cached_tokens,
        reported=health.reported or cached_tokens > 0,
    )


def after_thrash_report(health: CacheHealth) -> CacheHealth:
    """Return the health after a report of the streak."""
    return replace(health, told=True)


def thrashes(health: CacheHealth) -> bool:
    """Return True if a streak is long enough and was not reported."""
    return health.misses >= THRASH and not health.told


def may_thrash(health: CacheHealth) -> bool:
    """Return True if the next reply may complete a streak that was not reported."""
    return health.misses >= THRASH - 1 and not health.told


def what_changed(before: Sent, now: Sent, health: CacheHealth) -> str:
    """Return the explanation of a streak of misses, for a person.

    The explanation is the first changed block, or the likely cause if nothing in the requests changed.
    """
    changed = first_change(before, now)
    if changed:
        return changed
    if not health.reported:
        return (
            "nothing in the requests: the service reports neither writes nor reads of a cache; it has none, or a proxy "
            "removes the cache marks or the counts"
        )
    if not health.left:
        return "nothing in the requests: the service no longer writes to its cache"
    return (
        "nothing in the requests: the service did not find what it had written; its entries expire early, or calls "
        "reach servers that share no cache"
    )


def first_change(before: Sent, now: Sent) -> str:
    """Return the first block of the earlier call that is not sent again unchanged; empty if all blocks are.

    Compares in the cache's order: the model, tools, system, messages. Cache marks do not count. Added blocks at the end
    are not a change.
    """
    if before.model != now.model:
        return f"the model (now {now.model}, before {before.model})"
    if before.tools != now.tools and (changed := _tool_change(_plain(before.tools), _plain(now.tools))):
        return changed
    if before.system != now.system and (changed := _section_change(_plain(before.system), _plain(now.system))):
        return changed
    return _message_change(before.messages, now.messages)


def _explained(health: CacheHealth, prompt: int, limits: ModelLimits, sent_at: float) -> bool:
    """Return True if the miss was inevitable: there was nothing to find."""
    # Nobody could prevent any of these (test_a_miss_that_the_cache_explains_is_not_counted).
    too_small = min(health.prompt, prompt) < limits.cache_minimum
    return health.prompt == 0 or too_small or sent_at - health.sent_at > limits.cache_ttl


def _plain(listed: bytes) -> list[Json]:
    """Return the blocks of a JSON array without their cache marks."""
    blocks = cast("list[Json]", json.loads(listed or b"[]"))
    return [{key: value for key, value in block.items() if key != "cache_control"} for block in blocks]


def _tool_change(before: Sequence[Json], now: Sequence[Json]) -> str:
    new_names = {str(tool.get("name")) for tool in now}
    old_names = {str(tool.get("name")) for tool in before}
    for old, new in zip_longest(before, now):
        old_name = _name_of(old)
        new_name = _name_of(new)
        if old == new:
            continue
        if old_name == new_name:
            return f'tool "{old_name}"'
        if old_name and old_name not in new_names:
            return f'tool "{old_name}" (gone)'
        if new_name and new_name not in old_names:
            return f'tool "{new_name}" (new)'
        return f'tool "{new_name}" (in another place)'
    return ""


def _name_of(tool: Json | None) -> str:
    return str(tool.get("name")) if tool is not None else ""


def _section_change(before: Sequence[Json], now: Sequence[Json]) -> str:
    for number, (old, new) in enumerate(zip_longest(before, now), 1):
        if old != new:
            suffix = " (gone)" if new is None else " (new)" if old is None else ""
            return f'system section {number} ("{_title(old or new or {})}"){suffix}'
    return ""


def _title(section: Json) -> str:
    first = str(section.get("text", "")).strip().split("\n", 1)[0]
    return first.lstrip("# ")[:_SHOWN].rstrip()


def _message_change(before: Sequence[ViewMessage], now: Sequence[ViewMessage]) -> str:
    """Compare messages. Messages that are the same object, or have the same bytes, are equal."""
    for number, (old, new) in enumerate(zip_longest(before, now), 1):
        if old is None:
            return ""
        if old is new or (new is not None and old.wire == new.wire):
            continue
        if new is None or old.role != new.role:
            return f"message {number} ({_describe(old.blocks[0], before)}; it is no longer in the view)"
        place = _block_change(old.blocks, new.blocks)
        if place is not None:
            return f"message {number} ({_describe(old.blocks[place], before)})"
    return ""


def _block_change(before: Sequence[ViewBlock], now: Sequence[ViewBlock]) -> int | None:
    """Return the index of the first block that changed; None if the message only grew."""
    for place, old in enumerate(before):
        # Added blocks leave the prefix before them valid (test_a_message_that_only_grew_is_no_change).
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


def _describe(block: ViewBlock, messages: Sequence[ViewMessage]) -> str:
    """Return a short description of a block."""
    kind = block.data.get("type")
    data = block.data
    if kind == "tool_use":
        return f"call of {data.get('name')}"
    if kind == "tool_result":
        return f"tool result of {_call_name(str(data.get('tool_use_id')), messages)}"
    return _WORDS.get(block.source, f"text of {block.source}")


def _call_name(use_id: str, messages: Sequence[ViewMessage]) -> str:
    blocks = (block.data for message in messages if message.role == "assistant" for block in message.blocks)
    names = (str(data.get("name")) for data in blocks if data.get("type") == "tool_use" and data.get("id") == use_id)
    return next(names, "a tool")
