"""Repetition in an agent's life: told once, then stopped; what counts as progress; the same after a resume."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as draw
from tests.core.agent.agent_states import Life, facts

from callboard.core.agent.apply import apply, fold
from callboard.core.agent.decide import decide
from callboard.core.agent.snapshot import dump, load
from callboard.core.agent.state import AgentState, ToolFacts
from callboard.core.agent.stuck_detector import Stuck
from callboard.types import events as ev
from callboard.types import steps as st
from callboard.types.messages import Placed
from callboard.types.operations import Operation
from callboard.types.records import Json, ToolCall

SOAK = int(os.environ.get("SOAK", "1"))
SAID = (Placed(data={"type": "text", "text": "words"}, source="reminder"),)


def merged(life: Life, text: str, result: str, *, waits: bool = False, error: bool = False) -> Life:
    """A reply with one call, and its result."""
    at = life.state.model.ordinal + 1
    call = ToolCall(id=f"c{at}", use_id=f"u{at}", name="bash", input={"command": text})
    block = {"type": "tool_use", "id": call.use_id, "name": "bash", "input": call.input}
    life = life.replied(block, stop="tool_use", calls=[call]).on(ev.CallJudged, call=call.id, verdict="allow")
    life = life.on(ev.ToolStarted, call=call.id, effect="read")
    life = life.on(ev.ToolFinished, call=call.id, content=({"type": "text", "text": result},), is_error=error)
    return life.on(ev.ToolSettled, call=call.id).on(ev.ResultsMerged, waits=waits)


def step(life: Life, **more: Any) -> st.Step:
    return decide(life.state, facts(**more))


def followed(life: Life) -> Life:
    """What the step says is noted."""
    found = step(life)
    assert isinstance(found, st.NoticeStuck)
    fields: Json = {"pattern": found.pattern, "count": found.count, "what": found.what, "action": found.action}
    return life.on(ev.StuckNoticed, **fields)


def test_it_is_told_once_with_what_it_repeats_and_then_stopped() -> None:
    life = Life.begun().prompted("go")
    for _ in range(2):
        life = merged(life, "pytest", "2 failed")
        assert isinstance(step(life), st.AskModel)
    life = followed(merged(life, "pytest", "2 failed"))
    assert isinstance(step(life), st.Inject)
    assert "pytest" in life.state.context.injections[-1].text
    life = life.on(ev.InjectionsDelivered, blocks=SAID)
    for _ in range(2):
        assert isinstance(step(life), st.AskModel)
        life = merged(life, "pytest", "2 failed")
    found = step(merged(life, "pytest", "2 failed"))
    assert found == st.NoticeStuck("repeat", 3, "bash pytest, with the same result", "stop")


def test_each_turn_has_its_own_nudge_and_mail_is_progress() -> None:
    life = Life.begun().prompted("go")
    for _ in range(3):
        life = merged(life, "ls", "a")
    mailed = life.mailed("hello", type="message").delivered("env_2")
    assert isinstance(step(mailed), st.AskModel)
    ended = followed(life).on(ev.InjectionsDelivered, blocks=SAID).on(ev.TurnEnded, turn="t", reason="end", text="")
    again = ended.prompted("again")
    for _ in range(3):
        again = merged(again, "ls", "a")
    found = step(again)
    assert isinstance(found, st.NoticeStuck)
    assert found.action == "nudge"


def changed(life: Life, n: int) -> Life:
    return life.on(ev.FileSeen, path="/a", digest=str(n), changed=True)


def held(life: Life, n: int) -> Life:
    return life.on(ev.TaskHeld, task=f"task_{n}")


def answered(life: Life, n: int) -> Life:
    return life.on(ev.AnswerTaken, request_id=f"req_{n}", kind="question", status="answered")


def refused(life: Life, n: int) -> Life:
    return life.on(ev.AnswerTaken, request_id=f"req_{n}", kind="permission", status="rejected")


def read(life: Life, n: int) -> Life:
    return life.on(ev.FileSeen, path="/a", digest=str(n))


@pytest.mark.parametrize(
    ("between", "progress"), [(changed, True), (held, True), (answered, True), (refused, False), (read, False)]
)
def test_what_counts_as_progress(between: Callable[[Life, int], Life], progress: bool) -> None:
    life = Life.begun().prompted("go")
    for n in range(3):
        life = merged(between(life, n), "ls", "a")
    assert isinstance(step(life), st.AskModel if progress else st.NoticeStuck)


def test_it_is_left_alone_where_it_is_switched_off_or_winds_down() -> None:
    off, last = Life.begun(stuck_after=0).prompted("go"), Life.begun().prompted("go")
    for _ in range(9):
        off = merged(off, "ls", "a")
    assert isinstance(step(off), st.AskModel)
    assert off.state.turn is not None
    assert off.state.turn.stuck == Stuck()
    for _ in range(3):
        last = merged(last, "ls", "a")
    reached: Json = {"budget": "session", "kind": "tokens", "limit": 1, "spent": 1, "wanted": 1, "winds_down": True}
    assert not isinstance(step(last.on(ev.BudgetReached, **reached)), st.NoticeStuck)


def test_a_turn_that_ends_by_itself_is_no_monologue() -> None:
    life = Life.begun().prompted("go")
    for _ in range(3):
        life = life.said("All is done.").on(ev.StopHookRan, go_on="")
    assert step(life) == st.EndTurn("end")
    for _ in range(3):
        life = life.said("All is done.").on(ev.StopHookRan, go_on="look again").on(ev.InjectionsDelivered, blocks=SAID)
    assert isinstance(step(life), st.NoticeStuck)


@pytest.mark.parametrize("others", [True, False])
@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("watches", [True, False])
def test_watching_is_waiting_only_while_something_is_under_way(others: bool, running: bool, watches: bool) -> None:
    life = Life.begun().prompted("go")
    if running:
        about: Json = {"id": "bg_1", "command": "make", "pid": 1, "started": 1.0, "output": "/o"}
        life = life.on(ev.BackgroundStarted, **about)
    at = life.state.model.ordinal + 1
    call = ToolCall(id="c1", use_id=f"u{at}", name="list_tasks", input={})
    life = life.replied({"type": "tool_use", "id": call.use_id, "name": "x", "input": {}}, calls=[call])
    life = life.on(ev.CallJudged, call="c1", verdict="deny").on(ev.ToolSettled, call="c1")
    tools = {"list_tasks": ToolFacts("look", watches=watches)}
    found = step(life, tools=tools, others_at_work=others, running=frozenset({Operation("bg", "bg_1")}))
    assert found == st.Merge(waits=watches and (others or running))


@settings(max_examples=60 * SOAK, deadline=None)
@given(draw.lists(draw.sampled_from(["a", "b", "mail", "say", "file", "wait", "err"]), max_size=24), draw.data())
def test_a_resume_at_any_point_gives_the_same(happenings: list[str], data: draw.DataObject) -> None:
    life = lived(happenings)
    cut = data.draw(draw.integers(0, len(life.events)))
    resumed = load(dump(fold(life.events[:cut])))
    assert resumed is not None
    for event in life.events[cut:]:
        resumed = apply(resumed, event)
    assert turn_of(resumed) == turn_of(life.state)
    assert decide(resumed, facts()) == decide(life.state, facts())


def turn_of(state: AgentState) -> Stuck:
    assert state.turn is not None
    return state.turn.stuck


def lived(happenings: Sequence[str]) -> Life:
    life = Life.begun().prompted("go")
    for n, what in enumerate(happenings):
        match what:
            case "mail":
                life = life.mailed("more", type="message").delivered()
            case "say":
                life = life.said("It is done.").on(ev.StopHookRan, go_on="no").on(ev.InjectionsDelivered, blocks=SAID)
            case "file":
                life = changed(life, n % 3)
            case "err":
                life = merged(life, str(n), f"no such file: /{n}", error=True)
            case _:
                life = merged(life, what, "result", waits=what == "wait")
        if isinstance(step(life), st.NoticeStuck):
            life = followed(life).on(ev.InjectionsDelivered, blocks=SAID)
    return life
