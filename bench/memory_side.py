"""Process of `memory.py`: hosts a session and prints its memory as JSON.

`python bench/memory_side.py MODEL STEPS OBJECTS [SETTING=VALUE ...]` works in the current folder. STEPS: numbers of the
lead's replies after which the memory is noted, separated by commas. It is also noted when the first of the other agents
has a reply, and at the end. OBJECTS: `objects` to count the memory of Python objects too, which takes memory itself.
The values of settings are JSON.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import anyio

from callboard.ports.model import Delta
from callboard.sessions.open import open_session
from callboard.sessions.options import ModelOptions, SessionOptions, WorkspaceOptions
from callboard.types.events import Event
from callboard.types.records import Envelope


def private_kib() -> int:
    """Return the KiB that belong to this process alone (USS, man 5 proc_pid_smaps)."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(size) for size in re.findall(r"^Private_(?:Clean|Dirty): +(\d+)", text, re.MULTILINE))


def objects_kib() -> int:
    """Return the KiB of Python objects, if the memory of objects is traced."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0] // 1_024


class Notes:
    """Observer that notes the memory at chosen model calls."""

    def __init__(self, steps: frozenset[int]) -> None:
        self.steps = steps
        self.replies = 0
        self.at: dict[str, int] = {}
        self.objects: dict[str, int] = {}

    def note(self, name: str) -> None:
        gc.collect()
        self.at[name] = private_kib()
        if tracemalloc.is_tracing():
            self.objects[name] = objects_kib()

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        if agent == "lead":
            if event.t == "model_replied":
                self.replies += 1
                if self.replies in self.steps:
                    self.note(str(self.replies))
        elif event.t == "model_replied" and "active" not in self.at:
            self.note("active")

    def on_delta(self, agent: str, delta: Delta) -> None: ...
    def on_mail(self, envelope: Envelope) -> None: ...


async def main(model: str, steps: str, flags: dict[str, object]) -> None:
    notes = Notes(frozenset(map(int, filter(None, steps.split(",")))))
    options = SessionOptions(WorkspaceOptions(Path.cwd(), flags=flags), model=ModelOptions(model))
    async with open_session(options, observers=[notes]) as session:
        await session.say("Go.")
        end = await session.wait_finished()
        notes.note("end")
        lives = Counter(f"{agent.kind} {agent.life} {agent.outcome}".strip() for agent in end.agents)
        told = {"uss": notes.at, "objects": notes.objects, "lives": lives, "why": end.why}
        sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    if sys.argv[3] == "objects":
        tracemalloc.start()
    settings = (text.partition("=") for text in sys.argv[4:])
    anyio.run(main, sys.argv[1], sys.argv[2], {name: json.loads(value) for name, _, value in settings})
