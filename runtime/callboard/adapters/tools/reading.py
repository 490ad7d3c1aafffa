"""The `read_file` tool: numbered lines of a text, an image as an image, a polite no to anything else.

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
import stat
from dataclasses import dataclass
from typing import BinaryIO

import anyio.to_thread
from pydantic import Field

from callboard.adapters.tools.base import GivenTool
from callboard.adapters.tools.places import Grounds, Spot, opened
from callboard.adapters.tools.store_tool import Input
from callboard.ports.tool import ToolContext, ToolOutcome
from callboard.words.errors import ToolRefused
from callboard.words.events import FileSeen

LINES, LINE, SHOWN = 2_000, 2_000, 256_000
"""Lines of one call, characters of a line, characters of one call."""
SMALL = 64 * 1024
"""Bytes of a file that are read at once where that cannot wait: a thread's turn costs more (0.3 ms)."""
IMAGE = 3_750_000
"""Bytes of an image: the service takes 5 MB in base64."""
_START = 8_192
"""Bytes that tell what a file is."""
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
    """What was gathered of a text file."""

    lines: list[str]
    total: int
    digest: str
    size: int = 0


class ReadFile(GivenTool[FileWanted]):
    """See the module."""

    def __init__(self, grounds: Grounds) -> None:
        self._grounds = grounds
        super().__init__(
            "read_file",
            "Read a file: its lines with their numbers, at most 2,000 at a time (`offset` and `limit` for the rest), "
            "longer lines cut at 2,000 characters. Images (PNG, JPEG, GIF, WebP) are shown as images. The line number "
            "and the tab after it are not part of the file.",
            FileWanted,
            "read",
            "shared",
        )

    async def act(self, given: FileWanted, context: ToolContext) -> ToolOutcome:
        spot = self._grounds.find(given.path, context.folders)
        with opened(spot) as descriptor:
            content = _in_memory(descriptor)
        if content is not None:
            return _tell(io.BytesIO(content), content[:_START], len(content), spot, given, context)
        return await anyio.to_thread.run_sync(_read, spot, given, context)


def _in_memory(descriptor: int) -> bytes | None:
    """All of a small regular file, if the kernel has it at hand and need not wait for any disk or network.

    None where it has not, and where the system cannot say (`RWF_NOWAIT` is Linux's, and not of every file system).
    """
    told = os.fstat(descriptor)
    if not stat.S_ISREG(told.st_mode) or told.st_size > SMALL or not hasattr(os, "RWF_NOWAIT"):
        return None
    buffer = bytearray(told.st_size + 1)  # one more, to see that it has not grown
    try:
        read = os.preadv(descriptor, [buffer], 0, os.RWF_NOWAIT)
    except OSError:
        return None
    return bytes(buffer[:read]) if read == told.st_size else None


def _read(spot: Spot, given: FileWanted, context: ToolContext) -> ToolOutcome:
    """Blocks while it reads; runs in a worker thread."""
    with opened(spot) as descriptor:
        told = os.fstat(descriptor)
        if stat.S_ISDIR(told.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with open(descriptor, "rb", closefd=False) as file:
            return _tell(file, os.pread(descriptor, _START, 0), told.st_size, spot, given, context)


def _tell(file: BinaryIO, start: bytes, size: int, spot: Spot, given: FileWanted, context: ToolContext) -> ToolOutcome:
    """What is said of an open file that begins with `start`."""
    apart = not spot.path.is_relative_to(context.folders.root)
    media = _image(start)
    if media:
        return _show_image(spot, file, media, size, context)
    if not apart:
        _refuse_binary(spot, start, size)
    text = _gather(file, given.offset, given.limit)
    event = FileSeen(at=context.now, path=str(spot.path), digest=text.digest)
    data = {"path": str(spot.path), "lines": len(text.lines), "total_lines": text.total, "digest": text.digest}
    return ToolOutcome(_render(text, given), events=() if apart else (event,), data=data)


def _image(start: bytes) -> str | None:
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    return next((media for magic, media in _IMAGES.items() if start.startswith(magic)), None)


def _show_image(spot: Spot, file: BinaryIO, media: str, size: int, context: ToolContext) -> ToolOutcome:
    if size > IMAGE:
        raise ToolRefused(f"{spot.shown} is an image of {size} bytes; at most {IMAGE} can be shown. Make it smaller.")
    content = file.read(IMAGE + 1)
    digest = hashlib.sha256(content).hexdigest()
    source = {"type": "base64", "media_type": media, "data": base64.b64encode(content).decode()}
    return ToolOutcome(
        [{"type": "text", "text": f"{spot.shown} ({media}, {size} bytes)"}, {"type": "image", "source": source}],
        events=(FileSeen(at=context.now, path=str(spot.path), digest=digest),),
        data={"path": str(spot.path), "media_type": media, "digest": digest},
    )


def _refuse_binary(spot: Spot, start: bytes, size: int) -> None:
    kind = next((told for magic, told in _KINDS.items() if start.startswith(magic)), None)
    if kind or b"\0" in start:
        raise ToolRefused(f"{spot.shown} is {kind or 'binary data'} of {size} bytes, and is not shown as text")


def _gather(file: BinaryIO, offset: int, limit: int) -> _Text:
    """The wanted lines, each cut, and number and digest of all."""
    digest = hashlib.sha256()
    text = _Text([], 0, "")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    number, line, length, fresh = 1, "", 0, True
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
                line, length = "", 0
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


def _render(text: _Text, given: FileWanted) -> str:
    if not text.total:
        return "[The file is empty.]"
    if not text.lines:
        return f"[The file has {text.total} lines; there is no line {given.offset}.]"
    last = given.offset + len(text.lines) - 1
    body = "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(text.lines, given.offset))
    if last >= text.total:
        return body
    return f"{body}\n[Lines {given.offset}-{last} of {text.total}. Read on with offset {last + 1}.]"
