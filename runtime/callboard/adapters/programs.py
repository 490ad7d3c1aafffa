"""The programs that the runtime itself starts (git, rg), and what any process of ours is told of the environment.

A program is found by absolute path outside the workspace, so that a repository never brings its own `git` or `rg`.
The environment is built from an allow-list: nothing that may hold a credential passes, whatever it is called.
Commands of the model go through the launcher, never through here.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import ByteReceiveStream, Process

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
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"})
_SERVICE = ("ANTHROPIC_", "CALLBOARD_")
"""What is for the runtime alone: whoever has it spends its money."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)


def find_program(name: str, outside: Path, path: str | None = None) -> str | None:
    """The absolute path of a program on PATH that lies outside the folder, with every link followed; else None."""
    forbidden = os.path.realpath(outside)
    for entry in (path if path is not None else os.environ.get("PATH", os.defpath)).split(os.pathsep):
        if not os.path.isabs(entry):  # noqa: PTH117 - text of PATH; an empty or relative entry means the current folder
            continue
        found = os.path.join(entry, name)  # noqa: PTH118
        if not os.access(found, os.X_OK) or os.path.isdir(found):  # noqa: PTH112
            continue
        real = os.path.realpath(found)
        if not (is_within(real, forbidden) or is_within(os.path.normpath(found), forbidden)):
            return found
    return None


def is_within(path: str, folder: str) -> bool:
    """Whether the path is the folder or beneath it. Text only: both absolute, links followed by the caller."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


TOOL_MARK = "CALLBOARD_TOOL"
"""Stands in the environment of every process of a tool, with the value 1."""


def clean_environment(source: Mapping[str, str], extra: Iterable[str] = ()) -> dict[str, str]:
    """What a tool's process may know: the allow-list, `LC_*`, and the names in `extra` that a person's settings add.

    A name that sounds like a credential passes by `extra` alone, where a person wrote it out; the model service's own
    never do. A proxy passes unless its URL holds a credential. `CALLBOARD_TOOL=1` marks the process: the command line
    refuses to answer requests for it.
    """
    named = {name for name in extra if not name.startswith(_SERVICE)}
    kept = {
        name: value
        for name, value in source.items()
        if name in named
        or (
            (name in _ALLOWED or name.startswith("LC_") or (name in _PROXIES and "@" not in value))
            and not _SECRET.search(name)
        )
    }
    entries = source.get("PATH", os.defpath).split(os.pathsep)
    kept["PATH"] = os.pathsep.join(entry for entry in entries if entry.startswith("/")) or os.defpath
    kept.setdefault("TERM", "dumb")
    return kept | {
        TOOL_MARK: "1",
        "GIT_TERMINAL_PROMPT": "0",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
    }


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended. `code` None: it was ended for its time or for too much output."""

    code: int | None
    out: bytes
    err: bytes
    timed_out: bool = False


async def run_program(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    given: bytes = b"",
    timeout: float = 30,
    most: int = 10_000_000,
) -> Ran:
    """Run a program of ours in a session of its own, `given` as its standard input, and collect what it writes.

    Ended with its group when it is cancelled, when `timeout` seconds are over, and when it wrote over `most` bytes:
    what it wrote until then is returned. Raises OSError when it cannot be started.
    """
    process = await anyio.open_process(
        list(arguments), stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True
    )
    out, err = bytearray(), bytearray()
    timed_out = False
    async with process:
        try:
            with anyio.move_on_after(timeout) as scope:
                await _converse(process, given, out, err, most)
            timed_out = scope.cancelled_caught
        finally:
            _end(process)
    code = process.returncode
    return Ran(None if code is None or code < 0 else code, bytes(out), bytes(err), timed_out)


async def _converse(process: Process, given: bytes, out: bytearray, err: bytearray, most: int) -> None:
    """Feed it, hear it, wait for its end; return early when it wrote too much."""
    async with anyio.create_task_group() as group:
        stop = group.cancel_scope.cancel
        group.start_soon(_feed, process, given)
        group.start_soon(_collect, process.stdout, out, most, stop)
        group.start_soon(_collect, process.stderr, err, most, stop)
        await process.wait()


async def _feed(process: Process, given: bytes) -> None:
    assert process.stdin is not None
    try:
        await process.stdin.send(given)
        await process.stdin.aclose()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return  # it has ended without wanting all of it


async def _collect(stream: ByteReceiveStream | None, into: bytearray, most: int, stop: Callable[[], None]) -> None:
    assert stream is not None
    async for data in stream:
        into += data
        if len(into) > most:
            stop()
            return


def _end(process: Process) -> None:
    """Kill its group while it has not been waited for: until then its number is its own."""
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # it ended in this moment
