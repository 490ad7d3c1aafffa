"""A call that a person allowed with another input: it runs with that, unless what was allowed is void."""

from __future__ import annotations

from typing import Any

from callboard.core.agent.apply import apply
from callboard.core.agent.open_calls import CallState, OpenCalls
from callboard.core.agent.state import AgentState, Identity
from callboard.types import events as ev
from callboard.types.agent_spec import AgentSpec
from callboard.types.records import Envelope, ToolCall

CALL = ToolCall(id="c", use_id="toolu_c", name="bash", input={"command": "rm -r x"})
SPEC = AgentSpec(name="lead", kind="lead", agent_type="lead", model="m")


def after(**answer: Any) -> CallState:
    state = AgentState(identity=Identity(spec=SPEC), calls=OpenCalls.of([CallState(CALL)]))
    state = apply(state, ev.ApprovalNeeded(at=1, call="c", request_id="req_1"))
    state = apply(state, ev.AnswerTaken(at=2, request_id="req_1", kind="permission", by="person", **answer))
    return state.calls[0]


def test_it_runs_with_what_it_was_allowed_with() -> None:
    one = after(status="approved", input={"command": "ls x"})
    assert (one.stage, one.call.input) == ("allowed", {"command": "ls x"})


def test_what_is_void_or_refused_does_not_run() -> None:
    for answer in ({"status": "approved", "void": "a rule denies it"}, {"status": "rejected"}):
        one = after(**answer, input={"command": "ls x"})
        assert (one.stage, one.denied, one.call.input) == ("settled", True, {"command": "rm -r x"})


def test_a_person_chooses_mode_and_patience_and_what_is_none_changes_nothing() -> None:
    state = AgentState(identity=Identity(spec=SPEC))

    def told(action: str, text: str) -> AgentSpec:
        command = Envelope(
            id="e", sender="person", recipient="lead", type="command", content=text, metadata={"action": action}
        )
        return apply(state, ev.EnvelopeReceived(at=1, envelope=command)).me

    assert told("mode", "acceptEdits").permission_mode == "acceptEdits"
    assert told("mode", "nonsense") == SPEC
    assert told("asking", "0").ask_deadline == 0
    for text in ("soon", "nan", "inf", "-1"):
        assert told("asking", text) == SPEC
