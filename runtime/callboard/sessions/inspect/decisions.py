"""Decisions on the calls of a session's agents, read from the journals, each event once."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.decoding import read_value
from callboard.core.keys import journal, refusals
from callboard.core.reports.decisions import Decision, DecisionFold, refusal
from callboard.engine.recall import numbered_events
from callboard.ports.store import Store
from callboard.ports.store_reading import records_of
from callboard.types.records import AgentRow, RefusedRequest


class DecisionReader:
    """Reader of the decisions of one session. A later read continues where the one before has ended."""

    def __init__(self, store: Store, session: str) -> None:
        self._store = store
        self._session = session
        self._lives: dict[tuple[str, int], DecisionFold] = {}

    async def read(self, rows: Sequence[AgentRow], *, refused: bool) -> list[Decision]:
        """Return the decisions on the calls of these agents, oldest first.

        `refused`: with the requests to the web page that agents' processes sent.
        """
        decisions: list[Decision] = []
        for row in rows:
            for incarnation in range(1, row.incarnation + 1):
                decisions += await self._life((row.name, incarnation))
        if refused:
            stream = refusals(self._session)
            for record in await records_of(self._store, stream):
                decisions.append(refusal(record.seq, read_value(RefusedRequest, record.data, stream)))
        return sorted(decisions, key=lambda decision: (decision.at, decision.agent, decision.incarnation, decision.seq))

    async def _life(self, key: tuple[str, int]) -> list[Decision]:
        fold = self._lives.setdefault(key, DecisionFold())
        for seq, event in await numbered_events(self._store, journal(self._session, *key), fold.position):
            fold.take(seq, event)
        return fold.decisions()
