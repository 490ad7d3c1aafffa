"""What commands share that follow something until they are interrupted: lines at once, and a screen's new size."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

import anyio


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
