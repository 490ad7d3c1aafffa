"""Prompt line: a person types on it while the output of agents appears above it, with draft and cursor unchanged.

Only one thing is typed at a time: a line of the person, or the answer to a question, which replaces the line and
restores it with the draft. `interrupt` interrupts either for something urgent. This module does not interpret a line,
and requires a terminal.

The terminal is never asked for its cursor position: over a slow connection a late answer would be read as typing, and
some terminals never answer.

Output that arrives while a person types is printed above the line, in one piece, through the stream on which the line
is drawn. Erasing, printing and redrawing all happen in the drawing thread and keep their order.

Keys can arrive at the wrong line, if a question appears or disappears while a person types, because no one reads a
question in the middle of a word. Input before the first pause belongs to the previous line. It neither answers a
question nor is sent to anyone.

Enter sends the line, which may contain several lines of text. The text is not inspected, except for a backslash at its
end.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Protocol, TextIO, cast

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application, get_app_session
from prompt_toolkit.completion import Completer
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_completions, has_focus, is_searching
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText, FormattedText, merge_formatted_text
from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.key_binding.key_processor import KeyPress
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output

from callboard.cli.repl import type_ahead
from callboard.cli.repl.draft import Draft, KeyPause, LineInterrupted, NewestKey, valid_text
from callboard.cli.repl.paste import keep_pastes_whole
from callboard.cli.repl.questions import answer_keys, hurry_escape
from callboard.cli.repl.resize import repair_resize
from callboard.cli.repl.team_panel import PanelKey, fragments
from callboard.cli.repl.type_ahead import release
from callboard.cli.terminal.canvas import Canvas
from callboard.cli.terminal.frame import DrawnFrame
from callboard.cli.terminal.terminal import Line, Terminal, block, style_lines

REDRAW = 0.1
"""Minimum seconds between two redraws that no key caused."""
TICK = 1.0
"""Seconds between two checks of texts that change with the time."""
_MENU_ROWS = 8
_ROWS_FOR_STATUS = 4
_ROWS_FOR_GAP = 12
"""Least rows of a terminal that has an empty row above the prompt."""
_ROWS_FOR_FRAME = 14


def wrap_prompt(text: str, columns: int) -> str:
    """Break the text before the cursor between words if it is longer than the line."""
    return "\n".join(textwrap.wrap(text, max(columns, 20), break_on_hyphens=False)) + " "


class LineFrame(Protocol):
    """Texts above and below the line, for a given number of columns and rows."""

    def above(self, columns: int, rows: int) -> Sequence[Line]:
        """Return the lines just above the line, each at most `columns` columns wide."""
        ...

    def below(self, columns: int, rows: int) -> str:
        """Return the status below the line: one line of at most `columns` columns."""
        ...

    @property
    def moves(self) -> bool:
        """Return True while the texts change with the time, so that they are checked every second."""
        ...

    def press(self, key: PanelKey) -> None:
        """Handle a key of the panel above the line, or Ctrl-Z."""
        ...

    def to_background(self) -> bool:
        """Let the lead go on without the command that it waits for: Ctrl-B was pressed. False: it waits for none."""
        ...

    async def next_mode(self) -> None:
        """Switch to the next permission mode: Shift-Tab was pressed."""
        ...

    async def escape(self) -> None:
        """Close what is open above the line, otherwise stop the turns: Esc was pressed."""
        ...


class _TerminalOutput(Vt100_Output):
    """Terminal that is never asked for its cursor position."""

    def get_rows_below_cursor_position(self) -> int:
        """Return 1, the guaranteed minimum."""
        return 1


class PromptLine:
    """Prompt line of one terminal, usable within `display`."""

    def __init__(
        self,
        terminal: Terminal,
        frame: LineFrame,
        *,
        history: History | None = None,
        completer: Completer | None = None,
    ) -> None:
        self._terminal = terminal
        self._frame = frame
        self._history = history or InMemoryHistory()
        self._completer = completer
        self._draft_session: PromptSession[str] | None = None
        self._active_session: PromptSession[str] | None = None
        self._output: Vt100_Output | None = None
        self._modes = ExitStack()
        self._canvas = terminal.canvas
        self._texts: tuple[Sequence[Line], str] = ((), "")
        """Texts above and below the line."""
        self._texts_for = (0, 0)
        """Screen size for which the texts were made."""
        self._drawn = float("-inf")
        self._redraw_timer: asyncio.TimerHandle | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        """Timer of the next check of texts that change with the time."""
        self._keys = NewestKey()
        self.draft = Draft()

    @contextmanager
    def display(self) -> Generator[None]:
        """Print above the line during the block, and echo keys only through the line."""
        canvas = cast("TextIO", self._canvas)
        self._output = _TerminalOutput.from_pty(canvas, term=os.environ.get("TERM")) if canvas.isatty() else None
        with self._modes:
            _keep_typed_ahead()
            self._take_terminal()
            try:
                yield
            finally:
                self._stop_timers()

    def _stop_timers(self) -> None:
        for timer in (self._redraw_timer, self._tick_timer):
            if timer is not None:
                timer.cancel()

    @contextmanager
    def hand_over(self) -> Generator[None]:
        """Give the screen and the keyboard to another program during the block."""
        self._modes.close()
        try:
            yield
        finally:
            self._take_terminal()

    def _take_terminal(self) -> None:
        keep_pastes_whole(get_app_session().input)
        self._modes.callback(release)  # runs after the end of raw mode, which restores the mode that holds keys back
        # For the whole time, not only while a line is read: a key typed between two lines would be echoed into the
        # output (docs/decisions/0019-one-writer-draws-the-line.md).
        self._modes.enter_context(get_app_session().input.raw_mode())
        strays = StrayOutput(self._terminal)
        # Output of libraries would overwrite the line.
        self._modes.enter_context(redirect_stdout(strays))
        self._modes.enter_context(redirect_stderr(strays))
        above = OutputAbove(self._canvas, self._running_app)
        self._modes.callback(above.close)
        self._terminal.show_above(above.write)
        self._modes.callback(self._terminal.show_above, None)

    def _running_app(self) -> Application[str] | None:
        return (
            self._active_session.app
            if self._active_session is not None and self._active_session.app.is_running
            else None
        )

    async def read(self, leave: Callable[[], bool]) -> str:
        """Return the line that the person sends, starting with the draft.

        Raises `LineInterrupted` (at once if `leave` returns True), `EOFError` and `KeyboardInterrupt`, and then keeps
        the draft. Keys that were meant for a withdrawn question are dropped: a line ended by them is empty.
        """
        line = self._draft_session = self._draft_session or self._session()
        buffer = line.default_buffer
        pause = KeyPause(line, self._keys, lambda typed: buffer.set_document(_document(self.draft)))

        def start() -> None:
            buffer.cursor_position = self.draft.cursor
            pause.begin()
            if leave():
                self.interrupt()

        self._texts = self._current_texts()
        self._active_session = line
        self._tick_soon()
        try:
            typed = await line.prompt_async(
                self._message, default=self.draft.text, pre_run=start, handle_sigint=False, set_exception_handler=False
            )
        except BaseException:  # keep the draft at any interruption: a question, Ctrl-C, the end
            self.draft = self.draft if pause.crossing else Draft(buffer.text, buffer.cursor_position)
            raise
        finally:
            self._active_session = None
            pause.end()
        self._keys.note_end()
        if pause.crossing:
            return ""
        self.draft = Draft()
        return valid_text(typed)

    @property
    def frames(self) -> bool:
        """Return True if the screen has room for the frame of a question."""
        return self._size()[1] >= _ROWS_FOR_FRAME

    async def ask(self, question: str, leave: Callable[[], bool], drawn: DrawnFrame | None = None) -> str | None:
        """Return the answer typed after the question; None if it was sent too soon to be an answer.

        `drawn`: frame that is drawn above the answer, and erased with it; its keys answer at once.

        Raises as `read` does. If a person was typing when the question appeared, their Enter does not answer it: the
        text typed after that goes into the draft.
        """
        line: PromptSession[str] = PromptSession(
            erase_when_done=True,
            reserve_space_for_menu=0,
            output=self._output,
            key_bindings=KeyBindings(),
            color_depth=None if self._terminal.paints else ColorDepth.DEPTH_1_BIT,
        )
        repair_resize(line)
        buffer = line.default_buffer

        def crossed(typed: str) -> None:
            self.draft = self.draft.with_more(typed)
            buffer.reset()

        pause = KeyPause(line, self._keys, crossed)
        pause.over = drawn is not None and drawn.frame.repeated  # a further line about the request on the screen
        timers = ExitStack()

        def start() -> None:
            pause.begin()
            if drawn is not None and (seconds := drawn.seconds_until_near()) is not None:
                timers.callback(asyncio.get_running_loop().call_later(seconds, line.app.invalidate).cancel)
            if leave():
                self.interrupt()

        def message() -> AnyFormattedText:
            size = line.app.output.get_size()
            if drawn is None:
                return wrap_prompt(question, size.columns)
            above = style_lines(drawn.rows(size.columns, size.rows), color=self._terminal.paints)
            return merge_formatted_text([ANSI(above), [("bold", drawn.prompt(question, size.columns))]])

        if drawn is not None:
            answer_keys(line, drawn, lambda: pause.over)
        self._active_session = line
        try:
            typed = await line.prompt_async(
                message,
                handle_sigint=False,
                pre_run=start,
                set_exception_handler=False,
            )
        finally:
            self._active_session = None
            timers.close()
            pause.end()
            if pause.crossing:
                self.draft = self.draft.with_more(buffer.text)
        self._keys.note_end()
        if not pause.over and not typed.strip():
            return await self.ask(question, leave, drawn)  # an Enter that belonged to the previous line
        return valid_text(typed) if pause.over else None

    def redraw_question(self) -> bool:
        """Draw the frame of the question on the screen again; return False if there is none."""
        if self._active_session is None or self._active_session is self._draft_session:
            return False
        self._active_session.app.invalidate()
        return True

    def interrupt(self) -> None:
        """Interrupt the line that is being typed, if any."""
        if (
            self._active_session is not None
            and self._active_session.app.is_running
            and not self._active_session.app.is_done
        ):
            self._active_session.app.exit(exception=LineInterrupted())

    def redraw(self) -> None:
        """Check soon for a change above or below the line, and draw it if there is one."""
        if self._redraw_timer is None and self._active_session is not None:
            loop = asyncio.get_running_loop()
            self._redraw_timer = loop.call_later(max(0.0, self._drawn + REDRAW - loop.time()), self._redraw_now)

    def _redraw_now(self) -> None:
        self._redraw_timer = None
        self._drawn = asyncio.get_running_loop().time()
        # Drawings would pile up for a terminal that accepts no output
        # (test_a_terminal_that_takes_nothing_holds_up_no_agent).
        if self._terminal.is_behind:
            self.redraw()  # try again later
            return
        self._tick_soon()
        if (
            self._draft_session is None
            or self._draft_session is not self._active_session
            or not self._draft_session.app.is_running
        ):
            return
        texts = self._current_texts()
        if texts == self._texts:
            return
        moves = len(texts[0]) != len(self._texts[0])
        self._texts = texts
        if moves:
            # Otherwise a line that loses rows keeps its height, with empty rows in it. And a row of the list that
            # replaces the status line stays as wide as the screen for a terminal that breaks rows when it becomes
            # narrower, so that the list could not be erased then.
            with self._canvas.frame():
                self._draft_session.app.renderer.erase(leave_alternate_screen=False)
                draw_now(self._draft_session.app)
        else:
            self._draft_session.app.invalidate()

    def _tick_soon(self) -> None:
        """Check the texts again in a second, while they change with the time."""
        if self._tick_timer is None and self._active_session is not None and self._frame.moves:
            self._tick_timer = asyncio.get_running_loop().call_later(TICK, self._ticked)

    def _ticked(self) -> None:
        self._tick_timer = None
        self.redraw()

    def _current_texts(self) -> tuple[Sequence[Line], str]:
        size = self._texts_for = self._size()
        gap = (Line(""),) if size[1] >= _ROWS_FOR_GAP else ()
        return (*self._frame.above(*size), *gap), self._frame.below(*size)

    def _size(self) -> tuple[int, int]:
        """Return the current columns and rows of the screen."""
        if self._output is None:
            return shutil.get_terminal_size()
        size = self._output.get_size()
        return size.columns, size.rows

    def _toolbar(self) -> ANSI | None:
        """Return the status for the current screen size, if there is room for it."""
        if self._size() != self._texts_for:
            self._texts = self._current_texts()
        text = self._texts[1] if self._texts_for[1] >= _ROWS_FOR_STATUS else ""
        return ANSI(text) if text else None

    def _message(self) -> FormattedText:
        return FormattedText([*fragments(self._texts[0], color=self._terminal.paints), ("bold", "> ")])

    def _press(self, key: PanelKey) -> None:
        self._frame.press(key)
        self.redraw()

    def _session(self) -> PromptSession[str]:
        session: PromptSession[str] = PromptSession(
            history=self._history,
            completer=self._completer,
            complete_while_typing=Condition(lambda: wants_menu(session.default_buffer.document.text_before_cursor)),
            reserve_space_for_menu=0,
            erase_when_done=True,  # a sent line is printed like other output, to keep the order
            multiline=True,
            prompt_continuation="  ",
            key_bindings=line_keys(self._frame, self._press),
            search_ignore_case=True,
            bottom_toolbar=self._toolbar,
            output=self._output,
            color_depth=None if self._terminal.paints else ColorDepth.DEPTH_1_BIT,
        )
        hurry_escape(session.app)
        session.layout.current_window.height = lambda: _height(session, self._size()[1])
        repair_resize(session)
        return session


def _document(draft: Draft) -> Document:
    return Document(draft.text, draft.cursor)


def _height(session: PromptSession[str], rows: int) -> Dimension:
    """Return a height of at most half the screen, with room for the menu only while it is open."""
    most = max(1, rows // 2)
    return Dimension(min=min(_MENU_ROWS, most) if session.default_buffer.complete_state is not None else 1, max=most)


def _keep_typed_ahead() -> None:
    """Type on this line the lines that were entered before it existed, each with its Enter.

    A terminal in its ordinary mode passes on Enter as a line break.
    """
    if not sys.stdin.isatty():
        return
    file = sys.stdin.fileno()
    # Read only the waiting bytes: a longer read would wait for the next key
    # (test_what_is_typed_during_the_start_stands_once_in_the_prompt).
    waiting = type_ahead.waiting_bytes(file)
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


def draw_now(line: Application[str]) -> None:
    """Draw the line at once, unlike `invalidate`, so that it is part of the same frame as the output before it."""
    line._redraw()  # pyright: ignore[reportPrivateUsage] - the library has no public method that draws at once


class OutputAbove:
    """Output above the line that is being typed, if there is one."""

    def __init__(self, canvas: Canvas, typing: Callable[[], Application[str] | None]) -> None:
        """Create it in the event loop that draws. `typing`: returns the line on the screen, if there is one."""
        self._canvas = canvas
        self._running_app = typing
        self._loop = asyncio.get_running_loop()
        # Held while texts are added or taken, never while writing.
        self._lock = threading.Lock()
        self._waiting: list[str] = []

    def write(self, text: str) -> None:
        """Print whole lines. May be called from any thread; returns at once."""
        with self._lock:
            self._waiting.append(text)
            first = len(self._waiting) == 1
        # One wake-up of the loop for all pending texts, from any thread.
        if first:
            self._loop.call_soon_threadsafe(self._soon)

    def close(self) -> None:
        """Print the pending text. The line is no longer on the screen."""
        self._put()

    def _soon(self) -> None:
        self._loop.call_later(BUNDLE, self._print)

    def _print(self) -> None:
        """Print without `run_in_terminal`, which leaves the terminal's raw mode.

        A key typed then is echoed or changed. The screen receives the text and the line in one piece, so that nothing
        flickers.
        """
        line = self._running_app()
        if line is None:
            self._put()
            return
        with self._canvas.frame():
            line.renderer.erase(leave_alternate_screen=False)
            self._put()
            draw_now(line)

    def _put(self) -> None:
        """Write everything that is pending. The first caller takes all of it, so that the order is kept."""
        with self._lock:
            texts, self._waiting = self._waiting, []
        if texts:
            self._canvas.write("".join(texts))


class StrayOutput(io.TextIOBase):
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


PANEL_KEYS: Mapping[str, PanelKey] = {
    "c-t": "team",
    "c-o": "agent",
    "pageup": "up",
    "pagedown": "down",
    "c-z": "suspend",
}
"""Keys of the panel above the line, and Ctrl-Z, which would otherwise be inserted."""


def line_keys(line_frame: LineFrame, press: Callable[[PanelKey], None]) -> KeyBindings:
    """Return the key bindings of the line.

    Enter sends; Alt-Enter, or Enter after a backslash, starts a new line; Shift-Tab awaits `next_mode`; the keys of the
    panel call `press`. Ctrl-B calls `to_background`; if there is nothing to move, it moves the cursor as usual. Esc
    closes the menu, or awaits `escape`.

    A line feed also counts as Enter: some terminals, and programs that type into one, send it at the end of a line.
    """
    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER) & ~is_searching
    keys.add("enter", filter=typing)(_enter)
    keys.add("escape", "enter", filter=typing)(_new_line)
    keys.add("c-j", filter=typing)(_enter)
    keys.add("escape", "c-j", filter=typing)(_new_line)

    def shift_tab(event: KeyPressEvent) -> None:
        event.app.create_background_task(line_frame.next_mode())

    def control_b(event: KeyPressEvent) -> None:
        if not line_frame.to_background():
            event.current_buffer.cursor_left()

    def escape(event: KeyPressEvent) -> None:
        if event.current_buffer.complete_state is not None:
            event.current_buffer.cancel_completion()
        else:
            event.app.create_background_task(line_frame.escape())

    keys.add("escape", filter=typing)(escape)
    keys.add("c-b", filter=typing)(control_b)
    keys.add("s-tab", filter=typing & ~has_completions)(shift_tab)
    for key, effect in PANEL_KEYS.items():
        keys.add(key, filter=typing & ~has_completions)(_pressing(press, effect))
    return keys


def _pressing(press: Callable[[PanelKey], None], key: PanelKey) -> Callable[[KeyPressEvent], None]:
    def pressed(event: KeyPressEvent) -> None:
        press(key)

    return pressed


def _enter(event: KeyPressEvent) -> None:
    buffer = event.current_buffer
    menu = buffer.complete_state
    if menu is not None and menu.current_completion is not None and not buffer.text.startswith("/"):
        buffer.complete_state = None  # the completion is accepted, and typing continues
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
