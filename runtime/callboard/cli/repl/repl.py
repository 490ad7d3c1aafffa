"""Prompt line: a person talks to the lead while the team works, and is asked one question at a time.

Output of agents appears above the line; draft and cursor stay unchanged. A question replaces the line, and the draft is
restored after it. Questions wait in order (`Questions`); the caller that asks interprets the answer.

It requires a terminal (otherwise use `callboard run`), and does nothing that `Session` cannot do.

The history of lines typed in this workspace is kept in a file between conversations: the newest entries, each complete.

An entry is a JSON string on its own line, so that an entry of several lines stays one. Several processes may append to
one file: each entry is one write. If a file cannot be read or written, the history is lost, but the conversation
continues.
"""

from __future__ import annotations

import json
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
from anyio.abc import TaskGroup
from prompt_toolkit.history import History

from callboard.cli.repl.input import (
    CompletionNames,
    Files,
    LineCompleter,
    Nothing,
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
from callboard.cli.repl.line import Draft, LineInterrupted, PromptLine
from callboard.cli.repl.live_screen import LiveScreen
from callboard.cli.repl.plain_line import PlainLine
from callboard.cli.slash.context import Here, Leave, Switch
from callboard.cli.slash.registry import COMMANDS, perform
from callboard.cli.terminal.approver import PersonApprover, TakenBack
from callboard.cli.terminal.keyboard import PersonGate
from callboard.cli.terminal.plan_editor import Edit, edit_at, editable, keep_text
from callboard.cli.terminal.signals import TWICE, Leaving, handle_end, run_until_left
from callboard.cli.terminal.terminal import Block, Line, Terminal, block
from callboard.cli.views.events import first_line, shorten
from callboard.cli.views.resume import opened_block
from callboard.cli.views.status import StatusLine, at_work, attached_block, setting_words
from callboard.core.permissions.modes import next_mode
from callboard.sessions.attached import AttachedSession
from callboard.sessions.base import OpenSession
from callboard.sessions.open import Attach, opened
from callboard.sessions.options import (
    HostingOptions,
    IdentityOptions,
    PermissionOptions,
    SessionOptions,
    WorkspaceOptions,
)
from callboard.sessions.result import RunEnd
from callboard.types.errors import CallboardError, UsageError
from callboard.types.records import Request

_ECHOED = 12
"""Most lines of a sent text that are shown again; the person already knows a long paste."""
_COMMAND = 40
"""Columns of a background command in the notice when leaving."""
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
        self._status: StatusLine | None = None
        self._end: RunEnd | None = None
        """End of the session, if another process hosted it."""
        self._screen = LiveScreen(terminal, verbose=verbose)
        self._line: PromptLine | PlainLine = PromptLine(terminal, self)
        self.questions = Questions(terminal, self._asked, self._call, self._edit_now)
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
        self.switched: str | None = None
        """Session to which the person switches."""

    async def run(self) -> int:
        """Talk until the person leaves, and return the exit code."""
        approver = PersonApprover(self.questions.ask, self._terminal, edit=self.questions.edit_in_turn)
        gate = PersonGate(self._terminal, attended=self._options.permissions.attended)
        options = replace(self._options, workspace=replace(self._options.workspace, gate=gate))
        async with opened(self._attach, options, [self._screen], [approver]) as session:
            self._status = StatusLine(session)
            self._session = session
            self._line = self._line_for(session)
            self._screen.redraw = self._line.redraw
            self._screen.attach(session, asks=approver.asks)
            approver.attach(session)
            self._terminal.terminal_print(opened_block(setting_words(session), session.id))
            if isinstance(session, AttachedSession):
                self._terminal.terminal_print(attached_block(session, session.pid))
                self._screen.note_at_work(at_work(session))
            self._terminal.flush()
            with self._line.display():
                return await self._talk_until_left(session)

    async def _talk_until_left(self, session: OpenSession) -> int:
        """Talk until the person leaves or, if another process is the host, until that process stops hosting."""

        async def watch_host(attached: AttachedSession) -> None:
            self._end = await attached.finished()
            self._call()

        codes: list[int] = []
        async with anyio.create_task_group() as group:
            self._group = group
            if isinstance(session, AttachedSession):
                group.start_soon(watch_host, session)
            codes.append(await self._talk(session))
            if self._writing.locked():
                text = "your latest input may not have been written: `callboard inbox` lists what was"
                self._terminal.terminal_print(block(text, "warn"))
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
            except LineInterrupted:
                continue
            except KeyboardInterrupt as key:
                if await self._interrupted(session, at_question=isinstance(key, Stopped)):
                    return 130
            except Switch as other:
                self.switched = other.session
                return 0
            except (EOFError, Leave) as end:
                if isinstance(end, Leave) or not await self._leaves_work(session):
                    return 0
        self._terminal.terminal_print(block(self._end.reason or "its host has left the session", "warn"))
        return self._end.exit_code

    def _is_called(self) -> bool:
        return bool(self.questions) or self._end is not None

    def above(self, columns: int, rows: int) -> str:
        """Return the lead's unfinished output."""
        return self._screen.tail(columns, rows)

    def below(self, columns: int) -> str:
        """Return the team's work and cost."""
        return self._status.text(self._screen.doing(), columns) if self._status is not None else ""

    async def next_mode(self) -> None:
        """Handle Shift-Tab: judge the lead's next calls in the next mode. If the lead has not received the previous
        change yet, continue from that mode."""
        # Each key is a task of its own. Without the lock, two commits may change places, and the earlier mode wins.
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

    async def _asked(self, question: str, leave: Callable[[], bool]) -> str | None:
        return await self._line.ask(question, leave)

    def _call(self) -> None:
        """Interrupt the line that is being typed; the loop then checks for work."""
        self._line.call()

    async def _edit_now(self, plan: Request) -> str:
        """Open the editor in place of this prompt line, and restore the line when the editor closes."""
        assert self._session is not None, "a plan is edited while a session is open"
        with self._line.hand_over():
            return await edit_at(self._terminal, plan, self._session.workspace)

    async def _heed(self, session: OpenSession, line: str) -> None:
        """Execute a line; an empty one does nothing. A line that cannot be sent becomes the draft again. Raises
        `Leave`."""
        typed = read_line(line, lives_of(session.team()), lambda name: (session.workspace / name).exists())
        if isinstance(typed, SlashLine):
            host = session.pid if isinstance(session, AttachedSession) else None
            await perform(typed.line, Here(session, self._edit_now, host), self._terminal)
        elif isinstance(typed, Shell):
            assert self._group is not None, "lines are read while the group is open"
            self._group.start_soon(self._run_shell, session, typed.command)
        elif not isinstance(typed, Nothing):

            async def send() -> None:
                output, is_draft = await submit(session, typed)
                self._terminal.terminal_print(output)
                if is_draft and not self._line.draft.text:
                    self._line.draft = Draft(line, len(line))

            await self._write(send)

    async def _write(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do something that the store must write. If that takes long, it goes on in the background, in order.

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
            return False

        def running() -> list[str]:
            return [agent.name for agent in session.team() if runs(agent)]

        commands = background_commands(session)

        if (running() or commands) and anyio.current_time() - self._last_end <= TWICE:
            return False
        with anyio.move_on_after(_ENDING):  # the last words of a turn are on the screen before the turn has ended
            while running():
                await self._screen.turn_over()
        names = running()
        commands = background_commands(session)
        if not names and not commands:
            return False
        self._last_end = anyio.current_time()
        are = "are" if len(names) > 1 else "is"
        parts = [f"{', '.join(names)} {are} at work, and would stop here until you resume"] if names else []
        go_on = "run in the background and continue" if len(commands) > 1 else "runs in the background and continues"
        parts += [f"{', '.join(commands)} {go_on} when you leave"] if commands else []
        text = "; ".join(parts)
        self._terminal.terminal_print(block(f"{text}; Ctrl-D again within 2 s leaves", "warn"))
        return True

    async def _interrupted(self, session: OpenSession, *, at_question: bool = False) -> bool:
        """Handle Ctrl-C: drop the draft, otherwise end the person's own commands, otherwise stop the turn, otherwise (a
        second within two seconds) leave. At a question draft and commands are kept, and if another process is the host,
        the turn is not stopped: that would answer for everybody."""
        if self._line.draft.text and not at_question:
            self._line.draft = Draft()
            return False
        if self._commands and not at_question:
            for scope in self._commands:
                scope.cancel()
            self._terminal.terminal_print(block("your command was ended; Ctrl-C again stops the turn", "warn"))
            return False
        now = anyio.current_time()
        if now - self._last_interrupt <= TWICE:
            return True
        self._last_interrupt = now
        if at_question and isinstance(session, AttachedSession):
            text = "nothing was answered, and the agents go on; Ctrl-C again within 2 s leaves"
            self._terminal.terminal_print(block(text, "warn"))
            return False
        busy = any(map(is_busy, session.team()))
        effect = "stopping the turn" if busy else "nothing is at work"
        self._terminal.terminal_print(block(f"{effect}; Ctrl-C again within 2 s leaves", "warn"))
        await self._write(session.interrupt)
        self._last_interrupt = anyio.current_time()  # no key was read meanwhile
        if at_question:
            await self.questions.settled(1.0)
        return False


def background_commands(session: OpenSession) -> list[str]:
    """Return the background commands that still run, each with its agent."""
    states = [(row.name, session.state(row.name)) for row in session.team() if row.life != "stopped"]
    return [
        f"{shorten(first_line(entry.began.command), _COMMAND)} ({name})"
        for name, state in states
        if state is not None
        for entry in state.work.background.values()
        if entry.status == "running"
    ]


def run_repl(
    options: SessionOptions, terminal: Terminal, *, verbose: bool = False, attach: Attach = "if hosted"
) -> int:
    """Talk in this thread, through one session after the other, and return the exit code."""

    async def talk(leaving: Leaving) -> int:
        codes = list[int]()
        async with anyio.create_task_group() as group:
            await group.start(handle_end, leaving, group.cancel_scope)
            codes.append(await until_left())
            group.cancel_scope.cancel()
        return codes[0] if codes else leaving.code or 0

    async def until_left() -> int:
        repl = Repl(options, terminal, verbose=verbose, attach=attach)
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

    return run_until_left(talk, terminal, [signal.SIGTERM])


def echoed(line: str) -> Block:
    """Return the sent line as it remains on the screen."""
    first, *others = block(line, "strong").lines
    visible = [replace(row, text=f"  {row.text}") for row in others[: _ECHOED - 1]]
    hidden = len(others) - len(visible)
    note = (Line(f"  … {hidden} more {'line' if hidden == 1 else 'lines'}, sent whole", "dim"),) if hidden else ()
    return Block((replace(first, text=f"> {first.text}"), *visible, *note))


MOST = 2_000
"""Number of history entries."""
LONGEST = 20_000
"""Most characters of an entry in the file; a longer paste is remembered until the conversation ends."""
_READ = 4_000_000
"""Bytes of the file that are read, from its end; a file of twice the size is rewritten with the remembered entries."""


class KeptHistory(History):
    """History in `file`, which is private (0600)."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def load_history_strings(self) -> Iterable[str]:
        """Return the entries, newest first."""
        try:
            with self._file.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - _READ))
                stored = entries(file.read(), cut=size > _READ)
        except OSError:
            return []
        if size > 2 * _READ:
            self._write_anew(stored)
        return list(reversed(stored))

    def store_string(self, string: str) -> None:
        """Add one entry to the file."""
        if len(string) > LONGEST:
            return
        try:
            descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return  # remembered for this time only
        try:
            os.write(descriptor, _row(string))
        except OSError:
            return
        finally:
            os.close(descriptor)

    def _write_anew(self, stored: list[str]) -> None:
        fresh = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(b"".join(map(_row, stored)))
            fresh.replace(self._file)
        except OSError:
            fresh.unlink(missing_ok=True)


def entries(data: bytes, *, cut: bool = False) -> list[str]:
    """Return the newest entries of a file's content, oldest first. `cut`: its first line is incomplete. Invalid entries
    are skipped."""
    lines = data.split(b"\n")[1 if cut else 0 :]
    stored: list[str] = []
    for line in lines:
        try:
            entry: object = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, str) and entry.strip():
            stored.append(entry)
    return stored[-MOST:]


def _row(entry: str) -> bytes:
    return json.dumps(entry).encode() + b"\n"


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
