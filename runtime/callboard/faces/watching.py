"""What commands share that follow something until they are interrupted: lines at once, a page that is painted anew, and
a screen's new size."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager

import anyio

from callboard.faces.painting import Painter
from callboard.faces.terminal import Line, styled

Page = Callable[[int, int | None], Sequence[Line]]
"""The lines of a page as it is now, for so many columns and rows; None: for as many rows as it takes."""


@contextmanager
def painted(page: Page, *, color: bool) -> Generator[Callable[[], None]]:
    """What paints the page on a screen of its own, as it is then. The whole of it stays behind when that screen goes.

    Painting raises `BrokenPipeError` when nobody reads any more."""

    def leave() -> None:
        lines = page(shutil.get_terminal_size().columns, None)
        if lines:
            say_line(styled(lines, color=color).removesuffix("\n"))

    with ExitStack() as stack:
        stack.callback(leave)  # after the painter has given the screen back
        painter = stack.enter_context(Painter(sys.stdout, color=color))
        yield lambda: painter.paint(page(*painter.size))


def say_line(text: str) -> None:
    """To stdout at once. Raises `BrokenPipeError` when nobody reads any more: that is the end of watching."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    sys.stdout.flush()


async def resized(changed: Callable[[], None]) -> None:
    """Call `changed` whenever the screen has another size. Never returns."""
    with anyio.open_signal_receiver(signal.SIGWINCH) as signals:
        async for _ in signals:
            changed()
