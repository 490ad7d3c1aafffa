"""A process that has imported the package, and becomes a command each time it is asked: Python's start is paid once.

What it becomes is a process like any other: its own pid, working directory, environment and standard streams, and its
own end. It has one thread and has opened nothing when it is copied.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import gc
import importlib
import json
import mmap
import os
import pkgutil
import runpy
import select
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass

OWN = ("__main__", "_child", "callboard.data", "callboard._builtin")
"""What is no module to import: programs, and data."""

LATE = ("anyio._backends._asyncio", "anyio.streams.tls", "encodings.utf_8_sig", "httpcore2")
"""What the first event loop and the first HTTP client of a process import: half of the time of a short command."""

LARGE, COLLAPSE = 1 << 21, 25
"""Bytes of a large page, and the advice to make large pages of small ones (Linux 6.1), which Python does not name."""


def load() -> None:
    """Import what commands import, the service's library and the prompt line too."""
    import callboard
    from callboard.core.agent import snapshot

    for module in pkgutil.walk_packages(callboard.__path__, "callboard."):
        if not any(part in module.name for part in OWN):
            importlib.import_module(module.name)
    for name in LATE:
        importlib.import_module(name)
    snapshot.shape()  # it is kept
    build()
    gc.collect()
    gc.freeze()
    use_large_pages()


def use_large_pages() -> None:
    """Put the memory of this process on pages of 2 MB: a copy of it then costs 11 ms in place of 25, because most of
    that is the table of its pages. Where the system has no such pages, nothing changes."""
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    with open("/proc/self/maps", encoding="ascii") as file:
        maps = [line.split() for line in file]
    for place, rights, _, _, _, *names in maps:
        first, end = (int(number, 16) for number in place.split("-"))
        first, end = -(-first // LARGE) * LARGE, end // LARGE * LARGE
        if rights == "rw-p" and names in ([], ["[heap]"]) and first < end:
            for advice in (mmap.MADV_HUGEPAGE, COLLAPSE):
                advise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), advice)


def build() -> None:
    """Build what the package leaves to its first use, and each copy would build anew: validators of models, schemas of
    tools, methods of data classes, patterns."""
    from pydantic import BaseModel

    from callboard.adapters.tools import base
    from callboard.types import late_pattern

    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "callboard"]
    values = [value for module in modules for value in list(vars(module).values())]
    for value in values:
        if isinstance(value, late_pattern._LatePattern):
            _ = value.search
    kinds = {value for value in values if isinstance(value, type)}
    for kind in kinds:
        if not kind.__module__.startswith("callboard"):
            continue
        if issubclass(kind, BaseModel):
            kind.model_rebuild()
            if issubclass(kind, base.ToolInput):
                base.schema_of(kind)  # it is kept
        elif dataclasses.is_dataclass(kind):
            _ = kind.__init__, kind.__eq__, kind.__hash__


def requests(listening: socket.socket) -> None:
    """Copy this process for each request. Returns in a copy, with everything in place, and ends when stdin does.

    This process also waits for its copies: one more copy for that would cost half as much as a short command.
    """
    copies: dict[int, Copy] = {}
    sockets = [listening]
    while True:
        ready, _, _ = select.select([0, *sockets, *copies], [], [])
        if 0 in ready:
            for one in sockets:
                one.close()
            raise SystemExit(0)
        for descriptor in copies.keys() & set(ready):
            copies.pop(descriptor).report(descriptor)
        for one in [one for one in sockets if one in ready]:
            if one is listening:
                sockets.append(listening.accept()[0])
            elif (request := receive(one)) is None:
                sockets.remove(one)
                one.close()
            elif is_copy(request[1], copies):
                for file in (*(one.detach() for one in sockets), *copies, *(copy.status for copy in copies.values())):
                    os.close(file)
                become(request[0], request[1][:3])
                return


def receive(asking: socket.socket) -> tuple[dict[str, object], list[int]] | None:
    """Return one request and its streams; nothing where nobody asks any more."""
    header, given, _, _ = socket.recv_fds(asking, 8, 4)
    if not header:
        return None
    size, body = int.from_bytes(header, "big"), b""
    while len(body) < size:
        body += asking.recv(size - len(body))
    return json.loads(body), given


def is_copy(given: list[int], copies: dict[int, Copy]) -> bool:
    """Copy this process, and return True in the copy. The last of the streams is told the copy's id."""
    pid = os.fork()
    if not pid:
        os.close(given[3])
        return True
    for file in given[:3]:
        os.close(file)
    copies[os.pidfd_open(pid)] = Copy(pid, given[3])
    tell(given[3], str(pid))
    return False


@dataclass(frozen=True)
class Copy:
    """A process that was asked for, and the pipe into which its end is written."""

    pid: int
    status: int

    def report(self, descriptor: int) -> None:
        """Say how it ended and its CPU time with that of the processes that it waited for, and let go of it."""
        os.close(descriptor)
        _, status, usage = os.wait4(self.pid, 0)
        tell(self.status, f"{os.waitstatus_to_exitcode(status)} {usage.ru_utime + usage.ru_stime}")
        os.close(self.status)


def tell(status: int, text: str) -> None:
    """Write a line for who asked, if they still listen."""
    with contextlib.suppress(BrokenPipeError):
        os.write(status, f"{text}\n".encode())


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
    os.environ.update(asked["env"])
    time.tzset()
    tempfile.tempdir = None
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    encoding = sys.stdout.encoding
    sys.stdin = os.fdopen(0, encoding=encoding, errors=sys.stdin.errors, closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding=encoding, errors=sys.stdout.errors, closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding=encoding, errors="backslashreplace", closefd=False)
    sys.stdout.reconfigure(line_buffering=os.isatty(1), write_through=unbuffered)
    sys.stderr.reconfigure(line_buffering=True, write_through=unbuffered)
    sys.argv = ["", *asked["arguments"]]


def run() -> None:
    """As `python ARGUMENTS` does: a module, or a file."""
    if sys.argv[1] == "-m":
        sys.path[:1] = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        sys.argv = sys.argv[2:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = sys.argv[1:]
        sys.path[0] = os.path.dirname(sys.argv[0])
        runpy.run_path(sys.argv[0], run_name="__main__")


def finish(code: int) -> None:
    """End as the interpreter does, without taking apart the modules: to free a thousand of them one by one takes most
    of the time of a short command. Returns where the output cannot be written; the interpreter then ends it."""
    threading._shutdown()  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    gc.collect()  # what was left open is warned of
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    os._exit(code)


def whole() -> int | None:
    """Run the program: its exit code. Raises what it raises, and `SystemExit` where the code is no number."""
    try:
        run()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code
        raise
    return 0


if __name__ == "__main__":
    if 0 in select.select([0, int(sys.argv[1])], [], [])[0]:  # the imports wait for somebody who needs them
        raise SystemExit(0)
    load()
    requests(socket.socket(fileno=int(sys.argv[1])))
    code = whole() or 0
    finish(code)
    raise SystemExit(code)
