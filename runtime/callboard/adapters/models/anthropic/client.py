"""The Messages API through the SDK's client. Only this module imports `anthropic`.

The SDK adds authentication, headers, base URL, proxies and TLS to the first request of a client. `anthropic/http.py`
defines the content of requests and replies. The import takes over a second, so a program that needs no service does not
import this module.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import cast
from urllib.parse import urlsplit

import aiohttp
import httpx2  # the SDK's own HTTP library, whose response class `post` needs
from anthropic import AnthropicError, APIStatusError, AsyncAnthropic, AsyncStream, DefaultAioHttpClient

from callboard.adapters.models.anthropic.credentials import KeyCommand, credential
from callboard.adapters.models.anthropic.faults import FaultTexts
from callboard.adapters.models.anthropic.http import (
    LIMITS,
    TIMEOUT,
    ConnectionLost,
    HttpModel,
    RequestRefused,
    ServiceAnswer,
    SharedParts,
    may_be_sent,
    plain_headers,
    words_of,
)
from callboard.types.errors import SettingsError

_TIMEOUT = aiohttp.ClientTimeout(sock_connect=TIMEOUT.connect)
"""Timeouts of a request in seconds, as in `TIMEOUT`."""


class AnthropicModel(HttpModel):
    """Model service behind a base URL, with a key, a token, or a command that prints a key."""

    def __init__(
        self,
        *,
        base_url: str | None,
        api_key: str | None,
        auth_token: str | None = None,
        key_command: KeyCommand | None = None,
        wording: FaultTexts | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Make the client.

        `key_command`: used if there is neither a key nor a token. `variables`: those of settings files, which the SDK
        does not find in the environment of the process: proxies, certificates, further headers. Raises
        `CredentialsMissing` without a usable key, and `SettingsError` for an invalid base URL.
        """
        secret, kind = (
            ("", "command") if key_command and not (api_key or auth_token) else credential(api_key, auth_token)
        )
        _check_url(base_url)
        sdk = _Sdk(base_url, secret, kind, key_command=key_command, variables=variables or {})
        super().__init__(sdk, wording=wording)


class _Connections(DefaultAioHttpClient):
    """The SDK's HTTP client over its aiohttp transport: its proxies, its TLS, its pool."""

    async def carry(
        self, shared: SharedParts, headers: Mapping[str, str], content: bytes | AsyncIterator[bytes]
    ) -> ServiceAnswer:
        """Send a request over the transport for its URL, and do nothing else.

        The other work of `send` is done already or undesired: the URL's credentials are in the headers of the first
        request, redirects are not followed, and the transport keeps its own cookies.
        """
        if self.is_closed:
            raise RuntimeError("Cannot send a request, as the client has been closed.")
        transport = self._transport_for_url(shared.url)
        pool = getattr(transport, "client", None)
        # The connections of the first call, without the transport's own requests and responses, which cost a
        # twentieth of a step (docs/decisions/0003-request-bytes-and-light-parsing.md). It adds the headers of a proxy.
        if not isinstance(pool, aiohttp.ClientSession) or getattr(transport, "proxy", None) is not None:
            return ServiceAnswer.of(await transport.handle_async_request(shared.request(headers, content)))
        response = await pool.request(
            "POST",
            str(shared.url),
            headers={**shared.headers, **headers},
            data=content,
            allow_redirects=False,
            auto_decompress=False,
            timeout=_TIMEOUT,
        )
        return _answer(response)


class _Sdk:
    """The SDK's client over `_Connections`."""

    def __init__(
        self,
        base_url: str | None,
        secret: str,
        kind: str,
        *,
        key_command: KeyCommand | None,
        variables: Mapping[str, str],
    ) -> None:
        self.secret = secret
        self._headers = _custom_headers(variables)
        self._key_command = key_command if kind == "command" else None
        self._http = _Connections(
            limits=LIMITS,
            timeout=TIMEOUT,
            # Loading the trust store takes 65 ms. Plain HTTP needs none; this empty store trusts no certificate.
            verify=_trusted(base_url, variables),
            proxy=_proxy(base_url, variables),
        )
        self._client = AsyncAnthropic(
            # Without an explicit key the SDK looks for one itself. `renew` replaces this one before the first call.
            api_key=None if kind == "token" else secret or "none",
            auth_token=secret if kind == "token" else None,
            base_url=base_url,
            # Retries are rules of the core, in the journal. The SDK's own retries would be invisible, and could bill
            # twice.
            max_retries=0,
            default_headers=self._headers,
            http_client=self._http,
        )

    async def renew(self, refused: str = "") -> bool:
        """See `Service.renew`.

        A key that a command printed is sent in both headers, as services differ in the one that they read.
        """
        if self._key_command is None:
            return False
        key = await self._key_command.key(refused)
        if key == self.secret:
            return False
        self.secret = key
        self._client = self._client.copy(
            api_key=key, default_headers={**self._headers, "x-api-key": key, "authorization": f"Bearer {key}"}
        )
        return True

    async def get(self, path: str) -> httpx2.Response:
        """Send a request with the SDK's `get`."""
        try:
            response = await self._client.get(path, cast_to=httpx2.Response, options={"follow_redirects": False})
        except APIStatusError as error:
            raise RequestRefused(error.status_code, plain_headers(error.response.headers.raw), error.body) from error
        except AnthropicError as error:
            raise ConnectionLost(words_of(error.__cause__ or error), sent=may_be_sent(error)) from error
        return response

    async def post(
        self, path: str, headers: Mapping[str, str], content: bytes | AsyncIterator[bytes], *, stream: bool
    ) -> httpx2.Response:
        """Send the request with the SDK's `post`."""
        # The type of the result decides the parsing. For a response of its own library, the SDK parses nothing.
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
            raise RequestRefused(error.status_code, plain_headers(error.response.headers.raw), error.body) from error
        except AnthropicError as error:  # the SDK's message for all of them is 'Connection error.'
            raise ConnectionLost(words_of(error.__cause__ or error), sent=may_be_sent(error)) from error
        return cast("httpx2.Response", cast("object", response))

    async def send(
        self, shared: SharedParts, headers: Mapping[str, str], content: bytes | AsyncIterator[bytes]
    ) -> ServiceAnswer:
        """See `_Connections`."""
        return await self._http.carry(shared, headers, content)

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        await self._client.close()


class _Body(httpx2.AsyncByteStream):
    """Chunks of an answer, for a decoder."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._response.content.iter_any():
            yield chunk

    async def aclose(self) -> None:
        """Close the connection, or return it to the pool if the body was read to its end."""
        self._response.release()


def _answer(response: aiohttp.ClientResponse) -> ServiceAnswer:
    headers = plain_headers(response.raw_headers)
    if "content-encoding" in headers:
        return ServiceAnswer.of(httpx2.Response(response.status, headers=response.raw_headers, stream=_Body(response)))

    async def close() -> None:
        response.release()

    return ServiceAnswer(response.status, headers, response.content.iter_any(), close)


def _trusted(base_url: str | None, variables: Mapping[str, str]) -> ssl.SSLContext | bool:
    """Return the certificates to trust: those that the variables name, else those of the process."""
    if (base_url or "").startswith("http://"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    files = [variables[name] for name in ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS") if variables.get(name)]
    if not files:
        return True
    context = ssl.create_default_context()
    for file in files:
        try:
            context.load_verify_locations(file)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"the certificates in {file} cannot be read: {error}", "env of settings") from error
    return context


def _proxy(base_url: str | None, variables: Mapping[str, str]) -> str | None:
    """Return the proxy for the service that the variables name; None: that of the process, if there is one."""
    url = urlsplit(base_url or "https://api.anthropic.com")
    values = {name.lower(): value.strip() for name, value in variables.items() if value.strip()}
    host = f".{url.hostname or ''}"
    excepted = [entry.strip().lstrip(".") for entry in values.get("no_proxy", "").split(",") if entry.strip()]
    if any(entry == "*" or host.endswith(f".{entry}") for entry in excepted):
        return None
    return values.get(f"{url.scheme}_proxy") or values.get("all_proxy")


def _custom_headers(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of `ANTHROPIC_CUSTOM_HEADERS`, one in each line."""
    lines = variables.get("ANTHROPIC_CUSTOM_HEADERS", "").splitlines()
    named = (line.partition(":") for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, _, value in named}


def _check_url(base_url: str | None) -> None:
    if base_url is None:
        # The SDK reads this variable itself, so it is checked here to name it in the error
        # (test_an_unusable_base_url_of_the_environment_is_refused_by_name).
        base_url = os.environ.get("ANTHROPIC_BASE_URL")  # the SDK reads it by itself, even if it is empty
    if base_url is None:
        return
    if not base_url.strip():
        message = "ANTHROPIC_BASE_URL is set and empty: unset it, or set it to the service's address (https://...)"
        raise SettingsError(message, "base URL of the model service")
    try:
        url = urlsplit(base_url)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:  # an unclosed bracket, or a port that is not a number
        usable = False
    if not usable:
        raise SettingsError(
            f"{base_url!r} is not an http or https URL: begin it with https:// or http://, or unset ANTHROPIC_BASE_URL",
            "base URL of the model service",
        )
