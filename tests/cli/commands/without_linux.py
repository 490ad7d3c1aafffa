"""Simulation of a system that is not Linux: what only Linux has is taken away from this process, and from its children.

It shows what breaks without those parts. It is not macOS: the kernel, the libraries, and the shell remain those of
Linux, `sandbox-exec` does not exist, and a stand-in replaces `kqueue` for ends of processes, and `ps`.

Run with the path of a script of Callboard to run it in the simulation; otherwise `install` simulates in this process.
"""

from __future__ import annotations

import builtins
import ctypes
import io
import os
import resource
import runpy
import select
import selectors
import signal
import socket
import sys
import sysconfig
import types
from collections.abc import Callable
from typing import Any

HERE = os.path.abspath(__file__)
PS = os.path.join(os.path.dirname(HERE), "macos_ps.py")
GONE: dict[Any, tuple[str, ...]] = {
    os: (
        *("pidfd_open", "eventfd", "eventfd_read", "eventfd_write", "memfd_create", "pipe2", "fdatasync", "getrandom"),
        *("sched_getaffinity", "sched_setaffinity", "sched_getparam", "sched_setscheduler", "copy_file_range"),
        *("splice", "posix_fadvise", "posix_fallocate", "getxattr", "setxattr", "listxattr", "removexattr", "waitid"),
        *("setns", "unshare", "getresuid", "getresgid", "setresuid", "setresgid", "dup3"),
        *("O_PATH", "O_TMPFILE", "O_DIRECT", "O_LARGEFILE", "O_NOATIME", "O_RSYNC", "P_PIDFD"),
    ),
    select: ("epoll",),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo", "SIGSTKFLT", "SIGPWR", "SIGRTMIN", "SIGRTMAX"),
    socket: ("SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_PEERCRED", "SO_DOMAIN", "AF_NETLINK", "AF_PACKET", "AF_VSOCK"),
    resource: ("prlimit",),
}
"""Names that the standard library of macOS does not have ("Availability" in the documentation of Python)."""
PREFIXES: dict[Any, tuple[str, ...]] = {os: ("EFD_", "MFD_", "RWF_", "SPLICE_", "CLONE_"), select: ("EPOLL",)}
CALLS = ("syscall", "prctl", "capget", "capset", "renameat2", "pidfd_open", "eventfd", "unshare", "setns")
"""Functions of the C library that macOS does not have, or that mean something else there."""
PATHS: tuple[tuple[Any, str], ...] = (
    *((os, name) for name in ("open", "stat", "lstat", "listdir", "scandir", "readlink", "access")),
    (io, "open"),
    (builtins, "open"),
)


def install() -> None:
    """Take away from this process what only Linux has."""
    pidfd_open = os.pidfd_open
    sysconfig.get_config_vars()  # read once, from a file of this platform
    for module, names in GONE.items():
        for name in (*names, *(each for each in dir(module) if each.startswith(PREFIXES.get(module, ("\0",))))):
            vars(module).pop(name, None)
    vars(selectors).pop("EpollSelector", None)
    vars(selectors)["DefaultSelector"] = selectors.PollSelector
    vars(select).update(_kqueue(pidfd_open))
    for module, name in PATHS:
        setattr(module, name, _without_proc(getattr(module, name)))
    os.posix_spawn = _spawning(os.posix_spawn)
    ctypes.CDLL.__getattr__ = _without_calls(ctypes.CDLL.__getattr__)
    sys.modules["_scproxy"] = _no_proxies()
    sys.platform = "darwin"


def _without_proc(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that finds nothing under /proc."""

    def looked(*arguments: Any, **named: Any) -> Any:
        path = arguments[0] if arguments else named.get("path", ".")
        if isinstance(path, str | bytes | os.PathLike) and (os.fsdecode(path) + "/").startswith("/proc/"):
            if function is _ACCESS:
                return False
            raise FileNotFoundError(2, os.strerror(2), path)
        return function(*arguments, **named)

    return looked


_ACCESS = os.access


def _without_calls(found: Callable[[ctypes.CDLL, str], Any]) -> Callable[[ctypes.CDLL, str], Any]:
    def function_of(library: ctypes.CDLL, name: str) -> Any:
        if name in CALLS or name.startswith("inotify_"):
            raise AttributeError(f"dlsym: symbol not found: {name}")
        return found(library, name)

    return function_of


def _kqueue(pidfd_open: Callable[[int], int]) -> dict[str, Any]:
    """Return names of `select` for one use of kernel queues: to wait for the end of a process, by a pidfd."""

    class Kqueue:
        """Kernel queue with at most one event."""

        def __init__(self) -> None:
            self.descriptor = -1

        def fileno(self) -> int:
            return self.descriptor

        def control(self, changes: list[Any], most: int) -> list[Any]:
            (event,) = changes
            if event.filter != "proc":
                raise OSError(22, "only ends of processes are simulated")
            self.descriptor = pidfd_open(event.ident)
            return []

        def close(self) -> None:
            if self.descriptor >= 0:
                os.close(self.descriptor)

    def kevent(ident: int, filter: str, flags: int, fflags: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(ident=ident, filter=filter)

    constants = {
        "KQ_FILTER_PROC": "proc",
        "KQ_FILTER_VNODE": "vnode",
        "KQ_FILTER_READ": "read",
        "KQ_EV_ADD": 1,
        "KQ_NOTE_EXIT": 1 << 31,
    }
    notes = {"KQ_EV_CLEAR": 32, **{f"KQ_NOTE_{name}": 0 for name in ("WRITE", "DELETE", "EXTEND", "RENAME", "ATTRIB")}}
    return {"kqueue": Kqueue, "kevent": kevent, **constants, **notes}


def _spawning(spawn: Callable[..., int]) -> Callable[..., int]:
    """Return a `posix_spawn` that starts the stand-in of `ps`, and scripts of Callboard in the simulation."""

    def spawned(path: str, arguments: list[str], environment: dict[str, str], **named: Any) -> int:
        if path == "/bin/ps":
            return spawn(sys.executable, [sys.executable, "-I", "-S", PS, *arguments[1:]], environment, **named)
        script = next((n for n, word in enumerate(arguments) if word.endswith("_child.py")), 0)
        if script and path == sys.executable:
            arguments = [*arguments[:script], HERE, *arguments[script:]]
        return spawn(path, arguments, environment, **named)

    return spawned


def _no_proxies() -> types.ModuleType:
    """Return the module that `urllib.request` imports on macOS."""
    module = types.ModuleType("_scproxy")
    vars(module).update(_get_proxy_settings=dict, _get_proxies=dict)
    return module


if __name__ == "__main__":
    install()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
