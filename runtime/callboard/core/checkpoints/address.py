"""Addresses of git remotes, and the name of a workspace that several machines know. Pure.

An address may be stored and shown, so one that contains a password or a token is refused, and no error repeats it.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

_SCHEME = late_pattern(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SCP = late_pattern(r"(?:([A-Za-z0-9._-]+)@)?([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]):([^@:]*[^@:/])/*")
_USER = late_pattern(r"[A-Za-z0-9._-]+")
_HOST = late_pattern(r"[A-Za-z0-9_][A-Za-z0-9._-]*|[0-9A-Fa-f:.]+")
_UNSAFE = late_pattern(r"[\x00-\x20\x7f]")
_CREDENTIALS = late_pattern(r"(?<=://)[^/\s@'\"]+(?:@[^/\s@'\"]+)*@")
_PORTS = {"https": 443, "ssh": 22}
_BASE = late_pattern(r"[^\x00-\x20\x7f~^:?*\[\\]+")
_HINT = "write https://HOST/PATH, ssh://USER@HOST/PATH, USER@HOST:PATH, or the whole path of a folder"
_REMOVE = (
    "the address contains a user name, a password, or a token: remove it, and let git's credential helper or an ssh "
    "key prove who you are"
)


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """Address of a git remote. Created by `parse_remote`."""

    url: str
    """Address as git gets it, without any credential."""
    identity: str
    """Name that is the same for all ways of writing the address: `github.com/acme/app`."""


def parse_remote(text: str) -> RemoteAddress:
    """Return the address. Raises `ValueError`, which never repeats the text, because it may contain a password."""
    if not text or text.startswith("-") or _UNSAFE.search(text):
        raise ValueError(f"this is no address of a git remote: {_HINT}")
    if text.startswith("/"):
        return RemoteAddress(text, f"file:{_path(text)}")
    if scheme := _SCHEME.match(text):
        return _parse_url(text, scheme[1].lower())
    match = _SCP.fullmatch(text)
    if match is None:
        raise ValueError(_REMOVE if "@" in text else f"this is no address of a git remote: {_HINT}")
    return RemoteAddress(text, f"{match[2].lower()}/{_path(match[3])}")


def _parse_url(text: str, scheme: str) -> RemoteAddress:
    if scheme not in ("https", "ssh", "file"):
        raise ValueError(f"git remotes are reached with https, ssh, or as a folder: {_HINT}")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(f"this is no address of a git remote: {_HINT}") from None
    user = parts.netloc.rpartition("@")[0]
    if user and (scheme != "ssh" or not _USER.fullmatch(user)):
        raise ValueError(_REMOVE)
    if "?" in text or "#" in text:
        raise ValueError("the address of a git remote has no ? or #, because a token could follow: remove that part")
    host = (parts.hostname or "").lower()
    if not _path(parts.path) or (scheme == "file") != (not host) or (host and not _HOST.fullmatch(host)):
        raise ValueError(f"this is no address of a git remote: {_HINT}")
    if scheme == "file":
        return RemoteAddress(text, f"file:{_path(parts.path)}")
    place = host if port in (None, _PORTS[scheme]) else f"{host}:{port}"
    return RemoteAddress(text, f"{place}/{_path(parts.path).lstrip('/')}")


def _path(path: str) -> str:
    return re.sub("//+", "/", path).rstrip("/").removesuffix(".git")


def check_base(base: str) -> str:
    """Return the name of a branch. Raises `ValueError` for a name that git does not accept."""
    bad = base.startswith(("-", "/", ".")) or base.endswith(("/", ".", ".lock")) or base == "@"
    if base and (bad or not _BASE.fullmatch(base) or ".." in base or "//" in base or "@{" in base or "/." in base):
        raise ValueError("this is no name of a branch: write it as `git branch` shows it")
    return base


def workspace_name(remote: RemoteAddress, base: str) -> str:
    """Return the name of a workspace in the store, the same on all machines: its remote and its base."""
    return f"git:{remote.identity}" + (f"#{base}" if base else "")


def without_credentials(text: str) -> str:
    """Return git's output without the user part of addresses.

    A person's git configuration may replace an address by one with a token, which git then repeats.
    """
    return _CREDENTIALS.sub("", text)
