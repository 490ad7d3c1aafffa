"""Rules for content that is too large for a conversation: the texts that are written to a file first. Pure.

A person's paste and another agent's long message are never cut: the file contains the whole text, and the conversation
contains its path, its beginning and its end. Nothing is refused. The engine writes the files before the delivery is
recorded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from callboard.core.messaging.envelopes import SHOWN_END
from callboard.types.late_pattern import late_pattern
from callboard.types.records import Envelope

PASTE = 100_000
"""Characters above which the text of a person or a schedule is written to a file (the project's page on context)."""
MESSAGE = 30_000
"""Characters above which another agent's message, or a notification, is written to a file, as for a large result."""
TOGETHER = 200_000
"""Characters that the envelopes of one delivery may have together. Above it, the largest are written to files too."""

_UNSAFE = late_pattern(r"[^A-Za-z0-9_-]")


def too_long(envelopes: Sequence[Envelope]) -> frozenset[str]:
    """Return the ids of the envelopes whose content is written to a file before they are delivered together."""
    large = {envelope.id for envelope in envelopes if len(envelope.content) > _most(envelope)}
    remaining = sum(len(envelope.content) for envelope in envelopes if envelope.id not in large)
    for envelope in sorted(envelopes, key=lambda envelope: -len(envelope.content)):
        if remaining <= TOGETHER or len(envelope.content) <= 2 * SHOWN_END:
            break
        if envelope.id not in large:
            large.add(envelope.id)
            remaining -= len(envelope.content)
    return frozenset(large)


def file_of(name: str) -> str:
    """Return a file name for this id: safe characters only, and unique."""
    reduced = _UNSAFE.sub("", name)[:100]
    if reduced == name and name:
        return f"{reduced}.txt"
    # The removed characters may be the difference to another name.
    return f"{reduced}-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}.txt"


def _most(envelope: Envelope) -> int:
    return PASTE if envelope.type in ("prompt", "scheduled") else MESSAGE
