"""The processes that the `callboard` of an example becomes: copies of a warm one, under a terminal where asked for.

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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cli.repl.pty_screen import PtyScreen
from tests.warm import Process

SECONDS = 200


@dataclass(frozen=True, slots=True)
class Special:
    """How one command of a page is run where running it is not all."""

    exit: int = 0
    """The exit code that is right."""
    type: str | Mapping[str, str] = ""
    """What is typed at its terminal: at once it says something, or each when the text before it is shown."""
    until: str = ""
    """It is sent SIGTERM when it has printed this."""
    elsewhere: str = ""
    """Which test runs it in full, where that takes long: here only its options are read."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One start of `callboard`: what `PtyScreen` wants to know of a command."""

    arguments: list[str]
    workspace: Path
    env: dict[str, str]
    argv: tuple[str, ...] = (sys.executable, "-m", "callboard")


class Server:
    """Starts what the programs on the PATH of an example ask for, each in a thread."""

    def __init__(self, path: Path, specials: Mapping[str, Special]) -> None:
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
        for one in self._threads:
            one.join(SECONDS)

    def _thread(self, what: object, *args: object) -> None:
        one = threading.Thread(target=what, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(one)
        one.start()

    def _accept(self) -> None:
        while True:
            try:
                asked, _ = self._socket.accept()
            except OSError:
                return  # stopped
            self._thread(self._serve, asked)

    def _serve(self, asked: socket.socket) -> None:
        with asked:
            header, streams, _, _ = socket.recv_fds(asked, 8, 3)
            size, body = int.from_bytes(header, "big"), b""
            while len(body) < size:
                body += asked.recv(size - len(body))
            given = json.loads(body)
            one = Asked(given["arguments"], Path(given["cwd"]), given["env"])
            words = " ".join(one.arguments)
            self.ran.append(words)
            try:
                code = self._run(one, self._specials.get(words, Special()), streams)
            except BaseException as error:
                os.write(streams[2], f"{words}: {error}\n".encode())
                code = 99
            for stream in streams:
                os.close(stream)
            asked.sendall(str(code).encode())

    def _run(self, one: Asked, special: Special, streams: list[int]) -> int:
        """Its exit code as the example sees it: 0 when it is the right one."""
        if special.type:
            code = self._typed(one, special, streams[1])
        elif special.until:
            code = self._until(one, special, streams[1])
        else:
            program = [*one.argv[1:], *one.arguments, *(["--help"] if special.elsewhere else [])]
            process = Process(program, one.workspace, one.env, stdin=streams[0], stdout=streams[1], stderr=streams[2])
            code = process.wait(SECONDS)
        return 0 if code == special.exit else code or 98

    def _typed(self, one: Asked, special: Special, out: int) -> int:
        screen = PtyScreen(one, *one.arguments, columns=240, rows=50)  # type: ignore[arg-type]
        try:
            typed = {r"": special.type} if isinstance(special.type, str) else special.type
            for shown, keys in typed.items():
                screen.wait_said(shown or r"\S", SECONDS)
                screen.type(keys)
            code = screen.process.wait(SECONDS)
        finally:
            text = screen.text()
            screen.close()
            os.write(out, f"{text.rstrip()}\n".encode())
        return code

    def _until(self, one: Asked, special: Special, out: int) -> int:
        process = Process([*one.argv[1:], *one.arguments], one.workspace, one.env, stderr=-2)
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

    That has the streams, the folder and the environment of its caller, but not its place among the processes: where
    signals or ancestors are tested, a test starts `python -m callboard`.
    """
    folder = Path(tempfile.mkdtemp(prefix="ex"))  # the path of a socket may have a hundred characters
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
