"""The prompt line: a person talks to the lead while the team works, and is asked one question at a time.

What agents print appears above the line; draft and cursor stay as they were. A question leaves the line, is asked in
its place, and the draft comes back.

It refuses to run without a terminal (`callboard run` is for that), and to do anything that `Session` cannot.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import anyio

from callboard.app import End, OpenSession, Options
from callboard.attaching import Attach, AttachedSession, opened
from callboard.faces.approvals import PersonApprover
from callboard.faces.commands import COMMANDS, Here, Leave, Switch, perform
from callboard.faces.editing import edit_at
from callboard.faces.gate import PersonGate
from callboard.faces.leaving import TWICE, Leaving, heed_end
from callboard.faces.pages.listings import at_work, attached_block
from callboard.faces.prompt.asking import Questions, Stopped
from callboard.faces.prompt.completion import Around, Files, LineCompleter, around
from callboard.faces.prompt.history import KeptHistory
from callboard.faces.prompt.line import Called, Draft, PromptLine
from callboard.faces.prompt.live import LiveScreen
from callboard.faces.prompt.plain_line import PlainLine
from callboard.faces.prompt.status import Status
from callboard.faces.steering import AT_WORK, Command, Nothing, heed, lives_of, read_line
from callboard.faces.terminal import Block, Line, Terminal, block
from callboard.words.values import Request

_ECHOED = 12
"""Lines of what was sent that are shown again; a paste is known to who pasted it."""


class Repl:
    """One conversation at a prompt line."""

    def __init__(
        self, options: Options, terminal: Terminal, *, verbose: bool = False, attach: Attach = "if hosted"
    ) -> None:
        """`attach`: what to do where another process hosts the session."""
        self._options, self._terminal = options, terminal
        self._attach: Attach = attach
        self._status: Status | None = None
        self._end: End | None = None
        """How the session ended that another process hosted."""
        self._screen = LiveScreen(terminal, verbose=verbose)
        self._line: PromptLine | PlainLine = PromptLine(terminal, self)
        self.questions = Questions(terminal, self._asked, self._call, self._edit_now)
        self._last_interrupt = float("-inf")
        self.switched: str | None = None
        """The session that the person goes on with."""

    async def run(self) -> int:
        """Talk until the person leaves; the exit code."""
        approver = PersonApprover(self.questions.ask, self._terminal, edit=self.questions.edit_in_turn)
        options = replace(self._options, gate=PersonGate(self._terminal, attended=self._options.attended))
        async with opened(self._attach, options, [self._screen], [approver]) as session:
            self._status = Status(session)
            self._line = self._line_for(session)
            self._screen.redraw = self._line.redraw
            self._screen.attach(session, asks_plans=True)
            approver.attach(session)
            words = f"session {session.id}, model {session.model}; /help tells what there is"
            self._terminal.terminal_print(block(words, "dim"))
            if isinstance(session, AttachedSession):
                self._terminal.terminal_print(attached_block(session))
                self._screen.found(at_work(session))
            self._terminal.flush()
            with self._line.shown():
                return await self._talk_until_left(session)

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
                if self.questions:
                    await self.questions.serve()
                    continue
                line = await self._line.read(self._is_called)
                if line.strip() and isinstance(self._line, PromptLine):  # a plain terminal has shown it
                    self._terminal.terminal_print(echoed(line))
                await self._heed(session, line)
            except Called:
                continue
            except KeyboardInterrupt as key:
                if await self._interrupted(session, at_question=isinstance(key, Stopped)):
                    return 130
            except Switch as other:
                self.switched = other.session
                return 0
            except (EOFError, Leave):
                return 0
        self._terminal.terminal_print(block(self._end.why or "its host has left the session", "warn"))
        return self._end.exit_code

    def _is_called(self) -> bool:
        return bool(self.questions) or self._end is not None

    def above(self, columns: int, rows: int) -> str:
        """What the lead is in the middle of saying."""
        return self._screen.tail(columns, rows)

    def below(self) -> str:
        """What the team is doing and what it cost."""
        return self._status.words(self._screen.doing()) if self._status is not None else ""

    def _line_for(self, session: OpenSession) -> PromptLine | PlainLine:
        if os.environ.get("TERM", "") in {"", "dumb"}:
            return PlainLine(self._terminal)
        commands = {name: (one.words, one.help) for name, one in COMMANDS.items()}

        def there() -> Around:
            others = {one.name: (one.hint, one.about) for one in session.commands()}
            return around(session, {**others, **commands})

        completer = LineCompleter(there, Files(session.workspace))
        history = KeptHistory(session.places.state / "history.jsonl")
        return PromptLine(self._terminal, self, history=history, completer=completer)

    async def _asked(self, words: str, leave: Callable[[], bool]) -> str | None:
        return await self._line.asked(words, leave)

    def _call(self) -> None:
        """Leave whichever line is being typed; the loop looks what there is to do."""
        self._line.call()

    async def _edit_now(self, plan: Request) -> str:
        """Open the editor in the place of this prompt line, and take the place again when it is closed."""
        with self._line.left():
            return await edit_at(self._terminal, plan)

    async def _heed(self, session: OpenSession, line: str) -> None:
        """Do what a line says; an empty one does nothing. What cannot be sent is the draft again. Raises `Leave`."""
        typed = read_line(line, lives_of(session.team()), lambda name: (session.workspace / name).exists())
        if isinstance(typed, Command):
            await perform(typed.line, Here(session, self._edit_now), self._terminal)
        elif not isinstance(typed, Nothing):
            told, kept = await heed(session, typed)
            self._terminal.terminal_print(told)
            self._line.draft = Draft(line, len(line)) if kept else self._line.draft

    async def _interrupted(self, session: OpenSession, *, at_question: bool = False) -> bool:
        """Ctrl-C: drop the draft, else stop the turn, else (a second within two seconds) leave. At a question the draft
        is not what is meant."""
        if self._line.draft.text and not at_question:
            self._line.draft = Draft()
            return False
        now = anyio.current_time()
        if now - self._last_interrupt <= TWICE:
            return True
        self._last_interrupt = now
        busy = any(life in AT_WORK for life in lives_of(session.team()).values())
        what = "stopping the turn" if busy else "nothing is at work"
        self._terminal.terminal_print(block(f"{what}; Ctrl-C again within 2 s leaves", "warn"))
        await session.interrupt()
        return False


def run_repl(options: Options, terminal: Terminal, *, verbose: bool = False, attach: Attach = "if hosted") -> int:
    """Talk in this thread until it is over, with one session after the other; the exit code."""

    async def talk() -> int:
        leaving, codes = Leaving(), list[int]()
        async with anyio.create_task_group() as group:
            await group.start(heed_end, leaving, group.cancel_scope)
            codes.append(await until_left())
            group.cancel_scope.cancel()
        return codes[0] if codes else leaving.code or 0

    async def until_left() -> int:
        repl = Repl(options, terminal, verbose=verbose, attach=attach)
        code = await repl.run()
        while repl.switched is not None:
            other = Options(options.workspace, session=repl.switched, resume=True, attended=True, trust=options.trust)
            repl = Repl(other, terminal, verbose=verbose)
            code = await repl.run()
        return code

    return anyio.run(talk)


def echoed(line: str) -> Block:
    """What was sent, as it stays on the screen."""
    first, *others = block(line, "strong").lines
    shown = [replace(one, text=f"  {one.text}") for one in others[: _ECHOED - 1]]
    more = len(others) - len(shown)
    note = (Line(f"  … {more} more {'line' if more == 1 else 'lines'}, sent whole", "dim"),) if more else ()
    return Block((replace(first, text=f"> {first.text}"), *shown, *note))
