"""The file tools: `read_file`, `write_file` and `edit_file`.

A change is whole or not at all, durable, and only made to content that the agent knows: what changed since it was read
is refused. Digests before and after stand in `ToolStarted`, so that after a crash a done change is told from one that
was not made. One lock for all changes of this process keeps two agents from changing one file at once.

How a text is changed by an edit, and how a change is told: exact replacement, hints when it misses, a short diff.

Functions of texts, no files. Refuses an edit that does not fit exactly, and says where it nearly did.

`read_file` gives numbered lines of a text, an image as an image, a polite no to anything else.

A file is read in pieces, so that its size costs no memory; its digest is of the whole file even when a part was shown.
Reading may wait for a disk, so it is done in a worker thread: but for what is small and lies in the kernel's memory.
"""

from __future__ import annotations

import base64
import codecs
import errno
import hashlib
import io
import os
import re
import stat
import threading
from abc import abstractmethod
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from pathlib import Path
from typing import BinaryIO, TypeVar

import anyio.to_thread
from pydantic import Field

from callboard.adapters.system.regular_files import clear_part, part_name, put_in, read_in
from callboard.adapters.tools.base import GivenTool, Input, failed
from callboard.adapters.tools.roots import Grounds, ToolPath, folder_of, opened, telling
from callboard.core.messaging.envelopes import rearmed
from callboard.ports.tool import CallContext, Folders, Tool, ToolOutcome
from callboard.types.errors import ToolRefused
from callboard.types.events import FileSeen
from callboard.types.records import Json, PathGrant

LARGEST = 50_000_000
"""Most bytes of a file that can be changed. It is changed in memory as a whole."""


class ToWrite(Input):
    path: str = Field(description="The file, relative to your folder or absolute.")
    content: str = Field(description="All of its content.")


class ToEdit(Input):
    path: str = Field(description="The file, relative to your folder or absolute.")
    old_text: str = Field(description="The text to replace: exact, with its white space, without line numbers.")
    new_text: str = Field(description="The text to put in its place.")
    replace_all: bool = Field(False, description="Replace every occurrence instead of the only one.")


Change = TypeVar("Change", ToWrite, ToEdit)


@dataclass(frozen=True, slots=True)
class FileChange:
    """Result of a change: the digest of the present file (empty: no file), the new content, and the report."""

    before: str
    content: bytes
    mode: int | None
    report: str

    @property
    def after(self) -> str:
        return _digest(self.content)


class _ChangeTool(GivenTool[Change]):
    """Common base of writing and editing: plan, compare, write, and report after a crash."""

    lock: threading.Lock
    grounds: Grounds

    def key(self, tool_input: Json, folders: Folders) -> str:
        return self.grounds.key(tool_input, folders)

    @abstractmethod
    def plan(
        self, arguments: Change, spot: ToolPath, existing: tuple[bytes, int] | None, known_digest: str | None
    ) -> FileChange:
        """Return the planned result of the change. `known_digest`: the version that the agent knows. Raises
        `ToolRefused`."""
        ...

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        """Return the digests before and after, and the report."""
        change = self.read(tool_input)
        spot = self.grounds.find(change.path, context.folders, write=True, grants=context.grants)
        plan = await anyio.to_thread.run_sync(self._look, change, spot, context)
        return {"path": str(spot.path), "before": plan.before, "after": plan.after, "said": plan.report}

    async def act(self, arguments: Change, context: CallContext) -> ToolOutcome:
        spot = self.grounds.find(arguments.path, context.folders, write=True, grants=context.grants)
        context.launcher.allow([Path(grant.path) for grant in context.grants if isinstance(grant, PathGrant)])
        plan = await anyio.to_thread.run_sync(self._do, arguments, spot, context)
        return _done(str(spot.path), plan.before, plan.after, report=plan.report, context=context)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        """Compare the present content: the change was made, was not made (run it), or neither (say so)."""
        path = self.read(tool_input).path
        spot = self.grounds.find(path, context.folders, write=True, grants=context.grants)
        now = await anyio.to_thread.run_sync(_tidied, spot, context.call)
        marked, before, after = (str(marks.get(name, "")) for name in ("path", "before", "after"))
        if now == after and marked == str(spot.path):
            return _done(marked, before, after, report=str(marks.get("said", "")), context=context)
        if now == before:
            return None
        return failed(
            f"The runtime stopped while {spot.label} was being changed, and it holds neither the content from before "
            "nor the new one now: somebody else has changed it. Read it before you change it."
        )

    def _look(self, arguments: Change, spot: ToolPath, context: CallContext) -> FileChange:
        with telling(spot):
            return self.plan(arguments, spot, _existing(spot), context.files.get(str(spot.path)))

    def _do(self, arguments: Change, spot: ToolPath, context: CallContext) -> FileChange:
        with self.lock, folder_of(spot, make=isinstance(arguments, ToWrite)) as folder:
            existing = read_in(folder, spot.path.name, LARGEST)
            plan = self.plan(arguments, spot, existing, context.files.get(str(spot.path)))
            if plan.before != plan.after:
                part = part_name(spot.path.name, context.call)
                put_in(folder, spot.path.name, plan.content, mode=plan.mode, part=part)
            return plan


class WriteFile(_ChangeTool[ToWrite]):
    """Tool that creates a file, or replaces a file that the agent has read."""

    def __init__(self, lock: threading.Lock, grounds: Grounds) -> None:
        self.lock = lock
        self.grounds = grounds
        super().__init__(
            "write_file",
            "Write a file, all of it, making missing folders on the way. A file that is there already must have been "
            "read by you before, and must not have changed since. To change a part of a file use edit_file.",
            ToWrite,
            effect="reconcile",
            concurrency="keyed",
        )

    def plan(
        self, arguments: ToWrite, spot: ToolPath, existing: tuple[bytes, int] | None, known_digest: str | None
    ) -> FileChange:
        content = _encoded(arguments.content, "content")
        size = f"{len(arguments.content.splitlines())} lines, {len(content)} bytes"
        if existing is None:
            return FileChange("", content, None, f"Made {spot.label} ({size}).")
        before = _digest(existing[0])
        if known_digest is None and existing[0] != content:
            raise ToolRefused(f"{spot.label} exists and you have not read it. Read it first, then write or edit it.")
        _refuse_changed(spot, before, known_digest)
        if existing[0] == content:
            return FileChange(before, content, existing[1], f"{spot.label} holds exactly this already.")
        return FileChange(before, content, existing[1], f"Replaced the content of {spot.label} ({size}).")


class EditFile(_ChangeTool[ToEdit]):
    """Tool that replaces an exact piece of text."""

    def __init__(self, lock: threading.Lock, grounds: Grounds) -> None:
        self.lock = lock
        self.grounds = grounds
        super().__init__(
            "edit_file",
            "Replace text in a file. `old_text` must stand there exactly once, unless `replace_all` is set; give as "
            "many lines round the change as make it the only one. Refused when the file changed since you read it. "
            "Returns the change as a diff.",
            ToEdit,
            effect="reconcile",
            concurrency="keyed",
        )

    def plan(
        self, arguments: ToEdit, spot: ToolPath, existing: tuple[bytes, int] | None, known_digest: str | None
    ) -> FileChange:
        if existing is None:
            raise FileNotFoundError
        before = _digest(existing[0])
        _refuse_changed(spot, before, known_digest)
        try:
            old = existing[0].decode()
        except UnicodeDecodeError:
            raise ToolRefused(f"{spot.label} is not UTF-8 text, and is not edited by this tool; use bash") from None
        new = replace_text(
            old, arguments.old_text, arguments.new_text, everywhere=arguments.replace_all, name=spot.label
        )
        content = _encoded(new, "new_text")
        return FileChange(before, content, existing[1], f"Edited {spot.label}:\n{tell_change(old, new, spot.label)}")


def file_tools(grounds: Grounds | None = None) -> tuple[Tool, ...]:
    """Return the tools of this module. Called once in a process, because all changes share one lock."""
    lock, grounds = threading.Lock(), grounds or Grounds()
    return (ReadFile(grounds), WriteFile(lock, grounds), EditFile(lock, grounds))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _encoded(text: str, field: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolRefused(f"{field} is not valid text (it holds half a surrogate pair)") from None


def _refuse_changed(spot: ToolPath, now: str, known_digest: str | None) -> None:
    if known_digest is not None and known_digest != now:
        raise ToolRefused(f"{spot.label} has changed since you read it. Read it again, then change it.")


def _existing(spot: ToolPath, clear: str = "") -> tuple[bytes, int] | None:
    """Return the file's content and mode; None if the file or its folder does not exist. `clear`: name of a file in the
    same folder to delete."""
    try:
        with folder_of(spot, make=False) as folder:
            if clear:
                clear_part(folder, clear)
            return read_in(folder, spot.path.name, LARGEST)
    except ToolRefused as refusal:
        if isinstance(refusal.__cause__, FileNotFoundError):
            return None
        raise


def _tidied(spot: ToolPath, call: str) -> str:
    """Return the digest of the file's content, after deleting the partial file that a killed process left."""
    existing = _existing(spot, clear=part_name(spot.path.name, call))
    return "" if existing is None else _digest(existing[0])


def _done(path: str, before: str, after: str, *, report: str, context: CallContext) -> ToolOutcome:
    seen = FileSeen(at=context.now, path=path, digest=after, changed=before != after)
    return ToolOutcome(report, events=(seen,), data={"path": path, "before": before, "after": after})


DIFF_SHOWN = 10_000
"""Most characters of a diff that are shown."""
_DIFF_LINES = 4_000
"""Most lines of a changed section that are compared line by line."""
_HINT_LINES = 5_000


def replace_text(content: str, old: str, new: str, *, everywhere: bool, name: str) -> str:
    """Return the content with `old` replaced by `new`. Raises `ToolRefused` if `old` is missing or occurs more than
    once.

    In a file whose lines all end in CR LF, line ends in `old` and `new` are converted to CR LF.
    """
    if not old:
        raise ToolRefused("old_text is empty; to make a file use write_file")
    if old == new:
        raise ToolRefused("old_text and new_text are the same: there is nothing to change")
    if old not in content and _is_crlf(content):
        old, new = _to_crlf(old), _to_crlf(new)
    if old not in content and rearmed(old) in content:  # copied from what was shown, where such tags are defused
        old, new = rearmed(old), rearmed(new)
    count = content.count(old)
    if not count:
        raise ToolRefused(f"old_text was not found in {name}.{_hint(content, old)}")
    if count > 1 and not everywhere:
        lines = ", ".join(str(line) for line in _lines_of(content, old)[:10])
        raise ToolRefused(
            f"old_text stands {count} times in {name} (lines {lines}). Add lines round it until it is the only one, "
            "or set replace_all."
        )
    return content.replace(old, new)


def _is_crlf(content: str) -> bool:
    return "\r\n" in content and content.count("\n") == content.count("\r\n")


def _to_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _lines_of(content: str, old: str) -> list[int]:
    numbers: list[int] = []
    place = content.find(old)
    while place >= 0:
        numbers.append(content.count("\n", 0, place) + 1)
        place = content.find(old, place + len(old))
    return numbers


def _hint(content: str, old: str) -> str:
    """Return a hint at the nearest match: the same text with other white space, or the line most similar to the first
    line."""
    parts = old.split()
    if parts and len(parts) < _HINT_LINES:
        loose = re.search(r"\s+".join(map(re.escape, parts)), content)
        if loose:
            line = content.count("\n", 0, loose.start()) + 1
            return f" Line {line} has the same words with other white space: copy it exactly, without line numbers."
    first = next((line.strip() for line in old.splitlines() if line.strip()), "")
    best = 0.6
    where = 0
    lines = content.splitlines()[:_HINT_LINES]
    matcher = SequenceMatcher(None, "", first[:200], autojunk=False)
    for number, line in enumerate(lines, 1):
        matcher.set_seq1(line.strip()[:200])
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and (ratio := matcher.ratio()) > best:
            best = ratio
            where = number
    return f" The nearest is line {where}: {lines[where - 1].strip()[:200]}" if where else " Read the file again."


def tell_change(before: str, after: str, name: str) -> str:
    """Return a unified diff with three lines of context, shortened if it is long. Its cost depends on the changed
    section only."""
    old = before.splitlines()
    new = after.splitlines()
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    skip = max(0, head - 3)
    keep = max(0, tail - 3)
    old, new = old[skip : len(old) - keep], new[skip : len(new) - keep]
    if max(len(old), len(new)) > _DIFF_LINES:
        return f"(lines {skip + 1} to {skip + len(new)} of {name} changed; too many for a diff)"
    lines = [_moved(line, skip) for line in unified_diff(old, new, name, name, lineterm="")]
    text = "\n".join(lines)
    if len(text) > DIFF_SHOWN:
        return f"{text[:DIFF_SHOWN]}\n[Output cut: {DIFF_SHOWN} of {len(text)} characters.]"
    return text or "(only line ends changed)"


def _moved(line: str, skipped: int) -> str:
    """Return a hunk's header with the line numbers of the whole file."""
    if not line.startswith("@@ "):
        return line
    return re.sub(r"([-+])(\d+)", lambda match: f"{match[1]}{int(match[2]) + skipped}", line)


LINES = 2_000
LINE = 2_000
SHOWN = 256_000
"""Most lines of one call, characters of a line, and characters of one call."""
SMALL = 64 * 1024
"""Most bytes of a file that is read without a thread if that cannot wait: a switch to a thread costs more (0.3 ms)."""
IMAGE = 3_750_000
"""Most bytes of an image: the service accepts 5 MB in base64."""
_START = 8_192
"""Bytes from which the type of a file is detected."""
_IMAGES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
_KINDS = {
    b"%PDF": "a PDF document",
    b"\x7fELF": "an ELF program",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "gzip data",
    b"SQLite format 3": "an SQLite database",
    codecs.BOM_UTF16_LE: "text in UTF-16 (iconv -f UTF-16 -t UTF-8 makes it readable)",
    codecs.BOM_UTF16_BE: "text in UTF-16 (iconv -f UTF-16 -t UTF-8 makes it readable)",
}


class FileWanted(Input):
    path: str = Field(description="The file, relative to your folder or absolute.")
    offset: int = Field(1, ge=1, description="The first line to show.")
    limit: int = Field(LINES, ge=1, le=LINES, description="How many lines to show at most.")


@dataclass
class _Text:
    """Parts read from a text file."""

    lines: list[str]
    total: int
    digest: str
    size: int = 0


class ReadFile(GivenTool[FileWanted]):
    """Tool that reads a file; see the module."""

    def __init__(self, grounds: Grounds) -> None:
        self._grounds = grounds
        super().__init__(
            "read_file",
            "Read a file: its lines with their numbers, at most 2,000 at a time (`offset` and `limit` for the rest), "
            "longer lines cut at 2,000 characters. Images (PNG, JPEG, GIF, WebP) are shown as images. The line number "
            "and the tab after it are not part of the file.",
            FileWanted,
            effect="read",
            concurrency="keyed",
        )

    def key(self, tool_input: Json, folders: Folders) -> str:
        return self._grounds.key(tool_input, folders)

    async def act(self, arguments: FileWanted, context: CallContext) -> ToolOutcome:
        spot = self._grounds.find(arguments.path, context.folders, grants=context.grants)
        with opened(spot) as descriptor:
            content = _in_memory(descriptor)
        if content is not None:
            return _tell(
                io.BytesIO(content), content[:_START], len(content), spot=spot, arguments=arguments, context=context
            )
        return await anyio.to_thread.run_sync(_read, spot, arguments, context)


def _in_memory(descriptor: int) -> bytes | None:
    """Return the content of a small regular file if the kernel has it cached and need not wait for a disk or network.

    None if it is not cached, or if the system cannot tell (`RWF_NOWAIT` exists on Linux only, and not on every file
    system).
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > SMALL or not hasattr(os, "RWF_NOWAIT"):
        return None
    buffer = bytearray(status.st_size + 1)  # one more, to see that it has not grown
    try:
        read = os.preadv(descriptor, [buffer], 0, os.RWF_NOWAIT)
    except OSError:
        return None
    return bytes(buffer[:read]) if read == status.st_size else None


def _read(spot: ToolPath, arguments: FileWanted, context: CallContext) -> ToolOutcome:
    """Read the file. Blocks; runs in a worker thread."""
    with opened(spot) as descriptor:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with open(descriptor, "rb", closefd=False) as file:
            return _tell(
                file, os.pread(descriptor, _START, 0), status.st_size, spot=spot, arguments=arguments, context=context
            )


def _tell(
    file: BinaryIO, start: bytes, size: int, *, spot: ToolPath, arguments: FileWanted, context: CallContext
) -> ToolOutcome:
    """Return the outcome for an open file that begins with `start`."""
    apart = any(spot.base == folder for folder in (context.folders.tool_results, context.folders.transcripts))
    media = _image(start)
    if media:
        return _show_image(spot, file, media=media, size=size, context=context)
    if not apart:
        _refuse_binary(spot, start, size)
    text = _gather(file, arguments.offset, arguments.limit)
    event = FileSeen(at=context.now, path=str(spot.path), digest=text.digest)
    data = {"path": str(spot.path), "lines": len(text.lines), "total_lines": text.total, "digest": text.digest}
    return ToolOutcome(_render(text, arguments), events=() if apart else (event,), data=data)


def _image(start: bytes) -> str | None:
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    return next((media for magic, media in _IMAGES.items() if start.startswith(magic)), None)


def _show_image(spot: ToolPath, file: BinaryIO, *, media: str, size: int, context: CallContext) -> ToolOutcome:
    if size > IMAGE:
        raise ToolRefused(f"{spot.label} is an image of {size} bytes; at most {IMAGE} can be shown. Make it smaller.")
    content = file.read(IMAGE + 1)
    digest = hashlib.sha256(content).hexdigest()
    source = {"type": "base64", "media_type": media, "data": base64.b64encode(content).decode()}
    return ToolOutcome(
        [{"type": "text", "text": f"{spot.label} ({media}, {size} bytes)"}, {"type": "image", "source": source}],
        events=(FileSeen(at=context.now, path=str(spot.path), digest=digest),),
        data={"path": str(spot.path), "media_type": media, "digest": digest},
    )


def _refuse_binary(spot: ToolPath, start: bytes, size: int) -> None:
    kind = next((name for magic, name in _KINDS.items() if start.startswith(magic)), None)
    if kind or b"\0" in start:
        raise ToolRefused(f"{spot.label} is {kind or 'binary data'} of {size} bytes, and is not shown as text")


def _gather(file: BinaryIO, offset: int, limit: int) -> _Text:
    """Return the requested lines, each shortened, and the number and digest of all lines."""
    digest = hashlib.sha256()
    text = _Text([], 0, "")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    number = 1
    line = ""
    length = 0
    fresh = True
    while piece := file.readline(65_536):
        digest.update(piece)
        fresh = piece.endswith(b"\n")
        if offset <= number < offset + limit and text.size < SHOWN:
            part = decoder.decode(piece, final=fresh)
            part = part.rstrip("\r\n") if fresh else part
            length += len(part)
            line += part[: LINE + 1 - len(line)]
            if fresh:
                _keep(text, line, length)
                line = ""
                length = 0
        number += fresh
    if not fresh and offset <= number < offset + limit and text.size < SHOWN:
        _keep(text, line + decoder.decode(b"", final=True), length)
    text.total = number - fresh if fresh else number
    text.digest = digest.hexdigest()
    return text


def _keep(text: _Text, line: str, length: int) -> None:
    line = line.replace("\0", "\N{REPLACEMENT CHARACTER}")
    if len(line) > LINE:
        line = f"{line[:LINE]} [line cut: {LINE} of {length} characters]"
    text.lines.append(line)
    text.size += len(line)


def _render(text: _Text, arguments: FileWanted) -> str:
    if not text.total:
        return "[The file is empty.]"
    if not text.lines:
        return f"[The file has {text.total} lines; there is no line {arguments.offset}.]"
    last = arguments.offset + len(text.lines) - 1
    body = "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(text.lines, arguments.offset))
    if last >= text.total:
        return body
    return f"{body}\n[Lines {arguments.offset}-{last} of {text.total}. Read on with offset {last + 1}.]"
