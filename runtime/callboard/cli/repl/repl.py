"""Prompt line: a person talks to the lead while the team works, and is asked one question at a time.

Output of agents appears above the line; draft and cursor stay unchanged. A question replaces the line, and the draft is
restored after it. Questions wait in order (`Questions`), and their callers interpret the answers. The prompt line
requires a terminal (otherwise use `callboard run`), and uses only the methods of `Session`.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import anyio
from anyio.abc import TaskGroup

from callboard.cli.repl.draft import Draft, KeptHistory, LineInterrupted
from callboard.cli.repl.input import (
    CompletionNames,
    EmptyLine,
    Files,
    LineCompleter,
    Shell,
    SlashLine,
    around,
    is_busy,
    lives_of,
    read_line,
    run_line,
    runs,
    submit,
)
from callboard.cli.repl.live_screen import LiveScreen
from callboard.cli.repl.plain_prompt_line import PlainLine
from callboard.cli.repl.prompt_line import PromptLine
from callboard.cli.repl.questions import QuestionInterrupted, Questions
from callboard.cli.repl.status_command import StatusCommand, WindowTitle
from callboard.cli.repl.team_panel import PanelKey, TeamPanel, has_list
from callboard.cli.slash.context import LeavePrompt, ShowingWork, SlashContext, Switch
from callboard.cli.slash.registry import COMMANDS, perform
from callboard.cli.terminal.approver import PersonApprover
from callboard.cli.terminal.frame import DrawnFrame, Frame, echo_line
from callboard.cli.terminal.keyboard import PersonGate
from callboard.cli.terminal.plan_editor import edit_at
from callboard.cli.terminal.signals import TWICE, ExitRequests, ended_by, handle_end, run_with_signals
from callboard.cli.terminal.terminal import Line, Terminal, block
from callboard.cli.views.status import (
    attached_block,
    background_commands,
    first_screen,
    leaving_block,
    left_block,
)
from callboard.cli.views.status_line import StatusLine
from callboard.core.permissions.modes import next_mode
from callboard.sessions.attached import AttachedSession
from callboard.sessions.base import OpenSession
from callboard.sessions.open import Attach, open_as
from callboard.sessions.options import (
    HostingOptions,
    IdentityOptions,
    PermissionOptions,
    SessionOptions,
    WorkspaceOptions,
)
from callboard.sessions.result import RunEnd
from callboard.types.errors import CallboardError
from callboard.types.records import Request

_ENDING = 0.5
"""Seconds that Ctrl-D waits for a turn that is about to end."""
_WRITTEN_WITHIN = 1.0
"""Seconds that the line waits for the store before it reads keys again."""


class Repl:
    """One conversation at a prompt line."""

    def __init__(
        self, options: SessionOptions, terminal: Terminal, *, verbose: bool = False, attach: Attach = "if hosted"
    ) -> None:
        """`attach`: behavior if another process hosts the session."""
        self._options = options
        self._terminal = terminal
        self._attach: Attach = attach
        self._home = os.path.realpath(options.workspace.folder)
        self._status: StatusLine | None = None
        self._end: RunEnd | None = None
        """End of the session, if another process hosted it."""
        self._screen = LiveScreen(terminal, verbose=verbose, redraw=self._redraw, lists_agents=self._lists_agents)
        self._panel: TeamPanel | None = None
        """Live area above the line; None before the session is open, and on a terminal that cannot redraw."""
        self._title: WindowTitle | None = None
        self._line: PromptLine | PlainLine = PromptLine(terminal, self)
        self.questions = Questions(terminal, self._asked, self._call, self._edit_now, draw=self._draw)
        self._last_interrupt = self._last_end = float("-inf")
        self._session: OpenSession | None = None
        self._group: TaskGroup | None = None
        """Task group that runs the person's commands in parallel with the line."""
        self._commands: set[anyio.CancelScope] = set()
        self._writing = anyio.Lock()
        """Held while the store writes a line or an interrupt of the person."""
        self._mode_keys = anyio.Lock()
        self._mode = ("", "")
        """Permission mode at the latest Shift-Tab, and the mode that it selected."""
        self.first = ""
        """Line that is executed before the first one that the person types."""
        self.switched: str | None = None
        """Session to which the person switches."""

    def _redraw(self) -> None:
        self._line.redraw()  # the line of the session replaces the first one
        if self._title is not None:
            self._title.note_change()

    async def run(self) -> int:
        """Talk until the person leaves, and return the exit code."""
        approver = PersonApprover(
            self.questions.ask,
            self._terminal,
            edit=self.questions.edit_in_turn,
            home=self._home,
            recounted=self._redraw_question,
        )
        gate = PersonGate(self._terminal, attended=self._options.permissions.attended)
        options = replace(
            self._options,
            workspace=replace(self._options.workspace, gate=gate),
            hosting=replace(self._options.hosting, live_text=True),
        )
        async with open_as(self._attach, options, [self._screen], [approver]) as session:
            self._status = StatusLine(session)
            self._session = session
            self._line = self._line_for(session)
            if isinstance(self._line, PromptLine):
                self._panel = TeamPanel(session, self._screen.streams)
            self._screen.attach(session, asks=approver.asks)
            approver.attach(session)
            columns = shutil.get_terminal_size().columns
            has_keys = isinstance(self._line, PromptLine)
            self._terminal.terminal_print(first_screen(session, columns, has_keys=has_keys))
            if isinstance(session, AttachedSession):
                if (state := session.state("lead")) is not None:
                    self._terminal.terminal_print(self._screen.earlier(state))
                listed = self._lists_agents()
                self._terminal.terminal_print(attached_block(session, session.where, listed=listed, streams=True))
            self._terminal.flush()
            try:
                with self._line.display():
                    code = await self._talk_to_session(session)
            except anyio.get_cancelled_exc_class():  # SIGTERM, or a lost terminal
                self._terminal.terminal_print(left_block(session, host_of(session)))
                raise
            if self._end is None and self.switched is None:
                self._terminal.terminal_print(left_block(session, host_of(session)))
            return code

    async def _talk_to_session(self, session: OpenSession) -> int:
        """Talk until the person leaves or, if another process is the host, until that process stops hosting."""

        async def watch_host(attached: AttachedSession) -> None:
            self._end = await attached.wait_finished()
            self._call()

        codes: list[int] = []
        async with anyio.create_task_group() as group:
            self._group = group
            own = StatusCommand(session, self._redraw)
            self._status = StatusLine(session, own.line)
            group.start_soon(own.run)
            self._title = WindowTitle(session, self._terminal)
            group.start_soon(self._title.run)
            if isinstance(session, AttachedSession):
                group.start_soon(watch_host, session)
            codes.append(await self._run_prompt_loop(session))
            if self._writing.locked():
                text = "your latest input may not have been written: `callboard inbox` lists what was"
                self._terminal.terminal_print(block(text, "warn"))
            group.cancel_scope.cancel()
        return codes[0]

    async def _run_prompt_loop(self, session: OpenSession) -> int:
        while self._end is None:
            try:
                if self.questions:
                    await self.questions.serve()
                    continue
                line = self.first or await self._line.read(self._is_called)
                self.first = ""
                if line.strip() and isinstance(self._line, PromptLine):  # a plain terminal has already shown it
                    self._terminal.terminal_print(echo_line(line))
                await self._execute(session, line)
            except LineInterrupted:
                continue
            except KeyboardInterrupt as key:
                if await self._interrupted(session, key):
                    return 130
            except Switch as other:
                self.switched = other.session
                return 0
            except (EOFError, LeavePrompt) as end:
                if isinstance(end, LeavePrompt) or not await self._leaves_work(session):
                    return 0
        self._terminal.terminal_print(block(self._end.reason or "its host has left the session", "warn"))
        return self._end.exit_code

    def _is_called(self) -> bool:
        return bool(self.questions) or self._end is not None

    def _lists_agents(self) -> bool:
        return self._panel is not None and has_list(*shutil.get_terminal_size())

    def above(self, columns: int, rows: int) -> Sequence[Line]:
        """Return the lead's unfinished output, and the agents at work or the open panel."""
        tail = self._screen.tail(columns, rows)
        panel = self._panel.lines(columns, rows) if self._panel is not None else []
        return [*(Line(row) for row in tail.split("\n") if tail), *panel]

    def below(self, columns: int, rows: int) -> str:
        """Return the requests that wait, and the team's work and cost."""
        return self._status.text(columns, listed=has_list(columns, rows)) if self._status is not None else ""

    @property
    def moves(self) -> bool:
        """Return True while agents work: their seconds change."""
        return self._panel is not None and self._panel.moves

    def press(self, key: PanelKey) -> None:
        """Handle a key of the panel; for Ctrl-Z, say how to leave instead."""
        if key == "suspend":
            text = "a suspended process would stop its agents: Ctrl-D leaves, and `callboard -c` returns"
            self._terminal.terminal_print(block(text, "warn"))
        elif self._panel is not None:
            self._panel.press(key)

    def to_background(self) -> bool:
        """Handle Ctrl-B: let the lead go on without the command or subagent that it waits for; False: there is none."""
        session = self._session
        if session is None:
            return False
        moved = session.move_to_background()
        if not moved and isinstance(session, AttachedSession) and waits_for_call(session):
            text = f"{session.where} hosts this session: only Ctrl-B there can move a command to the background"
            self._terminal.terminal_print(block(text, "warn"))
        return moved

    async def next_mode(self) -> None:
        """Handle Shift-Tab: choose the mode after the last chosen one, even if the lead has not received that yet."""
        # Each key runs in a separate task. Without the lock, two commits may change places, and the earlier mode wins.
        async with self._mode_keys:
            if self._session is None:
                return
            now = self._session.mode_of()
            before, chosen = self._mode
            mode = next_mode(chosen if before == now else now, may_bypass=self._session.may_bypass)
            self._mode = (now, mode)
            await self._session.use_mode(mode)
            self._terminal.terminal_print(block(f"mode {mode}", "dim"))

    def _line_for(self, session: OpenSession) -> PromptLine | PlainLine:
        if os.environ.get("TERM", "") in {"", "dumb"}:
            return PlainLine(self._terminal)
        commands = {name: (command.words, command.help) for name, command in COMMANDS.items()}

        def current() -> CompletionNames:
            others = {command.name: (command.hint, command.about) for command in session.commands()}
            return around(session, {**others, **commands})

        completer = LineCompleter(current, Files(session.workspace))
        history = KeptHistory(session.places.state / "history.jsonl")
        return PromptLine(self._terminal, self, history=history, completer=completer)

    async def _asked(self, question: str, leave: Callable[[], bool], drawn: DrawnFrame | None) -> str | None:
        answer = await self._line.ask(question, leave, drawn)
        if answer is not None and drawn is None and isinstance(self._line, PromptLine):  # the answered line was erased
            self._terminal.terminal_print(block(f"{question}{answer or 'no'}", "strong"))
        return answer

    def _redraw_question(self) -> bool:
        return isinstance(self._line, PromptLine) and self._line.redraw_question()

    def _draw(self, frame: Frame) -> DrawnFrame | None:
        """Return the frame as it is drawn on the prompt line; None if the screen has no room, or cannot redraw."""
        if not isinstance(self._line, PromptLine) or not self._line.frames:
            return None
        return DrawnFrame(frame, time.time, self._terminal.canvas.encoding)

    def _call(self) -> None:
        """Interrupt the line that is being typed; the loop then checks for work."""
        self._line.interrupt()

    async def _edit_now(self, request: Request) -> str:
        """Open the editor in place of this prompt line, and restore the line when the editor closes."""
        assert self._session is not None, "a request is edited while a session is open"
        with self._line.hand_over():
            return await edit_at(self._terminal, request, self._session.workspace)

    async def _execute(self, session: OpenSession, line: str) -> None:
        """Execute a line, if it is not empty; one that cannot be sent becomes the draft again. Raises `LeavePrompt`."""
        typed = read_line(line, lives_of(session.team()), lambda name: (session.workspace / name).exists())
        if isinstance(typed, SlashLine):
            context = SlashContext(session, self._edit_now, host_of(session), self._panel, self._beside)
            await perform(typed.line, context, self._terminal)
        elif isinstance(typed, Shell):
            assert self._group is not None, "lines are read while the group is open"
            self._group.start_soon(self._run_shell, session, typed.command)
        elif not isinstance(typed, EmptyLine):

            async def send() -> None:
                output, is_draft = await submit(session, typed)
                self._terminal.terminal_print(output)
                if is_draft and not self._line.draft.text:
                    self._line.draft = Draft(line, len(line))

            await self._write(send)

    def _beside(self, work: ShowingWork) -> None:
        assert self._group is not None, "lines are read while the group is open"
        self._group.start_soon(work, self._terminal.terminal_print)

    async def _write(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run an action that writes to the store. If it takes long, it continues in the background, in order.

        A stopped process can hold the lock of the store for hours. Only a line that reads keys notices Ctrl-C
        (test_the_prompt_line_is_left_while_a_stopped_process_holds_the_lock).
        """
        assert self._group is not None, "lines are read while the group is open"
        written = anyio.Event()

        async def write() -> None:
            async with self._writing:
                await work()
            written.set()

        self._group.start_soon(write)
        with anyio.move_on_after(_WRITTEN_WITHIN):
            await written.wait()

    async def _run_shell(self, session: OpenSession, command: str) -> None:
        """Run a command of the person in parallel with the turn. Ctrl-C ends it; the lead reads its output."""
        with anyio.CancelScope() as scope:
            self._commands.add(scope)
            try:
                ran = await run_line(command, session.workspace)
                self._terminal.terminal_print(ran.output_block())
                await session.add_context(ran.message())
            except (OSError, CallboardError) as failed:
                self._terminal.terminal_print(block(f"{command}: {failed}", "warn"))
            finally:
                self._commands.discard(scope)

    async def _leaves_work(self, session: OpenSession) -> bool:
        """Handle Ctrl-D while agents run: show the effect of leaving; a second one within two seconds leaves."""
        if isinstance(session, AttachedSession):
            return False  # leaving stops nothing; the last line says how to return

        def running() -> list[str]:
            return [agent.name for agent in session.team() if runs(agent)]

        commands = background_commands(session)

        if (running() or commands) and anyio.current_time() - self._last_end <= TWICE:
            return False
        with anyio.move_on_after(_ENDING):  # the last text of a turn appears before the turn has ended
            while running():
                await self._screen.turn_over()
        names = running()
        commands = background_commands(session)
        if not names and not commands:
            return False
        self._last_end = anyio.current_time()
        self._terminal.terminal_print(leaving_block(session, names, commands))
        return True

    async def escape(self) -> None:
        """Handle Esc at the line: close the open tree or stream, otherwise stop the turns. The draft is kept."""
        if self._panel is not None and self._panel.is_open:
            self._panel.press("team")
            self._redraw()
        elif self._session is not None and any(map(is_busy, self._session.team())):
            self._terminal.terminal_print(block("stopping the turn", "warn"))
            await self._write(self._session.interrupt)

    async def _interrupted(self, session: OpenSession, key: KeyboardInterrupt) -> bool:
        """Handle Ctrl-C, or Esc at a question; return True to leave.

        Drop the draft, otherwise end the person's own commands, otherwise stop the turn, otherwise (a second Ctrl-C
        within two seconds) leave. At a question, draft and commands are kept. If another process is the host, the turn
        is not stopped, because that would answer the question for everyone.
        """
        at_question = isinstance(key, QuestionInterrupted)
        may_leave = not isinstance(key, QuestionInterrupted) or key.may_leave
        if self._line.draft.text and not at_question:
            self._line.draft = Draft()
            return False
        if self._commands and not at_question:
            for scope in self._commands:
                scope.cancel()
            self._terminal.terminal_print(block("your command was ended; Ctrl-C again stops the turn", "warn"))
            return False
        now = anyio.current_time()
        if may_leave and now - self._last_interrupt <= TWICE:
            return True
        self._last_interrupt = now if may_leave else self._last_interrupt
        again = "; Ctrl-C again within 2 s leaves" if may_leave else ""
        if at_question and isinstance(session, AttachedSession):
            text = f"nothing was answered, and the agents continue{again}"
            self._terminal.terminal_print(block(text, "warn"))
            return False
        busy = any(map(is_busy, session.team()))
        effect = "stopping the turn" if busy else "nothing is at work"
        self._terminal.terminal_print(block(f"{effect}{again}", "warn"))
        await self._write(session.interrupt)
        if may_leave:
            self._last_interrupt = anyio.current_time()  # no key was read during the wait
        if at_question:
            await self.questions.wait_settled(1.0)
        return False


def waits_for_call(session: OpenSession) -> bool:
    """Return True if a command or subagent keeps the lead waiting."""
    lead = session.state("lead")
    return lead is not None and any(item.can_move for item in lead.calls)


def host_of(session: OpenSession) -> int | None:
    """Return the process that hosts the session, if it is not this one."""
    return session.pid if isinstance(session, AttachedSession) else None


def run_repl(
    options: SessionOptions, terminal: Terminal, *, verbose: bool = False, attach: Attach = "if hosted", first: str = ""
) -> int:
    """Talk in this thread, through one session after the other, and return the exit code. `first`: the first prompt."""

    async def talk(leaving: ExitRequests) -> int:
        codes = list[int]()
        async with anyio.create_task_group() as group:
            await group.start(handle_end, leaving, group.cancel_scope)
            codes.append(await until_left())
            group.cancel_scope.cancel()
        if not codes and leaving.code is not None:
            terminal.terminal_print(block(f"callboard: {ended_by(leaving.code)}", "warn"))
        return codes[0] if codes else leaving.code or 0

    async def until_left() -> int:
        repl = Repl(options, terminal, verbose=verbose, attach=attach)
        repl.first = first
        code = await repl.run()
        while repl.switched is not None:
            other = SessionOptions(
                WorkspaceOptions(options.workspace.folder, trust=options.workspace.trust),
                identity=IdentityOptions(session=repl.switched, resume=True),
                permissions=PermissionOptions(attended=True),
                hosting=HostingOptions(notice=options.hosting.notice),
            )
            repl = Repl(other, terminal, verbose=verbose)
            code = await repl.run()
        return code

    return run_with_signals(talk, terminal, [signal.SIGTERM])
