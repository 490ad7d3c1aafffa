"""The other end of a connection: a process of this machine, the declared proxy, or another machine.

A process can be looked up only on this machine. Other machines need TLS, and sign in with a password. The declared
proxy proves itself by a secret with every request: its address alone would not do, because an agent's command can have
the same one. A command of an agent that reaches the page through another address of this machine is found as well.
"""

from __future__ import annotations

import hashlib
import secrets
from ipaddress import ip_address
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from callboard.adapters.processes.connection_owner import Address, ConnectionOwner, OwnerLookup
from callboard.types.lazy_dataclass import dataclass
from callboard.types.personal_settings import ProxySetting

PROXY_HEADER = "x-callboard-proxy"
"""Header with the secret of the proxy."""
_MOST_NAME = 200


@dataclass(frozen=True, slots=True)
class Reach:
    """Limits on who may connect to the page."""

    hosts: tuple[str, ...] = ()
    """Names under which the page is opened, beside those of the loopback."""
    beyond: bool = False
    """True if it listens on other addresses than the loopback."""
    proxy: ProxySetting = ProxySetting()

    def names(self, port: int) -> frozenset[str]:
        """Return the accepted `Host` headers, beside those of the loopback."""
        plain = [host.lower() for host in self.hosts]
        return frozenset(plain) | {f"{host}:{port}" for host in plain if ":" not in host.rpartition("]")[2]}


LOOPBACK_ONLY = Reach()


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of one connection."""

    owner: ConnectionOwner
    client: str = ""
    """Address of another machine; empty: this machine."""
    secure: bool = False
    """True if the browser's connection is encrypted."""
    proxied: bool = False
    user: str | None = None
    """Name of the user that the proxy has signed in, empty if it named none; None: users sign in on the page."""

    @property
    def in_doubt(self) -> bool:
        """Return True for a process of this machine that can be neither shown nor excluded to be a tool's."""
        return not self.client and not self.proxied and self.owner.origin == "unknown"


class PeerRefused(Exception):
    """A connection that may not use the page. The text is the reason."""


async def peer_of(scope: Scope, headers: Headers, reach: Reach, owner: OwnerLookup, *, fresh: bool) -> Peer:
    """Return the other end of a connection. Raises `PeerRefused`."""
    client, server = ends_of(scope)
    local = _is_local(client[0], server[0])
    secure = scope["scheme"] == "https"
    if not local and not reach.beyond:
        raise PeerRefused("this page is for this machine only")
    process = await owner(client, server, again=fresh)
    if process.origin == "tool":
        return Peer(process, "", secure)
    if PROXY_HEADER in headers:
        _check_proxy(client[0], headers, reach.proxy)
        return Peer(process, _forwarded_for(headers) or client[0], True, True, _user(headers, reach.proxy))
    if local or process.pid:
        return Peer(process, "", secure)
    if not secure:
        raise PeerRefused("other machines reach this page through its proxy only")
    return Peer(process, client[0], secure)


def ends_of(scope: Scope) -> tuple[Address, Address]:
    """Return the addresses of client and server. Raises `PeerRefused` for a connection without them."""
    client: Any = scope.get("client")
    server: Any = scope.get("server")
    if not client or not server:
        raise PeerRefused("this page is for this machine only")
    return (client[0], client[1]), (server[0], server[1])


def server_of(scope: Scope) -> Address:
    """Return the address at which the page was reached."""
    return ends_of(scope)[1]


def _is_local(client: str, server: str) -> bool:
    address = ip_address(client)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback or client == server


def _check_proxy(client: str, headers: Headers, proxy: ProxySetting) -> None:
    digest = hashlib.sha256(headers[PROXY_HEADER].encode()).hexdigest()
    expected = client.removeprefix("::ffff:") in proxy.addresses
    if not proxy.secret or not expected or not secrets.compare_digest(digest, proxy.secret.lower()):
        raise PeerRefused(f"{PROXY_HEADER} is not that of the proxy in web.proxy of the settings")


def _user(headers: Headers, proxy: ProxySetting) -> str | None:
    if not proxy.user_header:
        return None
    values = headers.getlist(proxy.user_header)
    return values[0].strip()[:_MOST_NAME] if len(values) == 1 else ""


def _forwarded_for(headers: Headers) -> str:
    """Return the address that the proxy itself has added last; empty without a valid one."""
    text = headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
    try:
        return str(ip_address(text))
    except ValueError:
        return ""
