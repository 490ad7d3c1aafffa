"""What a change of a note looks like to a person: line by line. Pure."""

from __future__ import annotations

import difflib


def diff_of(before: str, after: str, name: str) -> str:
    """All lines, those that go with `-` and those that come with `+`, under the note's name; empty for no change."""
    old, new = before.splitlines(), after.splitlines()
    if old == new:
        return ""
    changed = list(difflib.unified_diff(old, new, "", "", lineterm="", n=max(len(old), len(new))))[3:]
    head = "new note" if not before else "the note goes" if not after else "changed note"
    return "\n".join([f"{head}: {name}", *changed])
