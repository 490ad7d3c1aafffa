"""Reads the journals of a session for what was spent, of all lives of all its agents, and what its budgets have left.
It changes nothing.

Beside a host as well: what stands in the store at the moment counts. A call under way is told as such.
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.budget.spending import Life, Spending, life_spent, spending_of
from callboard.core.budget.tree import Node
from callboard.core.names import journal
from callboard.engine.board import SessionBoard
from callboard.engine.memory import events_of
from callboard.engine.money.budgets import Budgets, recall_budgets
from callboard.ports.store import Store
from callboard.ports.world import Clock
from callboard.words.values import AgentRow, Budget


async def session_spending(store: Store, session: str, rows: Sequence[AgentRow]) -> Spending:
    """The tree of what a session has spent so far. `rows`: its agents. Raises `StoreDamaged`."""
    lives: list[Life] = []
    for row in rows:
        for incarnation in range(1, row.incarnation + 1):
            events = await events_of(store, journal(session, row.name, incarnation))
            lives.append(life_spent(row.name, incarnation, events))
    return spending_of(session, lives)


async def session_budgets(
    store: Store, session: str, board: SessionBoard, clock: Clock, budget: Budget
) -> tuple[Node, ...]:
    """The budgets that limit something, with what is charged to them: as a host that takes the session up counts.

    `budget`: of the whole session. Of schedules the budget for all fires, not that of each. Raises `StoreDamaged`.
    """
    budgets = Budgets(clock, budget, board)
    await recall_budgets(budgets, store, session, board.agents())
    for one in board.schedules():
        budgets.of_schedule(one.id)
    known = [node for node in budgets.tree.values() if not node.name.startswith("fire:")]
    return tuple(node for node in known if node.budget != Budget())
