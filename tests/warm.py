"""Processes that need no start-up: copies of one that has imported the package, for tests that start hundreds.

Such a process is killed, signalled, waited for and read from as any other. What differs from `python ...`: the imports
have been made, and /proc shows the command line and environment of the one it was copied from. Where those are what is
tested, or the start of Python itself, use `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

CHILD = Path(__file__).with_name("warm_child.py")
PIPE, NOTHING, STDERR = subprocess.PIPE, subprocess.DEVNULL, 2
"""What a stream may be, beside a file descriptor of the caller's: a pipe, nothing, or the tests' own stderr."""
KEPT = ("PATH", "LANG", "LC_ALL")
SHARED = "CALLBOARD_TESTS_WARM"
"""Names, for the workers of one run, the socket of the process that they share: its imports are made once for all."""


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Start the process that the workers of this run share. It imports nothing before one of them asks it."""
    folder = Path(tempfile.mkdtemp(prefix="warm"))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "s"))
        listening.listen()
        process = _started(listening)
    os.environ[SHARED] = str(folder / "s")
    try:
        yield
    finally:
        os.environ.pop(SHARED, None)
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        shutil.rmtree(folder)


def _started(listening: socket.socket) -> subprocess.Popen[bytes]:
    """Start the process that is copied for whoever connects to the socket, until its stdin ends."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(listening.fileno())],
        env={**kept, "PYTHONWARNINGS": "error"},
        pass_fds=[listening.fileno()],
        stdin=PIPE,
    )


class Server:
    """The connection to the process that is copied: the one that this run shares, or one of our own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = socket.socket(socket.AF_UNIX)
        if SHARED not in os.environ:
            run = contextlib.ExitStack()
            run.enter_context(shared())
            atexit.register(run.close)
        self._asked.connect(os.environ[SHARED])
        self.cpu_seconds = 0.0
        """CPU time of the copies that have ended and were waited for."""
        atexit.register(self._asked.close)

    def ask(self, body: Mapping[str, object], streams: list[int]) -> None:
        data = json.dumps(body).encode()
        with self._lock:
            socket.send_fds(self._asked, [len(data).to_bytes(8, "big")], streams)
            self._asked.sendall(data)


@functools.cache
def server() -> Server:
    """Return the connection of this test worker."""
    return Server()


class Process:
    """As much of `subprocess.Popen` as tests use. Text, in UTF-8; a pipe for each stream that is not given."""

    def __init__(
        self,
        arguments: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        *,
        stdin: int = NOTHING,
        stdout: int = PIPE,
        stderr: int = PIPE,
        new_session: bool = False,
        terminal: bool = False,
    ) -> None:
        """Start what `python ARGUMENTS` would: `-m`, a module and its arguments, or a file and its arguments.
        `terminal`: stdin becomes the terminal of the new session."""
        self.ended: int | None = None
        """The exit code; of one that was killed, minus the signal. Known once it was waited for."""
        self._told = b""
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        with contextlib.ExitStack() as theirs:
            streams = self._streams(theirs, stdin, stdout, stderr)
            self._news, status = os.pipe()
            theirs.callback(os.close, status)
            body = {"arguments": [*arguments], "cwd": str(cwd), "env": {**env}}
            body |= {"new_session": new_session or terminal, "terminal": terminal}
            server().ask(body, [*streams, status])
        self.pid = int(self._line(None) or "0")
        assert self.pid, "the process that is copied is gone"

    def _streams(self, theirs: contextlib.ExitStack, stdin: int, stdout: int, stderr: int) -> list[int]:
        made: list[int] = []
        for name, given in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
            if given == PIPE:
                read, write = os.pipe()
                mine, other = (write, read) if name == "stdin" else (read, write)
                setattr(self, name, os.fdopen(mine, "w" if name == "stdin" else "r", encoding="utf-8"))
            elif given == NOTHING:
                other = os.open(os.devnull, os.O_RDWR)
            elif given == subprocess.STDOUT:
                other = os.dup(made[1])
            else:
                other = os.dup(given)
            theirs.callback(os.close, other)
            made.append(other)
        return made

    def _line(self, timeout: float | None) -> str | None:
        """What its minder says next; nothing when time is up."""
        while b"\n" not in self._told:
            # `select.select` refuses descriptors above 1,023, which a worker with many open stores reaches.
            waiting = select.poll()
            waiting.register(self._news, select.POLLIN)
            if not waiting.poll(None if timeout is None else timeout * 1_000):
                return None
            piece = os.read(self._news, 100)
            assert piece, "whoever waited for the process was killed"
            self._told += piece
        line, _, self._told = self._told.partition(b"\n")
        return line.decode()

    def poll(self) -> int | None:
        """Its exit code, when it has ended; minus the signal that killed it."""
        if self.ended is None and (end := self._line(0)) is not None:
            self._ended(end)
        return self.ended

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end: the exit code. Raises `subprocess.TimeoutExpired`."""
        if self.ended is None:
            if (end := self._line(timeout)) is None:
                raise subprocess.TimeoutExpired("callboard", timeout or 0)
            self._ended(end)
        assert self.ended is not None
        return self.ended

    @property
    def returncode(self) -> int:
        """The exit code of one that has been waited for."""
        assert self.ended is not None
        return self.ended

    def _ended(self, end: str) -> None:
        code, _, seconds = end.partition(" ")
        self.ended = int(code)
        server().cpu_seconds += float(seconds)
        os.close(self._news)

    def send_signal(self, which: signal.Signals) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, which)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, text: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """Say `text`, read all, wait for the end: what it said on stdout and stderr."""
        said = {"stdout": "", "stderr": ""}

        def read(name: str, stream: IO[str]) -> None:
            with stream:
                said[name] = stream.read()

        streams = (("stdout", self.stdout), ("stderr", self.stderr))
        readers = [threading.Thread(target=read, args=(n, s), daemon=True) for n, s in streams if s and not s.closed]
        for one in readers:
            one.start()
        if self.stdin is not None and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError), self.stdin:
                self.stdin.write(text or "")
        end = None if timeout is None else time.monotonic() + timeout
        self.wait(timeout)
        for one in readers:
            one.join(None if end is None else max(0.0, end - time.monotonic()))
            if one.is_alive():
                raise subprocess.TimeoutExpired("callboard", timeout or 0)
        return said["stdout"], said["stderr"]

    def __del__(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        if self.ended is None and getattr(self, "pid", 0):
            os.close(self._news)
