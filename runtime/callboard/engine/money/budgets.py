"""The session's tree of budgets in this process: who holds how much, made anew from the journals at a resume.

One process hosts a session at a time, so the tree lives here and nothing of it is stored: what an agent has used and
holds is folded from its own journal (`core.budget.account`), and the tree adds that up. It refuses nothing by itself:
`decide` does, by the path of the agent (`path_of`), and `reserve` asks once more in the same moment in which it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import anyio

from callboard.core.budget.account import Account
from callboard.core.budget.tree import (
    NOTHING,
    SESSION,
    Amount,
    Node,
    Refusal,
    charge,
    enlist,
    fire_of,
    fits,
    limited,
    path,
    reserve,
    schedule_of,
    settle,
)
from callboard.core.context.view.conversation import Conversation
from callboard.core.frozen import replace
from callboard.core.state import AgentState
from callboard.engine.board import SessionBoard
from callboard.engine.memory import recall
from callboard.engine.specs import load_spec
from callboard.ports.store import Store
from callboard.ports.world import Clock
from callboard.words.events import BudgetReached
from callboard.words.specs import AgentSpec
from callboard.words.steps import ReachBudget
from callboard.words.values import AgentRow, Budget

Life = tuple[str, int]
"""A name and its incarnation."""


@dataclass(slots=True)
class _Known:
    """What the tree has of one life."""

    node: str
    seen: Account
    spent: Amount = NOTHING
    held: Amount | None = None
    line: tuple[str, ...] = ()
    """Where that is held."""
    fire: str = ""
    """The fire that began its turn."""


@dataclass(eq=False)
class Budgets:
    """The tree, and who waits for room in it. `board`: the schedules' rows as they stand."""

    clock: Clock
    session: Budget
    board: SessionBoard
    tree: dict[str, Node] = field(init=False)
    in_force: bool = field(init=False)
    """Some budget limits calls; without any, no path is looked at."""

    def __post_init__(self) -> None:
        self.tree = {SESSION: Node(SESSION, budget=self.session, began_at=self.clock.now())}
        self.in_force = limited([self.tree[SESSION]])
        self._lives: dict[Life, _Known] = {}
        self._newest: dict[str, str] = {}
        """Name -> the node of its newest life."""
        self._waiting: set[Callable[[], None]] = set()
        self._moved: anyio.Event | None = None
        """Set when there may be room; there is one only while somebody waits for it."""

    # Agents

    def enlist(self, spec: AgentSpec, incarnation: int) -> Refusal | None:
        """Count a new agent in, or say which budget refuses it. One that is counted already is not counted again."""
        name = _node(spec.name, incarnation)
        if name in self.tree or spec.parent is None:
            return None
        above = tuple(one for one in (self._newest.get(spec.parent, spec.parent), spec.charged_to) if one)
        self._schedules_of(above)
        node = Node(name, above, spec.budget, self.clock.now(), agent=True)
        joined = enlist(self.tree, node)
        if isinstance(joined, Refusal):
            return joined
        self._put(joined)
        self._newest[spec.name] = name
        self.in_force = self.in_force or limited([node])
        return None

    def join(self, state: AgentState) -> None:
        """A life that this process takes up, or reads at a resume: what its journal says of it counts from now on."""
        spec, life = state.me, (state.me.name, state.incarnation)
        if spec.parent is None and spec.name not in self.tree:
            self._put([Node(spec.name, (SESSION,), spec.budget, state.began_at, agent=True)])
            self._put([replace(self.tree[SESSION], began_at=min(self.tree[SESSION].began_at, state.began_at))])
            self.in_force = self.in_force or limited([self.tree[spec.name]])
        known = self._lives.get(life)
        if known is None:
            known = self._meet(state)
        elif known.held is not None:  # it crashed here: what it holds is what its journal says
            self._put(settle(self._line(known), known.held, NOTHING))
            known.held = None
        known.seen = Account()
        self.follow(state)

    def follow(self, state: AgentState) -> None:
        """Take over what an agent's newest records changed in its account."""
        known = self._lives.get((state.me.name, state.incarnation)) if state.spec is not None else None
        if known is None:
            return
        fire = fire_of(state.turn.cause) if state.turn else ""
        if fire != known.fire:
            self._forget(known.fire)
            known.fire = fire
        if self.tree[known.node].budget is not state.me.budget:
            self._granted(known.node, state.me.budget)
        account = state.account
        if account is known.seen:
            return
        known.seen = account
        used = account.spent.minus(known.spent)
        known.spent = known.spent.plus(used)
        if known.held is not None and known.held == account.held:
            self._put(charge(self._line(known), used))
        elif known.held is not None:
            self._settle(known, used)
        elif used != NOTHING:
            self._put(charge(path(self.tree, known.node, *self._fire(fire)), used))
        if account.held is not None and known.held is None:
            self._hold(known, account.held)

    def leave(self, name: str, incarnation: int) -> None:
        """A life is over, or parked: nobody will tell any more what its call in flight has cost."""
        known = self._lives.get((name, incarnation))
        if known is not None and known.held is not None:
            known.spent = known.spent.plus(known.held)
            self._settle(known, known.held)

    def path_of(self, state: AgentState) -> tuple[Node, ...]:
        """What the agent's next call is charged to, the nearest first; empty where nothing limits it."""
        fire = self._fire(fire_of(state.turn.cause)) if state.turn else ()
        known = self._lives.get((state.me.name, state.incarnation))
        if known is None or not self.in_force:
            return ()
        self._schedules_of(self.tree[known.node].above[1:])
        nodes = path(self.tree, known.node, *fire)
        return nodes if limited(nodes) else ()

    def of_schedule(self, schedule: str) -> Node:
        """The node of a schedule, by its id, with the limits that its row states now."""
        return self.tree[self._fire(f"schedule:{schedule}")[0]]

    # Calls

    def reserve(self, state: AgentState, worst: Amount) -> Refusal | None:
        """Hold back the worst that a call may cost, or say what it does not fit into. Nothing comes in between."""
        nodes = self.path_of(state)
        refused = fits(nodes, worst, self.clock.now())
        if refused is None and nodes:
            self._hold(self._lives[state.me.name, state.incarnation], worst)
        return refused

    def used(self, state: AgentState, amount: Amount) -> None:
        """A call is over that no record tells of yet: its records count it once, here or there."""
        known = self._lives[state.me.name, state.incarnation]
        known.spent = known.spent.plus(amount)
        if known.held is not None:
            self._settle(known, amount)
        else:
            self._put(charge(path(self.tree, known.node, *self._fire(known.fire)), amount))

    def wake_later(self, wake: Callable[[], None]) -> None:
        """Call it once when there may be room: a call in flight is over, or a budget was raised."""
        self._waiting.add(wake)

    async def moved(self) -> None:
        """Wait until there may be room: a call in flight is over, or a budget was raised."""
        if self._moved is None:
            self._moved = anyio.Event()
        await self._moved.wait()

    # The tree

    def _meet(self, state: AgentState) -> _Known:
        """The life's own entry, and with it what earlier turns of schedules used that are over."""
        spec, name = state.me, _node(state.me.name, state.incarnation)
        node = spec.name if spec.parent is None else name
        if spec.parent is not None and name not in self.tree:
            self._enlist_anyway(spec, name, state.began_at)
        elif spec.parent is not None:
            self._newest[spec.name] = name
        known = self._lives[spec.name, state.incarnation] = _Known(node, Account())
        for schedule, used in state.account.schedules.items():
            above = [one for one in self._fire(schedule) if one in self.tree]
            mine = {one.name for one in path(self.tree, node)}
            self._put(charge([one for one in path(self.tree, *above) if one.name not in mine], used))
        known.spent = state.account.spent
        self._put(charge(path(self.tree, node), known.spent))
        fire = fire_of(state.turn.cause) if state.turn else ""
        if fire:
            self._fire(fire)
            self._put([replace(self.tree[fire], spent=self.tree[fire].spent.plus(state.account.fire))])
        known.fire = fire
        return known

    def _enlist_anyway(self, spec: AgentSpec, name: str, began_at: float) -> None:
        """An agent that the journals tell of was let in, whatever the limits are now."""
        above = tuple(one for one in (self._newest.get(spec.parent or "", SESSION), spec.charged_to) if one)
        self._schedules_of(above)
        node = Node(name, above, spec.budget, began_at, agent=True)
        self._put([node, *(replace(one, agents=one.agents + 1) for one in path(self.tree, *above))])
        self._newest[spec.name] = name
        self.in_force = self.in_force or limited([node])

    def _schedules_of(self, names: Iterable[str]) -> None:
        for name in names:
            self._fire(name)

    def _fire(self, name: str) -> tuple[str, ...]:
        """The node of a fire or of a schedule, made if it is not there, with the limits that its row states now."""
        kind, _, rest = name.partition(":")
        if kind == "fire":
            schedule = schedule_of(rest)
        elif kind == "schedule":
            schedule = name
        else:
            return ()
        row = self.board.schedule_row(schedule.removeprefix("schedule:"))
        began = row.created_at if row else self.clock.now()
        self._limit(schedule, (SESSION,), row.budget if row else Budget(), began)
        if kind == "fire":
            self._limit(name, (schedule,), row.fire_budget if row else Budget(), self.clock.now())
        return (name,)

    def _limit(self, name: str, above: tuple[str, ...], budget: Budget, began_at: float) -> None:
        node = self.tree.get(name) or Node(name, above, began_at=began_at)
        self.tree[name] = node if node.budget == budget else replace(node, budget=budget)
        self.in_force = self.in_force or limited([self.tree[name]])

    def _forget(self, fire: str) -> None:
        """A fire is over that no agent goes on with."""
        node = self.tree.get(fire)
        if node is not None and not node.agents and not node.in_flight:
            del self.tree[fire]

    def _hold(self, known: _Known, worst: Amount) -> None:
        nodes = path(self.tree, known.node, *self._fire(known.fire))
        known.held, known.line = worst, tuple(node.name for node in nodes)
        self._put(reserve(nodes, worst))

    def _settle(self, known: _Known, used: Amount) -> None:
        assert known.held is not None, "something is held"
        self._put(settle(self._line(known), known.held, used))
        known.held = None
        self._wake()

    def _line(self, known: _Known) -> list[Node]:
        return [self.tree[name] for name in known.line]

    def _granted(self, name: str, budget: Budget) -> None:
        """A person raised what an agent may use: who waits for room looks again."""
        self._put([replace(self.tree[name], budget=budget)])
        self._wake()

    def _wake(self) -> None:
        """There may be room: all who wait for some look again."""
        if self._moved is not None:
            self._moved.set()
            self._moved = None
        waiting, self._waiting = self._waiting, set()
        for wake in waiting:
            wake()

    def _put(self, nodes: Iterable[Node]) -> None:
        self.tree.update({node.name: node for node in nodes})


def reached(refused: Refusal | ReachBudget, now: float, *, winds_down: bool = False) -> BudgetReached:
    """The record of a refusal."""
    return BudgetReached(
        at=now,
        budget=refused.budget,
        kind=refused.kind,
        limit=refused.limit,
        spent=refused.spent,
        wanted=refused.wanted,
        winds_down=winds_down,
    )


async def recall_budgets(budgets: Budgets, store: Store, session: str, rows: Sequence[AgentRow]) -> None:
    """What all agents of the session have used, the ended ones too, by their journals. Nothing where no budget is set.

    Raises `StoreDamaged`.
    """
    if not await _matter(budgets, store, session, rows):
        return
    above = {row.name: row.parent for row in rows}
    states = [
        replace(await recall(store, session, row.name, life), conversation=Conversation())
        for row in rows
        for life in range(1, row.incarnation + 1)
    ]
    begun = [state for state in states if state.spec is not None]
    for state in sorted(begun, key=lambda state: (state.began_at, _depth(state.me.name, above))):
        budgets.join(state)
    living = {(row.name, row.incarnation) for row in rows if row.life not in ("stopped", "crashed")}
    for state in begun:
        if (state.me.name, state.incarnation) not in living:
            budgets.leave(state.me.name, state.incarnation)


async def _matter(budgets: Budgets, store: Store, session: str, rows: Sequence[AgentRow]) -> bool:
    """Whether anything limits what this session's agents may still use."""
    if budgets.session != Budget():
        return True
    if any(one.budget != Budget() or one.fire_budget != Budget() for one in budgets.board.schedules()):
        return True
    specs = {row.spec for row in rows if row.life != "stopped" and row.spec}
    return any([(await load_spec(store, session, one)).budget != Budget() for one in sorted(specs)])


def _depth(name: str, above: Mapping[str, str | None]) -> int:
    """How many agents stand above one."""
    hops, parent = 0, above.get(name)
    while parent is not None and hops < len(above):
        hops, parent = hops + 1, above.get(parent)
    return hops


def _node(name: str, incarnation: int) -> str:
    """A new life of a teammate's name is another agent, with a budget of its own."""
    return name if incarnation == 1 else f"{name}.{incarnation}"
