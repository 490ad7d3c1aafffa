"""Reads the journals of a session for every decision on a call, of all lives of its agents. It changes nothing.

Beside a host as well: what stands in the store at the moment counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.asking.decided import Decision, decisions_in
from callboard.core.names import journal
from callboard.engine.memory import events_of
from callboard.ports.store import Store
from callboard.words.values import AgentRow


async def decisions_of(store: Store, session: str, rows: Sequence[AgentRow]) -> list[Decision]:
    """What was decided in a session so far, oldest first. `rows`: its agents. Raises `StoreDamaged`."""
    found: list[Decision] = []
    for row in rows:
        for incarnation in range(1, row.incarnation + 1):
            found += decisions_in(await events_of(store, journal(session, row.name, incarnation)))
    return sorted(found, key=lambda one: (one.at, one.agent, one.incarnation, one.seq))
