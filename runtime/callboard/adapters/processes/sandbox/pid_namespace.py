"""A command in its own process namespace: its processes, and their end (levels 2 and 3).

bubblewrap is three processes: one outside, the first one inside, and Callboard's own inside. The latter starts the
command, reports its exit code and the number of remaining processes, and waits for the order to end. When the
process outside ends, the kernel ends all of them. `launch_child.py` loads this module, so it also imports only the
standard library.
"""
# ruff: noqa: PTH110, PTH123 - importing pathlib would take longer than all the rest of the start

from __future__ import annotations

import fcntl
import os
import select
import signal
import time

from callboard.adapters.kernel.exits import open_process
from callboard.adapters.processes.sandbox.command_monitor import Watch, descendants

STATUS = 3
HOLD = 4
FILTER = 5
"""Descriptors inside. `STATUS`: Callboard's process reports the end of the command. `HOLD`: the process stays while
it is open. `FILTER`: bubblewrap reads the filter."""
COVERS_PLACEHOLDER = "@covered"
"""Placeholder for the covers in the arguments of bubblewrap."""
RUNTIME_PROCESSES = 2
"""Number of processes in a namespace without processes of the command: the first one and Callboard's own."""


def fill_covers(arguments: list[str], cover: list[str], late: list[str]) -> list[str]:
    """Return the arguments of bubblewrap, with a cover over each socket that still exists.

    Services come and go. `late`: more paths that are read-only.
    """
    # bubblewrap fails if the file to cover is missing.
    covers = [word for path in cover if os.path.exists(path) for word in ("--ro-bind", "/dev/null", path)]
    covers += [word for path in late for word in ("--ro-bind-try", path, path)]
    place = arguments.index(COVERS_PLACEHOLDER)
    return [*arguments[:place], *covers, *arguments[place + 1 :]]


class InnerPipes:
    """Ends of the pipes to Callboard's process inside."""

    def __init__(self, program: bytes) -> None:
        self.status, self.status_inside = os.pipe()
        self.hold_inside, self.hold = os.pipe()
        self.filter_inside, writer = os.pipe()
        os.write(writer, program)
        os.close(writer)

    def place(self) -> None:
        """Move the ends to their expected descriptors and close all others. For the process that becomes bubblewrap."""
        # All three first go above the final numbers: a dup2 to one of these could close an end that is still needed.
        high = [
            fcntl.fcntl(descriptor, fcntl.F_DUPFD, 20)
            for descriptor in (self.status_inside, self.hold_inside, self.filter_inside)
        ]
        for number, descriptor in enumerate(high, STATUS):
            os.dup2(descriptor, number)

    def attach(self, watch: Watch) -> None:
        """Close the inner ends and listen. For the process that watches."""
        for descriptor in (self.status_inside, self.hold_inside, self.filter_inside):
            os.close(descriptor)
        watch.poll.register(self.status, select.POLLIN)

        def read_status(status: int) -> None:
            fields = os.read(status, 64).split()
            if fields[:1] == [b"begun"]:
                watch.begun = True
            if not fields or len(fields) > 1:
                watch.poll.unregister(status)
            if len(fields) > 1:
                watch.code = int(fields[-2])
                watch.left_behind = int(fields[-1]) - RUNTIME_PROCESSES

        watch.handlers[self.status] = read_status
        watch.inside = True
        watch.begun = False


def command_processes(watch: Watch) -> list[int]:
    """Return the command and its processes: all descendants except the three processes around them."""
    return [pid for pid in descendants() if pid != watch.shell and _number_inside(pid) > RUNTIME_PROCESSES]


def wait_until_ended(watch: Watch, seconds: float) -> int:
    """Wait until the command has left no process, for at most this time. Return the number of remaining processes."""
    end = time.monotonic() + seconds
    ended: dict[int, int] = {}

    def forget(descriptor: int) -> None:
        watch.poll.unregister(descriptor)
        del ended[descriptor], watch.handlers[descriptor]
        os.close(descriptor)

    while living := command_processes(watch) or command_processes(watch):  # the second look finds new orphans
        for pid in set(living) - set(ended.values()):
            descriptor = _pid_opened(pid)
            if descriptor is not None:
                ended[descriptor] = pid
                watch.handlers[descriptor] = forget
                watch.poll.register(descriptor, select.POLLIN)
        remaining = end - time.monotonic()
        if remaining <= 0:
            break
        watch.turn(remaining)
    for descriptor in list(ended):
        forget(descriptor)
    return len(living)


def _pid_opened(pid: int) -> int | None:
    try:
        return open_process(pid)
    except OSError:
        return None  # it has just ended


def _number_inside(pid: int) -> int:
    """Return the pid of a process in its innermost namespace; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return 0
    return next((int(line.split()[-1]) for line in lines if line.startswith(b"NSpid:")), 0)


def end_all(watch: Watch, grace: float) -> None:
    """Send TERM to the command and its processes, then wait for the grace time."""
    for number in (signal.SIGTERM, signal.SIGCONT):
        for pid in command_processes(watch):
            _signal(pid, number)
    wait_until_ended(watch, grace)
    _read_code(watch)


def end_namespace(watch: Watch) -> None:
    """End the process outside, so that the kernel ends all processes inside, and wait for that."""
    for _ in range(10):
        if not watch.ended:
            _signal(watch.shell, signal.SIGKILL)
        if watch.until_quiet(1.0):
            return


def _read_code(watch: Watch) -> None:
    """Read the exit code of the ended command from Callboard's process inside, which reports it now."""
    end = time.monotonic() + 0.2
    while watch.code is None and watch.children and (remaining := end - time.monotonic()) > 0:
        watch.turn(remaining)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return  # it has just ended


def wait_for_stragglers(watch: Watch, seconds: float) -> int:
    """Give the remaining processes of a command that ended by itself time to end too.

    Return the number of those that remain.
    """
    return wait_until_ended(watch, seconds) if watch.left_behind > 0 else 0
