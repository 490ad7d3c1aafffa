"""Observer that shows a session on the terminal as it happens.

The screen remembers data that one event does not contain: the call of a result, envelopes already shown, the text that
may still turn out to be the result. `views/events.py` decides which events are shown, and `terminal.py` writes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from callboard.cli.terminal.terminal import Block, Line, Terminal, block
from callboard.cli.views.events import (
    SHOWN,
    Detail,
    answer_block,
    answer_words,
    budget_block,
    call_words,
    lines_of,
    mail_line,
    plan_words,
    request_words,
    result_block,
)
from callboard.cli.views.permission import advice_unanswered, denial, denial_line, is_denial
from callboard.core.agent.state import AgentState
from callboard.core.call_words import relative_paths
from callboard.core.recovery.retry_policy import odd_stop
from callboard.core.replies import ReplyText
from callboard.core.reports.spending import usage_words
from callboard.ports.environment import Interest
from callboard.ports.model import Delta
from callboard.types.events import (
    AgentResumed,
    AgentStopped,
    AnswerTaken,
    ApprovalNeeded,
    BudgetReached,
    CallJudged,
    EnvelopeReceived,
    Event,
    GateSet,
    ModelCalled,
    ModelReplied,
    ResultsMerged,
    StopAsked,
    ToolFinished,
    ToolStarted,
    TurnBegan,
    TurnEnded,
)
from callboard.types.records import AgentRow, Envelope, Request, RequestKind, ToolCall, Usage

_MAIL_REMEMBERED = 4_096
SHOWN_AS_REQUESTS: Mapping[str, RequestKind] = {"ask_person": "question", "submit_plan": "plan"}
"""Tools whose calls are shown as the question or plan for the person: a separate line would repeat it."""


_ADAPTED = frozenset(
    {AgentResumed, AgentStopped, AnswerTaken, ApprovalNeeded, BudgetReached, CallJudged, GateSet, ToolFinished}
)
"""Events whose view depends on what the screen shows besides them."""
_LEARNED = frozenset(
    {
        *(AgentStopped, AnswerTaken, ApprovalNeeded, BudgetReached, CallJudged, EnvelopeReceived, GateSet),
        *(ModelReplied, StopAsked),
        *(ToolFinished, ToolStarted),
    }
)
"""Events from which the screen remembers something."""
_MOVES = frozenset({ModelCalled, ResultsMerged, TurnBegan, TurnEnded})
"""Events that release or end something on the screen, also if they have no lines."""


class SessionFacts(Protocol):
    """Facts that a session knows, in addition to the events that a screen has seen."""

    def call(self, agent: str, call: str) -> ToolCall | None:
        """Return an open tool call by its internal id."""
        ...

    @property
    def damage(self) -> Sequence[str]:
        """Return a line for each item that the session's store set aside."""
        ...

    @property
    def workspace(self) -> Path:
        """Return the folder of the session."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Return a line for each setting whose effect differs from its value."""
        ...

    @property
    def cost_limit_by_option(self) -> bool:
        """Return True if the session's limit in dollars comes from an option, not from settings."""
        ...

    def requests(self) -> Sequence[Request]:
        """Return the pending requests."""
        ...

    def label(self, name: str) -> str:
        """Return the name of an agent for people."""
        ...

    def state(self, name: str) -> AgentState | None:
        """Return the state of an agent, in its newest life; None if it is unknown here."""
        ...

    def row_of(self, name: str) -> AgentRow | None:
        """Return the row of an agent, in its newest life."""
        ...

    def life_usage(self, row: AgentRow) -> Usage:
        """Return the usage of one life of an agent."""
        ...

    def turn_of(self, name: str) -> tuple[float, Usage] | None:
        """Return the start and the usage of an agent's turn; None if it has none."""
        ...


class Screen:
    """Prints events.

    `result_apart`: the caller prints the lead's last text as the result. `verbose`: each model call also has a line.
    """

    def __init__(self, terminal: Terminal, *, result_apart: bool, verbose: bool = False) -> None:
        self._terminal = terminal
        self._result_apart = result_apart
        self._verbose = verbose
        self._calls: dict[str, dict[str, ToolCall]] = {}
        self._mail: dict[str, None] = {}
        self._said: dict[str, ReplyText] = {}
        self._held: Block | None = None
        self._held_end: tuple[Block, str] | None = None
        """End of the lead's turn, and its reason, while nothing follows: the caller prints it as the end of the run.
        Also a notice before the first model call, which may turn out to be that reason."""
        self._notices: dict[str, str] = {}
        """Newest notice of each agent. That of a command is also the end of its result."""
        self._opening = False
        """True if the lead's turn has begun without a model call yet."""
        self._asking: dict[str, ApprovalNeeded] = {}
        """Calls that wait for an answer, by request id."""
        self._subjects: dict[str, str] = {}
        """Calls and plans that wait for an answer, as text, by request id."""
        self._odd_stops: set[str] = set()
        """Unusual stop reasons that were already reported."""
        self._renewal: Envelope | None = None
        """Command that restarts the lead's conversation, until its new life begins."""
        self._stopping: set[str] = set()
        """Agents that were asked to stop. A killed one is resumed only to settle its calls, which needs no line."""
        self._known: SessionFacts | None = None
        self._home = ""
        """Folder of the session. The paths of calls are shown relative to it."""
        self._asks: Collection[RequestKind] = ()
        self._approves: Collection[RequestKind] = ()
        self._detail: Detail = "whole" if verbose else "brief"

    def attach(
        self, session: SessionFacts, *, asks: Collection[RequestKind] = (), approves: Collection[RequestKind] = ()
    ) -> None:
        """Set the session to show, and print the damage of its store, which `--quiet` does not hide.

        `asks`: the kinds of requests that this terminal shows in full as questions, so that no event repeats them.
        `approves`: the kinds that this process approves without asking, unless they require a person.
        """
        self._known = session
        self._home = str(session.workspace)
        self._asks = asks
        self._approves = approves
        self._subjects.update((request.id, request_words(request, self._home)) for request in session.requests())
        if session.notes:
            self._print(Block(tuple(Line(note, "warn") for note in session.notes)))
        if session.damage:
            self._print(Block(tuple(Line(f"the store: {entry}", "warn") for entry in session.damage)))

    interest = Interest(SHOWN | _ADAPTED | _LEARNED | _MOVES, frozenset({"notice"}))

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        """Print the event's lines."""
        calls = self._calls.setdefault(agent, {})
        # One look-up: `isinstance` with each of these classes takes longer than everything else about most events.
        if type(event) in _LEARNED:
            self._learn(agent, event, calls)
        if self._verbose and (text := _at_work(event, calls)):
            self._print(block(text, "dim", name=agent, progress=True))
        output = self._lines(agent, event, calls)
        if output is not None or type(event) in _MOVES:
            self._show(agent, event, calls, output)

    def _show(self, agent: str, event: Event, calls: dict[str, ToolCall], output: Block | None) -> None:
        """Print the lines of an event, if it has any, at their place."""
        if type(event) in _MOVES:
            self._move(agent, event, calls)
        if output is None:
            return
        if isinstance(event, GateSet) and event.plan:
            output = self._with_way_out(output, event.request_id)
        if self._may_be_result(agent, event):
            self._release()
            self._held = output
        elif agent == "lead" and isinstance(event, TurnEnded):
            self._hold_end(output, event.why or event.reason)
        else:
            self._print(output)

    def _move(self, agent: str, event: Event, calls: dict[str, ToolCall]) -> None:
        """Release or end what an event follows."""
        if isinstance(event, ResultsMerged):
            calls.clear()
        elif isinstance(event, TurnEnded):
            self._end_of_turn(agent, event)
        elif agent == "lead":
            self._release()
            self._opening = isinstance(event, TurnBegan)

    def _hold_end(self, output: Block, reason: str) -> None:
        """Hold back the end of the lead's turn if the caller prints it.

        Otherwise print it, unless a notice already said it.
        """
        self._opening = False
        if self._held_end is None or self._held_end[1] != reason:
            self._release()
            self._held_end = (output, reason)
        if not self._result_apart:
            self._release()

    def _tell_stop(self, agent: str, event: ModelReplied) -> None:
        """Report an unusual stop reason once."""
        text = odd_stop(event.stop_reason, calls=bool(event.calls))
        if text and text not in self._odd_stops:
            self._odd_stops.add(text)
            self._print(block(text, "warn", name=agent, progress=True))

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Report notices.

        A reply is shown when it is complete, so a stream that breaks off needs no line: the retry or the end of the
        turn says why.
        """
        if delta.kind == "notice" and self._opening and agent == "lead":
            self._release()
            self._held_end = (block(delta.text, "warn", name=agent), delta.text)
        elif delta.kind == "notice":
            self._notices[agent] = delta.text.strip()
            self._print(block(delta.text, "warn", name=agent))

    def on_mail(self, envelope: Envelope) -> None:
        """Print an envelope's line once, although both sender and recipient see it."""
        if envelope.id in self._mail:
            return
        self._mail[envelope.id] = None
        if len(self._mail) > _MAIL_REMEMBERED:
            del self._mail[next(iter(self._mail))]
        if (output := mail_line(envelope)) is not None:
            self._print_mail(envelope, output)

    def _print_mail(self, envelope: Envelope, output: Block) -> None:
        self._print(output)

    def call(self, agent: str, call: str) -> ToolCall | None:
        """Return an agent's open tool call by its internal id."""
        return self._calls.get(agent, {}).get(call)

    def _learn(self, agent: str, event: Event, calls: dict[str, ToolCall]) -> None:
        """Remember the calls of a reply. The session has those from before this process."""
        match event:
            case ModelReplied():
                calls.update({call.id: self._near(call) for call in event.calls})
                self._tell_stop(agent, event)
                speech = self._said.get(agent, ReplyText())
                speech = ReplyText() if speech.seam is None else speech
                self._said[agent] = speech.with_reply(event.blocks, event.stop_reason, event.trimmed)
            case BudgetReached(winds_down=True):
                self._said[agent] = self._said.get(agent, ReplyText()).broken_off()
            case ToolStarted() | ToolFinished() | CallJudged():
                session = self._known if event.call not in calls else None
                earlier_call = None if session is None else session.call(agent, event.call)
                if earlier_call is not None:
                    calls[event.call] = self._near(earlier_call)
            case EnvelopeReceived(envelope=envelope, refused="") if agent == "lead" and _is_renewal(envelope):
                self._renewal = envelope
            case StopAsked():
                self._stopping.add(agent)
            case AgentStopped():
                self._stopping.discard(agent)
            case ApprovalNeeded() | GateSet() | AnswerTaken():
                self._learn_request(event, calls)
            case _:
                pass

    def _near(self, call: ToolCall) -> ToolCall:
        near = relative_paths(call.input, self._home)
        return call if near is call.input else call.model_copy(update={"input": near})

    def _learn_request(self, event: ApprovalNeeded | GateSet | AnswerTaken, calls: dict[str, ToolCall]) -> None:
        """Remember what waits for an answer, and the input with which a person allowed a call."""
        match event:
            case ApprovalNeeded():
                self._asking[event.request_id] = event
                if (call := calls.get(event.call)) is not None:
                    self._subjects[event.request_id] = call_words(call)
            case GateSet(gate="pending", request_id=str(request_id)):
                self._subjects[request_id] = plan_words(event.plan)
            case AnswerTaken() if event.status != "expired":
                request = self._asking.pop(event.request_id, None)
                if request is not None and event.input is not None and request.call in calls:
                    calls[request.call] = calls[request.call].model_copy(update={"input": event.input})
            case _:
                pass

    def _is_asked(self, event: Event, calls: Mapping[str, ToolCall]) -> bool:
        """Return True if the question for a request already shows the content of this event."""
        match event:
            case GateSet(gate="pending") if "plan" in self._asks and self._known is not None:
                return any(row.id == event.request_id and "person" in row.may_answer for row in self._known.requests())
            case ApprovalNeeded():
                return "permission" in self._asks
            case ToolFinished(is_error=False) if event.call in calls:
                kind = SHOWN_AS_REQUESTS.get(calls[event.call].name)
                return kind == "plan" or kind in self._asks  # if no person is asked, `GateSet` shows the plan
            case _:
                return False

    def _with_way_out(self, output: Block, request: str | None) -> Block:
        """Add the deadline of a plan that is not asked here, and how to answer it."""
        rows = self._known.requests() if self._known is not None else ()
        row = next((row for row in rows if row.id == request and "person" in row.may_answer), None)
        if row is None or (row.kind in self._approves and not row.person_only):
            return output
        until = "" if row.expires_at is None else f" until {datetime.fromtimestamp(row.expires_at).astimezone():%H:%M}"
        return Block((*output.lines, Line(f"it waits{until}; to answer: {answer_words(row, attended=False)}", "dim")))

    def finish(self, result: str, reason: str = "") -> None:
        """Print the held output, except for the result and its failure reason, which the caller prints."""
        if self._held_end is not None and self._held_end[1] == reason:
            self._held_end = None
        if self._held is not None and self._said.get("lead", ReplyText()).text == result.strip():
            self._held = None
        self._release()

    def _may_be_result(self, agent: str, event: Event) -> bool:
        return self._result_apart and agent == "lead" and isinstance(event, ModelReplied) and not event.calls

    def _end_of_turn(self, agent: str, event: TurnEnded) -> None:
        """Show the final text of a turn, even if no reply of this process contained it."""
        speech = self._said.pop(agent, ReplyText()) if not self._result_apart else self._said.get(agent, ReplyText())
        if self._result_apart and agent == "lead":
            return
        if event.text and event.text.strip() != speech.text:
            self._print(self._text_block(agent, event.text))

    def _lines(self, agent: str, event: Event, calls: Mapping[str, ToolCall]) -> Block | None:
        """Return the view of an event on this screen."""
        return self._adapted_lines(agent, event, calls) if type(event) in _ADAPTED else lines_of(agent, event)

    def _adapted_lines(self, agent: str, event: Event, calls: Mapping[str, ToolCall]) -> Block | None:
        if isinstance(event, CallJudged):
            return denial(agent, calls.get(event.call), event) if is_denial(event) else None
        if self._is_asked(event, calls):
            return None
        if isinstance(event, ToolFinished):
            notice = self._notices.get(agent, "")
            return result_block(agent, event, calls.get(event.call), self._detail, notice=notice)
        if agent == "lead" and self._renewal is not None:
            if isinstance(event, AgentStopped):
                return block(_renewal_words(self._renewal), "good")
            if isinstance(event, AgentResumed):
                self._renewal = None
                return None
        if isinstance(event, AgentResumed) and agent in self._stopping:
            return None
        if isinstance(event, AnswerTaken):
            return self._answer_lines(agent, event, calls)
        if isinstance(event, BudgetReached) and self._known is not None:
            told_later = self._result_apart and agent == "lead"
            by_option = self._known.cost_limit_by_option
            return budget_block(agent, event, by_option=by_option, told_later=told_later)
        return lines_of(agent, event)

    def _answer_lines(self, agent: str, event: AnswerTaken, calls: Mapping[str, ToolCall]) -> Block:
        """Return what was decided, and by whom; for a call that nobody answered, how to have it allowed."""
        subject = self._subjects.pop(event.request_id, "")
        request = self._asking.pop(event.request_id, None) if event.status == "expired" else None
        if request is None:
            return answer_block(agent, event, "" if self._detail == "brief" else subject)
        call = calls.get(request.call)
        way = advice_unanswered(call, request, told_later=self._result_apart)
        return denial_line(agent, call, f"{request.why} ({request.rule})", way)

    def _text_block(self, agent: str, text: str) -> Block:
        """Return the view of an agent's text on this screen."""
        return block(text, name=agent)

    def _release(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._terminal.terminal_print(held)
        if self._held_end is not None:
            (end, _), self._held_end = self._held_end, None
            self._terminal.terminal_print(end)

    def _print(self, output: Block) -> None:
        """Print a block after the earlier output.

        A text of the lead that may be the result is held back only while nothing follows it.
        """
        if not (output.progress and self._terminal.quiet):
            self._release()
        self._terminal.terminal_print(output)


def _is_renewal(envelope: Envelope) -> bool:
    return envelope.type == "command" and envelope.metadata.get("action") == "new"


def _renewal_words(command: Envelope) -> str:
    if command.content:
        return "context cleared; carried over: your prompts, the state and a hand-off note"
    return "context cleared: the conversation is empty; the old one is kept on disk"


def _at_work(event: Event, calls: Mapping[str, ToolCall]) -> str:
    """Return the text about an event that only `--verbose` shows; empty if there is none."""
    match event:
        case ModelReplied():
            return f"{event.model}: {usage_words(event.usage)}, {event.stop_reason}"
        case ModelCalled():
            return f"asks {event.model} ({event.purpose}, attempt {event.attempt})"
        case ToolStarted() if event.call in calls and calls[event.call].name not in SHOWN_AS_REQUESTS:
            return f"tool {call_words(calls[event.call])}"
        case _:
            return ""
