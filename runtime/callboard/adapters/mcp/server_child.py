"""The process between the runtime and an MCP server: it starts the server, keeps what that says on standard error, and
ends it with all that came from it when the runtime says so or is gone.

Run as a script by `process.py` with nothing but the standard library. It is the leader of a session of its own and the
reaper of all that the server leaves behind. Standard input and output are the server's, this process never touches
them. The server stands behind no walls: a person trusted its command (docs/mcp.md).

argv: LOG LIMIT FOLDER PROGRAM WORDS... Descriptor 3: its end means that the host wants the server gone, or is gone
itself. The environment is the server's.
"""
# ruff: noqa: PTH100, PTH120
# Importing pathlib would take longer than all the rest of the start.

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

if __name__ == "__main__":  # a package of that name without its `__init__`, which imports what is of no use here
    package = type(sys)("callboard")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    sys.modules["callboard"] = package

from callboard.adapters.sandbox.watching import CONTROL, Watch, descendants, signal_all

GRACE = 2.0
"""Seconds between TERM and KILL."""
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
OPEN_FILES = 4096
NOT_RUN = 126


def prepare() -> None:
    """Level L0 but for the umask, which is the person's: no new privileges, no core, orphans come to us."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.closerange(CONTROL + 1, 1 << 16)


def become_server(watch: Watch) -> None:
    """Turn this forked process into the server. Does not return."""
    try:
        signal.set_wakeup_fd(-1)
        os.setpgid(0, 0)
        os.dup2(watch.writer, 2)
        os.closerange(3, OPEN_FILES)
        for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(sys.argv[3])
        os.execv(sys.argv[4], sys.argv[5:])  # noqa: S606 - trusted before
    except BaseException as error:  # noqa: BLE001 - this process has no caller to raise to
        os.write(2, f"{sys.argv[4]} could not be started: {error}\n".encode(errors="replace"))
    finally:
        os._exit(NOT_RUN)


def end_all(watch: Watch) -> None:
    """TERM, a grace, KILL, until nothing is left."""
    signal_all(signal.SIGTERM)
    signal_all(signal.SIGCONT)
    if watch.until_quiet(GRACE):
        return
    for _ in range(50):
        signal_all(signal.SIGKILL)
        if watch.until_quiet(0.1):
            return


def heard(number: int, frame: object) -> None:
    """Only wakes the poll: a signal without a handler would not be written to the wake-up descriptor."""


def main() -> int:
    """See the server through to its end; its exit code."""
    prepare()
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, heard)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    watch = Watch(*os.pipe(), log, int(sys.argv[2]), True)
    watch.shell = os.fork()
    if not watch.shell:
        become_server(watch)
    os.close(watch.writer)
    for number in (0, 1):
        os.close(number)  # the server's alone: their end must be seen
    watch.reap()
    while watch.code is None and not watch.stopping:
        watch.turn(None)
    if watch.stopping or descendants():
        end_all(watch)
    watch.drain()
    if watch.dropped:
        os.write(log, f"\n[{watch.dropped} more bytes were dropped.]\n".encode())
    return 128 + signal.SIGKILL if watch.code is None else watch.code


if __name__ == "__main__":
    try:
        outcome = main()
    except BaseException:  # noqa: BLE001 - the host reads it from the exit code
        signal_all(signal.SIGKILL)
        outcome = NOT_RUN
    os._exit(outcome & 0xFF)
