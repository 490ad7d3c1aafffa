"""`task_output` and `task_stop`: what a background command has written so far, and its end when asked for.

Only the agent's own background commands are known here. The notification at the end is the engine's.
"""

from __future__ import annotations

import codecs
from pathlib import Path

import anyio.to_thread
from pydantic import Field

from callboard.adapters.launcher import exit_code, find_process
from callboard.adapters.tools.base import GivenTool
from callboard.adapters.tools.store_tool import Input
from callboard.ports.tool import BackgroundTask, Tool, ToolContext, ToolOutcome
from callboard.words.errors import ToolRefused
from callboard.words.events import BackgroundEnded

PART = 50_000
"""Bytes that one call returns at most."""


class OutputWanted(Input):
    id: str = Field(description="The id of the background task, bg_...")
    offset: int = Field(
        0,
        description="Byte to read from: the number that the last call told. Negative: that many bytes before the end.",
    )


class TaskOutput(GivenTool[OutputWanted]):
    """Reads a background command's output in parts."""

    def __init__(self) -> None:
        super().__init__(
            "task_output",
            "Read what a background task has written so far, both streams in order, and whether it still runs. Long "
            "output comes in parts: each tells the offset of the next. You are notified at the end: do not poll.",
            OutputWanted,
            effect="read",
            concurrency="shared",
            watches=True,
        )

    async def act(self, given: OutputWanted, context: ToolContext) -> ToolOutcome:
        task = _known(given.id, context)
        text, start, end, size = await anyio.to_thread.run_sync(_part, Path(task.output), given.offset)
        lines = [f"[{task.id}: {_status(task)}]"]
        if text:
            lines.append(text.rstrip("\n"))
        more = f" Read on with offset {end}." if end < size else f" Later output starts at offset {end}."
        lines.append(f"[Bytes {start}-{end} of {size}.{more}]" if size else "[No output yet.]")
        return ToolOutcome("\n".join(lines), data={"status": task.status, "offset": end, "size": size})


class Wanted(Input):
    id: str = Field(description="The id of the background task, bg_...")


class TaskStop(GivenTool[Wanted]):
    """Ends a background command and all that it started."""

    def __init__(self) -> None:
        super().__init__(
            "task_stop",
            "End a background task with all that it started. Its output stays readable.",
            Wanted,
            effect="reconcile",
        )

    async def act(self, given: Wanted, context: ToolContext) -> ToolOutcome:
        task = _known(given.id, context)
        if task.status != "running":
            return ToolOutcome(f"{task.id} has ended already: {_status(task)}.")
        alive = await context.launcher.end(task.pid, task.started)
        code = exit_code(Path(task.output))
        if not alive:
            return ToolOutcome(f"{task.id} had just ended by itself{'' if code is None else f', exit code {code}'}.")
        event = BackgroundEnded(at=context.now, id=task.id, status="stopped", exit_code=code)
        return ToolOutcome(f"{task.id} was stopped.", events=(event,), data={"id": task.id, "exit_code": code})


def background_tools() -> tuple[Tool, ...]:
    """The tools of this file."""
    return (TaskOutput(), TaskStop())


def _known(name: str, context: ToolContext) -> BackgroundTask:
    task = context.background.get(name)
    if task is None:
        there = ", ".join(context.background) or "none"
        raise ToolRefused(f"You have no background task {name!r}. There are: {there}")
    return task


def _status(task: BackgroundTask) -> str:
    if task.status == "running":
        code = exit_code(Path(task.output))
        running = code is None and find_process(Path(task.output)) is not None
        return "running" if running else f"ended{'' if code is None else f', exit code {code}'}"
    return task.status + ("" if task.exit_code is None else f", exit code {task.exit_code}")


def _part(path: Path, offset: int) -> tuple[str, int, int, int]:
    """A part of the file as text, where it starts and ends (bytes), and the file's size. Ends between characters."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            file.seek(start)
            data = file.read(PART)
    except FileNotFoundError:
        return "", 0, 0, 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    held_back = len(decoder.getstate()[0])
    if held_back and start + len(data) == size:
        text += decoder.decode(b"", final=True)
        held_back = 0
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}"), start, start + len(data) - held_back, size
