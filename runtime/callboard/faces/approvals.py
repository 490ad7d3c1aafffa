"""Requests as a person meets them: shown whole, asked one at a time, answered in words.

Two approvers: `PersonApprover` asks through whatever way of asking its face has; `PlanPolicy` is `--yes`. A plan and
what a tool is about to run are shown in full, control characters spelled out, so that nothing hides from the one who
approves it. An empty answer or the end of input is no. A question that somebody else answers first is taken back, and
an answer that comes too late is told so: in both cases with who was first.

It refuses to read a keyboard, and `--yes` never answers a permission.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

import anyio

from callboard.core.asking.plans import SHOWN, Word, options_of, submitted_of
from callboard.core.asking.session_rules import offered
from callboard.core.mcp.forms import asked_of
from callboard.faces.editing import Edit, approval, kept
from callboard.faces.forms import Put, fill_in, form_lines
from callboard.faces.permission import permission_lines, read_always, until_line
from callboard.faces.revisions import revision_lines
from callboard.faces.terminal import Block, Line, Terminal, block, visible
from callboard.ports.world import Answer
from callboard.words.errors import UsageError
from callboard.words.values import Request

TakenBack = Callable[[], str]
"""Why a question is taken back, in words, once it is."""
Ask = Callable[[Block, str, TakenBack], Awaitable[str | None]]
"""Show a block, put a question, return the line that was typed; None at the end of input. Cancelled, it says why."""

_YES, _NO, _EDIT = frozenset({"y", "yes"}), frozenset({"n", "no"}), frozenset({"e", "edit", "/edit"})
_ALWAYS = frozenset({"a", "always"})


class Rows(Protocol):
    """What an approver asks the session for: what it does not see in the request that it was given."""

    def requests(self, *, pending_only: bool = True) -> Sequence[Request]:
        """The session's requests as they stand."""
        ...

    async def moved(self, request: Request) -> str:
        """What has changed round a plan since it was submitted; empty: nothing."""
        ...


class PersonApprover:
    """Asks the person at this terminal, one question at a time, and says how many more wait."""

    def __init__(
        self,
        ask: Ask,
        terminal: Terminal | None = None,
        *,
        leave_plans: bool = False,
        edit: Edit | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`terminal`: where answers are told that came too late; whoever gives one attaches the session too.
        `leave_plans`: a policy answers plans; this person is not asked. `edit`: how a plan is edited here, if it is.
        `now`: the time, in Unix seconds."""
        self._now = now
        self._ask, self._terminal, self._leave_plans, self._edit = ask, terminal, leave_plans, edit
        self._one_at_a_time = anyio.Lock()
        self._waiting: dict[str, Request] = {}
        self._shown = ""
        """The id of the request whose question is on the screen; empty: none is."""
        self._rows: Rows | None = None
        self._attached = anyio.Event()

    def attach(self, rows: Rows) -> None:
        """The session is open: from now on its rows can be looked at."""
        self._rows = rows
        self._attached.set()

    async def answer(self, request: Request) -> Answer | None:
        """Ask until the words can be read as an answer. None for what is not this person's to answer."""
        if "person" not in request.may_answer or (self._leave_plans and request.kind == "plan"):
            return None
        self._waiting[request.id] = request
        self._tell_of_another(request)
        try:
            async with self._one_at_a_time:
                return await self._asked(request)
        finally:
            del self._waiting[request.id]

    def _tell_of_another(self, request: Request) -> None:
        """One more waits behind the question that is on the screen."""
        if self._shown and self._terminal is not None:
            count = len(self._waiting) - 1
            words = f"{request.kind} {request.id} ({request.asked_by}) waits behind {self._shown}: {_more(count)}"
            self._terminal.terminal_print(Block((Line(words, "dim"),)))

    async def _asked(self, request: Request) -> Answer:
        note = await self._note(request)
        try:
            shown = Block((*request_block(request, note).lines, *self._beside(request), *self._others(request)))
            self._shown = request.id
            return await self._answered(request, shown)
        finally:
            self._shown = ""

    def _beside(self, request: Request) -> tuple[Line, ...]:
        """What differs from the revision before, and until when it waits."""
        rows = self._rows.requests(pending_only=False) if self._rows is not None and request.kind == "plan" else ()
        return (*revision_lines(request, rows), *until_line(request, self._now()))

    async def _answered(self, request: Request, shown: Block) -> Answer:
        """The answer, asked for until one can be read."""
        if (asked := asked_of(request)) is not None:
            return Answer("answered", "person", await fill_in(asked, shown, self._put(request)), refused=self._refused)
        words = question_of(request, edits=self._edit is not None)
        while True:
            typed = await self._ask(shown, words, lambda: self._taken_back(request))
            if self._edit is not None and (why := wants_edit(request, typed)) is not None:
                edited = await self._edited(request, why, self._edit)
                if isinstance(edited, Answer):
                    return edited
                shown = block(edited, "warn")
                continue
            read = read_answer(request, typed)
            if read is not None:
                break
            shown = Block((Line(_unread(request), "warn"),))
        if request.kind == "plan" and read.status == "rejected" and not read.reason and (typed or "").strip():
            why = await self._ask(Block(()), "what is to change?> ", lambda: self._taken_back(request))
            read = Answer("rejected", "person", (why or "").strip())
        return replace(read, refused=self._refused)

    def _put(self, request: Request) -> Put:
        async def put(shown: Block, words: str) -> str | None:
            return await self._ask(shown, words, lambda: self._taken_back(request))

        return put

    async def _edited(self, plan: Request, why: str, edit: Edit) -> Answer | str:
        """The approval of what the person made of it, or why it is none. The text is not lost if it comes too late."""
        try:
            text = await edit(plan)
            word = approval(plan, text)
        except UsageError as refused:
            return str(refused)
        return Answer(
            "approved", "person", why, word, refused=lambda late: self._refused(f"{late}. {kept(plan, text)}")
        )

    async def _note(self, request: Request) -> str:
        if request.kind != "plan" or self._terminal is None:
            return ""
        await self._attached.wait()  # a resumed session asks before its face has it
        return await self._rows.moved(request) if self._rows is not None else ""

    def _others(self, request: Request) -> tuple[Line, ...]:
        """How a plan is edited, and those that wait for this person behind it, by the ids that answer them from
        elsewhere."""
        others = [one for one in self._waiting.values() if one.id != request.id]
        edit = (Line(f"  to edit it, in another terminal: callboard edit {request.id}", "dim"),)
        edit = edit if request.kind == "plan" and self._edit is None else ()
        if not others:
            return edit
        names = ", ".join(f"{one.kind} {one.id} ({one.asked_by})" for one in others)
        return (
            *edit,
            Line(f"  {_more(len(others))}: {names}", "dim"),
        )

    def _taken_back(self, request: Request) -> str:
        rows = self._rows.requests(pending_only=False) if self._rows is not None else ()
        row = next((one for one in rows if one.id == request.id), None)
        if row is None:
            return "answered elsewhere"
        if row.status == "pending":
            return "no longer asked" if row.digest == request.digest else "its content has changed"
        by = f" by {row.answered_by}" if row.answered_by else ""
        elsewhere = "answered elsewhere" if row.answered_by else "no longer needed"
        return f"{elsewhere}: {row.id} {row.status}{by}"

    def _refused(self, why: str) -> None:
        if self._terminal is not None:
            self._terminal.terminal_print(block(f"your answer did not count: {why}", "warn"))


class PlanPolicy:
    """`--yes`: approves plans that a person or a policy may answer. Everything else is left to others."""

    def decides(self, request: Request) -> bool:
        return request.kind == "plan" and not request.person_only

    async def answer(self, request: Request) -> Answer | None:
        """Approved, for a plan. A plan that is for a person gets it as the person's word: they typed `--yes`."""
        by = next((who for who in ("policy", "person") if who in request.may_answer), None)
        if request.kind != "plan" or by is None:
            return None
        return Answer("approved", by, "approved by --yes")


def question_of(request: Request, *, edits: bool = False) -> str:
    """The words before the cursor. `edits`: a plan can be edited here."""
    if request.kind == "question":
        return "your answer> "
    if request.kind == "permission" and offered(request):
        return "allow this? [y/N, a for always, a reason may follow]> "
    if request.kind != "plan":
        return "allow this? [y/N, a reason may follow]> "
    count = len(options_of(request))
    numbers = f", {'1' if count == 1 else f'1 to {count}'} for an option" if count else ""
    edit = ", e to edit it" if edits else ""
    return f"approve this plan? [y/N{edit}{numbers}, a reason may follow]> "


def wants_edit(request: Request, typed: str | None) -> str | None:
    """The words for the agent that go with an edit of the plan; None: none is asked for."""
    first, _, why = (typed or "").strip().partition(" ")
    if request.kind != "plan" or first.rstrip(",.:;").lower() not in _EDIT:
        return None
    return why.strip().removeprefix(request.id).strip()


def read_answer(request: Request, typed: str | None) -> Answer | None:
    """What the typed line means for this request; None: it cannot be read, ask again."""
    words = (typed or "").strip()
    if request.kind == "question":
        return _answer_to_question(request, words)
    first, _, reason = words.partition(" ")
    reason = reason.strip()
    verdict = first.rstrip(",.:;").lower()
    if verdict in _YES:
        return Answer("approved", "person", reason)
    if verdict in _NO or not words:
        return Answer("rejected", "person", reason)
    if verdict in _ALWAYS and offered(request):
        always, reason = read_always(reason)
        return Answer("approved", "person", reason, always=always)
    if request.kind == "plan" and verdict.isdecimal() and 1 <= int(verdict) <= len(options_of(request)):
        return Answer("approved", "person", reason, Word(int(verdict)))
    return None


def _more(count: int) -> str:
    return f"{count} more {'waits' if count == 1 else 'wait'}"


def _unread(request: Request) -> str:
    """What is said to words that are no answer."""
    if offered(request):
        return "y or n, please, or a for always (`a agent 2h`: this agent, two hours); words after it go to the agent"
    return "y or n, please; words after it go to the agent"


def request_block(request: Request, note: str = "") -> Block:
    """The request in full. `note`: what has changed round it since it was asked."""
    head = Line(f"{request.kind} {request.id}: {_one_line(request.subject)}", "strong", request.asked_by)
    noted = (Line(f"  {_one_line(note)}", "warn"),) if note else ()
    return Block((head, *_BODIES[request.kind](request), *noted))


def _answer_to_question(request: Request, words: str) -> Answer:
    options = _options(request)
    if words.isdigit() and 1 <= int(words) <= len(options):
        return Answer("answered", "person", options[int(words) - 1])
    return Answer("answered", "person", words or "(the person gave no answer)")


def _plan(request: Request) -> tuple[Line, ...]:
    lines = (Line(f"  {_place(request)}", "dim"), *_text(str(request.payload.get("plan", "")), "  "))
    options = _options(request)
    return lines + tuple(Line(f"  option {number}: {option}") for number, option in enumerate(options, 1))


def _place(request: Request) -> str:
    """Which revision, for what, in which folder and at which commit."""
    held = request.payload
    edited = ", edited by a person" if submitted_of(request) else ""
    parts = [f"revision {request.revision}{edited}", f"for {held['task_id']}" if held.get("task_id") else ""]
    if held.get("folder"):
        base = str(held.get("base") or "")[:SHOWN]
        parts.append(f"in {_one_line(str(held['folder']))}{f' at commit {_one_line(base)}' if base else ''}")
    return "; ".join(part for part in parts if part)


def _question(request: Request) -> tuple[Line, ...]:
    lines = _text(str(request.payload.get("question", request.subject)), "  ")
    if (asked := asked_of(request)) is not None:
        lines += form_lines(asked)
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
    """Line for line, all of it."""
    lines = text.split("\n")
    head = indent if first is None else first
    return (Line(head + visible(lines[0])), *(Line(indent + visible(line)) for line in lines[1:]))


def _one_line(text: str) -> str:
    return visible(text).replace("\n", "\\n")
