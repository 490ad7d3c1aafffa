"""What a person orders of the supervisor itself: to end an agent that does not stop, to resume one that is parked, to
fire a schedule now.

An order is an envelope in the mailbox of `runtime`, so that any process may give it, also while nobody hosts the
session, and nobody forgets who gave it. The supervisor carries orders out in their order. How far it came stands in a
key; one that is carried out again after a crash finds it done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import structlog

from callboard.core.bus.mail import sending
from callboard.core.names import mailbox, orders_key, short_id
from callboard.engine.host import Host
from callboard.ports.store import Put, Store
from callboard.words.values import Envelope

SUPERVISOR = "runtime"
"""Whose mailbox it is: a reserved name, which no agent has."""

Order = Literal["kill", "resume", "fire"]


@dataclass(frozen=True, slots=True)
class Given:
    """An order about one life of an agent, or about a fire."""

    what: Order
    name: str
    """Of the agent; with `fire`: the fire's id."""
    life: int
    why: str = ""


async def give_order(store: Store, session: str, order: Given, *, now: float, nonce: str) -> None:
    """A person's order about one life of an agent. `nonce`: another one each time that a person orders something."""
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
    """The order to look at a fire that stands in the history and waits."""
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
"""Carries out an order. Raises what `Store.commit` raises."""

log = structlog.get_logger("callboard.team")


async def follow_orders(host: Host, obey: Obey) -> None:
    """Carry out each order as it comes, from where it stood. Never returns."""
    store, key = host.ports.store, orders_key(host.session)
    row = await store.get(key)
    position = int(row.value) if row is not None and row.value is not None else 0
    async with store.follow(mailbox(host.session, SUPERVISOR, 1), position) as records:
        async for record in records:
            given = Envelope.model_validate_json(record.data)
            what = given.metadata.get("action")
            if given.sender == given.cause == "person" and what in ("kill", "resume", "fire"):
                log.info("order", what=what, agent=given.metadata.get("agent"), why=given.content)
                name, life = str(given.metadata.get("agent")), int(given.metadata.get("incarnation", 1))
                await obey(Given(what, name, life, given.content))
            await host.commit(Put(key, str(record.seq).encode()))
