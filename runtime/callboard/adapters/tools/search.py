"""Search tools: `glob` finds files by name, `grep` lines by pattern, and `list_folder` lists one folder as it is.

`glob` and `grep` list the newest files first, without files that git ignores. Both use only the files found beneath the
agent's folder. Neither blocks the runtime or runs forever: a walk checks whether its caller still waits, and a pattern
runs in a separate process that is ended after its timeout.

Patterns are matched by ripgrep if it is available, else by Callboard's own search, which uses Python's syntax. ripgrep
has no look-around and no backreferences; a pattern that it refuses is matched by Callboard's own search. Both report
only the positions of matches.

Results are shown as pages of lines, with context lines around a match. The lines are read in a worker thread after the
search, from a descriptor that cannot lead outside of the searched folder, so that a link that is put there meanwhile
shows nothing. Binary files are left out.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import anyio
import anyio.to_thread
from pydantic import Field

from callboard.adapters.processes.programs import ProgramResult, clean_environment, find_program, run_program
from callboard.adapters.system import release
from callboard.adapters.system.regular_files import open_beneath
from callboard.adapters.system.scratch import scratch_folder
from callboard.adapters.tools.base import ToolInput, TypedTool, failed_outcome
from callboard.adapters.tools.roots import RootCache, ToolPath, open_file, refusing_os_errors
from callboard.adapters.tools.walking import MOST_FILES, FolderWalk, FoundFile, WalkCancelled
from callboard.core.path_globs import matcher
from callboard.core.permissions.rule_match import is_left_out, readable_rules, rules_on_reading
from callboard.core.permissions.values import Rule
from callboard.ports.tool import CallContext, Folders, Tool, ToolOutcome
from callboard.types.errors import ToolRefused
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

SECONDS = 30.0
LINES = 250
_HEAD = "Lines of the answer at most; 0 for as many as fit into 50,000 characters."

T = TypeVar("T")


class GlobInput(ToolInput):
    """Input of `glob`."""

    pattern: str = Field(min_length=1, description="A glob for paths from `path` on: src/**/*.py, *.{md,txt}.")
    path: str = Field(".", description="The folder to look in; your own by default.")
    head_limit: int = Field(LINES, ge=0, description=_HEAD)


class GrepInput(ToolInput):
    """Input of `grep`."""

    pattern: str = Field(min_length=1, description="A regular expression, matched line by line; (?i) ignores case.")
    path: str = Field(".", description="The folder or file to search; your folder by default.")
    glob: str = Field("", description="Only files that fit this glob: *.py (at any depth), src/**/*.ts.")
    output_mode: Literal["content", "files_with_matches", "count"] = Field(
        "content", description="The matching lines, only the files' names, or how many lines match in each."
    )
    context: int = Field(0, ge=0, le=50, description="Lines to show before and after each matching line.")
    head_limit: int = Field(LINES, ge=0, description=_HEAD)


class ListFolderInput(ToolInput):
    """Input of `list_folder`."""

    path: str = Field(".", description="The folder; your own by default.")
    ignore: list[str] = Field([], description="Globs of names to leave out: *.pyc, node_modules.")


class ListFolder(TypedTool[ListFolderInput]):
    """Tool that lists one folder."""

    def __init__(self, root_cache: RootCache | None = None) -> None:
        self._root_cache = root_cache or RootCache()
        super().__init__(
            "list_folder",
            "List what is in one folder: its folders (with a slash), then its files with their sizes, also hidden "
            "ones and those that git ignores.",
            ListFolderInput,
            effect="read",
            concurrency="keyed",
        )

    def key(self, tool_input: Json, folders: Folders) -> str:
        return self._root_cache.key({"path": ".", **tool_input}, folders)

    async def act(self, arguments: ListFolderInput, context: CallContext) -> ToolOutcome:
        unlisted = [_matcher(pattern, "ignore") for pattern in arguments.ignore]
        target = self._root_cache.find(arguments.path, context.folders, grants=context.grants)
        rows = await anyio.to_thread.run_sync(_entries, target)
        shown = [row for name, row in rows if not any(fits(name) for fits in unlisted)]
        page = page_of(((row, True) for row in shown), MOST_ENTRIES)
        cut = f"[Only {page.count} of {len(shown)} entries are shown. Leave some out with ignore, or use glob.]"
        lines = [*page.lines, *([cut] if page.count < len(shown) else [])]
        return ToolOutcome("\n".join(lines) or "There is nothing to list.", data={"entries": len(shown)})


MOST_ENTRIES = 1_000
"""Most entries of a folder that are shown."""


def _entries(target: ToolPath) -> list[tuple[str, str]]:
    """Return the name of each entry of a folder and its line, folders first. Raises `ToolRefused`."""
    prefix = "" if target.relative == "." else f"{target.relative}/"
    rows: list[tuple[bool, str, str]] = []
    with open_file(target) as descriptor, refusing_os_errors(target), os.scandir(descriptor) as entries:
        for entry in entries:
            if prefix + entry.name in target.closed:
                continue
            name = os.fsencode(entry.name).decode(errors="replace")
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder or entry.is_symlink():
                row = f"{name}/" if is_folder else f"{name} (link)"
            else:
                row = f"{name} ({entry.stat(follow_symlinks=False).st_size} bytes)"
            rows.append((not is_folder, name, row))
    return [(name, row) for _, name, row in sorted(rows)]


class Glob(TypedTool[GlobInput]):
    """Tool that finds files by name."""

    def __init__(self, root_cache: RootCache | None = None) -> None:
        self._root_cache = root_cache or RootCache()
        super().__init__(
            "glob",
            "Find files by a glob pattern, newest first. `*` stays within a name, `**` goes through folders; hidden "
            "files are found, what git ignores is not.",
            GlobInput,
            effect="read",
            concurrency="shared",
        )

    async def act(self, arguments: GlobInput, context: CallContext) -> ToolOutcome:
        fits = _matcher(arguments.pattern, "pattern")
        target = self._root_cache.find(arguments.path, context.folders, grants=context.grants)
        with anyio.move_on_after(SECONDS):
            files, cut = await _in_thread(lambda stop: _walk(target, fits, stop))
            paths = [file.path for file in files]
            page = page_of(((_display_path(path, target, context), True) for path in paths), arguments.head_limit)
            text = page.text(len(paths), "files") or "No files fit."
            return ToolOutcome(text + _cut(cut), data={"files": len(paths), "shown": page.count})
        return _out_of_time("glob")


class Grep(TypedTool[GrepInput]):
    """Tool that finds lines by a regular expression."""

    def __init__(self, searcher: Searcher, root_cache: RootCache | None = None, unread: Sequence[Rule] = ()) -> None:
        self._searcher = searcher
        self._root_cache = root_cache or RootCache()
        self._unread = unread
        super().__init__(
            "grep",
            "Search the content of files with a regular expression, newest files first. Hidden files are searched; "
            "what git ignores, binary files and files of secrets are not. Lines come as path:number:text.",
            GrepInput,
            effect="read",
            concurrency="shared",
        )

    async def act(self, arguments: GrepInput, context: CallContext) -> ToolOutcome:
        glob = arguments.glob or "**"
        fits = _matcher(glob if "/" in glob else f"**/{glob}", "glob")
        target = self._root_cache.find(arguments.path, context.folders, grants=context.grants)
        with anyio.move_on_after(SECONDS):
            candidates, cut = await _in_thread(lambda stop: _walk(target, fits, stop))
            files = [file.path for file in candidates if not file.link]
            paths = await _in_thread(lambda stop: self._readable(files, target, context))
            hits = await self._find(arguments, target, paths)
            matched = [path for path in paths if path in hits.lines]
            text, data = await _in_thread(
                lambda stop: _render(arguments, target, context, matches=(matched, hits), stop=stop)
            )
            note = "\n[There were too many matches; the search was stopped.]" if hits.cut else ""
            return ToolOutcome(text + note + _cut(cut) + _left_out(len(files) - len(paths)), data=data)
        return _out_of_time("grep")

    def _readable(self, files: Sequence[str], target: ToolPath, context: CallContext) -> list[str]:
        """Return the files that may be searched.

        A search of many files shows none that, named alone, would be denied or need a question.
        """
        unread = [*self._unread, *rules_on_reading(readable_rules(context.spec.rules.deny), ())]
        requested = target.text
        root = os.path.realpath(context.folders.root)
        home = str(Path.home())
        return [
            path for path in files if not is_left_out(f"{target.base}/{path}", requested, unread, root=root, home=home)
        ]

    async def _find(self, arguments: GrepInput, target: ToolPath, paths: Sequence[str]) -> SearchHits:
        try:
            first = arguments.output_mode == "files_with_matches"
            return await self._searcher.find(target.base, paths, arguments.pattern, first=first)
        except BadPattern as error:
            raise ToolRefused(f"pattern is not a regular expression: {error}") from error


def search_tools(
    workspace: Path,
    environment: Mapping[str, str],
    unread: Sequence[Rule] = (),
    root_cache: RootCache | None = None,
) -> tuple[Tool, ...]:
    """Return the tools of this module, with ripgrep if it is found outside the workspace.

    `unread`: the rules that deny or ask about reading files. `root_cache`: shared with the tools that read and change
    files.
    """
    root_cache = root_cache or RootCache()
    searcher = Searcher(environment, find_rg(workspace, environment))
    return (Glob(root_cache), Grep(searcher, root_cache, unread), ListFolder(root_cache))


async def _in_thread(work: Callable[[threading.Event], T]) -> T:
    """Run the work in a worker thread. Its event is set when no caller waits for it; the work then stops soon."""
    stop = threading.Event()
    try:
        return await anyio.to_thread.run_sync(work, stop, abandon_on_cancel=True)
    finally:
        stop.set()


def _walk(target: ToolPath, fits: Callable[[str], bool], stop: threading.Event) -> tuple[list[FoundFile], bool]:
    """Return the matching files beneath the target, and True if there were too many.

    If the target is a file, return the target itself.
    """
    try:
        status = os.lstat(target.path)
        if stat.S_ISREG(status.st_mode):
            return [FoundFile(target.relative, status.st_mtime_ns)], False
        walk = FolderWalk(target.open_base, stop, target.closed)
        files = walk.files("" if target.relative == "." else target.relative)
        return [file for file in files if fits(_from(target, file.path))], walk.cut
    except OSError as error:
        raise ToolRefused(f"{target.label}: {error.strerror}") from error


def _render(
    arguments: GrepInput,
    target: ToolPath,
    context: CallContext,
    *,
    matches: tuple[Sequence[str], SearchHits],
    stop: threading.Event,
) -> tuple[str, Json]:
    """Return the answer of grep, and its numbers."""
    paths, hits = matches
    folder = target.open_base()
    try:
        pages = Pages(folder, lambda path: _display_path(path, target, context), stop)
        texts = pages.texts(paths)
        lines = sum(len(hits.lines[path]) for path in texts)
        if arguments.output_mode == "content":
            text = page_of(pages.rows(hits.lines, texts, arguments.context), arguments.head_limit).text(lines, "lines")
        else:
            text = _names(arguments, texts, hits, pages).text(len(texts), "files")
        return text or "No matches.", {"files": len(texts), "lines": lines}
    finally:
        os.close(folder)


def _names(arguments: GrepInput, texts: Sequence[str], hits: SearchHits, pages: Pages) -> ResultPage:
    count = arguments.output_mode == "count"
    rows = (pages.name(path) + (f":{len(hits.lines[path])}" if count else "") for path in texts)
    return page_of(((row, True) for row in rows), arguments.head_limit)


def _matcher(pattern: str, field: str) -> Callable[[str], bool]:
    try:
        return matcher(pattern)
    except ValueError as error:
        raise ToolRefused(f"{field} {pattern[:100]!r} is not a glob: {error}") from error


def _from(target: ToolPath, path: str) -> str:
    """Return the path relative to the requested folder."""
    return path if target.relative == "." else path[len(target.relative) + 1 :]


def _display_path(path: str, target: ToolPath, context: CallContext) -> str:
    """Return the path as the agent names it: relative to its folder, absolute outside."""
    inside = target.base == Path(os.path.realpath(context.folders.root))
    named = path if inside else f"{target.base}/{path}"
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
    return failed_outcome(
        f"{name} was stopped after {SECONDS:g} s. Narrow it by path or glob, or use a simpler pattern."
    )


LINES_OF_A_FILE = 10_000
_BATCH = 200_000
"""Most bytes of file names for one call of ripgrep. The kernel's limit for all arguments is far higher."""
_CHILD = str(Path(__file__).with_name("search_child.py"))
_RG = ("--no-config", "--no-heading", "--with-filename", "--line-number", "--null", "--color=never", "--no-messages")
_RG_TEXT = ("--text", "--crlf", "--encoding=none", "--no-ignore", "--hidden", "--max-columns=1", "--threads=2")
_HIT = late_pattern(rb"([^\0]+)\0(\d+):?[^\n]*\n")


class BadPattern(ValueError):
    """The pattern is not a valid regular expression. The text gives the reason."""


@dataclass(frozen=True, slots=True)
class SearchHits:
    """Line numbers by path, unordered. `cut`: the search was ended because there were too many."""

    lines: Mapping[str, Sequence[int]]
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Searcher:
    """Search of files beneath a root. `rg`: the absolute path of ripgrep; None for Callboard's own search."""

    environment: Mapping[str, str]
    rg: str | None = None

    async def find(self, root: Path, paths: Sequence[str], pattern: str, *, first: bool = False) -> SearchHits:
        """Return the matching lines of these files (relative to the root), at most 10,000 of each.

        `first`: only one of each. Cancelling ends the search. Raises `BadPattern`, and `ToolRefused` if Callboard's own
        search fails.
        """
        if not paths:
            return SearchHits({})
        if "\0" in pattern or len(pattern) > 10_000:
            raise BadPattern("it is too long, or holds characters that no text has")
        if self.rg is not None:
            hits = await self._rg(self.rg, root, paths, pattern=pattern, first=first)
            if hits is not None:
                return hits
        return await self._own(root, paths, pattern, first)

    async def lines(self, text: str, pattern: str) -> Sequence[int]:
        """Return the numbers of the matching lines of a text, from 1. Raises `BadPattern`."""
        with scratch_folder() as folder:
            await anyio.to_thread.run_sync(_write, folder / "text", text)
            hits = await self.find(folder, ["text"], pattern)
        return hits.lines.get("text", ())

    async def _rg(self, rg: str, root: Path, paths: Sequence[str], *, pattern: str, first: bool) -> SearchHits | None:
        """Return ripgrep's hits; None if ripgrep does not accept the pattern."""
        lines: dict[str, Sequence[int]] = {}
        most = 1 if first else LINES_OF_A_FILE
        for batch in _batches(root, paths):
            argv = [rg, *_RG, *_RG_TEXT, f"--max-count={most}", "-e", pattern, "--", *batch]
            ran = await run_program(argv, clean_environment(self.environment), timeout=60)
            if ran.code not in (0, 1, None) and not ran.out:
                return None
            lines |= _read_hits(ran, f"{root}/")
            if ran.code is None:
                return SearchHits(lines, cut=True)
        return SearchHits(lines)

    async def _own(self, root: Path, paths: Sequence[str], pattern: str, first: bool) -> SearchHits:
        argv = [
            *release.child_python(),
            "-Wignore",
            _CHILD,
            str(root),
            pattern,
            str(LINES_OF_A_FILE),
            "1" if first else "0",
        ]
        names = b"".join(os.fsencode(path) + b"\0" for path in paths)
        ran = await run_program(argv, clean_environment(self.environment), stdin=names, timeout=60)
        if ran.code == 2:
            raise BadPattern(ran.err.decode(errors="replace").strip())
        if ran.code not in (0, None):  # otherwise a failed search would look like one without matches
            *_, reason = ["no reason given", *ran.err.decode(errors="replace").splitlines()]
            raise ToolRefused(f"the search ended with code {ran.code}: {reason}")
        return SearchHits(_read_hits(ran, ""), cut=ran.code is None)


def _write(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "replace"))


def find_rg(workspace: Path, environment: Mapping[str, str]) -> str | None:
    """Return the path of ripgrep outside the workspace."""
    return find_program("rg", workspace, environment.get("PATH"))


def _batches(root: Path, paths: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for path in paths:
        batch.append(f"{root}/{path}")
        size += len(path) + len(str(root)) + 2
        if size > _BATCH:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def _read_hits(ran: ProgramResult, prefix: str) -> dict[str, Sequence[int]]:
    lines: dict[str, list[int]] = {}
    for name, number in _HIT.findall(ran.out):
        lines.setdefault(os.fsdecode(name).removeprefix(prefix), []).append(int(number))
    return {path: numbers[:LINES_OF_A_FILE] for path, numbers in lines.items()}


SHOWN = 50_000
LINE = 500
"""Most characters of an answer, and of a line."""
_PIECE = 1 << 20

Row = tuple[str, bool]
"""Line of an answer, and True if it counts as a result: context lines and separators do not."""


@dataclass(frozen=True, slots=True)
class ResultPage:
    """The shown part of an answer. `count`: the number of its lines that count."""

    lines: Sequence[str]
    count: int

    def text(self, total: int, unit: str) -> str:
        """Return the page, with a mark if it is incomplete."""
        text = "\n".join(self.lines)
        if self.count >= total:
            return text
        return f"{text}\n[Output cut: {self.count} of {total} {unit}. Narrow it by path or glob, or set head_limit.]"


def page_of(rows: Iterable[Row], limit: int) -> ResultPage:
    """Return as many rows as fit. `limit` 0: only the number of characters is limited."""
    lines: list[str] = []
    size = count = 0
    for line, counts in rows:
        size += len(line) + 1
        if size > SHOWN or (limit and len(lines) >= limit):
            break
        lines.append(line)
        count += counts
    return ResultPage(lines, count)


@dataclass(frozen=True, slots=True)
class Pages:
    """Files beneath a folder whose lines are to be shown."""

    folder: int
    """Descriptor of the folder."""
    name: Callable[[str], str]
    """Function that returns the agent's name for a path."""
    stop: threading.Event

    def texts(self, paths: Iterable[str]) -> list[str]:
        """Return the paths of readable text files."""
        return [path for path in paths if self._is_text(path)]

    def rows(self, lines: Mapping[str, Sequence[int]], paths: Iterable[str], context: int) -> Iterator[Row]:
        """Yield the lines of each file with the lines around them.

        Raises `WalkCancelled` when no caller waits for them.
        """
        begun = False
        for path in paths:
            last = 0
            for number, text, hit in self._with_context(path, lines[path], context):
                if context and begun and number != last + 1:
                    yield "--", False
                begun = True
                last = number
                mark = ":" if hit else "-"
                yield f"{self.name(path)}{mark}{number}{mark}{text}", hit

    def _with_context(self, path: str, numbers: Sequence[int], context: int) -> Iterator[tuple[int, str, bool]]:
        hits = set(numbers)
        last = max(hits) + context
        near = {hit + step for hit in hits for step in range(-context, context + 1)}
        descriptor = self._open(path)
        if descriptor is None:
            return
        with open(descriptor, "rb") as file:  # noqa: PTH123 - it opens a descriptor, not a path
            number = 1
            begins = True
            while number <= last and (piece := file.readline(_PIECE)):
                if begins and number in near:
                    yield number, _line(piece), number in hits
                begins = piece.endswith(b"\n")
                number += begins

    def _open(self, path: str) -> int | None:
        if self.stop.is_set():
            raise WalkCancelled
        try:
            return open_beneath(self.folder, path, os.O_RDONLY)
        except OSError:
            return None  # the file is gone, or is now a link that leads outside

    def _is_text(self, path: str) -> bool:
        descriptor = self._open(path)
        if descriptor is None:
            return False
        try:
            return b"\0" not in os.pread(descriptor, 8_192, 0)
        finally:
            os.close(descriptor)


def _line(piece: bytes) -> str:
    text = piece.decode(errors="replace").rstrip("\r\n").replace("\0", "\N{REPLACEMENT CHARACTER}")
    return text if len(text) <= LINE else f"{text[:LINE]} [line cut: {LINE} of {len(text)} characters]"
