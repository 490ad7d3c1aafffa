"""`/web`: the web page of this workspace, from the prompt line."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from callboard.adapters.processes.tool_ancestry import started_by_tool
from callboard.cli.terminal.page_process import PageLine, run_page
from callboard.cli.terminal.terminal import Block, block
from callboard.sessions.places import find_places
from callboard.sessions.running_page import running_page
from callboard.types.errors import UsageError


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


async def web(console: PageConsole, arguments: str) -> Block:
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
