"""What the processes of one key tell each other of its rate, through the store that they share.

A row for each model says until when it is parked, one for the key whether it is refused. It is written when it moves
by more than a second, so that a flood of refusals writes one row.
"""

from __future__ import annotations

import anyio
from pydantic import ValidationError

from callboard.core.names import rate_key
from callboard.engine.governor.governor import Governor
from callboard.ports.store import Put, Row, Store
from callboard.words.rates import RateNotice

STEP = 1.0
"""Seconds by which a moment must have moved to be written again."""


async def catch_up(governor: Governor, store: Store) -> None:
    """Heed what stands in the store: what was heard before a restart, or by others."""
    for row in await store.keys(rate_key(governor.key, "")):
        _heed(governor, row)


async def share(governor: Governor, store: Store) -> None:
    """Heed what others write, and write what is heard here, until cancelled."""
    async with anyio.create_task_group() as group:
        group.start_soon(_tell, governor, store)
        async with store.watch(rate_key(governor.key, "")) as rows:
            async for row in rows:
                _heed(governor, row)
        group.cancel_scope.cancel()  # the store was closed


def _heed(governor: Governor, row: Row) -> None:
    if row.value is None:
        return
    try:
        notice = RateNotice.model_validate_json(row.value)
    except ValidationError:  # a row that a person or another program wrote: nothing that calls could wait for
        return
    governor.heed(notice)


async def _tell(governor: Governor, store: Store) -> None:
    written: dict[str, RateNotice] = {}
    while True:
        news = governor.news
        for model, notice in list(governor.notices.items()):
            if _moved(written.get(model), notice):
                written[model] = notice
                await store.commit(Put(rate_key(governor.key, model), notice.encode()))
        await news.wait()


def _moved(before: RateNotice | None, after: RateNotice) -> bool:
    """Whether it says something that the row does not. All is well again: that is always said, once."""
    if before is None or (before.fault is None) != (after.fault is None) or not after.parked_until:
        return after is not before
    return after.parked_until > before.parked_until + STEP
