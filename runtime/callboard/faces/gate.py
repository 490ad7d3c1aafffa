"""The question whether to trust what a workspace brings, put at a terminal before a session is opened.

No is what an empty line, the end of input and anything but `y` or `yes` mean. Where nobody is there it asks nothing,
and says in one line what is not used.
"""

from __future__ import annotations

from callboard.core.trust.claims import Brought, Changes
from callboard.faces.keyboard import Keyboard
from callboard.faces.pages.trust import brought_block
from callboard.faces.terminal import Terminal, block

QUESTION = "Trust exactly this, and use it? Without it everything else works. [y/N] "


class PersonGate:
    """Implements `Gate` (`callboard.trusting`) for the person at this terminal."""

    def __init__(self, terminal: Terminal, *, attended: bool) -> None:
        """`attended`: somebody reads what is asked and can type an answer."""
        self._terminal, self._attended = terminal, attended

    async def ask(self, brought: Brought, changes: Changes | None) -> bool:
        """See `Gate.ask`."""
        if not self._attended:
            return False
        shown = brought_block(brought, changes)
        answer = await Keyboard(self._terminal).ask(shown, QUESTION, lambda: "not answered: not trusted")
        return (answer or "").strip().lower() in {"y", "yes"}

    def tell(self, line: str) -> None:
        """See `Gate.tell`."""
        self._terminal.terminal_print(block(line, "warn"))
