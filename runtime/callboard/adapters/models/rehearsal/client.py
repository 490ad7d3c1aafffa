"""HTTP client for a rehearsal in this process. A port of this machine needs nothing that the SDK would add.

It uses no proxy, no TLS and a dummy key. Importing the SDK takes longer than most rehearsals. Otherwise a call is the
same as a call to the service: the same requests, the same parsing of replies, the same faults.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import AsyncIterator, Mapping

import httpx2

from callboard.adapters.models.anthropic.http import (
    LIMITS,
    TIMEOUT,
    ConnectionLost,
    ServiceAnswer,
    SharedParts,
    refuse_errors,
)

_VERSION = "2023-06-01"
"""Version of the Messages API that the SDK requests."""


class Loopback:
    """`Service` at a URL of this machine."""

    def __init__(self, url: str) -> None:
        # A key that no message contains by chance: keys are removed from the texts of the service.
        self.secret = secrets.token_hex(16)
        self.http = httpx2.AsyncClient(
            base_url=url,
            headers={"x-api-key": self.secret, "anthropic-version": _VERSION, "accept": "application/json"},
            limits=LIMITS,
            timeout=TIMEOUT,
            trust_env=False,
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # trusts no certificate, and takes no time to load
        )

    async def renew(self, refused: str = "") -> bool:
        """Return False: the key of a rehearsal never changes."""
        return self.secret == "" and bool(refused)

    async def get(self, path: str) -> httpx2.Response:
        """Send a request without a body. Raises as `post` does."""
        return await refuse_errors(await self.http.get(path))

    async def post(
        self, path: str, headers: Mapping[str, str], content: bytes | AsyncIterator[bytes], *, stream: bool
    ) -> httpx2.Response:
        """Send a request.

        Raises `RequestRefused` for an answer that is an error, `ConnectionLost` once it is closed.
        """
        request = self.http.build_request("POST", path, headers=headers, content=content)
        try:
            response = await self.http.send(request, stream=stream, follow_redirects=False)
        except RuntimeError as error:
            raise ConnectionLost(str(error)) from error
        return await refuse_errors(response)

    async def send(
        self, shared: SharedParts, headers: Mapping[str, str], content: bytes | AsyncIterator[bytes]
    ) -> ServiceAnswer:
        """Send a request like the first one. Raises RuntimeError after the client was closed."""
        request = shared.request(headers, content)
        return ServiceAnswer.of(await self.http.send(request, stream=True, follow_redirects=False))

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        await self.http.aclose()
