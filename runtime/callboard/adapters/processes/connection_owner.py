"""Process at the other end of a connection on this machine, and whether an agent's tool may have started it.

The kernel lists a TCP connection with the inode of its socket in /proc/net/tcp or /proc/net/tcp6, and the descriptors
of each process in /proc/PID/fd. Processes of other users, and systems without /proc, cannot be determined.
"""
# ruff: noqa: PTH115, PTH208 - it reads thousands of links; a path object takes longer than the call

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, Protocol

import anyio.to_thread

from callboard.adapters.processes.tool_ancestry import may_be_of_tool, tool_behind
from callboard.types.lazy_dataclass import dataclass

Address = tuple[str, int]
"""IP address and port."""
Origin = Literal["person", "tool", "unknown"]
"""`person`: no tool started it; `tool`: an agent's tool did; `unknown`: neither can be shown."""

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOCAL = 1
_REMOTE = 2
_INODE = 9
_REMEMBERED = 256
"""Connections whose process is remembered for reading. A change looks again."""


@dataclass(frozen=True, slots=True)
class ConnectionOwner:
    """Process that made a connection."""

    origin: Origin
    reason: str = ""
    """Reason for an origin other than `person`, for the user."""
    pid: int = 0
    """0: no process was found."""
    program: str = ""


class OwnerLookup(Protocol):
    """Function that returns the process behind a connection. `again`: look again, for a change."""

    async def __call__(self, client: Address, server: Address, *, again: bool) -> ConnectionOwner: ...


class ProcessLookup:
    """Looks up processes through /proc, in a thread. Remembers the process of a connection for reading."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Address, str], ConnectionOwner] = OrderedDict()

    async def __call__(self, client: Address, server: Address, *, again: bool) -> ConnectionOwner:
        inode = await anyio.to_thread.run_sync(socket_inode, client, server)
        remembered = self._known.get((client, inode))
        if remembered is not None and not again:
            return remembered
        owner = await anyio.to_thread.run_sync(owner_of, inode)
        self._known[(client, inode)] = owner
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return owner


def socket_inode(client: Address, server: Address) -> str:
    """Return the inode of the client's end of a connection; empty if the kernel does not list it."""
    ends = [(_hex(*client, mapped=mapped), _hex(*server, mapped=mapped)) for mapped in (False, True)]
    for table in _TABLES:
        for line in _read(table).splitlines():
            fields = line.split()
            if len(fields) > _INODE and (fields[_LOCAL], fields[_REMOTE]) in ends:
                return "" if fields[_INODE] == "0" else fields[_INODE]
    return ""


def owner_of(inode: str) -> ConnectionOwner:
    """Return the process that has this socket open. If several have, a tool's process counts first."""
    owners = [owner_of_process(pid) for pid in _pids_of(inode)] if inode else []
    if not owners:
        return ConnectionOwner("unknown", "the process of the connection cannot be found")
    return min(owners, key=lambda owner: ("tool", "unknown", "person").index(owner.origin))


def owner_of_process(pid: int) -> ConnectionOwner:
    """Return a process with what is known about its origin."""
    program = _read(Path(f"/proc/{pid}/comm")).strip()
    if reason := tool_behind(pid):
        return ConnectionOwner("tool", reason, pid, program)
    if reason := may_be_of_tool(pid):
        return ConnectionOwner("unknown", reason, pid, program)
    return ConnectionOwner("person", "", pid, program)


def _pids_of(inode: str) -> Iterator[int]:
    target = f"socket:[{inode}]"
    for name in os.listdir("/proc"):
        if name.isdecimal() and _has_open(f"/proc/{name}/fd", target):
            yield int(name)


def _has_open(folder: str, target: str) -> bool:
    """Return True if a process has the socket open. False for a process that ended, or that is another user's."""
    try:
        return any(_target(f"{folder}/{name}") == target for name in os.listdir(folder))
    except OSError:
        return False


def _target(descriptor: str) -> str:
    """Return the file behind a descriptor; empty if the process has closed it meanwhile."""
    try:
        return os.readlink(descriptor)
    except OSError:
        return ""


def _hex(host: str, port: int, *, mapped: bool) -> str:
    """Return an address as the kernel's tables write it: 32-bit words in the byte order of the machine.

    `mapped`: the IPv6 form of an IPv4 address.
    """
    packed = ip_address(host).packed
    if mapped and len(packed) == 4:
        packed = bytes(10) + b"\xff\xff" + packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"


def _read(file: Path) -> str:
    """Return the text of a file of the kernel; empty if it does not exist or is another user's."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
