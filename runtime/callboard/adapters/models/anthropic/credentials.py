"""Credentials of the model service: a key or a token of the environment, or a command that prints a key.

The command (`api_key_helper`, `apiKeyHelper` in settings for Claude Code) runs in `/bin/sh` with the environment of the
session. Its key is used for five minutes, or for `CLAUDE_CODE_API_KEY_HELPER_TTL_MS` milliseconds, and until the
service refuses it. However many calls need a new key at once, the command runs once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio

from callboard.adapters.processes.programs import run_program
from callboard.types.errors import CredentialsMissing

TTL_VARIABLE = "CLAUDE_CODE_API_KEY_HELPER_TTL_MS"
_TTL_S = 300.0
_TIMEOUT_S = 60.0
"""Most seconds of one run of the command."""
_LONGEST = 16_384
"""Most bytes that the command prints."""


@dataclass
class KeyCommand:
    """A command that prints a key, and its last key."""

    command: str
    environment: Mapping[str, str]
    place: str = "api_key_helper"
    """Location of the setting, for messages."""
    _key: str = ""
    _until: float = 0.0
    _running: anyio.Lock = field(default_factory=anyio.Lock)

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


def is_usable(secret: str) -> bool:
    """Return True if a header can carry the secret."""
    return secret.isascii() and secret.isprintable() and " " not in secret


def credential(api_key: str | None, auth_token: str | None) -> tuple[str, str]:
    """Return the secret and its kind, `key` or `token`.

    The key takes precedence, as in the SDK. Raises `CredentialsMissing`; the secret is never part of a message.
    """
    for name, kind, value in (
        ("ANTHROPIC_API_KEY", "key", api_key),
        ("ANTHROPIC_AUTH_TOKEN", "token", auth_token),
    ):
        secret = (value or "").strip()
        if not secret:
            continue
        if not is_usable(secret):
            raise CredentialsMissing(f"{name} holds characters that no key has (a line break, a blank?): set it again")
        return secret, kind
    raise CredentialsMissing(
        "no key for the model service: neither ANTHROPIC_API_KEY nor ANTHROPIC_AUTH_TOKEN is set in the environment; "
        "set one of them, or use a rehearsed model (--model rehearsal:SCENARIO), which needs none"
    )
