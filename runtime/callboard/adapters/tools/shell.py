"""The `bash` tool: one shell command in a shell of its own, waited for or in the background.

Its effect is unknown to us, so it is never run twice: after a crash what still runs of it is ended, and the model is
told that the outcome is unknown. A background command is found again instead. Nothing is guessed from the command:
only the flag makes it a background command.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from callboard.adapters.launcher import exit_code, find_process
from callboard.adapters.tools.base import GivenTool, failed
from callboard.adapters.tools.store_tool import Input
from callboard.core.names import short_id
from callboard.core.team.exits import exit_words
from callboard.ports.tool import Finished, Tool, ToolContext, ToolOutcome
from callboard.words.errors import ToolRefused
from callboard.words.events import BackgroundStarted
from callboard.words.values import Json

LONGEST_COMMAND = 100_000
"""Bytes. The kernel takes no argument over 128 KiB; a longer script belongs into a file."""

_DESCRIPTION = """Run a shell command with bash in your folder and return its output, both streams in order.

Each call is a new shell: a `cd` or variable does not last. Standard input is closed; nothing can be typed. Long output
is cut in the middle and the whole is kept in a file that is named. A command that runs longer than `timeout_s` is ended
with all that it started. For servers, watchers and long builds set `run_in_background`: the call returns at once, a
notification follows at the end, and `task_output` reads the output meanwhile. Never put `&` at the end instead: what a
command leaves behind is ended with it. For files prefer read_file, edit_file, glob and grep."""


class Command(Input):
    command: str = Field(description="The command line, as bash reads it.")
    description: str = Field("", description="What it does, in five to ten words, for the person who looks on.")
    timeout_s: float = Field(
        120, gt=0, le=600, description="Seconds until it is ended. In the background there is no limit unless given."
    )
    run_in_background: bool = Field(False, description="Return at once and go on; only this flag does it.")


class Bash(GivenTool[Command]):
    """See the module."""

    def __init__(self) -> None:
        super().__init__("bash", _DESCRIPTION, Command, effect="unknown")

    def read(self, given: Json) -> Command:
        command = super().read(given)
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

    async def prepare(self, given: Json, context: ToolContext) -> Json:
        command = self.read(given)
        if not context.folders.root.is_dir():
            raise ToolRefused(f"bash: your folder {context.folders.root} does not exist any more")
        return {"output": str(_output_file(context, background=command.run_in_background))}

    async def act(self, given: Command, context: ToolContext) -> ToolOutcome:
        output = _output_file(context, background=given.run_in_background)
        if given.run_in_background:
            return await self._start(given, output, context)
        finished = await context.launcher.run(given.command, context.folders.root, given.timeout_s, output)
        return _told(finished, given.timeout_s)

    async def _start(self, given: Command, output: Path, context: ToolContext) -> ToolOutcome:
        pid, started = await context.launcher.start(given.command, context.folders.root, output)
        return _started(given, context, (pid, started), output)

    async def repair(self, given: Json, marks: Json, context: ToolContext) -> ToolOutcome:
        """End what still runs and say that nobody knows what came of it; a background command is taken up again."""
        command = self.read(given)
        output = _output_file(context, background=command.run_in_background)
        writing = find_process(output)
        if command.run_in_background and (writing or exit_code(output) is not None):
            return _started(command, context, writing or (0, 0.0), output)
        alive = writing is not None and await context.launcher.end(*writing)
        said = "It was still running and has been ended. " if alive else ""
        return failed(
            "The runtime stopped while this command was under way, so its outcome is unknown and it was not run again. "
            f"{said}Look at what it has done before you run it again.{_so_far(output)}"
        )


def shell_tools() -> tuple[Tool, ...]:
    """The tools of this file."""
    return (Bash(),)


def _output_file(context: ToolContext, *, background: bool) -> Path:
    """Where the output goes: it follows from the call, so that it is found after a crash.

    Not `.txt`: that is the name of a result that the context pipeline has put aside.
    """
    return context.folders.tool_results / f"{_background_id(context) if background else context.call}.out"


def _background_id(context: ToolContext) -> str:
    return short_id("bg", context.call)


def _started(given: Command, context: ToolContext, process: tuple[int, float], output: Path) -> ToolOutcome:
    pid, started = process
    deadline = context.now + given.timeout_s if "timeout_s" in given.model_fields_set else None
    name = _background_id(context)
    event = BackgroundStarted(
        at=context.now,
        id=name,
        command=given.command,
        pid=pid,
        started=started,
        output=str(output),
        deadline=deadline,
        boot=context.launcher.boot,
        authority=context.authority,
    )
    text = f"[Background task {name} started]"
    return ToolOutcome(text, events=(event,), data={"id": name, "output": str(output)})


def _told(finished: Finished, timeout: float) -> ToolOutcome:
    """What the model reads. A command that failed is an error result: exit 3 is not done."""
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
    return ToolOutcome(text, is_error=finished.timed_out or finished.exit_code != 0, data=data)


def _so_far(output: Path, most: int = 4_000) -> str:
    """The end of what a command had written when it was cut off."""
    try:
        with output.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            text = file.read().decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}").strip()
    except OSError:
        return ""
    return f"\nIts last output was:\n{text}" if text else ""
