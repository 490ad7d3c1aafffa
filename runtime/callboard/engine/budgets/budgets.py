"""Tree of budgets of the session in this process, rebuilt from the journals at a resume.

One process hosts a session at a time, so the tree is in memory and is not stored. The usage and reservations of an
agent are folded from its own journal (`core.budgets.tree`), and the tree adds them up. The tree alone refuses
nothing: `decide` does, by the path of the agent (`path_of`), and `reserve` checks again at the moment of the
reservation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field

from callboard.core.agent.rules.limits import last_call_room
from callboard.core.agent.state import AgentState
from callboard.core.budgets.tree import (
    NOTHING,
    SESSION,
    Account,
    Amount,
    BudgetNode,
    BudgetRefusal,
    charge,
    enlist,
    fire_of,
    fits,
    keep_last_calls,
    limits_calls,
    path,
    reserve,
    schedule_of,
    settle,
)
from callboard.core.frozen import replace
from callboard.engine.awake_time import AwakeTime
from callboard.engine.row_cache import RowCache
from callboard.ports.notifier import Notifier
from callboard.types.agent_spec import AgentSpec
from callboard.types.events import BudgetReached
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Budget
from callboard.types.steps import ReachBudget

Life = tuple[str, int]
"""A name and its incarnation."""


@dataclass(slots=True)
class _LifeAccount:
    """Accounts of one incarnation of an agent in the budget tree."""

    node: str
    seen: Account
    spent: Amount = NOTHING
    held: Amount | None = None
    line: tuple[str, ...] = ()
    """Budgets that hold the amount."""
    cause: str = ""
    """Cause of the agent's turn."""
    fire: str = ""
    """Fire that began the agent's turn."""


@dataclass(eq=False)
class Budgets:
    """Tree of budgets and the calls that wait for room in it. `rows`: the current rows of the schedules."""

    awake: AwakeTime
    session: Budget
    rows: RowCache
    tree: dict[str, BudgetNode] = field(init=False)
    in_force: bool = field(init=False)
    """True if some budget limits calls; otherwise no path is examined."""

    def __post_init__(self) -> None:
        self.tree = {SESSION: BudgetNode(SESSION, budget=self.session, began_at=self.awake.now())}
        self.in_force = limits_calls([self.tree[SESSION]])
        self._lives: dict[Life, _LifeAccount] = {}
        self._newest: dict[str, str] = {}
        """Name of an agent -> node of its newest life."""
        self._waiting: set[Callable[[], None]] = set()
        self._room = Notifier()

    # Agents

    def enlist(self, spec: AgentSpec, incarnation: int) -> BudgetRefusal | None:
        """Count a new agent, or return the budget that refuses it. An agent is never counted twice."""
        name = _node(spec.name, incarnation)
        if name in self.tree or spec.parent is None:
            return None
        above = tuple(name for name in (self._newest.get(spec.parent, spec.parent), spec.charged_to) if name)
        self._schedules_of(above)
        node = BudgetNode(name, above, spec.budget, self.awake.now(), agent=True)
        joined = enlist(self.tree, node)
        if isinstance(joined, BudgetRefusal):
            return joined
        self._put(joined)
        self._newest[spec.name] = name
        self.in_force = self.in_force or limits_calls([node])
        return None

    def unlist(self, name: str, incarnation: int) -> None:
        """Uncount an agent that was counted and could not be created. Does nothing for one that lives."""
        node = self.tree.get(_node(name, incarnation))
        if node is None or (name, incarnation) in self._lives:
            return
        del self.tree[node.name]
        self._put([replace(above, agents=above.agents - 1) for above in path(self.tree, *node.above)])
        if self._newest.get(name) == node.name:
            del self._newest[name]

    def join(self, state: AgentState) -> None:
        """Add a life that this process takes over, or reads at a resume, with the usage in its journal."""
        spec = state.me
        life = (state.me.name, state.identity.incarnation)
        if spec.parent is None and spec.name not in self.tree:
            self._put(
                [BudgetNode(spec.name, (SESSION,), spec.budget, self.awake.at(state.identity.began_at), agent=True)]
            )
            began = min(self.tree[SESSION].began_at, self.tree[spec.name].began_at)
            self._put([replace(self.tree[SESSION], began_at=began)])
            self.in_force = self.in_force or limits_calls([self.tree[spec.name]])
        entry = self._lives.get(life)
        if entry is None:
            entry = self._add_life(state)
        elif entry.held is not None:  # it crashed in this process: its reservations are those in its journal
            self._put(settle(self._reserved_nodes(entry), entry.held, NOTHING))
            entry.held = None
        entry.seen = Account()
        self.follow(state)

    def follow(self, state: AgentState) -> None:
        """Apply the changes of an agent's newest records to its account."""
        spec = state.identity.spec
        entry = self._lives.get((spec.name, state.identity.incarnation)) if spec is not None else None
        if spec is None or entry is None:
            return
        cause = state.turn.cause if state.turn else ""
        if cause != entry.cause:
            entry.cause = cause
            fire = fire_of(cause)
            if fire != entry.fire:
                self._forget(entry.fire)
                entry.fire = fire
        if self.tree[entry.node].budget is not spec.budget:
            self._raise_budget(entry.node, spec.budget)
        self._keep_last_call(entry.node, state)
        account = state.budget.account
        if account is entry.seen:
            return
        used = NOTHING if account.spent is entry.seen.spent else account.spent.minus(entry.spent)
        entry.seen = account
        entry.spent = entry.spent.plus(used)
        if entry.held is not None and entry.held == account.held:
            self._put(charge(self._reserved_nodes(entry), used))
        elif entry.held is not None:
            self._settle(entry, used)
        elif used != NOTHING:
            self._put(charge(path(self.tree, entry.node, *self._fire_node(entry.fire)), used))
        if account.held is not None and entry.held is None:
            self._reserve(entry, account.held)

    def leave(self, name: str, incarnation: int) -> None:
        """Release the reservations of a life that has ended or is parked.

        The cost of its call in flight will not be reported, so the whole reservation counts as spent.
        """
        entry = self._lives.get((name, incarnation))
        if entry is not None and entry.held is not None:
            entry.spent = entry.spent.plus(entry.held)
            self._settle(entry, entry.held)

    def path_of(self, state: AgentState) -> tuple[BudgetNode, ...]:
        """Return the budgets that the agent's next call is charged to, the nearest first.

        Empty if none limits the call.
        """
        cause = fire_of(state.turn.cause) if state.turn else ""
        fire = self._fire_node(cause) if cause else ()
        if not self.in_force:  # the row of the schedule, which may have a budget, was just read
            return ()
        entry = self._lives.get((state.me.name, state.identity.incarnation))
        if entry is None:
            return ()
        self._schedules_of(self.tree[entry.node].above[1:])
        nodes = path(self.tree, entry.node, *fire)
        return keep_last_calls(nodes) if limits_calls(nodes) else ()

    def of_schedule(self, schedule: str) -> BudgetNode:
        """Return the node of a schedule with the current limits of its row."""
        return self.tree[self._fire_node(f"schedule:{schedule}")[0]]

    # Calls

    def reserve(self, state: AgentState, worst: Amount) -> BudgetRefusal | None:
        """Reserve the most that a call may cost, or return the budget that it exceeds. Atomic."""
        nodes = self.path_of(state)
        refused = fits(nodes, worst, self.awake.now())
        if refused is None and nodes:
            self._reserve(self._lives[state.me.name, state.identity.incarnation], worst)
        return refused

    def count_used(self, state: AgentState, amount: Amount) -> None:
        """Count a finished call that no record reports yet. Its records do not count it again."""
        entry = self._lives[state.me.name, state.identity.incarnation]
        entry.spent = entry.spent.plus(amount)
        if entry.held is not None:
            self._settle(entry, amount)
        else:
            self._put(charge(path(self.tree, entry.node, *self._fire_node(entry.fire)), amount))

    def wake_later(self, wake: Callable[[], None]) -> None:
        """Call `wake` once when there may be room: a call has ended, or a budget was raised."""
        self._waiting.add(wake)

    async def wait_for_room(self) -> None:
        """Wait until there may be room: a call has ended, or a budget was raised."""
        await self._room.changed(self._room.changes)

    # The tree

    def _add_life(self, state: AgentState) -> _LifeAccount:
        """Return the entry of a life, and add the usage of earlier turns of schedules."""
        spec = state.me
        name = _node(state.me.name, state.identity.incarnation)
        node = spec.name if spec.parent is None else name
        if spec.parent is not None and name not in self.tree:
            self._enlist_anyway(spec, name, state.identity.began_at)
        elif spec.parent is not None:
            self._newest[spec.name] = name
        entry = self._lives[spec.name, state.identity.incarnation] = _LifeAccount(node, Account())
        for schedule, used in state.budget.account.schedules.items():
            above = [node_name for node_name in self._fire_node(schedule) if node_name in self.tree]
            own_names = {charged.name for charged in path(self.tree, node)}
            self._put(charge([charged for charged in path(self.tree, *above) if charged.name not in own_names], used))
        if state.budget.account.spent is not NOTHING:
            entry.spent = state.budget.account.spent
            self._put(charge(path(self.tree, node), entry.spent))
        fire = fire_of(state.turn.cause) if state.turn else ""
        if fire:
            self._fire_node(fire)
            self._put([replace(self.tree[fire], spent=self.tree[fire].spent.plus(state.budget.account.fire))])
        entry.fire = fire
        return entry

    def _enlist_anyway(self, spec: AgentSpec, name: str, began_at: float) -> None:
        """Count an agent that the journals contain, whatever the current limits are."""
        above = tuple(name for name in (self._newest.get(spec.parent or "", SESSION), spec.charged_to) if name)
        self._schedules_of(above)
        node = BudgetNode(name, above, spec.budget, self.awake.at(began_at), agent=True)
        self._put([node, *(replace(charged, agents=charged.agents + 1) for charged in path(self.tree, *above))])
        self._newest[spec.name] = name
        self.in_force = self.in_force or limits_calls([node])

    def _schedules_of(self, names: Iterable[str]) -> None:
        for name in names:
            self._fire_node(name)

    def _fire_node(self, name: str) -> tuple[str, ...]:
        """Return the node of a fire or a schedule with the current limits of its row. Create it if necessary."""
        kind, _, fire_id = name.partition(":")
        if kind == "fire":
            schedule = schedule_of(fire_id)
        elif kind == "schedule":
            schedule = name
        else:
            return ()
        row = self.rows.schedule_row(schedule.removeprefix("schedule:"))
        began = row.created_at if row else None
        self._set_limit(schedule, (SESSION,), row.budget if row else Budget(), began)
        if kind == "fire":
            self._set_limit(name, (schedule,), row.fire_budget if row else Budget())
        return (name,)

    def _set_limit(self, name: str, above: tuple[str, ...], budget: Budget, created_at: float | None = None) -> None:
        node = self.tree.get(name)
        if node is None:
            began_at = self.awake.now() if created_at is None else self.awake.at(created_at)
            node = BudgetNode(name, above, began_at=began_at)
        self.tree[name] = node if node.budget == budget else replace(node, budget=budget)
        self.in_force = self.in_force or limits_calls([self.tree[name]])

    def _forget(self, fire: str) -> None:
        """Remove a finished fire that no agent continues."""
        node = self.tree.get(fire)
        if node is not None and not node.agents and not node.in_flight:
            del self.tree[fire]

    def _reserve(self, entry: _LifeAccount, worst: Amount) -> None:
        nodes = path(self.tree, entry.node, *self._fire_node(entry.fire))
        entry.held = worst
        entry.line = tuple(node.name for node in nodes)
        self._put(reserve(nodes, worst))

    def _settle(self, entry: _LifeAccount, used: Amount) -> None:
        assert entry.held is not None, "something is held"
        self._put(settle(self._reserved_nodes(entry), entry.held, used))
        entry.held = None
        self._wake()

    def _reserved_nodes(self, entry: _LifeAccount) -> list[BudgetNode]:
        return [self.tree[name] for name in entry.line]

    def _keep_last_call(self, name: str, state: AgentState) -> None:
        """Keep room for the last call of an agent from the agents below it."""
        if self.in_force:
            nodes = path(self.tree, name)
            self._put([replace(nodes[0], last_call=last_call_room(state, nodes))])

    def _raise_budget(self, name: str, budget: Budget) -> None:
        """Apply a budget that the user raised, and wake the waiting calls."""
        self._put([replace(self.tree[name], budget=budget)])
        self._wake()

    def _wake(self) -> None:
        """Wake all waiting calls, because there may be room."""
        self._room.notify()
        waiting, self._waiting = self._waiting, set()
        for wake in waiting:
            wake()

    def _put(self, nodes: Iterable[BudgetNode]) -> None:
        self.tree.update({node.name: node for node in nodes})


def refusal_record(refused: BudgetRefusal | ReachBudget, now: float, *, winds_down: bool = False) -> BudgetReached:
    """Return the record of a refusal."""
    return BudgetReached(
        at=now,
        budget=refused.budget,
        kind=refused.kind,
        limit=refused.limit,
        spent=refused.spent,
        wanted=refused.wanted,
        winds_down=winds_down,
    )


def _node(name: str, incarnation: int) -> str:
    """Return the node's name. A new life of a teammate counts as a separate agent with its own budget."""
    return name if incarnation == 1 else f"{name}.{incarnation}"
