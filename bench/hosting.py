"""Process that hosts a session: `python bench/hosting.py MODEL [SETTING=VALUE ...]`, in the current folder.

The process sends "Go." to the lead, and prints the result as JSON when no work is left. Then it keeps hosting until a
line arrives on stdin. The values of settings are JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import Counter
from pathlib import Path

import anyio
from process_cost import cpu, resident

from callboard.ports.environment import Interest
from callboard.ports.model import Delta
from callboard.sessions.open import open_session
from callboard.sessions.options import ModelOptions, SessionOptions, WorkspaceOptions
from callboard.sessions.quick_imports import freeze_imports
from callboard.types.events import AgentStopped, Event, ModelReplied
from callboard.types.records import Envelope


class Calls:
    """Observer that records when model calls of agents other than the lead begin, and when these agents end."""

    interest = Interest(frozenset({AgentStopped, ModelReplied}), frozenset())

    def __init__(self) -> None:
        self.asked = self.ended = 0.0
        self.replies = 0

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        if agent == "lead":
            if isinstance(event, ModelReplied) and not self.asked:
                self.asked = time.monotonic()
        elif isinstance(event, ModelReplied):
            self.replies += 1
        else:
            self.ended = time.monotonic()

    def on_delta(self, agent: str, delta: Delta) -> None: ...
    def on_mail(self, envelope: Envelope) -> None: ...


async def main(model: str, flags: dict[str, object]) -> None:
    seen = Calls()
    async with open_session(
        SessionOptions(WorkspaceOptions(Path.cwd(), flags=flags), model=ModelOptions(model)), observers=[seen]
    ) as session:
        began, used, size = time.monotonic(), cpu(), resident()
        await session.say("Go.")
        end = await session.wait_finished()
        told = {
            "code": end.exit_code,
            "why": end.why,
            "lives": Counter(f"{one.kind} {one.life} {one.outcome}".strip() for one in end.agents),
            "wall": time.monotonic() - began,
            "fan_out": seen.ended - seen.asked,
            "replies": seen.replies,
            "cpu": cpu() - used,
            "kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - size,
        }
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
        await anyio.wait_readable(sys.stdin)


def setting(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    return name, json.loads(value)


if __name__ == "__main__":
    freeze_imports()  # as `callboard run` and `callboard serve` do
    anyio.run(main, sys.argv[1], dict(map(setting, sys.argv[2:])))
