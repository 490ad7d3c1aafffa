"""A plan or a call in a person's editor: rules for editable requests and valid edits, and a file for a rejected text.

The caller that opened the editor answers the request with the result of `approval` or `edited_input`. A call is edited
as the text of its main field, or as JSON.
"""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import anyio

from callboard.cli.terminal.editor import EditorFailed, edit_text
from callboard.cli.terminal.terminal import Terminal
from callboard.core.approvals.plans import AnswerDetails
from callboard.types.errors import UsageError
from callboard.types.records import Json, Request

PLAN_BYTES = 1_000_000
"""Largest plan in bytes; longer texts are refused."""

Edit = Callable[[Request], Awaitable[str]]
"""Function that lets a person edit a plan or a call, and returns the saved text. Raises `UsageError` if no editor can
be run."""
_MAIN_FIELDS = {"bash": ("command", ".sh"), "write_file": ("content", ".txt"), "edit_file": ("new_text", ".txt")}
"""Field of a tool's input that is edited as plain text, and the suffix of its file."""


def editable(request: Request) -> str:
    """Return the text of a pending plan. Raises `UsageError` for every other request."""
    if request.kind != "plan" or request.status != "pending":
        state = f"{request.id} is a {request.kind} that is {request.status}"
        raise UsageError(f"{state}: only a pending plan can be edited")
    return str(request.payload["plan"])


def approval(plan: Request, text: str) -> AnswerDetails:
    """Return the edited text as an answer to the original content. Raises `UsageError` if it is not a valid edit."""
    if len(text.encode()) > PLAN_BYTES:
        raise UsageError(f"the text is over {PLAN_BYTES:,} bytes: shorten it")
    text = text.rstrip("\n")
    if text.strip() == editable(plan).strip():
        raise UsageError(f"the plan is unchanged: nothing is approved. To approve it unchanged: approve {plan.id}")
    if not text.strip():
        raise UsageError(f"the text is empty: nothing is approved. To reject the plan, say why: reject {plan.id}")
    return AnswerDetails(plan=text, seen=plan.digest)


def text_to_edit(request: Request) -> tuple[str, str]:
    """Return the text of a pending plan or call, and the suffix of its file.

    Raises `UsageError` for every other request.
    """
    if request.kind != "permission":
        return editable(request), ".md"
    field, suffix = _main_field(request)
    if field:
        return str(_input_of(request)[field]), suffix
    return json.dumps(_input_of(request), indent=2, ensure_ascii=False), ".json"


def edited_input(request: Request, text: str) -> Json:
    """Return the edited text as the input of the call. Raises `UsageError` if it is not a valid edit."""
    before, _ = text_to_edit(request)
    if text.rstrip("\n") == before.rstrip("\n"):
        raise UsageError("the call is unchanged: nothing is allowed. To allow it unchanged: 1 or y")
    field, _ = _main_field(request)
    if field:
        if not text.strip() and field == "command":
            raise UsageError("the command is empty: nothing is allowed. To refuse it: 3 or n")
        return {**_input_of(request), field: text if before.endswith("\n") else text.removesuffix("\n")}
    try:
        edited: Any = json.loads(text)
    except ValueError as failed:
        raise UsageError(f"the edited call is not JSON ({failed}): nothing is allowed. Edit it again") from failed
    if not isinstance(edited, dict):
        raise UsageError("the edited call is not a JSON object: nothing is allowed. Edit it again")
    return cast("Json", edited)


def _main_field(request: Request) -> tuple[str, str]:
    """Return the field that is edited as text, and its suffix; empty if the whole input is edited."""
    field, suffix = _MAIN_FIELDS.get(str(request.payload.get("tool")), ("", ""))
    return (field, suffix) if isinstance(_input_of(request).get(field), str) else ("", "")


def _input_of(request: Request) -> Json:
    tool_input = request.payload.get("input")
    return cast("Json", tool_input) if isinstance(tool_input, dict) else {}


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
    with terminal.held(), _interrupts_are_the_editors():
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
