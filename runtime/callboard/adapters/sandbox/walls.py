"""What a process does to itself before it becomes a command: capabilities, Landlock, the system call filter (level 1).

Loaded by `launch_child.py`, which imports nothing but the standard library, so this file does the same. All of it takes
about half a millisecond. Refuses to go on (OSError) when a wall does not stand: the command is then not run.
"""
# ruff: noqa: PTH102, PTH106, PTH112, PTH123
# Importing pathlib would take longer than all the rest of the start.

from __future__ import annotations

import ctypes
import os
import resource
import struct

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System call numbers, the same on every architecture (linux/landlock.h)."""
READ = 0b1101
"""EXECUTE, READ_FILE, READ_DIR."""
OF_FILES = 1 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
"""What a rule on something that is no folder may say: EXECUTE, WRITE_FILE, READ_FILE, TRUNCATE, IOCTL_DEV."""
DEVICES = 1 << 6 | 1 << 11
"""MAKE_CHAR, MAKE_BLOCK: granted nowhere."""
PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_CAPBSET_DROP, PR_CAP_AMBIENT = 22, 2, 24, 47
CAPABILITY_VERSION_3 = 0x20080522


def landlock_abi() -> int:
    """The version of Landlock that the kernel has; 0: none, or switched off."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(ctypes.c_long(CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(1))
    return max(0, int(found))


def drop_capabilities() -> None:
    """Give up what root may do beyond owning its files; for anybody else there is nothing to give up."""
    libc = ctypes.CDLL(None, use_errno=True)
    for number in range(64):
        if libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0):
            break  # past the last one, or we have no right to: then there are none to lose either
    libc.prctl(PR_CAP_AMBIENT, 4, 0, 0, 0)
    header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
    if libc.capset(header, bytes(24)):
        raise OSError(ctypes.get_errno(), "capabilities could not be dropped")


def landlock(abi: int, read: list[str], write: list[str], connect: bool) -> None:
    """From now on only what is at and beneath `read` can be read and run, and at and beneath `write` changed too.

    `connect` False: no TCP port is bound or connected to (ABI 4). Signals reach nobody outside, nor does a connection
    to an abstract socket (ABI 6). A path that is not there is left out.
    """
    libc = ctypes.CDLL(None, use_errno=True)
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
        there = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    granted = granted if os.path.isdir(path) else granted & OF_FILES
    rule = struct.pack("=Qi", granted, there)
    failed = libc.syscall(ctypes.c_long(ADD_RULE), ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint(0))
    os.close(there)
    if failed:
        raise OSError(ctypes.get_errno(), f"Landlock takes no rule for {path}")


def filter_calls(program: bytes) -> None:
    """Put a system call filter in force (an array of `struct sock_filter`)."""
    libc = ctypes.CDLL(None, use_errno=True)
    kept = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HP", len(program) // 8, ctypes.addressof(kept))
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, described, 0, 0):
        raise OSError(ctypes.get_errno(), "the system call filter could not be put in force")


def limit(limits: list[str]) -> None:
    """Put resource limits (`NAME:VALUE`) in force: never more than there were."""
    for one in limits:
        name, _, text = one.partition(":")
        kind, most = getattr(resource, f"RLIMIT_{name}"), int(text)
        if name == "NPROC":  # it counts all threads of the user, so those that run anyhow come on top
            with open("/proc/loadavg", encoding="ascii") as file:
                most += int(file.read().split()[3].partition("/")[2])
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


class Group:
    """A control group for one command, which bounds its processes also for root. Where none can be made there is none:
    the resource limit has to do."""

    def __init__(self, parent: str, most: str) -> None:
        self.path = f"{parent}/callboard-{os.getpid()}"
        try:
            os.mkdir(self.path)
            with open(f"{self.path}/pids.max", "w", encoding="ascii") as file:
                file.write(most)
        except OSError:
            self.leave()

    def enter(self) -> None:
        """This process, and what it starts from now on."""
        if self.path:
            with open(f"{self.path}/cgroup.procs", "w", encoding="ascii") as file:
                file.write("0")

    def leave(self) -> None:
        """Nothing lives in it any more."""
        try:
            os.rmdir(self.path)
        except OSError:
            return  # it was never made
        finally:
            self.path = ""
