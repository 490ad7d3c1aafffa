"""Restrictions that a process applies to itself before it becomes a command (level 1).

The restrictions are capabilities, Landlock, and the system call filter.

`launch_child.py` loads this module, so it also imports only the standard library. All restrictions together take about
half a millisecond. If one cannot be applied, OSError is raised, and the command is not run.
"""
# ruff: noqa: PTH102, PTH106, PTH112, PTH123 - importing pathlib would take longer than all the rest of the start

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
from collections.abc import Generator
from contextlib import contextmanager

from callboard.adapters.kernel.process_table import rows

CREATE_RULESET = 444
ADD_RULE = 445
RESTRICT_SELF = 446
"""System call numbers, the same on every architecture (linux/landlock.h)."""
READ = 0b1101
"""EXECUTE, READ_FILE, READ_DIR."""
OF_FILES = 1 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
"""Rights that a rule may give on anything but a folder: EXECUTE, WRITE_FILE, READ_FILE, TRUNCATE, IOCTL_DEV."""
DEVICES = 1 << 6 | 1 << 11
"""MAKE_CHAR, MAKE_BLOCK: never granted."""
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
PR_CAPBSET_DROP = 24
PR_CAP_AMBIENT = 47
CAPABILITY_VERSION_3 = 0x20080522


def landlock_abi() -> int:
    """Return the kernel's version of Landlock; 0: none, or switched off."""
    if not sys.platform.startswith("linux"):
        return 0  # other kernels have other calls with these numbers
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(ctypes.c_long(CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(1))
    return max(0, int(version))


def drop_capabilities() -> None:
    """Drop root's capabilities except the ownership of its files; other users have none."""
    libc = ctypes.CDLL(None, use_errno=True)
    for number in range(64):
        if libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0):
            break  # past the last one, or not permitted: then there are no capabilities to drop
    libc.prctl(PR_CAP_AMBIENT, 4, 0, 0, 0)
    header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
    if libc.capset(header, bytes(24)):
        raise OSError(ctypes.get_errno(), "capabilities could not be dropped")


@contextmanager
def without_privileges() -> Generator[None]:
    """Access the disk as a command of root does, without capabilities beyond its own files. Applies to this thread."""
    if not sys.platform.startswith("linux"):
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
    before = ctypes.create_string_buffer(24)
    if os.geteuid() or libc.capget(header, before):
        yield
        return
    low = struct.unpack("III", before.raw[:12])
    high = struct.unpack("III", before.raw[12:])
    libc.capset(header, struct.pack("IIIIII", 0, *low[1:], 0, *high[1:]))
    try:
        yield
    finally:
        libc.capset(header, before)


def apply_landlock(abi: int, read: list[str], write: list[str], connect: bool) -> None:
    """Restrict this process: it can read and run only `read`, change only `write`, and paths beneath them.

    `write` can also be read and run.

    `connect` False: no TCP port can be bound or connected to (ABI 4). Signals and connections to abstract sockets
    cannot leave this domain (ABI 6). A path that does not exist is left out.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    # A kernel refuses rights, and a longer structure, that its version of Landlock does not support.
    rights = (1 << (13 if abi < 2 else 14 if abi < 3 else 15 if abi < 5 else 16)) - 1
    handled = (rights, 0 if connect else 0b11, 0b11)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = libc.syscall(
        ctypes.c_long(CREATE_RULESET), struct.pack("QQQ", *handled), ctypes.c_size_t(size), ctypes.c_uint(0)
    )
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "Landlock could not be set up")
    for granted, paths in ((READ, read), (rights & ~DEVICES, write)):
        for path in paths:
            _grant(libc, ruleset, path, granted)
    if libc.syscall(ctypes.c_long(RESTRICT_SELF), ctypes.c_int(ruleset), ctypes.c_uint(0)):
        raise OSError(ctypes.get_errno(), "Landlock could not be put in force")
    os.close(ruleset)


def _grant(libc: ctypes.CDLL, ruleset: int, path: str, granted: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    # The kernel refuses a rule with rights of folders for a file.
    granted = granted if os.path.isdir(path) else granted & OF_FILES
    # `landlock_path_beneath_attr` is a packed structure (linux/landlock.h).
    rule = struct.pack("=Qi", granted, descriptor)
    failed = libc.syscall(ctypes.c_long(ADD_RULE), ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint(0))
    os.close(descriptor)
    if failed:
        raise OSError(ctypes.get_errno(), f"Landlock takes no rule for {path}")


def apply_call_filter(program: bytes) -> None:
    """Apply a system call filter (an array of `struct sock_filter`)."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HP", len(program) // 8, ctypes.addressof(buffer))
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, described, 0, 0):
        raise OSError(ctypes.get_errno(), "the system call filter could not be put in force")


def apply_limits(limits: list[str]) -> None:
    """Apply resource limits (`NAME:VALUE`), never above the present ones."""
    for entry in limits:
        name, _, text = entry.partition(":")
        kind = getattr(resource, f"RLIMIT_{name}")
        most = int(text)
        if name == "NPROC":  # the limit counts all threads of the user, so the running ones are added
            most += _running_threads()
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def _running_threads() -> int:
    """Return the number of running threads; on a system other than Linux, of processes, which it counts instead."""
    if not sys.platform.startswith("linux"):
        return len(rows())
    with open("/proc/loadavg", encoding="ascii") as file:
        return int(file.read().split()[3].partition("/")[2])


class ControlGroup:
    """Control group for one command, which limits its processes even for root.

    If none can be created, only the resource limit applies.
    """

    def __init__(self, parent: str, most: str) -> None:
        self.path = f"{parent}/callboard-{os.getpid()}"
        try:
            os.mkdir(self.path)
            with open(f"{self.path}/pids.max", "w", encoding="ascii") as file:
                file.write(most)
        except OSError:
            self.leave()

    def enter(self) -> None:
        """Add this process and its later children to the group."""
        if self.path:
            with open(f"{self.path}/cgroup.procs", "w", encoding="ascii") as file:
                file.write("0")

    def leave(self) -> None:
        """Remove the group, which has no more processes."""
        try:
            os.rmdir(self.path)
        except OSError:
            return  # it was never created
        finally:
            self.path = ""
