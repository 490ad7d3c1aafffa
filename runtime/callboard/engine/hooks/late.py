"""What hooks in the background say, on its way to their agent: as mail, which waits for the next turn or wakes it.

As mail it is journalled, survives a crash once it was sent, and reaches a rested agent without a turn of its own.
"""

from __future__ import annotations

from itertools import count

import structlog

from callboard.core.bus.mail import sending
from callboard.core.names import short_id
from callboard.engine.host import Host
from callboard.ports.hooks import Late
from callboard.ports.model import Delta
from callboard.words.values import Envelope

log = structlog.get_logger("callboard.hooks")


async def tend_hooks(host: Host) -> None:
    """Let the session's hooks run in the background until cancelled."""
    numbers = count(1)

    async def tell(late: Late) -> None:
        for text in late.notices:
            log.warning("hook", agent=late.by.name, notice=f"{late.hook}: {text}")
            host.streamed(late.by.name, Delta("notice", f"{late.hook}: {text}"))
        found = host.board.agent(late.by.name)
        if not late.context or found is None or found[0].life in ("stopped", "crashed"):
            return
        row, now = found[0], host.clock.now()
        envelope = Envelope(
            id=short_id("env", late.hook, late.by.name, f"{now}", f"{next(numbers)}"),
            sender="runtime",
            recipient=row.name,
            incarnation=row.incarnation,
            type="task_notification",
            content="\n\n".join((f"{late.hook} ran in the background and says:", *late.context)),
            mode="wake" if late.wake else "queue",
            cause="tool"
            if late.wake
            else "person",  # a turn that it begins has nobody's word; one that it joins, its own
            sent_at=now,
        )
        await host.commit(sending(host.session, envelope))

    await host.ports.hooks.tend(tell)
