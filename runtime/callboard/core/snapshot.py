"""A state as bytes and back, so that a long journal need not be folded from its beginning.

A snapshot is a shortcut and never the truth: it carries the digest of the shape that it was written with, and one of
another shape, or a damaged one, is passed over and the journal is folded whole.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from pydantic import TypeAdapter, ValidationError

from callboard.core.state import AgentState

EVERY = 500
"""Events of a journal between two snapshots of a small view: what a resume folds at most, besides the newest turn."""
PER_VIEW = 200_000
"""Tokens of the view for which they stand `EVERY` events farther apart: writing a snapshot costs as much as the view
holds, and that share of a step must not grow with it; nor may a resume that folds the events take much longer than one
that reads the view."""
_ADDRESSES = re.compile(r"0x[0-9a-f]+|:\d{6,}")
"""Where a class or a function lies in memory."""


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[AgentState]:
    return TypeAdapter(AgentState)


@lru_cache(maxsize=1)
def shape() -> str:
    """The digest of what a state looks like in this version: the same in every process of it.

    Of the schema that the adapter works by: a JSON schema made from it says the same and takes 50 ms more.
    """
    schema = _ADDRESSES.sub("", repr(_adapter().core_schema))
    return hashlib.sha256(schema.encode()).hexdigest()[:16]


def due(before: int, state: AgentState) -> bool:
    """Whether a snapshot is to be written with the events after position `before`, up to this state."""
    apart = EVERY * (1 + state.conversation.tokens // PER_VIEW)
    return state.seq // apart > before // apart


def dump(state: AgentState) -> bytes:
    """The state as JSON, behind the digest of its shape."""
    return shape().encode() + b"\n" + _adapter().dump_json(state)


def load(data: bytes) -> AgentState | None:
    """The state, or None when this version did not write it."""
    written, _, body = data.partition(b"\n")
    if written.decode(errors="replace") != shape():
        return None
    try:
        return _adapter().validate_json(body)
    except ValidationError:
        return None
