"""Hosts of addresses, as rules `WebFetch(domain:host)` name them. Pure."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_ODD = re.compile(r"[\s\\\x00-\x1f\x7f]")


def host_of(url: str) -> str | None:
    """The host that an address leads to, in lower case and as it is looked up (IDNA); None where readers differ."""
    if _ODD.search(url):
        return None
    try:
        host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
        return host.rstrip(".").encode("idna").decode() if host else None
    except (ValueError, UnicodeError):
        return None


def names_host(pattern: str, url: str, *, allow: bool) -> bool:
    """Whether a pattern names the address's host. `*.` at its start is any depth and not the host itself, a bare `*`
    every host, any other star stays between two dots. What cannot be read for sure is denied and not allowed."""
    host = host_of(url)
    if host is None:
        return not allow
    wanted = pattern.strip().lower().rstrip(".")
    if wanted == "*":
        return True
    deep = wanted.startswith("*.")
    try:
        labels = [_label(label) for label in wanted.removeprefix("*.").split(".")]
    except UnicodeError:
        return False
    regex = (r"(?:[^.]+\.)+" if deep else "") + r"\.".join(labels)
    return re.fullmatch(regex, host) is not None


def _label(text: str) -> str:
    plain = text if "*" in text or not text else text.encode("idna").decode()
    return "[^.]*".join(re.escape(piece) for piece in plain.split("*"))
