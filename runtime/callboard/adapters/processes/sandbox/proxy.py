"""Network access of level 3: an HTTP proxy on a unix socket that allows exactly the hosts that the user named.

A name is looked up once, and the connection goes to the checked address. Refused are hosts that were not named,
addresses instead of names, and names that lead to this machine or its network, unless exactly that address was named.
The proxy sees no content of TLS and changes none of the data.

A session has one proxy for each set of allowed hosts. Each proxy has its own socket, and a command sees only its own
socket, so an approval for one command opens nothing to another. The proxies run as long as the session serves them;
otherwise no network is reachable.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import field
from pathlib import Path
from urllib.parse import urlsplit

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream, TaskGroup, TaskStatus
from anyio.streams.stapled import MultiListener

from callboard.adapters.system.scratch import scratch_folder
from callboard.core.permissions.hosts import is_public
from callboard.types.lazy_dataclass import dataclass

HEAD = 64 << 10
"""Most bytes of a request's head."""
SECONDS = 30.0
"""Most seconds until the head has arrived, and until a connection is made."""
USUAL = (80, 443)
"""Ports of an allowed host that is named without a port."""


class ProxyRefused(Exception):
    """The request is not allowed. The text has the reason."""


@dataclass(frozen=True, slots=True)
class Target:
    """Target of a request, and the bytes that are sent to it first."""

    host: str
    port: int
    first: bytes = b""
    """Bytes that are sent first; empty: the request is for a tunnel."""


def is_allowed(host: str, port: int, allowed: Sequence[str]) -> bool:
    """Return True if exactly this host was named, with this port or, without a port, for a usual one."""
    name = host.lower().rstrip(".")
    return any(
        (allowed_host == name and port in USUAL) if at is None else (allowed_host == name and port == at)
        for allowed_host, at in map(split_host, allowed)
    )


def split_host(text: str) -> tuple[str, int | None]:
    """Split `host` or `host:port`; `[::1]:80` for an IPv6 address."""
    name, colon, port = text.strip().lower().rpartition(":")
    if not colon or not port.isdecimal() or (":" in name and not name.endswith("]")):
        return text.strip().lower().strip("[]").rstrip("."), None
    return name.strip("[]").rstrip("."), int(port)


def read_head(head: bytes) -> Target:
    """Return the target of a request's head. Raises `ProxyRefused` for a request that is not for a proxy."""
    try:
        line, _, header_text = head.decode("latin-1").partition("\r\n")
        method, url, version = line.split(" ")
        if method == "CONNECT":
            host, port = split_host(url)
            return Target(host, port or 443)
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.username or not version.startswith("HTTP/1."):
            raise ValueError(url)
        path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        headers = [header for header in header_text.split("\r\n") if header and not header.lower().startswith(_OURS)]
        host = [header for header in headers if not header.lower().startswith("host:")]
        lines = [f"{method} {path} {version}", f"Host: {parts.netloc}", *host, "Connection: close", "", ""]
        return Target(parts.hostname, parts.port or 80, "\r\n".join(lines).encode("latin-1"))
    except ValueError as wrong:
        raise ProxyRefused("this is not a request to an HTTP proxy") from wrong


_OURS = ("proxy-", "connection:", "keep-alive:")


async def find_address(target: Target, allowed: Sequence[str]) -> str:
    """Return the address to connect to. Raises `ProxyRefused`."""
    if not is_allowed(target.host, target.port, allowed):
        raise ProxyRefused(f"{target.host}:{target.port} is not in sandbox.network.allow")
    if _address(target.host) is not None:
        return target.host  # exactly this address was named
    try:
        addresses = await anyio.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError as failed:
        raise ProxyRefused(f"{target.host} was not found: {failed}") from failed
    for *_, place in addresses:
        address = _address(str(place[0]))
        if address is not None and is_public(address):
            return str(place[0])
    raise ProxyRefused(f"{target.host} leads to an address of this machine or its network")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address of a text, also in the unusual forms that a resolver accepts (`0x7f.1`, `2130706433`)."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        try:
            return ipaddress.ip_address(socket.inet_aton(text))
        except OSError:
            return None


@dataclass(frozen=True, slots=True)
class Proxy:
    """Proxy of one set of hosts. `path`: HOST:PORT, or a socket in a folder that only the user may enter."""

    path: str
    allowed: tuple[str, ...]
    refused: list[str] = field(default_factory=list[str])
    """Requested hosts that were not allowed, one entry per request."""

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Report as started once it listens."""
        async with await anyio.create_unix_listener(self.path, mode=0o600) as listener:
            task_status.started()
            await listener.serve(self.handle)

    async def serve_port(self, listener: MultiListener[SocketStream]) -> None:
        """Serve on a port that is already listened on, until cancelled."""
        async with listener:
            await listener.serve(self.handle)

    async def handle(self, client: SocketStream) -> None:
        """Serve one connection to its end. A failure ends only this connection."""
        async with client:
            try:
                await self._handle(client)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError):
                return  # one side has closed

    async def _handle(self, client: SocketStream) -> None:
        try:
            with anyio.fail_after(SECONDS):
                head, body_start = await _head(client)
                target = read_head(head)
                if not is_allowed(target.host, target.port, self.allowed):
                    self.refused.append(f"{target.host}:{target.port}")
                address = await find_address(target, self.allowed)
                server = await anyio.connect_tcp(address, target.port)
        except (ProxyRefused, OSError) as error:
            message = f"callboard: {error}\n".encode()
            await client.send(_FORBIDDEN % len(message) + message)
            return
        async with server:
            if target.first:
                await server.send(target.first + body_start)
            else:
                await client.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
                if body_start:
                    await server.send(body_start)
            async with anyio.create_task_group() as group:
                group.start_soon(_carry, client, server)
                await _carry(server, client)
                group.cancel_scope.cancel()


_FORBIDDEN = b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"


async def _head(client: ByteStream) -> tuple[bytes, bytes]:
    """Return a request's head, and the data after it that has arrived.

    Raises `ProxyRefused` for a head without an end.
    """
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > HEAD:
            raise ProxyRefused("the request's head is too long")
        data += await client.receive(HEAD)
    head, _, body_start = data.partition(b"\r\n\r\n")
    return head, body_start


async def _carry(source: ByteStream, sink: SocketStream) -> None:
    async for data in source:
        await sink.send(data)
    await sink.send_eof()


class SessionProxies:
    """Proxies of a session; see the module."""

    def __init__(self, *, ports: bool = False) -> None:
        self._ports = ports
        """True: each proxy has a port of the loopback, because the sandbox (Seatbelt) has no network of its own."""
        self._group: TaskGroup | None = None
        self._folder: Path | None = None
        """Folder of the sockets, made for the first one."""
        self._made = ExitStack()
        self._proxies: dict[tuple[str, ...], Proxy] = {}
        self._lock = anyio.Lock()

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                task_status.started()
                await anyio.sleep_forever()
        finally:
            self._group = None
            self._proxies.clear()
            self._folder = None
            self._made.close()

    async def open(self, hosts: Sequence[str]) -> str:
        """Return the socket of the proxy that allows exactly these hosts; empty if the proxies are not being served."""
        key = tuple(sorted(hosts))
        async with self._lock:
            if self._group is None or not key:
                return ""
            if key not in self._proxies:
                self._proxies[key] = await self._begin(self._group, key)
            return self._proxies[key].path

    async def _begin(self, group: TaskGroup, hosts: tuple[str, ...]) -> Proxy:
        if self._ports:
            listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
            port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - anyio's, which has nothing to do with Django
            proxy = Proxy(f"127.0.0.1:{port}", hosts)
            group.start_soon(proxy.serve_port, listener)
            return proxy
        if self._folder is None:
            # Its path is short: that of a socket has 107 bytes at most.
            self._folder = self._made.enter_context(scratch_folder())
        proxy = Proxy(f"{self._folder}/{len(self._proxies)}", hosts)
        await group.start(proxy.serve)
        return proxy

    def refused_hosts(self, path: str) -> tuple[str, ...]:
        """Return the hosts that the proxy of a socket has refused so far, in order."""
        return next((tuple(proxy.refused) for proxy in self._proxies.values() if proxy.path == path), ())
