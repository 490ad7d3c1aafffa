"""Common parts of commands that follow something until they are interrupted.

The parts are immediate lines, a repainted page, and changes of the screen's size.
"""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager

import anyio

from callboard.cli.terminal.live_page import Painter
from callboard.cli.terminal.terminal import Line, style_lines

Page = Callable[[int, int | None], Sequence[Line]]
"""Function that returns the current lines of a page, for a number of columns and rows; None: for as many rows as
needed."""


@contextmanager
def open_page(page: Page, *, color: bool) -> Generator[Callable[[], None]]:
    """Yield a function that paints the current page on an alternate screen.

    The whole page is printed when that screen closes. Painting raises `BrokenPipeError` if the reader is gone.
    """

    def leave() -> None:
        lines = page(shutil.get_terminal_size().columns, None)
        if lines:
            say_line(style_lines(lines, color=color).removesuffix("\n"))

    with ExitStack() as stack:
        stack.callback(leave)  # runs after the painter has restored the screen
        painter = stack.enter_context(Painter(sys.stdout, color=color))
        yield lambda: painter.paint(page(*painter.size))


def say_line(text: str) -> None:
    """Write the line to stdout at once. Raises `BrokenPipeError` if the reader is gone."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    sys.stdout.flush()


async def watch_size(changed: Callable[[], None]) -> None:
    """Call `changed` whenever the size of the screen changes. Never returns."""
    with anyio.open_signal_receiver(signal.SIGWINCH) as signals:
        async for _ in signals:
            changed()
