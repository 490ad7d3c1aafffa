"""The tree of budgets: what fits where, what is held back and counted, and that a budget is not overspent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from callboard.core.budgets.tree import (
    NOTHING,
    SESSION,
    Amount,
    BudgetNode,
    BudgetRefusal,
    Kind,
    beyond,
    charge,
    deadline,
    enlist,
    fire_of,
    fits,
    limits_calls,
    narrower,
    path,
    release,
    remaining_budget,
    reserve,
    schedule_of,
    settle,
    used_up,
)
from callboard.types.records import Budget

SOAK = int(os.environ.get("SOAK", "1"))
CALL = Amount(100, 0.1, 1)
FIRE = "schedule:cron_1:2027-01-15T08:00:00Z"


def tree(**budgets: Budget) -> dict[str, BudgetNode]:
    """session <- lead <- alice <- sub, and a schedule with one fire."""
    nodes = [
        BudgetNode("session"),
        BudgetNode("lead", ("session",), agent=True),
        BudgetNode("alice", ("lead",), agent=True),
        BudgetNode("sub", ("alice",), agent=True),
        BudgetNode("schedule:cron_1", ("session",)),
        BudgetNode(f"fire:{FIRE}", ("schedule:cron_1",)),
    ]
    named = {"schedule": "schedule:cron_1", "fire": f"fire:{FIRE}"}
    given = {named.get(name, name): budget for name, budget in budgets.items()}
    return {n.name: BudgetNode(n.name, n.above, given.get(n.name, Budget()), agent=n.agent) for n in nodes}


def having(found: Mapping[str, BudgetNode], changed: Iterable[BudgetNode]) -> dict[str, BudgetNode]:
    return {**found, **{node.name: node for node in changed}}


def names(nodes: Iterable[BudgetNode]) -> list[str]:
    return [node.name for node in nodes]


def test_a_call_is_charged_to_its_agent_and_to_all_above_the_nearest_first() -> None:
    assert names(path(tree(), "sub")) == ["sub", "alice", "lead", "session"]
    assert names(path(tree(), "nobody")) == []


def test_in_a_turn_that_a_schedule_began_the_fire_and_the_schedule_are_charged_too_and_the_session_once() -> None:
    found = path(tree(), "lead", fire_of(FIRE))
    assert names(found) == ["lead", f"fire:{FIRE}", "session", "schedule:cron_1"]
    assert names(path(tree(), "lead", fire_of("prompt_1"))) == ["lead", "session"]
    assert (schedule_of(FIRE), fire_of(FIRE)) == ("schedule:cron_1", f"fire:{FIRE}")
    assert (schedule_of("schedule:"), schedule_of("prompt_1"), fire_of("")) == ("", "", "")


@pytest.mark.parametrize(
    ("budget", "wanted", "kind"),
    [
        (Budget(), CALL, None),
        (Budget(tokens=100), CALL, None),
        (Budget(tokens=99), CALL, "tokens"),
        (Budget(cost_usd=0.1), CALL, None),
        (Budget(cost_usd=0.0999), CALL, "cost_usd"),
        (Budget(steps=1), CALL, None),
        (Budget(steps=1), Amount(steps=2), "steps"),
        (Budget(seconds=11), CALL, None),
        (Budget(seconds=10), CALL, "seconds"),
        (Budget(tokens=0), NOTHING, "tokens"),
        (Budget(cost_usd=0), NOTHING, "cost_usd"),
        (Budget(steps=0), NOTHING, "steps"),
        (Budget(seconds=0), NOTHING, "seconds"),
        (Budget(agents=0, depth=0), CALL, None),
    ],
)
def test_what_fits_and_nought_means_none(budget: Budget, wanted: Amount, kind: str | None) -> None:
    refused = fits(path(tree(session=budget), "sub"), wanted, now=10.0)
    assert (refused.kind if refused else None) == kind
    if refused:
        assert (refused.budget, refused.waits) == ("session", False)


def test_the_nearest_budget_is_named() -> None:
    found = path(tree(session=Budget(tokens=1), alice=Budget(tokens=2)), "sub")
    assert fits(found, CALL, 0) == BudgetRefusal("alice", "tokens", 2, 0, 100)


def test_two_calls_at_once_cannot_both_take_the_last_money_and_the_second_waits_for_the_first() -> None:
    found = tree(session=Budget(cost_usd=0.15))
    found["bob"] = BudgetNode("bob", ("lead",), agent=True)
    found = having(found, reserve(path(found, "alice"), CALL))
    refused = fits(path(found, "bob"), CALL, 0)
    assert refused == BudgetRefusal("session", "cost_usd", 0.15, 0.1, 0.1, waits=True)
    spent = having(found, settle(path(found, "alice"), CALL, CALL))
    refused = fits(path(spent, "bob"), CALL, 0)
    assert refused is not None
    assert not refused.waits, "now it is spent for good"
    assert fits(path(having(found, release(path(found, "alice"), CALL)), "bob"), CALL, 0) is None


def test_what_is_broken_for_good_is_named_before_what_only_a_call_in_flight_stands_in_the_way_of() -> None:
    found = tree(alice=Budget(tokens=150), session=Budget(tokens=90))
    found = having(found, reserve(path(found, "alice"), CALL))
    refused = fits(path(found, "alice"), CALL, 0)
    assert refused is not None
    assert (refused.budget, refused.waits) == ("session", False)


def test_what_a_call_cost_takes_the_place_of_what_it_held_everywhere_above() -> None:
    found = tree()
    found = having(found, reserve(path(found, "sub"), CALL))
    assert {found[n].reserved for n in ("sub", "alice", "lead", "session")} == {CALL}
    used = Amount(40, 0.05, 1)
    found = having(found, settle(path(found, "sub"), CALL, used))
    assert {(found[n].spent, found[n].reserved) for n in ("sub", "alice", "lead", "session")} == {(used, NOTHING)}
    found = having(found, charge(path(found, "lead"), used))
    assert (found["lead"].spent, found["sub"].spent) == (used.plus(used), used)


def test_what_is_left_is_the_least_of_all_above() -> None:
    found = tree(session=Budget(tokens=1_000, cost_usd=1, agents=3), alice=Budget(tokens=300, seconds=60, steps=5))
    found = having(found, charge(path(found, "lead"), Amount(800, 0.25, 1)))
    found = having(found, reserve(path(found, "sub"), Amount(50, 0.25, 1)))
    nodes = path(found, "sub")
    assert remaining_budget(nodes, 10.0) == Budget(tokens=150, cost_usd=0.5, seconds=50, steps=4, agents=3)
    assert remaining_budget(nodes, 10.0, in_flight=False) == Budget(
        tokens=200, cost_usd=0.75, seconds=50, steps=5, agents=3
    )
    assert remaining_budget(path(tree(), "sub"), 0) == Budget()
    assert deadline(nodes) == 60.0
    assert deadline(path(tree(), "sub")) is None
    assert limits_calls(nodes)
    assert not limits_calls(path(tree(session=Budget(agents=1, depth=1)), "sub")), "of calls these say nothing"


@pytest.mark.parametrize(
    ("session", "lead", "refused"),
    [
        (Budget(), Budget(), None),
        (Budget(agents=3), Budget(), None),
        (Budget(agents=2), Budget(), ("session", "agents", 2)),
        (Budget(agents=0), Budget(), ("session", "agents", 0)),
        (Budget(depth=2), Budget(depth=2), None),
        (Budget(depth=1), Budget(), ("session", "depth", 1)),
        (Budget(depth=1), Budget(depth=1), ("lead", "depth", 1)),
        (Budget(depth=0), Budget(), ("session", "depth", 0)),
    ],
)
def test_a_new_agent_is_counted_by_all_above_and_stands_below_them(
    session: Budget, lead: Budget, refused: tuple[str, str, float] | None
) -> None:
    """The lead stands for its session: neither counts it, and what it starts is one below both."""
    found, told = {**tree(session=session, lead=lead)}, None
    del found["alice"], found["sub"]
    for name, parent in (("a1", "lead"), ("a2", "lead"), ("a11", "a1")):
        joined = enlist(found, BudgetNode(name, (parent,), agent=True))
        if isinstance(joined, BudgetRefusal):
            told = told or (joined.budget, joined.kind, joined.limit)
        else:
            found = having(found, joined)
    assert told == refused
    if told is None:
        assert [found[n].agents for n in ("a11", "a1", "lead", "session")] == [0, 1, 3, 3]


def test_of_two_budgets_the_smaller_of_each_limit_holds() -> None:
    one, other = Budget(tokens=5, cost_usd=2), Budget(tokens=7, steps=0)
    assert narrower(one, other) == narrower(other, one) == Budget(tokens=5, cost_usd=2, steps=0)
    assert narrower(Budget(), Budget()) == Budget()


def test_a_grant_beyond_what_is_left_is_told_by_its_limits() -> None:
    assert beyond(Budget(tokens=5, cost_usd=2, steps=1), Budget(tokens=4, cost_usd=2)) == ("tokens",)
    assert beyond(Budget(), Budget(tokens=0)) == ()


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (("session", "cost_usd", 5, 4.98, 0.3), "the money budget of the session is used up: $4.9800 of $5.0000"),
        (
            ("session", "cost_usd", 0.1, 0, 0.3),
            "the money budget of the session is too small for the next call: $0.0000",
        ),
        (("session", "tokens", 0, 0, 300), "the token budget of the session is used up: 0 of 0"),
        (("alice", "tokens", 5_000, 4_000, 2_000), "the token budget of alice is used up: 4,000 of 5,000"),
        (("schedule:cron_1", "steps", 3, 3, 1), "model calls of schedule cron_1 is used up: 3 of 3 made"),
        (("session", "steps", 3, 2, 2), "of the session is used up: 2 of 3 made, and the last one is for a report"),
        ((f"fire:{FIRE}", "seconds", 60, 61, 0), "the time budget of a fire of schedule:cron_1"),
        (("session", "agents", 3, 3, 1), "the session may have 3 agents started in total, and has had 3"),
        (("lead", "depth", 1, 1, 1), "agents may be 1 deep below lead, and this one would be 2"),
    ],
)
def test_a_refusal_names_budget_limit_and_what_is_spent(
    refusal: tuple[str, Kind, float, float, float], said: str
) -> None:
    budget, kind, limit, spent, needed = refusal
    assert said in used_up(budget, kind, limit=limit, spent=spent, needed=needed)


# Nobody overspends, whatever the tree and the order of events

LIMITS = st.none() | st.integers(0, 3_000)
BUDGETS = st.builds(
    Budget,
    tokens=LIMITS,
    cost_usd=LIMITS.map(lambda cents: cents and cents / 1_000),
    steps=st.none() | st.integers(0, 12),
)


class Spenders(RuleBasedStateMachine):
    """Agents that call, start others, are cut off and crash. Beside the tree stands a plain list of what was used."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: dict[str, BudgetNode] = {}
        self.flying: list[tuple[str, Amount]] = []
        self.used: list[tuple[str, Amount]] = []

    @initialize(session=BUDGETS, lead=BUDGETS)
    def begin(self, session: Budget, lead: Budget) -> None:
        self.tree = {
            SESSION: BudgetNode(SESSION, (), session),
            "lead": BudgetNode("lead", (SESSION,), lead, agent=True),
        }

    @rule(data=st.data(), budget=BUDGETS)
    def start_agent(self, data: st.DataObject, budget: Budget) -> None:
        joined = enlist(self.tree, BudgetNode(f"a{len(self.tree)}", (self._agent(data),), budget, agent=True))
        assert isinstance(joined, tuple)
        self.tree = having(self.tree, joined)

    @rule(data=st.data(), size=st.integers(1, 900))
    def call(self, data: st.DataObject, size: int) -> None:
        """Made only if it fits; its worst case is held back."""
        agent, wanted = self._agent(data), Amount(size, size / 1_000, 1)
        refused = fits(path(self.tree, agent), wanted, 0)
        assert (refused is None) == self._would_fit(agent, wanted)
        if refused is None:
            self.tree = having(self.tree, reserve(path(self.tree, agent), wanted))
            self.flying.append((agent, wanted))

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), part=st.integers(0, 100))
    def reply(self, data: st.DataObject, part: int) -> None:
        """It used some of what was held for it, or nothing."""
        agent, held = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        used = Amount(held.tokens * part // 100, held.cost_usd * part / 100, 1)
        self.tree = having(self.tree, settle(path(self.tree, agent), held, used))
        self.used.append((agent, used))

    @rule()
    def crash(self) -> None:
        """All is lost but the record: what was in flight counts as what was held, and the tree is made anew."""
        self.used += self.flying
        self.flying = []
        self.tree = {
            n.name: BudgetNode(n.name, n.above, n.budget, agent=n.agent, agents=n.agents) for n in self.tree.values()
        }
        for agent, used in self.used:
            self.tree = having(self.tree, charge(path(self.tree, agent), used))

    @invariant()
    def nobody_has_spent_more_than_the_budget(self) -> None:
        for node in self.tree.values():
            for kind in ("tokens", "cost_usd", "steps"):
                limit = getattr(node.budget, kind)
                both = getattr(node.spent, kind) + getattr(node.reserved, kind)
                assert limit is None or both <= limit + 1e-6

    @invariant()
    def every_node_holds_what_stands_in_the_list(self) -> None:
        for name, node in self.tree.items():
            used = [amount for agent, amount in self.used if self._below(agent, name)]
            flying = [amount for agent, amount in self.flying if self._below(agent, name)]
            assert (node.spent.tokens, node.spent.steps) == (sum(a.tokens for a in used), sum(a.steps for a in used))
            assert node.spent.cost_usd == pytest.approx(sum(a.cost_usd for a in used))
            assert node.reserved.tokens == sum(a.tokens for a in flying)
            assert node.in_flight == len(flying)
            assert flying or node.reserved == NOTHING, "nothing leaks, not even a rounding error"

    def _agent(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from([name for name in self.tree if name != SESSION]))

    def _below(self, agent: str, name: str) -> bool:
        return agent == name or any(self._below(above, name) for above in self.tree[agent].above)

    def _would_fit(self, agent: str, wanted: Amount) -> bool:
        """By the list alone."""
        for name, node in self.tree.items():
            if not self._below(agent, name):
                continue
            mine = [amount for who, amount in [*self.used, *self.flying] if self._below(who, name)]
            for kind in ("tokens", "cost_usd", "steps"):
                limit = getattr(node.budget, kind)
                total = sum(getattr(a, kind) for a in mine) + getattr(wanted, kind)
                if limit is not None and (limit == 0 or total > limit + 1e-9):
                    return False
        return True


class TestSpenders(Spenders.TestCase):
    settings = settings(max_examples=20, stateful_step_count=30, deadline=None)


@pytest.mark.soak
class TestManySpenders(Spenders.TestCase):
    settings = settings(max_examples=1_000 * SOAK, stateful_step_count=60, deadline=None)


@given(
    st.integers(1, 5_000),
    st.lists(st.tuples(st.integers(1, 900), st.integers(1, 300), st.integers(0, 200)), max_size=30),
)
@settings(max_examples=200, deadline=None)
def test_a_budget_is_exceeded_by_no_more_than_one_calls_output_reserve(
    limit: int, calls: list[tuple[int, int, int]]
) -> None:
    """Estimates of input err; here by up to what the call may put out, and always to the wrong side."""
    node, reserve_of_the_last = BudgetNode("lead", budget=Budget(tokens=limit)), 0
    for estimate, output, error in calls:
        wanted = Amount(estimate + output, 0, 1)
        if fits([node], wanted, 0) is None:
            (node,) = reserve([node], wanted)
            (node,) = settle([node], wanted, Amount(estimate + output + min(error, output), 0, 1))
            reserve_of_the_last = output
        assert node.spent.tokens <= limit + reserve_of_the_last
