"""Start detached sessions in one process: `fleet_child.py WORKSPACE NUMBER...`. Prints the id of each."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import anyio

from callboard.sessions.detached import start_detached
from callboard.sessions.options import IdentityOptions, ModelOptions, SessionOptions, WorkspaceOptions


async def start(workspace: Path, mode: str, numbers: list[str]) -> None:
    for number in numbers:
        options = SessionOptions(
            WorkspaceOptions(workspace, {"permission.mode": mode, "placement": {"fleet": "yes"}}),
            identity=IdentityOptions(prompt="Work.", name=f"00000000-0000-4000-8000-{int(number):012}"),
            model=ModelOptions(f"rehearsal:{workspace / f'{number}.yaml'}"),
        )
        started = await start_detached(options)
        sys.stdout.write(f"{started.session}\n")


anyio.run(partial(start, Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
