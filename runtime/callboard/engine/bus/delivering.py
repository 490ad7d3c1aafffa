"""Envelopes on their way into a conversation: what is too long for it goes to a file first."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.bus.mail import placed
from callboard.core.context.oversize import file_of, too_long
from callboard.engine.loop import Agent
from callboard.words.context import Placed
from callboard.words.values import Envelope


async def delivered(agent: Agent, envelopes: Sequence[Envelope]) -> tuple[Placed, ...]:
    """The blocks that stand for these envelopes. The files that they name are written when this returns.

    A file is named by its envelope: after a crash the same delivery finds it there. Raises `StoreFull`.
    """
    archive = agent.host.ports.archive
    folder = archive.folders(agent.state.me).tool_results
    kept = {one: f"{folder}/{file_of(one)}" for one in too_long(envelopes)}
    for envelope in envelopes:
        if envelope.id in kept:
            await archive.keep(kept[envelope.id], envelope.content)
    return tuple(placed(one, kept.get(one.id, "")) for one in envelopes)
