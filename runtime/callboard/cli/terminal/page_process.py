"""A `callboard web` of its own beside another command: for `/web`, `serve --web`, and `demo --web`.

The page is another process, so that it hosts nothing and slows no host. It ends with the block, or with this process:
the page watches its input.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any, Protocol

import anyio
from anyio.abc import ByteReceiveStream
from anyio.streams.buffered import BufferedByteReceiveStream

from callboard.adapters.processes.tool_ancestry import started_by_tool
from callboard.cli.terminal.terminal import Block, Style, block, plain
from callboard.sessions.places import find_places
from callboard.sessions.running_page import running_page
from callboard.types.errors import UsageError

_LONGEST = 100_000
"""Most bytes of a line."""
PageLine = Callable[[Block], None]
"""Function that shows a line of the page."""


@asynccontextmanager
async def page_beside(
    workspace: Path, show: PageLine, *options: str, address_only: bool = False
) -> AsyncGenerator[None]:
    """Serve the page of a workspace in a process of its own while the block runs.

    `options`: those of `callboard web`. `address_only`: `show` gets no sign-in token, because its lines are kept.
    """
    async with anyio.create_task_group() as group:
        group.start_soon(partial(run_page, workspace, show, options=options, address_only=address_only))
        try:
            yield
        finally:
            group.cancel_scope.cancel()


async def run_page(workspace: Path, show: PageLine, *, options: Sequence[str], address_only: bool = False) -> None:
    """Serve the page in a process of its own until it ends, or until this is cancelled."""
    command = [sys.executable, "-P", "-m", "callboard", "web", "--with-parent", "-C", str(workspace), *options]
    async with await anyio.open_process(command, stdin=PIPE, start_new_session=True) as process:
        try:
            async with anyio.create_task_group() as group:
                work = _show_address if address_only else _show_lines
                assert process.stdout is not None
                assert process.stderr is not None
                group.start_soon(work, _lines(process.stdout), show, "strong")
                group.start_soon(work, _lines(process.stderr), show, "dim")
            show(block(f"the page has ended (exit code {await process.wait()})", "warn"))
        finally:
            if process.returncode is None:
                process.terminate()


async def _show_lines(lines: AsyncIterable[str], show: PageLine, style: Style) -> None:
    async for line in lines:
        show(block(plain(line), style))


async def _show_address(lines: AsyncIterable[str], show: PageLine, style: Style) -> None:
    """Show the address once, without its secret, and errors."""
    shown_addresses = set[str]()
    async for line in lines:
        text, mark, _ = line.partition("#")
        if mark and text not in shown_addresses:
            shown_addresses.add(text)
            show(block(plain(text), style))
        elif not mark and " code for " not in f" {line}":
            show(block(plain(line), style))


async def _lines(stream: ByteReceiveStream) -> AsyncGenerator[str]:
    """Yield the lines of a stream without their ends."""
    buffered = BufferedByteReceiveStream(stream)
    with contextlib.suppress(anyio.IncompleteRead, anyio.ClosedResourceError, anyio.BrokenResourceError):
        while True:
            yield (await buffered.receive_until(b"\n", _LONGEST)).decode(errors="replace")


class PageConsole(Protocol):
    """Part of a `SlashContext` that the page needs."""

    @property
    def workspace(self) -> Path:
        """Return the folder of the session."""
        ...

    @property
    def beside(self) -> Callable[[Callable[[PageLine], Coroutine[Any, Any, None]]], None] | None:
        """Return the function that runs work beside the prompt line; None if there is none."""
        ...


async def open_page(console: PageConsole, arguments: str) -> Block:
    """Open the web page of this workspace, or name the one that runs."""
    if arguments:
        raise UsageError(f"/web takes no arguments; it was given {arguments!r}")
    page = running_page(find_places(console.workspace, writable=False).state)
    if page is not None:
        return block(f"the page is {page.address} (process {page.pid}, whose terminal shows how to sign in)", "strong")
    if console.beside is None or started_by_tool():
        raise UsageError("start the page in another terminal: callboard web --open")
    console.beside(partial(run_page, console.workspace, options=("--open", "--port", "0")))
    return block("starting the page; it ends with this prompt line", "dim", progress=True)
