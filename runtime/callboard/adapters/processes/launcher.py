"""Launcher of the sandboxed commands of tools. It ensures that no process of a command remains.

Each command has a process between it and the runtime (`launch_child.py`), which leads its session, collects its output
and ends all its processes. So the runtime waits on one descriptor, reads no stream, and may be killed at any time: a
foreground command then ends; a background command continues and leaves its exit code.

Permission was checked before; the sandbox limits the command's abilities (docs/sandbox.md). If the requested sandbox is
unavailable, nothing runs. Level L0 is not a security boundary; docs/tools.md lists what it stops.
"""

from __future__ import annotations

import codecs
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread

from callboard.adapters.kernel.exits import open_process, signal_process
from callboard.adapters.processes.pids import is_same, kill_session, open_pid, reap, started_at, this_boot
from callboard.adapters.processes.programs import clean_environment, find_program
from callboard.adapters.processes.sandbox.opened_paths import clear_placeholders
from callboard.adapters.processes.sandbox.path_guard import add_grants, check_records
from callboard.adapters.processes.sandbox.proxy import SessionProxies
from callboard.adapters.processes.sandbox.restrictions import SandboxLimits
from callboard.adapters.processes.sandbox.sandbox import NetworkReach, Sandbox, explain
from callboard.adapters.processes.tool_ancestry import TOOL_MARK
from callboard.adapters.system import release
from callboard.ports.tool import Finished
from callboard.types.errors import CommandNotRun, ToolRefused
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Grant, PathGrant

SHOWN = 50_000
"""Most characters of an output that are shown: half from its beginning, half from its end."""
SAID = 1_000_000
"""Most bytes that are kept of each stream of a command that communicates with a program of Callboard."""
WHOLE = 1 << 30
"""Most bytes of an output that are kept in its file. The rest is counted and dropped."""
_CHILD = str(Path(__file__).with_name("launch_child.py"))
_CONTROL = 3
_NOT_RUN = 125
_PATIENCE = 5.0
"""Seconds that Callboard's own process has to end its command (TERM, 2 s, KILL) before it is killed itself."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Files and variables for a command that communicates with a program of Callboard."""

    input: Path
    output: Path
    errors: Path
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class _Job:
    """One command to start. `mode` as in `launch_child.py`."""

    command: str
    folder: Path
    output: Path
    mode: Literal["hold", "free"]
    grants: Sequence[Grant] = ()
    streams: Streams | None = None


@dataclass(frozen=True, slots=True)
class _ForegroundEnd:
    """End of the wait for a command in the foreground."""

    code: int | None = None
    timed_out: bool = False
    process: tuple[int, float] | None = None
    """Pid and start time of the command, if it was moved to the background instead of ending."""


@dataclass(frozen=True, slots=True)
class ShellLauncher:
    """`Launcher` of a workspace. `environment`: the user's, before the allow-list; names in `extra` pass too."""

    workspace: Path
    environment: Mapping[str, str]
    extra: tuple[str, ...] = ()
    sandbox: Sandbox = field(default_factory=Sandbox)
    """Sandbox of the commands; default: level L0."""
    ways_out: SessionProxies = field(default_factory=SessionProxies)

    @property
    def level(self) -> int:
        """Return the level in force, 0 to 3."""
        return self.sandbox.level

    @property
    def network(self) -> bool:
        """Return True if commands can reach any network."""
        return self.sandbox.network

    def with_readable(self, folders: Sequence[Path]) -> ShellLauncher:
        """Return a launcher with more folders that commands may read and run, and may never change.

        The folders are visible even if they are otherwise hidden: sessions load skills and plugins from them.
        """
        sandbox_paths = self.sandbox.paths
        if sandbox_paths is None:
            return self
        loaded = tuple(dict.fromkeys(map(os.path.realpath, folders)))
        sandbox_paths = replace(
            sandbox_paths,
            own_readable=(*sandbox_paths.own_readable, *map(str, folders)),
            loaded=(*sandbox_paths.loaded, *loaded),
        )
        return replace(self, sandbox=replace(self.sandbox, paths=sandbox_paths))

    @property
    def boot(self) -> str:
        return this_boot()

    @property
    def _records(self) -> str:
        """Return the folder in which commands record the paths that they guard; empty: they guard none."""
        return self.sandbox.paths.locks if self.sandbox.paths and self.sandbox.level else ""

    async def run(
        self, command: str, folder: Path, *, timeout: float, keep: Path, grants: Sequence[Grant] = ()
    ) -> Finished:
        """See the port. The output is in `keep` while the command runs, and remains there if it had to be shortened."""
        finished = await self.attend(command, folder, timeout=timeout, keep=keep, grants=grants, moved=anyio.Event())
        assert isinstance(finished, Finished), "no one moves it to the background"
        return finished

    async def attend(
        self,
        command: str,
        folder: Path,
        *,
        timeout: float,
        keep: Path,
        grants: Sequence[Grant] = (),
        moved: anyio.Event,
    ) -> Finished | tuple[int, float]:
        """See the port. `<keep>.pid` identifies the process while it runs, also in the background."""
        made = await anyio.to_thread.run_sync(self.sandbox.placeholders, grants, str(folder)) if grants else []
        try:
            job = _Job(command, folder, keep, "hold", grants)
            try:
                ended = await self._attend(job, timeout, moved)
            except CommandNotRun:  # a socket to be covered may have been removed at that moment
                ended = await self._attend(job, timeout, moved)
            if not isinstance(ended, Finished):
                made = []  # the command still needs them, as one that was started in the background
            return ended
        finally:
            clear_placeholders(made)

    async def _attend(self, job: _Job, timeout: float, moved: anyio.Event) -> Finished | tuple[int, float]:
        keep = job.output
        reach = await self._reach(job.grants)
        before = len(self.ways_out.refused_hosts(reach.socket))
        end = await self._see_through(job, reach, timeout, moved)
        if end.process is not None:
            return end.process
        finished = await anyio.to_thread.run_sync(_read_back, keep, end.code, end.timed_out)
        report = self.report(keep)
        sandbox_paths = self.sandbox.paths
        if sandbox_paths is not None and self.sandbox.level and finished.exit_code != 0:
            refused = tuple(dict.fromkeys(self.ways_out.refused_hosts(reach.socket)[before:]))
            find_cause = partial(explain, finished.output, reach, refused, sandbox_paths, level=self.sandbox.kind)
            if cause := await anyio.to_thread.run_sync(find_cause):
                output = f"{finished.output.rstrip(chr(10))}\n{cause}\n"
                return replace(finished, output=output, report="\n".join(filter(None, (report, cause))))
        return replace(finished, report=report)

    async def converse(
        self, command: str, folder: Path, *, timeout: float, streams: Streams, grants: Sequence[Grant] = ()
    ) -> int | None:
        """Run a command that reads and writes the files of `streams`.

        Return its exit code, or None after a timeout. At most a megabyte of each stream is kept, with nothing added.

        Raises `CommandNotRun`, `ToolRefused` if the requested sandbox is unavailable, and OSError.
        """
        made = await anyio.to_thread.run_sync(self.sandbox.placeholders, grants, str(folder)) if grants else []
        try:
            job = _Job(command, folder, streams.output, "hold", grants, streams)
            end = await self._see_through(job, await self._reach(grants), timeout, anyio.Event())
        finally:
            clear_placeholders(made)
        if end.code == _NOT_RUN and (reason := await anyio.to_thread.run_sync(failure_of, streams.output)):
            raise CommandNotRun(reason)
        return None if end.timed_out else end.code

    async def _see_through(self, job: _Job, reach: NetworkReach, timeout: float, moved: anyio.Event) -> _ForegroundEnd:
        """Run a command to its end, or until `moved` is set. After a cancellation no process of it remains."""
        pid, control = await self._spawn(job, reach)
        # Before the child is reaped: until then no other process can have its pid.
        watched = open_process(pid)
        timed_out = False
        is_moved = False
        code = None
        try:
            _send_byte(control)
            with anyio.move_on_after(timeout) as scope:
                # The process reads this byte before the end of the pipe, so the command survives the closing below
                # (test_a_command_that_was_moved_to_the_background_outlives_its_host).
                is_moved = await _moved_first(watched, moved) and _send_byte(control)
            timed_out = scope.cancelled_caught
        finally:
            # The child ends the command when this descriptor is closed: after a timeout, a cancellation, or the death
            # of this process (test_a_cancelled_command_is_ended, test_a_foreground_command_ends_with_its_host).
            os.close(control)
            with anyio.CancelScope(shield=True):
                if is_moved:
                    os.close(watched)
                    _mark_moved(job.output)
                else:
                    await _ended(watched, pid)
                    code = reap(pid)
                    # A command can kill the child that watches it
                    # (test_a_command_that_kills_its_watcher_does_not_escape).
                    await anyio.to_thread.run_sync(_clean_up_after, pid, job.output, self._records)
        return _ForegroundEnd(code, timed_out, (pid, _start_of(pid)) if is_moved else None)

    async def start(self, command: str, folder: Path, output: Path, grants: Sequence[Grant] = ()) -> tuple[int, float]:
        """See the port. `<output>.pid` identifies the process from before the command runs until it has ended."""
        if grants:
            await anyio.to_thread.run_sync(self.sandbox.placeholders, grants, str(folder))
        pid, control = await self._spawn(_Job(command, folder, output, "free", grants), await self._reach(grants))
        try:
            # Before the start: otherwise a command that ends at once could leave nothing to identify it by.
            started = _start_of(pid)
            _send_byte(control)
        finally:
            os.close(control)
        return pid, started

    async def wait(self, pid: int, started: float, output: Path) -> int | None:
        """See the port. Cancelling the wait does not affect the command."""
        watched = open_pid(pid, started)
        code = None
        if watched is not None:
            try:
                await anyio.wait_readable(watched)
            finally:
                os.close(watched)
            code = reap(pid)
        if pid > 0:
            # If the child was not watched, its number may have been reused as the session of other programs
            # (test_a_pid_that_is_another_process_by_now_is_waited_for_by_nobody_and_never_ended).
            mark = "" if watched is not None else f"{TOOL_MARK}=1"
            await anyio.to_thread.run_sync(_clean_up_after, pid, output, self._records, mark)
        noted = exit_code(output)
        # On a full disk the exit code of the child counts, unless its own end by a signal may have caused that code.
        return code if noted is None and code is not None and code < _NOT_RUN else noted

    def report(self, output: Path) -> str:
        """See the port."""
        path = Path(f"{output}.report")
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        path.unlink(missing_ok=True)
        return text.strip()

    def allow(self, paths: Sequence[Path]) -> None:
        """See the port."""
        if self._records and paths:
            add_grants(self._records, map(str, paths))

    async def end(self, pid: int, started: float) -> bool:
        """See the port. Also ends the rest of the process's session if the process itself was killed."""
        watched = open_pid(pid, started)
        if watched is None:
            return False
        with anyio.CancelScope(shield=True):
            _send_signal(watched, pid, signal.SIGTERM)
            await _ended(watched, pid)
            reap(pid)
            await anyio.to_thread.run_sync(kill_session, pid)
        return True

    async def _reach(self, grants: Sequence[Grant]) -> NetworkReach:
        """Return the network that a command reaches, with the proxy for it."""
        reach = self.sandbox.reach(grants)
        return replace(reach, socket=await self.ways_out.open(reach.hosts)) if reach.hosts else reach

    async def _spawn(self, job: _Job, reach: NetworkReach) -> tuple[int, int]:
        """Start the process for a command, which waits for a byte. Return its pid, and the descriptor for that byte."""
        command = job.command
        folder = job.folder
        output = job.output
        grants = job.grants
        if self.sandbox.refusal:
            raise ToolRefused(self.sandbox.refusal)
        shell = find_program("bash", self.workspace, self.environment.get("PATH"))
        if shell is None:
            raise FileNotFoundError("bash was not found on PATH outside the workspace; install it")
        await anyio.Path(output.parent).mkdir(mode=0o700, parents=True, exist_ok=True)
        # Otherwise files of an earlier command with the same output would be read as those of this command.
        for ending in (".exit", ".failed", ".report", ".moved"):
            await anyio.Path(f"{output}{ending}").unlink(missing_ok=True)
        if replaced := release.OURS.replaced_by():
            raise ToolRefused(replaced)
        most = WHOLE if job.streams is None else SAID
        arguments = [*release.child_python(), _CHILD, str(output), str(most), job.mode, str(folder), shell, command]
        if self.sandbox.level or self.sandbox.limits != SandboxLimits():
            restrictions = partial(self.sandbox.restrictions, str(folder), shell, command, grants=grants, reach=reach)
            arguments += await anyio.to_thread.run_sync(restrictions)
        self.allow([Path(grant.path) for grant in grants if isinstance(grant, PathGrant) and grant.writes])
        if self._records and (earlier := await anyio.to_thread.run_sync(check_records, self._records)):
            arguments.append(f"note={earlier}")
        environment = clean_environment(self.environment, self.extra)
        if job.streams is not None:
            arguments += [f"input={job.streams.input}", f"errors={job.streams.errors}"]
            environment |= job.streams.environment
        return _spawn_child(arguments, self.sandbox.environment(environment, reach))


def exit_code(output: Path) -> int | None:
    """Return the exit code of an ended background command; None while it runs, or if the code could not be recorded."""
    try:
        return int(Path(f"{output}.exit").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def was_moved(output: Path) -> bool:
    """Return True if the command of this output was moved to the background while it ran."""
    return Path(f"{output}.moved").exists()


def find_process(output: Path) -> tuple[int, float] | None:
    """Return the pid and start time of the process that writes this output, if it still runs."""
    marked = _marked(output)
    return marked if marked is not None and is_same(*marked) else None


def _marked(output: Path) -> tuple[int, float] | None:
    """Return the pid and start time from the mark next to the output, if it is from this boot; else None."""
    try:
        pid, started, *boot = Path(f"{output}.pid").read_text(encoding="utf-8").split()
        marked = int(pid), float(started)
    except (OSError, ValueError):
        return None
    return None if boot and boot[0] != this_boot() else marked


def _spawn_child(arguments: list[str], environment: dict[str, str]) -> tuple[int, int]:
    """Start Callboard's process in its own session with only /dev/null and the control pipe (about 1 ms)."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    reader, writer = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)]
    # A dup2 of a descriptor to itself may leave it set to be closed on exec.
    if reader == _CONTROL:
        os.set_inheritable(reader, True)
    else:
        actions.append((os.POSIX_SPAWN_DUP2, reader, _CONTROL))
    try:
        # Not `fork`: that copies the page tables of a large process, and other threads may hold locks at that moment.
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


def _send_signal(watched: int, pid: int, number: int) -> None:
    """Send a signal to exactly the process of the descriptor."""
    try:
        signal_process(watched, pid, number)
    except ProcessLookupError:
        return  # it has ended, and was already reaped


def _send_byte(control: int) -> bool:
    """Let the process start the command, or go on without this one. Return False if the process has died."""
    try:
        os.write(control, b"g")
    except BrokenPipeError:
        return False  # the wait for it reports how
    return True


def _mark_moved(output: Path) -> None:
    """Let a process that takes over after a crash find the command as one in the background."""
    try:
        Path(f"{output}.moved").touch(mode=0o600)
    except OSError:
        return  # a full disk: after a crash the command is then ended, as one in the foreground


async def _moved_first(watched: int, moved: anyio.Event) -> bool:
    """Wait for the end of a process, or until `moved` is set; return True if the process goes on."""
    ended = False

    async def wait_moved() -> None:
        await moved.wait()
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(wait_moved)
        await anyio.wait_readable(watched)
        ended = True
        group.cancel_scope.cancel()
    return not ended


def _start_of(pid: int) -> float:
    """Return the start time of a child that has not been reaped; 0 if it died at once."""
    return started_at(pid) or 0.0


async def _ended(watched: int, pid: int) -> None:
    """Wait until the process has ended, because it is ending or was told to end; kill it if it does not.

    Closes the descriptor.
    """
    try:
        with anyio.move_on_after(_PATIENCE) as scope:
            await anyio.wait_readable(watched)
        if scope.cancelled_caught:
            _send_signal(watched, pid, signal.SIGKILL)
            await anyio.wait_readable(watched)
    finally:
        os.close(watched)


def _clean_up_after(pid: int, output: Path, records: str, environment: str = "") -> None:
    """Clean up after a child process that was killed before it could do so itself: its mark still exists then.

    `environment` (`NAME=value`): a variable in the environment of its remaining processes.
    """
    marked = _marked(output)
    if marked is None or marked[0] != pid or started_at(pid) is not None:
        return
    kill_session(pid, environment)
    Path(f"{output}.pid").unlink(missing_ok=True)
    if records and (text := check_records(records)):
        for path in (output, Path(f"{output}.report")):
            with path.open("a", encoding="utf-8", errors="surrogateescape") as file:
                file.write(f"\n{text}")


def failure_of(output: Path) -> str:
    """Return the reason why the command of this output was not run; empty if it was or will be run."""
    try:
        reason = Path(f"{output}.failed").read_text(encoding="utf-8", errors="replace")
        return " ".join((reason or output.read_text(encoding="utf-8", errors="replace")).split())[:500] or "no reason"
    except OSError:
        return ""


def _read_back(keep: Path, code: int | None, timed_out: bool) -> Finished:
    """Return the part of an output for the model. Blocks while it reads; runs in a worker thread.

    Raises `CommandNotRun` if the command was not started.
    """
    if code == _NOT_RUN and (reason := failure_of(keep)):
        raise CommandNotRun(reason)
    try:
        with keep.open("rb") as file:
            head, tail, total = _ends(file, SHOWN // 2)
    except FileNotFoundError:
        # the process died before it created the file
        head = ""
        tail = ""
        total = 0
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
    """Return the beginning and the end of a text, and its number of characters; memory stays bounded for any length."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    head = ""
    tail = ""
    total = 0
    data = b"go"
    while data:
        data = file.read(1 << 20)
        text = decoder.decode(data, final=not data)
        total += len(text)
        room = half - len(head)
        head += text[:room]
        tail = (tail + text[room:])[-half:]
    return head, tail, total
