"""Tools for commands: `bash` runs one in its own shell, and either waits for it or runs it in the background.

The effect of a command is unknown, so it is never run twice: after a crash its remaining processes are ended, and the
model is informed that the outcome is unknown. A background command is found again instead. Only the flag makes a
command a background command, or a person who moves a running one there; its text does not matter.

`task_output` reads a background command's output so far or waits for its end, and `task_stop` ends the command.
`bash_output` reads what is new since its last call: a file next to the output holds the part that each call got, so
that a call that runs again after a crash gets the same part. They accept only the agent's own background tasks, which
may also be subagents. The engine sends the notification at the end. A subagent's report reaches the caller once: as
mail, or as the result of the call of `task_output` that was the first to see the end. That call records the end, and
then no mail is sent.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

import anyio
import anyio.to_thread
from pydantic import Field

from callboard.adapters.processes.launcher import exit_code, find_process, was_moved
from callboard.adapters.processes.pids import is_same
from callboard.adapters.tools.base import ToolInput, TypedTool, failed_outcome
from callboard.core.keys import short_id
from callboard.core.team.exit_status import LOST, exit_words, process_of
from callboard.core.team.subagents import report_status, report_text
from callboard.ports.tool import BackgroundTask, CallContext, Finished, Tool, ToolOutcome
from callboard.types.choices import unknown
from callboard.types.errors import ToolRefused
from callboard.types.events import BackgroundEnded, BackgroundStarted
from callboard.types.records import Json

LONGEST_COMMAND = 100_000
"""Most bytes of a command. The kernel accepts no argument over 128 KiB; a longer script belongs in a file."""

_DESCRIPTION = """Run a shell command with bash in your folder and return its output, both streams in order.

Each call is a new shell: a `cd` or variable does not last. Standard input is closed; nothing can be typed. Long output
is cut in the middle and the whole is kept in a file that is named. A command that runs longer than `timeout_s` is ended
with all that it started. For servers, watchers and long builds set `run_in_background`: the call returns at once, a
notification follows at the end, and `task_output` reads the output meanwhile. Never put `&` at the end instead: what a
command leaves behind is ended with it. For files prefer read_file, edit_file, glob and grep."""
PART = 50_000
"""Most bytes that one call returns."""
_OVER = ("stopped", "crashed")


class BashInput(ToolInput):
    """Input of `bash`."""

    command: str = Field(description="The command line, as bash reads it.")
    description: str = Field("", description="What it does, in five to ten words, for the person who looks on.")
    timeout_s: float = Field(
        120, gt=0, le=600, description="Seconds until it is ended. In the background there is no limit unless given."
    )
    run_in_background: bool = Field(False, description="Return at once and go on; only this flag does it.")
    hosts: list[str] = Field(
        [],
        description="Hosts that it must reach and that its words do not tell (`api.example.org`, `name:port`). A "
        "person is asked. Leave it out for npm, pip, git, curl and their like: their hosts are known.",
    )


class Bash(TypedTool[BashInput]):
    """Tool that runs a command; see the module."""

    def __init__(self, background_s: float | None = None) -> None:
        self._background_s = background_s
        super().__init__("bash", _DESCRIPTION, BashInput, effect="unknown")

    def read(self, tool_input: Json) -> BashInput:
        command = super().read(tool_input)
        try:
            encoded = command.command.encode()
        except UnicodeEncodeError:
            raise ToolRefused("bash: command is not valid text (it holds half a surrogate pair)") from None
        if b"\0" in encoded:
            raise ToolRefused("bash: command holds a NUL byte")
        if not encoded.strip():
            raise ToolRefused("bash: command is empty")
        if len(encoded) > LONGEST_COMMAND:
            raise ToolRefused(f"bash: command is over {LONGEST_COMMAND} bytes; write a script file and run that")
        return command

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        command = self.read(tool_input)
        if not context.folders.root.is_dir():
            raise ToolRefused(f"bash: your folder {context.folders.root} no longer exists")
        return {"output": str(_output_file(context, background=command.run_in_background))}

    async def act(self, arguments: BashInput, context: CallContext) -> ToolOutcome:
        output = _output_file(context, background=arguments.run_in_background)
        if arguments.run_in_background:
            return await self._start(arguments, output, context)
        folder = context.folders.root
        moved = anyio.Event()
        with context.foreground.waiting(context.call, moved.set):
            end = await context.launcher.attend(
                arguments.command,
                folder,
                timeout=arguments.timeout_s,
                keep=output,
                grants=context.grants,
                moved=moved,
            )
        return _outcome(end, arguments.timeout_s) if isinstance(end, Finished) else self._moved(arguments, context, end)

    async def _start(self, arguments: BashInput, output: Path, context: CallContext) -> ToolOutcome:
        process = await context.launcher.start(arguments.command, context.folders.root, output, context.grants)
        return self._started(arguments, context, process)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome:
        """End the remaining processes and report that the outcome is unknown; resume watching a background command."""
        command = self.read(tool_input)
        output = _output_file(context, background=command.run_in_background)
        writing = find_process(output)
        if command.run_in_background and (writing or exit_code(output) is not None):
            return self._started(command, context, writing or (0, 0.0))
        if not command.run_in_background and was_moved(output):
            return self._moved(command, context, writing or (0, 0.0))
        alive = writing is not None and await context.launcher.end(*writing)
        note = "It was still running and has been ended. " if alive else ""
        return failed_outcome(
            "The runtime stopped while this command was under way, so its outcome is unknown and it was not run again. "
            f"{note}Look at what it has done before you run it again.{_so_far(output)}"
        )

    def _started(self, arguments: BashInput, context: CallContext, process: tuple[int, float]) -> ToolOutcome:
        requested = arguments.timeout_s if "timeout_s" in arguments.model_fields_set else None
        limits = [limit for limit in (requested, self._background_s) if limit is not None]
        output = _output_file(context, background=True)
        event = _began(arguments, context, process, output=output, limit=min(limits, default=None))
        text = f"[Background task {event.id} started]"
        return ToolOutcome(text, events=(event,), data={"id": event.id, "output": str(output)})

    def _moved(self, arguments: BashInput, context: CallContext, process: tuple[int, float]) -> ToolOutcome:
        """Return the outcome of a command that a person moved to the background: `timeout_s` no longer applies."""
        output = _output_file(context, background=False)
        event = _began(arguments, context, process, output=output, limit=self._background_s)
        event = event.model_copy(update={"moved": True})
        text = (
            f"[A person moved this command to the background. It goes on as background task {event.id}, and its output "
            f"is in {event.output}. You are notified at its end; task_output {event.id} reads what it wrote so far.]"
        )
        return ToolOutcome(text, events=(event,), data={"id": event.id, "output": event.output, "moved": True})


def shell_tools(background_s: float | None = None) -> tuple[Tool, ...]:
    """Return the tools of this module. `background_s`: seconds after which commands in the background are ended."""
    return (Bash(background_s),)


def _output_file(context: CallContext, *, background: bool) -> Path:
    """Return the file for the output, named after the call, so that it can be found after a crash."""
    return context.folders.output_of(_background_id(context) if background else context.call)


def _background_id(context: CallContext) -> str:
    return short_id("bg", context.call)


def _began(
    arguments: BashInput, context: CallContext, process: tuple[int, float], *, output: Path, limit: float | None
) -> BackgroundStarted:
    pid, started = process
    return BackgroundStarted(
        at=context.now,
        id=_background_id(context),
        command=arguments.command,
        pid=pid,
        started=started,
        output=str(output),
        deadline=None if limit is None else context.now + limit,
        boot=context.launcher.boot,
        authority=context.authority,
    )


def _outcome(finished: Finished, timeout: float) -> ToolOutcome:
    """Return the outcome for the model. A failed command is an error result: exit 3 is not success."""
    last = ""
    if finished.timed_out:
        last = f"[Timed out after {timeout:g} s: the command and all that it started were ended.]"
    elif finished.exit_code is None:
        last = "[The command was ended from outside; its exit code is not known.]"
    elif finished.exit_code:
        last = exit_words(finished.exit_code)
    output = finished.output.rstrip("\n")
    text = "\n".join(part for part in (output, last) if part) or "(no output)"
    data: Json = {
        "exit_code": finished.exit_code,
        "timed_out": finished.timed_out,
        "cut": finished.cut,
        "characters": finished.characters,
        "whole": finished.whole,
    }
    notices = (finished.report,) if finished.report else ()
    return ToolOutcome(text, is_error=finished.timed_out or finished.exit_code != 0, data=data, notices=notices)


def _so_far(output: Path, most: int = 4_000) -> str:
    """Return the end of a command's output up to the crash."""
    try:
        with output.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            text = file.read().decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}").strip()
    except OSError:
        return ""
    return f"\nIts last output was:\n{text}" if text else ""


class TaskOutputInput(ToolInput):
    """Input of `task_output`."""

    id: str = Field(description="The id of the background task")
    offset: int = Field(
        0,
        description="Byte to read from: the number that the last call told. Negative: that many bytes before the end.",
    )
    block: bool = Field(False, description="Wait for the end, at most timeout_s.")
    timeout_s: float = Field(30, gt=0, le=600, description="Seconds to wait with block.")


class TaskOutput(TypedTool[TaskOutputInput]):
    """Tool that reads a background command's output in parts, or the report of a subagent in the background."""

    def __init__(self) -> None:
        super().__init__(
            "task_output",
            "Read what a background task has written so far, both streams in order, and whether it still runs; of a "
            "subagent, its report once it has ended. Long output comes in parts: each tells the offset of the next. "
            "You are notified at the end: do not poll. With block it waits, for when you cannot go on without it.",
            TaskOutputInput,
            effect="read",
            concurrency="shared",
            watches=True,
        )

    async def act(self, arguments: TaskOutputInput, context: CallContext) -> ToolOutcome:
        task = _task_named(arguments.id, context)
        wait_s = arguments.timeout_s if arguments.block else 0
        if task.agent:
            return await _agent_output(task, wait_s, context)
        if wait_s and task.status == "running":
            process = process_of(task.pid, task.started, task.boot, context.launcher.boot)
            with anyio.move_on_after(wait_s):
                await context.launcher.wait(*process, Path(task.output))
        part = await anyio.to_thread.run_sync(_part, Path(task.output), arguments.offset)
        status = _status(task, context.launcher.boot)
        if part is None:
            return ToolOutcome(_without_output(task, status), data={"status": task.status, "offset": 0, "size": 0})
        text, start, end, size = part
        lines = [f"[{task.id}: {status}]"]
        if text:
            lines.append(text.rstrip("\n"))
        hint = f" Read on with offset {end}." if end < size else f" Later output starts at offset {end}."
        lines.append(f"[Bytes {start}-{end} of {size}.{hint}]" if size else "[No output yet.]")
        return ToolOutcome("\n".join(lines), data={"status": task.status, "offset": end, "size": size})


LOOKED = ".look"
"""Suffix of the file with the part of an output that the last call of `bash_output` got."""
FILTERED = 1_000_000
"""Most bytes of output that one call filters."""
Matching = Callable[[str, str], Awaitable[Sequence[int]]]
"""Function (text, regular expression) that returns the numbers of the matching lines, from 1. Raises ValueError for an
invalid expression."""


class BashOutputInput(ToolInput):
    """Input of `bash_output`."""

    id: str = Field(description="The id of the background task, bg_...")
    filter: str = Field(
        "", description="A regular expression. Only matching lines are returned; the others are skipped."
    )


class BashOutput(TypedTool[BashOutputInput]):
    """Tool that reads the output of a background command since the last call."""

    def __init__(self, matching: Matching) -> None:
        self._matching = matching
        super().__init__(
            "bash_output",
            "Read what a background task has written since you last called this, and whether it still runs. You are "
            "notified at the end: do not poll.",
            BashOutputInput,
            effect="read",
            concurrency="own",
            watches=True,
        )

    async def act(self, arguments: BashOutputInput, context: CallContext) -> ToolOutcome:
        task = _task_named(arguments.id, context)
        if task.agent:
            return await _agent_output(task, 0, context)
        output = Path(task.output)
        status = _status(task, context.launcher.boot)
        part = await anyio.to_thread.run_sync(partial(_new_part, output, context.call, status, bool(arguments.filter)))
        if part is None:
            return ToolOutcome(_without_output(task, status))
        text, start, end, size = part
        lines = await self._fitting(text, arguments.filter) if arguments.filter else [text.rstrip("\n")] * bool(text)
        await anyio.to_thread.run_sync(_write_look, output, {"call": context.call, "start": start, "end": end})
        note = f"Bytes {start}-{end} of {size}." if end > start else "Nothing new."
        hint = " There is more: call again." if end - start > PART // 2 and end < size else ""
        rows = [f"[{task.id}: {status}]", *lines, f"[{note}{hint}]"]
        return ToolOutcome("\n".join(rows), data={"status": task.status, "offset": end, "size": size})

    async def _fitting(self, text: str, pattern: str) -> list[str]:
        """Return the matching lines, and a line that counts those that do not fit into an answer."""
        try:
            numbers = await self._matching(text, pattern) if text else ()
        except ValueError as wrong:
            raise ToolRefused(f"filter is not a regular expression: {wrong}") from wrong
        lines = text.split("\n")
        fitting = [lines[number - 1] for number in sorted(numbers) if number <= len(lines)]
        sizes = accumulate(len(line) + 1 for line in fitting)
        whole = [line for line, size in zip(fitting, sizes, strict=True) if size <= PART]
        cut = [f"[{len(fitting) - len(whole)} more lines match.]"] if len(whole) < len(fitting) else []
        return [*whole, *cut]


def _new_part(output: Path, call: str, status: str, filtered: bool) -> tuple[str, int, int, int] | None:
    """Return the part of an output that this call gets; see `_part`. A filter gets more, in whole lines."""
    start = _first_new_byte(output, call)
    if not filtered:
        return _part(output, start)
    return _part(output, start, FILTERED, whole_lines=True, grows=status == "running")


def _first_new_byte(output: Path, call: str) -> int:
    """Return the end of the last part that was read; its start if this call read it, and runs again after a crash."""
    try:
        look = json.loads(output.with_name(output.name + LOOKED).read_text())
        return int(look["start"] if look["call"] == call else look["end"])
    except (OSError, ValueError, TypeError, KeyError):
        return 0


def _write_look(output: Path, look: Json) -> None:
    path = output.with_name(output.name + LOOKED)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(look))
    part.replace(path)


class TaskStopInput(ToolInput):
    """Input of `task_stop`."""

    id: str = Field(description="The id of the background task")


class TaskStop(TypedTool[TaskStopInput]):
    """Tool that ends a background command and all processes that it started, or a subagent in the background."""

    def __init__(self) -> None:
        super().__init__(
            "task_stop",
            "End a background task, a command or a subagent, with all that it started. Its output stays readable.",
            TaskStopInput,
            effect="reconcile",
        )

    async def act(self, arguments: TaskStopInput, context: CallContext) -> ToolOutcome:
        task = _task_named(arguments.id, context)
        if task.agent:
            return _agent_stop(task, context)
        boot = context.launcher.boot
        if task.status != "running":
            return ToolOutcome(f"{task.id} has ended already: {_status(task, boot)}.")
        alive = await context.launcher.end(*process_of(task.pid, task.started, task.boot, boot))
        code = exit_code(Path(task.output))
        if not alive:
            return ToolOutcome(f"{task.id} had just ended by itself, {exit_words(code)}.")
        event = BackgroundEnded(at=context.now, id=task.id, status="stopped", exit_code=code)
        return ToolOutcome(f"{task.id} was stopped.", events=(event,), data={"id": task.id, "exit_code": code})


def background_tools(matching: Matching | None = None) -> tuple[Tool, ...]:
    """Return the tools for background commands. `matching`: needed for `bash_output`, which is absent without it."""
    return (TaskOutput(), TaskStop(), *((BashOutput(matching),) if matching else ()))


def _task_named(name: str, context: CallContext) -> BackgroundTask:
    task = context.background.get(name)
    if task is None:
        raise ToolRefused(unknown("background task", name, context.background, where="of yours"))
    return task


def _without_output(task: BackgroundTask, status: str) -> str:
    return f"[{task.id}: {status}]\n[The output file {task.output} does not exist.]"


def _status(task: BackgroundTask, boot: str) -> str:
    if task.status == "lost":
        return f"lost, {LOST}"
    if task.status != "running":
        return task.status + ("" if task.exit_code is None else f", {exit_words(task.exit_code)}")
    code = exit_code(Path(task.output))
    process = process_of(task.pid, task.started, task.boot, boot)
    running = code is None and (is_same(*process) or find_process(Path(task.output)) is not None)
    return "running" if running else f"ended, {exit_words(code)}"


def _part(
    path: Path, offset: int, most: int = PART, *, whole_lines: bool = False, grows: bool = False
) -> tuple[str, int, int, int] | None:
    """Return a part of the file as text, its start and end in bytes, and the file's size; None if there is no file.

    The part ends between characters. `whole_lines`: between lines, unless a line has more than `most` bytes; the last
    line of a file that `grows` may be incomplete.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            file.seek(start)
            data = file.read(most)
            if whole_lines and (grows or start + len(data) < size):
                last = data.rfind(b"\n") + 1
                data = data[:last] if last or len(data) < most else data
    except FileNotFoundError:
        return None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    held_back = len(decoder.getstate()[0])
    if held_back and start + len(data) == size:
        text += decoder.decode(b"", final=True)
        held_back = 0
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}"), start, start + len(data) - held_back, size


# Subagents in the background


async def _agent_output(task: BackgroundTask, wait_s: float, context: CallContext) -> ToolOutcome:
    """Return the report of a subagent, or its state. Waits up to `wait_s` seconds for its end; 0: not at all."""
    ended: tuple[str, str] | None = None
    if _is_over(task, context):
        ended = await context.spawner.ended(task.agent)
    elif wait_s:
        with anyio.move_on_after(wait_s):
            ended = await context.spawner.ended(task.agent)
    if ended is None:
        state = "running" if task.status == "running" else f"{task.status}, and about to end"
        return ToolOutcome(f"[{task.id}: {state}]", data={"status": task.status})
    outcome, text = ended
    status = report_status(outcome) if task.status == "running" else task.status
    seen = BackgroundEnded(at=context.now, id=task.id, status=report_status(outcome), agent=task.agent)
    events = (seen,) if task.status == "running" else ()
    report = f"[{task.id}: {status}]\n{report_text(outcome, text)}"
    return ToolOutcome(report, events=events, data={"status": status, "outcome": outcome})


def _agent_stop(task: BackgroundTask, context: CallContext) -> ToolOutcome:
    """Order a subagent to stop, in the commit of the result. No report follows."""
    if task.status != "running":
        return ToolOutcome(f"{task.id} has ended already: {task.status}.")
    if _is_over(task, context):
        return ToolOutcome(f"{task.id} had just ended by itself. Its report follows as a message.")
    event = BackgroundEnded(at=context.now, id=task.id, status="stopped", agent=task.agent)
    writes = context.spawner.stop_writes(task.agent)
    return ToolOutcome(f"{task.id} was stopped.", writes=writes, events=(event,), data={"id": task.id})


def _is_over(task: BackgroundTask, context: CallContext) -> bool:
    match = context.board.agent(task.agent)
    return match is not None and match[0].life in _OVER
