"""Admission to the private sockets of a host: only processes of the person, with a report on the others."""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from callboard.adapters.processes.connection_owner import ConnectionOwner
from callboard.adapters.processes.private_socket import accept_from, is_own, listen_at, peer_of
from callboard.engine.runtime import SessionRuntime
from callboard.sessions.person_actions import record_refusal
from callboard.types.records import RefusedRequest

MOST_REPORTED = 20
"""Refused processes and forged answers that are reported, so that an agent cannot fill the log."""
REQUEST_WITHIN = 5.0
"""Seconds within which a process that connects has to say what it wants."""


class PeerAdmission:
    """Admission to one socket. `action`: what its connections are for, in words."""

    def __init__(self, runtime: SessionRuntime, action: str) -> None:
        self._runtime = runtime
        self._action = action
        self._reported = 0

    async def refuses(self, connection: socket.socket) -> str:
        """Return the reason why the process of a connection is refused; empty for a process of the person.

        This process itself is not refused, also if an agent's tool started it: it may prompt a session that it hosts.
        """
        if is_own(connection):
            return ""
        owner = await anyio.to_thread.run_sync(peer_of, connection)
        if owner.origin == "person":
            return ""
        await self._report(owner)
        # Never empty: an empty text would admit the process.
        return owner.reason or "it is not known to be a process of the person"

    async def _report(self, owner: ConnectionOwner) -> None:
        live_log().warning("a process was refused", action=self._action, pid=owner.pid, reason=owner.reason)
        self._reported += 1
        if owner.origin == "tool" and self._reported <= MOST_REPORTED:
            refused = RefusedRequest(
                at=time.time(), pid=owner.pid, program=owner.program, action=self._action, why=owner.reason
            )
            await record_refusal(self._runtime.services.store, self._runtime.session, refused)


def live_log() -> structlog.BoundLogger:
    """Return the log of the sockets of a host."""
    return structlog.get_logger("callboard.live")


@contextmanager
def listening_if_possible(folder: Path, name: str, *, without: str) -> Generator[socket.socket | None]:
    """Yield a private socket that listens during the block; None if there can be none.

    `without`: the consequence, for the log.
    """
    with ExitStack() as stack:
        try:
            listener = stack.enter_context(listen_at(folder, name))
        except OSError as error:
            live_log().warning(without, error=str(error))
            listener = None
        yield listener


async def serve_connections(
    listener: socket.socket, serve: Callable[[socket.socket], Awaitable[None]], *, most: int
) -> None:
    """Serve each connection in a task of its own until cancelled. More than `most` at once are closed."""
    open_connections = set[socket.socket]()

    async def serve_one(connection: socket.socket) -> None:
        open_connections.add(connection)
        try:
            with connection:
                await serve(connection)
        finally:
            open_connections.discard(connection)

    async with anyio.create_task_group() as group:
        while True:
            await anyio.wait_readable(listener)
            connection = accept_from(listener)
            if connection is None:
                continue
            if len(open_connections) >= most:
                connection.close()
                continue
            group.start_soon(serve_one, connection)
