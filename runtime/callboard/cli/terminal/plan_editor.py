"""A plan in a person's editor: which plans may be edited, which changes count as an edit, and how a rejected text is
kept.

The caller that opened the editor answers the request, with `approval`.
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
from callboard.core.approvals.plans import AnswerDetails
from callboard.types.errors import UsageError
from callboard.types.records import Request

PLAN_BYTES = 1_000_000
"""Largest plan in bytes; longer texts are refused."""

Edit = Callable[[Request], Awaitable[str]]
"""Function that lets a person edit the text of a plan, and returns the saved text. Raises `UsageError` if no editor can
be run."""


def editable(request: Request) -> str:
    """Return the text of a pending plan. Raises `UsageError` for every other request."""
    if request.kind != "plan" or request.status != "pending":
        raise UsageError(f"{request.id} is a {request.kind} that is {request.status}: only a plan that waits is edited")
    return str(request.payload["plan"])


def approval(plan: Request, text: str) -> AnswerDetails:
    """Return the edited text as an answer to the original content. Raises `UsageError` if it is not a valid edit."""
    if len(text.encode()) > PLAN_BYTES:
        raise UsageError(f"the text is over {PLAN_BYTES:,} bytes: no plan that anybody reads")
    text = text.rstrip("\n")
    if text.strip() == editable(plan).strip():
        raise UsageError(f"the plan was left as it is: nothing is approved. To approve it so: approve {plan.id}")
    if not text.strip():
        raise UsageError(f"the text is empty: nothing is approved. To reject the plan, say why: reject {plan.id}")
    return AnswerDetails(plan=text, seen=plan.digest)


def keep_text(plan: Request, text: str) -> str:
    """Save a text that was not approved, in a private file, and return a sentence that names the file."""
    with tempfile.NamedTemporaryFile("w", prefix=f"{plan.id}-", suffix=".md", delete=False, encoding="utf-8") as file:
        file.write(text.rstrip("\n") + "\n")
    return f"Your text is kept in {file.name}"


def in_editor(plan: Request, workspace: Path) -> str:
    """Return the plan's text as a person saved it in $VISUAL or $EDITOR (a command, with its arguments); unchanged if
    they did not save. Waits for the editor. Raises `UsageError` if no editor can be run, it fails, or leaves no text.
    """
    before = editable(plan)
    try:
        saved = edit_text(before, f"{plan.id}.md", workspace)
    except EditorFailed as failed:
        raise UsageError(f"{failed}. Nothing is approved") from failed
    return before if saved is None else saved


async def edit_at(terminal: Terminal, plan: Request, workspace: Path) -> str:
    """Run `in_editor` while agents continue to work: their output is held back until the editor closes.

    A cancellation also waits for the person, because anyio waits for threads: two programs never share a keyboard.
    """
    with terminal.held(), _interrupts_are_the_editors():
        return await anyio.to_thread.run_sync(in_editor, plan, workspace)


@contextmanager
def _interrupts_are_the_editors() -> Generator[None]:
    """Ignore Ctrl-C during the block. It reaches every program of the terminal, but is meant for the editor alone. (A
    handler, not SIG_IGN, which the editor would inherit.)"""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
