"""Run `callboard` and note the longest pause of its event loop: `python bench/paused.py FILE ARGUMENTS...`.

A pause is one callback of the loop, during which no other agent of the process goes on. It counts from the first model
call, and in CPU time of the loop's thread, so that other programs on the machine add nothing. FILE gets one line of
JSON: the longest pauses in ms, the longest first.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from callboard.__main__ import main
from callboard.adapters.models.anthropic.service import ServiceAnswer, ServiceConnections

MOST = 10
"""Pauses to note."""


class Pauses:
    """The longest callbacks since the first model call."""

    def __init__(self) -> None:
        self.longest: list[float] = []
        self._calls = False
        self._run = asyncio.Handle._run  # pyright: ignore[reportPrivateUsage] - as below
        self._post = ServiceConnections.post

    def install(self) -> None:
        """Measure each callback of the loop from now on."""
        pauses = self

        def timed(self: asyncio.Handle) -> None:
            began = time.thread_time()
            pauses._run(self)
            if pauses._calls:
                pauses.note(1_000 * (time.thread_time() - began))

        async def post(
            self: ServiceConnections, path: str, headers: Mapping[str, str], pieces: Sequence[bytes]
        ) -> ServiceAnswer:
            pauses._calls = True
            return await pauses._post(self, path, headers, pieces)

        asyncio.Handle._run = timed  # pyright: ignore[reportPrivateUsage] - the loop runs each callback with it
        ServiceConnections.post = post

    def note(self, milliseconds: float) -> None:
        if len(self.longest) < MOST:
            heapq.heappush(self.longest, milliseconds)
        elif milliseconds > self.longest[0]:
            heapq.heapreplace(self.longest, milliseconds)


if __name__ == "__main__":
    noted, file = Pauses(), Path(sys.argv.pop(1))
    noted.install()
    try:
        main()
    finally:
        file.write_text(json.dumps(sorted(noted.longest, reverse=True)) + "\n")
