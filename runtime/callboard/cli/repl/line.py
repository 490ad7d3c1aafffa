"""Line on which a person types: output of agents appears above it; draft and cursor stay unchanged.

Only one thing is typed at a time: a line of the person, or the answer to a question, which replaces the line and
restores it with the draft. `call` interrupts either for something urgent.

The terminal is never asked for its cursor position: over a slow connection a late answer would be taken for typing, and
some terminals never answer. This module does not interpret a line, and requires a terminal.

Output that arrives while a person types is printed above the line, in one piece, through the stream on which the line
is drawn. Erasing, printing and redrawing all happen in the drawing thread and keep their order. This part does not
decide what is printed.

Keys can arrive at the wrong line: they were typed for one line, but a question came or went in the meantime. Nobody
reads a question in the middle of a word, so a person who was typing when the line changed continues for a moment. Input
before the first pause belongs to the previous line. It neither answers a question nor is sent to anyone.

Keys on the prompt line beyond the usual ones: Enter sends, and a line may contain several lines. The typed text is not
inspected, except for a backslash at its end.
"""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import shutil
import struct
import sys
import termios
import textwrap
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Protocol, TextIO, cast

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application, get_app_session
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_completions, has_focus, is_searching
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.key_binding.key_processor import KeyPress
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output

from callboard.cli.repl.type_ahead import release
from callboard.cli.terminal.terminal import Canvas, Terminal, block

REDRAW = 0.1
"""Minimum seconds between two redraws that no key caused."""
_MENU = 8
_ROWS_FOR_STATUS = 4


def folded(text: str, columns: int) -> str:
    """Break the text before the cursor between words if it is longer than the line."""
    return "\n".join(textwrap.wrap(text, max(columns, 20), break_on_hyphens=False)) + " "


class LineInterrupted(Exception):
    """Raised when the line was interrupted for something urgent; the draft is kept."""


@dataclass(slots=True)
class Draft:
    """Typed text that is not sent yet, and the cursor position in it."""

    text: str = ""
    cursor: int = 0

    def with_more(self, typed: str) -> Draft:
        """Return the draft with more text inserted at the cursor."""
        text = self.text[: self.cursor] + typed + self.text[self.cursor :]
        return Draft(text, self.cursor + len(typed))


class LineFrame(Protocol):
    """Texts above and below the line, for a given number of columns and rows."""

    def above(self, columns: int, rows: int) -> str:
        """Return the text just above the line; it may be empty or have several lines."""
        ...

    def below(self, columns: int) -> str:
        """Return the status below the line: one line of at most `columns` columns."""
        ...

    async def next_mode(self) -> None:
        """Switch to the next permission mode: Shift-Tab was pressed."""
        ...


class _Screen(Vt100_Output):
    """Terminal that is never asked for its cursor position."""

    def get_rows_below_cursor_position(self) -> int:
        """Return 1, the guaranteed minimum."""
        return 1


class PromptLine:
    """Prompt line of one terminal, usable within `display`."""

    def __init__(
        self,
        terminal: Terminal,
        around: LineFrame,
        *,
        history: History | None = None,
        completer: Completer | None = None,
    ) -> None:
        self._terminal = terminal
        self._around = around
        self._history = history or InMemoryHistory()
        self._completer = completer
        self._own: PromptSession[str] | None = None
        self._active: PromptSession[str] | None = None
        self._output: Vt100_Output | None = None
        self._hold = ExitStack()
        self._texts = ("", "")
        """Texts above and below the line."""
        self._texts_for = (0, 0)
        """Screen size for which the texts were made."""
        self._drawn = float("-inf")
        self._due: asyncio.TimerHandle | None = None
        self._keys = Keys()
        self.draft = Draft()

    @contextmanager
    def display(self) -> Generator[None]:
        """Print above the line during the block, and echo keys only through the line."""
        canvas = cast("TextIO", self._terminal.canvas)
        self._output = _Screen.from_pty(canvas, term=os.environ.get("TERM")) if canvas.isatty() else None
        with self._hold:
            _keep_typed_ahead()
            self._take()
            try:
                yield
            finally:
                if self._due is not None:
                    self._due.cancel()

    @contextmanager
    def hand_over(self) -> Generator[None]:
        """Give the screen and the keyboard to another program during the block."""
        self._hold.close()
        try:
            yield
        finally:
            self._take()

    def _take(self) -> None:
        self._hold.callback(release)  # after raw mode, which returns to the mode in which keys were held back
        # For the whole time, not only while a line is read: a key typed between two lines would be echoed into the
        # output (docs/decisions/0019-one-writer-draws-the-line.md).
        self._hold.enter_context(get_app_session().input.raw_mode())
        strays = Strays(self._terminal)
        # Libraries print, and would write over the line.
        self._hold.enter_context(redirect_stdout(strays))
        self._hold.enter_context(redirect_stderr(strays))
        above = Above(self._terminal.canvas, self._typing)
        self._hold.callback(above.close)
        self._terminal.show_above(above.write)
        self._hold.callback(self._terminal.show_above, None)

    def _typing(self) -> Application[str] | None:
        return self._active.app if self._active is not None and self._active.app.is_running else None

    async def read(self, leave: Callable[[], bool]) -> str:
        """Return what the person sends, from the draft on. Raises `LineInterrupted` (at once, where `leave` says so),
        `EOFError` and `KeyboardInterrupt`; the draft is kept then. Keys of an answer that nobody needs any more are
        dropped: a line ended by them is empty.
        """
        line = self._own = self._own or self._session()
        buffer = line.default_buffer
        pause = Pause(line, self._keys, lambda typed: buffer.set_document(_document(self.draft)))

        def begun() -> None:
            buffer.cursor_position = self.draft.cursor
            pause.begin()
            if leave():
                self.call()

        self._texts = self._now()
        self._active = line
        try:
            typed = await line.prompt_async(
                self._message, default=self.draft.text, pre_run=begun, handle_sigint=False, set_exception_handler=False
            )
        except BaseException:  # whatever calls us away - a question, Ctrl-C, the end - the draft is looked at first
            self.draft = self.draft if pause.crossing else Draft(buffer.text, buffer.cursor_position)
            raise
        finally:
            self._active = None
            pause.end()
        self._keys.ended()
        if pause.crossing:
            return ""
        self.draft = Draft()
        return sound(typed)

    async def ask(self, question: str, leave: Callable[[], bool]) -> str | None:
        """Return the answer typed after the question; None if it ended too soon to be an answer. Raises as `read` does.

        If a person was typing when the question appeared, their Enter does not answer it: the text typed after that
        goes into the draft.
        """
        line: PromptSession[str] = PromptSession(erase_when_done=True, reserve_space_for_menu=0, output=self._output)
        buffer = line.default_buffer

        def crossed(typed: str) -> None:
            self.draft = self.draft.with_more(typed)
            buffer.reset()

        pause = Pause(line, self._keys, crossed)

        def begun() -> None:
            pause.begin()
            if leave():
                self.call()

        self._active = line
        try:
            typed = await line.prompt_async(
                lambda: folded(question, line.app.output.get_size().columns),
                handle_sigint=False,
                pre_run=begun,
                set_exception_handler=False,
            )
        finally:
            self._active = None
            pause.end()
            if pause.crossing:
                self.draft = self.draft.with_more(buffer.text)
        self._keys.ended()
        return sound(typed) if pause.over else None

    def call(self) -> None:
        """Interrupt the line that is being typed, if any."""
        if self._active is not None and self._active.app.is_running and not self._active.app.is_done:
            self._active.app.exit(exception=LineInterrupted())

    def redraw(self) -> None:
        """Check soon for a change above or below the line, and draw it if there is one."""
        if self._due is None and self._active is not None:
            loop = asyncio.get_running_loop()
            self._due = loop.call_later(max(0.0, self._drawn + REDRAW - loop.time()), self._redraw_now)

    def _redraw_now(self) -> None:
        self._due = None
        self._drawn = asyncio.get_running_loop().time()
        # A terminal that accepts no output would collect one drawing after the other
        # (test_a_terminal_that_takes_nothing_holds_up_no_agent).
        if self._terminal.is_behind:
            self.redraw()  # the screen takes nothing: look again later
            return
        texts = self._now()
        if texts != self._texts and self._own is not None and self._own is self._active:
            self._texts = texts
            self._own.app.invalidate()

    def _now(self) -> tuple[str, str]:
        size = self._texts_for = self._size()
        return self._around.above(*size), self._around.below(size[0])

    def _size(self) -> tuple[int, int]:
        """Return the current columns and rows of the screen."""
        if self._output is None:
            return shutil.get_terminal_size()
        size = self._output.get_size()
        return size.columns, size.rows

    def _toolbar(self) -> str | None:
        """Return the status for the current screen size, if there is room for it."""
        if self._size() != self._texts_for:
            self._texts = self._now()
        return (self._texts[1] if self._texts_for[1] >= _ROWS_FOR_STATUS else "") or None

    def _message(self) -> FormattedText:
        above = self._texts[0]
        return FormattedText([*([("", f"{above}\n")] if above else []), ("bold", "> ")])

    def _session(self) -> PromptSession[str]:
        session: PromptSession[str] = PromptSession(
            history=self._history,
            completer=self._completer,
            complete_while_typing=Condition(lambda: wants_menu(session.default_buffer.document.text_before_cursor)),
            reserve_space_for_menu=0,
            erase_when_done=True,  # what was sent is printed like all else, so that lines keep their order
            multiline=True,
            prompt_continuation="  ",
            key_bindings=line_keys(self._around.next_mode),
            search_ignore_case=True,
            bottom_toolbar=self._toolbar,
            output=self._output,
            color_depth=None if self._terminal.paints else ColorDepth.DEPTH_1_BIT,
        )
        session.layout.current_window.height = lambda: _height(session, self._size()[1])
        return session


def _document(draft: Draft) -> Document:
    return Document(draft.text, draft.cursor)


def sound(typed: str) -> str:
    """Return the line as valid text: bytes of the keyboard that are not text are replaced."""
    return typed.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _height(session: PromptSession[str], rows: int) -> Dimension:
    """Return a height of at most half the screen, with room for the menu only while it is open."""
    most = max(1, rows // 2)
    return Dimension(min=min(_MENU, most) if session.default_buffer.complete_state is not None else 1, max=most)


def _keep_typed_ahead() -> None:
    """Type the lines that were entered before this line existed on it, each with its Enter, which a terminal in its
    ordinary mode passes on as a line break."""
    if not sys.stdin.isatty():
        return
    file = sys.stdin.fileno()
    # Exactly what is there now: a read of more would wait for the next key
    # (test_what_is_typed_during_the_start_stands_once_in_the_prompt).
    waiting = struct.unpack("i", fcntl.ioctl(file, termios.FIONREAD, b"\0" * 4))[0]
    typed = b""
    while len(typed) < waiting and (piece := os.read(file, waiting - len(typed))):
        typed += piece
    keys: list[KeyPress] = []
    parser = Vt100Parser(keys.append)
    parser.feed(typed.decode(errors="surrogateescape").replace("\n", "\r"))
    parser.flush()
    if keys:
        store_typeahead(get_app_session().input, keys)


BUNDLE = 0.1
"""Seconds for which prints are collected: the line is redrawn after each batch."""


class Above:
    """Prints above the line that is being typed, if there is one."""

    def __init__(self, canvas: Canvas, typing: Callable[[], Application[str] | None]) -> None:
        """Create it in the event loop that draws. `typing`: returns the line on the screen, if there is one."""
        self._canvas = canvas
        self._typing = typing
        self._loop = asyncio.get_running_loop()
        # Held to put a text into the list or to take all of them, never while writing.
        self._lock = threading.Lock()
        self._waiting: list[str] = []

    def write(self, text: str) -> None:
        """Print whole lines. May be called from any thread; returns at once."""
        with self._lock:
            self._waiting.append(text)
            first = len(self._waiting) == 1
        # One wake-up of the loop for all that is printed until then, whatever thread prints it.
        if first:
            self._loop.call_soon_threadsafe(self._soon)

    def close(self) -> None:
        """Print the pending text. The line is no longer on the screen."""
        self._put()

    def _soon(self) -> None:
        self._loop.call_later(BUNDLE, self._print)

    def _print(self) -> None:
        """Print without `run_in_terminal`, which leaves the terminal's raw mode: a key typed then is echoed or
        changed."""
        line = self._typing()
        if line is not None:
            line.renderer.erase(leave_alternate_screen=False)
        self._put()
        if line is not None:
            line.invalidate()

    def _put(self) -> None:
        """Write everything that is pending. The first caller takes all of it, so that the order is kept."""
        with self._lock:
            texts, self._waiting = self._waiting, []
        if texts:
            self._canvas.write("".join(texts))


class Strays(io.TextIOBase):
    """Replacement of stdout and stderr while a person types: the output of libraries becomes blocks."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._begun = ""

    def writable(self) -> bool:
        """Return True, always."""
        return True

    def write(self, text: str, /) -> int:
        """Print the complete lines."""
        lines, broken, remaining = (self._begun + text).rpartition("\n")
        self._begun = remaining
        if broken:
            self._terminal.terminal_print(block(lines, "dim"))
        return len(text)


TOO_SOON = 0.5
"""Seconds after a question appears in which a finished line is not an answer to it; also the pause after which keys
belong to the current line."""
_TYPING = 1.0
"""Seconds after the newest key in which a person counts as typing."""


@dataclass(slots=True)
class Keys:
    """Time of the newest key that changed an unfinished line; in the loop's clock."""

    at: float = float("-inf")

    def ended(self) -> None:
        """Note that the line ended with Enter: the person is no longer typing on it."""
        self.at = float("-inf")


class Pause:
    """Waits on a line for the moment from which keys belong to it: `over`.

    The timer runs in the loop that reads the keys: it fires after everything that was typed before it, however late
    both are.
    """

    def __init__(self, line: PromptSession[str], keys: Keys, crossed: Callable[[str], None]) -> None:
        """`crossed`: if the person was typing when the line changed, it receives the text typed after the change as
        soon as they pause."""
        self._app = line.app
        self._buffer = line.default_buffer
        self._keys = keys
        self._crossed = crossed
        self._before = ""
        self._timer: asyncio.TimerHandle | None = None
        self._was_typing = False
        self.over = False

    @property
    def crossing(self) -> bool:
        """Return True if the text on the line was meant for another line."""
        return self._was_typing and not self.over

    def begin(self) -> None:
        """Start: the line is on the screen."""
        self._before = self._buffer.text
        self._was_typing = asyncio.get_running_loop().time() - self._keys.at < _TYPING
        self._buffer.on_text_changed += self._typed
        self._wait()

    def end(self) -> None:
        """Stop: the line is gone."""
        if self._timer is not None:
            self._timer.cancel()
        self._buffer.on_text_changed -= self._typed

    def _typed(self, buffer: Buffer) -> None:
        self._keys.at = asyncio.get_running_loop().time()
        if self.crossing:
            self._wait()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # In the loop that also reads the keys, so that both are equally late on a slow machine
        # (test_a_line_that_ends_as_the_question_appears_is_not_its_answer).
        self._timer = asyncio.get_running_loop().call_later(TOO_SOON, self._passed)

    def _passed(self) -> None:
        if self._app.is_done:
            return  # its end came first
        crossing = self.crossing
        self.over = True
        if crossing and self._buffer.text != self._before:
            self._crossed(self._buffer.text)


def line_keys(next_mode: Callable[[], Coroutine[None, None, None]]) -> KeyBindings:
    """Return the key bindings: Enter sends; Alt-Enter, or Enter after a backslash, starts a new line; Shift-Tab awaits
    `next_mode`.

    A line feed also counts as Enter: some terminals, and programs that type into one, send it at the end of a line.
    """
    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER) & ~is_searching
    keys.add("enter", filter=typing)(_enter)
    keys.add("escape", "enter", filter=typing)(_new_line)
    keys.add("c-j", filter=typing)(_enter)
    keys.add("escape", "c-j", filter=typing)(_new_line)

    def shift_tab(event: KeyPressEvent) -> None:
        event.app.create_background_task(next_mode())

    keys.add("s-tab", filter=typing & ~has_completions)(shift_tab)
    return keys


def _enter(event: KeyPressEvent) -> None:
    buffer = event.current_buffer
    menu = buffer.complete_state
    if menu is not None and menu.current_completion is not None and not buffer.text.startswith("/"):
        buffer.complete_state = None  # it is taken; the sentence goes on
        return
    before = buffer.document.current_line_before_cursor
    if before.endswith("\\") and not buffer.document.current_line_after_cursor:
        buffer.delete_before_cursor(1)
        _new_line(event)
        return
    buffer.validate_and_handle()


def _new_line(event: KeyPressEvent) -> None:
    event.current_buffer.newline(copy_margin=False)


def wants_menu(before: str) -> bool:
    """Return True if completions are offered while this is typed: a command's name, and a name after `@`."""
    last = before[max(before.rfind(" "), before.rfind("\n")) + 1 :]
    return (before.startswith("/") and last == before) or (last.startswith("@") and len(last) > 1)
