"""The HTTP client for a rehearsal in this process: a port of this machine needs nothing of what the SDK would add.

No proxy, no TLS, a key that is none. Importing the SDK takes longer than most rehearsals do. Everything else of a call
is that of a call to the service: the same requests, the same reading of answers, the same faults.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import AsyncIterator, Mapping

import httpx2

from callboard.adapters.anthropic_http import LIMITS, TIMEOUT, Lost, accepted

_VERSION = "2023-06-01"
"""The version of the Messages API that the SDK asks for."""


class Loopback:
    """A `Service` at a URL of this machine."""

    def __init__(self, url: str) -> None:
        # A key that no message holds by chance: keys are blacked out in what the service says.
        self.secret = secrets.token_hex(16)
        self.http = httpx2.AsyncClient(
            base_url=url,
            headers={"x-api-key": self.secret, "anthropic-version": _VERSION, "accept": "application/json"},
            limits=LIMITS,
            timeout=TIMEOUT,
            trust_env=False,
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # trusts nobody, and takes no time to load
        )

    async def post(
        self, path: str, headers: Mapping[str, str], content: bytes | AsyncIterator[bytes], *, stream: bool
    ) -> httpx2.Response:
        """Send a request. Raises `Refused` for an answer that is an error, `Lost` once it is closed."""
        request = self.http.build_request("POST", path, headers=headers, content=content)
        try:
            response = await self.http.send(request, stream=stream, follow_redirects=False)
        except RuntimeError as error:
            raise Lost(str(error)) from error
        return await accepted(response)

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request as it is. Raises RuntimeError once it is closed."""
        return await self.http.send(request, stream=True, follow_redirects=False)

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        await self.http.aclose()
