"""Questions at the prompt line, and the keys that answer: a queue, whose callers interpret the answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import field

import anyio
from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application
from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from callboard.cli.repl.draft import EscapeKey, LineInterrupted
from callboard.cli.terminal.approver import ELSEWHERE, TakenBack
from callboard.cli.terminal.frame import WHOLE, DrawnFrame, Frame
from callboard.cli.terminal.plan_editor import Edit, keep_text
from callboard.cli.terminal.terminal import Block, Terminal, block
from callboard.cli.views.edits import text_to_edit
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Request

Asked = Callable[[str, Callable[[], bool], DrawnFrame | None], Awaitable[str | None]]
"""Function that reads the answer after this text (`PromptLine.ask`)."""
Draw = Callable[[Frame], DrawnFrame | None]
"""Function that returns the frame as it is drawn; None if it has to be printed."""


class QuestionInterrupted(KeyboardInterrupt):
    """Ctrl-C or Esc at a question, which is not an answer: the question is repeated until it is answered or withdrawn.

    `may_leave`: True for Ctrl-C, which leaves when it is pressed again.
    """

    def __init__(self, *, may_leave: bool) -> None:
        super().__init__()
        self.may_leave = may_leave


@dataclass(slots=True)
class _Question:
    """Question in the queue. `answer` is set when it was typed; `gone` when it is no longer needed."""

    page: Block | Frame
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
    """Plan or call in the queue that the person chose to edit. `gone` as above."""

    request: Request
    done: anyio.Event = field(default_factory=anyio.Event)
    text: str | UsageError = ""
    gone: bool = False


class Questions:
    """Queue of questions. `call` interrupts the line that is being typed, so that its reader checks the queue."""

    def __init__(
        self, terminal: Terminal, prompt: Asked, call: Callable[[], None], edit: Edit, *, draw: Draw = lambda _: None
    ) -> None:
        self._terminal = terminal
        self._draw = draw
        self._asked_line = prompt
        self._call = call
        self._edit = edit
        self._queue: deque[_Question | _Editing] = deque()
        self._asked: _Question | None = None

    def __len__(self) -> int:
        """Return the number of waiting questions; the one being asked is not counted."""
        return len(self._queue)

    async def ask(self, page: Block | Frame, prompt: str, taken_back: TakenBack) -> str | None:
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

    async def edit_in_turn(self, request: Request) -> str:
        """Return the text as the person saved it: the editor opens before the next question is asked."""
        editing = _Editing(request)
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
        """Ask the next question, or open its editor. Raises the exceptions of the line except `LineInterrupted`."""
        next_one = self._queue.popleft()
        if isinstance(next_one, _Question):
            await self._put(next_one)
        elif not next_one.gone:
            await self._have_edited(next_one)

    async def _have_edited(self, editing: _Editing) -> None:
        """Open a request in the editor and pass the text to the caller that requested it.

        If the request is no longer open, tell the person where the text is saved.
        """
        request = editing.request
        try:
            editing.text = await self._edit(request)
        except UsageError as failed:
            editing.text = failed
        editing.done.set()
        if editing.gone and isinstance(editing.text, str) and editing.text.strip() != text_to_edit(request)[0].strip():
            text = f"{request.id} is no longer open. {keep_text(request, editing.text)}"
            self._terminal.terminal_print(block(text, "warn"))

    async def _put(self, question: _Question) -> None:
        if question.gone:
            return
        self._asked = question
        page = question.page
        drawn = self._draw(page) if isinstance(page, Frame) else None
        if drawn is None:
            self._terminal.terminal_print(Block(tuple(page.lines)))
        self._terminal.flush()
        try:
            question.answer = await self._typed(question, drawn)
        except LineInterrupted:
            reason = question.taken_back()
            if drawn is None or not drawn.frame.recorded or not reason.startswith(ELSEWHERE):
                self._terminal.terminal_print(block(f"({reason})", "dim"))
            return
        except (EOFError, KeyboardInterrupt) as key:  # the person leaves or stops the turn; neither is an answer
            self._terminal.terminal_print(block(f"{_left_question_line(question)}(not answered)", "dim"))
            self._queue.appendleft(question)
            if isinstance(key, EOFError):
                raise
            raise QuestionInterrupted(may_leave=not isinstance(key, EscapeKey)) from key
        finally:
            self._asked = None
        question.answered.set()

    async def wait_settled(self, seconds: float) -> None:
        """Wait, at most `seconds`, until the next question is withdrawn: the turn that asks it is being stopped."""
        if self._queue and isinstance(self._queue[0], _Question):
            with anyio.move_on_after(seconds):
                await self._queue[0].over.wait()

    async def _typed(self, question: _Question, drawn: DrawnFrame | None) -> str:
        while True:
            typed = await self._asked_line(question.prompt, lambda: question.gone, drawn)
            if typed is None:
                self._terminal.terminal_print(block("too soon after the question: type the answer again", "warn"))
            elif drawn is not None and drawn.folded and typed.strip().lower() == WHOLE:
                self._terminal.terminal_print(drawn.whole())
            else:
                return typed


def _left_question_line(question: _Question) -> str:
    """Return the start of the line about a question that was left."""
    page = question.page
    return f"{page.title}: " if isinstance(page, Frame) else question.prompt


def answer_keys(line: PromptSession[str], drawn: DrawnFrame, ready: Callable[[], bool]) -> None:
    """Let the keys of a frame answer at once, on an empty line and once `ready` returns True. Esc is no answer."""
    bindings = line.key_bindings
    assert isinstance(bindings, KeyBindings), "the line of a question has bindings of its own"

    def bind(key: str) -> None:
        active = Condition(lambda: ready() and not line.default_buffer.text and key in drawn.keys)

        def answer(event: KeyPressEvent) -> None:
            event.current_buffer.text = key
            event.current_buffer.validate_and_handle()

        bindings.add(key, filter=active)(answer)

    for key in "123456789" + WHOLE:
        bind(key)

    def escape(event: KeyPressEvent) -> None:
        event.app.exit(exception=EscapeKey())

    bindings.add("escape", filter=Condition(lambda: ready() and not line.default_buffer.text))(escape)
    hurry_escape(line.app)


def hurry_escape(app: Application[str]) -> None:
    """Shorten the wait for further bytes or keys after Esc, with which many other keys begin, from 1.5 s to 0.4 s."""
    app.ttimeoutlen = app.timeoutlen = 0.2
