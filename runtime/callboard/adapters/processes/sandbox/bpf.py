"""Instructions of system call filters (classic BPF, linux/filter.h and linux/seccomp.h).

Imports only the standard library, because `launch_child.py` and similar scripts use it too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

LOAD = 0x20
EQUAL = 0x15
AT_LEAST = 0x35
ANY_BIT = 0x45
RETURN = 0x06
ALLOW = 0x7FFF0000
KILL = 0x80000000
ERRNO = 0x00050000
NUMBER = 0
ARCHITECTURE = 4
ARGUMENTS = 16
"""Offsets in `struct seccomp_data`."""
X32 = 0x40000000

Instruction = tuple[int, int, int, int]


def when(test: int, value: int, outcome: int) -> Iterator[Instruction]:
    """Yield the instructions that end the filter with `outcome` if the test passes."""
    yield test, 0, 1, value
    yield RETURN, 0, 0, outcome


def unless(test: int, value: int, outcome: int) -> Iterator[Instruction]:
    """Yield the instructions that end the filter with `outcome` if the test fails."""
    yield test, 1, 0, value
    yield RETURN, 0, 0, outcome


def pack_program(program: Iterable[Instruction]) -> bytes:
    """Return the program as an array of `struct sock_filter`."""
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)
