"""Monitor of a command for `launch_child.py`: its output, its end, and all its processes.

This module imports only a small part of the standard library, because each command waits for the import.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable

from callboard.adapters.kernel.exits import open_process
from callboard.adapters.kernel.process_table import rows

CONTROL = 3
"""Descriptor on which the host sends the start byte, and whose end means the host's end.

A second byte moves a foreground command to the background."""


class Watch:
    """One running command: its output, its state, and the processes to end."""

    def __init__(self, pipe: int, writer: int, output: int, *, limit: int, hold: bool) -> None:
        self.shell = 0
        self.code: int | None = None
        self.children = True
        self.ended = False
        self.inside = False
        """True if the command has its own process namespace, see `pid_namespace.py`."""
        self.begun = True
        """True if the restrictions apply and the command was started. In a process namespace, Callboard's process
        inside reports it."""
        self.left_behind = 0
        """Number of processes that the command left inside, as reported by Callboard's process there."""
        self.orphans: dict[int, int] = {}
        """Descriptors of remaining processes that are not children of this one, and their pids."""
        self.handlers: dict[int, Callable[[int], None]] = {}
        """Callbacks for other descriptors, called once they can be read."""
        self.pipe = pipe
        self.writer = writer
        self.output = output
        self.room = limit
        self.dropped = 0
        self.stopping = False
        self.moved = False
        """True if the host has moved the command to the background: then the host's end does not end it."""
        self.on_move: Callable[[], None] = lambda: None
        """Function to call when the command is moved to the background."""
        self.wake, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(self.wake, False)
        os.set_blocking(pipe, False)
        # A signal between a check and the poll is in this pipe and wakes the poll; a handler alone would run too early.
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.poll = select.poll()
        for descriptor in (self.wake, pipe) + ((CONTROL,) if hold else ()):
            self.poll.register(descriptor, select.POLLIN)

    def copy(self) -> None:
        """Read the pipe. Data past the limit, or on a full disk, is dropped and counted."""
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
                # The command must not stop because the disk is full
                # (test_a_full_disk_drops_output_and_keeps_the_exit_code).
                self.dropped += len(keep)
                self.room = 0
                return

    def reap(self) -> None:
        """Reap every ended child; the shell's exit code is the command's."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.children = self._has_orphans()
                return
            if not pid:
                return
            if pid == self.shell:
                self.ended = True
            if pid == self.shell and self.code is None:
                code = os.waitstatus_to_exitcode(status)
                self.code = code if code >= 0 else 128 - code

    def _has_orphans(self) -> bool:
        """Listen for the ends of remaining processes that this one could not adopt. Return True if there are any."""
        if can_adopt():
            return False
        for pid in set(descendants()) - set(self.orphans.values()):
            try:
                descriptor = open_process(pid)
            except OSError:
                continue  # it has just ended
            self.orphans[descriptor] = pid
            self.handlers[descriptor] = self._forget
            self.poll.register(descriptor, select.POLLIN)
        return bool(self.orphans)

    def _forget(self, descriptor: int) -> None:
        self.poll.unregister(descriptor)
        del self.orphans[descriptor], self.handlers[descriptor]
        os.close(descriptor)

    def turn(self, seconds: float | None) -> None:
        """Wait for the next event, and process it."""
        # Rounded up: a remainder below a millisecond would make the loop spin.
        for descriptor, _ in self.poll.poll(None if seconds is None else max(0, int(seconds * 1000) + 1)):
            if descriptor == self.pipe:
                self.copy()
            elif descriptor == self.wake:
                self.stopping |= signal.SIGTERM in os.read(self.wake, 4096)
            elif descriptor in self.handlers:
                self.handlers[descriptor](descriptor)
            else:
                self.moved = bool(os.read(CONTROL, 1))
                self.stopping |= not self.moved
                self.poll.unregister(CONTROL)
                if self.moved:
                    self.on_move()
        self.reap()

    def was_moved(self) -> bool:
        """Return True if the host has moved the command to the background, also while the command was ending.

        Without a look at the end, a byte that came after the last poll would be missed.
        """
        if not self.moved and not self.stopping:
            control = select.poll()
            control.register(CONTROL, select.POLLIN)
            self.moved = bool(control.poll(0)) and bool(os.read(CONTROL, 1))
            if self.moved:
                self.on_move()
        return self.moved

    def until_quiet(self, seconds: float) -> bool:
        """Wait until no child is left, for at most this time. Return True if none is left."""
        end = time.monotonic() + seconds
        while self.children and (remaining := end - time.monotonic()) > 0:
            self.turn(remaining)
        return not self.children

    def drain(self) -> None:
        """Read the rest of the pipe, even if an invisible process holds its other end."""
        end = time.monotonic() + 1.0
        reader = select.poll()
        reader.register(self.pipe, select.POLLIN)
        while time.monotonic() < end and any(event & select.POLLIN for _, event in reader.poll(0)):
            self.copy()


class ErrorStream:
    """Standard error of a command with a separate file. Data past the limit is dropped."""

    def __init__(self, path: str, limit: int) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.room = limit

    def attach(self, watch: Watch) -> None:
        """Close the command's end and listen. For the process that watches."""
        os.close(self.writer)

        def copy_output(descriptor: int) -> None:
            if not self.copy():
                watch.poll.unregister(descriptor)

        watch.handlers[self.reader] = copy_output
        watch.poll.register(self.reader, select.POLLIN)

    def copy(self) -> bool:
        """Read the pipe; return False at its end."""
        try:
            data = os.read(self.reader, 1 << 18)
        except BlockingIOError:
            return True
        keep = data[: self.room]
        self.room -= len(keep)
        try:
            while keep:
                keep = keep[os.write(self.file, keep) :]
        except OSError:
            self.room = 0
        return bool(data)

    def drain(self) -> None:
        """Read the rest of the pipe, even if an invisible process holds its other end."""
        end = time.monotonic() + 1.0
        reader = select.poll()
        reader.register(self.reader, select.POLLIN)
        while time.monotonic() < end and any(event & select.POLLIN for _, event in reader.poll(0)):
            if not self.copy():
                return


PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Let orphans become children of this process, if the kernel can do that.

    Otherwise its session holds them together, which this process leads: see `descendants`.
    """
    if can_adopt():
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def can_adopt() -> bool:
    """Return True if the kernel makes orphans children of the process that asks for it."""
    return sys.platform.startswith("linux")


def close_from(lowest: int, most: int) -> None:
    """Close all descriptors from this one on. `most`: the kernel is asked to close those below this number.

    Without `close_range` each number would be a call of the kernel, so that only the open ones are closed.
    """
    if sys.platform.startswith("linux"):
        os.closerange(lowest, most)
        return
    for descriptor in sorted(int(name) for name in os.listdir("/dev/fd") if name.isdecimal()):  # noqa: PTH208 - importing pathlib would take longer than all the rest of the start
        if descriptor >= lowest:
            os.closerange(descriptor, descriptor + 1)


def descendants() -> list[int]:
    """Return all living descendants of this process.

    If the kernel does not let a process adopt orphans (macOS), the processes of its session count too. An orphan that
    began a session of its own is then not found.
    """
    found = rows()
    own = os.getpid()
    parents: dict[int, list[int]] = {}
    for row in found:
        parents.setdefault(row.parent, []).append(row.pid)
    pids = [] if can_adopt() else [row.pid for row in found if row.session == own != row.pid]
    todo = [own, *pids]
    while todo:
        born = [pid for pid in parents.get(todo.pop(), []) if pid not in pids]
        pids += born
        todo += born
    return pids


def signal_all(number: int) -> int:
    """Send a signal to every descendant, and return their number."""
    pids = descendants()
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue  # it has just ended
    return len(pids)


def end_descendants(watch: Watch, grace: float) -> None:
    """Send TERM, wait, send KILL, until no process is left; the next round finds processes created in between."""
    signal_all(signal.SIGTERM)
    # A stopped process handles TERM only once it continues.
    signal_all(signal.SIGCONT)
    if watch.until_quiet(grace):
        return
    for _ in range(50):
        signal_all(signal.SIGKILL)
        if watch.until_quiet(0.1):
            return
