"""Prompt of a command: the words of its line, piped input, or both.

`git diff | callboard -p "review this"` sends both: the words first, then the input in a `<piped-input>` tag, so that
nothing in the input counts as the user's instructions. A silent pipe does not delay a run for long: programs often
start a command with a pipe that they never write to and never close.
"""

from __future__ import annotations

import os
import select
import stat
import sys

from callboard.core.messaging.envelopes import tag_text
from callboard.types.errors import UsageError

PROMPT_BYTES = 10_000_000
"""Limit of the input in bytes. Claude Code has the same limit."""
FIRST_BYTE_SECONDS = 3.0
"""Seconds that a pipe may stay silent before the prompt of the command line is sent without it."""
_CHUNK = 65_536


NO_PROMPT = 'there is no prompt. Say what to do: callboard run "Fix the failing tests"'


def read_prompt(argument: str | None, *, required: bool, missing: str = NO_PROMPT) -> tuple[str | None, str]:
    """Return the prompt and a note for the user ("" if there is none).

    `argument` is the prompt of the command line: `-` stands for the input, and an empty one counts as none. Without an
    argument the input is the whole prompt. The prompt is None if there is none and it is not `required`. Raises
    `UsageError` if a required prompt is missing (with the text `missing`) or the input is too large.
    """
    prompt = (argument or "").strip() and argument
    if prompt == "-":
        prompt = None
        piped = _decoded(_read_to_end(sys.stdin.fileno()))
        note = ""
    else:
        piped, note = _piped_input(patient=required and not prompt)
    if piped.strip():
        return (f"{prompt}\n\n{tag_text('piped-input', piped)}" if prompt else piped), ""
    if prompt:
        return prompt, note
    if required or argument == "-":
        raise UsageError(missing)
    return None, ""


def _piped_input(*, patient: bool) -> tuple[str, str]:
    """Return the text on stdin and a note; both empty on a terminal. `patient`: wait without a limit."""
    try:
        file = sys.stdin.fileno()
        mode = os.fstat(file).st_mode
    except (OSError, ValueError):  # a stdin without a file: a test or a program has replaced it
        return "", ""
    if os.isatty(file):
        return "", ""
    silent = not patient and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))
    if silent and not select.select([file], [], [], FIRST_BYTE_SECONDS)[0]:
        note = (
            f"nothing came on stdin within {FIRST_BYTE_SECONDS:g} s, so the prompt goes without it. If a slow command "
            "writes to it, save its output in a file first: callboard -p PROMPT < FILE"
        )
        return "", note
    return _decoded(_read_to_end(file)), ""


def _read_to_end(file: int) -> bytes:
    """Read all bytes. Raises `UsageError` if there are too many or the input cannot be read."""
    data = bytearray()
    try:
        while chunk := os.read(file, _CHUNK):
            data += chunk
            if len(data) > PROMPT_BYTES:
                raise UsageError(
                    f"the input on stdin is over {PROMPT_BYTES:,} bytes: put it into a file and name the file"
                )
    except OSError as error:
        raise UsageError(f"stdin cannot be read: {error.strerror}") from error
    return bytes(data)


def _decoded(data: bytes) -> str:
    return data.decode("utf-8-sig", errors="replace")
