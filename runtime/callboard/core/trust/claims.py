"""What a workspace brings that would run something or widen rights, and the digest by which a person trusts it.

Trust is for a pair: the real path of a workspace, and the digest of its content. The digest covers every file that is
read as configuration, byte for byte, every script that a command in them names, and the git settings that are not known
to be harmless. Whatever changes one of them changes the digest, and is asked for again (docs/trust.md).

Refused: to show a text as it is. `shown` spells out whatever would not be seen, or would be seen as something else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

ClaimKind = Literal[
    "hook",
    "command",
    "server",
    "url",
    "variable",
    "rule",
    "mode",
    "folder",
    "agent",
    "skill",
    "schedule",
    "setting",
    "git",
    "script",
    "unread",
]
"""What a claim is about. `script`: a file that would be run; `unread`: a file that is not used, and why."""

_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Characters that count as printable and show nothing."""


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """One thing that a workspace would have once it is trusted."""

    path: str
    """Of its file, relative to the workspace; absolute for a file outside of it."""
    kind: ClaimKind
    text: str
    """The command, variable, URL, rule or setting in full, as it stands in the file."""
    line: int = field(default=0, compare=False)
    """From 1; 0: the file as a whole. Two claims that stand on other lines are the same."""

    @property
    def where(self) -> str:
        """`file:line`, or the file."""
        return f"{self.path}:{self.line}" if self.line else self.path


@dataclass(frozen=True, slots=True)
class Brought:
    """All that a workspace brings, read once: what is asked for, trusted and used is this, not the files later."""

    workspace: str
    """Its real path."""
    claims: tuple[Claim, ...] = ()
    hashes: Mapping[str, str] = field(default_factory=dict[str, str])
    """File (relative to the workspace) -> SHA-256 of its bytes, of configuration and of scripts."""
    content: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """The same files' bytes, of configuration only."""
    scripts: frozenset[str] = frozenset()
    """Those of `hashes` that are run, not read: they are looked at again before a hook runs them."""

    @property
    def digest(self) -> str:
        """64 hexadecimal digits."""
        return digest_of(self.claims, self.hashes)

    @property
    def nothing(self) -> bool:
        """There is nothing to be trusted."""
        return not self.claims and not self.hashes

    def text(self, path: str) -> str | None:
        """The text of a file of configuration; None when there is none or it is no UTF-8."""
        raw = self.content.get(path)
        try:
            return None if raw is None else raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            return None

    def below(self, folder: str) -> tuple[str, ...]:
        """The files of configuration beneath a folder (`.callboard/agents`), sorted."""
        return tuple(sorted(path for path in self.content if path.startswith(folder + "/")))


@dataclass(frozen=True, slots=True)
class Decision:
    """A person's yes to one content of one workspace."""

    workspace: str
    digest: str
    at: float
    """Seconds since 1970."""
    claims: tuple[Claim, ...] = ()
    hashes: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Changes:
    """What is different from what was trusted last."""

    added: tuple[Claim, ...] = ()
    removed: tuple[Claim, ...] = ()
    rewritten: tuple[str, ...] = ()
    """Files that hold other bytes, though none of their claims changed."""


def digest_of(claims: Iterable[Claim], hashes: Mapping[str, str]) -> str:
    """The digest of a content, the same whatever the order it was read in. Lines do not count."""
    told = sorted([claim.path, claim.kind, claim.text] for claim in claims)
    words = json.dumps([told, sorted(hashes.items())], separators=(",", ":"))
    return hashlib.sha256(words.encode()).hexdigest()


def hash_of(raw: bytes) -> str:
    """The digest of one file."""
    return hashlib.sha256(raw).hexdigest()


def changes_since(before: Decision, now: Brought) -> Changes:
    """What a person who trusted `before` has not seen yet."""
    old, new = set(before.claims), set(now.claims)
    touched = {claim.path for claim in old ^ new}
    others = {path for path, _ in set(before.hashes.items()) ^ set(now.hashes.items())}
    return Changes(
        added=tuple(claim for claim in now.claims if claim not in old),
        removed=tuple(claim for claim in before.claims if claim not in new),
        rewritten=tuple(sorted(others - touched)),
    )


def shown(text: str) -> str:
    """The text with all that is invisible or steers a screen spelled out: controls, bidirectional marks, odd blanks."""
    if text.isprintable() and not _BLANK & set(text):
        return text
    return "".join(one if one.isprintable() and one not in _BLANK else _spelled(one) for one in text)


def _spelled(character: str) -> str:
    return "\\n" if character == "\n" else character.encode("unicode_escape").decode()
