"""A process that has imported the package, and becomes a command each time it is asked: Python's start is paid once.

What it becomes is a process like any other: its own pid, working directory, environment and standard streams, and its
own end, through the interpreter's own exit. It has one thread and has opened nothing when it is copied.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import tempfile
import time

OWN = ("__main__", "_child", "callboard.data", "callboard._builtin")
"""What is no module to import: programs, and data."""


def load() -> None:
    """Import what commands import, the service's library and the prompt line too."""
    import callboard

    for module in pkgutil.walk_packages(callboard.__path__, "callboard."):
        if not any(part in module.name for part in OWN):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()


def requests(asked: socket.socket) -> None:
    """Copy this process for each request. Returns in a copy, with everything in place, and ends when nobody asks."""
    while True:
        header, given, _, _ = socket.recv_fds(asked, 8, 4)
        if not header:
            asked.close()
            raise SystemExit(0)
        size, body = int.from_bytes(header, "big"), b""
        while len(body) < size:
            body += asked.recv(size - len(body))
        minder = os.fork()
        if not minder:
            asked.close()
            mind(given)
            become(json.loads(body), given[:3])
            return
        for one in given:
            os.close(one)
        reap()


def reap() -> None:
    """Let go of the minders whose processes have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return  # there is none left


def mind(given: list[int]) -> None:
    """Make the process that was asked for, say which it is, wait for it, and say how it ended. Returns in it."""
    pid = os.fork()
    if not pid:
        os.close(given[3])
        return
    for one in given[:3]:
        os.close(one)
    os.write(given[3], f"{pid}\n".encode())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status = os.waitpid(pid, 0)[1]
    os.write(given[3], f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def become(asked: dict[str, object], streams: list[int]) -> None:
    """Take on the folder, the environment and the streams, as a new interpreter would."""
    if asked["new_session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if asked["terminal"]:
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(str(asked["cwd"]))
    os.environ.clear()
    os.environ.update(asked["env"])  # type: ignore[arg-type]
    time.tzset()
    tempfile.tempdir = None
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    encoding = sys.stdout.encoding
    sys.stdin = os.fdopen(0, encoding=encoding, errors=sys.stdin.errors, closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding=encoding, errors=sys.stdout.errors, closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding=encoding, errors="backslashreplace", closefd=False)
    sys.stdout.reconfigure(line_buffering=os.isatty(1), write_through=unbuffered)
    sys.stderr.reconfigure(line_buffering=True, write_through=unbuffered)
    sys.argv = ["", *asked["arguments"]]  # type: ignore[misc]


def run() -> None:
    """As `python ARGUMENTS` does: a module, or a file."""
    if sys.argv[1] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = sys.argv[2:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = sys.argv[1:]
        sys.path[0] = os.path.dirname(sys.argv[0])
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    load()
    requests(socket.socket(fileno=int(sys.argv[1])))
    run()
