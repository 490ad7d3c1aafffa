"""The observer that prints a session: everything once, the final text always."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from callboard.cli.repl.live_screen import LiveScreen
from callboard.cli.terminal.screen import Screen
from callboard.cli.terminal.terminal import Terminal
from callboard.ports.model import Delta
from callboard.types import events as ev
from callboard.types.records import AgentRow, Envelope, Request, RequestKind, ToolCall, Usage


class ScreenOutput:
    """A screen and its final output."""

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


def reply_with(text: str, *calls: ToolCall) -> ev.ModelReplied:
    blocks = ({"type": "text", "text": text},)
    return ev.ModelReplied(at=0, ordinal=1, model="m", stop_reason="end_turn", blocks=blocks, calls=calls)


def turn_end(text: str) -> ev.TurnEnded:
    return ev.TurnEnded(at=0, turn="1", reason="end", text=text)


def test_the_final_text_is_shown_though_its_reply_was_not_seen() -> None:
    shown = ScreenOutput(result_apart=False)
    shown.on("lead", ev.ContextEdited(at=0, stage="summarize_all", revision=1), turn_end("All tests pass."))
    assert shown.lines == ["lead: All tests pass."]


def test_the_final_text_is_shown_once() -> None:
    shown = ScreenOutput(result_apart=False)
    shown.on("lead", reply_with("All tests pass."), turn_end("All tests pass."))
    assert shown.lines == ["lead: All tests pass."]


@pytest.mark.parametrize("result", ["Second.", "Something else."])
def test_a_result_that_stands_apart_is_not_printed_twice_and_nothing_is_lost(result: str) -> None:
    shown = ScreenOutput(result_apart=True)
    shown.on(
        "lead", reply_with("First."), turn_end("First."), ev.TurnBegan(at=0, turn="2", cause="e"), reply_with("Second.")
    )
    shown.on("lead", turn_end("Second."))
    assert shown.lines == ["lead: First."]
    shown.screen.finish(result)
    assert shown.lines == ["lead: First.", *(["lead: Second."] if result != "Second." else [])]


def test_a_result_of_a_call_is_told_by_its_words() -> None:
    shown = ScreenOutput(result_apart=True)
    call = ToolCall(id="c", use_id="u", name="bash", input={"command": "make"})
    done = ev.ToolFinished(at=0, call="c", content=({"type": "text", "text": "ok"},))
    shown.on("alice", reply_with("I build it.", call), done)
    assert shown.lines == ["alice: I build it.", "alice: bash make => ok"]


def test_an_envelope_that_is_sent_and_received_here_is_shown_once() -> None:
    shown = ScreenOutput(result_apart=True)
    envelope = Envelope(id="e", sender="alice", recipient="lead", type="result", content="found")
    shown.screen.on_mail(envelope)
    shown.screen.on_mail(envelope.model_copy(update={"seq": 4}))
    assert shown.lines == ["alice -> lead [result] found"]


def test_a_stream_that_breaks_off_is_one_line_although_no_text_was_shown() -> None:
    shown = ScreenOutput(result_apart=True)
    shown.screen.on_delta("lead", Delta("text", "The answ"))
    shown.screen.on_delta("lead", Delta("dropped", "cut at the output limit"))
    shown.on("lead", ev.ReplyDropped(at=0, ordinal=1, why="cut at the output limit", usage=Usage(output_tokens=9)))
    assert shown.lines == ["lead: a reply is void: cut at the output limit (9 output tokens are billed)"]


def test_what_a_person_is_to_notice_is_shown() -> None:
    shown = ScreenOutput(result_apart=True)
    shown.screen.on_delta("alice", Delta("notice", "a hook failed"))
    assert shown.lines == ["alice: a hook failed"]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("a_new_reason", "'a_new_reason', which is not known here"),
        ("tool_use", "without a call: taken as the end of the turn"),
        ("", "without a stop reason"),
    ],
)
def test_an_odd_stop_reason_is_reported_once(reason: str, words: str) -> None:
    shown = ScreenOutput(result_apart=True)
    odd, plain = reply_with("one").model_copy(update={"stop_reason": reason}), reply_with("two")
    shown.on("lead", odd, plain, odd)
    shown.on("alice", odd)
    assert sum(words in line for line in shown.lines) == 1


def test_a_retry_says_what_the_failed_attempt_may_be_billed_for_and_a_switch_who_was_passed_over() -> None:
    shown = ScreenOutput(result_apart=True)
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
        "lead: continues with model three: overloaded 529: full; skipped two: it cannot call tools",
        "lead: a reply is void: cut at the output limit (8,000 output tokens are billed)",
    ]


class Session:
    """The part of a session that a screen uses."""

    def __init__(
        self, *damage: str, may_answer: tuple[str, ...] = ("person",), expires_at: float | None = None
    ) -> None:
        self.damage = damage
        self.notes: tuple[str, ...] = ()
        self.cost_limit_by_option = False
        self.asked = Request(id="req_1", kind="plan", asked_by="lead", may_answer=may_answer, expires_at=expires_at)

    def call(self, agent: str, call: str) -> ToolCall | None:
        return ToolCall(id=call, use_id="u", name="bash", input={"command": "make"}) if call == "call_1" else None

    def requests(self) -> list[Request]:
        return [self.asked]

    def label(self, name: str) -> str:
        return name

    def row_of(self, name: str) -> AgentRow | None:
        return None

    @property
    def workspace(self) -> Path:
        return Path("/work")

    def state(self, name: str) -> None:
        return None

    def life_usage(self, row: AgentRow) -> Usage:
        return Usage()

    def turn_of(self, name: str) -> tuple[float, Usage] | None:
        return None


@pytest.mark.parametrize("by_option", [True, False])
def test_the_advice_on_a_used_up_budget_names_what_set_it(by_option: bool) -> None:
    shown = ScreenOutput(result_apart=True)
    session = Session()
    session.cost_limit_by_option = by_option
    shown.screen.attach(session)
    shown.on("lead", ev.BudgetReached(at=0, budget="session", kind="cost_usd", limit=0.02, spent=0.02, wanted=0.01))
    (line,) = shown.lines
    assert "resume with a higher --max-budget-usd" in line
    assert ("settings.yaml" in line) == (not by_option)


def test_a_last_reply_after_a_cut_one_is_shown_once() -> None:
    shown = ScreenOutput(result_apart=False)
    shown.on("lead", reply_with("A part").model_copy(update={"stop_reason": "max_tokens"}))
    limits: dict[str, Any] = {"budget": "session", "kind": "tokens", "limit": 9, "spent": 8, "wanted": 7}
    shown.on("lead", ev.BudgetReached(at=0, **limits, winds_down=True))
    shown.on("lead", reply_with("The last words."))
    before = len(shown.lines)
    shown.on("lead", turn_end("A part\n\nThe last words."))
    assert not any("words" in line for line in shown.lines[before:])


DONE = ev.ToolFinished(at=0, call="call_1", content=({"type": "text", "text": "built"},))


def test_a_call_that_was_made_before_a_resume_has_its_name() -> None:
    shown = ScreenOutput(result_apart=False)
    shown.screen.attach(Session())
    shown.on("lead", DONE)
    assert shown.lines == ["lead: bash make => built"]


@pytest.mark.parametrize(
    ("path", "shown_path"),
    [("/work/a/b.py", "a/b.py"), ("/works/b.py", "/works/b.py"), ("/work/", "/work/"), ("b.py", "b.py")],
)
def test_paths_of_calls_are_shown_relative_to_the_workspace(path: str, shown_path: str) -> None:
    shown = ScreenOutput(result_apart=False)
    shown.screen.attach(Session())
    call = ToolCall(id="c1", use_id="toolu_1", name="read_file", input={"path": path})
    shown.on("lead", ev.ModelReplied(at=0, ordinal=1, model="m", stop_reason="tool_use", blocks=(), calls=(call,)))
    shown.on("lead", ev.ToolFinished(at=0, call="c1", content=({"type": "text", "text": "1\ta\n2\t\n3\tb"},)))
    assert shown.lines == [f"lead: read_file {shown_path} => 3 lines"]


def test_a_command_is_shown_as_it_runs() -> None:
    shown = ScreenOutput(result_apart=False)
    shown.screen.attach(Session())
    call = ToolCall(id="c1", use_id="toolu_1", name="bash", input={"command": "cat /work/a.py", "path": "/work"})
    shown.on("lead", ev.ModelReplied(at=0, ordinal=1, model="m", stop_reason="tool_use", blocks=(), calls=(call,)))
    shown.on("lead", ev.ToolFinished(at=0, call="c1", content=({"type": "text", "text": "x"},)))
    assert shown.lines == ["lead: bash cat /work/a.py => x"]


def test_a_call_that_nobody_knows_is_told_by_its_id() -> None:
    shown = ScreenOutput(result_apart=False)
    shown.on("lead", DONE)
    assert shown.lines == ["lead: call_1 => built"]


def test_verbose_tells_when_a_tool_starts() -> None:
    call = ToolCall(id="call_1", use_id="u", name="bash", input={"command": "make all"})
    for verbose in (True, False):
        shown = ScreenOutput(result_apart=True, verbose=verbose)
        shown.on("lead", reply_with("", call), ev.ToolStarted(at=0, call="call_1", effect="unknown"))
        assert ("lead: tool bash make all" in shown.lines) is verbose


@pytest.mark.parametrize(
    ("asks", "may_answer", "whole"),
    [({"plan"}, ("person",), False), ((), ("person",), True), ({"plan"}, ("lead",), True)],
)
def test_a_plan_is_shown_by_its_question_where_one_is_put(
    asks: Collection[RequestKind], may_answer: tuple[str, ...], whole: bool
) -> None:
    shown = ScreenOutput(result_apart=False)
    shown.screen.attach(Session(may_answer=may_answer), asks=asks)
    call = ToolCall(id="c", use_id="u", name="submit_plan", input={"plan": "First this."})
    done = ev.ToolFinished(at=0, call="c", content=({"type": "text", "text": "Plan submitted as req_1."},))
    shown.on("lead", reply_with("", call), done)
    shown.on("lead", ev.GateSet(at=0, gate="pending", request_id="req_1", plan="First this.\nThen that."))
    head = ["lead: plan req_1 waits for approval", "First this.", "Then that."]
    assert shown.lines[:3] == (head if whole else [])


@pytest.mark.parametrize("screen", [partial(Screen, result_apart=False), LiveScreen])
@pytest.mark.parametrize("verbose", [True, False])
def test_a_request_that_is_asked_here_has_no_line_of_its_call(screen: Callable[..., Screen], *, verbose: bool) -> None:
    err = io.StringIO()
    terminal = Terminal(io.StringIO(), err)
    here = screen(terminal, verbose=verbose)
    here.attach(Session(), asks={"question", "permission"})
    question = ToolCall(id="c1", use_id="u1", name="ask_person", input={"question": "Which database?"})
    delete = ToolCall(id="c2", use_id="u2", name="bash", input={"command": "rm gone"})
    here.on_event("lead", 1, reply_with("", question, delete))
    here.on_event("lead", 2, ev.ToolStarted(at=0, call="c1", effect="store"))
    put = ({"type": "text", "text": "Question req_1 is put to the person."},)
    here.on_event("lead", 3, ev.ToolFinished(at=0, call="c1", content=put))
    here.on_event("lead", 4, ev.ApprovalNeeded(at=1, call="c2", request_id="req_2", rule="D", why="it deletes"))
    terminal.flush()
    assert not re.search(r"Which database|req_1|req_2|it deletes", err.getvalue()), "the question contains all of it"


def test_a_question_that_nobody_is_asked_here_is_the_line_of_its_call() -> None:
    shown = ScreenOutput(result_apart=True)
    shown.screen.attach(Session())
    question = ToolCall(id="c1", use_id="u1", name="ask_person", input={"question": "Which database?"})
    put = ({"type": "text", "text": "Question req_1 is put to the person."},)
    shown.on("lead", reply_with("", question), ev.ToolFinished(at=0, call="c1", content=put))
    assert shown.lines == ["lead: ask_person Which database? => Question req_1 is put to the person."]


@pytest.mark.parametrize(
    ("content", "words"), [("", "the conversation is empty"), ("carry", "carried over: your prompts")]
)
def test_a_conversation_that_begins_anew_is_one_line(content: str, words: str) -> None:
    shown = ScreenOutput(result_apart=False)
    order = Envelope(
        id="e", sender="person", recipient="lead", type="command", content=content, metadata={"action": "new"}
    )
    shown.on("lead", ev.EnvelopeReceived(at=0, envelope=order), ev.AgentStopped(at=0, outcome="stopped"))
    shown.on("lead", ev.AgentResumed(at=0, pid=1))
    (line,) = shown.lines
    assert line.startswith("context cleared")
    assert words in line
    shown.on("lead", ev.AgentStopped(at=0, outcome="stopped"), ev.AgentResumed(at=0, pid=1))
    assert shown.lines[1:] == ["lead: has stopped", "lead: continues where it was"]


def test_a_killed_agent_that_only_settles_its_calls_does_not_seem_to_continue() -> None:
    shown = ScreenOutput(result_apart=True)
    shown.on("carl", ev.StopAsked(at=0, by="runtime", why="it did not stop in time"), ev.AgentResumed(at=0, pid=1))
    shown.on("carl", ev.AgentStopped(at=0, outcome="stopped"))
    assert shown.lines == ["carl: asked to stop by runtime: it did not stop in time", "carl: has stopped"]
    shown.on("carl", ev.AgentResumed(at=0, pid=1))
    assert shown.lines[2:] == ["carl: continues where it was"]


def test_what_the_store_set_aside_is_told_though_the_screen_is_quiet() -> None:
    err = io.StringIO()
    terminal = Terminal(io.StringIO(), err, quiet=True)
    Screen(terminal, result_apart=True).attach(Session("blob x was damaged and set aside: /s/damaged/x. Do this"))
    terminal.flush()
    assert err.getvalue() == "the store: blob x was damaged and set aside: /s/damaged/x. Do this\n"


def test_a_plan_that_nobody_is_asked_about_says_how_and_until_when_it_is_answered() -> None:
    shown = ScreenOutput(result_apart=True)
    shown.screen.attach(Session(expires_at=1_800_000_000.0))
    shown.on("alice", ev.GateSet(at=0, gate="pending", request_id="req_1", plan="First this."))
    assert shown.lines[0] == "alice: plan req_1 waits for approval"
    assert re.fullmatch(
        r"it waits until \d\d:\d\d; to answer: callboard approve req_1 --mode acceptEdits, or: "
        r"callboard reject req_1 --why \"...\"",
        shown.lines[-1],
    )


def test_a_plan_that_the_run_approves_by_itself_is_not_said_to_wait() -> None:
    shown = ScreenOutput(result_apart=True)
    session = Session(expires_at=1_800_000_000.0)
    shown.screen.attach(session, approves=("plan",))
    shown.on("alice", ev.GateSet(at=0, gate="pending", request_id="req_1", plan="First this."))
    assert shown.lines == ["alice: plan req_1 waits for approval", "First this."]
    session.asked = session.asked.model_copy(update={"person_only": True})
    shown.on("alice", ev.GateSet(at=0, gate="pending", request_id="req_1", plan="First this."))
    assert "to answer: callboard approve req_1" in shown.lines[-1]


def _asked_screen() -> tuple[Screen, Terminal, io.StringIO]:
    err = io.StringIO()
    terminal = Terminal(io.StringIO(), err)
    screen = Screen(terminal, result_apart=True)
    call = ToolCall(id="c1", use_id="toolu_1", name="bash", input={"command": "rm gone"})
    reply = {"at": 1.0, "ordinal": 1, "blocks": (), "stop_reason": "tool_use", "model": "m", "calls": (call,)}
    screen.on_event("lead", 1, ev.ModelReplied.model_validate(reply))
    asked = ev.ApprovalNeeded(at=1, call="c1", request_id="req_1", rule="E", why="it changes", expires_at=9)
    screen.on_event("lead", 2, asked)
    return screen, terminal, err


def _answer(status: Any) -> ev.AnswerTaken:
    return ev.AnswerTaken(at=2, request_id="req_1", kind="permission", status=status, by="person")


def test_a_request_that_was_answered_is_not_shown_as_a_denied_call_by_a_later_end_of_it() -> None:
    screen, terminal, err = _asked_screen()
    screen.on_event("lead", 3, _answer("approved"))
    screen.on_event("lead", 4, _answer("expired"))
    terminal.close()
    assert "denied: " not in err.getvalue()


def test_a_request_that_expired_is_one_denied_call() -> None:
    screen, terminal, err = _asked_screen()
    screen.on_event("lead", 3, _answer("expired"))
    screen.on_event("lead", 4, _answer("expired"))
    terminal.close()
    assert err.getvalue().count("denied: ") == 1


@pytest.mark.parametrize(("why", "shown"), [("it is full", 0), ("another reason", 1), ("", 1)])
def test_how_the_turn_ended_is_printed_unless_the_caller_prints_that_reason(why: str, shown: int) -> None:
    err = io.StringIO()
    terminal = Terminal(io.StringIO(), err)
    screen = Screen(terminal, result_apart=True)
    screen.on_event("lead", 1, ev.TurnEnded(at=0, turn="1", reason="limit", why="it is full"))
    screen.finish("", why)
    terminal.close()
    assert err.getvalue().count("it is full") == shown


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(("why", "times"), [("there is no command /x", 1), ("another reason", 2)])
def test_a_notice_that_is_the_reason_of_the_end_is_printed_once(why: str, times: int, *, apart: bool) -> None:
    shown = ScreenOutput(result_apart=apart)
    shown.on("lead", ev.TurnBegan(at=0, turn="1", cause="e"))
    shown.screen.on_delta("lead", Delta("notice", "there is no command /x"))
    shown.on("lead", ev.TurnEnded(at=0, turn="1", reason="blocked", why=why))
    shown.screen.finish("", why)
    by_caller = [f"callboard: {why}"] if apart else []
    lines = [*shown.lines, *by_caller]
    assert len(lines) == times, lines


def test_a_notice_is_not_held_back_during_a_model_call() -> None:
    shown = ScreenOutput(result_apart=True)
    shown.on("lead", ev.TurnBegan(at=0, turn="1", cause="e"))
    shown.screen.on_delta("lead", Delta("notice", "a hook failed"))
    shown.on("lead", ev.ModelCalled(at=0, ordinal=1, attempt=1, model="m", max_tokens=9))
    assert shown.lines == ["lead: a hook failed"]


def test_a_notice_on_a_command_is_not_repeated_with_its_result() -> None:
    notice = "[This command created files that other programs run:\n  .mcp.json was moved]\n"
    shown = ScreenOutput(result_apart=True, verbose=True)
    shown.on("lead", ev.TurnBegan(at=0, turn="1", cause="e"))
    shown.on("lead", ev.ModelCalled(at=0, ordinal=1, attempt=1, model="m", max_tokens=9))
    call = ToolCall(id="c1", use_id="u1", name="bash", input={"command": "make"})
    shown.on("lead", reply_with("", call))
    shown.screen.on_delta("lead", Delta("notice", notice))
    shown.on("lead", ev.ToolFinished(at=0, call="c1", content=({"type": "text", "text": f"built\n{notice}"},)))
    printed = "\n".join(shown.lines)
    assert printed.count("created files") == 1
    assert "lead: bash make => built" in printed
