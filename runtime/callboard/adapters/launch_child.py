"""The process between the runtime and a command: it changes itself (level L0), starts the command, and outlives it.

Run as a script by `launcher.py` with nothing but the standard library, before any package can be imported. It is the
leader of a session of its own and the reaper of all that the command leaves behind, also of what made a session of its
own. The command's output goes through one pipe, so that both streams keep their order and `> /dev/stderr` truncates
nothing, into the output file. Nothing of the command is alive when this process has ended.

argv: OUTPUT LIMIT MODE FOLDER SHELL COMMAND. MODE `hold`: it ends with its host, or on a word of it; `free`: it goes on
when the host dies, and leaves `OUTPUT.exit`. Descriptor 3: one byte means go, its end means that the host is gone.
Refuses to run anything when the host died before saying go.
"""
# ruff: noqa: PTH104, PTH108, PTH123, PTH208
# Importing pathlib would take longer than all the rest of the start.

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import time

GRACE = 2.0
"""Seconds between TERM and KILL."""
LINGER = 0.5
"""Seconds that processes left by a finished command have to end by themselves (`> >(tee log)`)."""
CONTROL = 3
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
OPEN_FILES = 4096
NOT_RUN = 125
EXIT_ROOM = 8
"""Bytes of the file with the exit code."""


class Watch:
    """One command under way: what it writes, whether it lives, and who has to be ended."""

    def __init__(self, pipe: int, output: int, limit: int, hold: bool) -> None:
        self.shell = 0
        self.code: int | None = None
        self.children = True
        self.pipe, self.output, self.room, self.dropped = pipe, output, limit, 0
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
                code = os.waitstatus_to_exitcode(status)
                self.code = code if code >= 0 else 128 - code

    def turn(self, seconds: float | None) -> None:
        """Wait for the next thing to happen, and take it in."""
        for descriptor, _ in self.poll.poll(None if seconds is None else max(0, int(seconds * 1000) + 1)):
            if descriptor == self.pipe:
                self.copy()
            elif descriptor == self.wake:
                self.stopping |= signal.SIGTERM in os.read(self.wake, 4096)
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


def end_all(watch: Watch) -> None:
    """TERM, a grace, KILL, until nothing is left: what is born meanwhile is seen in the next round."""
    signal_all(signal.SIGTERM)
    signal_all(signal.SIGCONT)
    if watch.until_quiet(GRACE):
        return
    for _ in range(50):
        signal_all(signal.SIGKILL)
        if watch.until_quiet(0.1):
            return


def become_shell(pipe: int, folder: str, shell: str, command: str) -> None:
    """Turn this forked process into the command. Does not return."""
    try:
        signal.set_wakeup_fd(-1)
        os.setpgid(0, 0)
        os.dup2(pipe, 1)
        os.dup2(pipe, 2)
        os.closerange(3, OPEN_FILES)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(folder)
        os.execv(shell, ["bash", "--noprofile", "--norc", "-c", command])  # noqa: S606 - judged before
    except BaseException as error:  # noqa: BLE001 - this process has no caller to raise to
        os.write(2, f"The command could not be started: {error}\n".encode(errors="replace"))
    finally:
        os._exit(126)


def prepare() -> None:
    """Level L0: no new privileges, no core, a sane number of files, private files; and orphans come to us."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    os.closerange(CONTROL + 1, 1 << 20)
    os.umask(0o077)


def leave(path: str, text: str) -> None:
    """Write a small file whole or not at all."""
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(path + ".part", path)


def save_room(output: str) -> None:
    """Take the disk's room for the exit code before there is one: a full disk shall not make the command a lost one."""
    descriptor = os.open(output + ".exit.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, b" " * EXIT_ROOM)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def leave_code(output: str, code: int) -> None:
    """Leave the exit code in the room that was kept for it. Where even that fails a host that lives gets it from us."""
    try:
        descriptor = os.open(output + ".exit.part", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, f"{code}\n".encode().ljust(EXIT_ROOM), 0)
        finally:
            os.close(descriptor)
        os.rename(output + ".exit.part", output + ".exit")
    except OSError:
        return


def finish(watch: Watch, left_behind: int) -> None:
    """The last words of the output file: what was left behind and ended, what did not fit."""
    notes = ""
    if left_behind:
        notes += f"\n[Processes that the command left behind were ended ({left_behind}). "
        notes += "What is meant to go on needs run_in_background.]\n"
    if watch.dropped:
        notes += f"\n[{watch.dropped} more bytes of output were dropped.]\n"
    try:
        os.write(watch.output, notes.encode())
    except OSError:
        return  # a full disk: the exit code still tells how the command ended


def heard(number: int, frame: object) -> None:
    """Only wakes the poll: a signal without a handler would not be written to the wake-up descriptor."""


def take_place(output: str) -> int:
    """Open the output file and leave beside it who writes it: found there even if the host dies this very moment."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open("/proc/self/stat", encoding="utf-8") as file:
        started = file.read().rpartition(")")[2].split()[19]
    leave(output + ".pid", f"{os.getpid()} {started} {this_boot()}\n")
    return descriptor


def this_boot() -> str:
    """The id of this boot; empty where the kernel does not tell it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def see_through(watch: Watch) -> int:
    """Watch the command until it and all of its kind have ended; its exit code."""
    watch.reap()
    while watch.code is None and not watch.stopping:
        watch.turn(None)
    left_behind = 0
    if watch.stopping:
        end_all(watch)
    elif watch.children and not watch.until_quiet(LINGER):
        left_behind = len(descendants())
        end_all(watch)
    watch.drain()
    finish(watch, left_behind)
    return 128 + signal.SIGKILL if watch.code is None else watch.code


def main() -> int:
    """Run the command to its end; the command's exit code, `NOT_RUN` when it was not run at all."""
    output, limit, mode, folder, shell, command = sys.argv[1:7]
    prepare()
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, heard)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    descriptor = take_place(output)
    if mode == "free":
        save_room(output)
    if not os.read(CONTROL, 1):
        return NOT_RUN
    reader, writer = os.pipe()
    watch = Watch(reader, descriptor, int(limit), mode == "hold")
    watch.shell = os.fork()
    if not watch.shell:
        become_shell(writer, folder, shell, command)
    os.close(writer)
    code = see_through(watch)
    if mode == "free":
        leave_code(output, code)
    try:
        os.unlink(output + ".pid")
    except OSError:
        return code  # its folder was removed under us
    return code


if __name__ == "__main__":
    try:
        outcome = main()
    except BaseException:  # noqa: BLE001 - the host reads it from the exit code; there is nowhere to print to
        signal_all(signal.SIGKILL)
        outcome = NOT_RUN
    os._exit(outcome)
