"""File tools: `read_file`, `write_file`, `edit_file` and `multi_edit`, and the base of tools that change a file.

A change is complete or not made at all, is durable, and is only made to content that the agent knows: a file that
changed since it was read is refused. `ToolStarted` has the digests before and after, which show after a crash if the
change was made. One lock for all changes of this process keeps two agents from changing one file at once.

An edit replaces an exact piece of text. An edit that does not fit exactly is refused with a hint to the nearest match.
`multi_edit` makes several edits, each in the text that the earlier ones left, and writes the file once.
The report of a change is a short diff.

`read_file` returns the numbered lines of a text, or an image; any other file is refused with its type. A file is read
in pieces, so that its size costs no memory. The digest covers the whole file even if only a part was shown. Reading may
wait for a disk, so it runs in a worker thread, except for a small file that the kernel has in memory.
"""

from __future__ import annotations

import base64
import codecs
import errno
import hashlib
import io
import os
import stat
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

import anyio.to_thread
from pydantic import Field

from callboard.adapters.system.regular_files import clear_part, part_name, read_in, write_in_folder
from callboard.adapters.tools.base import ToolInput, TypedTool, failed_outcome, read_input
from callboard.adapters.tools.roots import RootCache, ToolPath, folder_of, open_file, refusing_os_errors
from callboard.adapters.tools.text_edits import describe_change, replace_text, text_diff
from callboard.core.keys import count_words
from callboard.ports.tool import CallContext, Folders, Tool, ToolOutcome
from callboard.types.errors import ToolRefused
from callboard.types.events import FileSeen
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json, PathGrant

LARGEST = 50_000_000
"""Most bytes of a file that can be changed. It is changed in memory as a whole."""


class PathInput(ToolInput):
    """Base of the inputs that name one file."""

    path: str = Field(description="The file, relative to your folder or absolute.")


class WriteFileInput(PathInput):
    """Input of `write_file`."""

    content: str = Field(description="All of its content.")


class TextEdit(ToolInput):
    """One replacement of text in a file."""

    old_text: str = Field(description="The text to replace: exact, with its white space, without line numbers.")
    new_text: str = Field(description="The text to put in its place.")
    replace_all: bool = Field(False, description="Replace every occurrence instead of the only one.")


class EditFileInput(TextEdit, PathInput):
    """One edit of one file."""


class MultiEditInput(PathInput):
    """Several edits of one file."""

    edits: list[TextEdit] = Field(min_length=1, description="The edits, in order.")


Change = TypeVar("Change", bound=PathInput)


@dataclass(frozen=True, slots=True)
class FileChange:
    """Result of a change: the digest of the present file (empty: no file), the new content, and the report."""

    before: str
    content: bytes
    mode: int | None
    report: str

    @property
    def after(self) -> str:
        return digest_of(self.content)


class ChangeTool(TypedTool[Change]):
    """Common base of tools that change one file: plan, compare, write, and report after a crash."""

    lock: threading.Lock
    root_cache: RootCache

    def key(self, tool_input: Json, folders: Folders) -> str:
        return self.root_cache.key(tool_input, folders)

    def makes(self, arguments: Change) -> bool:
        """Return True if missing folders are created on the way to the file."""
        return False

    @abstractmethod
    def plan(
        self, arguments: Change, target: ToolPath, existing: tuple[bytes, int] | None, known_digest: str | None
    ) -> FileChange:
        """Return the planned result of the change.

        `known_digest`: the version that the agent knows. Raises `ToolRefused`.
        """
        ...

    async def preview(self, tool_input: Json, context: CallContext) -> str:
        """Return the change as a unified diff with the line numbers of the file.

        Empty for a new file, and for content that is not text. Raises `ToolRefused` if the change would be refused now
        and the agent has read the file.
        """
        change = self.read(tool_input)
        known = False
        try:
            target = self.root_cache.find(change.path, context.folders, write=True, grants=context.grants)
            known = target.text in context.files
            return await anyio.to_thread.run_sync(self._preview, change, target, context)
        except ToolRefused:
            # A refusal says whether the file exists, and quotes its nearest line. Nobody has allowed the agent to know
            # that of a file that it has not read (test_a_preview_tells_nothing_of_a_file_that_the_agent_has_not_read).
            if known:
                raise
            return ""

    def _preview(self, arguments: Change, target: ToolPath, context: CallContext) -> str:
        with refusing_os_errors(target):
            existing = content_of(target)
            plan = self.plan(arguments, target, existing, context.files.get(target.text))
        if existing is None:
            return ""
        try:
            return text_diff(existing[0].decode(), plan.content.decode(), target.label)
        except UnicodeDecodeError:
            return ""

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        """Return the digests before and after, and the report."""
        change = self.read(tool_input)
        target = self.root_cache.find(change.path, context.folders, write=True, grants=context.grants)
        plan = await anyio.to_thread.run_sync(self._look, change, target, context)
        return {"path": target.text, "before": plan.before, "after": plan.after, "said": plan.report}

    async def act(self, arguments: Change, context: CallContext) -> ToolOutcome:
        target = self.root_cache.find(arguments.path, context.folders, write=True, grants=context.grants)
        context.launcher.allow([Path(grant.path) for grant in context.grants if isinstance(grant, PathGrant)])
        plan = await anyio.to_thread.run_sync(self._do, arguments, target, context)
        return _done(target.text, plan.before, plan.after, report=plan.report, context=context)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        """Compare the present content with that before and after the change.

        The change was made, was not made (run it now), or the file has a third content (report it).
        """
        path = self.read(tool_input).path
        target = self.root_cache.find(path, context.folders, write=True, grants=context.grants)
        now = await anyio.to_thread.run_sync(_delete_partial_file, target, context.call)
        marked, before, after = (str(marks.get(name, "")) for name in ("path", "before", "after"))
        if now == after and marked == target.text:
            return _done(marked, before, after, report=str(marks.get("said", "")), context=context)
        if now == before:
            return None
        return failed_outcome(
            f"The runtime stopped while {target.label} was being changed, and it holds neither the content from before "
            "nor the new one now: somebody else has changed it. Read it before you change it."
        )

    def _look(self, arguments: Change, target: ToolPath, context: CallContext) -> FileChange:
        with refusing_os_errors(target):
            return self.plan(arguments, target, content_of(target), context.files.get(target.text))

    def _do(self, arguments: Change, target: ToolPath, context: CallContext) -> FileChange:
        with self.lock, folder_of(target, make=self.makes(arguments)) as folder:
            existing = read_in(folder, target.path.name, LARGEST)
            plan = self.plan(arguments, target, existing, context.files.get(target.text))
            if plan.before != plan.after:
                if existing is not None and self.root_cache.keep is not None:
                    self.root_cache.keep(existing[0])
                part = part_name(target.path.name, context.call)
                write_in_folder(folder, target.path.name, plan.content, mode=plan.mode, part=part)
            return plan


class WriteFile(ChangeTool[WriteFileInput]):
    """Tool that creates a file, or replaces a file that the agent has read."""

    def __init__(self, lock: threading.Lock, root_cache: RootCache) -> None:
        self.lock = lock
        self.root_cache = root_cache
        super().__init__(
            "write_file",
            "Write a file, all of it, making missing folders on the way. A file that is there already must have been "
            "read by you before, and must not have changed since. To change a part of a file use edit_file.",
            WriteFileInput,
            effect="reconcile",
            concurrency="keyed",
        )

    def makes(self, arguments: WriteFileInput) -> bool:
        return True

    def plan(
        self, arguments: WriteFileInput, target: ToolPath, existing: tuple[bytes, int] | None, known_digest: str | None
    ) -> FileChange:
        content = encode_text(arguments.content, "content")
        size = f"{count_words(len(arguments.content.splitlines()), 'line')}, {count_words(len(content), 'byte')}"
        if existing is None:
            return FileChange("", content, None, f"Made {target.label} ({size}).")
        before = digest_of(existing[0])
        if known_digest is None and existing[0] != content:
            raise ToolRefused(f"{target.label} exists and you have not read it. Read it first, then write or edit it.")
        refuse_changed(target, before, known_digest)
        if existing[0] == content:
            return FileChange(before, content, existing[1], f"{target.label} holds exactly this already.")
        return FileChange(before, content, existing[1], f"Replaced the content of {target.label} ({size}).")


class EditFile(ChangeTool[EditFileInput]):
    """Tool that replaces an exact piece of text."""

    def __init__(self, lock: threading.Lock, root_cache: RootCache) -> None:
        self.lock = lock
        self.root_cache = root_cache
        super().__init__(
            "edit_file",
            "Replace text in a file. `old_text` must stand there exactly once, unless `replace_all` is set; give as "
            "many lines round the change as make it the only one. Refused when the file changed since you read it. "
            "Returns the change as a diff.",
            EditFileInput,
            effect="reconcile",
            concurrency="keyed",
        )

    def plan(
        self, arguments: EditFileInput, target: ToolPath, existing: tuple[bytes, int] | None, known_digest: str | None
    ) -> FileChange:
        return _edited(target, existing, known_digest, [arguments])


class MultiEdit(ChangeTool[MultiEditInput]):
    """Tool that makes several edits of one file, all or none."""

    def __init__(self, lock: threading.Lock, root_cache: RootCache) -> None:
        self.lock = lock
        self.root_cache = root_cache
        super().__init__(
            "multi_edit",
            "Make several edits of one file at once, in order, each as edit_file would make it in the text that the "
            "edits before it left. If one does not fit, none is made. An empty `old_text` in the first edit makes a "
            "file that does not exist.",
            MultiEditInput,
            effect="reconcile",
            concurrency="keyed",
        )

    def makes(self, arguments: MultiEditInput) -> bool:
        return not arguments.edits[0].old_text

    def plan(
        self, arguments: MultiEditInput, target: ToolPath, existing: tuple[bytes, int] | None, known_digest: str | None
    ) -> FileChange:
        if existing is not None or arguments.edits[0].old_text:
            return _edited(target, existing, known_digest, arguments.edits)
        text = _replaced(arguments.edits[0].new_text, arguments.edits[1:], target.label, first=2)
        content = encode_text(text, "new_text")
        return FileChange(
            "", content, None, f"Made {target.label} ({len(text.splitlines())} lines, {len(content)} bytes)."
        )


def _edited(
    target: ToolPath, existing: tuple[bytes, int] | None, known_digest: str | None, edits: Sequence[TextEdit]
) -> FileChange:
    """Return the planned result of these edits. Raises `ToolRefused`."""
    if existing is None:
        raise FileNotFoundError
    before = digest_of(existing[0])
    refuse_changed(target, before, known_digest)
    old = text_in(target, existing[0])
    new = _replaced(old, edits, target.label)
    content = encode_text(new, "new_text")
    return FileChange(
        before, content, existing[1], f"Edited {target.label}:\n{describe_change(old, new, target.label)}"
    )


def _replaced(text: str, edits: Sequence[TextEdit], name: str, *, first: int = 1) -> str:
    """Return the text after these edits. A refusal of one of several names its number."""
    for number, edit in enumerate(edits, first):
        try:
            text = replace_text(text, edit.old_text, edit.new_text, everywhere=edit.replace_all, name=name)
        except ToolRefused as refusal:
            if len(edits) + first == 2:
                raise
            raise ToolRefused(f"edit {number}: {refusal} None of the edits was made.") from refusal
    return text


def file_tools(root_cache: RootCache | None = None, lock: threading.Lock | None = None) -> tuple[Tool, ...]:
    """Return the tools of this module. `lock`: shared with all other tools of the session that change files."""
    lock, root_cache = lock or threading.Lock(), root_cache or RootCache()
    return (ReadFile(root_cache), WriteFile(lock, root_cache), EditFile(lock, root_cache), MultiEdit(lock, root_cache))


def text_in(target: ToolPath, content: bytes) -> str:
    """Return the content of a text file. Raises `ToolRefused`."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ToolRefused(f"{target.label} is not UTF-8 text, and is not edited by this tool; use bash") from None


def digest_of(content: bytes) -> str:
    """Return the digest by which the content of a file is compared."""
    return hashlib.sha256(content).hexdigest()


def encode_text(text: str, field: str) -> bytes:
    """Return the text as UTF-8. Raises `ToolRefused`."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolRefused(f"{field} is not valid text (it holds half a surrogate pair)") from None


def refuse_changed(target: ToolPath, now: str, known_digest: str | None) -> None:
    """Raise `ToolRefused` if the file is not the version that the agent knows; None: it knows none."""
    if known_digest is not None and known_digest != now:
        raise ToolRefused(f"{target.label} has changed since you read it. Read it again, then change it.")


def content_of(target: ToolPath, clear: str = "") -> tuple[bytes, int] | None:
    """Return the file's content and mode; None if the file or its folder does not exist.

    `clear`: name of a file in the same folder to delete.
    """
    try:
        with folder_of(target, make=False) as folder:
            if clear:
                clear_part(folder, clear)
            return read_in(folder, target.path.name, LARGEST)
    except ToolRefused as refusal:
        if isinstance(refusal.__cause__, FileNotFoundError):
            return None
        raise


def _delete_partial_file(target: ToolPath, call: str) -> str:
    """Delete the partial file that a killed process left, and return the digest of the file's content."""
    existing = content_of(target, clear=part_name(target.path.name, call))
    return "" if existing is None else digest_of(existing[0])


def _done(path: str, before: str, after: str, *, report: str, context: CallContext) -> ToolOutcome:
    seen = FileSeen(at=context.now, path=path, digest=after, changed=before != after)
    return ToolOutcome(report, events=(seen,), data={"path": path, "before": before, "after": after})


LINES = 2_000
LINE = 2_000
SHOWN = 256_000
"""Most lines of one call, characters of a line, and characters of one call."""
SMALL = 64 * 1024
"""Most bytes of a file that is read without a thread, provided that the read cannot wait: a switch to a thread costs
more (0.3 ms).
"""
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


class ReadFileInput(ToolInput):
    """Input of `read_file`."""

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


class ReadFile(TypedTool[ReadFileInput]):
    """Tool that reads a file; see the module."""

    def __init__(self, root_cache: RootCache) -> None:
        self._root_cache = root_cache
        super().__init__(
            "read_file",
            "Read a file: its lines with their numbers, at most 2,000 at a time (`offset` and `limit` for the rest), "
            "longer lines cut at 2,000 characters. Images (PNG, JPEG, GIF, WebP) are shown as images. The line number "
            "and the tab after it are not part of the file.",
            ReadFileInput,
            effect="read",
            concurrency="keyed",
        )

    def key(self, tool_input: Json, folders: Folders) -> str:
        return self._root_cache.key(tool_input, folders)

    def at_hand(self, tool_input: Json, context: CallContext) -> ToolOutcome | None:
        """Return the outcome for a small file that the kernel has in memory; else None. Raises `ToolRefused`."""
        arguments = read_input(ReadFileInput, tool_input)  # the input was just compared with the schema
        return _outcome_at_hand(self._target(arguments, context), arguments, context)

    async def act(self, arguments: ReadFileInput, context: CallContext) -> ToolOutcome:
        target = self._target(arguments, context)
        outcome = _outcome_at_hand(target, arguments, context)
        return outcome or await anyio.to_thread.run_sync(_read, target, arguments, context)

    def _target(self, arguments: ReadFileInput, context: CallContext) -> ToolPath:
        return self._root_cache.find(arguments.path, context.folders, grants=context.grants)


def _outcome_at_hand(target: ToolPath, arguments: ReadFileInput, context: CallContext) -> ToolOutcome | None:
    """Return the outcome for a small file that the kernel has in memory; else None."""
    with open_file(target) as descriptor:
        content = _in_memory(descriptor)
    if content is None:
        return None
    file = io.BytesIO(content)
    return _describe(file, content[:_START], len(content), target=target, arguments=arguments, context=context)


def _in_memory(descriptor: int) -> bytes | None:
    """Return the content of a small regular file if the kernel has it cached and need not wait for a disk or network.

    None if it is not cached, or if the system cannot tell (`RWF_NOWAIT` exists on Linux only, and not on every file
    system).
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > SMALL or not hasattr(os, "RWF_NOWAIT"):
        return None
    buffer = bytearray(status.st_size + 1)  # one more byte, to detect that the file has grown
    try:
        read = os.preadv(descriptor, [buffer], 0, os.RWF_NOWAIT)
    except OSError:
        return None
    return bytes(buffer[:read]) if read == status.st_size else None


def _read(target: ToolPath, arguments: ReadFileInput, context: CallContext) -> ToolOutcome:
    """Read the file. Blocks; runs in a worker thread."""
    with open_file(target) as descriptor:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with open(descriptor, "rb", closefd=False) as file:
            return _describe(
                file,
                os.pread(descriptor, _START, 0),
                status.st_size,
                target=target,
                arguments=arguments,
                context=context,
            )


def _describe(
    file: BinaryIO, start: bytes, size: int, *, target: ToolPath, arguments: ReadFileInput, context: CallContext
) -> ToolOutcome:
    """Return the outcome for an open file that begins with `start`."""
    media = _image(start)
    if media:
        return _show_image(target, file, media=media, size=size, context=context)
    if not target.apart:
        _refuse_binary(target, start, size)
    text = _gather(file, arguments.offset, arguments.limit)
    event = FileSeen(at=context.now, path=target.text, digest=text.digest)
    data = {"path": target.text, "lines": len(text.lines), "total_lines": text.total, "digest": text.digest}
    return ToolOutcome(_render(text, arguments), events=() if target.apart else (event,), data=data)


def _kind_in(kinds: Mapping[bytes, str], start: bytes) -> str | None:
    """Return the kind of a file by its first bytes; None if it is none of these kinds."""
    if not start.startswith(tuple(kinds)):
        return None
    return next(kind for magic, kind in kinds.items() if start.startswith(magic))


def _image(start: bytes) -> str | None:
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    return _kind_in(_IMAGES, start)


def _show_image(target: ToolPath, file: BinaryIO, *, media: str, size: int, context: CallContext) -> ToolOutcome:
    if size > IMAGE:
        raise ToolRefused(f"{target.label} is an image of {size} bytes; at most {IMAGE} can be shown. Make it smaller.")
    content = file.read(IMAGE + 1)
    digest = hashlib.sha256(content).hexdigest()
    source = {"type": "base64", "media_type": media, "data": base64.b64encode(content).decode()}
    return ToolOutcome(
        [{"type": "text", "text": f"{target.label} ({media}, {size} bytes)"}, {"type": "image", "source": source}],
        events=(FileSeen(at=context.now, path=target.text, digest=digest),),
        data={"path": target.text, "media_type": media, "digest": digest},
    )


def _refuse_binary(target: ToolPath, start: bytes, size: int) -> None:
    kind = _kind_in(_KINDS, start)
    if kind or b"\0" in start:
        raise ToolRefused(f"{target.label} is {kind or 'binary data'} of {size} bytes, and is not shown as text")


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


def _render(text: _Text, arguments: ReadFileInput) -> str:
    if not text.total:
        return "[The file is empty.]"
    if not text.lines:
        return f"[The file has {text.total} lines; there is no line {arguments.offset}.]"
    last = arguments.offset + len(text.lines) - 1
    body = "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(text.lines, arguments.offset))
    if last >= text.total:
        return body
    return f"{body}\n[Lines {arguments.offset}-{last} of {text.total}. Read on with offset {last + 1}.]"
