"""Requests for a person: shown in full, asked one at a time, answered as text.

Two approvers: `PersonApprover` asks through the `Ask` of its interface; `PlanPolicy` is `--yes`. A plan and the input
of a tool are shown in full, with control characters spelled out, so that nothing is hidden from the person who approves
it. An empty answer is no. The end of input (Ctrl-D) is also no, except if another process hosts the session: then it
answers nothing. A terminal that was closed answers nothing. A question that someone else answers first is withdrawn,
and an answer that comes too late is reported; both name who answered first.

It does not read a keyboard, and `--yes` never answers a permission.

Questions that an MCP server asks a person during a call: the whole form is shown, then asked field by field.

A URL is shown in full and never opened. An empty line takes the default, or omits an optional field; if neither is
possible, it means no.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import anyio

from callboard.cli.terminal.keyboard import TerminalGone
from callboard.cli.terminal.plan_editor import Edit, approval, keep_text
from callboard.cli.terminal.terminal import Block, Line, Terminal, block, visible
from callboard.cli.views.permission import permission_lines, read_always, until_line
from callboard.cli.views.revisions import revision_lines
from callboard.core.approvals.plans import SHOWN, AnswerDetails, options_of, submitted_of
from callboard.core.approvals.session_rules import offered
from callboard.core.mcp.elicitation import Field, InvalidValue, asked_of, fields_of, read, value_of
from callboard.ports.environment import Answer
from callboard.types.errors import UsageError
from callboard.types.mcp import AnsweredBack, Elicitation
from callboard.types.records import Json, Request, RequestKind

TakenBack = Callable[[], str]
"""Function that returns the reason, as text, once a question is withdrawn."""
Ask = Callable[[Block, str, TakenBack], Awaitable[str | None]]
"""Function that shows a block, asks a question, and returns the typed line; None at the end of input. When cancelled,
it shows the reason."""

_YES = frozenset({"y", "yes"})
_NO = frozenset({"n", "no"})
_EDIT = frozenset({"e", "edit", "/edit"})
_ALWAYS = frozenset({"a", "always"})
_WITH_EDITS = frozenset({"a", "acceptedits"})


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

    async def moved(self, request: Request) -> str:
        """Return what has changed around a plan since it was submitted; empty if nothing has."""
        ...


class PersonApprover:
    """Asks the person at this terminal, one question at a time, and shows how many more wait."""

    def __init__(
        self,
        ask: Ask,
        terminal: Terminal | None = None,
        *,
        leave_plans: bool = False,
        edit: Edit | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`terminal`: receives notices about answers that came too late; callers that pass one also attach the session.
        `leave_plans`: a policy answers plans; this person is not asked. `edit`: opens a plan in an editor, if that is
        possible here. `now`: returns the time in Unix seconds."""
        self._now = now
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
        self._tell_of_another(request)
        try:
            async with self._one_at_a_time:
                return await self._ask_about(request)
        finally:
            del self._waiting[request.id]

    def _tell_of_another(self, request: Request) -> None:
        """Report that another request waits behind the question on the screen."""
        if self._shown and self._terminal is not None:
            count = len(self._waiting) - 1
            text = (
                f"{request.kind} {request.id} ({request.asked_by}) waits behind {self._shown}: {_waiting_text(count)}"
            )
            self._terminal.terminal_print(Block((Line(text, "dim"),)))

    async def _ask_about(self, request: Request) -> Answer | None:
        note = await self._note(request)
        try:
            page = Block((*request_block(request, note).lines, *self._context_lines(request), *self._others(request)))
            self._shown = request.id
            return await self._answered(request, page)
        except _Left:
            return None
        finally:
            self._shown = ""

    def _context_lines(self, request: Request) -> tuple[Line, ...]:
        """Return lines with the differences from the previous revision and the deadline of the request."""
        rows = self._rows.requests(pending_only=False) if self._rows is not None and request.kind == "plan" else ()
        return (*revision_lines(request, rows), *until_line(request, self._now()))

    async def _answered(self, request: Request, page: Block) -> Answer:
        """Return the answer; ask again until one is valid."""
        if (form := asked_of(request)) is not None:
            return Answer("answered", "person", await fill_in(form, page, self._put(request)), refused=self._refused)
        question = question_of(request, edits=self._edit is not None)
        while True:
            typed = await self._typed(request, page, question)
            if self._edit is not None and (reason := wants_edit(request, typed)) is not None:
                edited = await self._edited(request, reason, self._edit)
                if isinstance(edited, Answer):
                    return edited
                page = block(edited, "warn")
                continue
            read = read_answer(request, typed)
            if read is not None:
                break
            page = Block((Line(_unread(request), "warn"),))
        if request.kind == "plan" and read.status == "rejected" and not read.reason and (typed or "").strip():
            reason = await self._typed(request, Block(()), "what is to change?> ")
            read = Answer("rejected", "person", (reason or "").strip())
        return replace(read, refused=self._refused)

    def _put(self, request: Request) -> Put:
        return partial(self._typed, request)

    async def _typed(self, request: Request, page: Block, question: str) -> str | None:
        """Return the typed line; None at the end of input. Raises `_Left` if that is not an answer."""
        try:
            typed = await self._ask(page, question, lambda: self._taken_back(request))
        except TerminalGone as gone:
            raise _Left from gone
        if typed is None and self._rows is not None and self._rows.beside_host:
            raise _Left
        return typed

    async def _edited(self, plan: Request, reason: str, edit: Edit) -> Answer | str:
        """Return the approval of the edited plan, or the reason why it is invalid. The text is not lost if it comes too
        late."""
        try:
            text = await edit(plan)
            word = approval(plan, text)
        except UsageError as refused:
            return str(refused)
        return Answer(
            "approved", "person", reason, word, refused=lambda late: self._refused(f"{late}. {keep_text(plan, text)}")
        )

    async def _note(self, request: Request) -> str:
        if request.kind != "plan" or self._terminal is None:
            return ""
        await self._attached.wait()  # a resumed session asks before its face has it
        return await self._rows.moved(request) if self._rows is not None else ""

    def _others(self, request: Request) -> tuple[Line, ...]:
        """Return lines on how to edit a plan, and on the requests that wait behind it for this person, with the ids for
        answering them elsewhere."""
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

    def _taken_back(self, request: Request) -> str:
        rows = self._rows.requests(pending_only=False) if self._rows is not None else ()
        row = next((candidate for candidate in rows if candidate.id == request.id), None)
        if row is None:
            return "answered elsewhere"
        if row.status == "pending":
            return "no longer asked" if row.digest == request.digest else "its content has changed"
        by = f" by {row.answered_by}" if row.answered_by else ""
        elsewhere = "answered elsewhere" if row.answered_by else "no longer needed"
        return f"{elsewhere}: {row.id} {row.status}{by}"

    def _refused(self, reason: str) -> None:
        if self._terminal is not None:
            self._terminal.terminal_print(block(f"your answer did not count: {reason}", "warn"))


class PlanPolicy:
    """`--yes`: approves plans that a person or a policy may answer. All other requests are left to others.

    In an unattended run nobody could allow the edits of an agent that leaves plan mode for `default`. There the agent
    continues in `acceptEdits`, unless the run itself was started in a mode that asks for each edit.
    """

    def __init__(self, mode_of: Callable[[str], str] | None = None) -> None:
        """`mode_of`: returns an agent's permission mode in an unattended run; None if a person is present to answer."""
        self._mode_of = mode_of

    def decides(self, request: Request) -> bool:
        return request.kind == "plan" and not request.person_only

    async def answer(self, request: Request) -> Answer | None:
        """Approve a plan. A plan that requires a person is approved in the person's name, because they typed
        `--yes`."""
        by = next((answerer for answerer in ("policy", "person") if answerer in request.may_answer), None)
        if request.kind != "plan" or by is None:
            return None
        return Answer("approved", by, "approved by --yes", AnswerDetails(mode=self._next_mode(request.asked_by)))

    def _next_mode(self, agent: str) -> str:
        """Return the mode in which the plan is executed; empty for the default."""
        if self._mode_of is None or self._mode_of(agent) != "plan" or self._mode_of("lead") in ("default", "dontAsk"):
            return ""
        return "acceptEdits"


def question_of(request: Request, *, edits: bool = False) -> str:
    """Return the text before the cursor. `edits`: a plan can be edited here."""
    if request.kind == "question":
        return "your answer> "
    if request.kind == "permission" and offered(request):
        return "allow this? [y/N, a for always, a reason may follow]> "
    if request.kind != "plan":
        return "allow this? [y/N, a reason may follow]> "
    count = len(options_of(request))
    numbers = f", {'1' if count == 1 else f'1 to {count}'} for an option" if count else ""
    edit = ", e to edit it" if edits else ""
    return f"approve this plan? [y/N, a to accept its edits too{edit}{numbers}, a reason may follow]> "


def wants_edit(request: Request, typed: str | None) -> str | None:
    """Return the message for the agent that accompanies an edit of the plan; None if no edit is requested."""
    first, _, reason = (typed or "").strip().partition(" ")
    if request.kind != "plan" or first.rstrip(",.:;").lower() not in _EDIT:
        return None
    return reason.strip().removeprefix(request.id).strip()


def read_answer(request: Request, typed: str | None) -> Answer | None:
    """Return the meaning of the typed line for this request; None if it is invalid and the question must be
    repeated."""
    text = (typed or "").strip()
    if request.kind == "question":
        return _answer_to_question(request, text)
    first, _, reason = text.partition(" ")
    reason = reason.strip()
    verdict = first.rstrip(",.:;").lower()
    if verdict in _YES:
        return Answer("approved", "person", reason)
    if verdict in _NO or not text:
        return Answer("rejected", "person", reason)
    if request.kind == "plan" and verdict in _WITH_EDITS:
        return Answer("approved", "person", reason, AnswerDetails(mode="acceptEdits"))
    if verdict in _ALWAYS and offered(request):
        always, reason = read_always(reason)
        return Answer("approved", "person", reason, always=always)
    if request.kind == "plan" and verdict.isdecimal() and 1 <= int(verdict) <= len(options_of(request)):
        return Answer("approved", "person", reason, AnswerDetails(int(verdict)))
    return None


def _waiting_text(count: int) -> str:
    return f"{count} more {'waits' if count == 1 else 'wait'}"


def _unread(request: Request) -> str:
    """Return the reply to an invalid answer."""
    if offered(request):
        return "y or n, please, or a for always (`a agent 2h`: this agent, two hours); words after it go to the agent"
    return "y or n, please; words after it go to the agent"


def request_block(request: Request, note: str = "") -> Block:
    """Return the request in full. `note`: changes since it was asked."""
    head = Line(f"{request.kind} {request.id}{_heading(request)}", "strong", request.asked_by)
    noted = (Line(f"  {_one_line(note)}", "warn"),) if note else ()
    return Block((head, *_BODIES[request.kind](request), *noted))


def _heading(request: Request) -> str:
    """Return the text after the id in the first line, without repeating the body."""
    if request.kind == "plan" and request.status == "pending":
        return " waits for approval"
    body_says_it = request.kind in ("plan", "question") or "tool" in request.payload
    return "" if body_says_it or not request.subject else f": {_one_line(request.subject)}"


def _answer_to_question(request: Request, text: str) -> Answer:
    options = _options(request)
    if text.isdigit() and 1 <= int(text) <= len(options):
        return Answer("answered", "person", options[int(text) - 1])
    return Answer("answered", "person", text or "(the person gave no answer)")


def _plan(request: Request) -> tuple[Line, ...]:
    lines = (Line(f"  {_place(request)}", "dim"), *_text(str(request.payload.get("plan", "")), "  "))
    options = _options(request)
    return lines + tuple(Line(f"  option {number}: {option}") for number, option in enumerate(options, 1))


def _place(request: Request) -> str:
    """Return the plan's revision, its subject, its folder and its commit."""
    held = request.payload
    edited = ", edited by a person" if submitted_of(request) else ""
    parts = [f"revision {request.revision}{edited}", f"for {held['task_id']}" if held.get("task_id") else ""]
    if held.get("folder"):
        base = str(held.get("base") or "")[:SHOWN]
        parts.append(f"in {_one_line(str(held['folder']))}{f' at commit {_one_line(base)}' if base else ''}")
    return "; ".join(part for part in parts if part)


def _question(request: Request) -> tuple[Line, ...]:
    lines = _text(str(request.payload.get("question", request.subject)), "  ")
    if (form := asked_of(request)) is not None:
        lines += form_lines(form)
    return lines + tuple(Line(f"  {number}. {option}") for number, option in enumerate(_options(request), 1))


def _shutdown(request: Request) -> tuple[Line, ...]:
    return _text(str(request.payload.get("why", "")), "  ") if request.payload.get("why") else ()


_BODIES: dict[str, Callable[[Request], tuple[Line, ...]]] = {
    "plan": _plan,
    "permission": permission_lines,
    "question": _question,
    "shutdown": _shutdown,
}


def _options(request: Request) -> list[str]:
    return [_one_line(option) for option in options_of(request)]


def _text(text: str, indent: str, first: str | None = None) -> tuple[Line, ...]:
    """Return all lines of the text."""
    lines = text.split("\n")
    head = indent if first is None else first
    return (Line(head + visible(lines[0])), *(Line(indent + visible(line)) for line in lines[1:]))


def _one_line(text: str) -> str:
    return visible(text).replace("\n", "\\n")


Put = Callable[[Block, str], Awaitable[str | None]]
"""Function that shows a block, asks a question, and returns the typed line; None at the end of input."""
_ENDS = frozenset({"decline", "/decline", "cancel", "/cancel"})


def form_lines(form: Elicitation) -> tuple[Line, ...]:
    """Return the lines that say what is asked, and by which server."""
    lines = [Line(f"  asked by the MCP server {_visible_line(form.server)}: what you answer goes to it", "dim")]
    if form.url:
        lines.append(Line(f"  it wants you to visit: {_visible_line(form.url)}", "warn"))
    fields = fields_of(form.schema)
    return (
        (*lines, *(Line(f"  {_about(field)}") for field in fields)) if len(fields) > 1 or not form.url else tuple(lines)
    )


def words_of(form: Elicitation) -> str:
    """Return the text before the cursor."""
    if form.url:
        return "have you been there? [y, or decline]> "
    if not fields_of(form.schema):
        return "agree? [y/N]> "
    return "your answer, or decline> "


async def fill_in(form: Elicitation, page: Block, put: Put) -> str:
    """Return the person's answer in the format of the request: one line, or the form as JSON."""
    fields = fields_of(form.schema)
    if form.url or len(fields) < 2:
        return await _fill_in_line(form, fields, page, put)
    content: Json = {}
    for field in fields:
        value = await _field(field, page, put)
        page = Block(())
        if isinstance(value, AnsweredBack):
            return value.action
        if value is not None:
            content[field.name] = value
    return json.dumps(content, ensure_ascii=False)


async def _fill_in_line(form: Elicitation, fields: tuple[Field, ...], page: Block, put: Put) -> str:
    while True:
        typed = (await put(page, words_of(form)) or "").strip()
        if not typed and fields and fields[0].default is not None:
            typed = json.dumps({fields[0].name: fields[0].default})
        answer = read(form, typed)
        if isinstance(answer, AnsweredBack):
            return typed
        page = block(answer, "warn")


async def _field(field: Field, page: Block, put: Put) -> Any:
    """Return the field's value, None if it is omitted, or the end of the form if the person cancels or declines."""
    while True:
        typed = await put(page, f"{_visible_line(field.name)}{_hint(field)}> ")
        text = (typed or "").strip()
        if text.lower() in _ENDS:
            return AnsweredBack("cancel" if "cancel" in text.lower() else "decline")
        if not text:
            if field.default is not None or not field.required:
                return field.default
            return AnsweredBack("decline")
        value = value_of(field, text)
        if not isinstance(value, InvalidValue):
            return value
        page = block(value.why, "warn")


def _hint(field: Field) -> str:
    if field.options:
        return f" [{', '.join(f'{number} {_visible_line(option)}' for number, option in enumerate(field.options, 1))}]"
    if field.default is not None:
        return f" [{_visible_line(str(field.default))}]"
    return " [y/n]" if field.kind == "boolean" else ""


def _about(field: Field) -> str:
    need = "" if field.required else ", may be left out"
    about = f": {_visible_line(field.about)}" if field.about else ""
    return f"{_visible_line(field.name)} ({field.kind}{need}){about}"


def _visible_line(text: str) -> str:
    return visible(text).replace("\n", "\\n")
