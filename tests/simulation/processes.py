"""`callboard` as real processes that are watched: waited for by what they say, signalled, looked after at their end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from tests.cli.commands.command import Command, CommandResult
from tests.warm import Process

LIMIT = 180.0
"""Seconds after which something that should have happened counts as hung."""


class Running:
    """One command that runs in a process group of its own. What it says is read as it comes."""

    def __init__(self, command: Command, args: tuple[str, ...], env: dict[str, str]) -> None:
        env = {**command.env, "PYTHONUNBUFFERED": "1", **env}
        self.process = Process([*command.argv[1:], *args], command.workspace, env, new_session=True)
        self._said: dict[str, list[str]] = {"out": [], "err": []}
        self._news = threading.Condition()
        self._threads = [threading.Thread(target=self._read, args=(name,), daemon=True) for name in ("out", "err")]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read(self, name: str) -> None:
        stream = self.process.stdout if name == "out" else self.process.stderr
        assert stream is not None
        with stream:
            for line in stream:
                with self._news:
                    self._said[name].append(line)
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def said(self, name: str = "err") -> str:
        with self._news:
            return "".join(self._said[name])

    def wait_for(self, text: str, name: str = "err") -> None:
        """Return when `text` was said. Fails when the process ends, or time is up, without it."""
        end = time.monotonic() + LIMIT
        with self._news:
            while text not in "".join(self._said[name]):
                alive = any(thread.is_alive() for thread in self._threads)
                if not alive or not self._news.wait(end - time.monotonic()):
                    raise AssertionError(f"never said {text!r}; said: {self._said}")

    def signal(self, which: signal.Signals, *, group: bool = False) -> None:
        """To the process alone, or to its group as a terminal's Ctrl-C is sent."""
        if group:
            os.killpg(self.pid, which)
        else:
            self.process.send_signal(which)

    def end(self) -> CommandResult:
        """Wait until it has ended by itself."""
        try:
            self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it hangs; said: {self.said()}") from None
        for thread in self._threads:
            thread.join(LIMIT)
        return CommandResult(self.process.returncode, self.said("out"), self.said("err"))


@contextmanager
def started(command: Command, *args: str, **env: str) -> Iterator[Running]:
    """A command that is killed, with its group, at the end of the block if it still runs."""
    running = Running(command, args, env)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.signal(signal.SIGKILL, group=True)
            running.process.wait(LIMIT)


def until(holds: Callable[[], bool], what: str, limit: float = LIMIT) -> None:
    """Wait for something in the world outside that tells nobody when it comes."""
    end = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)


def left_behind(command: Command) -> list[str]:
    """Command lines of living processes that were started in this command's workspace or for its home."""
    home = f"HOME={command.env['HOME']}"
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and home in _environment(process.pid):
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue  # it has ended meanwhile
    return found


def _environment(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")


def no_traceback(ran: CommandResult) -> None:
    """What a person reads is words, not the inside of the program."""
    assert "Traceback" not in ran.err, ran.err
    assert "a bug in Callboard" not in ran.err, ran.err


class AtTerminal:
    """One command at a terminal of its own, whose Ctrl-C is a signal to it, with a person who types."""

    def __init__(self, command: Command, *args: str) -> None:
        self._person, theirs = os.openpty()
        line = [*command.argv[1:], *args]
        self.process = Process(
            line, command.workspace, command.env, stdin=theirs, stdout=theirs, stderr=theirs, terminal=True
        )
        os.close(theirs)
        self.shown = ""

    def wait_for(self, text: str) -> None:
        """Return when `text` is on the screen. Fails when the process ends, or time is up, without it."""
        end = time.monotonic() + LIMIT
        while text not in self.shown:
            assert select.select([self._person], [], [], max(0.0, end - time.monotonic()))[0], self.shown
            assert self._read(), f"it ended without {text!r}: {self.shown}"

    def type(self, keys: str) -> None:
        """Press these keys; `\\x03` is Ctrl-C."""
        os.write(self._person, keys.encode())

    def end(self) -> int:
        """Wait until it has ended by itself; its exit code."""
        while self._read():
            pass
        os.close(self._person)
        return self.process.wait(LIMIT)

    def _read(self) -> bool:
        try:
            piece = os.read(self._person, 65_536)
        except OSError:  # the last one at the other side has left
            return False
        self.shown += piece.decode(errors="replace")
        return bool(piece)
