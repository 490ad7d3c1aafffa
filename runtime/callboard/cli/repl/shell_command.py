"""Command that a person types after `!`: it runs in their shell, in parallel with the turn, and the lead reads its
output.

It is the person's own command, so no permission rule or sandbox applies. It has no keyboard, and ends with the prompt
line at the latest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

import anyio
from anyio.abc import Process

from callboard.adapters.processes.pids import kill_session
from callboard.adapters.system.open_files import give_back
from callboard.cli.terminal.terminal import Block, Line, block
from callboard.core.messaging.envelopes import tagged

READ = 10_000
"""Most characters of an output that the lead reads: its beginning and its end."""
_SHOWN = 200
"""Most lines of an output that are shown: the last ones."""
_MOST_BYTES = 1_000_000
_LINGER = 0.5
"""Seconds to wait for the end of the output after the command has ended: a program in the background may keep
it open."""


@dataclass(frozen=True, slots=True)
class ShellResult:
    """Command that has ended."""

    command: str
    output: str
    exit_code: int
    """Exit code; the negative signal number if the command was killed."""

    def output_block(self) -> Block:
        """Return the output for the person."""
        lines = self.output.rstrip("\n").split("\n") if self.output.strip() else []
        cut = [Line(f"[{len(lines) - _SHOWN} lines above are not shown]", "dim")] if len(lines) > _SHOWN else []
        printed = block("\n".join(lines[-_SHOWN:])).lines if lines else ()
        code = [Line(f"exit code {self.exit_code}", "warn")] if self.exit_code else []
        return Block((*cut, *printed, *code)) if lines or code else block("(no output)", "dim")

    def message(self) -> str:
        """Return the message for the lead."""
        half = READ // 2
        cut = f"{self.output[:half]}\n[{len(self.output) - READ} characters left out]\n{self.output[-half:]}"
        text = self.output.rstrip("\n") if len(self.output) <= READ else cut
        head = "The person ran this command in a shell of their own. It is for your information:"
        return f"{head}\n" + tagged("piped-input", text, command=self.command, exit_code=str(self.exit_code))


async def run_line(command: str, folder: Path) -> ShellResult:
    """Run a command in the person's shell. When cancelled, it is killed with all processes that it started. Raises
    `OSError`."""
    shell = os.environ.get("SHELL") or "/bin/sh"
    process: Process | None = None
    with anyio.CancelScope(shield=True):  # cancelled in the middle of starting, it would live on unknown to us
        process = await anyio.open_process(
            [shell, "-c", command], stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, cwd=folder, start_new_session=True
        )
    assert process is not None
    give_back(process.pid)
    output = bytearray()
    try:
        code = await _followed(process, output)
    except BaseException:
        kill_session(process.pid)
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await process.aclose()
    return ShellResult(command, output.decode("utf-8", "replace"), code)


async def _followed(process: Process, output: bytearray) -> int:
    """Read the output until the command has ended; return its exit code."""
    code: list[int] = []
    async with anyio.create_task_group() as group:

        async def read() -> None:
            assert process.stdout is not None
            async for piece in process.stdout:
                output.extend(piece[: _MOST_BYTES - len(output)])
            ended.set()

        ended = anyio.Event()
        group.start_soon(read)
        code.append(await process.wait())
        with anyio.move_on_after(_LINGER):
            await ended.wait()
        group.cancel_scope.cancel()
    return code[0]
