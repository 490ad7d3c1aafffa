"""Programs that the runtime itself starts (git, rg), and the environment of all its processes.

A program is found by absolute path outside the workspace, so that a repository can never provide its own `git` or `rg`.
The environment is built from an allow-list, so that no possible credential passes, whatever its name is. Commands of
the model use the launcher, never this module.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import anyio
from anyio.abc import ByteReceiveStream, Process

from callboard.adapters.processes.tool_ancestry import TOOL_MARK
from callboard.adapters.system.open_files import give_back
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

_ALLOWED = frozenset(
    {
        "HOME",
        "USER",
        "LOGNAME",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TERM",
        "TMPDIR",
        "CI",
        "COLUMNS",
        "LINES",
        "NO_COLOR",
        "FORCE_COLOR",
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
        "XDG_DATA_HOME",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "PYENV_ROOT",
        "PYTHONDONTWRITEBYTECODE",
        "CARGO_HOME",
        "RUSTUP_HOME",
        "GOPATH",
        "GOROOT",
        "GOCACHE",
        "JAVA_HOME",
        "NVM_DIR",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
        "NO_PROXY",
        "no_proxy",
    }
)
_SEARCHED = frozenset({"PATH", "PYTHONPATH", "NODE_PATH", "PERL5LIB", "RUBYLIB"})
"""Lists of folders that are searched for programs and modules."""
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"})
_SERVICE = ("ANTHROPIC_", "CALLBOARD_")
"""Prefixes of variables for the runtime only: any process that has them can spend the user's money."""
_SECRET = late_pattern(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)


def find_program(name: str, outside: Path, path: str | None = None) -> str | None:
    """Return the absolute path of a program on PATH outside the folder; None if it is not found.

    Links are resolved for the comparison with the folder.
    """
    forbidden = os.path.realpath(outside)
    for entry in (path if path is not None else os.environ.get("PATH", os.defpath)).split(os.pathsep):
        if not os.path.isabs(entry):  # noqa: PTH117 - text of PATH; an empty or relative entry means the current folder
            continue
        program = os.path.join(entry, name)  # noqa: PTH118 - text of PATH
        if not os.access(program, os.X_OK) or os.path.isdir(program):  # noqa: PTH112 - the text that is returned
            continue
        real = os.path.realpath(program)
        if not (is_within(real, forbidden) or is_within(os.path.normpath(program), forbidden)):
            return program
    return None


def is_within(path: str, folder: str) -> bool:
    """Return True if the path is the folder or beneath it.

    Compares text only: both must be absolute, with links resolved.
    """
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def clean_environment(source: Mapping[str, str], extra: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment of a tool's process.

    The environment has the allow-list, `LC_*`, and the names in `extra` from the user's settings.

    A name that looks like a credential passes only by `extra`, where the user wrote it; the model service's own
    credentials never pass. A proxy passes unless its URL contains a credential. `CALLBOARD_TOOL=1` marks the process:
    the command line refuses to answer requests for such a process.
    """
    named = {name for name in extra if not name.startswith(_SERVICE)}
    allowed = {
        name: value
        for name, value in source.items()
        if name in named
        or (
            (name in _ALLOWED or name.startswith("LC_") or (name in _PROXIES and "@" not in value))
            and not _SECRET.search(name)
        )
    }
    entries = source.get("PATH", os.defpath).split(os.pathsep)
    allowed["PATH"] = os.pathsep.join(entry for entry in entries if entry.startswith("/")) or os.defpath
    allowed.setdefault("TERM", "dumb")
    return allowed | {
        TOOL_MARK: "1",
        "GIT_TERMINAL_PROMPT": "0",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
    }


def environment_outside(environment: Mapping[str, str], workspace: Path) -> dict[str, str]:
    """Return an environment in which programs and Python modules are not searched for in the workspace."""
    real = os.path.realpath(workspace)
    restricted = {**environment, "PYTHONSAFEPATH": "1"}
    for name in _SEARCHED & environment.keys():
        entries = environment[name].split(os.pathsep)
        outside = [entry for entry in entries if os.path.isabs(entry) and not is_within(os.path.realpath(entry), real)]  # noqa: PTH117 - text of variables such as PATH
        restricted[name] = os.pathsep.join(outside)
    return {**restricted, "PATH": restricted.get("PATH") or os.defpath}


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Result of a program. `code` None: it was ended after a timeout or too much output."""

    code: int | None
    out: bytes
    err: bytes
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class ConfinedCommand:
    """Command line that starts a program in a sandbox (`confinement.py`).

    The arguments of the sandbox come first, then the program's own.

    With a system call filter, bubblewrap gets the filter's descriptor as a further argument.
    """

    launcher: tuple[str, ...]
    call_filter: bytes = b""
    command: tuple[str, ...] = ()

    def start(self) -> tuple[list[str], tuple[int, ...]]:
        """Return the whole command line, and the inherited descriptors, which the caller closes."""
        if not self.call_filter:
            return [*self.launcher, *(("--", *self.command) if self.command else ())], ()
        descriptor = os.memfd_create("filter", os.MFD_CLOEXEC)
        os.write(descriptor, self.call_filter)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return [*self.launcher, "--seccomp", str(descriptor), "--", *self.command], (descriptor,)


async def run_program(
    arguments: Sequence[str] | ConfinedCommand,
    environment: Mapping[str, str],
    *,
    stdin: bytes = b"",
    timeout: float = 30,
    most: int = 10_000_000,
) -> ProgramResult:
    """Run one of the runtime's programs in its own session with `stdin` as its standard input, and collect its output.

    A cancellation, the end of `timeout` seconds, or more than `most` bytes of output ends its group; the output so far
    is returned. Raises OSError if it cannot be started.
    """
    command, descriptors = arguments.start() if isinstance(arguments, ConfinedCommand) else (list(arguments), ())
    try:
        process = await anyio.open_process(
            command,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            pass_fds=descriptors,
        )
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    give_back(process.pid)
    out = bytearray()
    err = bytearray()
    timed_out = False
    async with process:
        try:
            with anyio.move_on_after(timeout) as scope:
                await _converse(process, stdin=stdin, out=out, err=err, most=most)
            timed_out = scope.cancelled_caught
        finally:
            _end(process)
    code = process.returncode
    return ProgramResult(None if code is None or code < 0 else code, bytes(out), bytes(err), timed_out)


async def _converse(process: Process, *, stdin: bytes, out: bytearray, err: bytearray, most: int) -> None:
    """Write its input, read its output, and wait for its end. Return early after too much output."""
    async with anyio.create_task_group() as group:
        stop = group.cancel_scope.cancel
        group.start_soon(_feed, process, stdin)
        group.start_soon(_collect, process.stdout, out, most, stop)
        group.start_soon(_collect, process.stderr, err, most, stop)
        await process.wait()


async def _feed(process: Process, stdin: bytes) -> None:
    assert process.stdin is not None
    try:
        await process.stdin.send(stdin)
        await process.stdin.aclose()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return  # it has ended without reading all of its input


async def _collect(stream: ByteReceiveStream | None, into: bytearray, most: int, stop: Callable[[], None]) -> None:
    assert stream is not None
    async for data in stream:
        into += data
        if len(into) > most:
            stop()
            return


def _end(process: Process) -> None:
    """Kill its group while it has not been reaped: until then its number cannot be reused."""
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # it has just ended
