"""The line that a person types on: what agents print appears above it; draft and cursor stay as they were.

One thing is typed at a time: the person's own words, or the answer to a question, which takes the line's place and
gives it back with the draft. `call` leaves whichever is being typed, for something that cannot wait.

The terminal is never asked where its cursor is: an answer that comes late over a slow connection would be taken for
typing, and some never answer. It refuses to know what a line means, and to run without a terminal.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import struct
import sys
import termios
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Protocol, TextIO, cast

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application, get_app_session
from prompt_toolkit.completion import Completer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding.key_processor import KeyPress
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output

from callboard.faces.prompt.above import Above, Strays
from callboard.faces.prompt.completion import wants_menu
from callboard.faces.prompt.crossing import Keys, Pause
from callboard.faces.prompt.keys import line_keys
from callboard.faces.terminal import Terminal

REDRAW = 0.1
"""Seconds between two redraws that no key asked for, at least."""
_MENU, _ROWS_FOR_STATUS = 8, 4


class Called(Exception):
    """The line was left for something that cannot wait; the draft is kept."""


@dataclass(slots=True)
class Draft:
    """What is typed and not sent, and where the cursor stands in it."""

    text: str = ""
    cursor: int = 0

    def with_more(self, typed: str) -> Draft:
        """With what was typed on where the cursor stands."""
        text = self.text[: self.cursor] + typed + self.text[self.cursor :]
        return Draft(text, self.cursor + len(typed))


class Around(Protocol):
    """What is shown round the line, for so many columns and rows."""

    def above(self, columns: int, rows: int) -> str:
        """The text just above the line; it may be empty, and have several lines."""
        ...

    def below(self) -> str:
        """The status below it, in one line."""
        ...


class _Screen(Vt100_Output):
    """The terminal, which is not asked where its cursor stands."""

    def get_rows_below_cursor_position(self) -> int:
        """As few as there always are."""
        return 1


class PromptLine:
    """The line of one terminal, while `shown` lasts."""

    def __init__(
        self, terminal: Terminal, around: Around, *, history: History | None = None, completer: Completer | None = None
    ) -> None:
        self._terminal, self._around = terminal, around
        self._history, self._completer = history or InMemoryHistory(), completer
        self._own: PromptSession[str] | None = None
        self._active: PromptSession[str] | None = None
        self._output: Vt100_Output | None = None
        self._hold = ExitStack()
        self._texts = ("", "")
        """What stands above and below."""
        self._drawn = float("-inf")
        self._due: asyncio.TimerHandle | None = None
        self._keys = Keys()
        self.draft = Draft()

    @contextmanager
    def shown(self) -> Generator[None]:
        """While the block lasts, prints appear above the line, and no key is echoed but by it."""
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
    def left(self) -> Generator[None]:
        """While the block lasts another program has the screen and the keyboard."""
        self._hold.close()
        try:
            yield
        finally:
            self._take()

    def _take(self) -> None:
        self._hold.enter_context(get_app_session().input.raw_mode())
        strays = Strays(self._terminal)
        self._hold.enter_context(redirect_stdout(strays))
        self._hold.enter_context(redirect_stderr(strays))
        above = Above(self._terminal.canvas, self._typing)
        self._hold.callback(above.close)
        self._terminal.show_above(above.write)
        self._hold.callback(self._terminal.show_above, None)

    def _typing(self) -> Application[str] | None:
        return self._active.app if self._active is not None and self._active.app.is_running else None

    async def read(self, leave: Callable[[], bool]) -> str:
        """What the person sends, from the draft on. Raises `Called` (at once, where `leave` says so), `EOFError` and
        `KeyboardInterrupt`; the draft is kept then. Keys of an answer that nobody needs any more are dropped: what ends
        with them is empty."""
        line = self._own = self._own or self._session()
        buffer = line.default_buffer
        pause = Pause(line, self._keys, lambda typed: buffer.set_document(_document(self.draft)))

        def begun() -> None:
            buffer.cursor_position = self.draft.cursor
            pause.begin()
            if leave():
                self.call()

        self._texts, self._active = self._now(), line
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

    async def asked(self, words: str, leave: Callable[[], bool]) -> str | None:
        """The answer typed after `words`; None when it ended too soon to be one. Raises as `read` does.

        A person who was typing when the question came has not answered it with that Enter: what they typed on goes
        into the draft."""
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
            typed = await line.prompt_async(words, handle_sigint=False, pre_run=begun, set_exception_handler=False)
        finally:
            self._active = None
            pause.end()
            if pause.crossing:
                self.draft = self.draft.with_more(buffer.text)
        self._keys.ended()
        return sound(typed) if pause.over else None

    def call(self) -> None:
        """Leave what is being typed, if anything is."""
        if self._active is not None and self._active.app.is_running and not self._active.app.is_done:
            self._active.app.exit(exception=Called())

    def redraw(self) -> None:
        """What stands above or below the line may have changed. It is looked at soon, and drawn if it has."""
        if self._due is None and self._active is not None:
            loop = asyncio.get_running_loop()
            self._due = loop.call_later(max(0.0, self._drawn + REDRAW - loop.time()), self._redraw_now)

    def _redraw_now(self) -> None:
        self._due, self._drawn = None, asyncio.get_running_loop().time()
        if self._terminal.is_behind:
            self.redraw()  # the screen takes nothing: look again later
            return
        texts = self._now()
        if texts != self._texts and self._own is not None and self._own is self._active:
            self._texts = texts
            self._own.app.invalidate()

    def _now(self) -> tuple[str, str]:
        return self._around.above(*self._size()), self._around.below()

    def _size(self) -> tuple[int, int]:
        """Columns and rows of the screen now."""
        if self._output is None:
            return shutil.get_terminal_size()
        size = self._output.get_size()
        return size.columns, size.rows

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
            key_bindings=line_keys(),
            search_ignore_case=True,
            bottom_toolbar=lambda: (self._texts[1] if self._size()[1] >= _ROWS_FOR_STATUS else "") or None,
            output=self._output,
            color_depth=None if self._terminal.paints else ColorDepth.DEPTH_1_BIT,
        )
        session.layout.current_window.height = lambda: _height(session, self._size()[1])
        return session


def _document(draft: Draft) -> Document:
    return Document(draft.text, draft.cursor)


def sound(typed: str) -> str:
    """The line as text: bytes of the keyboard that are none become marks."""
    return typed.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _height(session: PromptSession[str], rows: int) -> Dimension:
    """Half the screen at most; room for the menu only while there is one."""
    most = max(1, rows // 2)
    return Dimension(min=min(_MENU, most) if session.default_buffer.complete_state is not None else 1, max=most)


def _keep_typed_ahead() -> None:
    """Lines that were typed before this line was there are typed on it, each with its Enter (which a terminal in its
    ordinary way hands over as a line break)."""
    if not sys.stdin.isatty():
        return
    file = sys.stdin.fileno()
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
