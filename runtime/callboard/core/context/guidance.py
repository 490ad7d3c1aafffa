"""Instruction files and notes of memory on their way into a conversation: what of them an agent knows already. Pure.

Both come as injections in a tag of their own, as data: they give no permission, and cannot close their tag. The key of
such an injection says what it is about and in which state: `<digest> <path or note>`. An instruction file is told once
and stays, pinned, through every compaction (`view.laws.pins`); a note is told again once it no longer stands there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from callboard.words.context import Edit, Injection

_DIGEST = 12
"""Hex digits of a sha256 that tell two states of one file apart."""


def digest_of(text: str) -> str:
    """What tells this text from another one of the same file."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]


def instructions(path: str, digest: str, text: str, words: str) -> Injection:
    """The text of an instruction file, for the next user message. `words`: why it comes now."""
    return Injection(
        kind="project-instructions", text=f"{words}\n\n{text}", source="instructions", key=f"{digest} {path}"
    )


def note(place: str, name: str, digest: str, text: str) -> Injection:
    """A note of memory, for the next user message."""
    return Injection(kind="memory", text=text, source="memory", key=f"{digest[:_DIGEST]} {place}/{name}")


def about(injection: Injection) -> str:
    """The path or note that such an injection is about."""
    return injection.key.partition(" ")[2]


def is_guidance(injection: Injection) -> bool:
    """One of those here: by itself it asks for no reply."""
    return injection.source in ("instructions", "memory", "skill")


def instructed_with(known: Mapping[str, str] | None, injection: Injection) -> Mapping[str, str] | None:
    """The files that are known once this waits to be said."""
    if injection.source != "instructions":
        return known
    return {**(known or {}), about(injection): injection.key.partition(" ")[0]}


def noted_with(noted: frozenset[str], injection: Injection) -> frozenset[str]:
    """The notes that stand in the conversation once this waits to be said."""
    return noted | {injection.key} if injection.source == "memory" else noted


def noted_after(noted: frozenset[str], edits: Iterable[Edit]) -> frozenset[str]:
    """The notes that still stand behind these edits: none, where messages were taken away."""
    return noted if all(edit.block is not None for edit in edits) else frozenset()
