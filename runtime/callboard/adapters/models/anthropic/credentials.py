"""Credentials of the model service: a key or a token of the environment, or a command that prints a key.

The command (`api_key_helper`, `apiKeyHelper` in settings for Claude Code) runs in `/bin/sh` with the environment of the
session. Its key is used for five minutes, or for `CLAUDE_CODE_API_KEY_HELPER_TTL_MS` milliseconds, and until the
service refuses it. However many calls need a new key at once, the command runs once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import field
from typing import Protocol

import anyio

from callboard.adapters.processes.programs import run_program
from callboard.types.errors import CredentialsMissing
from callboard.types.lazy_dataclass import dataclass

TTL_VARIABLE = "CLAUDE_CODE_API_KEY_HELPER_TTL_MS"
_TTL_S = 300.0
_TIMEOUT_S = 60.0
"""Most seconds of one run of the command."""
_LONGEST = 16_384
"""Most bytes that the command prints."""


class Credentials(Protocol):
    """Credentials of a model service."""

    @property
    def secret(self) -> str:
        """Return the key or token of the headers, which no message may contain."""
        ...

    def headers(self) -> Mapping[str, str]:
        """Return the headers that carry the secret, by names in lower case."""
        ...

    async def renew(self, refused: str = "") -> bool:
        """Replace a secret that has expired, or that the service `refused`. Return True if it is another one now.

        Called before each request. Raises `CredentialsMissing`.
        """
        ...

    def close(self) -> None:
        """Close connections for the exchange of tokens. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class FixedKey:
    """A key or a token that does not change."""

    secret: str
    is_token: bool = False

    def headers(self) -> Mapping[str, str]:
        """See `Credentials.headers`. A token is only a bearer."""
        return _bearer(self.secret) if self.is_token else _both(self.secret)

    async def renew(self, refused: str = "") -> bool:
        """Return False for this key: there is no other one."""
        return self.secret != refused

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


@dataclass
class KeyCommand:
    """`Credentials` of a command that prints a key."""

    command: str
    environment: Mapping[str, str]
    place: str = "api_key_helper"
    """Location of the setting, for messages."""
    _key: str = ""
    _until: float = 0.0
    _running: anyio.Lock = field(default_factory=anyio.Lock)

    @property
    def secret(self) -> str:
        """Return the last key; empty before the first run."""
        return self._key

    def headers(self) -> Mapping[str, str]:
        """See `Credentials.headers`."""
        return _both(self._key)

    async def renew(self, refused: str = "") -> bool:
        """See `Credentials.renew`."""
        return await self.key(refused) != refused

    def close(self) -> None:
        """Do nothing: a run of the command ends by itself."""

    async def key(self, refused: str = "") -> str:
        """Return the key: the last one while it is fresh, unless it is the one that the service `refused`.

        Raises `CredentialsMissing`.
        """
        if self._is_fresh(refused):
            return self._key
        async with self._running:  # another call may have run the command meanwhile
            if not self._is_fresh(refused):
                self._key = await self._printed()
                self._until = time.monotonic() + self._ttl()
            return self._key

    def _is_fresh(self, refused: str) -> bool:
        return bool(self._key) and self._key != refused and time.monotonic() < self._until

    def _ttl(self) -> float:
        text = self.environment.get(TTL_VARIABLE, "").strip()
        return int(text) / 1000 if text.isdecimal() and int(text) > 0 else _TTL_S

    async def _printed(self) -> str:
        argv = ["/bin/sh", "-c", self.command]
        try:
            ended = await run_program(argv, self.environment, timeout=_TIMEOUT_S, most=_LONGEST)
        except (OSError, ValueError) as error:
            raise self._failed(f"cannot be started: {error}") from None
        if ended.timed_out:
            raise self._failed(f"did not end within {_TIMEOUT_S:g} s")
        if len(ended.out) + len(ended.err) > _LONGEST:
            raise self._failed(f"printed more than {_LONGEST:,} bytes")
        if ended.code is None:
            raise self._failed("was ended by a signal")
        if ended.code != 0:
            lines = ended.err.decode("utf-8", "replace").strip().splitlines()
            raise self._failed(f"ended with exit code {ended.code}{f': {lines[-1][:300]}' if lines else ''}")
        key = ended.out.decode("utf-8", "replace").strip()
        if not key:
            raise self._failed("printed nothing on its standard output")
        if not is_usable(key):
            raise self._failed("printed more than a key: it has to print the key alone, without other text")
        return key

    def _failed(self, reason: str) -> CredentialsMissing:
        return CredentialsMissing(
            f"no key for the model service: the command in {self.place} {reason}. Run it in a shell"
        )


def _bearer(secret: str) -> Mapping[str, str]:
    return {"authorization": f"Bearer {secret}"}


def _both(key: str) -> Mapping[str, str]:
    """Return a key in both headers.

    Services differ in the one that they read: gateways often know only `x-api-key`, while the SDK sends a bearer. A
    password of the base URL, or a header of the user, may also replace the bearer.
    """
    return {"x-api-key": key, **_bearer(key)}


def is_usable(secret: str) -> bool:
    """Return True if a header can carry the secret."""
    return secret.isascii() and secret.isprintable() and " " not in secret


def fixed_key(api_key: str | None, auth_token: str | None) -> FixedKey | None:
    """Return the key or the token; None without both.

    The key takes precedence, as in the SDK. Raises `CredentialsMissing` for one that no header can carry; the secret is
    never part of a message.
    """
    named = (("ANTHROPIC_API_KEY", api_key, False), ("ANTHROPIC_AUTH_TOKEN", auth_token, True))
    for name, value, is_token in named:
        secret = (value or "").strip()
        if not secret:
            continue
        if not is_usable(secret):
            raise CredentialsMissing(f"{name} holds characters that no key has (a line break, a blank?): set it again")
        return FixedKey(secret, is_token=is_token)
    return None


def no_key() -> CredentialsMissing:
    """Return the error for a service without any credentials."""
    return CredentialsMissing(
        "no key for the model service: neither ANTHROPIC_API_KEY nor ANTHROPIC_AUTH_TOKEN is set in the environment; "
        "set one of them, or use a rehearsed model (--model rehearsal:SCENARIO), which needs none"
    )
