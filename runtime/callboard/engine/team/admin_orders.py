"""Orders of the user to the supervisor: kill an agent that does not stop, resume a parked one, fire a schedule now.

An order is an envelope in the mailbox of `runtime`, so any process may give it, even without a host, and its author is
recorded. The supervisor performs orders in order of arrival (`Team._follow_orders`) and stores its position under a
key. Performing an order again after a crash has no further effect.
"""

from __future__ import annotations

from typing import Literal

from callboard.core.keys import short_id
from callboard.core.messaging.envelopes import envelope_write
from callboard.ports.store import Store
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Envelope

SUPERVISOR = "runtime"
"""Reserved name that no agent has: the owner of the mailbox for orders."""

Order = Literal["kill", "resume", "fire"]


@dataclass(frozen=True, slots=True)
class AdminOrder:
    """Order about one life of an agent, or about a fire."""

    what: Order
    name: str
    """Name of the agent; with `fire`: id of the fire."""
    life: int
    why: str = ""


async def give_order(store: Store, session: str, order: AdminOrder, *, now: float, nonce: str) -> None:
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
    await store.commit(envelope_write(session, envelope))


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


def read_order(envelope: Envelope) -> AdminOrder | None:
    """Return the order in an envelope of the mailbox; None if the user did not send it, or its action is unknown."""
    action = envelope.metadata.get("action")
    if not envelope.sender == envelope.cause == "person" or action not in ("kill", "resume", "fire"):
        return None
    name = str(envelope.metadata.get("agent"))
    return AdminOrder(action, name, int(envelope.metadata.get("incarnation", 1)), envelope.content)
