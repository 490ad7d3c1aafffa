"""Credentials that the SDK finds: a profile of its configuration, or workload identity federation.

Only this module imports `anthropic`, which takes 0.7 s, and only a machine without a key of its own gets here. The SDK
looks for `ANTHROPIC_PROFILE`, the variables of a federation, and the active profile; it exchanges and refreshes tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing

import httpx2  # the SDK's own HTTP library, whose request class carries its headers
from anthropic import AnthropicError
from anthropic.lib.credentials import AccessTokenAuth, CredentialResult, TokenCache, default_credentials

from callboard.types.errors import CredentialsMissing
from callboard.types.lazy_dataclass import dataclass


class SdkToken:
    """`Credentials` of a token that the SDK obtains and refreshes."""

    def __init__(self, found: CredentialResult, url: str) -> None:
        self._url = url
        self._further = found.extra_headers
        self._provider = found.provider
        self._tokens = TokenCache(found.provider)
        self._auth = AccessTokenAuth(self._tokens)
        self._headers: Mapping[str, str] = {}
        self.secret = ""

    def headers(self) -> Mapping[str, str]:
        """See `Credentials.headers`."""
        return self._headers

    async def renew(self, refused: str = "") -> bool:
        """See `Credentials.renew`."""
        if refused and refused == self.secret:
            self._tokens.invalidate()
        request = httpx2.Request("POST", self._url, headers=dict(self._further))
        try:
            async with aclosing(self._auth.async_auth_flow(request)) as flow:
                await anext(flow)
        except (AnthropicError, OSError, ValueError, httpx2.HTTPError) as error:
            raise unusable(error) from error
        names = {"authorization", "anthropic-beta", *(name.lower() for name in self._further)}
        self._headers = {name: value for name, value in request.headers.items() if name in names}
        self.secret = self._headers["authorization"].removeprefix("Bearer ")
        return self.secret != refused

    def close(self) -> None:
        """See `Credentials.close`."""
        close = getattr(self._provider, "close", None)
        if close is not None:
            close()


@dataclass(frozen=True, slots=True)
class FoundProfile:
    """Credentials, and the base URL for which they are meant."""

    credentials: SdkToken
    url: str


def found_profile(url: str, *, chosen: bool) -> FoundProfile | None:
    """Return the credentials that the SDK finds for a base URL; None if there are none.

    `chosen`: a user set the URL, so a profile's own one does not replace it. Raises `CredentialsMissing` for a profile
    or a federation that is set and cannot be used.
    """
    try:
        found = default_credentials(base_url=url)
    except (AnthropicError, OSError, ValueError) as error:
        raise unusable(error) from error
    if found is None:
        return None
    own = url if chosen else found.base_url or url
    return FoundProfile(SdkToken(found, own), own)


def unusable(error: Exception) -> CredentialsMissing:
    """Return the error for credentials that were found and cannot be used."""
    return CredentialsMissing(
        f"no key for the model service: the profile or federation that the environment names cannot be used: {error}. "
        "Repair it, or set ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN"
    )
