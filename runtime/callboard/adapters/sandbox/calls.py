"""The system call filter: what no command needs and an attacker does, as a program of classic BPF.

Denied: looking into other processes, keys of the kernel, mounts, namespaces, io_uring, tracing of the kernel, modules,
power, clocks, typing into a terminal, set-user-id bits, and kinds of sockets. Numbers by architecture, from the
kernel's tables; 32-bit programs on a 64-bit kernel are ended, since their numbers mean other calls.
Refuses to guess: for an architecture that is not in the table there is no filter.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator, Mapping, Sequence
from socket import AF_INET, AF_INET6, AF_NETLINK, AF_UNIX

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`."""
NEW_NAMESPACE = 0x7E020080
"""Every CLONE_NEW* flag that clone and unshare take."""
X32 = 0x40000000
SET_ID = 0o6000
TYPING = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX put characters into the input of a terminal."""

INSIDE_FAMILIES = (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)
"""Where the network is the command's own: others (vsock, packet) are not kept apart by a network namespace."""
NO_FAMILIES = (AF_NETLINK,)
"""Where it is the machine's and switched off. What netlink could change needs capabilities, which are gone."""
OPEN_FAMILIES = (AF_INET, AF_INET6, AF_NETLINK)
"""Where it is the machine's and let through: sockets of the machine's services in files stay shut."""

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
"""pidfd_getfd, fsopen to fspick, open_tree, move_mount, mount_setattr, open_tree_attr, quotactl_fd: as everywhere."""
_ABSENT = (425, 426, 427, 435)
"""io_uring and clone3, whose arguments a filter cannot see: programs fall back when they seem not to exist."""
_CLONE: Mapping[str, int] = {"x86_64": 56, "aarch64": 220}
_UNSHARE: Mapping[str, int] = {"x86_64": 272, "aarch64": 97}
_SOCKET: Mapping[str, int] = {"x86_64": 41, "aarch64": 198}
_IOCTL: Mapping[str, int] = {"x86_64": 16, "aarch64": 29}
_PRLIMIT: Mapping[str, int] = {"x86_64": 302, "aarch64": 261}
_CHMOD: Mapping[str, Sequence[tuple[int, int]]] = {
    "x86_64": ((90, 1), (91, 1), (268, 2), (452, 2)),
    "aarch64": ((52, 1), (53, 2), (452, 2)),
}
"""Calls that change permission bits, and which argument holds them."""

Instruction = tuple[int, int, int, int]


def call_filter(families: Sequence[int], *, alone: bool, machine: str = "") -> bytes:
    """The filter as an array of `struct sock_filter`; empty for an architecture that is not known.

    `families`: kinds of sockets that may be made. `alone`: the command has a process namespace of its own; where it has
    not, it may not change limits of other processes either.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT:
        return b""
    return b"".join(struct.pack("HBBI", *one) for one in _program(machine, families, alone))


def _program(machine: str, families: Sequence[int], alone: bool) -> Iterator[Instruction]:
    yield LOAD, 0, 0, ARCHITECTURE
    yield from _unless(EQUAL, _AUDIT[machine], KILL)
    yield LOAD, 0, 0, NUMBER
    if machine == "x86_64":
        yield from _when(AT_LEAST, X32, ERRNO | errno.ENOSYS)
    for number in (*_DENIED[machine], *_DENIED_ALIKE):
        yield from _when(EQUAL, number, ERRNO | errno.EPERM)
    for number in _ABSENT:
        yield from _when(EQUAL, number, ERRNO | errno.ENOSYS)
    for number in (_CLONE[machine], _UNSHARE[machine]):
        yield from _argument(number, 0, list(_when(ANY_BIT, NEW_NAMESPACE, ERRNO | errno.EPERM)))
    for number, place in _CHMOD[machine]:
        yield from _argument(number, place, list(_when(ANY_BIT, SET_ID, ERRNO | errno.EPERM)))
    yield from _argument(_IOCTL[machine], 1, [i for code in TYPING for i in _when(EQUAL, code, ERRNO | errno.EPERM)])
    if not alone:
        yield from _argument(_PRLIMIT[machine], 0, list(_unless(EQUAL, 0, ERRNO | errno.EPERM)))
    allowed = [i for family in families for i in _when(EQUAL, family, ALLOW)]
    yield from _argument(_SOCKET[machine], 0, [*allowed, (RETURN, 0, 0, ERRNO | errno.EACCES)])
    yield RETURN, 0, 0, ALLOW


def _when(test: int, value: int, outcome: int) -> Iterator[Instruction]:
    yield test, 0, 1, value
    yield RETURN, 0, 0, outcome


def _unless(test: int, value: int, outcome: int) -> Iterator[Instruction]:
    yield test, 1, 0, value
    yield RETURN, 0, 0, outcome


def _argument(number: int, place: int, tests: list[Instruction]) -> Iterator[Instruction]:
    """Tests of the low half of an argument of one call; a call that passes them all is allowed."""
    yield EQUAL, 0, len(tests) + 2, number
    yield LOAD, 0, 0, ARGUMENTS + 8 * place
    yield from tests
    yield RETURN, 0, 0, ALLOW
