"""Compute what a request would be billed, with the prompt cache of the rehearsed service but without HTTP.

Units are uncached input x 1 + cache write x 1.25 + cache read x 0.1 + output x 5: the prices of a model relative to its
input price. The cross-check of `context_cost.py` compares the result with the bill of the service over HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from callboard.adapters.models.rehearsal.api import ModelSpec
from callboard.adapters.models.rehearsal.tokens import (
    BlockTokens,
    PromptCache,
    chain_prefixes,
    head_pieces,
    message_pieces,
    output_tokens,
    prompt_tokens,
    rendering_fields,
    survey,
)
from callboard.core.context.cache.breakpoints import anchored_list, without_mark
from callboard.types.records import Usage

Json = dict[str, Any]

WRITE, READ, OUTPUT = 1.25, 0.1, 5.0
MODEL = ModelSpec("bench", window=10_000_000)
"""A window so large that the uncompacted baseline always fits."""

SYSTEM = [{"type": "text", "text": "You are an agent that works on code. " * 160}]
TOOLS = [
    {"name": name, "description": f"What {name} does. " * 60, "input_schema": {"type": "object"}}
    for name in ("bash", "edit_file", "glob", "grep", "read_file", "send_message", "task", "todo_write", "write_file")
]
HEAD = b'"system":%s,"tools":%s' % (anchored_list(SYSTEM), anchored_list(TOOLS))
HEAD_UNMARKED = b'"system":%s,"tools":%s' % (anchored_list(SYSTEM), without_mark(anchored_list(TOOLS)))
OVERHEAD = prompt_tokens(survey({"system": SYSTEM, "tools": TOOLS, "messages": []}))
"""Tokens of the system prompt and the tools."""


def units(usage: Usage) -> float:
    """Return the cost in tokens of uncached input."""
    written, read = usage.cache_creation_input_tokens, usage.cache_read_input_tokens
    return usage.input_tokens + WRITE * written + READ * read + OUTPUT * usage.output_tokens


@dataclass
class Service:
    """Service that bills one request after another."""

    cache: PromptCache = field(default_factory=PromptCache)
    known: dict[bytes, list[BlockTokens]] = field(default_factory=dict[bytes, list[BlockTokens]])
    """Messages and heads that were already measured: most of a request is the same as a step before."""

    def call(self, messages: Sequence[bytes], reply: Sequence[Json], now: float, head: bytes = HEAD) -> Usage:
        """Return the usage of one exchange. `messages`: pieces of one or more messages, to be joined by commas."""
        pieces = [*self._head(head)]
        for message in messages:
            pieces += self._message(message)
        plan = self.cache.plan(chain_prefixes(pieces), MODEL, now)
        self.cache.began(plan, now)
        return Usage(
            input_tokens=plan.usage.uncached,
            cache_creation_input_tokens=plan.usage.written_5m,
            cache_read_input_tokens=plan.usage.read,
            output_tokens=output_tokens(reply),
        )

    def _head(self, head: bytes) -> list[BlockTokens]:
        if head not in self.known:
            self.known[head] = head_pieces(json.loads(b"{%s}" % head))
        return self.known[head]

    def _message(self, message: bytes) -> list[BlockTokens]:
        if message not in self.known:
            how = rendering_fields({})
            self.known[message] = [one for each in json.loads(b"[%s]" % message) for one in message_pieces(each, how)]
        return self.known[message]
