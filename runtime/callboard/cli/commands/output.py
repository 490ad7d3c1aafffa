"""Output of commands: the terminal of this process, notices on stderr, results from a session, rows of a listing."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio

from callboard.cli.commands.options import Invocation
from callboard.cli.terminal.terminal import Block, Terminal, block
from callboard.core.trust.claims import printable
from callboard.sessions.handle import SessionHandle
from callboard.sessions.inspect.inspector import open_handle
from callboard.sessions.inspect.resources import plain_row

Row = TypeVar("Row")
Found = TypeVar("Found")


@contextmanager
def terminal_of(invocation: Invocation) -> Generator[Terminal]:
    """Yield the terminal of this process, flushed and closed at the end. Raises `ResultUnwritten`."""
    terminal = Terminal(sys.stdout, sys.stderr, color=invocation.color, quiet=invocation.quiet)
    try:
        yield terminal
    finally:
        terminal.close()


def notice_of(invocation: Invocation) -> Callable[[str], None]:
    """Return the function that prints on stderr why a command has to wait."""

    def show(message: str) -> None:
        with terminal_of(invocation) as terminal:
            terminal.terminal_print(block(f"callboard: {message}", "warn"))

    return show


def print_notes(notes: Sequence[str], terminal: Terminal) -> None:
    """Print a line for each option without effect."""
    for note in notes:
        terminal.terminal_print(block(f"callboard: {note}", "warn"))


def with_handle(
    invocation: Invocation,
    session: str | None,
    work: Callable[[SessionHandle], Awaitable[Found]],
    *,
    request: str = "",
) -> Found:
    """Return the result of `work` at the handle of a session (None: the one with this request, or the current one).

    Raises the errors of `open_handle`.
    """

    async def working() -> Found:
        notice = notice_of(invocation)
        async with open_handle(invocation.workspace, session, request=request, notice=notice) as handle:
            return await work(handle)

    return anyio.run(working)


def print_rows(
    invocation: Invocation,
    rows: Sequence[Row],
    as_table: Callable[[Sequence[Row]], Block],
    *,
    json_: bool,
    record: Callable[[Row], Any] = plain_row,
) -> None:
    """Print a listing for a user or as JSON. `record`: function that returns the JSON form of a row."""
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps([record(row) for row in rows], indent=2))
        else:
            terminal.rows(as_table(rows))


def print_new_file(invocation: Invocation, path: Path, *, person: bool) -> None:
    """Print the path of a new file, and the steps before it takes effect.

    `person`: the file is in the user's own folder.
    """
    with terminal_of(invocation) as terminal:
        terminal.rows(block(printable(str(path)), "good"))
        if not person:
            text = "edit it, then run `callboard trust`: content of a workspace is not used before that"
            terminal.terminal_print(block(text))
