"""Processes for the `callboard` of an example: copies of a warm one, in a terminal where needed.

`warm_program` gives other tests such a `callboard`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cli.repl.pty_screen import PtyScreen
from tests.warm import Process

SECONDS = 200


@dataclass(frozen=True, slots=True)
class SpecialCommand:
    """A special way to run one command of a page."""

    exit: int = 0
    """The expected exit code."""
    type: str | Mapping[str, str] = ""
    """Text typed at its terminal: after its first output, or, in a mapping, each when the text before it is shown."""
    until: str = ""
    """Output after which it gets SIGTERM."""
    elsewhere: str = ""
    """The test that runs the command in full if that takes long: here only its options are parsed."""


@dataclass(frozen=True, slots=True)
class ProgramStart:
    """One start of `callboard`, with the attributes that `PtyScreen` needs."""

    arguments: list[str]
    workspace: Path
    env: dict[str, str]
    argv: tuple[str, ...] = (sys.executable, "-m", "callboard")


class Server:
    """Server that starts processes for the programs on an example's PATH, each in a thread."""

    def __init__(self, path: Path, specials: Mapping[str, SpecialCommand]) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._path, self._specials = path, specials
        self._threads: list[threading.Thread] = []
        self.ran: list[str] = []
        """The words of each command that was started."""

    def start(self) -> None:
        self._socket.bind(str(self._path))
        self._socket.listen(16)
        self._thread(self._accept)

    def stop(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join(SECONDS)

    def _thread(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # stopped
            self._thread(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            header, streams, _, _ = socket.recv_fds(connection, 8, 3)
            size, body = int.from_bytes(header, "big"), b""
            while len(body) < size:
                body += connection.recv(size - len(body))
            message = json.loads(body)
            start = ProgramStart(message["arguments"], Path(message["cwd"]), message["env"])
            words = " ".join(start.arguments)
            self.ran.append(words)
            try:
                code = self._run(start, self._specials.get(words, SpecialCommand()), streams)
            except BaseException as error:
                os.write(streams[2], f"{words}: {error}\n".encode())
                code = 99
            for stream in streams:
                os.close(stream)
            with suppress(BrokenPipeError):  # the program that asked was killed, as clients do at their end
                connection.sendall(str(code).encode())

    def _run(self, start: ProgramStart, special: SpecialCommand, streams: list[int]) -> int:
        """Return the exit code that the example sees: 0 if it is the expected one."""
        if special.type:
            code = self._run_typed(start, special, streams[1])
        elif special.until:
            code = self._run_until(start, special, streams[1])
        else:
            program = [*start.argv[1:], *start.arguments, *(["--help"] if special.elsewhere else [])]
            process = Process(
                program, start.workspace, start.env, stdin=streams[0], stdout=streams[1], stderr=streams[2]
            )
            code = process.wait(SECONDS)
        return 0 if code == special.exit else code or 98

    def _run_typed(self, start: ProgramStart, special: SpecialCommand, out: int) -> int:
        screen = PtyScreen(start, *start.arguments, columns=240, rows=50)
        try:
            typed = {r"": special.type} if isinstance(special.type, str) else special.type
            for shown, keys in typed.items():
                screen.wait_for_output(shown or r"\S", SECONDS)
                screen.type(keys)
            code = screen.process.wait(SECONDS)
            screen.drain()
        finally:
            text = screen.text()
            screen.close()
            os.write(out, f"{text.rstrip()}\n".encode())
        return code

    def _run_until(self, start: ProgramStart, special: SpecialCommand, out: int) -> int:
        process = Process([*start.argv[1:], *start.arguments], start.workspace, start.env, stderr=-2)
        assert process.stdout is not None
        late = threading.Timer(SECONDS, process.kill)
        late.start()
        try:
            for line in process.stdout:
                os.write(out, line.encode())
                if special.until in line:
                    process.send_signal(signal.SIGTERM)
            return process.wait(SECONDS)
        finally:
            late.cancel()
            process.kill()


@contextmanager
def warm_program(file: Path) -> Iterator[None]:
    """Write a program that is `callboard`, for callers that start it themselves: it becomes a copy of a warm process.

    The copy has the streams, folder, and environment of its caller, but other parent processes. Tests of signals or
    ancestors start `python -m callboard`.
    """
    folder = Path(tempfile.mkdtemp(prefix="ex"))  # a socket path is limited to about a hundred characters
    server = Server(folder / "s", {})
    client = f'exec "{sys.executable}" -SE "{Path(__file__).with_name("client.py")}" "$@"'
    file.write_text(f'#!/bin/sh\nCALLBOARD_EXAMPLES="{folder / "s"}" {client}\n')
    file.chmod(0o755)
    server.start()
    try:
        yield
    finally:
        server.stop()
        shutil.rmtree(folder)
