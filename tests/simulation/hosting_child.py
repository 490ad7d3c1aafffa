"""A process that hosts a session on a scenario until a line comes on stdin: says how it stands when all is quiet."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path

import anyio

from callboard.sessions.open import open_session
from callboard.sessions.options import ModelOptions, SessionOptions, WorkspaceOptions


async def main(scenario: str) -> None:
    options = SessionOptions(
        WorkspaceOptions(Path.cwd(), flags={"team.max_agents": 64}), model=ModelOptions(f"rehearsal:{scenario}")
    )
    async with open_session(options) as session:
        began, cpu = time.monotonic(), time.process_time()
        await session.say("Go.")
        end = await session.wait_finished()
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
        lives = Counter(f"{one.kind} {one.life} {one.outcome}".strip() for one in end.agents)
        said = {"code": end.exit_code, "text": end.text, "lives": lives, "seconds": seconds, "cpu_seconds": cpu}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
        await anyio.wait_readable(sys.stdin)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
