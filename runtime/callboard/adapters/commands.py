"""Hooks that are commands: one process for one event, told in JSON on its standard input, heard by its exit code.

It runs with the person's rights in the agent's folder, in a session of its own, with an environment without
credentials. Out of time or cancelled, that whole session is killed; what made a session of its own before is not found.
A process that it leaves behind when it ends in time goes on, as such hooks expect, but is waited for no longer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE

import anyio
from anyio.abc import ByteReceiveStream, Process

from callboard.adapters.processes import kill_session
from callboard.adapters.programs import clean_environment, find_program
from callboard.core.hooks.output import output_meaning
from callboard.words.hooks import HandlerResult
from callboard.words.values import Json

MOST_BYTES = 1_000_000
"""Kept of each stream; what comes after is read and dropped, so that the command never blocks on it."""
LINGER = 0.5
"""Seconds that the streams have to end after the command has: somebody else may hold them open."""


@dataclass(frozen=True, slots=True)
class CommandHandler:
    """A `HookHandler` that runs a command. Equal ones are the same hook, whichever file they come from."""

    command: str
    """A line for bash; with `args` the program itself."""
    project: str
    """The workspace, absolute: `CLAUDE_PROJECT_DIR`, also where the agent works in a worktree."""
    args: tuple[str, ...] | None = None
    timeout: float | None = None
    root: str = ""
    """`CLAUDE_PLUGIN_ROOT`: the folder of the bundle that brings the hook along; empty: there is none."""
    environment: Mapping[str, str] | None = field(default=None, compare=False)
    """What it knows besides; None: what `clean_environment` lets pass of ours."""

    @property
    def name(self) -> str:
        """The command on one line, cut."""
        line = " ".join((self.command, *(self.args or ())))
        shown = " ".join(line.split())
        return shown if len(shown) <= 60 else shown[:59] + "…"

    async def run(self, event_json: Json, timeout: float) -> HandlerResult:
        """Run it once. See `HookHandler.run`."""
        try:
            with anyio.move_on_after(timeout):
                ended = await self._ran(event_json)
                return output_meaning(event_json, *ended)
        except (OSError, ValueError) as error:  # no such program or folder; a NUL in a word
            return HandlerResult(fault=f"cannot be started: {error}")
        return HandlerResult(fault=f"no answer within {timeout:g} s")

    async def _ran(self, event_json: Json) -> tuple[int, str, str]:
        """Its exit code (-N after signal N), and what it wrote to both streams."""
        process: Process | None = None
        with anyio.CancelScope(shield=True):  # cancelled in the middle of starting, it would live on unknown to us
            process = await anyio.open_process(
                self._words(),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                cwd=str(event_json["cwd"]),
                env=self._environment(),
                start_new_session=True,
            )
        assert process is not None
        try:
            return await _followed(process, json.dumps(event_json).encode())
        except BaseException:
            kill_session(process.pid)
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await _closed(process)

    def _words(self) -> list[str]:
        if self.args is None:
            return [find_program("bash", Path(self.project)) or "/bin/sh", "-c", self.command]
        program, *rest = (self._filled(word) for word in (self.command, *self.args))
        if "/" not in program:
            found = find_program(program, Path(self.project))
            if found is None:
                raise FileNotFoundError(f"no program {program!r} on the PATH outside the workspace")
            program = found
        return [program, *rest]

    def _filled(self, word: str) -> str:
        for name, value in self._places().items():
            word = word.replace("${" + name + "}", value)
        return word

    def _places(self) -> dict[str, str]:
        places = {"CLAUDE_PROJECT_DIR": self.project}
        return places | {"CLAUDE_PLUGIN_ROOT": self.root} if self.root else places

    def _environment(self) -> dict[str, str]:
        known = clean_environment(os.environ) if self.environment is None else self.environment
        return {**known, **self._places()}


class _Heard:
    """What one stream said, up to `MOST_BYTES`."""

    def __init__(self, stream: ByteReceiveStream) -> None:
        self._stream = stream
        self._said = bytearray()
        self.ended = anyio.Event()

    async def listen(self) -> None:
        """Read to the end."""
        try:
            async for piece in self._stream:
                self._said += piece[: MOST_BYTES - len(self._said)]
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # closed at our end, or reset: what came until then is what there is
        finally:
            self.ended.set()

    def text(self) -> str:
        return self._said.decode("utf-8", "replace")


async def _followed(process: Process, told: bytes) -> tuple[int, str, str]:
    """Tell it the event, and hear it out until it ends."""
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = _Heard(process.stdout), _Heard(process.stderr)
    code: int | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(_tell, process, told)
        group.start_soon(out.listen)
        group.start_soon(err.listen)
        code = await process.wait()
        with anyio.move_on_after(LINGER):
            await out.ended.wait()
            await err.ended.wait()
        group.cancel_scope.cancel()
    assert code is not None
    return code, out.text(), err.text()


async def _tell(process: Process, told: bytes) -> None:
    assert process.stdin is not None
    try:
        await process.stdin.send(told)
        await process.stdin.aclose()
    except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        return  # many commands end without reading what they were told


async def _closed(process: Process) -> None:
    """Close our ends and take its exit status."""
    try:
        await process.aclose()
    except OSError:
        await process.wait()  # what it never read cannot be written any more
