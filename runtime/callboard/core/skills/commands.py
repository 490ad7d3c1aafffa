"""Commands in a skill's text, whose output stands in their place: where they are, and which exit counts. Pure.

`` !`git diff` `` at the beginning of a line or behind a blank, and fences that open with ```` ```! ````. All are found
in the text as its author wrote it, with its arguments in place: what one of them prints is never looked at again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST = 120.0
"""Seconds that one command may take (Claude Code's own limit)."""
SEARCHES = frozenset(
    {"grep", "egrep", "fgrep", "zgrep", "rg", "ag", "ack", "diff", "cmp", "comm", "test", "[", "find", "pgrep", "which"}
)
"""Programs that say by exit code 1 that nothing was found, or that two things differ."""
_GIT_SEARCHES = frozenset({"grep", "diff"})
_SEPARATORS = frozenset({"|", "||", "&&", ";", "&", "|&"})
_COMMAND = re.compile(
    r"^(?P<indent>[ \t]*)```!\s*?\n(?P<block>.*?)\n?^[ \t]*```[ \t]*$|(?:(?<=\s)|^)!`(?P<line>[^`\n]+)`",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class InText:
    """One command, and where it stands in its text."""

    command: str
    start: int
    end: int


def commands_in(text: str) -> tuple[InText, ...]:
    """The commands of a text, in order; an empty one is none."""
    found = (InText((one["line"] or one["block"] or "").strip(), *one.span()) for one in _COMMAND.finditer(text))
    return tuple(one for one in found if one.command)


def with_outputs(text: str, commands: Sequence[InText], outputs: Sequence[str]) -> str:
    """The text with each command's output in its place."""
    parts, at = list[str](), 0
    for one, output in zip(commands, outputs, strict=True):
        parts += [text[at : one.start], output.rstrip("\n")]
        at = one.end
    return "".join([*parts, text[at:]])


def exit_counts(command: str, code: int | None) -> bool:
    """Whether this end of the command is a failure."""
    if code == 0:
        return False
    return code != 1 or not _searches(command)


def _searches(command: str) -> bool:
    """The last program of the line looks for something, or compares."""
    try:
        lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        return False
    start = max((place for place, word in enumerate(words) if word in _SEPARATORS), default=-1) + 1
    last = [word for word in words[start:] if "=" not in word or word.startswith("-")]
    if not last:
        return False
    program = last[0].rsplit("/", 1)[-1]
    if program == "git":
        return bool(_GIT_SEARCHES & set(last[1:3]))
    return program in SEARCHES
