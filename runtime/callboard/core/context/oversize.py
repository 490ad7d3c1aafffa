"""What is too large to stand in a conversation whole: which words go to a file before they enter it. Pure.

A person's paste and another agent's long message are never cut: the file holds all of it, and the conversation its
path, its beginning and its end. It refuses nothing; the engine writes the files before the delivery is recorded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from callboard.core.bus.mail import SHOWN_END
from callboard.words.values import Envelope

PASTE = 100_000
"""Characters over which the words of a person or a schedule go to a file (the project's page on context)."""
MESSAGE = 30_000
"""Characters over which another agent's message, or a notification, goes to a file: as a large result does."""
TOGETHER = 200_000
"""Characters that the envelopes of one delivery may have together; over it the largest go to files too."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def too_long(envelopes: Sequence[Envelope]) -> frozenset[str]:
    """Ids of the envelopes whose content goes to a file before they are delivered together."""
    kept = {one.id for one in envelopes if len(one.content) > _most(one)}
    left = sum(len(one.content) for one in envelopes if one.id not in kept)
    for one in sorted(envelopes, key=lambda envelope: -len(envelope.content)):
        if left <= TOGETHER or len(one.content) <= 2 * SHOWN_END:
            break
        if one.id not in kept:
            kept.add(one.id)
            left -= len(one.content)
    return frozenset(kept)


def file_of(name: str) -> str:
    """A file name for what has this id: of safe characters, and no two alike."""
    reduced = _UNSAFE.sub("", name)[:100]
    if reduced == name and name:
        return f"{reduced}.txt"
    # What was taken out may have told it from another.
    return f"{reduced}-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}.txt"


def _most(envelope: Envelope) -> int:
    return PASTE if envelope.type in ("prompt", "scheduled") else MESSAGE
