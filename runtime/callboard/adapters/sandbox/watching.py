"""What a command writes, whether it lives, and all that came from it: the eyes of `launch_child.py`.

Imports nothing but the standard library, and little of it: each command waits for that.
"""
# ruff: noqa: PTH123, PTH208
# Importing pathlib would take longer than all the rest of the start.

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable

CONTROL = 3
"""The descriptor on which the host says go, and whose end is the host's."""


class Watch:
    """One command under way: what it writes, whether it lives, and who has to be ended."""

    def __init__(self, pipe: int, writer: int, output: int, limit: int, hold: bool) -> None:
        self.shell = 0
        self.code: int | None = None
        self.children, self.ended = True, False
        self.inside = False
        """The command lives in a process namespace of its own, see `keeping.py`."""
        self.left = 0
        """How many processes it left there, by the word of our process inside."""
        self.heard: dict[int, Callable[[int], None]] = {}
        """Who wants to know when other descriptors can be read."""
        self.pipe, self.writer, self.output = pipe, writer, output
        self.room, self.dropped = limit, 0
        self.stopping = False
        self.wake, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(self.wake, False)
        os.set_blocking(pipe, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.poll = select.poll()
        for descriptor in (self.wake, pipe) + ((CONTROL,) if hold else ()):
            self.poll.register(descriptor, select.POLLIN)

    def copy(self) -> None:
        """Take what stands in the pipe. Past the limit, or on a full disk, it is dropped and counted."""
        try:
            data = os.read(self.pipe, 1 << 18)
        except BlockingIOError:
            return
        if not data:
            self.poll.unregister(self.pipe)
            return
        keep = data[: self.room]
        self.dropped += len(data) - len(keep)
        self.room -= len(keep)
        while keep:
            try:
                keep = keep[os.write(self.output, keep) :]
            except OSError:
                self.dropped += len(keep)
                self.room = 0
                return

    def reap(self) -> None:
        """Take every ended child; the shell's code is the command's."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.children = False
                return
            if not pid:
                return
            if pid == self.shell:
                self.ended = True
            if pid == self.shell and self.code is None:
                code = os.waitstatus_to_exitcode(status)
                self.code = code if code >= 0 else 128 - code

    def turn(self, seconds: float | None) -> None:
        """Wait for the next thing to happen, and take it in."""
        for descriptor, _ in self.poll.poll(None if seconds is None else max(0, int(seconds * 1000) + 1)):
            if descriptor == self.pipe:
                self.copy()
            elif descriptor == self.wake:
                self.stopping |= signal.SIGTERM in os.read(self.wake, 4096)
            elif descriptor in self.heard:
                self.heard[descriptor](descriptor)
            else:
                self.stopping = True
                self.poll.unregister(CONTROL)
        self.reap()

    def until_quiet(self, seconds: float) -> bool:
        """Wait until no child is left, at most that long. Whether none is."""
        end = time.monotonic() + seconds
        while self.children and (left := end - time.monotonic()) > 0:
            self.turn(left)
        return not self.children

    def drain(self) -> None:
        """Take what still stands in the pipe, also when a process that we cannot see holds its other end."""
        end = time.monotonic() + 1.0
        reader = select.poll()
        reader.register(self.pipe, select.POLLIN)
        while time.monotonic() < end and any(event & select.POLLIN for _, event in reader.poll(0)):
            self.copy()


def descendants() -> list[int]:
    """All that came from this process and still lives, by /proc."""
    parents: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] != b"Z":
            parents.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        born = parents.get(todo.pop(), [])
        found += born
        todo += born
    return found


def signal_all(number: int) -> int:
    """Send a signal to every descendant; how many there were."""
    there = descendants()
    for pid in there:
        try:
            os.kill(pid, number)
        except OSError:
            continue  # it has just ended
    return len(there)
