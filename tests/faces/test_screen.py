"""The observer that tells a session on the screen: each thing once, the final text always."""

from __future__ import annotations

import io

import pytest

from callboard.faces.screen import Screen
from callboard.faces.terminal import Terminal
from callboard.ports.model import Delta
from callboard.words import events as ev
from callboard.words.values import Envelope, Request, ToolCall, Usage


class Shown:
    """A screen, and what it shows in the end."""

    def __init__(self, *, result_apart: bool, verbose: bool = False) -> None:
        self.err = io.StringIO()
        self.terminal = Terminal(io.StringIO(), self.err)
        self.screen = Screen(self.terminal, result_apart=result_apart, verbose=verbose)

    def on(self, agent: str, *events: ev.Event) -> None:
        for event in events:
            self.screen.on_event(agent, 1, event)

    @property
    def lines(self) -> list[str]:
        self.terminal.flush()
        return self.err.getvalue().splitlines()


def says(text: str, *calls: ToolCall) -> ev.ModelReplied:
    blocks = ({"type": "text", "text": text},)
    return ev.ModelReplied(at=0, ordinal=1, model="m", stop_reason="end_turn", blocks=blocks, calls=calls)


def ends(text: str) -> ev.TurnEnded:
    return ev.TurnEnded(at=0, turn="1", reason="end", text=text)


def test_b22_the_final_text_is_shown_though_its_reply_was_not_seen() -> None:
    shown = Shown(result_apart=False)
    shown.on("lead", ev.ContextEdited(at=0, stage="summarize_all", revision=1), ends("All tests pass."))
    assert shown.lines == ["lead: All tests pass."]


def test_the_final_text_is_shown_once() -> None:
    shown = Shown(result_apart=False)
    shown.on("lead", says("All tests pass."), ends("All tests pass."))
    assert shown.lines == ["lead: All tests pass."]


@pytest.mark.parametrize("result", ["Second.", "Something else."])
def test_a_result_that_stands_apart_is_not_printed_twice_and_nothing_is_lost(result: str) -> None:
    shown = Shown(result_apart=True)
    shown.on("lead", says("First."), ends("First."), ev.TurnBegan(at=0, turn="2", cause="e"), says("Second."))
    shown.on("lead", ends("Second."))
    assert shown.lines == ["lead: First."]
    shown.screen.finish(result)
    assert shown.lines == ["lead: First.", *(["lead: Second."] if result != "Second." else [])]


def test_a_result_of_a_call_is_told_by_its_words() -> None:
    shown = Shown(result_apart=True)
    call = ToolCall(id="c", use_id="u", name="bash", input={"command": "make"})
    done = ev.ToolFinished(at=0, call="c", content=({"type": "text", "text": "ok"},))
    shown.on("alice", says("I build it.", call), done)
    assert shown.lines == ["alice: I build it.", "alice: bash make => ok"]


def test_an_envelope_that_is_sent_and_received_here_is_shown_once() -> None:
    shown = Shown(result_apart=True)
    envelope = Envelope(id="e", sender="alice", recipient="lead", type="result", content="found")
    shown.screen.on_mail(envelope)
    shown.screen.on_mail(envelope.model_copy(update={"seq": 4}))
    assert shown.lines == ["alice -> lead [result] found"]


def test_a_partial_reply_that_is_void_is_told() -> None:
    shown = Shown(result_apart=True)
    shown.screen.on_delta("lead", Delta("text", "The answ"))
    shown.screen.on_delta("lead", Delta("dropped", "connection lost"))
    assert shown.lines == ["lead: partial reply dropped: connection lost"]


def test_what_a_person_is_to_notice_is_shown() -> None:
    shown = Shown(result_apart=True)
    shown.screen.on_delta("alice", Delta("notice", "a hook failed"))
    assert shown.lines == ["alice: a hook failed"]


def test_a_stop_reason_that_nobody_knows_is_told_once() -> None:
    shown = Shown(result_apart=True)
    odd, known = says("one").model_copy(update={"stop_reason": "a_new_reason"}), says("two")
    shown.on("lead", odd, known, odd)
    shown.on("alice", odd)
    assert sum("'a_new_reason', which is not known here" in line for line in shown.lines) == 1


def test_a_retry_says_what_the_failed_attempt_may_be_billed_for_and_a_switch_who_was_passed_over() -> None:
    shown = Shown(result_apart=True)
    why = "connection: reset; the attempt may be billed: 1,200 tokens in, 7 out"
    shown.on(
        "lead",
        ev.RetryPlanned(at=0, until=0.5, attempt=1, why=why),
        ev.RetryPlanned(at=0, until=0.5, attempt=2, why="server 500: no", purpose="summary"),
        ev.ModelSwitched(at=0, model="three", why="overloaded 529: full", skipped=("two: it cannot call tools",)),
        ev.ReplyDropped(at=0, ordinal=1, why="cut at the output limit", usage=Usage(output_tokens=8_000)),
    )
    assert shown.lines == [
        f"lead: retry (attempt 1) in 0.5 s: {why}",
        "lead: retry of a summary (attempt 2) in 0.5 s: server 500: no",
        "lead: goes on with model three: overloaded 529: full; passed over two: it cannot call tools",
        "lead: the reply above is void: cut at the output limit (8,000 output tokens are billed)",
    ]


class Session:
    """What a screen asks of a session."""

    def __init__(self, *damage: str, may_answer: tuple[str, ...] = ("person",)) -> None:
        self.damage = damage
        self.notes: tuple[str, ...] = ()
        self.asked = Request(id="req_1", kind="plan", asked_by="lead", may_answer=may_answer)

    def call(self, agent: str, call: str) -> ToolCall | None:
        return ToolCall(id=call, use_id="u", name="bash", input={"command": "make"}) if call == "call_1" else None

    def requests(self) -> list[Request]:
        return [self.asked]


DONE = ev.ToolFinished(at=0, call="call_1", content=({"type": "text", "text": "built"},))


def test_a_call_that_was_made_before_a_resume_has_its_name() -> None:
    shown = Shown(result_apart=False)
    shown.screen.attach(Session())
    shown.on("lead", DONE)
    assert shown.lines == ["lead: bash make => built"]


def test_a_call_that_nobody_knows_is_told_by_its_id() -> None:
    shown = Shown(result_apart=False)
    shown.on("lead", DONE)
    assert shown.lines == ["lead: call_1 => built"]


def test_verbose_tells_when_a_tool_starts() -> None:
    call = ToolCall(id="call_1", use_id="u", name="bash", input={"command": "make all"})
    for verbose in (True, False):
        shown = Shown(result_apart=True, verbose=verbose)
        shown.on("lead", says("", call), ev.ToolStarted(at=0, call="call_1", effect="unknown"))
        assert ("lead: tool bash make all" in shown.lines) is verbose


@pytest.mark.parametrize(
    ("asks", "may_answer", "whole"),
    [(True, ("person",), False), (False, ("person",), True), (True, ("lead",), True)],
)
def test_a_plan_is_shown_once_where_its_question_is_put(asks: bool, may_answer: tuple[str, ...], whole: bool) -> None:
    shown = Shown(result_apart=False)
    shown.screen.attach(Session(may_answer=may_answer), asks_plans=asks)
    shown.on("lead", ev.GateSet(at=0, gate="pending", request_id="req_1", plan="First this.\nThen that."))
    assert shown.lines[0] == "lead: plan req_1 waits for approval"
    assert ("Then that." in shown.lines) is whole


def test_b29_what_the_store_set_aside_is_told_though_the_screen_is_quiet() -> None:
    err = io.StringIO()
    terminal = Terminal(io.StringIO(), err, quiet=True)
    Screen(terminal, result_apart=True).attach(Session("blob x was damaged and set aside: /s/damaged/x. Do this"))
    terminal.flush()
    assert err.getvalue() == "the store: blob x was damaged and set aside: /s/damaged/x. Do this\n"
