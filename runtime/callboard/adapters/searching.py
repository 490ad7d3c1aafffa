"""Which lines of which files match a pattern: ripgrep where there is one, our own search where not.

Both run in a process of their own that can be ended, and say only where something matches: what is shown is read
afterwards beneath the held folder, so that a link swapped in meanwhile shows nothing. ripgrep cannot look around or
back; a pattern that it refuses goes to our own search, which takes Python's.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from callboard.adapters.programs import Ran, clean_environment, find_program, run_program

LINES_OF_A_FILE = 10_000
_BATCH = 200_000
"""Bytes of file names that one rg gets: the kernel's limit for all arguments is far above."""
_CHILD = str(Path(__file__).with_name("search_child.py"))
_RG = ("--no-config", "--no-heading", "--with-filename", "--line-number", "--null", "--color=never", "--no-messages")
_RG_TEXT = ("--text", "--crlf", "--encoding=none", "--no-ignore", "--hidden", "--max-columns=1", "--threads=2")
_HIT = re.compile(rb"([^\0]+)\0(\d+):?[^\n]*\n")


class BadPattern(ValueError):
    """It is no regular expression; the text says why."""


@dataclass(frozen=True, slots=True)
class Hits:
    """Line numbers by path, in no order. `cut`: the search was ended because there were too many."""

    lines: Mapping[str, Sequence[int]]
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Searcher:
    """Searches files beneath a root. `rg`: the absolute path of ripgrep, None for our own search."""

    environment: Mapping[str, str]
    rg: str | None = None

    async def find(self, root: Path, paths: Sequence[str], pattern: str, *, first: bool = False) -> Hits:
        """The matching lines of these files (relative to the root), at most 10,000 of each; `first`: one of each.

        Cancelling ends the search. Raises `BadPattern`.
        """
        if not paths:
            return Hits({})
        if "\0" in pattern or len(pattern) > 10_000:
            raise BadPattern("it is too long, or holds characters that no text has")
        if self.rg is not None:
            hits = await self._rg(self.rg, root, paths, pattern, first)
            if hits is not None:
                return hits
        return await self._own(root, paths, pattern, first)

    async def _rg(self, rg: str, root: Path, paths: Sequence[str], pattern: str, first: bool) -> Hits | None:
        """What ripgrep finds; None when it does not take the pattern."""
        lines: dict[str, Sequence[int]] = {}
        most = 1 if first else LINES_OF_A_FILE
        for batch in _batches(root, paths):
            words = [rg, *_RG, *_RG_TEXT, f"--max-count={most}", "-e", pattern, "--", *batch]
            ran = await run_program(words, clean_environment(self.environment), timeout=60)
            if ran.code not in (0, 1, None) and not ran.out:
                return None
            lines |= _read_hits(ran, f"{root}/")
            if ran.code is None:
                return Hits(lines, cut=True)
        return Hits(lines)

    async def _own(self, root: Path, paths: Sequence[str], pattern: str, first: bool) -> Hits:
        words = [
            sys.executable,
            "-I",
            "-S",
            "-Wignore",
            _CHILD,
            str(root),
            pattern,
            str(LINES_OF_A_FILE),
            "1" if first else "0",
        ]
        given = b"".join(os.fsencode(path) + b"\0" for path in paths)
        ran = await run_program(words, clean_environment(self.environment), given=given, timeout=60)
        if ran.code == 2:
            raise BadPattern(ran.err.decode(errors="replace").strip())
        return Hits(_read_hits(ran, ""), cut=ran.code is None)


def find_rg(workspace: Path, environment: Mapping[str, str]) -> str | None:
    """ripgrep, outside the workspace."""
    return find_program("rg", workspace, environment.get("PATH"))


def _batches(root: Path, paths: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for path in paths:
        batch.append(f"{root}/{path}")
        size += len(path) + len(str(root)) + 2
        if size > _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read_hits(ran: Ran, prefix: str) -> dict[str, Sequence[int]]:
    lines: dict[str, list[int]] = {}
    for name, number in _HIT.findall(ran.out):
        lines.setdefault(os.fsdecode(name).removeprefix(prefix), []).append(int(number))
    return {path: numbers[:LINES_OF_A_FILE] for path, numbers in lines.items()}
