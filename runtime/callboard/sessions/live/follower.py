"""Live text of a session that another process of this machine hosts: the follower's end of the private socket."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import structlog

from callboard.adapters.processes.private_socket import connect_to, receive_from, socket_name
from callboard.core.keys import live_purpose
from callboard.core.live.frames import (
    LineReader,
    LiveFrame,
    LiveProtocolError,
    LiveRequest,
    check_greeting,
    read_frame,
    request_line,
)
from callboard.ports.store import LeaseHolder


async def read_live(
    folder: Path, session: str, host: LeaseHolder, request: LiveRequest, *, take: Callable[[LiveFrame], None]
) -> bool:
    """Call `take` with each piece of the replies of a session until the connection ends.

    Returns at once if the host has no socket here. Returns True if a later try may succeed: the host may have only
    begun. `folder`: that of the sockets of the workspace.
    """
    if host.machine:
        return False
    name = socket_name(host.pid, host.started, live_purpose(session))
    connection = connect_to(folder, name)
    if connection is None:
        return True
    with connection:
        try:
            connection.sendall(request_line(request))  # fits into the buffer of a new connection
            return await _read(connection, session, take)
        except (OSError, LiveProtocolError) as error:
            if structlog.is_configured():  # otherwise this process has no log, and the line would be on its screen
                structlog.get_logger("callboard.live").info("live text has ended", session=session, error=str(error))
            return False


async def _read(connection: socket.socket, session: str, take: Callable[[LiveFrame], None]) -> bool:
    """Read to the end of the connection. Return False if the host accepted none."""
    reader = LineReader()
    greeted = False
    while data := await receive_from(connection):
        for line in reader.feed(data):
            if not greeted:
                check_greeting(line, session)
                greeted = True
            elif (frame := read_frame(line)) is not None:
                take(frame)
    return greeted
