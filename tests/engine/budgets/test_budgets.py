"""Budgets refuse the next call: the last words, what a child draws on, spawning, summaries, a crash in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.team.team_world import TeamWorld, spawn, team_world

from callboard.core.budgets.tree import NOTHING
from callboard.engine.recall import events_of
from callboard.ports.model import ModelRequest, Reply
from callboard.testing import HostedSession, ScriptedModel, fault, say, use
from callboard.types import events as ev
from callboard.types.records import Budget, Json, Usage

pytestmark = pytest.mark.anyio

LOOK = "list_tasks"
LONG = "go on " * 5_000
"""A prompt that makes each call of the lead dear."""


def task(prompt: str = "find it", **more: object) -> tuple[str, Json]:
    return "task", {"description": "find", "prompt": prompt, "agent_type": "explore", **more}


def using(tokens: int, reply: Reply | None = None) -> Reply:
    """A reply that used so many tokens, output most of it."""
    given = reply or say("done")
    return Reply(given.blocks, given.stop_reason, Usage(output_tokens=tokens), given.model)


def all_of_it(reply: Reply | None = None) -> Callable[[ModelRequest], Reply]:
    """A reply that uses all the output that was asked for."""
    return lambda request: using(request.max_tokens, reply)


def of(model: ScriptedModel, name: str) -> list[ModelRequest]:
    return [request for request in model.requests if request.agent == name]


async def events(team: HostedSession, name: str = "lead") -> Sequence[ev.Event]:
    return await events_of(team.world.store, f"j/{team.id}/{name}.1")


async def reached(team: HostedSession, name: str = "lead") -> list[ev.BudgetReached]:
    return [one for one in await events(team, name) if isinstance(one, ev.BudgetReached)]


def nothing_is_held(team: HostedSession) -> None:
    for node in team.team.runtime.budgets.tree.values():
        assert (node.reserved, node.in_flight) == (NOTHING, 0), node


async def test_a_used_up_budget_leaves_one_call_to_say_what_is_done_in_which_no_tool_runs() -> None:
    model = ScriptedModel({"lead": [use(LOOK), use(LOOK), use(LOOK, text="Two looked at, one is left."), say("never")]})
    world = team_world(model, budget=Budget(steps=3))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        state = team.state("lead")
        assert len(model.requests) == 3
        last = model.requests[-1]
        assert last.max_tokens == 1_000
        assert (
            b"This is your last reply: the budget of model calls of the session is used up: 2 of 3" in last.messages[-1]
        )
        assert (state.turns.last_reason, state.turns.last_text) == ("limit", "Two looked at, one is left.")
        assert "model calls of the session is used up" in state.turns.last_why
        assert (await team.journal("lead")).count("tool_started") == 2, "the call of the last reply did not run"
        newest = state.context.conversation.messages[-1]
        assert newest.role == "user"
        assert "Not run: the budget of model calls" in str(newest)
        assert [(one.kind, one.winds_down) for one in await reached(team)] == [("steps", True)]
        nothing_is_held(team)


@pytest.mark.parametrize(("stop_reason", "is_cut"), [("max_tokens", True), ("end_turn", False)])
async def test_a_last_reply_that_is_cut_is_named_in_the_reason(stop_reason: str, is_cut: bool) -> None:
    model = ScriptedModel({"lead": [use(LOOK), say("Half of it is done", stop_reason), say("never")]})
    async with team_world(model, budget=Budget(steps=2)).session() as team:
        await team.prompt("go")
        await team.quiet()
        turns = team.state("lead").turns
        assert (turns.last_reason, turns.last_text, len(model.requests)) == ("limit", "Half of it is done", 2)
        assert turns.last_why.endswith("; the last reply was cut off") == is_cut


async def test_the_last_reply_does_not_continue_a_cut_one_in_its_line() -> None:
    model = ScriptedModel({"lead": [all_of_it(say("A part", "max_tokens")), say("The last words."), say("never")]})
    async with team_world(model, budget=Budget(tokens=5_000)).session() as team:
        await team.prompt("go")
        await team.quiet()
        turns = team.state("lead").turns
        assert (turns.last_reason, turns.last_text) == ("limit", "A part\n\nThe last words.")


async def test_the_next_turn_of_who_has_used_up_a_budget_makes_no_call_and_says_so() -> None:
    """Though what was kept for the last call, and not used, would do for another one."""
    model = ScriptedModel({"lead": [all_of_it(use(LOOK)), say("that was all"), say("never")]})
    async with team_world(model, budget=Budget(cost_usd=0.05)).session() as team:
        for words in ("go", "and now?", "and now?"):
            await team.prompt(words)
            await team.quiet()
            assert team.state("lead").turns.last_reason == "limit"
            assert "the money budget of the session is used up" in team.state("lead").turns.last_why
        assert len(model.requests) == 2
        assert [one.winds_down for one in await reached(team)] == [True, False, False]
        assert team.team.runtime.budgets.tree["session"].spent.cost_usd < 0.05


async def test_a_budget_that_is_raised_at_a_resume_lets_it_go_on() -> None:
    model = ScriptedModel({"lead": [use(LOOK), say("cut short"), say("and now it is done")]})
    world = team_world(model, budget=Budget(steps=2))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        await team.prompt("more")
        await team.quiet()
        assert len(model.requests) == 2
        assert team.state("lead").turns.last_reason == "limit"
        assert [one.winds_down for one in await reached(team)] == [True, False], "one last call, not one a turn"
    world.budget = Budget(steps=4)
    async with world.session(resume=True) as team:
        await team.prompt("go on", to="lead")
        await team.prompt("go on, I said", to="lead")
        await team.prompt("go on, please", to="lead")
        await team.quiet()
        assert team.state("lead").turns.last_text == "and now it is done"
        assert team.team.runtime.budgets.tree["session"].spent.steps == 3


@pytest.mark.parametrize("budget", [Budget(tokens=0), Budget(cost_usd=0), Budget(steps=0), Budget(seconds=0)])
async def test_nought_means_none_the_first_call_is_refused(budget: Budget) -> None:
    model = ScriptedModel({"lead": [say("never")]})
    async with team_world(model, budget=budget).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert model.requests == []
        assert team.state("lead").turns.last_reason == "limit"
        assert "of the session is used up" in team.state("lead").turns.last_why
        assert len(await reached(team)) == 1


async def test_where_the_budget_does_not_allow_all_of_the_output_less_is_asked_for() -> None:
    model = ScriptedModel({"lead": [say("short")]})
    async with team_world(model, budget=Budget(tokens=5_000)).session() as team:
        await team.prompt("go")
        await team.quiet()
        (request,) = model.requests
        assert 1_000 < request.max_tokens < 4_000
        assert team.state("lead").turns.last_reason == "end"


async def test_a_reply_that_is_cut_because_of_a_budget_is_not_asked_for_again_with_more() -> None:
    model = ScriptedModel({"lead": [say("half of", stop_reason="max_tokens"), say("it")]})
    async with team_world(model, budget=Budget(tokens=9_000)).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert "reply_dropped" not in await team.journal("lead")
        assert len(model.requests) == 2, "it is asked to go on instead"


async def test_a_child_draws_on_its_parent_and_its_own_grant_ends_it_with_its_last_words() -> None:
    child = [use(LOOK), use(LOOK, text="I have looked once."), say("never")]
    model = ScriptedModel({"lead": [use(*task(budget={"steps": 2})), say("so be it")]})
    world = team_world(model, budget=Budget(tokens=1_000_000))
    model_script(model, child)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        tree = team.team.runtime.budgets.tree
        name = next(one for one in tree if one.startswith("explore-"))
        assert tree[name].budget == Budget(steps=2)
        assert (tree[name].spent.steps, tree["lead"].spent.steps, tree["session"].spent.steps) == (2, 4, 4)
        assert tree["session"].agents == 1
        answer = of(model, "lead")[-1].messages[-1]
        assert b"[status: limit]" in answer
        assert b"I have looked once." in answer
        nothing_is_held(team)


def model_script(model: ScriptedModel, child: Sequence[Reply | Callable[[ModelRequest], Reply]]) -> None:
    """Whoever is no lead plays this list."""
    whole = model.complete

    async def complete(request: ModelRequest, on_delta: Callable[..., None]) -> Reply:
        if request.agent != "lead" and child and request.agent not in model._script:
            model._script[request.agent] = list(child)
        return await whole(request, on_delta)

    model.complete = complete


async def test_two_children_at_once_cannot_both_take_the_last_money() -> None:
    """Each of them may use 8,000 tokens of output; there is room for one call at a time, and one of them in all."""
    both = use(*task("one"), task("two"))
    model = ScriptedModel({"lead": [both, say("so be it")]}, delay=0.01)
    model_script(model, [all_of_it(), say("never")])
    async with team_world(model, budget=Budget(tokens=12_500)).session() as team:
        await team.prompt("go")
        await team.quiet()
        spent = team.team.runtime.budgets.tree["session"].spent.tokens
        assert spent <= 12_500
        full = [request for request in model.requests if request.agent != "lead" and request.max_tokens == 8_000]
        assert len(full) <= 1, "the second waits for what the first one costs"
        assert team.state("lead").turns.last_reason in ("end", "limit")
        nothing_is_held(team)


async def test_who_does_not_fit_only_because_of_a_call_in_flight_waits_for_it() -> None:
    both = use(*task("one"), task("two"), task("three"))
    model = ScriptedModel({"lead": [both, say("three answers")]}, delay=0.01)
    model_script(model, [say("found")])
    async with team_world(model, budget=Budget(tokens=13_000)).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_text == "three answers"
        assert of(model, "lead")[-1].messages[-1].count(b"found") == 3
        nothing_is_held(team)


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (Budget(agents=1), b"the session may have 1 agents started in total, and has had 1"),
        (Budget(depth=0), b"agents may be 0 deep below the session"),
    ],
)
async def test_a_new_agent_that_no_budget_has_room_for_is_refused_by_the_budgets_name(
    budget: Budget, said: bytes
) -> None:
    model = ScriptedModel({"lead": [use(*spawn("alice"), task("find it")), say("then I do it myself"), say("fine")]})
    async with team_world(model, budget=budget).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert said in b"".join(of(model, "lead")[1].messages)
        assert {one.kind for one in await reached(team)} <= {"agents", "depth"}
        assert len(await reached(team)) >= 1
        assert team.state("lead").turns.last_reason == "end"


async def test_nobody_gives_more_than_they_have_left() -> None:
    model = ScriptedModel({"lead": [use(*spawn("alice", budget={"cost_usd": 5})), say("less, then")]})
    async with team_world(model, budget=Budget(cost_usd=1)).session() as team:
        await team.prompt("go")
        await team.quiet()
        told = model.requests[-1].messages[-1]
        assert b"budget: it is more than lead has left itself (cost_usd 0.99" in told
        assert team.team.runtime.rows.agent("alice") is None
        assert "alice" not in team.team.runtime.budgets.tree


async def test_what_is_in_flight_when_the_process_dies_counts_as_spent_and_survives_a_resume() -> None:
    never = anyio.Event()
    model = ScriptedModel({"lead": [use(*task()), say("done")]})
    model_script(model, [say("found")])
    whole = model.complete

    async def hang(request: ModelRequest, on_delta: Callable[..., None]) -> Reply:
        if len(of(model, "lead")) == 1 and request.agent == "lead":
            model.requests.append(request)
            await never.wait()
        return await whole(request, on_delta)

    model.complete = hang
    world = team_world(model, budget=Budget(tokens=100_000))
    async with world.session() as team:
        await team.prompt("go")
        while len(of(model, "lead")) < 2:
            await anyio.sleep(0.001)
        before = team.team.runtime.budgets.tree["session"]
        held = before.reserved
        assert held.tokens > 8_000
    model.complete = whole
    async with world.session(resume=True) as team:
        await team.quiet()
        after = team.team.runtime.budgets.tree["session"]
        assert team.state("lead").turns.last_text == "done"
        assert after.spent.tokens == before.spent.tokens + held.tokens + 15
        assert after.spent.steps == 4
        nothing_is_held(team)
    async with world.session(resume=True) as team:
        await team.team.quiet()
        again = team.team.runtime.budgets.tree
        assert again["session"].spent.tokens == after.spent.tokens, "of the ended subagent too"
        assert again["session"].agents == 1


async def test_a_call_that_the_service_refused_costs_a_step_and_nothing_else() -> None:
    refused = fault("rate_limited", status=429, retry_after=0.01)
    model = ScriptedModel({"lead": [refused, say("done")]})
    async with team_world(model, budget=Budget(tokens=50_000)).session() as team:
        await team.prompt("go")
        await team.quiet()
        spent = team.team.runtime.budgets.tree["session"].spent
        assert (spent.tokens, spent.steps) == (15, 2)


async def test_a_time_budget_ends_what_is_under_way_and_the_next_turn_makes_no_call() -> None:
    model = ScriptedModel({"lead": [say("too late"), say("never")]}, delay=0.3)
    async with team_world(model, budget=Budget(seconds=0.1)).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_reason == "limit"
        assert "the time budget of the session is used up" in team.state("lead").turns.last_why
        await team.prompt("again")
        await team.quiet()
        assert len(model.requests) == 1
        nothing_is_held(team)


async def test_a_teammate_without_money_takes_no_task_and_the_run_ends() -> None:
    model = ScriptedModel(
        {
            "lead": [
                use("create_task", {"subject": "one"}, spawn("alice", budget={"steps": 1})),
                say("waiting"),
                say("I see"),
                say("I see"),
            ],
            "alice": [say("I had one call.")],
        }
    )
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert len(of(model, "alice")) == 1
        assert team.state("alice").turns.last_reason == "limit"
        assert len([one for one in await events(team, "alice") if isinstance(one, ev.TurnBegan)]) <= 2


def small(model: ScriptedModel, budget: Budget) -> TeamWorld:
    """A world in which the conversation is summarised soon."""
    spec: Json = {"pipeline": ({"stage": "summarize_all", "params": {}},), "context_limit": 1_500}
    return team_world(model, Echo(), spec=spec, budget=budget)


async def test_a_summary_is_held_back_and_counted_like_any_call() -> None:
    model = ScriptedModel({"lead": [use("echo", {"text": "word " * 600}) for _ in range(6)]})
    async with small(model, Budget(tokens=1_000_000)).session() as team:
        await team.prompt("go")
        await team.quiet()
        state = team.state("lead")
        assert state.compaction.count >= 1
        called = [one for one in await events(team) if isinstance(one, ev.ModelCalled) and one.purpose == "summary"]
        assert called
        assert all(one.reserved_tokens > 0 for one in called)
        used = state.budget.usage.prompt_tokens + state.budget.usage.output_tokens
        assert team.team.runtime.budgets.tree["session"].spent.tokens == state.budget.account.spent.tokens == used
        nothing_is_held(team)


async def test_a_summary_that_does_not_fit_fails_and_does_not_come_again_and_again() -> None:
    model = ScriptedModel({"lead": [use("echo", {"text": "word " * 600}) for _ in range(6)]})
    async with small(model, Budget(tokens=7_000)).session() as team:
        await team.prompt("go")
        await team.quiet()
        failed = [one for one in await events(team) if isinstance(one, ev.SummaryFailed)]
        assert len(failed) <= 4
        assert all("the token budget of the session is used up" in one.why for one in failed)
        assert team.team.runtime.budgets.tree["session"].spent.tokens <= 7_000
        assert team.state("lead").turns.last_reason in ("limit", "end")
        nothing_is_held(team)


@pytest.mark.parametrize("budget", [Budget(steps=6), Budget(tokens=60_000)])
async def test_a_subagent_leaves_room_for_the_last_call_of_its_caller(budget: Budget) -> None:
    model = ScriptedModel({"lead": [use(*task()), say("the lead's last words")]})
    model_script(model, [all_of_it(use(LOOK, {"n": turn})) for turn in range(20)])
    async with team_world(model, budget=budget).session() as team:
        await team.prompt(LONG)
        await team.quiet()
        turns = team.state("lead").turns
        assert (turns.last_reason, turns.last_text) == ("limit", "the lead's last words")
        assert [one.winds_down for one in await reached(team)] == [True]
        assert len(model.requests) >= 5, "the subagent worked, and had a last call"
        nothing_is_held(team)


async def test_a_teammate_leaves_room_for_the_last_call_of_an_idle_lead() -> None:
    bob = [all_of_it(use(LOOK, {"n": turn})) for turn in range(20)]
    script = {"lead": [use(*spawn("bob")), say("Bob is at work."), say("the lead's last words")], "bob": bob}
    async with team_world(ScriptedModel(script), budget=Budget(tokens=60_000)).session() as team:
        await team.prompt(LONG)
        await team.quiet()
        assert team.state("lead").turns.last_text == "the lead's last words"
