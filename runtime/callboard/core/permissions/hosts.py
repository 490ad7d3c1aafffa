"""Addresses of hosts: those that are public, and those of this machine or its network. Pure.

Imports only the standard library, because `web_child.py` uses it too.
"""

from __future__ import annotations

import ipaddress

from callboard.types.late_pattern import late_pattern

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NUMBER = late_pattern(r"0x[0-9a-f]+|0[0-7]*|[1-9][0-9]*")
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses that a gateway translates to the IPv4 address in their last 32 bits."""


def address_of(host: str) -> Address | None:
    """Return the address that a host is, also in the unusual forms that a resolver accepts (`0x7f.1`, `2130706433`)."""
    text = host.strip("[]").partition("%")[0].lower()
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        parts = text.split(".")
    if len(parts) > 4 or not all(map(_NUMBER.fullmatch, parts)):
        return None
    *first, last = (int(part, 16 if part.startswith("0x") else 8 if part.startswith("0") else 10) for part in parts)
    value = last + sum(number << (8 * (3 - place)) for place, number in enumerate(first))
    return ipaddress.IPv4Address(value) if value < 1 << 32 and all(number < 256 for number in first) else None


def is_public(address: Address) -> bool:
    """Return True if an address, and the IPv4 address inside it, are reachable from everywhere."""
    inner: Address = address
    if isinstance(address, ipaddress.IPv6Address):
        translated = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF) if address in _TRANSLATED else None
        inner = address.ipv4_mapped or address.sixtofour or translated or address
    return inner.is_global and not inner.is_multicast


def is_local(host: str) -> bool:
    """Return True if a host certainly is this machine or in its network, before its name is looked up."""
    name = host.lower().rstrip(".")
    address = address_of(name)
    if address is not None:
        return not is_public(address)
    return name == "localhost" or name.endswith(".localhost")


def is_loopback(host: str) -> bool:
    """Return True if a host is this machine by its own name or address."""
    name = host.lower().rstrip(".")
    address = address_of(name)
    return address.is_loopback if address is not None else name == "localhost" or name.endswith(".localhost")
