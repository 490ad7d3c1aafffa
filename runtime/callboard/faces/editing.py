"""A plan in a person's editor: which one may be edited, what counts as an edit, what becomes of a text that does not.

It refuses to answer the request: whoever opened the editor does that, with `approval`.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import anyio
import click

from callboard.core.asking.plans import Word
from callboard.faces.terminal import Terminal
from callboard.words.errors import UsageError
from callboard.words.values import Request

PLAN_BYTES = 1_000_000
"""A longer text is no plan that anybody approves: refused."""

Edit = Callable[[Request], Awaitable[str]]
"""Let a person edit the text of a plan; the text as they saved it. Raises `UsageError` where no editor can be run."""


def editable(request: Request) -> str:
    """The text of a plan that waits. Raises `UsageError` for every other request."""
    if request.kind != "plan" or request.status != "pending":
        raise UsageError(f"{request.id} is a {request.kind} that is {request.status}: only a plan that waits is edited")
    return str(request.payload["plan"])


def approval(plan: Request, text: str) -> Word:
    """The edited text as an answer to the content that was edited. Raises `UsageError` for what is no edit."""
    if len(text.encode()) > PLAN_BYTES:
        raise UsageError(f"the text is over {PLAN_BYTES:,} bytes: no plan that anybody reads")
    text = text.rstrip("\n")
    if text.strip() == editable(plan).strip():
        raise UsageError(f"the plan was left as it is: nothing is approved. To approve it so: approve {plan.id}")
    if not text.strip():
        raise UsageError(f"the text is empty: nothing is approved. To reject the plan, say why: reject {plan.id}")
    return Word(plan=text, seen=plan.digest)


def kept(plan: Request, text: str) -> str:
    """Where a text stands that was not approved, in words. The file is private, in the folder for such files."""
    with tempfile.NamedTemporaryFile("w", prefix=f"{plan.id}-", suffix=".md", delete=False, encoding="utf-8") as file:
        file.write(text.rstrip("\n") + "\n")
    return f"Your text is kept in {file.name}"


def in_editor(plan: Request) -> str:
    """The plan's text as a person saved it in $VISUAL or $EDITOR (a command, with its arguments); as it was, when they
    did not save. Waits for them. Raises `UsageError` where no editor can be run, it fails, or leaves no text behind."""
    before = editable(plan)
    try:
        saved = click.edit(before, extension=f"-{plan.id}.md")
    except click.ClickException as failed:
        raise UsageError(f"{failed.format_message()}: set $VISUAL or $EDITOR. Nothing is approved") from failed
    except UnicodeError as failed:
        raise UsageError("what the editor saved is no text in UTF-8. Nothing is approved") from failed
    except ValueError as failed:
        words = f"$VISUAL or $EDITOR cannot be read as a command ({failed}): mend its quotes. Nothing is approved"
        raise UsageError(words) from failed
    except OSError as failed:
        raise UsageError(f"the editor left no text behind ({failed}). Nothing is approved") from failed
    return before if saved is None else saved


async def edit_at(terminal: Terminal, plan: Request) -> str:
    """`in_editor` while agents work on: what they print is held back until the editor has given the screen back.

    A cancellation waits for the person too, by anyio's promise for threads: two programs never share a keyboard."""
    with terminal.held(), _interrupts_are_the_editors():
        return await anyio.to_thread.run_sync(in_editor, plan)


@contextmanager
def _interrupts_are_the_editors() -> Generator[None]:
    """Ctrl-C reaches every program of the terminal: while an editor has it, it means the editor alone. (A handler, not
    SIG_IGN, which the editor would inherit.)"""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
