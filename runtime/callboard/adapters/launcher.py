"""The launcher: starts the commands of tools behind their walls, and sees to it that nothing of them is left over.

Each command has a process of its own between it and the runtime (`launch_child.py`), which leads its session, collects
its output and ends all of its kind. So the runtime waits on one descriptor, reads no stream, and may be killed at any
instant: a foreground command then ends, a background one goes on and leaves its exit code.
What may run was judged before; what it may do is the sandbox's (docs/sandbox.md). Refuses to run anything where the
sandbox that was asked for is not to be had. Level L0 is no boundary; docs/tools.md says what it stops.
"""

from __future__ import annotations

import codecs
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread

from callboard.adapters.processes import is_same, kill_session, open_pid, reap, started_at, this_boot
from callboard.adapters.programs import TOOL_MARK, clean_environment, find_program
from callboard.adapters.sandbox.levels import Limits
from callboard.adapters.sandbox.sandbox import Sandbox
from callboard.ports.tool import Finished
from callboard.words.errors import ToolRefused

SHOWN = 50_000
"""Characters of an output that are shown: half from its beginning, half from its end."""
WHOLE = 1 << 30
"""Bytes of an output that are kept in its file; what follows is counted and dropped."""
_CHILD = str(Path(__file__).with_name("launch_child.py"))
_CONTROL, _NOT_RUN = 3, 125
_PATIENCE = 5.0
"""Seconds that our own process gets to end its command (TERM, 2 s, KILL) before it is killed itself."""


@dataclass(frozen=True, slots=True)
class ShellLauncher:
    """The `Launcher` of a workspace. `environment` is the person's, before the allow-list; `extra` names pass too."""

    workspace: Path
    environment: Mapping[str, str]
    extra: tuple[str, ...] = ()
    sandbox: Sandbox = field(default_factory=Sandbox)
    """What stands round the commands; left out: level L0."""

    @property
    def level(self) -> int:
        """The level in force, 0 to 3."""
        return self.sandbox.level

    @property
    def network(self) -> bool:
        """Whether commands reach anything outside of themselves."""
        return self.sandbox.network

    @property
    def boot(self) -> str:
        return this_boot()

    async def run(self, command: str, folder: Path, timeout: float, keep: Path) -> Finished:
        """See the port. The output stands in `keep` while the command runs, and stays there if it had to be cut."""
        pid, control = await self._spawn(command, folder, keep, "hold")
        watched = os.pidfd_open(pid)
        timed_out, code = False, None
        try:
            _let_go(control)
            with anyio.move_on_after(timeout) as scope:
                await anyio.wait_readable(watched)
            timed_out = scope.cancelled_caught
        finally:
            os.close(control)
            with anyio.CancelScope(shield=True):
                await _ended(watched)
                code = reap(pid)
                await anyio.to_thread.run_sync(_sweep, pid, keep)
        return await anyio.to_thread.run_sync(_read_back, keep, code, timed_out)

    async def start(self, command: str, folder: Path, output: Path) -> tuple[int, float]:
        """See the port. `<output>.pid` names the process from before the command runs until it has ended."""
        pid, control = await self._spawn(command, folder, output, "free")
        try:
            started = _start_of(pid)
            _let_go(control)
        finally:
            os.close(control)
        return pid, started

    async def wait(self, pid: int, started: float, output: Path) -> int | None:
        """See the port. Cancelling the wait leaves the command alone."""
        watched, code = open_pid(pid, started), None
        if watched is not None:
            try:
                await anyio.wait_readable(watched)
            finally:
                os.close(watched)
            code = reap(pid)
        if pid > 0:
            await anyio.to_thread.run_sync(_sweep, pid, output, "" if watched is not None else f"{TOOL_MARK}=1")
        noted = exit_code(output)
        # A full disk: what our own child told us then counts, but for what its own end by a signal looks like.
        return code if noted is None and code is not None and code < _NOT_RUN else noted

    async def end(self, pid: int, started: float) -> bool:
        """See the port. Also ends what the process left in its session, should it have been killed itself."""
        watched = open_pid(pid, started)
        if watched is None:
            return False
        with anyio.CancelScope(shield=True):
            _tell(watched, signal.SIGTERM)
            await _ended(watched)
            reap(pid)
            await anyio.to_thread.run_sync(kill_session, pid)
        return True

    async def _spawn(self, command: str, folder: Path, output: Path, mode: Literal["hold", "free"]) -> tuple[int, int]:
        """Our process for a command, which waits for its go: its pid, and the descriptor to say it on."""
        if self.sandbox.refusal:
            raise ToolRefused(self.sandbox.refusal)
        shell = find_program("bash", self.workspace, self.environment.get("PATH"))
        if shell is None:
            raise FileNotFoundError("bash was not found on PATH outside the workspace; install it")
        await anyio.Path(output.parent).mkdir(mode=0o700, parents=True, exist_ok=True)
        await anyio.Path(f"{output}.exit").unlink(missing_ok=True)
        arguments = [sys.executable, "-I", "-S", _CHILD, str(output), str(WHOLE), mode, str(folder), shell, command]
        if self.sandbox.level or self.sandbox.limits != Limits():
            arguments += await anyio.to_thread.run_sync(self.sandbox.walls, str(folder), shell, command)
        return _spawn_child(arguments, self.sandbox.told(clean_environment(self.environment, self.extra)))


def exit_code(output: Path) -> int | None:
    """The exit code of a background command that has ended; None while it runs, or when nobody could note it."""
    try:
        return int(Path(f"{output}.exit").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def find_process(output: Path) -> tuple[int, float] | None:
    """The process that writes this output, if it still runs: its pid and start time."""
    marked = _marked(output)
    return marked if marked is not None and is_same(*marked) else None


def _marked(output: Path) -> tuple[int, float] | None:
    """Who left his mark beside the output in this boot, and has not taken it away."""
    try:
        pid, started, *boot = Path(f"{output}.pid").read_text(encoding="utf-8").split()
        marked = int(pid), float(started)
    except (OSError, ValueError):
        return None
    return None if boot and boot[0] != this_boot() else marked


def _spawn_child(arguments: list[str], environment: dict[str, str]) -> tuple[int, int]:
    """Start our process in a session of its own, knowing nothing but /dev/null and the control pipe (about 1 ms)."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    reader, writer = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)]
    if reader == _CONTROL:
        os.set_inheritable(reader, True)
    else:
        actions.append((os.POSIX_SPAWN_DUP2, reader, _CONTROL))
    try:
        pid = os.posix_spawn(
            arguments[0],
            arguments,
            environment,
            file_actions=actions,
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.close(null)
        os.close(reader)
    return pid, writer


def _tell(watched: int, number: int) -> None:
    """Signal exactly the process that the descriptor stands for."""
    try:
        signal.pidfd_send_signal(watched, number)
    except ProcessLookupError:
        return  # it has ended, and somebody else who waited for it was quicker


def _let_go(control: int) -> None:
    """Let our process start the command."""
    try:
        os.write(control, b"g")
    except BrokenPipeError:
        return  # it has died before that; whoever waits for it sees how


def _start_of(pid: int) -> float:
    """The start time of a child that we have not reaped; 0 when it has died at once."""
    return started_at(pid) or 0.0


async def _ended(watched: int) -> None:
    """Wait until our process has ended, which it is doing or was told to do; kill it when it does not. Closes it."""
    try:
        with anyio.move_on_after(_PATIENCE) as scope:
            await anyio.wait_readable(watched)
        if scope.cancelled_caught:
            _tell(watched, signal.SIGKILL)
            await anyio.wait_readable(watched)
    finally:
        os.close(watched)


def _sweep(pid: int, output: Path, environment: str = "") -> None:
    """End what our process left, when it was killed before it could do that itself: its mark is still there then.
    `environment` (`NAME=value`): what it left was started with that."""
    marked = _marked(output)
    if marked is not None and marked[0] == pid and started_at(pid) is None:
        kill_session(pid, environment)
        Path(f"{output}.pid").unlink(missing_ok=True)


def _read_back(keep: Path, code: int | None, timed_out: bool) -> Finished:
    """What the model is shown of an output. Blocks while it reads; runs in a worker thread."""
    try:
        with keep.open("rb") as file:
            head, tail, total = _ends(file, SHOWN // 2)
    except FileNotFoundError:
        head, tail, total = "", "", 0  # our process died before it made the file
    cut = total > SHOWN
    if cut:
        output = f"{head}\n[Output cut: {SHOWN} of {total} characters. Whole: {keep}]\n{tail}"
    else:
        output = head + tail
        keep.unlink(missing_ok=True)
    if code == _NOT_RUN and not total:
        output = "The command was perhaps not run at all: its output file could not be written. Is the disk full?"
    output = output.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return Finished(code, output, cut, total, timed_out, str(keep) if cut else "")


def _ends(file: BufferedReader, half: int) -> tuple[str, str, int]:
    """The beginning and the end of a text, and how many characters it has; memory stays bounded however long it is."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    head, tail, total = "", "", 0
    data = b"go"
    while data:
        data = file.read(1 << 20)
        text = decoder.decode(data, final=not data)
        total += len(text)
        room = half - len(head)
        head += text[:room]
        tail = (tail + text[room:])[-half:]
    return head, tail, total
