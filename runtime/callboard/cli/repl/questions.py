"""Questions that wait for the person at the prompt line, asked one at a time in order.

The caller that asks interprets the answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from callboard.cli.repl.line import LineInterrupted
from callboard.cli.terminal.approver import TakenBack
from callboard.cli.terminal.plan_editor import Edit, editable, keep_text
from callboard.cli.terminal.terminal import Block, Terminal, block
from callboard.types.errors import UsageError
from callboard.types.records import Request

Asked = Callable[[str, Callable[[], bool]], Awaitable[str | None]]
"""Function that reads the answer after this text (`PromptLine.ask`)."""


class Stopped(KeyboardInterrupt):
    """Raised at Ctrl-C at a question. It is not an answer: the question is repeated until it is answered or
    withdrawn."""


@dataclass(slots=True)
class _Question:
    """Question in the queue. `answer` is set when it was typed; `gone` when it is no longer needed."""

    block: Block
    prompt: str
    taken_back: TakenBack
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: str | None = None
    over: anyio.Event = field(default_factory=anyio.Event)

    @property
    def gone(self) -> bool:
        return self.over.is_set()


@dataclass(slots=True)
class _Editing:
    """Plan in the queue that the person chose to edit. `gone` as above."""

    plan: Request
    done: anyio.Event = field(default_factory=anyio.Event)
    text: str | UsageError = ""
    gone: bool = False


class Questions:
    """Queue of questions. `call` interrupts the line that is being typed, so that its reader checks the queue."""

    def __init__(self, terminal: Terminal, prompt: Asked, call: Callable[[], None], edit: Edit) -> None:
        self._terminal = terminal
        self._asked_line = prompt
        self._call = call
        self._edit = edit
        self._queue: deque[_Question | _Editing] = deque()
        self._asked: _Question | None = None

    def __len__(self) -> int:
        """Return the number of waiting questions; the one being asked is not counted."""
        return len(self._queue)

    async def ask(self, page: Block, prompt: str, taken_back: TakenBack) -> str | None:
        """Ask a question when its turn comes, and return the typed line. When cancelled, it shows the reason."""
        question = _Question(page, prompt, taken_back)
        self._queue.append(question)
        if self._asked is None:
            self._call()
        try:
            await question.answered.wait()
        finally:
            question.over.set()
            if self._asked is question:
                self._call()
        return question.answer

    async def edit_in_turn(self, plan: Request) -> str:
        """Return the plan's text as the person saved it: the editor opens before the next question is asked."""
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
        """Put the next question, or open the editor for it. Raises what the line raises, `LineInterrupted` excepted."""
        next_one = self._queue.popleft()
        if isinstance(next_one, _Question):
            await self._put(next_one)
        elif not next_one.gone:
            await self._have_edited(next_one)

    async def _have_edited(self, editing: _Editing) -> None:
        """Open a plan in the editor and pass the text to the caller that requested it. If the request is no longer
        open, tell the person where the text is saved."""
        plan = editing.plan
        try:
            editing.text = await self._edit(plan)
        except UsageError as failed:
            editing.text = failed
        editing.done.set()
        if editing.gone and isinstance(editing.text, str) and editing.text.strip() != editable(plan).strip():
            text = f"{plan.id} is not asked any more. {keep_text(plan, editing.text)}"
            self._terminal.terminal_print(block(text, "warn"))

    async def _put(self, question: _Question) -> None:
        if question.gone:
            return
        self._asked = question
        self._terminal.terminal_print(question.block)
        self._terminal.flush()
        try:
            question.answer = await self._typed(question)
        except LineInterrupted:
            self._terminal.terminal_print(block(f"({question.taken_back()})", "dim"))
            return
        except (EOFError, KeyboardInterrupt) as key:  # leaving, or stopping: neither is an answer
            self._terminal.terminal_print(block(f"{question.prompt}(not answered)", "dim"))
            self._queue.appendleft(question)
            if isinstance(key, EOFError):
                raise
            raise Stopped from key
        finally:
            self._asked = None
        self._terminal.terminal_print(block(f"{question.prompt}{question.answer or 'no'}", "strong"))
        question.answered.set()

    async def settled(self, seconds: float) -> None:
        """Wait, at most `seconds`, until the next question is withdrawn: the turn that asks it is being stopped."""
        if self._queue and isinstance(self._queue[0], _Question):
            with anyio.move_on_after(seconds):
                await self._queue[0].over.wait()

    async def _typed(self, question: _Question) -> str:
        while (typed := await self._asked_line(question.prompt, lambda: question.gone)) is None:
            self._terminal.terminal_print(block("that came too soon to be an answer; once more, please", "warn"))
        return typed
