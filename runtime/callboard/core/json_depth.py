"""Depth check of user-written JSON before it is parsed, because the code that reads the values is recursive."""

from __future__ import annotations

import re

DEEPEST = 100
"""Maximum levels. User-written files have about ten."""
_MARK = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{\]}]', re.DOTALL)


def refuse_deep_json(text: str) -> None:
    """Raise ValueError for a text whose lists and objects are nested more than `DEEPEST` levels deep."""
    depth = 0
    for match in _MARK.finditer(text):
        mark = match[0]
        if mark in ("[", "{"):
            depth += 1
            if depth > DEEPEST:
                line = text.count("\n", 0, match.start()) + 1
                raise ValueError(f"is nested too deeply: more than {DEEPEST} levels (line {line})")
        elif mark in ("]", "}"):
            depth -= 1
