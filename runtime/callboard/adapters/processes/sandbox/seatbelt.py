"""Profile of the macOS sandbox (Seatbelt) for one command, in its language SBPL. Pure: reads nothing.

A profile denies by default and lists what a command may do. It grants by path: a grant names a folder and the parts of
it that stay closed, in one expression, so that the order of rules never matters. One rule names each operation, because
a rule for a special operation (`file-read-data`) beats one for a general operation (`file-read*`) in any order.

Not in a profile: pseudo terminals, other programs' preferences, Apple events, the keychain, starting services, POSIX
shared memory, unix sockets, and reading the arguments and environments of processes (`kern.procargs2`).
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Iterator

from callboard.adapters.processes.tool_ancestry import SEATBELT_MARK
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/tty")
_SYSCTLS = (
    *("kern.argmax", "kern.hostname", "kern.maxfiles", "kern.maxfilesperproc", "kern.maxproc", "kern.ngroups"),
    *("kern.osproductversion", "kern.osrelease", "kern.ostype", "kern.osvariant_status", "kern.osversion"),
    *("kern.secure_kernel", "kern.usrstack64", "kern.version", "sysctl.proc_cputype", "vm.loadavg"),
)
_SYSCTL_PREFIXES = ("hw.", "machdep.cpu.")
_SERVICES = (
    "com.apple.system.opendirectoryd.libinfo",
    "com.apple.system.opendirectoryd.membership",
    "com.apple.system.notification_center",
    "com.apple.system.logger",
)
"""Services that the C library asks for users, groups, the time zone, and log lines."""
_SERVICES_OF_NETWORK = ("com.apple.trustd.agent", "com.apple.SystemConfiguration.configd", "com.apple.networkd")
"""Services that check certificates and describe the network."""
_RESOLVER = "/private/var/run/mDNSResponder"
_PLAIN = late_pattern(r"[A-Za-z0-9._-]+")
_CONTROL = late_pattern(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class SeatbeltArea:
    """A file, or a folder with everything beneath it, without some parts. Absolute paths, spelled as on the disk."""

    path: str
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SeatbeltRules:
    """Paths that a command may read and change, and the network that it reaches."""

    read: tuple[SeatbeltArea, ...] = ()
    write: tuple[SeatbeltArea, ...] = ()
    read_only: tuple[str, ...] = ()
    """Files and folders that stay unchanged with everything beneath them, wherever they are."""
    pinned: tuple[str, ...] = ()
    """Folders that stay where they are. Their content can change."""
    absent: tuple[tuple[str, str], ...] = ()
    """Folder, and the name or relative path in it that must not appear, however its letters are written."""
    ports: tuple[int, ...] = ()
    """TCP ports of this machine that can be connected to."""
    network: bool = False
    """True if the machine's network is open."""


def seatbelt_profile(rules: SeatbeltRules) -> str:
    """Return the profile as text. Raises `ValueError` for a path with a control character, which none can hold."""
    return "\n".join(_lines(rules)) + "\n"


def _lines(rules: SeatbeltRules) -> Iterator[str]:
    yield "(version 1)"
    yield "(deny default)"
    yield "(allow process-exec)"
    yield "(allow process-fork)"
    yield "(allow process-info* (target same-sandbox))"
    yield "(allow signal (target same-sandbox))"
    yield "(allow mach-host*)"
    yield "(allow ipc-posix-sem)"
    names = [f"(sysctl-name {quote(name)})" for name in _SYSCTLS]
    yield _rule("allow sysctl-read", [*names, *(f"(sysctl-name-prefix {quote(name)})" for name in _SYSCTL_PREFIXES)])
    services = (*_SERVICES, *(_SERVICES_OF_NETWORK if rules.network else ()))
    yield _rule("allow mach-lookup", [f"(global-name {quote(name)})" for name in services])
    yield from _files(rules)
    yield from _network(rules)


def _files(rules: SeatbeltRules) -> Iterator[str]:
    readable = [_filter(area, [f"(literal {quote(SEATBELT_MARK)})"]) for area in (*rules.read, *rules.write)]
    devices = [f"(literal {quote(path)})" for path in DEVICES]
    yield _rule("allow file-read* file-map-executable", ['(literal "/")', *devices, *readable])
    # Programs look at each folder on the way to a file (realpath).
    above = dict.fromkeys(folder for area in (*rules.read, *rules.write) for folder in _folders_above(area.path))
    if above:
        yield _rule("allow file-read-metadata", [f"(literal {quote(path)})" for path in above])
    closed = [
        *(f"(subpath {quote(path)})" for path in rules.read_only),
        # The disk would find a kept file by other letters too, should it be replaced meanwhile.
        *(_in_any_case(*pair) for path in rules.read_only if _PLAIN.fullmatch((pair := os.path.split(path))[1])),
        *(f"(literal {quote(path)})" for path in rules.pinned),
        *(_in_any_case(base, name) for base, name in rules.absent),
    ]
    yield _rule("allow file-write*", [*devices, *(_filter(area, closed) for area in rules.write)])


def _network(rules: SeatbeltRules) -> Iterator[str]:
    if rules.network:
        yield '(allow network-outbound (remote ip "*:*") (literal ' + quote(_RESOLVER) + "))"
        yield '(allow network-bind network-inbound (local ip "*:*"))'
        return
    for port in rules.ports:
        yield f'(allow network-outbound (remote ip "localhost:{int(port)}"))'


def _rule(head: str, filters: Iterable[str]) -> str:
    return "\n  ".join((f"({head}", *filters)) + ")"


def _filter(area: SeatbeltArea, closed: Iterable[str]) -> str:
    """Return the expression of an area without its closed parts, and without `closed`."""
    parts = [f"(subpath {quote(area.path)})", *(f"(require-not (subpath {quote(path)}))" for path in area.without)]
    return f"(require-all {' '.join([*parts, *(f'(require-not {each})' for each in closed)])})"


def _in_any_case(base: str, name: str) -> str:
    """Return the expression of a name that may not exist yet, and of everything beneath it.

    The disks of macOS find `.MCP.JSON` as `.mcp.json`, and Seatbelt compares the letters of a new file as written.
    """
    pattern = "".join(_either_case(character) for character in name.strip("/"))
    return f'(regex (string-append "^" (regex-quote {quote(base.rstrip("/") + "/")}) "{pattern}(/|$)"))'


def _either_case(character: str) -> str:
    if character == "/":
        return character
    if _PLAIN.fullmatch(character):
        return f"[{character.lower()}{character.upper()}]" if character.isalpha() else f"[{character}]"
    raise ValueError(f"{character!r} is not expected in the name of a protected file")


def _folders_above(path: str) -> Iterator[str]:
    """Yield the folders above a path, without the root."""
    parts = path.strip("/").split("/")[:-1]
    for end in range(1, len(parts) + 1):
        yield "/" + "/".join(parts[:end])


def quote(text: str) -> str:
    """Return a text as a string of SBPL, whatever characters it contains.

    Raises `ValueError` for a control character.
    """
    if _CONTROL.search(text):
        raise ValueError(f"{text!r} contains a control character, which a profile of the sandbox cannot express")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
