"""Web server in this process: an ASGI application on one address, until its block ends."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

import anyio
import uvicorn

_GRACE = 2
"""Seconds that connections have to end."""


@asynccontextmanager
async def serving_app(app: Any, host: str, port: int, *, lifespan: Literal["on", "off"]) -> AsyncGenerator[int]:
    """Serve an ASGI application while the block runs; yield the port. Port 0 chooses a free one.

    Logs no requests, and names no server in responses. Raises `OSError` for an address in use.
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
    )
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
