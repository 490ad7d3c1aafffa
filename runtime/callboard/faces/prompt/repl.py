"""The prompt line: a person talks to the lead while the team works, and is asked one question at a time.

What agents print appears above the line; draft and cursor stay as they were. A question leaves the line, is asked in
its place, and the draft comes back.

It refuses to run without a terminal (`callboard run` is for that), and to do anything that `Session` cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from callboard.app import End, OpenSession, Options
from callboard.attaching import Attach, AttachedSession, opened
from callboard.faces.approvals import PersonApprover
from callboard.faces.commands import COMMANDS, Here, Leave, Switch, perform
from callboard.faces.editing import edit_at
from callboard.faces.gate import PersonGate
from callboard.faces.leaving import TWICE
from callboard.faces.lines import shorten
from callboard.faces.pages.listings import at_work, attached_block, status_words
from callboard.faces.prompt.asking import Questions
from callboard.faces.prompt.line import Called, Draft, PromptLine
from callboard.faces.prompt.live import LiveScreen
from callboard.faces.steering import AT_WORK, Command, Nothing, heed, lives_of, read_line
from callboard.faces.terminal import Terminal, block, plain
from callboard.words.values import Request

_TAIL_WIDTH = 100


class Repl:
    """One conversation at a prompt line."""

    def __init__(
        self, options: Options, terminal: Terminal, *, verbose: bool = False, attach: Attach = "if hosted"
    ) -> None:
        """`attach`: what to do where another process hosts the session."""
        self._options, self._terminal = options, terminal
        self._attach: Attach = attach
        self._session: OpenSession | None = None
        self._end: End | None = None
        """How the session ended that another process hosted."""
        self._screen = LiveScreen(terminal, verbose=verbose)
        self._line = PromptLine(terminal, self._above, self._below)
        self.questions = Questions(terminal, self._asked, self._call, self._edit_now)
        self._last_interrupt = float("-inf")
        self.switched: str | None = None
        """The session that the person goes on with."""

    async def run(self) -> int:
        """Talk until the person leaves; the exit code."""
        approver = PersonApprover(self.questions.ask, self._terminal, edit=self.questions.edit_in_turn)
        options = replace(self._options, gate=PersonGate(self._terminal, attended=self._options.attended))
        async with opened(self._attach, options, [self._screen], [approver]) as session:
            self._session = session
            self._line = PromptLine(
                self._terminal,
                self._above,
                self._below,
                history=_history(session.places.state),
                completer=WordCompleter([f"/{name}" for name in COMMANDS], sentence=True),
            )
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
                if line.strip():
                    self._terminal.terminal_print(block(f"> {line}", "strong"))
                await self._heed(session, line)
            except Called:
                continue
            except KeyboardInterrupt:
                if await self._interrupted(session):
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

    def _above(self) -> str:
        """The live tail."""
        return shorten(plain(self._screen.tail).replace("\n", " "), _TAIL_WIDTH)

    def _below(self) -> str:
        """What the team is doing and what it cost."""
        status = status_words(self._session) if self._session is not None else ""
        return plain(" | ".join(part for part in (self._screen.doing(), status) if part))

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
        typed = read_line(line, lives_of(session.team()))
        if isinstance(typed, Command):
            await perform(typed.line, Here(session, self._edit_now), self._terminal)
        elif not isinstance(typed, Nothing):
            told, kept = await heed(session, typed)
            self._terminal.terminal_print(told)
            self._line.draft = Draft(line, len(line)) if kept else self._line.draft

    async def _interrupted(self, session: OpenSession) -> bool:
        """Ctrl-C: drop the draft, else stop the turn, else (a second within two seconds) leave."""
        if self._line.draft.text:
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
        repl = Repl(options, terminal, verbose=verbose, attach=attach)
        code = await repl.run()
        while repl.switched is not None:
            other = Options(options.workspace, session=repl.switched, resume=True, attended=True, trust=options.trust)
            repl = Repl(other, terminal, verbose=verbose)
            code = await repl.run()
        return code

    return anyio.run(talk)


def _history(state: Path) -> History:
    """What was typed in this workspace, kept in its private state folder."""
    file = state / "history"
    try:
        file.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()  # the folder cannot be written: what was typed is remembered for this time only
    return FileHistory(str(file))
