"""A person fires a schedule now, beside its times: from any process, also while nobody hosts the session.

The fire stands in the history at once and waits; the host is told, or finds it when it next begins. It counts as no
slot of the schedule, and runs whatever else of it is under way, also of one that is paused or has ended.
"""

from __future__ import annotations

from callboard.core.bus.mail import sending
from callboard.core.names import fire_key
from callboard.core.schedule.history import BY_HAND
from callboard.engine.supervision.orders import order_to_fire
from callboard.ports.store import Put, Store
from callboard.words.schedules import Fire, Schedule


async def fire_by_hand(store: Store, session: str, schedule: Schedule, *, now: float, nonce: str) -> str:
    """The id of the fire. `nonce`: another one each time, letters and digits. Raises what `Store.commit` raises."""
    fire = Fire(
        id=f"schedule:{schedule.id}:{BY_HAND}{nonce}", schedule=schedule.id, session=session, nominal=now, at=now
    )
    order = order_to_fire(session, fire.id, now)
    key = fire_key(session, schedule.id, fire.id)
    await store.commit(Put(key, fire.encode(), expected=0), sending(session, order))
    return fire.id
