"""Reader of a session's spending, over all lives of all its agents, and of the remaining amounts of its budgets.

Read-only. Works while another process hosts the session: it reads the current state of the store and marks calls in
progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from callboard.core.agent.state import without_history
from callboard.core.budgets.tree import BudgetNode
from callboard.core.keys import journal
from callboard.core.reports.spending import Life, LifeFold, Spending, spending_of
from callboard.engine.awake_time import AwakeTime
from callboard.engine.budgets.budgets import Budgets
from callboard.engine.recall import first_spec, numbered_events, recall_readable
from callboard.engine.row_cache import RowCache
from callboard.ports.environment import Clock
from callboard.ports.store import Store
from callboard.types.errors import SessionUnreadable
from callboard.types.records import AgentRow, Budget


async def session_spending(store: Store, session: str, rows: Sequence[AgentRow]) -> Spending:
    """Return the tree of a session's spending so far. `rows`: its agents. Raises `StoreDamaged`."""
    return await SpendingReader(store, session).read(rows)


class SpendingReader:
    """Reader of one session's spending that reads each event once, for a screen that follows the session."""

    def __init__(self, store: Store, session: str) -> None:
        self._store = store
        self._session = session
        self._lives: dict[tuple[str, int], LifeFold] = {}
        self._positions: dict[tuple[str, int], int] = {}

    async def read(self, rows: Sequence[AgentRow]) -> Spending:
        """Return the tree of the spending so far. `rows`: the agents of the session. Raises `StoreDamaged`."""
        lives = [
            await self._life((row.name, incarnation)) for row in rows for incarnation in range(1, row.incarnation + 1)
        ]
        return spending_of(self._session, lives)

    async def _life(self, key: tuple[str, int]) -> Life:
        fold = self._lives.setdefault(key, LifeFold(Life(*key)))
        for seq, event in await numbered_events(self._store, journal(self._session, *key), self._positions.get(key, 0)):
            fold.take(event)
            self._positions[key] = seq
        return fold.life()


async def session_budgets(
    store: Store, session: str, rows: RowCache, *, clock: Clock, budget: Budget
) -> tuple[BudgetNode, ...]:
    """Return the budgets with a limit and the amounts charged to them, as a new host would count.

    `budget`: the budget of the whole session. The result has the budget of a schedule for all its fires, not that of
    each fire. Raises `StoreDamaged`.
    """
    budgets = Budgets(AwakeTime(clock), budget, rows)
    await recall_budgets(budgets, store, session, rows.agents())
    for schedule in rows.schedules():
        budgets.of_schedule(schedule.id)
    nodes = [node for node in budgets.tree.values() if not node.name.startswith("fire:")]
    return tuple(node for node in nodes if node.budget != Budget())


async def recall_budgets(budgets: Budgets, store: Store, session: str, rows: Sequence[AgentRow]) -> None:
    """Restore the usage of all agents of the session, including ended ones, from their journals.

    Does nothing without a budget. Usage that a damaged journal no longer contains is not counted.
    """
    if not await _is_limited(budgets, store, session, rows):
        return
    above = {row.name: row.parent for row in rows}
    states = [
        without_history((await recall_readable(store, session, row.name, life)).state)
        for row in rows
        for life in range(1, row.incarnation + 1)
    ]
    begun = [state for state in states if state.identity.spec is not None]
    for state in sorted(begun, key=lambda state: (state.identity.began_at, _depth(state.me.name, above))):
        budgets.join(state)
    living = {(row.name, row.incarnation) for row in rows if row.life not in ("stopped", "crashed")}
    for state in begun:
        if (state.me.name, state.identity.incarnation) not in living:
            budgets.leave(state.me.name, state.identity.incarnation)


async def _is_limited(budgets: Budgets, store: Store, session: str, rows: Sequence[AgentRow]) -> bool:
    """Return True if a budget limits further use by this session's agents."""
    if budgets.session != Budget():
        return True
    if any(schedule.budget != Budget() or schedule.fire_budget != Budget() for schedule in budgets.rows.schedules()):
        return True
    # Only a subagent may have its spec in its journal alone.
    living = {
        row.spec or row.name: row for row in rows if row.life != "stopped" and (row.spec or row.kind == "subagent")
    }
    try:
        return any([(await first_spec(store, session, row)).budget != Budget() for _, row in sorted(living.items())])
    except SessionUnreadable as wrong:
        if wrong.newer:
            raise
        return True  # the budget is lost with the spec, but the journals have it


def _depth(name: str, above: Mapping[str, str | None]) -> int:
    """Return the number of agents above an agent."""
    hops = 0
    parent = above.get(name)
    while parent is not None and hops < len(above):
        hops, parent = hops + 1, above.get(parent)
    return hops
