"""Hosts of addresses, and the patterns of hosts in rules such as `WebFetch(domain:*.example.com)`. Pure."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from callboard.types.late_pattern import late_pattern

_ODD = late_pattern(r"[\s\\\x00-\x1f\x7f]")


def host_of(url: str) -> str | None:
    """Return the host of an address, in lower case and as it is looked up (IDNA); None if parsers disagree."""
    if _ODD.search(url):
        return None
    try:
        host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
        return host.rstrip(".").encode("idna").decode() if host else None
    except (ValueError, UnicodeError):
        return None


def names_host(pattern: str, url: str, *, allow: bool) -> bool:
    """Return True if a pattern matches the address's host.

    `*.` at its start matches any depth but not the host itself, a bare `*` matches every host, and any other star stays
    between two dots. A host that cannot be read for certain is denied and not allowed.
    """
    host = host_of(url)
    if host is None:
        return not allow
    host_pattern = pattern.strip().lower().rstrip(".")
    if host_pattern == "*":
        return True
    deep = host_pattern.startswith("*.")
    try:
        labels = [_label(label) for label in host_pattern.removeprefix("*.").split(".")]
    except UnicodeError:
        return False
    regex = (r"(?:[^.]+\.)+" if deep else "") + r"\.".join(labels)
    return re.fullmatch(regex, host) is not None


def _label(text: str) -> str:
    plain = text if "*" in text or not text else text.encode("idna").decode()
    return "[^.]*".join(re.escape(piece) for piece in plain.split("*"))
