"""Passwords of the page's users: a hash for the settings, and the check of a password against it."""

from __future__ import annotations

import base64
import hashlib
import secrets

from callboard.types.errors import SettingsError

_KIND = "scrypt"
_COST = 2**15
_BLOCK = 8
_PARALLEL = 1
_MOST_MEMORY = 128 * 1024 * 1024
LEAST_LENGTH = 12
"""Fewest characters of a password."""


def password_hash(password: str) -> str:
    """Return the hash of a password with its parameters and a new salt."""
    salt = secrets.token_bytes(16)
    parts = (_KIND, str(_COST), str(_BLOCK), str(_PARALLEL), _text(salt), _text(_scrypt(password, salt, _COST)))
    return "$".join(parts)


def check_hash(name: str, stored: str) -> None:
    """Raise `SettingsError` for a text that is no hash of `password_hash`."""
    try:
        _parts(stored)
    except ValueError as wrong:
        raise SettingsError(
            f"web.users.{name}: not a hash of a password: callboard web --add-user {name} writes it"
        ) from wrong


def is_password(password: str, stored: str | None) -> bool:
    """Return True for the password with this hash. None: an unknown user, for whom the check takes as long."""
    if stored is None:
        _scrypt(password, b"nobody", _COST)
        return False
    cost, salt, digest = _parts(stored)
    return secrets.compare_digest(_scrypt(password, salt, cost), digest)


def _parts(stored: str) -> tuple[int, bytes, bytes]:
    """Return cost, salt, and digest of a hash. Raises `ValueError`."""
    kind, cost, block, parallel, salt, digest = stored.split("$")
    if (kind, int(block), int(parallel)) != (_KIND, _BLOCK, _PARALLEL) or not 2**14 <= int(cost) <= 2**16:
        raise ValueError(stored)
    return int(cost), base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)


def _scrypt(password: str, salt: bytes, cost: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=cost, r=_BLOCK, p=_PARALLEL, maxmem=_MOST_MEMORY, dklen=32)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
