"""A plan or a call in a person's editor, and a file for a rejected text.

The caller that opened the editor answers the request with the result of `approval` or `edited_input` of
`views/edits.py`.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import anyio

from callboard.cli.terminal.editor import EditorFailed, edit_text
from callboard.cli.terminal.terminal import Terminal
from callboard.cli.views.edits import text_to_edit
from callboard.types.errors import UsageError
from callboard.types.records import Request

Edit = Callable[[Request], Awaitable[str]]
"""Function that lets a person edit a plan or a call, and returns the saved text. Raises `UsageError` if no editor can
be run."""


def keep_text(request: Request, text: str) -> str:
    """Save a text that was not approved, in a private file, and return a sentence that names the file."""
    suffix = ".md" if request.kind == "plan" else text_to_edit(request)[1]
    with tempfile.NamedTemporaryFile(
        "w", prefix=f"{request.id}-", suffix=suffix, delete=False, encoding="utf-8"
    ) as file:
        file.write(text.rstrip("\n") + "\n")
    return f"Your text is kept in {file.name}"


def in_editor(request: Request, workspace: Path) -> str:
    """Return the text of the plan or call as a person saved it in their editor.

    The editor is $VISUAL or $EDITOR (a command, with its arguments). The text is unchanged if they did not save. Waits
    for the editor. Raises `UsageError` if no editor can be run, it fails, or leaves no text.
    """
    before, suffix = text_to_edit(request)
    try:
        saved = edit_text(before, f"{request.id}{suffix}", workspace)
    except EditorFailed as failed:
        raise UsageError(f"{failed}. Nothing is approved") from failed
    return before if saved is None else saved


async def edit_at(terminal: Terminal, request: Request, workspace: Path) -> str:
    """Run `in_editor` while agents continue to work: their output is held back until the editor closes.

    A cancellation also waits for the person, because anyio waits for threads: two programs never share a keyboard.
    """
    with terminal.lend_screen(), _interrupts_are_the_editors():
        return await anyio.to_thread.run_sync(in_editor, request, workspace)


@contextmanager
def _interrupts_are_the_editors() -> Generator[None]:
    """Ignore Ctrl-C during the block.

    It reaches every program of the terminal, but is meant for the editor alone. (A handler, not SIG_IGN, which the
    editor would inherit.)
    """
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
