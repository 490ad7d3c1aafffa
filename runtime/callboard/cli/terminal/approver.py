"""Requests for a person: asked one at a time, answered by a number or as text.

Two approvers: `PersonApprover` asks through the `Ask` of its interface; `PlanPolicy` is `--yes`, which never answers a
permission. The frame of a question has a plan and the input of a tool in full, with control characters spelled out; a
screen that folds a long one counts the folded lines, and a key shows them.

  input                  answer
  ---------------------  ---------------------------------------------
  an empty line          no
  Ctrl-D (end of input)  no; none if another process hosts the session
  a closed terminal      none

A question that someone else answers first is withdrawn, and an answer that comes too late is reported; both messages
name the first answer's author.

For questions of an MCP server during a call, the whole form is shown, then asked field by field. A URL is shown in full
and never opened. An empty line takes the default, or omits an optional field; if neither is possible, it means no.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import anyio

from callboard.cli.terminal.frame import NEAR, Frame
from callboard.cli.terminal.keyboard import TerminalGone
from callboard.cli.terminal.plan_editor import Edit, keep_text
from callboard.cli.terminal.terminal import Block, Line, Terminal, block
from callboard.cli.views.edits import approval, edited_input
from callboard.cli.views.events import first_line
from callboard.cli.views.question import (
    field_prompt,
    form_prompt,
    frame_of,
    one_line,
    question_of,
    read_answer,
    typed_choice,
    unread_reply,
    wants_edit,
)
from callboard.cli.views.revisions import revision_lines
from callboard.core.approvals.plans import AnswerDetails
from callboard.core.mcp.elicitation import Field, InvalidValue, fields_of, question_in, read, value_of
from callboard.ports.environment import Answer
from callboard.types.errors import UsageError
from callboard.types.mcp import Elicitation, ElicitationAnswer
from callboard.types.records import Json, Request, RequestKind

TakenBack = Callable[[], str]
"""Function that returns the reason, as text, once a question is withdrawn."""
Ask = Callable[[Frame, str, TakenBack], Awaitable[str | None]]
"""Function that shows a frame, asks a question, and returns the typed line; None at the end of input. When cancelled,
it shows the reason."""
ELSEWHERE = "answered elsewhere"
"""Start of the reason for a question that someone else answered first."""
_WHY = {"plan": "what should change?> ", "permission": "why not? (Enter: no reason)> "}

_ASKED = frozenset[RequestKind]({"plan", "permission", "question"})


class _Left(Exception):
    """Raised when the person left without an answer."""


class Rows(Protocol):
    """Data of the session that an approver needs in addition to the request."""

    beside_host: bool
    """True if another process hosts the session."""

    def requests(self, *, pending_only: bool = True) -> Sequence[Request]:
        """Return the current requests of the session."""
        ...

    async def commit_change(self, request: Request) -> str:
        """Return the changes around a plan since it was submitted; empty if there are none."""
        ...


class PersonApprover:
    """Approver that asks the person at this terminal, one question at a time, and shows how many more wait."""

    def __init__(
        self,
        ask: Ask,
        terminal: Terminal | None = None,
        *,
        leave_plans: bool = False,
        edit: Edit | None = None,
        home: str = "",
        recounted: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Store the parts of the approver.

        `terminal`: receives notices about answers that came too late; callers that pass one also attach the session.
        `leave_plans`: a policy answers plans; this person is not asked. `edit`: opens a plan or a call in an editor, if
        that is possible here. `home`: folder of the session, which a question need not name. `recounted`: redraws the
        count of waiting questions, and returns False if the question on the screen is not redrawn. `now`: returns the
        time in Unix seconds.
        """
        self._now = now
        self._home = home
        self._recounted = recounted
        self._ask = ask
        self._terminal = terminal
        self._leave_plans = leave_plans
        self._edit = edit
        self._one_at_a_time = anyio.Lock()
        self._waiting: dict[str, Request] = {}
        self._shown = ""
        """Id of the request whose question is on the screen; empty if there is none."""
        self._rows: Rows | None = None
        self._attached = anyio.Event()

    @property
    def asks(self) -> frozenset[RequestKind]:
        """Return the kinds of requests that this person is asked about."""
        return _ASKED if not self._leave_plans else _ASKED - {"plan"}

    def attach(self, rows: Rows) -> None:
        """Set the data source: the session is open."""
        self._rows = rows
        self._attached.set()

    async def answer(self, request: Request) -> Answer | None:
        """Ask until the typed line is a valid answer. None for requests that this person does not answer."""
        if "person" not in request.may_answer or (self._leave_plans and request.kind == "plan"):
            return None
        self._waiting[request.id] = request
        self._report_next_request(request)
        try:
            async with self._one_at_a_time:
                return await self._ask_about(request)
        finally:
            del self._waiting[request.id]

    def _report_next_request(self, request: Request) -> None:
        """Report that another request waits behind the question on the screen."""
        if self._shown and not self._recounted() and self._terminal is not None:
            count = len(self._waiting) - 1
            text = (
                f"{request.kind} {request.id} ({request.asked_by}) waits behind {self._shown}: {_waiting_text(count)}"
            )
            self._terminal.terminal_print(Block((Line(text, "dim"),)))

    async def _ask_about(self, request: Request) -> Answer | None:
        note = await self._note(request)
        try:
            self._shown = request.id
            return await self._answered(request, self._frame(request, note))
        except _Left:
            return None
        finally:
            self._shown = ""

    def _frame(self, request: Request, note: str) -> Frame:
        rows = self._rows.requests(pending_only=False) if self._rows is not None and request.kind == "plan" else ()
        changes = [Line(line.text[2:], line.style) for line in revision_lines(request, rows)]
        frame = frame_of(request, edits=self._edit is not None, home=self._home, changes=changes, note=note)
        near = frame.deadline is not None and frame.deadline.at - self._now() <= NEAR
        until = (Line(f"  {frame.deadline.text()}", "warn"),) if near and frame.deadline is not None else ()
        return replace(frame, extra=(*until, *self._further_lines(request)), waiting=lambda: len(self._waiting) - 1)

    async def _answered(self, request: Request, frame: Frame) -> Answer:
        """Return the answer; ask again until one is valid."""
        if (form := question_in(request)) is not None:
            reply = await fill_in(form, frame, self._put(request))
            self._record(request, "declined" if reply in ("decline", "cancel") else "answered")
            return Answer("answered", "person", reply, refused=self._refused)
        question = question_of(request, edits=self._edit is not None)
        while True:
            typed = await self._typed(request, frame, question)
            if self._edit is not None and (reason := wants_edit(request, typed)) is not None:
                edited = await self._edited(request, reason, self._edit)
                if isinstance(edited, Answer):
                    return edited
                frame = frame.repeat(edited)
                continue
            read = read_answer(request, typed)
            if read is not None:
                break
            frame = frame.repeat(unread_reply(request))
        if read.status == "rejected" and not read.reason and self._needs_reason(request, typed):
            frame = replace(frame.repeat(), choices=())
            reason = await self._typed(request, frame, _WHY[request.kind])
            read = Answer("rejected", "person", (reason or "").strip())
        if request.kind == "question":
            self._record(request, read.reason)
        return replace(read, refused=self._refused)

    def _needs_reason(self, request: Request, typed: str | None) -> bool:
        """Return True if a typed refusal is asked for its reason: of a plan always, of a call after the number."""
        if request.kind == "permission":
            return typed_choice(request, typed) is not None
        return request.kind == "plan" and bool((typed or "").strip())

    def _record(self, request: Request, answer: str) -> None:
        """Print the line that remains of a question of an agent."""
        if self._terminal is not None:
            question = first_line(str(request.payload.get("question", request.subject)))
            self._terminal.terminal_print(block(f"asked: {one_line(question)} You: {answer}", name=request.asked_by))

    def _put(self, request: Request) -> Put:
        return partial(self._typed, request)

    async def _typed(self, request: Request, frame: Frame, question: str) -> str | None:
        """Return the typed line; None at the end of input. Raises `_Left` if that is not an answer."""
        try:
            typed = await self._ask(frame, question, lambda: self._withdrawn(request))
        except TerminalGone as gone:
            raise _Left from gone
        if typed is None and self._rows is not None and self._rows.beside_host:
            raise _Left
        return typed

    async def _edited(self, request: Request, reason: str, edit: Edit) -> Answer | str:
        """Return the approval of the edited plan or call, or the reason why it is invalid.

        The text is not lost if it comes too late.
        """
        try:
            text = await edit(request)
            details = approval(request, text) if request.kind == "plan" else AnswerDetails(seen=request.digest)
            tool_input = edited_input(request, text) if request.kind == "permission" else None
        except UsageError as refused:
            return str(refused)

        def too_late(reason: str) -> None:
            self._refused(f"{reason}. {keep_text(request, text)}")

        return Answer("approved", "person", reason, details, input=tool_input, refused=too_late)

    async def _note(self, request: Request) -> str:
        if request.kind != "plan" or self._terminal is None:
            return ""
        await self._attached.wait()  # a resumed session asks before its front end is attached
        return await self._rows.commit_change(request) if self._rows is not None else ""

    def _further_lines(self, request: Request) -> tuple[Line, ...]:
        """Return lines on how to edit a plan, and on the waiting requests for this person.

        The requests have their ids, for answering them elsewhere.
        """
        others = [entry for entry in self._waiting.values() if entry.id != request.id]
        edit = (Line(f"  to edit it, in another terminal: callboard edit {request.id}", "dim"),)
        edit = edit if request.kind == "plan" and self._edit is None else ()
        if not others:
            return edit
        names = ", ".join(f"{entry.kind} {entry.id} ({entry.asked_by})" for entry in others)
        return (
            *edit,
            Line(f"  {_waiting_text(len(others))}: {names}", "dim"),
        )

    def _withdrawn(self, request: Request) -> str:
        rows = self._rows.requests(pending_only=False) if self._rows is not None else ()
        row = next((candidate for candidate in rows if candidate.id == request.id), None)
        if row is None:
            return ELSEWHERE
        if row.status == "pending":
            return "no longer asked" if row.digest == request.digest else "its content has changed"
        by = f" by {row.answered_by}" if row.answered_by else ""
        elsewhere = ELSEWHERE if row.answered_by else "no longer needed"
        return f"{elsewhere}: {row.id} {row.status}{by}"

    def _refused(self, reason: str) -> None:
        if self._terminal is not None:
            self._terminal.terminal_print(block(f"your answer did not count: {reason}", "warn"))


class PlanPolicy:
    """Approver for `--yes`: approves plans that a person or a policy may answer.

    All other requests are left to others.

    In an unattended run nobody could allow the edits of an agent that leaves plan mode for `default`. There the agent
    continues in `acceptEdits`, unless the run itself was started in a mode that asks for each edit.
    """

    def __init__(self, mode_of: Callable[[str], str] | None = None) -> None:
        """`mode_of`: returns an agent's permission mode in an unattended run; None if a person is present to answer."""
        self._mode_of = mode_of

    def decides(self, request: Request) -> bool:
        return request.kind == "plan" and not request.person_only

    async def answer(self, request: Request) -> Answer | None:
        """Approve a plan.

        A plan that requires a person is approved in the person's name, because they typed `--yes`.
        """
        by = next((answerer for answerer in ("policy", "person") if answerer in request.may_answer), None)
        if request.kind != "plan" or by is None:
            return None
        return Answer(
            "approved", by, "the run was started with --yes", AnswerDetails(mode=self._next_mode(request.asked_by))
        )

    def _next_mode(self, agent: str) -> str:
        """Return the mode in which the plan is executed; empty for the default."""
        if self._mode_of is None or self._mode_of(agent) != "plan" or self._mode_of("lead") in ("default", "dontAsk"):
            return ""
        return "acceptEdits"


def _waiting_text(count: int) -> str:
    return f"{count} more {'waits' if count == 1 else 'wait'}"


Put = Callable[[Frame, str], Awaitable[str | None]]
"""Function that shows a frame, asks a question, and returns the typed line; None at the end of input."""
_ENDS = frozenset({"decline", "/decline", "cancel", "/cancel"})


async def fill_in(form: Elicitation, frame: Frame, put: Put) -> str:
    """Return the person's answer in the format of the request: one line, or the form as JSON."""
    fields = fields_of(form.schema)
    if form.url or len(fields) < 2:
        return await _fill_in_line(form, fields, frame, put)
    content: Json = {}
    for field in fields:
        value = await _field(field, frame, put)
        frame = frame.repeat()
        if isinstance(value, ElicitationAnswer):
            return value.action
        if value is not None:
            content[field.name] = value
    return json.dumps(content, ensure_ascii=False)


async def _fill_in_line(form: Elicitation, fields: tuple[Field, ...], frame: Frame, put: Put) -> str:
    while True:
        typed = (await put(frame, form_prompt(form)) or "").strip()
        if not typed and fields and fields[0].default is not None:
            typed = json.dumps({fields[0].name: fields[0].default})
        answer = read(form, typed)
        if isinstance(answer, ElicitationAnswer):
            return typed
        frame = frame.repeat(answer)


async def _field(field: Field, frame: Frame, put: Put) -> Any:
    """Return the field's value, None if it is omitted, or the end of the form if the person cancels or declines."""
    while True:
        typed = await put(frame, field_prompt(field))
        text = (typed or "").strip()
        if text.lower() in _ENDS:
            return ElicitationAnswer("cancel" if "cancel" in text.lower() else "decline")
        if not text:
            if field.default is not None or not field.required:
                return field.default
            return ElicitationAnswer("decline")
        value = value_of(field, text)
        if not isinstance(value, InvalidValue):
            return value
        frame = frame.repeat(value.why)
