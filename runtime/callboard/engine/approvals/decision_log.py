"""Reader of all decisions on calls in the journals of a session, for all lives of its agents. Read-only.

Works while another process hosts the session: it reads the current state of the store.
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.keys import journal
from callboard.core.reports.decisions import Decision, decisions_in
from callboard.engine.recall import numbered_events
from callboard.ports.store import Store
from callboard.types.records import AgentRow


async def decisions_of(store: Store, session: str, rows: Sequence[AgentRow]) -> list[Decision]:
    """Return all decisions of a session so far, oldest first. `rows`: its agents. Raises `StoreDamaged`."""
    decisions: list[Decision] = []
    for row in rows:
        for incarnation in range(1, row.incarnation + 1):
            decisions += decisions_in(await numbered_events(store, journal(session, row.name, incarnation)))
    return sorted(decisions, key=lambda decision: (decision.at, decision.agent, decision.incarnation, decision.seq))
