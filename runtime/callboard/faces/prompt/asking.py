"""The questions that wait for the person at the prompt line: put one at a time, each with its turn.

It refuses to read an answer: whoever asked does that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from callboard.faces.approvals import TakenBack
from callboard.faces.editing import Edit, editable, kept
from callboard.faces.prompt.line import Called
from callboard.faces.terminal import Block, Terminal, block
from callboard.words.errors import UsageError
from callboard.words.values import Request

Asked = Callable[[str, Callable[[], bool]], Awaitable[str | None]]
"""Read the answer after these words (`PromptLine.asked`)."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C at a question: the answer is no, and whoever asked is to stop."""


@dataclass(slots=True)
class _Question:
    """A question in the queue. `answer` is set when it was typed; `gone` when nobody needs it any more."""

    shown: Block
    words: str
    taken_back: TakenBack
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: str | None = None
    gone: bool = False


@dataclass(slots=True)
class _Editing:
    """A plan in the queue that the person has chosen to edit. `gone` as above."""

    plan: Request
    done: anyio.Event = field(default_factory=anyio.Event)
    text: str | UsageError = ""
    gone: bool = False


class Questions:
    """The queue. `call` leaves the line that is being typed, so that whoever reads it looks here."""

    def __init__(self, terminal: Terminal, asked: Asked, call: Callable[[], None], edit: Edit) -> None:
        self._terminal, self._asked_line, self._call, self._edit = terminal, asked, call, edit
        self._queue: deque[_Question | _Editing] = deque()
        self._asked: _Question | None = None

    def __len__(self) -> int:
        """How many wait for their turn; the one being asked is not counted."""
        return len(self._queue)

    async def ask(self, shown: Block, words: str, taken_back: TakenBack) -> str | None:
        """Put a question when its turn comes, and return the line that was typed. Cancelled, it says why."""
        question = _Question(shown, words, taken_back)
        self._queue.append(question)
        if self._asked is None:
            self._call()
        try:
            await question.answered.wait()
        finally:
            question.gone = True
            if self._asked is question:
                self._call()
        return question.answer

    async def edit_in_turn(self, plan: Request) -> str:
        """The plan's text as the person saved it: the editor opens before another question is put."""
        editing = _Editing(plan)
        self._queue.appendleft(editing)
        if self._asked is None:
            self._call()
        try:
            await editing.done.wait()
        finally:
            editing.gone = True
        if isinstance(editing.text, UsageError):
            raise editing.text
        return editing.text

    async def serve(self) -> None:
        """Put the next question, or open the editor for it. Raises what the line raises, `Called` excepted."""
        next_one = self._queue.popleft()
        if isinstance(next_one, _Question):
            await self._put(next_one)
        elif not next_one.gone:
            await self._have_edited(next_one)

    async def _have_edited(self, editing: _Editing) -> None:
        """Who asked for it has the text, or the person is told where it is when nobody asks any more."""
        plan = editing.plan
        try:
            editing.text = await self._edit(plan)
        except UsageError as failed:
            editing.text = failed
        editing.done.set()
        if editing.gone and isinstance(editing.text, str) and editing.text.strip() != editable(plan).strip():
            words = f"{plan.id} is not asked any more. {kept(plan, editing.text)}"
            self._terminal.terminal_print(block(words, "warn"))

    async def _put(self, question: _Question) -> None:
        if question.gone:
            return
        self._asked = question
        self._terminal.terminal_print(question.shown)
        self._terminal.flush()
        stopped = False
        try:
            question.answer = await self._typed(question)
        except Called:
            self._terminal.terminal_print(block(f"({question.taken_back()})", "dim"))
            return
        except EOFError:
            question.answer = None
        except KeyboardInterrupt:
            question.answer, stopped = None, True
        finally:
            self._asked = None
        self._terminal.terminal_print(block(f"{question.words}{question.answer or 'no'}", "strong"))
        question.answered.set()
        if stopped:
            raise Stopped

    async def _typed(self, question: _Question) -> str:
        while (typed := await self._asked_line(question.words, lambda: question.gone)) is None:
            self._terminal.terminal_print(block("that came too soon to be an answer; once more, please", "warn"))
        return typed
