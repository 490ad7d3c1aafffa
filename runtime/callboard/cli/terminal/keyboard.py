"""Lines typed at a terminal without a prompt line, read so that a question can be withdrawn, and the question of trust.

The prompt line of `repl.py` edits and draws more. Here a line has the editing keys of a terminal's line mode. Keys are
read one by one, so that output of agents moves the line instead of repeating it.

Trust in the content of a workspace is asked before a session is opened. An empty line, the end of input and anything
but `y` or `yes` mean no. Without a person nothing is asked, and one line reports the unused content.
"""

from __future__ import annotations

import codecs
import os
import signal
import sys
import termios
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

import anyio

from callboard.cli.repl.type_ahead import line_by_line, set_mode
from callboard.cli.terminal.frame import Frame
from callboard.cli.terminal.terminal import Block, Terminal, block
from callboard.cli.views.trust import claims_block
from callboard.core.trust.claims import ClaimChanges, WorkspaceClaims
from callboard.types.late_pattern import late_pattern


class TerminalGone(Exception):
    """Raised if the terminal is lost while a question is asked, so that there is no answer."""


class Keyboard:
    """Lines from stdin while it is a terminal."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    async def ask(self, page: Block | Frame, question: str, taken_back: Callable[[], str]) -> str | None:
        """Show the lines of a page, ask a question and return the line; None at the end of input (Ctrl-D).

        Text typed before the question was asked is discarded, because a person cannot approve an unseen request. When
        cancelled, it shows the reason. After Ctrl-Z and `fg` it shows the page and the question again.

        Raises `TerminalGone`.
        """
        shown = Block(tuple(page.lines))
        file = sys.stdin.fileno()
        with line_by_line(), _single_keys(file) as quiet, _continued(file, lambda: self._terminal.show_again(shown)):
            return await self._ask(shown, question, taken_back, quiet=quiet)

    async def confirm(self, page: Block | Frame, question: str, taken_back: Callable[[], str]) -> bool:
        """Ask a question, as in `ask`, and return True for yes; False for anything else and for a closed terminal."""
        try:
            answer = await self.ask(page, question, taken_back)
        except TerminalGone:
            return False
        return (answer or "").strip().lower() in {"y", "yes"}

    async def _ask(self, page: Block, question: str, taken_back: Callable[[], str], *, quiet: bool) -> str | None:
        file = sys.stdin.fileno()
        # Text typed before the question is not an answer to it.
        termios.tcflush(file, termios.TCIFLUSH)
        self._terminal.terminal_print(page)
        self._terminal.ask(question, typed="" if quiet else None)
        line = TypedLine()
        try:
            while not line.ended:
                await anyio.wait_readable(file)
                piece = _read(file)
                line.press(piece)
                if not piece or line.left:
                    self._terminal.note_answer("(end of input)")
                    return None
                if quiet:
                    self._terminal.show_typed(line.text)
        except anyio.get_cancelled_exc_class():
            self._terminal.note_answer(f"({taken_back()})")
            raise
        self._terminal.note_answer()
        return line.text


class TypedLine:
    """Line made of keys, with the editing keys that a terminal in line mode has."""

    def __init__(self) -> None:
        self.text = ""
        self.ended = False
        """True after Enter; later keys are dropped."""
        self.left = False
        """True after Ctrl-D in an empty line."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""

    def press(self, piece: bytes) -> None:
        """Take the bytes of keys. Sequences of other keys, such as arrows, are dropped."""
        keys = self._begun + self._decoder.decode(piece)
        begun = _BEGUN_KEY.search(keys)  # its other bytes come with the next piece
        self._begun = begun.group() if begun else ""
        for key in _OTHER_KEYS.sub("", keys.removesuffix(self._begun)):
            if not self.ended and not self.left:
                self._take(key)

    def _take(self, key: str) -> None:
        match key:
            case "\n" | "\r":
                self.ended = True
            case "\x04":
                self.left = not self.text
            case "\x7f" | "\b":
                self.text = self.text[:-1]
            case "\x15":  # Ctrl-U
                self.text = ""
            case "\x17":  # Ctrl-W
                start, blank, _ = self.text.rstrip().rpartition(" ")
                self.text = start + blank
            case _ if key.isprintable():
                self.text += key
            case _:
                pass


_BEGUN_KEY = late_pattern(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
_OTHER_KEYS = late_pattern(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)?")


@contextmanager
def _single_keys(file: int) -> Generator[bool]:
    """Read keys one by one, without echo, during the block, so that output can move the line. Yields True if it can.

    A terminal without control sequences stays in line mode. Ctrl-C and Ctrl-Z act as before.
    """
    if os.environ.get("TERM", "dumb") == "dumb" or not sys.stderr.isatty():
        yield False
        return
    try:
        before = termios.tcgetattr(file)
    except termios.error as gone:
        raise TerminalGone from gone
    quiet = [*before[:3], before[3] & ~(termios.ECHO | termios.ICANON), *before[4:]]
    set_mode(file, quiet)
    try:
        yield True
    finally:
        set_mode(file, before)


@contextmanager
def _continued(file: int, show_again: Callable[[], None]) -> Generator[None]:
    """Call `show_again` during the block whenever this process continues in the foreground after a stop (Ctrl-Z, `fg`).

    The shell has set its own mode of the terminal meanwhile, so the present mode is set again first.
    """
    if threading.current_thread() is not threading.main_thread():  # only this thread may handle signals
        yield
        return
    mode = _mode(file)

    def resume(number: int, frame: FrameType | None) -> None:
        # In the background (`bg`) the terminal belongs to the shell; the `fg` that follows sends the signal again.
        if mode is not None and _in_foreground(file):
            set_mode(file, mode)
            show_again()

    before = signal.signal(signal.SIGCONT, resume)
    try:
        yield
    finally:
        signal.signal(signal.SIGCONT, before)


def _mode(file: int) -> list[int | list[bytes | int]] | None:
    """Return the mode of a terminal; None if it is gone."""
    try:
        return termios.tcgetattr(file)
    except termios.error:
        return None


def _in_foreground(file: int) -> bool:
    """Return True if this process may write to the terminal and change its mode."""
    try:
        return os.tcgetpgrp(file) == os.getpgrp()
    except OSError:  # the terminal is gone
        return False


def _read(file: int) -> bytes:
    """Return the typed text; empty at the end of input. Called when something was typed, so this does not wait.

    A closed terminal also ends its input, like Ctrl-D, but its settings can no longer be read. Since the end of input
    rejects the request, the two are distinguished (`test_a_terminal_that_is_closed_at_a_question_answers_nothing`).
    """
    try:
        piece = os.read(file, 4_096)
        if not piece:
            termios.tcgetattr(file)
    except (OSError, termios.error) as gone:
        raise TerminalGone from gone
    return piece


def person_is_there() -> bool:
    """Return True if someone can read questions and type an answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


QUESTION = "Trust exactly this, and use it? Without it everything else works. [y/N] "


class PersonGate:
    """Question of trust to the person at this terminal. Implements `TrustPrompt` (`callboard.config.trust`)."""

    def __init__(self, terminal: Terminal, *, attended: bool) -> None:
        """Create it. `attended`: someone can read the questions and type an answer."""
        self._terminal = terminal
        self._attended = attended

    async def ask(self, workspace_claims: WorkspaceClaims, changes: ClaimChanges | None) -> bool:
        """See `TrustPrompt.ask`."""
        if not self._attended:
            return False
        page = claims_block(workspace_claims, changes)
        return await Keyboard(self._terminal).confirm(page, QUESTION, lambda: "not answered: not trusted")

    def tell(self, line: str) -> None:
        """See `TrustPrompt.tell`."""
        self._terminal.terminal_print(block(line, "warn"))
