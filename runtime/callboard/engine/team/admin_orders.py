"""Orders of the user to the supervisor: kill an agent that does not stop, resume a parked one, fire a schedule now.

An order is an envelope in the mailbox of `runtime`, so that any process may give it, even without a host, and its
author is recorded. The supervisor performs orders in order of arrival. A key stores the position; performing an order
again after a crash has no further effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import structlog

from callboard.core.decoding import read_envelope
from callboard.core.keys import mailbox, orders_key, short_id
from callboard.core.messaging.envelopes import sending
from callboard.engine.runtime import Host
from callboard.ports.store import Put, Store
from callboard.types.records import Envelope

SUPERVISOR = "runtime"
"""Owner of the mailbox for orders: a reserved name that no agent has."""

Order = Literal["kill", "resume", "fire"]


@dataclass(frozen=True, slots=True)
class Given:
    """Order about one life of an agent, or about a fire."""

    what: Order
    name: str
    """Name of the agent; with `fire`: id of the fire."""
    life: int
    why: str = ""


async def give_order(store: Store, session: str, order: Given, *, now: float, nonce: str) -> None:
    """Send an order of the user about one life of an agent. `nonce`: unique for each order."""
    envelope = Envelope(
        id=short_id("env", session, order.what, order.name, order.life, nonce),
        sender="person",
        recipient=SUPERVISOR,
        incarnation=1,
        type="command",
        content=order.why,
        cause="person",
        metadata={"action": order.what, "agent": order.name, "incarnation": order.life},
        sent_at=now,
    )
    await store.commit(sending(session, envelope))


def order_to_fire(session: str, fire: str, now: float) -> Envelope:
    """Return the order to handle a fire that waits in the history."""
    return Envelope(
        id=short_id("env", session, "fire", fire),
        sender="person",
        recipient=SUPERVISOR,
        incarnation=1,
        type="command",
        cause="person",
        metadata={"action": "fire", "agent": fire},
        sent_at=now,
    )


Obey = Callable[[Given], Awaitable[None]]
"""Function that performs an order. Raises the exceptions of `Store.commit`."""

log = structlog.get_logger("callboard.team")


async def follow_orders(host: Host, obey: Obey) -> None:
    """Perform each order as it arrives, from the stored position. Never returns."""
    store = host.ports.store
    key = orders_key(host.session)
    row = await store.get(key)
    position = int(row.value) if row is not None and row.value is not None else 0
    async with store.follow(mailbox(host.session, SUPERVISOR, 1), position) as records:
        async for record in records:
            envelope = read_envelope(record.data, mailbox(host.session, SUPERVISOR, 1), record.seq)
            action = envelope.metadata.get("action")
            if envelope.sender == envelope.cause == "person" and action in ("kill", "resume", "fire"):
                log.info("order", what=action, agent=envelope.metadata.get("agent"), why=envelope.content)
                name = str(envelope.metadata.get("agent"))
                life = int(envelope.metadata.get("incarnation", 1))
                await obey(Given(action, name, life, envelope.content))
            # After the order: a crash in between repeats it, which changes nothing.
            await host.commit(Put(key, str(record.seq).encode()))
