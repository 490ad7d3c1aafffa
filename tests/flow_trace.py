"""Run a session that goes through each flow of `docs/flows.md`; print the calls of their stations, in order, as JSON.

`python flow_trace.py WORKSPACE` runs in its own process, because the profile function slows down every call.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import callboard
from flow_figures import flows

PACKAGE = str(Path(callboard.__file__).parent) + "/"
STATIONS = {station for stations in flows().values() for station in stations}
SCENARIO = r"""
agents:
  lead:
    - when: {contains: Begin}
      reply: [{tool_use: {name: bash, input: {command: ls, description: List the files}}}]
    - when: {result_of: bash}
      reply:
        - tool_use:
            name: spawn_teammate
            input: {name: bob, role: worker, plan_required: true, prompt: Plan it first.}
    - when: {contains: A run was missed}
      reply: The missed run is done.
    - {otherwise: true, repeat: forever, reply: Noted.}
  bob:
    - when: {contains: Plan it first}
      reply: [{tool_use: {name: submit_plan, input: {plan: "Greet\n1. Say hello."}}}]
    - when: {result_of: submit_plan}
      reply: [{tool_use: {name: send_message, input: {to: lead, content: The plan is approved.}}}]
    - {otherwise: true, repeat: forever, reply: Done.}
"""

calls: list[tuple[str, str]] = []


def profile(frame: FrameType, event: str, _: object) -> None:
    """Record the call of a station."""
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(PACKAGE):
        station = (code.co_filename[len(PACKAGE) :], code.co_qualname)
        if station in STATIONS:
            calls.append(station)


async def missed_schedule() -> None:
    """Open a session with a schedule whose time has passed, and wait until its fire is done."""
    from callboard import Session
    from callboard.cli.commands.demo import missed_schedule

    schedule = missed_schedule("", time.time()).model_copy(update={"prompt": "A run was missed", "context": "lead"})
    async with Session(".", model="rehearsal:flows.yaml", schedules=[schedule]) as session:
        await session.rest()


def main() -> None:
    """Run the flows in the current folder."""
    from callboard.__main__ import main as command

    Path("flows.yaml").write_text(SCENARIO, encoding="utf-8")
    threading.setprofile(profile)
    sys.setprofile(profile)
    sys.argv = ["callboard", "run", "-q", "--yes", "--model", "rehearsal:flows.yaml", "Begin"]
    with contextlib.suppress(SystemExit), open(os.devnull, "w") as sink, contextlib.redirect_stdout(sink):
        command()
    asyncio.run(missed_schedule())
    sys.setprofile(None)
    json.dump(calls, sys.stdout)


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    main()
