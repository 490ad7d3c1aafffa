"""Detection of processes that an agent's tool started, by the data of the kernel.

Every process of a tool has a mark that it cannot remove and that is visible without /proc (`tool_mark.py`). A variable
marks it too, but a command can unset the variable. So the ancestors are checked as well: the environment with which
each was started, and Callboard's process that starts every command. If the kernel has no system call filters, the bit
`no_new_privs` replaces the mark: every command gets it and every child inherits it. Other processes can have it too, so
the ancestors must then show its origin.

Not detected is a program that ran before and acts for the agent: a terminal multiplexer, cron or at, a container
engine, a desktop. The files of the store are not protected either: at sandbox level 0 a command can write to them.
"""
# ruff: noqa: PTH110, PTH115, PTH116, PTH123 - importing pathlib or ctypes would slow down the start of every command

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from callboard.adapters.kernel.process_table import command_lines, has_proc

TOOL_MARK = "CALLBOARD_TOOL"
"""Variable in the environment of every process of a tool, with the value 1."""
MARK_VALUE = 0x63616C6C
"""Initial value of the `eventfd` that a marked process cannot create."""
MARK_ERROR = 3003
"""Error number that a marked process gets. The kernel has no such error."""
SEATBELT_MARK = "/private/etc/master.passwd"
"""File of every macOS that a command in the sandbox cannot look at, and everyone else can."""
CommandLines = dict[int, tuple[int, list[bytes]]]
"""Parent and words of the command line, by pid."""
_LAUNCH_CHILD = b"launch_child.py"
_DEEPEST = 200
_MARKED_MACHINES = ("x86_64", "i386", "i686", "aarch64", "armv7l", "armv8l", "riscv64", "ppc64le", "loongarch64")
_FILTERS = "/proc/sys/kernel/seccomp"
"""File that exists if the kernel has system call filters."""
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the machine's own process namespace, the same on every kernel."""


def started_by_tool(*, service: bool = False) -> str:
    """Return the reason why this process counts as started by an agent's tool; empty if it does not.

    `service`: a service manager may have started it with `no_new_privs`, so the bit is not checked.
    """
    if os.environ.get(TOOL_MARK):
        return f"{TOOL_MARK} is set"
    if reason := _mark():
        return reason
    lines = None if has_proc() else command_lines()
    ancestors = list(_ancestors(os.getpid(), lines))
    for pid in ancestors:
        if _is_marked(pid, lines):
            return f"process {pid}, which it comes from, was started by a tool"
    if service or _can_be_marked() or _no_new_privs(os.getpid()) != "1":
        return ""
    if not _shows_all_ancestors():
        return (
            "it cannot gain privileges, as the commands of tools, and its namespaces or its /proc hide its ancestors: "
            "use a terminal outside of them, or start the container without no-new-privileges"
        )
    if any(_no_new_privs(pid) == "0" for pid in (*ancestors, 1)):
        return "it cannot gain privileges, as the commands of tools, and its ancestors can"
    return ""


def refuse_inside_tool(action: str, *, service: bool = False) -> None:
    """Raise `UsageError` in a process that an agent's tool started: no agent approves its own actions.

    `action` begins the message: "Answering a request". `service`: a service manager may have started the process.
    """
    if reason := started_by_tool(service=service):
        from callboard.types.errors import UsageError  # noqa: PLC0415 - processes that only have the standard library

        raise UsageError(
            f"{action} is for a person, and this process was started by an agent's tool ({reason}). "
            "Ask the person to do it"
        )


def tool_behind(pid: int) -> str:
    """Return the reason why another process counts as started by an agent's tool; empty if nothing shows it.

    A command can hide this: `may_be_of_tool` says whether the process could be such a command.
    """
    lines = None if has_proc() else command_lines()
    for ancestor in _ancestors(pid, lines):
        if _is_marked(ancestor, lines):
            name = "it" if ancestor == pid else f"process {ancestor}, which it comes from,"
            return f"{name} was started by a tool"
    return ""


def may_be_of_tool(pid: int) -> str:
    """Return the reason why another process may be a tool's although nothing shows it; empty if it cannot be.

    Every process of a tool has a system call filter that it cannot remove: the mark. A process with no more filters
    than this one was not started by a tool. Programs in a sandbox of their own have filters, too. If the kernel has no
    filters, the bit `no_new_privs` replaces them, as in `started_by_tool`.
    """
    own = _status(os.getpid())
    status = _status(pid)
    name = "Seccomp" if _can_be_marked() else "NoNewPrivs"
    if name not in own or name not in status:
        return "its system call filters cannot be read"
    if name == "NoNewPrivs" and status[name] > own[name]:
        return "it cannot gain privileges, as the commands of tools"
    if _filters(status) > _filters(own):
        return "it has a system call filter, as the commands of tools"
    return ""


def _filters(status: dict[str, str]) -> int:
    """Return the number of system call filters; an older kernel states only whether there are any."""
    return int(status.get("Seccomp_filters") or status.get("Seccomp") or 0)


def _mark() -> str:
    """Return the reason why this process counts as marked; empty if it has no mark.

    A process without the mark can open two different descriptors. No filter can fake this success: it can only refuse a
    call, or make it return 0 each time.
    """
    if sys.platform == "darwin":
        return _sandbox_mark()
    if not hasattr(os, "eventfd"):
        return ""
    made: set[int] = set()
    try:
        for _ in range(2):
            made.add(os.eventfd(MARK_VALUE, os.EFD_CLOEXEC))
    except OSError as error:
        if error.errno == MARK_ERROR:
            return "it has the mark that every process of a tool inherits"
        return f"eventfd fails, so the mark of tools cannot be read ({error}): allow that call, or close some files"
    else:
        return "" if len(made) == 2 else "a system call filter hides the mark of tools"
    finally:
        for descriptor in made:
            os.close(descriptor)


def _sandbox_mark(file: str = SEATBELT_MARK) -> str:
    """Return the reason why this process counts as one in the sandbox of tools on macOS; empty if it does not."""
    try:
        os.stat(file)
    except PermissionError:
        return f"it runs in the sandbox of tools, which hides {file}"
    except OSError:
        return ""
    return ""


def _can_be_marked() -> bool:
    """Return True if a tool's process would have the mark on this machine.

    False only if a readable /proc shows the lack of filters.
    """
    if not hasattr(os, "eventfd"):
        return False
    return os.uname().machine in _MARKED_MACHINES and (os.path.exists(_FILTERS) or not os.path.exists("/proc/self"))


def _shows_all_ancestors() -> bool:
    """Return True if /proc is that of the machine itself, so that no ancestor is outside of it."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
        return namespace == _FIRST_PID_NAMESPACE and os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _ancestors(pid: int, lines: CommandLines | None) -> Iterator[int]:
    """Yield the process and its ancestors, except the first process of the machine or container.

    `lines`: the table of a system without /proc.
    """
    for _ in range(_DEEPEST):
        if pid <= 1:
            return
        yield pid
        pid = int(_status(pid).get("PPid", "0") or 0) if lines is None else lines.get(pid, (0, []))[0]


def _is_marked(pid: int, lines: CommandLines | None) -> bool:
    mark = f"{TOOL_MARK}=1".encode()
    words = _read(pid, "cmdline").split(b"\0")[:8] if lines is None else lines.get(pid, (0, []))[1]
    # Without /proc, a word that contains spaces is several words, so that all of them count.
    return mark in _read(pid, "environ").split(b"\0") or any(word.endswith(b"/" + _LAUNCH_CHILD) for word in words)


def _no_new_privs(pid: int) -> str:
    """Return the bit, 0 or 1; empty if it is unknown, and so without meaning."""
    return _status(pid).get("NoNewPrivs", "")


def _status(pid: int) -> dict[str, str]:
    lines = _read(pid, "status").decode(errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _read(pid: int, name: str) -> bytes:
    """Return the content; empty if the process is gone or of another user, or /proc does not exist."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""
