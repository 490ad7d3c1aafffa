"""The way out of level 3: an HTTP proxy on a unix socket that lets through exactly the hosts that a person named.

A name is looked up once, and the connection goes to what was looked up and checked. Refused: hosts that were not named,
addresses instead of names, names that lead to this machine or its network; unless exactly that address was named. It
sees no content of TLS and changes none of what it carries.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import anyio
from anyio.abc import ByteStream, SocketStream, TaskStatus

HEAD = 64 << 10
"""Bytes that a request's head may have."""
SECONDS = 30.0
"""For the head to come, and for a connection to be made."""
USUAL = (80, 443)
"""Ports of an allowed host that names none."""


class Refused(Exception):
    """Not let through; the text says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request wants to go, and what is sent there first."""

    host: str
    port: int
    first: bytes = b""
    """Empty: it asked for a tunnel."""


def is_allowed(host: str, port: int, allowed: Sequence[str]) -> bool:
    """Whether exactly this host was named, with this port or, without one, with a usual one."""
    name = host.lower().rstrip(".")
    return any(
        (known == name and port in USUAL) if at is None else (known == name and port == at)
        for known, at in map(split_host, allowed)
    )


def split_host(text: str) -> tuple[str, int | None]:
    """`host` or `host:port`; `[::1]:80` for an address of IPv6."""
    name, colon, port = text.strip().lower().rpartition(":")
    if not colon or not port.isdecimal() or (":" in name and not name.endswith("]")):
        return text.strip().lower().strip("[]").rstrip("."), None
    return name.strip("[]").rstrip("."), int(port)


def read_head(head: bytes) -> Target:
    """The target of a request's head. Raises `Refused` for what is no request to a proxy."""
    try:
        line, _, rest = head.decode("latin-1").partition("\r\n")
        method, url, version = line.split(" ")
        if method == "CONNECT":
            host, port = split_host(url)
            return Target(host, port or 443)
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.username or not version.startswith("HTTP/1."):
            raise ValueError(url)
        path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        kept = [one for one in rest.split("\r\n") if one and not one.lower().startswith(_OURS)]
        host = [one for one in kept if not one.lower().startswith("host:")]
        lines = [f"{method} {path} {version}", f"Host: {parts.netloc}", *host, "Connection: close", "", ""]
        return Target(parts.hostname, parts.port or 80, "\r\n".join(lines).encode("latin-1"))
    except ValueError as wrong:
        raise Refused("this is no request to an HTTP proxy") from wrong


_OURS = ("proxy-", "connection:", "keep-alive:")


async def find_address(target: Target, allowed: Sequence[str]) -> str:
    """The address to connect to. Raises `Refused`."""
    if not is_allowed(target.host, target.port, allowed):
        raise Refused(f"{target.host}:{target.port} is not in sandbox.network.allow")
    if _address(target.host) is not None:
        return target.host  # exactly this address was named
    try:
        found = await anyio.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError as failed:
        raise Refused(f"{target.host} was not found: {failed}") from failed
    for *_, place in found:
        address = _address(str(place[0]))
        if address is not None and _is_public(address):
            return str(place[0])
    raise Refused(f"{target.host} leads to an address of this machine or its network")


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (inner or address).is_global


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a text is; also in the odd forms that a resolver takes (`0x7f.1`, `2130706433`)."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        try:
            return ipaddress.ip_address(socket.inet_aton(text))
        except OSError:
            return None


@dataclass(frozen=True, slots=True)
class Proxy:
    """`path`: the socket, in a folder of its own that only the person may enter."""

    path: str
    allowed: tuple[str, ...]

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Let through what may, until cancelled; started when it listens."""
        async with await anyio.create_unix_listener(self.path, mode=0o600) as listener:
            task_status.started()
            await listener.serve(self.handle)

    async def handle(self, client: SocketStream) -> None:
        """One connection to its end; whatever goes wrong with it ends only it."""
        async with client:
            try:
                await self._handle(client)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError):
                return  # one of the two has gone

    async def _handle(self, client: SocketStream) -> None:
        try:
            with anyio.fail_after(SECONDS):
                head, rest = await _head(client)
                target = read_head(head)
                address = await find_address(target, self.allowed)
                server = await anyio.connect_tcp(address, target.port)
        except (Refused, OSError) as why:
            said = f"callboard: {why}\n".encode()
            await client.send(_FORBIDDEN % len(said) + said)
            return
        async with server:
            if target.first:
                await server.send(target.first + rest)
            else:
                await client.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
                if rest:
                    await server.send(rest)
            async with anyio.create_task_group() as group:
                group.start_soon(_carry, client, server)
                await _carry(server, client)
                group.cancel_scope.cancel()


_FORBIDDEN = b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"


async def _head(client: ByteStream) -> tuple[bytes, bytes]:
    """A request's head, and what came after it already. Raises `Refused` for one without an end."""
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > HEAD:
            raise Refused("the request's head is too long")
        data += await client.receive(HEAD)
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


async def _carry(source: ByteStream, sink: SocketStream) -> None:
    async for data in source:
        await sink.send(data)
    await sink.send_eof()
