"""System call filter, as a program of classic BPF: it denies calls that no command needs and attackers use.

Denied are access to other processes, keys of the kernel, mounts, namespaces, io_uring, tracing of the kernel, modules,
power, clocks, input into a terminal, set-user-id bits, and certain kinds of sockets. Call numbers are listed by
architecture, from the kernel's tables. 32-bit programs on a 64-bit kernel are ended, because their numbers mean other
calls. An architecture that is not in the table has no filter.
"""

from __future__ import annotations

import errno
import platform
from collections.abc import Iterator, Mapping, Sequence

from callboard.adapters.processes.sandbox.bpf import (
    ALLOW,
    ANY_BIT,
    ARCHITECTURE,
    ARGUMENTS,
    AT_LEAST,
    EQUAL,
    ERRNO,
    KILL,
    LOAD,
    NUMBER,
    RETURN,
    X32,
    Instruction,
    pack_program,
    unless,
    when,
)

NEW_NAMESPACE = 0x7E020080
"""Every CLONE_NEW* flag that clone and unshare accept."""
SET_ID = 0o6000
TYPING = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which put characters into the input of a terminal."""

AF_UNIX = 1
AF_INET = 2
AF_INET6 = 10
AF_NETLINK = 16
"""Linux's numbers (linux/socket.h). The module `socket` of another system has others, or none."""
INSIDE_FAMILIES = (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)
"""Permitted socket families in a command's own network namespace, which does not isolate others (vsock, packet)."""
NO_FAMILIES = (AF_NETLINK,)
"""Permitted socket families if the machine's network is switched off. Changes by netlink need capabilities, which are
dropped."""
OPEN_FAMILIES = (AF_INET, AF_INET6, AF_NETLINK)
"""Permitted socket families if the machine's network is open. File sockets of the machine's services stay closed."""

_AUDIT: Mapping[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_DENIED: Mapping[str, Sequence[int]] = {
    # ptrace process_vm_readv process_vm_writev kcmp | add_key request_key keyctl | bpf perf_event_open | mount umount2
    # pivot_root chroot | setns | userfaultfd | init_module finit_module delete_module kexec_load kexec_file_load
    # reboot swapon swapoff acct | settimeofday clock_settime sethostname setdomainname | quotactl lookup_dcookie syslog
    # open_by_handle_at fanotify_init vhangup nfsservctl
    "x86_64": (
        *(101, 310, 311, 312, 248, 249, 250, 321, 298, 165, 166, 155, 161, 308, 323, 175, 313, 176, 246, 320),
        *(169, 167, 168, 163, 164, 227, 170, 171, 179, 212, 103, 304, 300, 153, 180, 172, 173),  # and iopl, ioperm
    ),
    "aarch64": (
        *(117, 270, 271, 272, 217, 218, 219, 280, 241, 40, 39, 41, 51, 268, 282, 105, 273, 106, 104, 294),
        *(142, 224, 225, 89, 170, 112, 161, 162, 60, 18, 116, 265, 262, 58, 42),
    ),
}
_DENIED_ALIKE = (438, 430, 431, 432, 433, 428, 429, 442, 467, 443)
"""pidfd_getfd, fsopen to fspick, open_tree, move_mount, mount_setattr, open_tree_attr, quotactl_fd: the same numbers on
every architecture.
"""
_ABSENT = (425, 426, 427, 435)
"""io_uring and clone3, whose arguments a filter cannot inspect. They appear not to exist, so programs use other
calls.
"""
_CLONE: Mapping[str, int] = {"x86_64": 56, "aarch64": 220}
_UNSHARE: Mapping[str, int] = {"x86_64": 272, "aarch64": 97}
_SOCKET: Mapping[str, int] = {"x86_64": 41, "aarch64": 198}
_IOCTL: Mapping[str, int] = {"x86_64": 16, "aarch64": 29}
_PRLIMIT: Mapping[str, int] = {"x86_64": 302, "aarch64": 261}
_CHMOD: Mapping[str, Sequence[tuple[int, int]]] = {
    "x86_64": ((90, 1), (91, 1), (268, 2), (452, 2)),
    "aarch64": ((52, 1), (53, 2), (452, 2)),
}
"""Calls that change permission bits, and the index of the argument with the bits."""


def call_filter(families: Sequence[int], *, alone: bool, machine: str = "") -> bytes:
    """Return the filter as an array of `struct sock_filter`; empty for an unknown architecture.

    `families`: permitted kinds of sockets. `alone`: the command has its own process namespace; otherwise it also may
    not change limits of other processes.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT:
        return b""
    return pack_program(_program(machine, families, alone))


def _program(machine: str, families: Sequence[int], alone: bool) -> Iterator[Instruction]:
    yield LOAD, 0, 0, ARCHITECTURE
    yield from unless(EQUAL, _AUDIT[machine], KILL)
    yield LOAD, 0, 0, NUMBER
    if machine == "x86_64":
        yield from when(AT_LEAST, X32, ERRNO | errno.ENOSYS)
    for number in (*_DENIED[machine], *_DENIED_ALIKE):
        yield from when(EQUAL, number, ERRNO | errno.EPERM)
    for number in _ABSENT:
        yield from when(EQUAL, number, ERRNO | errno.ENOSYS)
    for number in (_CLONE[machine], _UNSHARE[machine]):
        yield from _argument(number, 0, list(when(ANY_BIT, NEW_NAMESPACE, ERRNO | errno.EPERM)))
    for number, place in _CHMOD[machine]:
        yield from _argument(number, place, list(when(ANY_BIT, SET_ID, ERRNO | errno.EPERM)))
    yield from _argument(_IOCTL[machine], 1, [i for code in TYPING for i in when(EQUAL, code, ERRNO | errno.EPERM)])
    if not alone:
        yield from _argument(_PRLIMIT[machine], 0, list(unless(EQUAL, 0, ERRNO | errno.EPERM)))
    allowed = [i for family in families for i in when(EQUAL, family, ALLOW)]
    yield from _argument(_SOCKET[machine], 0, [*allowed, (RETURN, 0, 0, ERRNO | errno.EACCES)])
    yield RETURN, 0, 0, ALLOW


def _argument(number: int, place: int, tests: list[Instruction]) -> Iterator[Instruction]:
    """Yield tests of the low half of an argument of one call. A call that passes all of them is allowed."""
    yield EQUAL, 0, len(tests) + 2, number
    yield LOAD, 0, 0, ARGUMENTS + 8 * place
    yield from tests
    yield RETURN, 0, 0, ALLOW
