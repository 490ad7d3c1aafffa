"""A command that lives in a process namespace of its own: who is in there, and how all of it ends (levels 2 and 3).

bubblewrap is three processes: outside, the first inside, and ours, which starts the command, says its exit code and how
many processes are left, and stays until it is told to go. When the one outside ends the kernel ends all of them.
Loaded by `launch_child.py`, which imports nothing but the standard library, so this file does the same.
"""
# ruff: noqa: PTH102, PTH106, PTH108, PTH110, PTH123

from __future__ import annotations

import fcntl
import os
import select
import signal
import time

from callboard.adapters.sandbox.watching import Watch, descendants

STATUS, HOLD, FILTER = 3, 4, 5
"""Descriptors inside: our process says how the command ended; it stays while this is open; bubblewrap reads the filter.
"""
COVERED = "@covered"
"""Stands in the words of bubblewrap where the covers belong."""
EVERYONE = 2
"""Processes of a namespace in which the command has left nobody: the first and ours."""


def words_of(words: list[str], cover: list[str]) -> list[str]:
    """The words of bubblewrap, with a cover over each socket that is still there: services come and go."""
    covers = [word for path in cover if os.path.exists(path) for word in ("--ro-bind", "/dev/null", path)]
    place = words.index(COVERED)
    return [*words[:place], *covers, *words[place + 1 :]]


class Keeper:
    """The ends of the pipes to our process inside."""

    def __init__(self, program: bytes) -> None:
        self.status, self.status_inside = os.pipe()
        self.hold_inside, self.hold = os.pipe()
        self.filter_inside, writer = os.pipe()
        os.write(writer, program)
        os.close(writer)

    def place(self) -> None:
        """In the process that becomes bubblewrap: put the ends where they are looked for, and keep nothing else."""
        high = [
            fcntl.fcntl(one, fcntl.F_DUPFD, 20) for one in (self.status_inside, self.hold_inside, self.filter_inside)
        ]
        for number, one in enumerate(high, STATUS):
            os.dup2(one, number)

    def attach(self, watch: Watch) -> None:
        """In the process that watches: give the inner ends away and listen."""
        for one in (self.status_inside, self.hold_inside, self.filter_inside):
            os.close(one)
        watch.poll.register(self.status, select.POLLIN)

        def said(status: int) -> None:
            watch.poll.unregister(status)
            words = os.read(status, 64).split()
            if len(words) == 2:
                watch.code, watch.left = int(words[0]), int(words[1]) - EVERYONE

        watch.heard[self.status] = said
        watch.inside = True


def inhabitants(watch: Watch) -> list[int]:
    """The command and what it started: all that came from us but the three processes round them."""
    return [pid for pid in descendants() if pid != watch.shell and _number_inside(pid) > EVERYONE]


def until_alone(watch: Watch, seconds: float) -> int:
    """Wait until the command has left nobody, at most that long; how many are left."""
    end = time.monotonic() + seconds
    ended: dict[int, int] = {}

    def forget(descriptor: int) -> None:
        watch.poll.unregister(descriptor)
        del ended[descriptor], watch.heard[descriptor]
        os.close(descriptor)

    while living := inhabitants(watch) or inhabitants(watch):  # who is orphaned while we look is seen the second time
        for pid in set(living) - set(ended.values()):
            descriptor = _pid_opened(pid)
            if descriptor is not None:
                ended[descriptor], watch.heard[descriptor] = pid, forget
                watch.poll.register(descriptor, select.POLLIN)
        left = end - time.monotonic()
        if left <= 0:
            break
        watch.turn(left)
    for descriptor in list(ended):
        forget(descriptor)
    return len(living)


def _pid_opened(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None  # it has just ended


def _number_inside(pid: int) -> int:
    """What a process is called in the innermost namespace that it lives in; 0: it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return 0
    return next((int(line.split()[-1]) for line in lines if line.startswith(b"NSpid:")), 0)


def end_all(watch: Watch, grace: float) -> None:
    """TERM to what the command is and started, then a grace."""
    for number in (signal.SIGTERM, signal.SIGCONT):
        for pid in inhabitants(watch):
            _signal(pid, number)
    until_alone(watch, grace)
    _hear_code(watch)


def release(watch: Watch) -> None:
    """End the process outside, and with it, by the kernel, whatever is inside; wait until that is done."""
    for _ in range(10):
        if not watch.ended:
            _signal(watch.shell, signal.SIGKILL)
        if watch.until_quiet(1.0):
            return


def _hear_code(watch: Watch) -> None:
    """The command has ended: our process inside is about to say how, or has."""
    end = time.monotonic() + 0.2
    while watch.code is None and watch.children and (left := end - time.monotonic()) > 0:
        watch.turn(left)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return  # it has just ended


def linger(watch: Watch, seconds: float) -> int:
    """The command has ended by itself: what it left has a moment to do so too. How many are still there then."""
    return until_alone(watch, seconds) if watch.left > 0 else 0


class Places:
    """Names in the workspace that have to be there to be shut, though nobody has made them: empty folders, which are
    taken away again when the last command that needs them has ended.

    Who needs them holds the lock shared. Whoever gets it alone afterwards is the last, and removes what the lock's file
    names; `rmdir` never takes away a folder that holds something.
    """

    def __init__(self, lock: str, paths: list[str]) -> None:
        self.lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600) if lock else -1
        if lock:
            fcntl.flock(self.lock, fcntl.LOCK_SH)
        for path in paths:
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                continue  # somebody made it, perhaps another command for the same purpose
            os.write(self.lock, os.fsencode(path) + b"\0")

    def leave(self) -> None:
        """This command needs them no more."""
        if self.lock < 0:
            return
        try:
            fcntl.flock(self.lock, fcntl.LOCK_UN)
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return  # somebody else needs them, and removes them
        for path in filter(None, os.pread(self.lock, 1 << 20, 0).split(b"\0")):
            try:
                os.rmdir(path)
            except OSError:
                continue  # it is gone, or it is somebody's now
        os.ftruncate(self.lock, 0)


def take_away(paths: list[str]) -> list[str]:
    """Remove what the command must not have made and could not be kept from making; which of them there were."""
    found: list[str] = []
    for path in paths:
        try:
            os.unlink(path)
        except OSError:
            continue  # as it should be: it is not there
        found.append(path)
    return found
