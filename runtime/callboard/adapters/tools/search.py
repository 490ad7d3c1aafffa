"""The search tools: `glob` finds files by name, `grep` lines by pattern. Newest files first, what git ignores left out.

Both work on what the walk found beneath the agent's folder, and show nothing else. Neither blocks the runtime or runs
for ever: a walk looks up whether it is still wanted, a pattern runs in a process that is ended when its time is over.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import anyio
import anyio.to_thread
from pydantic import Field

from callboard.adapters.searching import BadPattern, Hits, Searcher, find_rg
from callboard.adapters.tools.base import GivenTool, failed
from callboard.adapters.tools.found import Page, Pages, page_of
from callboard.adapters.tools.globs import matcher
from callboard.adapters.tools.places import Grounds, Spot
from callboard.adapters.tools.store_tool import Input
from callboard.adapters.tools.walking import MOST_FILES, FoundFile, Walk
from callboard.core.permission.unread import is_left_out, readable_rules, rules_on_reading
from callboard.core.permission.values import Rule
from callboard.ports.tool import Tool, ToolContext, ToolOutcome
from callboard.words.errors import ToolRefused
from callboard.words.values import Json

SECONDS = 30.0
LINES = 250
_HEAD = "Lines of the answer at most; 0 for as many as fit into 50,000 characters."

T = TypeVar("T")


class GlobWanted(Input):
    pattern: str = Field(min_length=1, description="A glob for paths from `path` on: src/**/*.py, *.{md,txt}.")
    path: str = Field(".", description="The folder to look in; your own by default.")
    head_limit: int = Field(LINES, ge=0, description=_HEAD)


class GrepWanted(Input):
    pattern: str = Field(min_length=1, description="A regular expression, matched line by line; (?i) ignores case.")
    path: str = Field(".", description="The folder or file to search; your folder by default.")
    glob: str = Field("", description="Only files that fit this glob: *.py (at any depth), src/**/*.ts.")
    output_mode: Literal["content", "files_with_matches", "count"] = Field(
        "content", description="The matching lines, only the files' names, or how many lines match in each."
    )
    context: int = Field(0, ge=0, le=50, description="Lines to show before and after each matching line.")
    head_limit: int = Field(LINES, ge=0, description=_HEAD)


class Glob(GivenTool[GlobWanted]):
    """Finds files by name."""

    def __init__(self, grounds: Grounds | None = None) -> None:
        self._grounds = grounds or Grounds()
        super().__init__(
            "glob",
            "Find files by a glob pattern, newest first. `*` stays within a name, `**` goes through folders; hidden "
            "files are found, what git ignores is not.",
            GlobWanted,
            "read",
            "shared",
        )

    async def act(self, given: GlobWanted, context: ToolContext) -> ToolOutcome:
        fits = _matcher(given.pattern, "pattern")
        spot = self._grounds.find(given.path, context.folders)
        with anyio.move_on_after(SECONDS):
            found, cut = await _in_thread(lambda stop: _walk(spot, fits, stop))
            paths = [file.path for file in found]
            page = page_of(((_named(path, spot, context), True) for path in paths), given.head_limit)
            text = page.text(len(paths), "files") or "No files fit."
            return ToolOutcome(text + _cut(cut), data={"files": len(paths), "shown": page.count})
        return _out_of_time("glob")


class Grep(GivenTool[GrepWanted]):
    """Finds lines by a regular expression."""

    def __init__(self, searcher: Searcher, grounds: Grounds | None = None, unread: Sequence[Rule] = ()) -> None:
        self._searcher, self._grounds, self._unread = searcher, grounds or Grounds(), unread
        super().__init__(
            "grep",
            "Search the content of files with a regular expression, newest files first. Hidden files are searched; "
            "what git ignores, binary files and files of secrets are not. Lines come as path:number:text.",
            GrepWanted,
            "read",
            "shared",
        )

    async def act(self, given: GrepWanted, context: ToolContext) -> ToolOutcome:
        glob = given.glob or "**"
        fits = _matcher(glob if "/" in glob else f"**/{glob}", "glob")
        spot = self._grounds.find(given.path, context.folders)
        with anyio.move_on_after(SECONDS):
            found, cut = await _in_thread(lambda stop: _walk(spot, fits, stop))
            files = [file.path for file in found if not file.link]
            paths = await _in_thread(lambda stop: self._shown(files, spot, context))
            hits = await self._find(given, spot, paths)
            matched = [path for path in paths if path in hits.lines]
            text, data = await _in_thread(lambda stop: _tell(given, spot, context, (matched, hits), stop))
            more = "\n[There were too many matches; the search was stopped.]" if hits.cut else ""
            return ToolOutcome(text + more + _cut(cut) + _left_out(len(files) - len(paths)), data=data)
        return _out_of_time("grep")

    def _shown(self, files: Sequence[str], spot: Spot, context: ToolContext) -> list[str]:
        """A search through many files shows none that would be asked for or denied by itself."""
        unread = [*self._unread, *rules_on_reading(readable_rules(context.spec.rules.deny), ())]
        asked, root, home = str(spot.path), os.path.realpath(context.folders.root), str(Path.home())
        return [path for path in files if not is_left_out(f"{spot.base}/{path}", asked, unread, root, home)]

    async def _find(self, given: GrepWanted, spot: Spot, paths: Sequence[str]) -> Hits:
        try:
            first = given.output_mode == "files_with_matches"
            return await self._searcher.find(spot.base, paths, given.pattern, first=first)
        except BadPattern as error:
            raise ToolRefused(f"pattern is not a regular expression: {error}") from error


def search_tools(
    workspace: Path,
    environment: Mapping[str, str],
    unread: Sequence[Rule] = (),
    grounds: Grounds | None = None,
) -> tuple[Tool, ...]:
    """The tools of this file, with ripgrep if it is found outside the workspace. `unread`: the rules that deny reading
    files or ask for it. `grounds`: shared with the tools that read and change files."""
    grounds = grounds or Grounds()
    return (Glob(grounds), Grep(Searcher(environment, find_rg(workspace, environment)), grounds, unread))


async def _in_thread(work: Callable[[threading.Event], T]) -> T:
    """Run it in a worker thread. Its event is set when nobody waits for it any more, and it then stops soon."""
    stop = threading.Event()
    try:
        return await anyio.to_thread.run_sync(work, stop, abandon_on_cancel=True)
    finally:
        stop.set()


def _walk(spot: Spot, fits: Callable[[str], bool], stop: threading.Event) -> tuple[list[FoundFile], bool]:
    """The files beneath the spot that fit, or the one that it is; and whether there were too many."""
    try:
        told = os.lstat(spot.path)
        if stat.S_ISREG(told.st_mode):
            return [FoundFile(spot.relative, told.st_mtime_ns)], False
        walk = Walk(spot.open_base, stop)
        found = walk.files("" if spot.relative == "." else spot.relative)
        return [file for file in found if fits(_from(spot, file.path))], walk.cut
    except OSError as error:
        raise ToolRefused(f"{spot.shown}: {error.strerror}") from error


def _tell(
    given: GrepWanted, spot: Spot, context: ToolContext, found: tuple[Sequence[str], Hits], stop: threading.Event
) -> tuple[str, Json]:
    """The answer of grep, and its numbers."""
    paths, hits = found
    folder = spot.open_base()
    try:
        pages = Pages(folder, lambda path: _named(path, spot, context), stop)
        texts = pages.texts(paths)
        lines = sum(len(hits.lines[path]) for path in texts)
        if given.output_mode == "content":
            text = page_of(pages.rows(hits.lines, texts, given.context), given.head_limit).text(lines, "lines")
        else:
            text = _names(given, texts, hits, pages).text(len(texts), "files")
        return text or "No matches.", {"files": len(texts), "lines": lines}
    finally:
        os.close(folder)


def _names(given: GrepWanted, texts: Sequence[str], hits: Hits, pages: Pages) -> Page:
    count = given.output_mode == "count"
    rows = (pages.name(path) + (f":{len(hits.lines[path])}" if count else "") for path in texts)
    return page_of(((row, True) for row in rows), given.head_limit)


def _matcher(pattern: str, field: str) -> Callable[[str], bool]:
    try:
        return matcher(pattern)
    except ValueError as error:
        raise ToolRefused(f"{field} {pattern[:100]!r} is not a glob: {error}") from error


def _from(spot: Spot, path: str) -> str:
    """The path from the folder that was asked for."""
    return path if spot.relative == "." else path[len(spot.relative) + 1 :]


def _named(path: str, spot: Spot, context: ToolContext) -> str:
    """As the agent names it: from its folder on, absolute elsewhere."""
    inside = spot.base == Path(os.path.realpath(context.folders.root))
    named = path if inside else f"{spot.base}/{path}"
    return os.fsencode(named).decode(errors="replace")


def _cut(cut: bool) -> str:
    return f"\n[Only the first {MOST_FILES} files were looked at. Narrow it by path.]" if cut else ""


def _left_out(number: int) -> str:
    if not number:
        return ""
    files = (
        "1 file that may hold secrets or is not read unasked was"
        if number == 1
        else (f"{number} files that may hold secrets or are not read unasked were")
    )
    return f"\n[{files} left out. Name one as the path to have it searched.]"


def _out_of_time(name: str) -> ToolOutcome:
    return failed(f"{name} was stopped after {SECONDS:g} s. Narrow it by path or glob, or use a simpler pattern.")
