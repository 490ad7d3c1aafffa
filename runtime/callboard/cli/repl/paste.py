"""Pastes at the prompt line, whose text cannot act as keys.

A terminal puts a mark before and after a paste. Text that contains the end mark itself, as copied from a web page,
would end the paste early, and its rest would count as typed: `!command` and Enter run a command. Not every terminal
removes the mark. So a paste ends with the last end mark of what arrives without a pause; no person types that fast.
"""

from __future__ import annotations

import select
from collections.abc import Callable

from prompt_toolkit.input import Input
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding.key_processor import KeyPress
from prompt_toolkit.keys import Keys

_BEGIN = "\x1b[200~"
_END = "\x1b[201~"
_PAUSE = 0.02
"""Seconds without input after which the text of a paste is complete."""
_MOST = 64_000_000
"""Limit of the characters that are read after an end mark without returning to the event loop."""


def keep_pastes_whole(keyboard: Input) -> None:
    """Let a paste end only with its last end mark. Does nothing for a keyboard that has no pastes."""
    if isinstance(keyboard, Vt100Input) and not isinstance(keyboard.vt100_parser, PasteParser):
        keyboard.vt100_parser = PasteParser(keyboard.vt100_parser.feed_key_callback, lambda: _burst(keyboard))


def _burst(keyboard: Vt100Input) -> str:
    """Return the input that arrives without a pause."""
    pieces: list[str] = []
    size = 0
    while size < _MOST and not keyboard.closed and select.select([keyboard.fileno()], [], [], _PAUSE)[0]:
        pieces.append(keyboard.stdin_reader.read(65_536))
        size += len(pieces[-1])
    return "".join(pieces)


class PasteParser(Vt100Parser):
    """Parser of keys and pastes. The marks within a paste are dropped."""

    def __init__(self, feed_key_callback: Callable[[KeyPress], None], burst: Callable[[], str]) -> None:
        """`burst`: returns the text that follows at once, which may be empty."""
        super().__init__(feed_key_callback)
        self._burst = burst

    def feed(self, data: str) -> None:
        """Take input; the parent class calls it again with what follows the start of a paste."""
        if not self._in_bracketed_paste:
            super().feed(data)
            return
        searched = max(0, len(self._paste_buffer) - len(_END))
        self._paste_buffer += data
        if self._paste_buffer.find(_END, searched) < 0:
            return
        text, _, after = (self._paste_buffer + self._burst()).rpartition(_END)
        self._in_bracketed_paste = False
        self._paste_buffer = ""
        self.feed_key_callback(KeyPress(Keys.BracketedPaste, text.replace(_END, "").replace(_BEGIN, "")))
        self.feed(after)
