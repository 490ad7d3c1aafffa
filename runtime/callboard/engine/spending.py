"""Reads the journals of a session for what was spent, of all lives of all its agents. It changes nothing.

Beside a host as well: what stands in the store at the moment counts. A call under way is told as such.
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.names import journal
from callboard.core.spending import Life, Spending, life_spent, spending_of
from callboard.engine.memory import events_of
from callboard.ports.store import Store
from callboard.words.values import AgentRow


async def session_spending(store: Store, session: str, rows: Sequence[AgentRow]) -> Spending:
    """The tree of what a session has spent so far. `rows`: its agents. Raises `StoreDamaged`."""
    lives: list[Life] = []
    for row in rows:
        for incarnation in range(1, row.incarnation + 1):
            events = await events_of(store, journal(session, row.name, incarnation))
            lives.append(life_spent(row.name, incarnation, events))
    return spending_of(session, lives)
