"""HTTP connections to one model service: its URL, credentials, proxy, and certificates over one aiohttp session.

All calls of a process go through here: those to a real service, and those to a rehearsal on a loopback port. The module
makes no retries and follows no redirects, which would send the key elsewhere. It runs on asyncio only, because aiohttp
does. Why no call uses the SDK's client: docs/decisions/0003-request-bytes-and-light-parsing.md.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from urllib.parse import unquote, urlsplit, urlunsplit

from callboard import __version__
from callboard.adapters.models.anthropic.credentials import Credentials
from callboard.adapters.system.late_certificates import certificates_read_late
from callboard.types.lazy_dataclass import dataclass

with certificates_read_late():
    import aiohttp
    from aiohttp.abc import AbstractStreamWriter

API_VERSION = "2026-10-21"
"""Version of the Messages API that requests name: that of the SDK, which test_requests_name_the_sdks_version reads."""
STATIC_HEADERS: Mapping[str, str] = {
    "accept": "application/json",
    "user-agent": f"callboard/{__version__}",
    "anthropic-version": API_VERSION,
}
_LONGEST_HEADER = 128 * 1024
"""Bytes of one header of an answer. Gateways add long ones; the default of aiohttp (8,190) would refuse the answer."""
_MOST_CONNECTIONS = 1_000
_KEPT_S = 20.0
"""Seconds for which a connection without a call is kept."""
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=20.0)
"""Timeouts of a request in seconds. The scope of each call enforces the call's own time limits."""
_LONGEST_ERROR = 1 << 20
"""Most bytes that are read of an error's body."""
_OK = 200

LIBRARY_ERRORS = (aiohttp.ClientError, OSError)
"""Exceptions of the HTTP library. `OSError` covers resets, TLS errors and timeouts of the system."""
_UNCONNECTED = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientHttpProxyError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
)
"""Exceptions raised when no connection was made: refused, unknown host, TLS failure, or a proxy that fails."""


class RequestRefused(Exception):
    """An error response. `body` is its JSON, or its text if it is not JSON."""

    def __init__(self, status: int, headers: Mapping[str, str], body: object) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.headers = headers
        self.body = body


class ConnectionLost(Exception):
    """The response is missing, or its stream ended before the message was complete.

    The text has the reason. `sent`: the request may have reached the service.
    """

    def __init__(self, reason: str, *, sent: bool = True) -> None:
        super().__init__(reason)
        self.sent = sent


class _Body(aiohttp.Payload):
    """Body of a request, written piece by piece as the socket takes them.

    The library could write any iterable, but needs a search for its type, and three more calls for each piece.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__(pieces, content_type="application/json")
        self._pieces = pieces

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write the body; each piece waits until the socket has room again."""
        for piece in self._pieces:
            await writer.write(piece)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the body as text, as every payload does."""
        return b"".join(self._pieces).decode(encoding, errors)


class ServiceAnswer:
    """Answer to a request, with its body unread."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = _plain_headers(response.raw_headers)
        """By names in lower case."""
        self.body: AsyncIterator[bytes] = response.content.iter_any()
        """Chunks without their encoding."""

    @property
    def is_whole(self) -> bool:
        """Return True if the whole body has arrived, whether or not it was read."""
        return self._response.content.is_eof()

    async def wait_whole(self) -> None:
        """Wait until the whole body has arrived. Raises the exceptions of aiohttp."""
        content = self._response.content
        failed = content.exception()  # which would end no wait that begins after it
        if failed is not None:
            raise failed
        await content.wait_eof()

    def let_go(self) -> None:
        """Return the connection to the pool, or close it if its body has not arrived to its end."""
        self._response.release()

    async def content(self) -> bytes:
        """Return the whole body, and let the connection go."""
        try:
            return await self._response.read()
        finally:
            self.let_go()

    async def checked(self) -> ServiceAnswer:
        """Return this answer. Raises `RequestRefused` for an error, whose body it reads."""
        if _OK <= self.status < _OK + 100:
            return self
        content = bytearray()
        try:
            async for chunk in self.body:
                content += chunk
                if len(content) > _LONGEST_ERROR:
                    break
        finally:
            self.let_go()
        raise RequestRefused(self.status, self.headers, body_of(bytes(content)))


@dataclass(frozen=True, slots=True)
class Route:
    """Way to a service."""

    url: str
    """Base URL; `user:password@` in it is sent as basic authentication."""
    proxy: str | None = None
    headers: Mapping[str, str] | None = None
    """Further headers for every request. They take precedence over the static ones and the credentials."""
    trusted: ssl.SSLContext | None = None
    """Certificates to trust. None: the URL is plain HTTP."""


class ServiceConnections:
    """Connections to a service. Opened by the first request."""

    def __init__(self, route: Route, credentials: Credentials) -> None:
        self._route = route
        self._credentials = credentials
        self._base, authorization = _base_of(route.url)
        further = {name.lower(): value for name, value in (route.headers or {}).items()}
        self._further = {**authorization, **further}
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    @property
    def secret(self) -> str:
        """Return the key of the last request, which no message may contain."""
        return self._credentials.secret

    async def renew(self, refused: str = "") -> bool:
        """Replace a key that has expired, or that the service `refused`. Return True if there is another one now.

        Raises `CredentialsMissing`.
        """
        return await self._credentials.renew(refused)

    async def get(self, path: str) -> bytes:
        """Send a request without a body, and return the body of the answer. Raises as `post` does."""
        answer = await self._send("GET", path, {}, None)
        return await answer.content()

    async def post(self, path: str, headers: Mapping[str, str], pieces: Sequence[bytes]) -> ServiceAnswer:
        """Send a request with these headers, by names in lower case, and the service's own. `pieces`: its body.

        Raises `RequestRefused` for an answer that is an error, `ConnectionLost` after the connections were closed, and
        the exceptions of aiohttp.
        """
        return await self._send("POST", path, headers, _Body(pieces))

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        self._closed = True
        session = self._session
        self._session = None
        if session is not None:
            await session.close()
        self._credentials.close()

    async def _send(self, method: str, path: str, headers: Mapping[str, str], body: _Body | None) -> ServiceAnswer:
        merged = {**STATIC_HEADERS, **self._credentials.headers(), **self._further}
        response = await self._opened().request(
            method,
            self._base + path,
            headers=_joined(merged, headers),
            data=body,
            allow_redirects=False,
            timeout=_TIMEOUT,
            proxy=self._route.proxy,
        )
        return await ServiceAnswer(response).checked()

    def _opened(self) -> aiohttp.ClientSession:
        if self._closed:
            raise ConnectionLost("the connections to the service are closed", sent=False)
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=_MOST_CONNECTIONS, keepalive_timeout=_KEPT_S, ssl=self._route.trusted or True
            )
            # `trust_env` would send the passwords of ~/.netrc; `client.py` finds the proxy.
            self._session = aiohttp.ClientSession(
                connector=connector, trust_env=False, max_line_size=_LONGEST_HEADER, max_field_size=_LONGEST_HEADER
            )
        return self._session


def _base_of(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL without user, password, and trailing slash, and the header that replaces them."""
    parts = urlsplit(url)
    user_info, _, address = parts.netloc.rpartition("@")
    base = urlunsplit((parts.scheme, address, parts.path.rstrip("/"), "", ""))
    if not user_info:
        return base, {}
    token = base64.b64encode(unquote(user_info).encode()).decode()
    return base, {"authorization": f"Basic {token}"}


def _joined(shared: dict[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a request. Its betas are added to those of all requests; other headers replace."""
    betas = "anthropic-beta"
    if betas in shared and betas in own:
        flags = [flag.strip() for flag in f"{shared[betas]},{own[betas]}".split(",")]
        return {**shared, **own, betas: ",".join(dict.fromkeys(flags))}
    return {**shared, **own}


def body_of(content: bytes) -> object:
    """Return the JSON of a body, or its text if it is not JSON."""
    text = content.decode("utf-8", "replace").strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def lost_connection(error: Exception) -> ConnectionLost:
    """Return the plain reason of a library's exception, and whether the request may have reached the service."""
    if isinstance(error, ConnectionLost):
        return error
    return ConnectionLost(_words_of(error), sent=not any(isinstance(cause, _UNCONNECTED) for cause in causes(error)))


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, the outermost first."""
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__ or at.__context__


def _words_of(error: BaseException) -> str:
    """Return the text of a library's exception; a plain sentence for the usual failures of a connection."""
    match error:
        case aiohttp.ClientHttpProxyError():
            return f"the proxy refused the connection: HTTP {error.status} {error.message}".rstrip()
        case aiohttp.ClientConnectorError() as failed if not isinstance(failed.os_error, ssl.SSLError):
            return f"cannot connect to {failed.host}:{failed.port}: {_system_words(failed.os_error)}"
        case aiohttp.ServerDisconnectedError():
            return "the service closed the connection before it answered"
        case aiohttp.ClientPayloadError():
            return "the connection was closed in the middle of the answer"
        case aiohttp.ClientOSError() as failed if failed.errno is not None and not isinstance(failed, ssl.SSLError):
            return f"the connection was lost: {_system_words(failed)}"
        case _:
            return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _system_words(failure: OSError) -> str:
    system = failure.errno is not None and failure.errno > 0  # numbers of host name lookups are negative
    return os.strerror(failure.errno) if system and failure.errno else failure.strerror or str(failure)


def _plain_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by their names in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}
