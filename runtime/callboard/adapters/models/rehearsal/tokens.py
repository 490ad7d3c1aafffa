"""Token estimates and the prompt cache of the emulator: the cost of a prompt, and its cache reads.

`survey` walks a request once. Each block is serialized once, and hashed together with the preceding ones. `PromptCache`
remembers prefixes by those hashes. Entries are written at `cache_control` marks, found by looking back 20 blocks, live
for 5 minutes or 1 hour by the caller's clock, and can be read once the reply that wrote them has begun.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

from callboard.adapters.models.rehearsal.api import ModelSpec
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

Json = dict[str, object]

_CJK = late_pattern("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
_IMAGE_TOKENS = 1_600
BLOCK_TOKENS = 3
"""Tokens for the structure around one block."""
_LOOK_BACK = 20
"""Number of blocks that are checked for each mark, beginning with the marked block."""
_TTL_S = {"5m": 300.0, "1h": 3600.0}


def estimate(text: str) -> int:
    """Return the tokens of a text: 0.25 for each byte, 1.5 for each CJK character, rounded up."""
    if text.isascii():
        return -(-len(text) // 4)
    narrow, wide = _CJK.subn("", text)
    return math.ceil(len(narrow.encode("utf-8", "surrogatepass")) / 4 + wide * 1.5)


class PromptPrefix(NamedTuple):
    """A prompt up to the end of one block."""

    digest: bytes
    tokens: int
    """Tokens of the whole prefix."""
    ttl: str | None
    """The block's own cache mark: `5m`, `1h`, or None."""


@dataclass(frozen=True, slots=True)
class BilledInput:
    """Input that the API would bill, in tokens."""

    uncached: int
    written_5m: int
    written_1h: int
    read: int

    @property
    def total(self) -> int:
        """Return the tokens of the whole prompt."""
        return self.uncached + self.written_5m + self.written_1h + self.read

    def as_json(self, output: int) -> Json:
        """Return the `usage` object of a reply with `output` tokens so far."""
        return {
            "input_tokens": self.uncached,
            "cache_creation_input_tokens": self.written_5m + self.written_1h,
            "cache_read_input_tokens": self.read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": self.written_5m,
                "ephemeral_1h_input_tokens": self.written_1h,
            },
            "output_tokens": output,
            "service_tier": "standard",
        }


class BlockTokens(NamedTuple):
    """One block without its context."""

    digest: bytes
    tokens: int
    ttl: str | None
    """Cache mark: `5m`, `1h`, or None. The mark is not part of the digest."""


def survey(request: Json) -> list[PromptPrefix]:
    """Return a valid request as its growing prefixes, in the cache's order: tools, system, messages.

    One entry per block.
    """
    how = rendering_fields(request)
    pieces = head_pieces(request)
    for message in cast("list[Json]", request["messages"]):
        pieces += message_pieces(message, how)
    prefixes = chain_prefixes(pieces)
    if prefixes and isinstance(request.get("cache_control"), dict):
        last = prefixes[-1]
        ttl = str(cast("Json", request["cache_control"]).get("ttl", "5m"))
        prefixes[-1] = PromptPrefix(last.digest, last.tokens, last.ttl or ttl)
    return prefixes


def rendering_fields(request: Json) -> str:
    """Return the fields that change the rendering of messages.

    They change the prefixes of messages, but not those of tools and system.
    """
    return json.dumps([request.get("tool_choice"), request.get("thinking")], sort_keys=True)


def head_pieces(request: Json) -> list[BlockTokens]:
    """Return the tools and the system prompt, one piece each."""
    tools = [_piece("tool", tool) for tool in cast("list[Json]", request.get("tools") or [])]
    return [*tools, *(_piece("system", block) for block in _as_blocks(request.get("system")))]


def message_pieces(message: Json, how: str) -> list[BlockTokens]:
    """Return the blocks of one message. `how`: the `rendering_fields` of its request."""
    kind = f"{message['role']} {how}"
    return [_piece(kind, block) for block in _as_blocks(message["content"])]


def chain_prefixes(pieces: Iterable[BlockTokens]) -> list[PromptPrefix]:
    """Return each piece together with the preceding ones."""
    prefixes: list[PromptPrefix] = []
    digest = b""
    tokens = 0
    for piece in pieces:
        digest = hashlib.blake2b(digest + piece.digest, digest_size=16).digest()
        tokens += piece.tokens
        prefixes.append(PromptPrefix(digest, tokens, piece.ttl))
    return prefixes


def _piece(kind: str, block: Json) -> BlockTokens:
    mark = block.get("cache_control")
    plain = block if mark is None else {name: value for name, value in block.items() if name != "cache_control"}
    # `repr` of plain JSON data is unambiguous, and costs half as much as `json.dumps`.
    raw = f"{kind} {plain!r}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(raw, digest_size=16).digest()
    return BlockTokens(digest, block_tokens(block), str(cast("Json", mark).get("ttl", "5m")) if mark else None)


def _as_blocks(content: object) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return cast("list[Json]", content or [])


def block_tokens(block: Json) -> int:
    """Return the estimate for one block or tool."""
    kind = block.get("type")
    if kind == "text":
        return BLOCK_TOKENS + estimate(cast("str", block["text"]))
    if kind == "tool_result":
        inner = sum(block_tokens(part) for part in _as_blocks(block.get("content")))
        return BLOCK_TOKENS + 8 + inner
    if kind == "tool_use":
        return BLOCK_TOKENS + 8 + estimate(cast("str", block["name"])) + estimate(json.dumps(block["input"]))
    if kind == "image":
        return BLOCK_TOKENS + _IMAGE_TOKENS
    if kind == "thinking":
        return BLOCK_TOKENS + estimate(cast("str", block["thinking"]))
    return BLOCK_TOKENS + estimate(json.dumps({k: v for k, v in block.items() if k != "cache_control"}))


def prompt_tokens(prefixes: list[PromptPrefix]) -> int:
    """Return the estimate for a whole prompt."""
    return prefixes[-1].tokens if prefixes else 0


@dataclass(slots=True)
class _Entry:
    expires: float
    ttl: str


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Cache reads and later writes of one request. `PromptCache.began` puts them into effect."""

    usage: BilledInput
    model: str
    writes: tuple[tuple[bytes, str], ...]
    reads: tuple[bytes, ...]


class PromptCache:
    """The provider's memory of prefixes. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, bytes], _Entry] = {}

    def plan(self, prefixes: list[PromptPrefix], spec: ModelSpec, now: float) -> CachePlan:
        """Return the cache reads of a request with these prefixes at `now`, and its later writes."""
        marks = [n for n, prefix in enumerate(prefixes) if prefix.ttl and prefix.tokens >= spec.min_cache]
        hits = {hit for mark in marks if (hit := self._hit(prefixes, mark, spec.id, now)) is not None}
        read = max((prefixes[hit].tokens for hit in hits), default=0)
        writes = [prefixes[mark] for mark in marks if prefixes[mark].tokens > read]
        total = prompt_tokens(prefixes)
        longest = max((prefix.tokens for prefix in writes), default=read)
        hour = max((prefix.tokens for prefix in writes if prefix.ttl == "1h"), default=read)
        usage = BilledInput(uncached=total - longest, written_5m=longest - hour, written_1h=hour - read, read=read)
        return CachePlan(
            usage,
            spec.id,
            tuple((prefix.digest, prefix.ttl or "5m") for prefix in writes),
            tuple(prefixes[hit].digest for hit in hits),
        )

    def began(self, plan: CachePlan, now: float) -> None:
        """Record that the reply to a planned request began.

        From now on, the prefixes of the request can be read, and the prefixes that it read live longer.
        """
        for digest in plan.reads:
            entry = self._entries.get((plan.model, digest))
            if entry is not None:
                entry.expires = now + _TTL_S[entry.ttl]
        for digest, ttl in plan.writes:
            self._entries[plan.model, digest] = _Entry(now + _TTL_S[ttl], ttl)
        if len(self._entries) > 10_000:
            self._entries = {key: entry for key, entry in self._entries.items() if entry.expires > now}

    def _hit(self, prefixes: list[PromptPrefix], mark: int, model: str, now: float) -> int | None:
        for position in range(mark, max(mark - _LOOK_BACK, -1), -1):
            entry = self._entries.get((model, prefixes[position].digest))
            if entry is not None and entry.expires > now:
                return position
        return None


def output_tokens(blocks: Sequence[Mapping[str, object]]) -> int:
    """Return the estimate for a reply. Even an empty one costs something."""
    return 1 + sum(block_tokens(dict(block)) for block in blocks)
