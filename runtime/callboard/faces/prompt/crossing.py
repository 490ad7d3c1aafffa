"""Keys that cross: typed for one line and arriving at the next, since a question came or went while a person typed.

Nobody reads a question in the middle of a word. Who was typing when the line changed types on for a moment; what comes
before the first pause was meant for the line before, and neither answers a question nor is sent to anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer

TOO_SOON = 0.5
"""Seconds: a line that ends sooner after its question appeared was not meant for it; and the pause after which keys are
meant for the line that is there."""
_TYPING = 1.0
"""Seconds since the newest key in which a person still types."""


@dataclass(slots=True)
class Keys:
    """When the newest key changed a line that was not ended; in the time of the loop."""

    at: float = float("-inf")

    def ended(self) -> None:
        """The line was ended with Enter: nobody is in the middle of it."""
        self.at = float("-inf")


class Pause:
    """Waits on a line for the moment from which keys are meant for it: `over`.

    The timer is of the loop that reads the keys: it comes after all that was typed before it, however late both are.
    """

    def __init__(self, line: PromptSession[str], keys: Keys, crossed: Callable[[str], None]) -> None:
        """`crossed`: where the person was typing when the line changed, this is told what was typed on, once they
        pause."""
        self._app, self._buffer, self._keys, self._crossed = line.app, line.default_buffer, keys, crossed
        self._before = ""
        self._timer: asyncio.TimerHandle | None = None
        self._was_typing = False
        self.over = False

    @property
    def crossing(self) -> bool:
        """What stands on the line was meant for another one."""
        return self._was_typing and not self.over

    def begin(self) -> None:
        """The line is there."""
        self._before = self._buffer.text
        self._was_typing = asyncio.get_running_loop().time() - self._keys.at < _TYPING
        self._buffer.on_text_changed += self._typed
        self._wait()

    def end(self) -> None:
        """The line is gone."""
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
        self._timer = asyncio.get_running_loop().call_later(TOO_SOON, self._passed)

    def _passed(self) -> None:
        if self._app.is_done:
            return  # its end came first
        crossing, self.over = self.crossing, True
        if crossing and self._buffer.text != self._before:
            self._crossed(self._buffer.text)
