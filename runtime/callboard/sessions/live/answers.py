"""Guard of a person's answers at sandbox level 0, and the socket on which the person's processes announce writes."""

from __future__ import annotations

import socket
import time
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import TaskStatus

from callboard.adapters.processes.private_socket import first_line, socket_name
from callboard.core.approvals.vouching import read_announcement, reply_line
from callboard.core.keys import vouch_purpose
from callboard.core.live.frames import LiveProtocolError
from callboard.engine.approvals.answer_guard import AnswerGuard
from callboard.engine.runtime import SessionRuntime
from callboard.sessions.live.admission import (
    MOST_REPORTED,
    REQUEST_WITHIN,
    PeerAdmission,
    listening_if_possible,
    live_log,
    serve_connections,
)
from callboard.sessions.person_actions import record_refusal
from callboard.types.records import HostRow, RefusedRequest

_MOST_CONNECTIONS = 64
_UNDONE = "no process of the person announced it, so it does not count"


async def guard_answers(runtime: SessionRuntime, folder: Path, row: HostRow, *, task_status: TaskStatus[None]) -> None:
    """Guard the session until cancelled. Without a socket, where nobody could announce anything, it has no guard."""
    name = socket_name(row.pid, row.started, vouch_purpose(runtime.session))
    with listening_if_possible(
        folder, name, without="answers that commands write into the database are not detected"
    ) as listener:
        if listener is None:
            task_status.started()
            return
        report = ForgeryReporter(runtime)
        guard = AnswerGuard(
            runtime.session, runtime.services.store, runtime.rows, commit=runtime.commit, report=report.add
        )
        await guard.begin()
        runtime.guard = guard
        task_status.started()
        serve = partial(_serve, guard, PeerAdmission(runtime, "announce an answer"))
        await serve_connections(listener, serve, most=_MOST_CONNECTIONS)


class ForgeryReporter:
    """Reports of writes in the person's name: on the screen, in the log, and among the session's decisions."""

    def __init__(self, runtime: SessionRuntime) -> None:
        self._runtime = runtime
        self._reported = 0

    async def add(self, forged: str, *, shown: bool = False) -> None:
        """Report a write. Further ones than `MOST_REPORTED` are only logged. `shown`: the screen shows it already."""
        live_log().warning("a write in the person's name does not count", what=forged)
        self._reported += 1
        if self._reported > MOST_REPORTED:
            return
        if not shown:
            self._runtime.notice("lead", f"A command wrote to the database in your name ({forged}): {_UNDONE}")
        action = f"write in the database: {forged}"
        refused = RefusedRequest(at=time.time(), pid=0, program="", action=action, why=_UNDONE)
        await record_refusal(self._runtime.services.store, self._runtime.session, refused)


async def _serve(guard: AnswerGuard, admission: PeerAdmission, connection: socket.socket) -> None:
    try:
        refused = await admission.refuses(connection)
        with anyio.fail_after(REQUEST_WITHIN):
            digests = read_announcement(await first_line(connection))
        if not refused:
            guard.accept_digests(digests)
        connection.sendall(reply_line(refused))  # fits into the buffer of the connection
    except (OSError, TimeoutError, LiveProtocolError) as error:
        live_log().info("an announcement was refused", error=str(error))
