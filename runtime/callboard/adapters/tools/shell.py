"""The `bash` tool: one command in its own shell, waited for or in the background.

Its effect is unknown, so it is never run twice: after a crash its remaining processes are ended, and the model is
informed that the outcome is unknown. A background command is found again instead. Only the flag makes a command a
background command; nothing is derived from its text.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from callboard.adapters.processes.launcher import exit_code, find_process
from callboard.adapters.tools.base import GivenTool, Input, failed
from callboard.core.keys import short_id
from callboard.core.team.exit_status import exit_words
from callboard.ports.tool import CallContext, Finished, Tool, ToolOutcome
from callboard.types.errors import ToolRefused
from callboard.types.events import BackgroundStarted
from callboard.types.records import Json

LONGEST_COMMAND = 100_000
"""Most bytes of a command. The kernel accepts no argument over 128 KiB; a longer script belongs in a file."""

_DESCRIPTION = """Run a shell command with bash in your folder and return its output, both streams in order.

Each call is a new shell: a `cd` or variable does not last. Standard input is closed; nothing can be typed. Long output
is cut in the middle and the whole is kept in a file that is named. A command that runs longer than `timeout_s` is ended
with all that it started. For servers, watchers and long builds set `run_in_background`: the call returns at once, a
notification follows at the end, and `task_output` reads the output meanwhile. Never put `&` at the end instead: what a
command leaves behind is ended with it. For files prefer read_file, edit_file, glob and grep."""


class BashInput(Input):
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


class Bash(GivenTool[BashInput]):
    """Tool that runs a command; see the module."""

    def __init__(self) -> None:
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
            raise ToolRefused(f"bash: your folder {context.folders.root} does not exist any more")
        return {"output": str(_output_file(context, background=command.run_in_background))}

    async def act(self, arguments: BashInput, context: CallContext) -> ToolOutcome:
        output = _output_file(context, background=arguments.run_in_background)
        if arguments.run_in_background:
            return await self._start(arguments, output, context)
        folder = context.folders.root
        finished = await context.launcher.run(
            arguments.command, folder, timeout=arguments.timeout_s, keep=output, grants=context.grants
        )
        return _outcome(finished, arguments.timeout_s)

    async def _start(self, arguments: BashInput, output: Path, context: CallContext) -> ToolOutcome:
        pid, started = await context.launcher.start(arguments.command, context.folders.root, output, context.grants)
        return _started(arguments, context, (pid, started), output)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome:
        """End the remaining processes and report that the outcome is unknown; resume watching a background command."""
        command = self.read(tool_input)
        output = _output_file(context, background=command.run_in_background)
        writing = find_process(output)
        if command.run_in_background and (writing or exit_code(output) is not None):
            return _started(command, context, writing or (0, 0.0), output)
        alive = writing is not None and await context.launcher.end(*writing)
        note = "It was still running and has been ended. " if alive else ""
        return failed(
            "The runtime stopped while this command was under way, so its outcome is unknown and it was not run again. "
            f"{note}Look at what it has done before you run it again.{_so_far(output)}"
        )


def shell_tools() -> tuple[Tool, ...]:
    """Return the tools of this module."""
    return (Bash(),)


def _output_file(context: CallContext, *, background: bool) -> Path:
    """Return the file for the output, named after the call, so that it can be found after a crash.

    Its suffix is not `.txt`, which the context pipeline uses for results in files.
    """
    return context.folders.tool_results / f"{_background_id(context) if background else context.call}.out"


def _background_id(context: CallContext) -> str:
    return short_id("bg", context.call)


def _started(arguments: BashInput, context: CallContext, process: tuple[int, float], output: Path) -> ToolOutcome:
    pid, started = process
    deadline = context.now + arguments.timeout_s if "timeout_s" in arguments.model_fields_set else None
    name = _background_id(context)
    event = BackgroundStarted(
        at=context.now,
        id=name,
        command=arguments.command,
        pid=pid,
        started=started,
        output=str(output),
        deadline=deadline,
        boot=context.launcher.boot,
        authority=context.authority,
    )
    text = f"[Background task {name} started]"
    return ToolOutcome(text, events=(event,), data={"id": name, "output": str(output)})


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
