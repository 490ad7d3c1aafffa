"""Budgets as a tree: what may be used by a session, by each agent with all that it starts, by schedules. Pure.

    session
    ├── lead                        whoever has no parent
    │   ├── alice                   draws on lead, and on the session
    │   │   └── explore-x7          draws on alice, lead and the session
    │   └── bob
    └── schedule:<id>               all fires of a schedule
        └── fire:schedule:<id>:<slot>   one fire: the lead's turn that it began, and the agents that this turn started

A call is charged to its agent and to every node above it, each node once. So the path of a call is all that a decision
looks at: what it costs grows with the depth of the tree, not with the number of agents or of calls.

    fits(path, wanted) ── no ──> Refusal: the nearest node that has no room, and which of its limits
          │ yes
    reserve(path, wanted)      the worst that the call may cost is held back, here and above
          │
    settle(path, wanted, used) what it did cost takes the place of what was held; `release` when it cost nothing

Nothing is held of a node with no call in flight (`reserved` is exactly zero there, whatever the sums of floats say).
Tokens count all input, cached or not, and output; money is US dollars; times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from callboard.core.frozen import replace
from callboard.words.values import Budget, Usage

Kind = Literal["tokens", "cost_usd", "steps", "seconds", "agents", "depth"]

_Number = TypeVar("_Number", int, float)

SESSION = "session"
DUST = 1e-9
"""US dollars by which sums of floats may differ from what they stand for."""


@dataclass(frozen=True)
class Amount:
    """What calls use, or may use. `steps`: model calls, tries again included."""

    tokens: int = 0
    cost_usd: float = 0.0
    steps: int = 0

    def plus(self, other: Amount) -> Amount:
        """The sum of both."""
        return Amount(self.tokens + other.tokens, self.cost_usd + other.cost_usd, self.steps + other.steps)

    def minus(self, other: Amount) -> Amount:
        """The rest, never below nothing."""
        return Amount(
            max(0, self.tokens - other.tokens),
            max(0.0, self.cost_usd - other.cost_usd),
            max(0, self.steps - other.steps),
        )


NOTHING = Amount()


def amount_of(usage: Usage, steps: int = 1) -> Amount:
    """What calls of that usage are charged as."""
    return Amount(usage.prompt_tokens + usage.output_tokens, usage.cost_usd, steps)


@dataclass(frozen=True)
class Node:
    """One budget with what is charged to it. Its own limits may all be None: those above it hold all the same."""

    name: str
    """`session`, an agent's name, `schedule:<id>` or `fire:<envelope id>`."""
    above: tuple[str, ...] = ()
    """The nodes that it draws on."""
    budget: Budget = Budget()
    began_at: float = 0.0
    agent: bool = False
    """It is an agent's: one step of depth."""
    spent: Amount = NOTHING
    reserved: Amount = NOTHING
    in_flight: int = 0
    """Calls that hold a part of `reserved`."""
    agents: int = 0
    """Agents that were started below it."""


Tree = Mapping[str, Node]
Path = Sequence[Node]
"""The nodes that something is charged to, the nearest first."""


@dataclass(frozen=True)
class Refusal:
    """What does not fit where: the fields of `BudgetReached`."""

    budget: str
    kind: Kind
    limit: float
    spent: float
    """Used by now, and held back for calls in flight."""
    wanted: float
    waits: bool = False
    """It would fit if the calls in flight came to nothing: not refused for good, what they cost is known soon."""


def path(tree: Tree, *names: str) -> tuple[Node, ...]:
    """The named nodes and all above them, nearest first, each once. Names that are no node are passed over."""
    return tuple(node for node, _ in _line(tree, names))


def limited(nodes: Path) -> bool:
    """Whether any of them limits calls at all."""
    return any(limit is not None for node in nodes for limit in _call_limits(node.budget))


def fits(nodes: Path, wanted: Amount, now: float) -> Refusal | None:
    """None when a call of that worst case fits everywhere; else the nearest node and its first limit that it breaks.

    A limit that is broken for good is named before one that only calls in flight stand in the way of. 0 fits nothing,
    not even a call that costs nothing.
    """
    found = [refusal for node in nodes for refusal in _refusals(node, wanted, now)]
    return next((one for one in found if not one.waits), found[0] if found else None)


def left(nodes: Path, now: float, *, in_flight: bool = True) -> Budget:
    """What may still be used on this path; None where nothing limits. `in_flight`: what is held back is not left.

    `depth` is no amount, and stays None.
    """
    used = [(n, n.spent.plus(n.reserved) if in_flight else n.spent) for n in nodes]
    return Budget(
        tokens=_least(max(0, n.budget.tokens - u.tokens) for n, u in used if n.budget.tokens is not None),
        cost_usd=_least(max(0.0, n.budget.cost_usd - u.cost_usd) for n, u in used if n.budget.cost_usd is not None),
        steps=_least(max(0, n.budget.steps - u.steps) for n, u in used if n.budget.steps is not None),
        seconds=_least(max(0.0, n.budget.seconds - now + n.began_at) for n in nodes if n.budget.seconds is not None),
        agents=_least(max(0, n.budget.agents - n.agents) for n in nodes if n.budget.agents is not None),
    )


def deadline(nodes: Path) -> float | None:
    """When (Unix seconds) the first of them runs out of time; None: never."""
    ends = [node.began_at + node.budget.seconds for node in nodes if node.budget.seconds is not None]
    return min(ends, default=None)


def reserve(nodes: Path, wanted: Amount) -> tuple[Node, ...]:
    """The nodes with one more call in flight. Whether it fits was asked before, with nothing in between."""
    return tuple(replace(n, reserved=n.reserved.plus(wanted), in_flight=n.in_flight + 1) for n in nodes)


def settle(nodes: Path, reserved: Amount, used: Amount) -> tuple[Node, ...]:
    """The nodes after a call in flight came to its end: what it used takes the place of what it held."""
    return tuple(_settled(node, reserved, used) for node in nodes)


def release(nodes: Path, reserved: Amount) -> tuple[Node, ...]:
    """The nodes after a call in flight came to nothing."""
    return settle(nodes, reserved, NOTHING)


def charge(nodes: Path, used: Amount) -> tuple[Node, ...]:
    """The nodes after something was used that nothing was held back for."""
    return tuple(replace(node, spent=node.spent.plus(used)) for node in nodes)


def enlist(tree: Tree, node: Node) -> tuple[Node, ...] | Refusal:
    """The nodes that change when an agent joins: itself, and all above it. Or the nearest that refuses it."""
    above = _line(tree, node.above)
    for one, hops in above:
        limits = (("agents", one.budget.agents, one.agents + 1), ("depth", one.budget.depth, hops))
        for kind, limit, wanted in limits:
            if limit is not None and wanted > limit:
                used = one.agents if kind == "agents" else hops - 1
                return Refusal(one.name, "agents" if kind == "agents" else "depth", limit, used, 1)
    return (node, *(replace(one, agents=one.agents + 1) for one, _ in above))


def narrower(one: Budget, other: Budget) -> Budget:
    """The smaller of each limit."""
    pairs = {name: (getattr(one, name), getattr(other, name)) for name in Budget.model_fields}
    known = {name: [limit for limit in pair if limit is not None] for name, pair in pairs.items()}
    return Budget.model_validate({name: min(limits, default=None) for name, limits in known.items()})


def raised(budget: Budget, more: Budget) -> Budget:
    """The larger of each limit. What is not limited stays so, and nothing is lowered."""
    pairs = {name: (getattr(budget, name), getattr(more, name)) for name in Budget.model_fields}
    larger = {name: max(old, new) for name, (old, new) in pairs.items() if old is not None and new is not None}
    return budget.model_copy(update=larger)


def beyond(asked: Budget, rest: Budget) -> tuple[Kind, ...]:
    """The limits of a grant that are more than what is left above it."""
    kinds: tuple[Kind, ...] = ("cost_usd", "tokens", "steps", "seconds", "agents", "depth")
    return tuple(kind for kind in kinds if _more(getattr(asked, kind), getattr(rest, kind)))


def schedule_of(cause: str) -> str:
    """`schedule:<id>` of the envelope that began a turn, as `core.schedule.Slot` names it; empty for any other."""
    kind, _, rest = cause.partition(":")
    return f"schedule:{rest.partition(':')[0]}" if kind == "schedule" and rest else ""


def fire_of(cause: str) -> str:
    """`fire:<envelope id>` of the envelope that began a turn; empty where that is no schedule's."""
    return f"fire:{cause}" if schedule_of(cause) else ""


def used_up(budget: str, kind: Kind, limit: float, spent: float, wanted: float) -> str:
    """What a person, and the model, are told of a refusal."""
    if kind == "agents":
        return f"{_owner(budget)} may have {limit:,.0f} agents started in all, and has had {spent:,.0f}"
    if kind == "depth":
        return f"agents may stand {limit:,.0f} below {_owner(budget)}, and this one would stand {spent + wanted:,.0f}"
    if kind == "seconds":
        return f"the time budget of {_owner(budget)} is used up: {limit:,.0f} s since it began"
    if kind == "cost_usd":
        numbers = f"${spent:.4f} of ${limit:.4f} spent or reserved, and the next call may cost ${wanted:.4f}"
        return f"the money budget of {_owner(budget)} is used up: {numbers}"
    if kind == "tokens":
        numbers = f"{spent:,.0f} of {limit:,.0f} spent or reserved, and the next call may take {wanted:,.0f}"
        return f"the token budget of {_owner(budget)} is used up: {numbers}"
    return f"the budget of model calls of {_owner(budget)} is used up: {spent:,.0f} of {limit:,.0f} made"


def _more(wanted: float | None, most: float | None) -> bool:
    return wanted is not None and most is not None and wanted > most


def _owner(budget: str) -> str:
    kind, _, rest = budget.partition(":")
    if budget == SESSION:
        return "the session"
    return f"a fire of {rest.rpartition(':')[0]}" if kind == "fire" else budget.replace(":", " ", 1)


def _line(tree: Tree, names: Iterable[str]) -> list[tuple[Node, int]]:
    """Nodes upwards, each once and at its nearest, with how far below it an agent of these `names` would stand."""
    found: dict[str, tuple[Node, int]] = {}
    level = [(name, 1) for name in names]
    while level:
        above: list[tuple[str, int]] = []
        for name, hops in level:
            node = tree.get(name)
            if node is not None and name not in found:
                found[name] = (node, hops)
                above += [(one, hops + 1 if _is_agent(tree, one) else hops) for one in node.above]
        level = above
    return list(found.values())


def _is_agent(tree: Tree, name: str) -> bool:
    node = tree.get(name)
    return node is not None and node.agent


def _refusals(node: Node, wanted: Amount, now: float) -> Iterable[Refusal]:
    budget, spent, held = node.budget, node.spent, node.reserved
    if budget.seconds is not None and (budget.seconds <= 0 or now - node.began_at >= budget.seconds):
        yield Refusal(node.name, "seconds", budget.seconds, max(0.0, now - node.began_at), 0)
    kinds: tuple[tuple[Kind, float | None, tuple[float, float, float]], ...] = (
        ("cost_usd", budget.cost_usd, (spent.cost_usd, held.cost_usd, wanted.cost_usd - DUST)),
        ("tokens", budget.tokens, (spent.tokens, held.tokens, wanted.tokens)),
        ("steps", budget.steps, (spent.steps, held.steps, wanted.steps)),
    )
    for kind, limit, (used, reserved, more) in kinds:
        if limit is not None and (limit <= 0 or used + reserved + more > limit):
            yield Refusal(node.name, kind, limit, used + reserved, getattr(wanted, kind), 0 < limit >= used + more)


def _settled(node: Node, reserved: Amount, used: Amount) -> Node:
    in_flight = max(0, node.in_flight - 1)
    rest = node.reserved.minus(reserved) if in_flight else NOTHING
    return replace(node, spent=node.spent.plus(used), reserved=rest, in_flight=in_flight)


def _call_limits(budget: Budget) -> tuple[float | None, ...]:
    return budget.tokens, budget.cost_usd, budget.steps, budget.seconds


def _least(numbers: Iterable[_Number]) -> _Number | None:
    return min(numbers, default=None)
