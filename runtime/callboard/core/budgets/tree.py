"""Budgets as a tree: limits on use by a session, by each agent with the agents that it starts, and by schedules. Pure.

    session
    ├── lead                        every agent without a parent
    │   ├── alice                   draws on lead, and on the session
    │   │   └── explore-x7          draws on alice, lead and the session
    │   └── bob
    └── schedule:<id>               all fires of a schedule
        └── fire:schedule:<id>:<slot>   one fire: the lead's turn that it began, and the agents that this turn started

A call is charged to its agent and to every node above it, each node once. A decision only examines the path of a call,
so its cost grows with the depth of the tree, not with the number of agents or calls.

    fits(path, wanted) ── no ──> Refusal: the nearest node without room, and the exceeded limit
          │ yes
    reserve(path, wanted)      reserve the highest possible cost of the call, in the node and above it
          │
    settle(path, wanted, used) replace the reservation with the real cost; `release` if the call cost nothing

A node without a call in flight has no reservation (`reserved` is exactly zero, despite rounding errors). Tokens count
all input, cached or not, and output; money is US dollars; times are Unix seconds, without time during which the machine
slept (`engine/awake_time.py`).

An account has the usage of one life of an agent as budgets count it, and its reservation for a call in flight. It is
folded from the agent's events, so that the tree can be rebuilt from the journals. Pure; `apply` updates it. It differs
from the bill (`BudgetUse.usage`) for a call that was cut off without a report of its usage: such a call counts at its
highest possible cost. A call is one step, and so is each retry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Literal, TypeVar

from callboard.core.frozen import replace
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Budget, TurnLimit, Usage

Kind = Literal["tokens", "cost_usd", "price", "steps", "seconds", "agents", "depth"]
"""Kinds of limits. `price`: a budget in dollars cannot allow a call whose price is unknown."""

BUDGET_LIMITS: Mapping[str, TurnLimit] = {
    "tokens": "budget_tokens",
    "cost_usd": "budget_cost",
    "price": "budget_cost",
    "steps": "budget_steps",
    "seconds": "budget_seconds",
}
"""Limit that ends the turn of an agent whose call does not fit a budget, by the kind of the refusal."""

_Number = TypeVar("_Number", int, float)

SESSION = "session"
_SCHEDULE = "schedule:"
DUST = 1e-9
"""Tolerance for sums of floats, in US dollars."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Amount that calls use or may use. `steps`: model calls, including retries."""

    tokens: int = 0
    cost_usd: float = 0.0
    steps: int = 0
    priced: bool = True
    """True if the dollars are known; those of a model without a price are not."""

    def plus(self, other: Amount) -> Amount:
        """Return the sum of both."""
        if self is NOTHING or other is NOTHING:
            return other if self is NOTHING else self
        return Amount(
            self.tokens + other.tokens,
            self.cost_usd + other.cost_usd,
            self.steps + other.steps,
            self.priced and other.priced,
        )

    def minus(self, other: Amount) -> Amount:
        """Return the difference, at least zero."""
        return Amount(
            max(0, self.tokens - other.tokens),
            max(0.0, self.cost_usd - other.cost_usd),
            max(0, self.steps - other.steps),
        )


NOTHING = Amount()


def amount_of(usage: Usage, steps: int = 1) -> Amount:
    """Return the amount to charge for this usage."""
    return Amount(usage.prompt_tokens + usage.output_tokens, usage.cost_usd, steps)


@dataclass(frozen=True)
class BudgetNode:
    """One budget with the amounts charged to it. Its own limits may all be None; those above it still apply."""

    name: str
    """`session`, an agent's name, `schedule:<id>` or `fire:<envelope id>`."""
    above: tuple[str, ...] = ()
    """Nodes above it, to which it is charged as well."""
    budget: Budget = Budget()
    began_at: float = 0.0
    agent: bool = False
    """True for an agent's node, which is one step of depth."""
    spent: Amount = NOTHING
    reserved: Amount = NOTHING
    in_flight: int = 0
    """Number of calls with a share of `reserved`."""
    agents: int = 0
    """Number of agents started below it."""
    last_call: Amount = NOTHING
    """Room that the agent's own last call needs, in this node and in those above it."""
    reports: Amount = NOTHING
    """Room in this node that the last calls of the agents above the caller need (`keep_last_calls`); set only on the
    caller's path."""


Tree = Mapping[str, BudgetNode]
Path = Sequence[BudgetNode]
"""Nodes that an amount is charged to, the nearest first."""


@dataclass(frozen=True)
class BudgetRefusal:
    """Amount that exceeds a budget, with that budget: the fields of `BudgetReached`."""

    budget: str
    kind: Kind
    limit: float
    spent: float
    """Amount used so far, including reservations of calls in flight."""
    wanted: float
    waits: bool = False
    """True if it would fit without the calls in flight: their cost will be known soon."""


def path(tree: Tree, *names: str) -> tuple[BudgetNode, ...]:
    """Return the named nodes and all above them, nearest first, each once. Unknown names are skipped."""
    return tuple(node for node, _ in _line(tree, names))


def keep_last_calls(nodes: Path) -> tuple[BudgetNode, ...]:
    """Return a caller's path with the room that the last calls of the agents above the caller need.

    Otherwise a subagent could use up the budget of the session, and the lead could not report what was done.
    """
    reports = NOTHING
    path_nodes: list[BudgetNode] = []
    for index, node in enumerate(nodes):
        reports = reports.plus(node.last_call) if index else reports
        path_nodes.append(node if reports is NOTHING else replace(node, reports=reports))
    return tuple(path_nodes)


def limits_calls(nodes: Path) -> bool:
    """Return True if any of the nodes limits calls."""
    return any(limit is not None for node in nodes for limit in _call_limits(node.budget))


def fits(nodes: Path, amount: Amount, now: float) -> BudgetRefusal | None:
    """Return None if a call of this highest cost fits everywhere, otherwise the refusal.

    The refusal names the nearest node and the first limit that the call exceeds. A limit that is exceeded permanently
    is named before a limit that only calls in flight exceed. A limit of 0 fits nothing, not even a call without cost.
    """
    refusals = [refusal for node in nodes for refusal in _refusals(node, amount, now)]
    return next((refusal for refusal in refusals if not refusal.waits), refusals[0] if refusals else None)


def remaining_budget(nodes: Path, now: float, *, in_flight: bool = True) -> Budget:
    """Return the rest of the budgets on this path; None for each unlimited amount.

    The room for the last calls of the agents above is not left. `in_flight`: also subtract the reservations of calls in
    flight. `depth` is not an amount and stays None.
    """
    used = [(n, n.spent.plus(n.reports).plus(n.reserved if in_flight else NOTHING)) for n in nodes]
    return Budget(
        tokens=_least(max(0, n.budget.tokens - u.tokens) for n, u in used if n.budget.tokens is not None),
        cost_usd=_least(max(0.0, n.budget.cost_usd - u.cost_usd) for n, u in used if n.budget.cost_usd is not None),
        steps=_least(max(0, n.budget.steps - u.steps) for n, u in used if n.budget.steps is not None),
        seconds=_least(max(0.0, n.budget.seconds - now + n.began_at) for n in nodes if n.budget.seconds is not None),
        agents=_least(max(0, n.budget.agents - n.agents) for n in nodes if n.budget.agents is not None),
    )


def deadline(nodes: Path) -> float | None:
    """Return the time at which the first of the nodes runs out of time, on the clock of `began_at`; None: never."""
    ends = [node.began_at + node.budget.seconds for node in nodes if node.budget.seconds is not None]
    return min(ends, default=None)


def reserve(nodes: Path, amount: Amount) -> tuple[BudgetNode, ...]:
    """Return the nodes with one more call in flight. The caller has just checked that it fits."""
    return tuple(replace(n, reserved=n.reserved.plus(amount), in_flight=n.in_flight + 1) for n in nodes)


def settle(nodes: Path, reserved: Amount, used: Amount) -> tuple[BudgetNode, ...]:
    """Return the nodes after the end of a call: its usage replaces its reservation."""
    return tuple(_settled(node, reserved, used) for node in nodes)


def release(nodes: Path, reserved: Amount) -> tuple[BudgetNode, ...]:
    """Return the nodes after a call that cost nothing."""
    return settle(nodes, reserved, NOTHING)


def charge(nodes: Path, used: Amount) -> tuple[BudgetNode, ...]:
    """Return the nodes with an additional amount that was not reserved."""
    return tuple(replace(node, spent=node.spent.plus(used)) for node in nodes)


def enlist(tree: Tree, node: BudgetNode) -> tuple[BudgetNode, ...] | BudgetRefusal:
    """Return the changed nodes when an agent joins: its own and all above it. Or return the nearest refusal."""
    above = _line(tree, node.above)
    for ancestor, hops in above:
        limits = (("agents", ancestor.budget.agents, ancestor.agents + 1), ("depth", ancestor.budget.depth, hops))
        for kind, limit, needed in limits:
            if limit is not None and needed > limit:
                used = ancestor.agents if kind == "agents" else hops - 1
                return BudgetRefusal(ancestor.name, "agents" if kind == "agents" else "depth", limit, used, 1)
    return (node, *(replace(ancestor, agents=ancestor.agents + 1) for ancestor, _ in above))


_NO_LIMITS = vars(Budget())


def has_limits(budget: Budget) -> bool:
    """Return True if the budget limits anything."""
    return vars(budget) != _NO_LIMITS


def narrower(first: Budget, other: Budget) -> Budget:
    """Return the smaller of each limit."""
    if not has_limits(first) or not has_limits(other):
        return first if has_limits(first) else other
    pairs = {name: (getattr(first, name), getattr(other, name)) for name in Budget.model_fields}
    limits_of_both = {name: [limit for limit in pair if limit is not None] for name, pair in pairs.items()}
    return Budget.model_validate({name: min(limits, default=None) for name, limits in limits_of_both.items()})


def raise_limits(budget: Budget, increase: Budget) -> Budget:
    """Return the larger of each limit. An unlimited amount stays unlimited, and nothing is lowered."""
    pairs = {name: (getattr(budget, name), getattr(increase, name)) for name in Budget.model_fields}
    larger = {name: max(old, new) for name, (old, new) in pairs.items() if old is not None and new is not None}
    return budget.model_copy(update=larger)


def beyond(grant: Budget, available: Budget) -> tuple[Kind, ...]:
    """Return the limits of a grant that exceed the rest of the budgets above it."""
    kinds: tuple[Kind, ...] = ("cost_usd", "tokens", "steps", "seconds", "agents", "depth")
    return tuple(kind for kind in kinds if _exceeds(getattr(grant, kind), getattr(available, kind)))


def schedule_of(cause: str) -> str:
    """Return `schedule:<id>` for the envelope that began a turn, as in `scheduling.due.Slot`; empty for any other."""
    if not cause.startswith(_SCHEDULE):
        return ""
    source = cause[len(_SCHEDULE) :]
    return f"{_SCHEDULE}{source.partition(':')[0]}" if source else ""


def fire_of(cause: str) -> str:
    """Return `fire:<envelope id>` for the envelope that began a turn; empty if it is not from a schedule."""
    return f"fire:{cause}" if cause.startswith(_SCHEDULE) and schedule_of(cause) else ""


def used_up(budget: str, kind: Kind, *, limit: float, spent: float, needed: float) -> str:
    """Return a description of the exceeded limit with its numbers, for the user and the model."""
    if kind == "agents":
        return f"{_owner(budget)} may have {limit:,.0f} agents started in total, and has had {spent:,.0f}"
    if kind == "depth":
        return f"agents may be {limit:,.0f} deep below {_owner(budget)}, and this one would be {spent + needed:,.0f}"
    if kind == "seconds":
        return f"{describe_exhausted(budget, kind, limit, spent)}: {limit:,.0f} s since it began"
    if kind == "cost_usd":
        numbers = f"${spent:.4f} of ${limit:.4f} spent or reserved, and the next call may cost ${needed:.4f}"
        return f"{describe_exhausted(budget, kind, limit, spent)}: {numbers}"
    if kind == "price":
        advice = (
            "state the model's price under `models` in settings.yaml, choose another model, or limit tokens instead"
        )
        return f"the money budget of {_owner(budget)} (${limit:.4f}) needs a model whose price is known: {advice}"
    if kind == "tokens":
        numbers = f"{spent:,.0f} of {limit:,.0f} spent or reserved, and the next call may take {needed:,.0f}"
        return f"{describe_exhausted(budget, kind, limit, spent)}: {numbers}"
    calls_left = limit - spent
    purpose = "one is for a report" if calls_left == 1 else "ones are for reports"
    report = f", and the last {purpose}" if 0 < calls_left <= needed else ""
    return f"{describe_exhausted(budget, kind, limit, spent)}: {spent:,.0f} of {limit:,.0f} made{report}"


_NAMES: Mapping[str, str] = {"seconds": "time budget", "cost_usd": "money budget", "tokens": "token budget"}


def describe_exhausted(budget: str, kind: Kind, limit: float, spent: float) -> str:
    """Return a description of the exhausted budget without its numbers."""
    owner = _owner(budget)
    if kind == "price":
        return f"the money budget of {owner} needs a model whose price is known"
    name = _NAMES.get(kind, "budget of model calls")
    if kind in ("cost_usd", "tokens") and limit and not spent:
        return f"the {name} of {owner} is too small for the next call"
    return f"the {name} of {owner} is used up"


def _exceeds(requested: float | None, most: float | None) -> bool:
    return requested is not None and most is not None and requested > most


def _owner(budget: str) -> str:
    kind, _, source = budget.partition(":")
    if budget == SESSION:
        return "the session"
    return f"a fire of {source.rpartition(':')[0]}" if kind == "fire" else budget.replace(":", " ", 1)


def _line(tree: Tree, names: Iterable[str]) -> list[tuple[BudgetNode, int]]:
    """Return the nodes upwards, each once at its nearest position.

    With each node: the depth of an agent of these `names` below it.
    """
    by_name: dict[str, tuple[BudgetNode, int]] = {}
    level = [(name, 1) for name in names]
    while level:
        above: list[tuple[str, int]] = []
        for name, hops in level:
            node = tree.get(name)
            if node is not None and name not in by_name:
                by_name[name] = (node, hops)
                above += [(parent, hops + 1 if _is_agent(tree, parent) else hops) for parent in node.above]
        level = above
    return list(by_name.values())


def _is_agent(tree: Tree, name: str) -> bool:
    node = tree.get(name)
    return node is not None and node.agent


def _refusals(node: BudgetNode, amount: Amount, now: float) -> Iterable[BudgetRefusal]:
    budget = node.budget
    spent = node.spent
    held = node.reserved
    reports = node.reports
    if budget.seconds is not None and (budget.seconds <= 0 or now - node.began_at >= budget.seconds):
        yield BudgetRefusal(node.name, "seconds", budget.seconds, max(0.0, now - node.began_at), 0)
    kinds: tuple[tuple[Kind, float | None, tuple[float, float, float]], ...] = (
        ("cost_usd", budget.cost_usd, (spent.cost_usd, held.cost_usd, amount.cost_usd + reports.cost_usd - DUST)),
        ("tokens", budget.tokens, (spent.tokens, held.tokens, amount.tokens + reports.tokens)),
        ("steps", budget.steps, (spent.steps, held.steps, amount.steps + reports.steps)),
    )
    if budget.cost_usd is not None and not amount.priced:
        yield BudgetRefusal(node.name, "price", budget.cost_usd, spent.cost_usd + held.cost_usd, 0)
    for kind, limit, (used, reserved, needed) in kinds:
        if limit is not None and (limit <= 0 or used + reserved + needed > limit):
            wanted = getattr(amount, kind) + getattr(reports, kind)
            yield BudgetRefusal(node.name, kind, limit, used + reserved, wanted, 0 < limit >= used + needed)


def _settled(node: BudgetNode, reserved: Amount, used: Amount) -> BudgetNode:
    in_flight = node.in_flight - 1 if node.in_flight else 0
    reserved_after = node.reserved.minus(reserved) if in_flight else NOTHING
    return replace(node, spent=node.spent.plus(used), reserved=reserved_after, in_flight=in_flight)


def _call_limits(budget: Budget) -> tuple[float | None, ...]:
    return budget.tokens, budget.cost_usd, budget.steps, budget.seconds


def _least(numbers: Iterable[_Number]) -> _Number | None:
    return min(numbers, default=None)


@dataclass(frozen=True)
class Account:
    """Account of one life. Readers add up the lives of one name."""

    spent: Amount = NOTHING
    held: Amount | None = None
    """Amount reserved for the call in flight, of which there is at most one; None if there is none."""
    summary: Amount = NOTHING
    """Usage of the current summary's calls, included in `spent`."""
    schedules: Mapping[str, Amount] = field(default_factory=dict[str, Amount])
    """`schedule:<id>` -> usage of turns that its fires began."""
    fire: Amount = NOTHING
    """Usage of the current turn, if a fire began it."""

    def with_usage(self, used: Amount, cause: str) -> Account:
        """Return the account after a call has ended. `cause`: that of the current turn, empty between turns."""
        schedule = schedule_of(cause)
        if not schedule:
            return replace(self, spent=self.spent.plus(used), held=None)
        schedules = {**self.schedules, schedule: self.schedules.get(schedule, NOTHING).plus(used)}
        return replace(self, spent=self.spent.plus(used), held=None, schedules=schedules, fire=self.fire.plus(used))
