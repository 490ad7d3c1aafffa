"""Run `callboard` under cProfile, for `step_profile.py`: `python profiled.py OUTPUT ARGUMENT...`.

Writes `OUTPUT.stats`, for pstats, and `OUTPUT.json` with the seconds that the profiler does not see: garbage
collections, and the CPU of other threads than the main one.
"""

from __future__ import annotations

import cProfile
import gc
import json
import sys
import time
from pathlib import Path
from typing import Literal

from callboard.__main__ import main as callboard


class Collections:
    """Seconds spent in garbage collections."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begun = 0.0

    def note(self, phase: Literal["start", "stop"], info: dict[str, int]) -> None:
        """Note the start or the end of a collection, as a callback of `gc`."""
        if phase == "start":
            self._begun = time.perf_counter()
        else:
            self.seconds += time.perf_counter() - self._begun


def main() -> int:
    output, *arguments = sys.argv[1:]
    sys.argv = ["callboard", *arguments]
    collections = Collections()
    gc.callbacks.append(collections.note)
    profile = cProfile.Profile()
    code: object = 0
    try:
        profile.runcall(callboard)
    except SystemExit as left:
        code = left.code
    profile.dump_stats(f"{output}.stats")
    threads = time.process_time() - time.thread_time()
    Path(f"{output}.json").write_text(json.dumps({"collections": collections.seconds, "threads": threads}))
    return code if isinstance(code, int) else 1


if __name__ == "__main__":
    sys.exit(main())
