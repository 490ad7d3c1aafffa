"""What only a person does: a process that an agent's tool started may look, and may not act as the person."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

from callboard.words.errors import ToolRefused, UsageError

INSIDE_TOOL = "CALLBOARD_TOOL"
"""Set in the environment of every process that a tool starts: such a process may look, and may not answer."""


def refuse_inside_tool(what: str) -> None:
    """Nobody approves himself: a process that a tool started may not act as the person. Raises `UsageError`."""
    if os.environ.get(INSIDE_TOOL):
        raise UsageError(f"a command that an agent runs may not {what}: a person does that in a terminal of their own")


@contextmanager
def as_person() -> Generator[None]:
    """What a law refuses to a tool (`ToolRefused`) is refused to a person as a `UsageError`."""
    try:
        yield
    except ToolRefused as refused:
        raise UsageError(str(refused)) from refused
