"""Secrets of the page: the sign-in token, the cookies of signed-in browsers, and the code for doubtful changes.

A token signs in one browser, and the next one replaces it. Everything is in memory: a restart signs everybody out.
Secrets are compared in constant time, and wrong ones are counted.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from hashlib import sha256

from callboard.types.lazy_dataclass import dataclass

_TRIES = 10
"""Wrong secrets that are accepted in a period."""
_PERIOD = 60.0
"""Seconds for which a wrong secret counts."""
_BROWSERS = 20
"""Most browsers that are signed in. The next one signs out the oldest."""
_CODE_CHARACTERS = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
"""Characters of a code: none that looks like another."""


@dataclass(frozen=True, slots=True)
class Browser:
    """One signed-in browser."""

    form_token: str
    """Secret that each of its forms contains, so that no other page can send one."""


class TooManyTries(Exception):
    """Too many wrong secrets were sent. `wait`: seconds until the next try counts."""

    def __init__(self, wait: float) -> None:
        super().__init__(f"too many wrong tries: wait {wait:.0f} s")
        self.wait = wait


class Access:
    """Secrets of one server."""

    def __init__(self, renewed: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.token = secrets.token_urlsafe(32)
        """Secret that signs in the next browser."""
        self.code = _new_code()
        """Secret that the user types for a change whose process cannot be determined."""
        self._renewed = renewed
        self._clock = clock
        self._browsers: dict[str, Browser] = {}
        self._wrong: deque[float] = deque(maxlen=_TRIES)

    def sign_in(self, token: str) -> str | None:
        """Exchange a token for a cookie; None for a wrong token. Raises `TooManyTries`."""
        if not self._matches(token, self.token):
            return None
        self.token = secrets.token_urlsafe(32)
        cookie = secrets.token_urlsafe(32)
        while len(self._browsers) >= _BROWSERS:
            del self._browsers[next(iter(self._browsers))]
        self._browsers[_digest(cookie)] = Browser(secrets.token_urlsafe(32))
        self._renewed()
        return cookie

    def sign_out(self, cookie: str) -> None:
        """Forget a browser."""
        self._browsers.pop(_digest(cookie), None)

    def browser_of(self, cookie: str) -> Browser | None:
        """Return the browser with this cookie; None if there is none."""
        return self._browsers.get(_digest(cookie))

    def is_code(self, text: str) -> bool:
        """Return True for the code of the terminal, in any case and with any blanks. Raises `TooManyTries`."""
        return self._matches("".join(text.upper().split()).replace("-", ""), self.code.replace("-", ""))

    def _matches(self, text: str, secret: str) -> bool:
        now = self._clock()
        while self._wrong and now - self._wrong[0] >= _PERIOD:
            self._wrong.popleft()
        if len(self._wrong) >= _TRIES:
            raise TooManyTries(max(1.0, _PERIOD - (now - self._wrong[0])))
        matches = secrets.compare_digest(text.encode(), secret.encode())
        if not matches:
            self._wrong.append(now)
        return matches


def _digest(cookie: str) -> str:
    return sha256(cookie.encode()).hexdigest()


def _new_code() -> str:
    characters = "".join(secrets.choice(_CODE_CHARACTERS) for _ in range(8))
    return f"{characters[:4]}-{characters[4:]}"
