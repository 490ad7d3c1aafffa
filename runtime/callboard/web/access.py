"""Secrets of the page: the sign-in token, the cookies of signed-in browsers, and the code for doubtful changes.

A token signs in one browser, and the next one replaces it. Users with a password sign in with that. Everything is in
memory: a restart signs everybody out. Secrets are compared in constant time, and wrong ones are counted, those of each
other machine apart.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from hashlib import sha256

import anyio
import anyio.to_thread

from callboard.types.lazy_dataclass import dataclass
from callboard.web.passwords import is_password

_TRIES = 10
"""Wrong secrets that are accepted in a period."""
_PERIOD = 60.0
"""Seconds for which a wrong secret counts."""
_BROWSERS = 20
"""Most browsers that are signed in. The next one signs out the oldest."""
_CLIENTS = 1_000
"""Most clients whose wrong secrets are counted apart."""
_LIFE = 12 * 3_600.0
"""Seconds after which a user with a password has to sign in again."""
_HASHES = 2
"""Most passwords that are checked at once: each check takes 32 MB."""
_CODE_CHARACTERS = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
"""Characters of a code: none that looks like another."""


@dataclass(frozen=True, slots=True)
class Browser:
    """One signed-in browser."""

    form_token: str
    """Secret that each of its forms contains, so that no other page can send one."""
    user: str = ""
    """Name of its user, for the record of an answer; empty: the page has no users."""
    until: float = float("inf")
    """Time at which it has to sign in again."""


class TooManyTries(Exception):
    """Too many wrong secrets were sent. `wait`: seconds until the next try counts."""

    def __init__(self, wait: float) -> None:
        super().__init__(f"too many wrong tries: wait {wait:.0f} s")
        self.wait = wait


class Tries:
    """Wrong secrets of one client in the last minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wrong: deque[float] = deque(maxlen=_TRIES)

    def check(self) -> None:
        """Raise `TooManyTries` if no secret is accepted now."""
        now = self._clock()
        while self._wrong and now - self._wrong[0] >= _PERIOD:
            self._wrong.popleft()
        if len(self._wrong) >= _TRIES:
            raise TooManyTries(max(1.0, _PERIOD - (now - self._wrong[0])))

    def count_wrong(self) -> None:
        """Count a wrong secret."""
        self._wrong.append(self._clock())

    def matches(self, text: str, secret: str) -> bool:
        """Return True for the secret. Raises `TooManyTries`."""
        self.check()
        matches = secrets.compare_digest(text.encode(), secret.encode())
        if not matches:
            self.count_wrong()
        return matches


class Access:
    """Secrets of one server."""

    def __init__(
        self,
        renewed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        users: Mapping[str, str] | None = None,
        own_name: str = "",
    ) -> None:
        """`users`: name -> hash of the password. `own_name`: name of the user who signs in with a token."""
        self.token = secrets.token_urlsafe(32)
        """Secret that signs in the next browser."""
        self.code = _new_code()
        """Secret that the user types for a change whose process cannot be determined."""
        self.users = dict(users or {})
        self._own_name = own_name
        self._renewed = renewed
        self._clock = clock
        self._browsers: dict[str, Browser] = {}
        self._named: dict[str, Browser] = {}
        """Users whom a proxy has signed in."""
        self._tries: OrderedDict[str, Tries] = OrderedDict()
        self._hashing = anyio.CapacityLimiter(_HASHES)

    def tries_of(self, client: str = "") -> Tries:
        """Return the wrong secrets of a client: its address, or empty for this machine."""
        tries = self._tries.setdefault(client, Tries(self._clock))
        self._tries.move_to_end(client)
        while len(self._tries) > _CLIENTS:
            self._tries.popitem(last=False)
        return tries

    def sign_in(self, token: str) -> str | None:
        """Exchange a token for a cookie; None for a wrong token. Raises `TooManyTries`."""
        if not self.tries_of().matches(token, self.token):
            return None
        self.token = secrets.token_urlsafe(32)
        cookie = self._new_browser(self._own_name)
        self._renewed()
        return cookie

    async def sign_in_user(self, name: str, password: str, *, client: str) -> str | None:
        """Exchange a password for a cookie; None for a wrong name or password. Raises `TooManyTries`."""
        tries = self.tries_of(client)
        tries.check()
        tries.count_wrong()  # before the check, which takes a while: tries at the same time count, too
        if not await anyio.to_thread.run_sync(is_password, password, self.users.get(name), limiter=self._hashing):
            return None
        self._tries.pop(client, None)
        return self._new_browser(name, self._clock() + _LIFE)

    def browser_of_user(self, user: str) -> Browser:
        """Return the browser of a user whom a proxy has signed in."""
        while len(self._named) >= _BROWSERS and user not in self._named:
            del self._named[next(iter(self._named))]
        return self._named.setdefault(user, Browser(secrets.token_urlsafe(32), user))

    def _new_browser(self, user: str, until: float = float("inf")) -> str:
        cookie = secrets.token_urlsafe(32)
        while len(self._browsers) >= _BROWSERS:
            del self._browsers[next(iter(self._browsers))]
        self._browsers[_digest(cookie)] = Browser(secrets.token_urlsafe(32), user, until)
        return cookie

    def sign_out(self, cookie: str) -> None:
        """Forget a browser."""
        self._browsers.pop(_digest(cookie), None)

    def browser_of(self, cookie: str) -> Browser | None:
        """Return the browser with this cookie; None if there is none, or if it has to sign in again."""
        browser = self._browsers.get(_digest(cookie))
        if browser is not None and self._clock() >= browser.until:
            self.sign_out(cookie)
            return None
        return browser

    def is_code(self, text: str) -> bool:
        """Return True for the code of the terminal, in any case and with any blanks. Raises `TooManyTries`."""
        typed = "".join(text.upper().split()).replace("-", "")
        return self.tries_of().matches(typed, self.code.replace("-", ""))


def _digest(cookie: str) -> str:
    return sha256(cookie.encode()).hexdigest()


def _new_code() -> str:
    characters = "".join(secrets.choice(_CODE_CHARACTERS) for _ in range(8))
    return f"{characters[:4]}-{characters[4:]}"
