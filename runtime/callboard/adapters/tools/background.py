"""`task_output` and `task_stop`: read a background command's output so far, and end the command.

They accept only the agent's own background commands. The engine sends the notification at the end.
"""

from __future__ import annotations

import codecs
from pathlib import Path

import anyio.to_thread
from pydantic import Field

from callboard.adapters.processes.launcher import exit_code, find_process
from callboard.adapters.processes.pids import is_same
from callboard.adapters.tools.base import GivenTool, Input
from callboard.core.team.exit_status import LOST, exit_words, process_of
from callboard.ports.tool import BackgroundTask, CallContext, Tool, ToolOutcome
from callboard.types.errors import ToolRefused
from callboard.types.events import BackgroundEnded

PART = 50_000
"""Most bytes that one call returns."""


class OutputWanted(Input):
    id: str = Field(description="The id of the background task, bg_...")
    offset: int = Field(
        0,
        description="Byte to read from: the number that the last call told. Negative: that many bytes before the end.",
    )


class TaskOutput(GivenTool[OutputWanted]):
    """Tool that reads a background command's output in parts."""

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

    async def act(self, arguments: OutputWanted, context: CallContext) -> ToolOutcome:
        task = _task_named(arguments.id, context)
        part = await anyio.to_thread.run_sync(_part, Path(task.output), arguments.offset)
        status = _status(task, context.launcher.boot)
        if part is None:
            text = f"[{task.id}: {status}]\n[There is no output file {task.output} (any more).]"
            return ToolOutcome(text, data={"status": task.status, "offset": 0, "size": 0})
        text, start, end, size = part
        lines = [f"[{task.id}: {status}]"]
        if text:
            lines.append(text.rstrip("\n"))
        hint = f" Read on with offset {end}." if end < size else f" Later output starts at offset {end}."
        lines.append(f"[Bytes {start}-{end} of {size}.{hint}]" if size else "[No output yet.]")
        return ToolOutcome("\n".join(lines), data={"status": task.status, "offset": end, "size": size})


class TaskStopInput(Input):
    id: str = Field(description="The id of the background task, bg_...")


class TaskStop(GivenTool[TaskStopInput]):
    """Tool that ends a background command and all processes that it started."""

    def __init__(self) -> None:
        super().__init__(
            "task_stop",
            "End a background task with all that it started. Its output stays readable.",
            TaskStopInput,
            effect="reconcile",
        )

    async def act(self, arguments: TaskStopInput, context: CallContext) -> ToolOutcome:
        task = _task_named(arguments.id, context)
        boot = context.launcher.boot
        if task.status != "running":
            return ToolOutcome(f"{task.id} has ended already: {_status(task, boot)}.")
        alive = await context.launcher.end(*process_of(task.pid, task.started, task.boot, boot))
        code = exit_code(Path(task.output))
        if not alive:
            return ToolOutcome(f"{task.id} had just ended by itself, {exit_words(code)}.")
        event = BackgroundEnded(at=context.now, id=task.id, status="stopped", exit_code=code)
        return ToolOutcome(f"{task.id} was stopped.", events=(event,), data={"id": task.id, "exit_code": code})


def background_tools() -> tuple[Tool, ...]:
    """Return the tools of this module."""
    return (TaskOutput(), TaskStop())


def _task_named(name: str, context: CallContext) -> BackgroundTask:
    task = context.background.get(name)
    if task is None:
        names = ", ".join(context.background) or "none"
        raise ToolRefused(f"You have no background task {name!r}. There are: {names}")
    return task


def _status(task: BackgroundTask, boot: str) -> str:
    if task.status == "lost":
        return f"lost, {LOST}"
    if task.status != "running":
        return task.status + ("" if task.exit_code is None else f", {exit_words(task.exit_code)}")
    code = exit_code(Path(task.output))
    process = process_of(task.pid, task.started, task.boot, boot)
    running = code is None and (is_same(*process) or find_process(Path(task.output)) is not None)
    return "running" if running else f"ended, {exit_words(code)}"


def _part(path: Path, offset: int) -> tuple[str, int, int, int] | None:
    """Return a part of the file as text, its start and end in bytes, and the file's size; None if there is no file. It
    ends between characters."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            file.seek(start)
            data = file.read(PART)
    except FileNotFoundError:
        return None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    held_back = len(decoder.getstate()[0])
    if held_back and start + len(data) == size:
        text += decoder.decode(b"", final=True)
        held_back = 0
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}"), start, start + len(data) - held_back, size
