"""Lines typed at a terminal without a prompt line, read so that a question can be withdrawn, and the question of trust.

Nothing is edited or drawn here; the prompt line of `repl.py` does that.

Trust in the content of a workspace is asked before a session is opened. An empty line, the end of input and anything
but `y` or `yes` mean no. Without a person nothing is asked, and one line reports the unused content.
"""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Callable

import anyio

from callboard.cli.repl.type_ahead import line_by_line
from callboard.cli.terminal.frame import Frame
from callboard.cli.terminal.terminal import Block, Terminal, block
from callboard.cli.views.trust import claims_block
from callboard.core.trust.claims import ClaimChanges, WorkspaceClaims


class TerminalGone(Exception):
    """Raised if the terminal is lost while a question is asked, so that there is no answer."""


class Keyboard:
    """Lines from stdin while it is a terminal in its ordinary line mode."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._typed = b""

    async def ask(self, page: Block | Frame, question: str, taken_back: Callable[[], str]) -> str | None:
        """Show the lines of a page, ask a question and return the line; None at the end of input (Ctrl-D).

        Text typed before the question was asked is discarded, because a person cannot approve an unseen request. When
        cancelled, it shows the reason.

        Raises `TerminalGone`.
        """
        with line_by_line():
            return await self._ask(page, question, taken_back)

    async def confirm(self, page: Block | Frame, question: str, taken_back: Callable[[], str]) -> bool:
        """Ask a question, as in `ask`, and return True for yes; False for anything else and for a closed terminal."""
        try:
            answer = await self.ask(page, question, taken_back)
        except TerminalGone:
            return False
        return (answer or "").strip().lower() in {"y", "yes"}

    async def _ask(self, page: Block | Frame, question: str, taken_back: Callable[[], str]) -> str | None:
        file = sys.stdin.fileno()
        self._typed = b""
        # Text typed before the question is not an answer to it.
        termios.tcflush(file, termios.TCIFLUSH)
        self._terminal.terminal_print(Block(tuple(page.lines)))
        self._terminal.ask(question)
        try:
            while b"\n" not in self._typed:
                await anyio.wait_readable(file)
                piece = _read(file)
                if not piece:
                    self._terminal.answered("(end of input)")
                    return None
                self._typed += piece
        except anyio.get_cancelled_exc_class():
            self._terminal.answered(f"({taken_back()})")
            raise
        self._terminal.answered()
        line, _, _ = self._typed.partition(b"\n")
        return line.decode(errors="replace")


def _read(file: int) -> bytes:
    """Return the typed text; empty at the end of input. A terminal delivers whole lines, so this does not wait.

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
