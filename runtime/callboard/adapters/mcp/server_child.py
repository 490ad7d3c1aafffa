"""Process between the runtime and an MCP server.

It starts the server, keeps its standard error, and ends it with all its processes when the runtime requests that or is
gone.

`transports.py` runs it as a script with only the standard library. It leads its own session and reaps all processes
that the server leaves. Standard input and output belong to the server, and this process never uses them. The server is
not sandboxed: the user trusted its command (docs/mcp.md).

argv: LOG LIMIT FOLDER PROGRAM WORDS... The end of descriptor 3 means that the host wants the server to end, or is gone
itself. The environment is the server's.
"""
# ruff: noqa: PTH100, PTH120 - importing pathlib would take longer than all the rest of the start

from __future__ import annotations

import os
import resource
import signal
import sys

if __name__ == "__main__":  # a package of that name without its `__init__`, which would import unneeded modules
    package = type(sys)("callboard")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    sys.modules["callboard"] = package

from callboard.adapters.processes.sandbox.command_monitor import (
    CONTROL,
    Watch,
    adopt_orphans,
    close_from,
    descendants,
    end_descendants,
    signal_all,
)
from callboard.adapters.processes.tool_mark import mark_process
from callboard.adapters.system import release

GRACE = 2.0
"""Seconds between TERM and KILL."""
OPEN_FILES = 4096
NOT_RUN = 126


def prepare() -> None:
    """Set up level L0 except for the umask, which is the user's.

    The level is the mark of tools, no new privileges, no core dumps, and adoption of orphans.
    """
    adopt_orphans()
    mark_process()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    close_from(CONTROL + 1, 1 << 16)


def become_server(watch: Watch) -> None:
    """Turn this forked process into the server. Does not return."""
    try:
        signal.set_wakeup_fd(-1)
        os.setpgid(0, 0)
        os.dup2(watch.writer, 2)
        close_from(3, OPEN_FILES)
        for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(sys.argv[3])
        os.execv(sys.argv[4], sys.argv[5:])  # noqa: S606 - trusted before
    except BaseException as error:  # noqa: BLE001 - this process has no caller to raise to
        os.write(2, f"{sys.argv[4]} could not be started: {error}\n".encode(errors="replace"))
    finally:
        os._exit(NOT_RUN)


def on_signal(number: int, frame: object) -> None:
    """Do nothing except wake the poll: a signal without a handler is not written to the wake-up descriptor."""


def main() -> int:
    """Run the server to its end and return its exit code."""
    prepare()
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, on_signal)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if differs := release.parent_differs():
        os.write(log, differs.encode())
        return NOT_RUN
    watch = Watch(*os.pipe(), log, limit=int(sys.argv[2]), hold=True)
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
        end_descendants(watch, GRACE)
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
