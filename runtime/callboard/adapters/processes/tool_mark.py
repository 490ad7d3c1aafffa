"""Mark of a tool's process: a system call filter that changes only the result of one call.

`eventfd` with a certain initial value fails with an error number that the kernel never uses. Every child inherits a
filter, and no process can remove it: not by `exec`, `env -i`, `setsid`, a second fork, or new namespaces. A further
filter cannot hide it either: it can refuse a call but never make a refused call work, and a process without the mark
gets two open files. /proc is not needed.

Imports only the standard library, because `launch_child.py` and similar scripts use it too. `tool_ancestry.py` reads
the mark without `ctypes`, which would slow down the start of every command line.
"""

from __future__ import annotations

import ctypes
import errno
import sys
from collections.abc import Iterator

from callboard.adapters.processes.sandbox import isolation
from callboard.adapters.processes.sandbox.bpf import (
    ALLOW,
    ARCHITECTURE,
    ARGUMENTS,
    EQUAL,
    ERRNO,
    LOAD,
    NUMBER,
    RETURN,
    X32,
    Instruction,
    pack_program,
    when,
)
from callboard.adapters.processes.tool_ancestry import MARK_ERROR, MARK_VALUE

PR_SET_NO_NEW_PRIVS = 38
_EVENTFD = (
    (0xC000003E, (290, X32 | 290)),  # x86_64
    (0x40000003, (328,)),  # 32-bit x86
    (0xC00000B7, (19,)),  # aarch64
    (0x40000028, (356,)),  # 32-bit arm
    (0xC00000F3, (19,)),  # riscv64
    (0xC0000015, (314,)),  # ppc64le
    (0xC0000102, (19,)),  # loongarch64
)
"""Numbers of `eventfd2` by AUDIT_ARCH, from the kernel's tables."""


def mark_process() -> None:
    """Mark this process and its descendants as a tool's, and remove their right to gain privileges.

    On a kernel without filters only the bit `no_new_privs` remains, and on a system other than Linux nothing. Raises
    `OSError` if the mark is refused for another reason.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    try:
        isolation.apply_call_filter(pack_program(_program()))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise


def _program() -> Iterator[Instruction]:
    for architecture, numbers in _EVENTFD:
        tests = [jump for number in numbers for jump in _refusal(number)]
        yield LOAD, 0, 0, ARCHITECTURE
        yield EQUAL, 0, len(tests) + 2, architecture
        yield LOAD, 0, 0, NUMBER
        yield from tests
        yield RETURN, 0, 0, ALLOW
    yield RETURN, 0, 0, ALLOW


def _refusal(number: int) -> Iterator[Instruction]:
    """Yield instructions that refuse the call with the value of the mark, and allow any other value."""
    refuse = list(when(EQUAL, MARK_VALUE, ERRNO | MARK_ERROR))
    yield EQUAL, 0, len(refuse) + 2, number
    yield LOAD, 0, 0, ARGUMENTS
    yield from refuse
    yield RETURN, 0, 0, ALLOW
