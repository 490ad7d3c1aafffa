"""How long each operation may take before its agent counts as stalled, as the table of `core.team.waits` has it."""

from __future__ import annotations

import pytest
from tests.core.agent.agent_states import Life, judged, started, table

from callboard.core.team import waits
from callboard.core.team.waits import GRACE, USUAL, OperationLimits
from callboard.types import events as ev
from callboard.types.operations import Operation
from callboard.types.records import ToolCall

LONGEST = OperationLimits({"bash": 120.0, "read_file": 600.0, "task": None}.get, lambda: 65.0)


def running(name: str, **given: object) -> Life:
    call = ToolCall(id="c1", use_id="u1", name=name, input=given)
    block = {"type": "tool_use", "id": "u1", "name": name, "input": given}
    told = Life.begun(total=300.0).prompted("go").replied(block, stop="tool_use", calls=[call])
    return started(judged(told, "c1"), "c1", effect="unknown")


@pytest.mark.parametrize(
    ("told", "operation", "seconds"),
    [
        (running("bash"), Operation("model"), 300),
        (running("bash"), Operation("summary"), 300),
        (running("bash"), Operation("count"), 300),
        (running("bash"), Operation("tool", "c1"), 120),
        (running("bash", timeout_s=400), Operation("tool", "c1"), 400),
        (running("bash", timeout_s=True), Operation("tool", "c1"), 120),
        (running("read_file"), Operation("tool", "c1"), 600),
        (running("bash"), Operation("judge", "c1"), 65),
        (running("bash"), Operation("settle", "c1"), 65),
        (running("bash"), Operation("stop-hooks"), 65),
        (running("bash"), Operation("prompt-hooks"), 65),
        (running("bash"), Operation("reminders"), USUAL),
        (running("bash"), Operation("answer", "req_1"), USUAL),
    ],
)
def test_an_operation_may_take_its_time_out_and_a_moment_to_end(
    told: Life, operation: Operation, seconds: float
) -> None:
    assert waits.stall_limit(told.state, operation, LONGEST) == seconds + GRACE


@pytest.mark.parametrize("operation", [Operation("tool", "c1"), Operation("bg", "bg_1"), Operation("tool", "gone")])
def test_what_waits_for_others_may_take_for_ever(operation: Operation) -> None:
    assert waits.stall_limit(running("task").state, operation, LONGEST) is None


def test_the_table_names_every_kind_of_operation() -> None:
    assert len(table(waits.__doc__)) == 9


def test_each_call_of_the_model_is_told_of_by_itself() -> None:
    asked = Life.begun().prompted("go").asked()
    assert waits.stall_key(asked.state, Operation("model")) == "model:1.1"
    assert waits.stall_key(asked.state, Operation("tool", "c1")) == "tool:c1"
    assert waits.stall_key(asked.said("hm").state, Operation("model")) == "model"
    assert waits.stall_key(asked.state, Operation("summary")) == "summary:0"


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (Operation("model"), "the model's reply"),
        (Operation("summary"), "a summary of its conversation"),
        (Operation("tool", "c1"), "bash"),
        (Operation("tool", "gone"), "a tool"),
        (Operation("judge", "c1"), "the hooks before bash"),
        (Operation("settle", "c1"), "the hooks after bash"),
        (Operation("stop-hooks"), "hooks"),
        (Operation("reminders"), "reminders"),
    ],
)
def test_what_it_waits_for_is_said_in_words(operation: Operation, words: str) -> None:
    assert waits.operation_text(running("bash").state, operation) == words


def test_the_lead_is_told_what_it_can_do() -> None:
    mate = waits.stall_text("alice", "teammate", "bash", since=1_800_000_000.0, seconds=150)
    assert mate.startswith("alice is stalled: it waits for bash since 08:00:00 UTC, longer than the 150 s")
    assert "request_shutdown ends alice after 120 s" in mate
    assert "request_shutdown" not in waits.stall_text(
        "explore-1", "subagent", "bash", since=1_800_000_000.0, seconds=150
    )
    assert isinstance(running("bash").events[-1], ev.ToolStarted)
