"""The line that a person types on: what agents print appears above it; draft and cursor stay as they were.

One thing is typed at a time: the person's own words, or the answer to a question, which takes the line's place and
gives it back with the draft. `call` leaves whichever is being typed, for something that cannot wait.

It refuses to know what a line means, and to run without a terminal.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.patch_stdout import patch_stdout

from callboard.faces.terminal import Terminal

TOO_SOON = 0.5
"""Seconds: a line that ends sooner after its question appeared was not meant for it."""


class Called(Exception):
    """The line was left for something that cannot wait; the draft is kept."""


@dataclass(slots=True)
class Draft:
    """What is typed and not sent, and where the cursor stands in it."""

    text: str = ""
    cursor: int = 0


class PromptLine:
    """The line of one terminal, while `shown` lasts."""

    def __init__(
        self,
        terminal: Terminal,
        above: Callable[[], str],
        below: Callable[[], str],
        *,
        history: History | None = None,
        completer: Completer | None = None,
    ) -> None:
        """`above`, `below`: the text just above the line (it may be empty), and the status below it."""
        self._terminal, self._above, self._below = terminal, above, below
        self._line = _session(history or InMemoryHistory(), completer)
        self._active: PromptSession[str] | None = None
        self._hold = ExitStack()
        self.draft = Draft()

    @contextmanager
    def shown(self) -> Generator[None]:
        """While the block lasts, prints appear above the line."""
        with self._hold:
            self._take()
            yield

    @contextmanager
    def left(self) -> Generator[None]:
        """While the block lasts another program has the screen and the keyboard."""
        self._hold.close()
        try:
            yield
        finally:
            self._take()

    def _take(self) -> None:
        self._hold.enter_context(patch_stdout(raw=True))
        self._terminal.show_above(sys.stdout.write)
        self._hold.callback(self._terminal.show_above, None)

    async def read(self, leave: Callable[[], bool]) -> str:
        """What the person sends, from the draft on. Raises `Called` (at once, where `leave` says so), `EOFError` and
        `KeyboardInterrupt`; the draft is kept then."""
        line = self._line

        def begun() -> None:
            line.default_buffer.cursor_position = self.draft.cursor
            if leave():
                self.call()

        self._active = line
        try:
            typed = await line.prompt_async(
                self._message, bottom_toolbar=self._below, default=self.draft.text, pre_run=begun, handle_sigint=False
            )
        except BaseException:  # whatever calls us away - a question, Ctrl-C, the end - the draft is looked at first
            self.draft = Draft(line.default_buffer.text, line.default_buffer.cursor_position)
            raise
        finally:
            self._active = None
        self.draft = Draft()
        return typed

    async def asked(self, words: str, leave: Callable[[], bool]) -> str | None:
        """The answer typed after `words`; None when it ended too soon to be one. Raises as `read` does.

        A person who was typing when the question came has not answered it with that Enter. A timer of the loop that
        reads the keys comes after all that was typed before it, however late both are."""
        line = _session(InMemoryHistory(), None)
        ripe: list[bool] = []

        def begun() -> None:
            asyncio.get_running_loop().call_later(TOO_SOON, lambda: ripe.append(not line.app.is_done))
            if leave():
                self.call()

        self._active = line
        try:
            typed = await line.prompt_async(words, handle_sigint=False, pre_run=begun)
        finally:
            self._active = None
        return typed if any(ripe) else None

    def call(self) -> None:
        """Leave what is being typed, if anything is."""
        if self._active is not None and self._active.app.is_running and not self._active.app.is_done:
            self._active.app.exit(exception=Called())

    def redraw(self) -> None:
        """What stands above or below the line has changed."""
        self._line.app.invalidate()

    def _message(self) -> FormattedText:
        above = self._above()
        return FormattedText([*([("", f"{above}\n")] if above else []), ("bold", "> ")])


def _session(history: History, completer: Completer | None) -> PromptSession[str]:
    return PromptSession(
        history=history,
        completer=completer,
        complete_while_typing=False,
        reserve_space_for_menu=0,
        erase_when_done=True,  # what was sent is printed like all else, so that lines keep their order
    )
