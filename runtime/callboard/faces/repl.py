"""The prompt line: a person talks to the lead while the team works, and is asked one question at a time.

What agents print appears above the line; draft and cursor stay as they were. A question leaves the line, is asked in
its place, and the draft comes back. The only importer of prompt_toolkit.

It refuses to run without a terminal (`callboard run` is for that), and to do anything that `Session` cannot.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.patch_stdout import patch_stdout

from callboard.app import End, OpenSession, Options
from callboard.attaching import Attach, AttachedSession, opened
from callboard.faces.approvals import PersonApprover, TakenBack
from callboard.faces.commands import COMMANDS, Here, Leave, perform
from callboard.faces.editing import edit_at, editable, kept
from callboard.faces.gate import PersonGate
from callboard.faces.leaving import TWICE
from callboard.faces.lines import call_words, shorten
from callboard.faces.pages.listings import at_work, attached_block, status_words
from callboard.faces.screen import Screen
from callboard.faces.terminal import Block, Terminal, block, plain
from callboard.ports.model import Delta
from callboard.words.errors import UsageError
from callboard.words.events import (
    AgentStopped,
    CallFailed,
    Event,
    ModelCalled,
    ModelReplied,
    ReplyDropped,
    ReplyInterrupted,
    ToolStarted,
    TurnEnded,
)
from callboard.words.values import Request

_TAIL_WIDTH = 100
_DOING_WIDTH, _DOING_SHOWN = 30, 3
TOO_SOON = 0.5
"""Seconds: a line that ends sooner after its question appeared was not meant for it."""


class _Called(Exception):
    """The prompt line was left for something that cannot wait; the draft is kept."""


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


@dataclass(slots=True)
class _Draft:
    text: str = ""
    cursor: int = 0


class LiveScreen(Screen):
    """A screen that also shows the sentence that the lead is in the middle of, just above the prompt line."""

    def __init__(self, terminal: Terminal, *, verbose: bool) -> None:
        super().__init__(terminal, result_apart=False, verbose=verbose)
        self.tail = ""
        self.redraw: Callable[[], None] = _nothing
        self._doing: dict[str, str] = {}

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Keep the last line of what streams; the whole text is printed when its reply is whole."""
        super().on_delta(agent, delta)
        if agent != "lead" or delta.kind == "thinking":
            return
        self.tail = "" if delta.kind != "text" else (self.tail + delta.text)[-4_000:].rpartition("\n")[2]
        self.redraw()

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        """Print the event's lines; what was streaming is whole now, or void."""
        if agent == "lead" and isinstance(event, ModelReplied | ReplyDropped | ReplyInterrupted | CallFailed):
            self.tail = ""
        super().on_event(agent, seq, event)
        match event:
            case ModelCalled():
                self._doing[agent] = "thinks" if event.purpose == "turn" else "summarises"
            case ToolStarted():
                call = self.call(agent, event.call)
                self._doing[agent] = call_words(call) if call else "works"
            case TurnEnded() | AgentStopped():
                self._doing.pop(agent, None)
            case _:
                pass
        self.redraw()

    def found(self, at_work: Sequence[str]) -> None:
        """These were at work when this screen attached; what at, the next of their events tells."""
        for agent in at_work:
            self._doing.setdefault(agent, "at work")

    def doing(self) -> str:
        """What each agent is at, in a few words."""
        shown = [f"{agent}: {shorten(what, _DOING_WIDTH)}" for agent, what in list(self._doing.items())[:_DOING_SHOWN]]
        more = len(self._doing) - len(shown)
        return " | ".join([*shown, *([f"{more} more"] if more > 0 else [])])


class Repl:
    """One conversation at a prompt line."""

    def __init__(
        self, options: Options, terminal: Terminal, *, verbose: bool = False, attach: Attach = "if hosted"
    ) -> None:
        """`attach`: what to do where another process hosts the session."""
        self._options, self._terminal = options, terminal
        self._attach: Attach = attach
        self._end: End | None = None
        """How the session ended that another process hosted."""
        self._screen = LiveScreen(terminal, verbose=verbose)
        self._questions: deque[_Question | _Editing] = deque()
        self._asked: _Question | None = None
        self._asking: PromptSession[str] | None = None
        self._draft = _Draft()
        self._last_interrupt = float("-inf")
        self._prompt = _line(InMemoryHistory())
        self._line_open = ExitStack()
        """What makes that prints appear above the line, while this prompt line has the screen."""

    async def run(self) -> int:
        """Talk until the person leaves; the exit code."""
        approver = PersonApprover(self.ask, self._terminal, edit=self._edit_in_turn)
        options = replace(self._options, gate=PersonGate(self._terminal, attended=self._options.attended))
        async with opened(self._attach, options, [self._screen], [approver]) as session:
            self._prompt = _line(_history(session.places.state))
            self._screen.redraw = self._prompt.app.invalidate
            self._screen.attach(session, asks_plans=True)
            approver.attach(session)
            words = f"session {session.id}, model {session.model}; /help tells what there is"
            self._terminal.terminal_print(block(words, "dim"))
            if isinstance(session, AttachedSession):
                self._terminal.terminal_print(attached_block(session))
                self._screen.found(at_work(session))
            self._terminal.flush()
            with self._line_open:
                self._open_line()
                return await self._talk_until_left(session)

    def _open_line(self) -> None:
        self._line_open.enter_context(patch_stdout(raw=True))
        self._terminal.show_above(sys.stdout.write)
        self._line_open.callback(self._terminal.show_above, None)

    async def ask(self, shown: Block, words: str, taken_back: TakenBack) -> str | None:
        """Put a question when its turn comes, and return the line that was typed. Cancelled, it says why."""
        question = _Question(shown, words, taken_back)
        self._questions.append(question)
        if self._asked is None:
            self._call()
        try:
            await question.answered.wait()
        finally:
            question.gone = True
            if self._asked is question:
                self._call()
        return question.answer

    async def _talk_until_left(self, session: OpenSession) -> int:
        """Talk; where another process is the host, no longer than it hosts."""

        async def left(attached: AttachedSession) -> None:
            self._end = await attached.finished()
            self._call()

        codes: list[int] = []
        async with anyio.create_task_group() as group:
            if isinstance(session, AttachedSession):
                group.start_soon(left, session)
            codes.append(await self._talk(session))
            group.cancel_scope.cancel()
        return codes[0]

    async def _talk(self, session: OpenSession) -> int:
        while self._end is None:
            try:
                if self._questions:
                    await self._serve(self._questions.popleft())
                    continue
                line = await self._read(session)
                await self._heed(session, line)
            except _Called:
                continue
            except KeyboardInterrupt:
                if await self._interrupted(session):
                    return 130
            except (EOFError, Leave):
                return 0
        self._terminal.terminal_print(block(self._end.why or "its host has left the session", "warn"))
        return self._end.exit_code

    async def _read(self, session: OpenSession) -> str:
        """One line of the person's, from the draft on."""
        try:
            line = await self._prompt.prompt_async(
                self._above,
                bottom_toolbar=lambda: self._below(session),
                default=self._draft.text,
                pre_run=self._place_cursor,
                handle_sigint=False,
            )
        except BaseException:  # whatever calls us away - a question, Ctrl-C, the end - the draft is looked at first
            buffer = self._prompt.default_buffer
            self._draft = _Draft(buffer.text, buffer.cursor_position)
            raise
        self._draft = _Draft()
        if line.strip():
            self._terminal.terminal_print(block(f"> {line}", "strong"))
        return line

    def _place_cursor(self) -> None:
        self._prompt.default_buffer.cursor_position = self._draft.cursor
        if self._questions or self._end is not None:
            self._call()

    def _above(self) -> FormattedText:
        """The live tail and the prompt itself."""
        tail = shorten(plain(self._screen.tail).replace("\n", " "), _TAIL_WIDTH)
        return FormattedText([*([("", f"{tail}\n")] if tail else []), ("bold", "> ")])

    def _below(self, session: OpenSession) -> str:
        """What the team is doing and what it cost."""
        return plain(" | ".join(part for part in (self._screen.doing(), status_words(session)) if part))

    async def _serve(self, next_one: _Question | _Editing) -> None:
        if isinstance(next_one, _Question):
            await self._put(next_one)
        elif not next_one.gone:
            await self._have_edited(next_one)

    async def _edit_in_turn(self, plan: Request) -> str:
        """The plan's text as the person saved it: the editor opens before another question is put."""
        editing = _Editing(plan)
        self._questions.appendleft(editing)
        self._call()
        try:
            await editing.done.wait()
        finally:
            editing.gone = True
        if isinstance(editing.text, UsageError):
            raise editing.text
        return editing.text

    async def _have_edited(self, editing: _Editing) -> None:
        """Who asked for it has the text, or the person is told where it is when nobody asks any more."""
        plan = editing.plan
        try:
            editing.text = await self._edit_now(plan)
        except UsageError as failed:
            editing.text = failed
        editing.done.set()
        if editing.gone and isinstance(editing.text, str) and editing.text.strip() != editable(plan).strip():
            words = f"{plan.id} is not asked any more. {kept(plan, editing.text)}"
            self._terminal.terminal_print(block(words, "warn"))

    async def _edit_now(self, plan: Request) -> str:
        """Open the editor in the place of this prompt line, and take the place again when it is closed."""
        self._line_open.close()
        try:
            return await edit_at(self._terminal, plan)
        finally:
            self._open_line()

    async def _put(self, question: _Question) -> None:
        if question.gone:
            return
        self._asked = question
        self._terminal.terminal_print(question.shown)
        self._terminal.flush()
        asking = _line(InMemoryHistory())
        self._asking = asking
        try:
            question.answer = await self._typed(asking, question.words)
        except _Called:
            self._terminal.terminal_print(block(f"({question.taken_back()})", "dim"))
            return
        except (EOFError, KeyboardInterrupt):
            question.answer = None
        finally:
            self._asked, self._asking = None, None
        self._terminal.terminal_print(block(f"{question.words}{question.answer or 'no'}", "strong"))
        question.answered.set()

    async def _typed(self, asking: PromptSession[str], words: str) -> str:
        """The answer. A person who was typing when the question came has not answered it with that Enter."""
        while (typed := await _meant(asking, words)) is None:
            self._terminal.terminal_print(block("that came too soon to be an answer; once more, please", "warn"))
        return typed

    async def _heed(self, session: OpenSession, line: str) -> None:
        """Do what a line says; an empty one does nothing. Raises `Leave`."""
        words = line.strip()
        if not words:
            return
        if words.startswith("/"):
            await perform(words, Here(session, self._edit_now), self._terminal)
        else:
            await session.say(line)

    async def _interrupted(self, session: OpenSession) -> bool:
        """Ctrl-C: drop the draft, else stop the turn, else (a second within two seconds) leave."""
        if self._draft.text:
            self._draft = _Draft()
            return False
        now = anyio.current_time()
        if now - self._last_interrupt <= TWICE:
            return True
        self._last_interrupt = now
        self._terminal.terminal_print(block("stopping the turn; Ctrl-C again within 2 s leaves", "warn"))
        await session.interrupt()
        return False

    def _call(self) -> None:
        """Leave whichever line is being typed; the loop looks what there is to do."""
        line = self._asking if self._asked is not None else self._prompt
        if line is not None and line.app.is_running and not line.app.is_done:
            line.app.exit(exception=_Called())


def run_repl(options: Options, terminal: Terminal, *, verbose: bool = False, attach: Attach = "if hosted") -> int:
    """Talk in this thread until it is over; the exit code."""

    async def talk() -> int:
        return await Repl(options, terminal, verbose=verbose, attach=attach).run()

    return anyio.run(talk)


def _line(history: History) -> PromptSession[str]:
    return PromptSession(
        history=history,
        completer=WordCompleter([f"/{name}" for name in COMMANDS], sentence=True),
        complete_while_typing=False,
        reserve_space_for_menu=0,
        erase_when_done=True,  # what was sent is printed like all else, so that lines keep their order
    )


def _history(state: Path) -> History:
    """What was typed in this workspace, kept in its private state folder."""
    file = state / "history"
    try:
        file.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()  # the folder cannot be written: what was typed is remembered for this time only
    return FileHistory(str(file))


def _nothing() -> None:
    return


async def _meant(asking: PromptSession[str], words: str) -> str | None:
    """The line typed after `words`; None when it ended too soon. A timer of the loop that reads the keys comes after
    all that was typed before it, however late both are."""
    ripe: list[bool] = []

    def begun() -> None:
        asyncio.get_running_loop().call_later(TOO_SOON, lambda: ripe.append(not asking.app.is_done))

    typed = await asking.prompt_async(words, completer=None, handle_sigint=False, pre_run=begun)
    return typed if any(ripe) else None
