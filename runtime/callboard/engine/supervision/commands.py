"""The background commands of an agent that is parked: they are ended, as they are with a life that is over.

Nobody would watch them: hold their deadline, hear of their end, or know of them when the task that they were started
for begins anew with another agent, beside them.
"""

from __future__ import annotations

from functools import partial

import anyio
import structlog

from callboard.core.bus.mail import sending
from callboard.core.state import AgentState
from callboard.engine.host import Host
from callboard.engine.tools.background import ended_now, notification
from callboard.ports.store import Write
from callboard.words.events import BackgroundEnded, BackgroundStarted
from callboard.words.values import AgentRow

GRACE = 10.0
"""Seconds for all of them. A process group is ended within 2 s; what still runs then stays in the journal as running,
and is watched on when a person resumes the agent."""
WHY = "It was ended when you crashed again and again and were parked."

log = structlog.get_logger("callboard.team")


async def commands_ended(host: Host, row: AgentRow, state: AgentState) -> tuple[list[BackgroundEnded], list[Write]]:
    """End what runs: the records of it, and word to the agent, which it reads when it is resumed. For one commit."""
    running = [one.began for one in state.background.values() if one.status == "running"]
    ended: dict[str, BackgroundEnded] = {}
    with anyio.move_on_after(GRACE):
        async with anyio.create_task_group() as group:
            for began in running:
                group.start_soon(partial(_end, host, began, ended))
    records = [ended[one.id] for one in running if one.id in ended]
    mail = [notification(row, one, ended[one.id], WHY) for one in running if one.id in ended]
    return records, [sending(host.session, one) for one in mail]


async def _end(host: Host, began: BackgroundStarted, ended: dict[str, BackgroundEnded]) -> None:
    try:
        ended[began.id] = await ended_now(host, began)
    except Exception:  # the parking must not fail with it
        log.exception("a background command could not be ended", command=began.id)
