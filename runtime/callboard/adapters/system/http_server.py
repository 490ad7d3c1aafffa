"""Web server in this process: an ASGI application on one address, until its block ends."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

import anyio
import uvicorn

from callboard.types.errors import SettingsError
from callboard.types.lazy_dataclass import dataclass

_GRACE = 2
"""Seconds that connections have to end."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files of an encrypted server."""

    certificate: str
    """The certificate and its chain."""
    key: str
    """Its private key, without a password."""


@asynccontextmanager
async def serving_app(
    app: Any, host: str, port: int, *, lifespan: Literal["on", "off"], tls: TlsFiles | None = None
) -> AsyncGenerator[int]:
    """Serve an ASGI application while the block runs; yield the port. Port 0 chooses a free one.

    Logs no requests, and names no server in responses. Raises `OSError` for an address in use, and `SettingsError` for
    files of `tls` that cannot be used.
    """
    config = uvicorn.Config(
        app,
        host,
        port,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        lifespan=lifespan,
        timeout_graceful_shutdown=_GRACE,
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
    )
    try:
        config.load()
    except OSError as failed:  # `ssl.SSLError` is one
        raise SettingsError(f"the TLS files cannot be used: {failed}", str(tls and tls.certificate)) from failed
    # uvicorn ends the process if the address is in use. It also listens late: a client may know the port before.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=config.backlog)
    server = _Quiet(config)
    async with anyio.create_task_group() as group:
        group.start_soon(_serve, server, listening)
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True


async def _serve(server: uvicorn.Server, listening: socket.socket) -> None:
    """Run the server until `should_exit` ends it. A cancellation would leave its connections open."""
    with anyio.CancelScope(shield=True):
        await server.serve([listening])


class _Quiet(uvicorn.Server):
    """Web server that leaves signals to its caller."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
