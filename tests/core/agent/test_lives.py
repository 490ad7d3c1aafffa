"""The states of a life: every change in the table happens, no other does, and each has the events that it names."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as hy
from tests.core.agent.agent_states import Life, done, finished, judged, settled, started
from tests.core.agent.lives_told import Change, changes, from_seed, lived

from callboard.core.agent.state import without_history
from callboard.core.team import lifecycle as lives
from callboard.core.team.lifecycle import life, waiting_for
from callboard.types import events as ev
from callboard.types.agent_spec import ModelLimits
from callboard.types.messages import SummaryWanted
from callboard.types.records import Fault

SOAK = int(os.environ.get("SOAK", "1"))


def rows() -> Iterator[Change]:
    """The second table of the module's docstring: from, to, and each event that makes the change."""
    lines = [line.strip() for line in (lives.__doc__ or "").splitlines()]
    first = next(place for place, line in enumerate(lines) if line.startswith("from ")) + 2
    old, new = "", ""
    for line in lines[first : lines.index("", first)]:
        words = line.replace(",", "").split()
        if words[0].islower():
            old, new, *words = words
        for event in words:
            yield old, new, event


TABLE = frozenset(rows())
SAMPLE = 80


def prompted() -> Life:
    return Life.begun().prompted("go")


def crashed(told: Life, *, parked: bool = False) -> Life:
    return told.on(ev.AgentCrashed, why="ValueError: x", count=1, again_at=None if parked else 100.5)


def asking() -> Life:
    return prompted().called("bash").on(ev.ApprovalNeeded, call="c1", request_id="req_1")


def pending() -> Life:
    """It has submitted a plan, and its results are merged."""
    told = started(judged(prompted().called("submit_plan"), "c1"), "c1", effect="store")
    told = told.on(ev.ToolFinished, call="c1", content=()).on(ev.GateSet, gate="pending", request_id="req_2")
    return settled(told, "c1").on(ev.ResultsMerged)


def asked(at_rest: bool = True) -> Life:
    """It has put a question to the person, and has ended its turn."""
    told = started(judged(prompted().called("ask_person"), "c1"), "c1", effect="store")
    told = settled(told.on(ev.ToolFinished, call="c1", content=(), data={"request_id": "req_q"}), "c1")
    told = told.on(ev.ResultsMerged).said("I wait")
    return told.on(ev.TurnEnded, turn="turn_0", reason="end") if at_rest else told


def held(what: str) -> Life:
    return prompted().on(ev.WaitBegan, what=what, until=200.0)


def parked() -> Life:
    fault = Fault(kind="rate_limited", retry_after=600.0)
    told = prompted().asked().on(ev.CallFailed, ordinal=1, attempt=1, model="one", fault=fault)
    return told.on(ev.RetryPlanned, until=700.0, attempt=1, parked=True, why="rate")


def fanned() -> Life:
    """Two subagents are at work for it."""
    return started(judged(prompted().called("task", "task"), "c1", "c2"), "c1", "c2", effect="attach")


def summarising() -> Life:
    """The key is parked; the window is full, and a summary is made of it beforehand."""
    wanted = SummaryWanted(stage="summarize_all", trigger="auto", message=1, last=1)
    return held("rate").on(ev.SummaryBegan, wanted=wanted, revision=1, transcript="/t/1.jsonl")


def resting() -> Life:
    return prompted().said("done").on(ev.TurnEnded, turn="turn_0", reason="end")


def leaving() -> Life:
    """It has read that it is asked to stop."""
    return Life.begun().mailed("stop", type="shutdown_request", request_id="req_s").turned("env_1").delivered()


def stopping() -> Life:
    return prompted().on(ev.StopAsked, by="person")


RESUMED, STOP = {"pid": 2}, {"type": "command", "metadata": {"action": "stop"}}

TOLD = (
    resting().mailed("", **STOP),
    resting().prompted("more").mailed("", type="shutdown_request"),
    leaving().said("bye").on(ev.TurnEnded, turn="turn_0", reason="end"),
    leaving().on(ev.WaitBegan, what="rate", until=200.0).on(ev.TurnEnded, turn="turn_0", reason="limit"),
    Life.begun().mailed("", **STOP),
    Life.begun().on(ev.StopAsked, by="person"),
    crashed(Life.begun(), parked=True).on(ev.AgentResumed, **RESUMED),
    crashed(crashed(stopping()), parked=True).on(ev.AgentResumed, **RESUMED).on(ev.AgentStopped, outcome="stopped"),
    crashed(stopping(), parked=True),
    crashed(resting()).on(ev.AgentResumed, **RESUMED),
    crashed(resting(), parked=True).on(ev.AgentResumed, **RESUMED),
    crashed(pending()).on(ev.AgentResumed, **RESUMED),
    crashed(pending(), parked=True).on(ev.AgentResumed, **RESUMED),
    crashed(resting(), parked=True).on(ev.StopAsked, by="person").on(ev.AgentResumed, **RESUMED),
    asked().mailed("blue", type="answer", request_id="req_q"),
    asked().mailed("").turned("env_2"),
    asked().mailed("", **STOP),
    asked().on(ev.StopAsked, by="person"),
    crashed(asked()),
    pending().on(ev.AnswerTaken, request_id="req_2", kind="plan", status="rejected"),
    pending().mailed("another one", type="plan_request"),
    pending().on(ev.TurnEnded, turn="turn_0", reason="limit"),
    # a plan whose answer comes when its turn has been interrupted
    pending()
    .on(ev.TurnEnded, turn="turn_0", reason="interrupted")
    .on(ev.AnswerTaken, request_id="req_2", kind="plan", status="rejected"),
    parked().asked(),
    held("budget").on(
        ev.BudgetReached, budget="session", kind="tokens", limit=1.0, spent=1.0, wanted=1.0, winds_down=False
    ),
    held("rate").on(ev.Interrupted),
    held("rate").on(ev.TurnEnded, turn="turn_0", reason="limit"),
    summarising().on(ev.SummaryFailed, why="server"),
    summarising().on(ev.ContextEdited, stage="summarize_all", trigger="auto", revision=1, edits=(), tokens_before=9),
    settled(fanned().on(ev.ToolFinished, call="c1", content=()), "c1"),
    started(
        judged(prompted().called("bash", "task").on(ev.ApprovalNeeded, call="c1", request_id="req_1"), "c2"), "c2"
    ).on(ev.AnswerTaken, request_id="req_1", kind="permission", status="rejected"),
    asking().on(ev.AnswerTaken, request_id="req_1", kind="permission", status="approved"),
    # the result of one call settles it, while another call waits for an answer
    finished(
        started(
            judged(prompted().called("bash", "read").on(ev.ApprovalNeeded, call="c1", request_id="req_1"), "c2"), "c2"
        ),
        "c2",
        settled=True,
    ),
    judged(
        prompted().called("bash", "bash").on(ev.ApprovalNeeded, call="c1", request_id="req_1"), "c2", verdict="deny"
    ),
)
"""Lives in which what seldom happens by chance happens."""


def seen() -> set[Change]:
    told = [*TOLD, *(from_seed(seed) for seed in range(SAMPLE))]
    return {change for one in told for change in changes(one)}


def test_the_table_names_events_and_states_that_there_are_and_each_change_once() -> None:
    listed = list(rows())
    assert len(listed) == len(set(listed)) > 40
    assert {event for _, _, event in listed} <= set(ev.__all__)
    words = {word for old, new, _ in listed for word in (old, new)}
    assert words == {"starting", "working", "waiting", "idle", "stopping", "stopped", "crashed"}
    assert not [new for old, new, _ in listed if old == "stopped"], "what is stopped never lives again"


def test_every_change_of_the_table_happens_and_no_other() -> None:
    happened = seen()
    assert happened - TABLE == set(), "these are in no row"
    assert TABLE - happened == set(), "these do not happen"


@given(hy.lists(hy.integers(0, 719), max_size=120))
@settings(max_examples=25, deadline=None)
def test_no_other_change_is_possible_whatever_happens(draws: list[int]) -> None:
    left = iter(draws)
    told = lived(lambda n: next(left, 0) % n, len(draws) // 4)
    assert set(changes(told)) <= TABLE


@pytest.mark.soak
@pytest.mark.parametrize("block", range(10))
def test_no_other_change_is_possible_in_very_many_lives(block: int) -> None:
    for seed in range(block * 200 * SOAK, (block + 1) * 200 * SOAK):
        assert set(changes(from_seed(10_000 + seed))) <= TABLE, f"seed {10_000 + seed}"


@pytest.mark.parametrize(
    ("told", "word", "what"),
    [
        (Life.begun(), "starting", ""),
        (crashed(prompted()), "starting", "restart"),
        (prompted(), "working", ""),
        (prompted().said("done").on(ev.TurnEnded, turn="t", reason="end"), "idle", ""),
        (asking(), "waiting", "permission req_1"),
        (pending(), "waiting", "plan req_2"),
        (asked(), "waiting", "question req_q"),
        (asked(at_rest=False), "working", ""),
        (held("rate"), "waiting", "rate"),
        (held("budget"), "waiting", "budget"),
        (held("rate").asked(), "working", ""),
        (parked(), "waiting", "rate"),
        (fanned(), "waiting", "subagents"),
        (settled(fanned().on(ev.ToolFinished, call="c1", content=()), "c1"), "waiting", "subagents"),
        (asking().on(ev.StopAsked, by="lead"), "stopping", ""),
        (crashed(asking(), parked=True), "crashed", ""),
        (crashed(asked(), parked=True).on(ev.AgentResumed, pid=2), "idle", ""),
        (crashed(prompted()).on(ev.AgentStopped, outcome="failed"), "stopped", ""),
    ],
)
def test_the_word_for_a_row_and_what_everything_waits_for(told: Life, word: str, what: str) -> None:
    assert (life(told.state), waiting_for(told.state)) == (word, what)


def test_who_has_something_under_way_beside_what_waits_is_at_work() -> None:
    two = prompted().called("bash", "bash").on(ev.ApprovalNeeded, call="c1", request_id="req_1")
    assert waiting_for(judged(two, "c2", verdict="deny").state) == "permission req_1"
    assert waiting_for(started(judged(two, "c2"), "c2").state) == ""
    mixed = prompted().called("task", "read_file")
    assert waiting_for(started(judged(mixed, "c1", "c2"), "c1", "c2").state) == ""
    assert waiting_for(done(started(judged(mixed, "c1"), "c1"), "c2").state) == "subagents"


def test_an_answer_to_another_question_ends_no_wait() -> None:
    assert life(asked().mailed("?", type="answer", request_id="req_other").state) == "waiting"
    refused = started(judged(prompted().called("ask_person"), "c1"), "c1", effect="store")
    refused = refused.on(ev.ToolFinished, call="c1", content=(), is_error=True, data={"request_id": "req_q"})
    assert refused.state.waits.questions == ()


def test_what_was_told_as_stalled_is_told_anew_after_its_turn_and_after_a_restart() -> None:
    told = started(judged(prompted().called("bash"), "c1"), "c1", effect="unknown")
    told = told.on(ev.StallNoticed, operation="tool:c1", what="bash", since=100.0, limit=120.0)
    assert told.state.waits.stalled == ("tool:c1",)
    assert told.on(ev.AgentResumed, pid=2).state.waits.stalled == ()
    ended = settled(told.on(ev.ToolFinished, call="c1", content=()), "c1").on(ev.ResultsMerged)
    assert ended.on(ev.TurnEnded, turn="turn_0", reason="end").state.waits.stalled == ()


def test_an_ended_life_keeps_the_limits_of_its_own_models_only() -> None:
    """Thousands of agents may end in one process, and each knows every model of the workspace."""
    limits = ModelLimits()
    models = dict.fromkeys(("one", "small", "next", "plan", "other"), limits)
    life = Life.begun(small_model="small", fallback_models=("next",), plan_model="plan", models=models).prompted("go")
    kept = without_history(life.state)
    assert set(kept.me.models) == {"one", "small", "next", "plan"}
    assert not kept.context.conversation.messages
