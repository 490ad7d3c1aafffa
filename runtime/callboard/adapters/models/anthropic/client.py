"""The Messages API through the SDK's client. Only this module imports `anthropic`.

The SDK does authentication, headers, base URL, proxies and TLS, in the first request of a client. `anthropic_http`
defines the content of requests and replies. The import takes over a second, so a program that needs no service does not
import this module.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import cast
from urllib.parse import urlsplit

import httpx2  # the SDK's own HTTP library: its `post` is asked for this library's response
from anthropic import AnthropicError, APIStatusError, AsyncAnthropic, AsyncStream, DefaultAioHttpClient

from callboard.adapters.models.anthropic.faults import Wording
from callboard.adapters.models.anthropic.http import (
    LIMITS,
    TIMEOUT,
    ConnectionLost,
    HttpModel,
    RequestRefused,
    may_be_sent,
    words_of,
)
from callboard.types.errors import CredentialsMissing, SettingsError


class AnthropicModel(HttpModel):
    """The model service behind a base URL, with a key or a token."""

    def __init__(
        self,
        *,
        base_url: str | None,
        api_key: str | None,
        auth_token: str | None = None,
        wording: Wording | None = None,
    ) -> None:
        """Raises `CredentialsMissing` without a usable key, and `SettingsError` for an invalid base URL."""
        secret, kind = _credential(api_key, auth_token)
        _check_url(base_url)
        super().__init__(_Sdk(base_url, secret, kind), wording=wording)


class _Connections(DefaultAioHttpClient):
    """The SDK's HTTP client over its aiohttp transport: its proxies, its TLS, its pool."""

    async def carry(self, request: httpx2.Request) -> httpx2.Response:
        """Send a complete request over the transport for its URL, and do nothing else.

        The other work of `send` is done already or not wanted: the URL's credentials are in the headers of the first
        request, redirects are not followed, and the transport keeps its own cookies.
        """
        if self.is_closed:
            raise RuntimeError("Cannot send a request, as the client has been closed.")
        return await self._transport_for_url(request.url).handle_async_request(request)


class _Sdk:
    """The SDK's client over `_Connections`."""

    def __init__(self, base_url: str | None, secret: str, kind: str) -> None:
        self.secret = secret
        self._http = _Connections(
            limits=LIMITS,
            timeout=TIMEOUT,
            # Loading the trust store takes 65 ms. Plain HTTP needs none; this empty one would trust nobody.
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if (base_url or "").startswith("http://") else True,
        )
        self._client = AsyncAnthropic(
            api_key=secret if kind == "key" else None,
            auth_token=secret if kind == "token" else None,
            base_url=base_url,
            # Retries are rules of the core, in the journal: the SDK's own would be invisible, and could bill twice.
            max_retries=0,
            http_client=self._http,
        )

    async def post(
        self, path: str, headers: Mapping[str, str], content: bytes | AsyncIterator[bytes], *, stream: bool
    ) -> httpx2.Response:
        """Send the request with the SDK's `post`."""
        # It is generic over what the answer is parsed to; asked for its own library's response, it parses nothing.
        try:
            response = await self._client.post(
                path,
                cast_to=httpx2.Response,
                content=content,
                # A redirect could send the key to another host (test_a_redirect_is_not_followed_with_the_key).
                options={"headers": headers, "follow_redirects": False},
                stream=stream,
                stream_cls=AsyncStream[object],
            )
        except APIStatusError as error:
            raise RequestRefused(error.response, error.body) from error
        except AnthropicError as error:  # its own words for all of them are 'Connection error.'
            raise ConnectionLost(words_of(error.__cause__ or error), sent=may_be_sent(error)) from error
        return cast("httpx2.Response", cast("object", response))

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """See `_Connections`."""
        return await self._http.carry(request)

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        await self._client.close()


def _credential(api_key: str | None, auth_token: str | None) -> tuple[str, str]:
    """Return the secret, and whether it is the key or the token; the key wins, as in the SDK. Never put it into a
    message."""
    for name, kind, value in (
        ("ANTHROPIC_API_KEY", "key", api_key),
        ("ANTHROPIC_AUTH_TOKEN", "token", auth_token),
    ):
        secret = (value or "").strip()
        if not secret:
            continue
        if not (secret.isascii() and secret.isprintable()) or " " in secret:
            raise CredentialsMissing(f"{name} holds characters that no key has (a line break, a blank?): set it again")
        return secret, kind
    raise CredentialsMissing(
        "no key for the model service: neither ANTHROPIC_API_KEY nor ANTHROPIC_AUTH_TOKEN is set in the environment; "
        "set one of them, or use a rehearsed model (--model rehearsal:SCENARIO), which needs none"
    )


def _check_url(base_url: str | None) -> None:
    if base_url is None:
        # The SDK reads this variable itself, so it is checked here to name it in the error
        # (test_an_unusable_base_url_of_the_environment_is_refused_by_name).
        base_url = os.environ.get("ANTHROPIC_BASE_URL")  # the SDK reads it by itself, also when it is empty
    if base_url is None:
        return
    if not base_url.strip():
        message = "ANTHROPIC_BASE_URL is set and empty: unset it, or set it to the service's address (https://...)"
        raise SettingsError(message, "base URL of the model service")
    try:
        url = urlsplit(base_url)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:  # an unclosed bracket, a port that is no number
        usable = False
    if not usable:
        raise SettingsError(
            f"{base_url!r} is not an http or https URL: begin it with https:// or http://, or unset ANTHROPIC_BASE_URL",
            "base URL of the model service",
        )
