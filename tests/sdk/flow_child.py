"""A workflow in a process that kills itself at a point: `flow_child.py FOLDER POINT [REDO]`. Prints how it ended.

Its side effects are recorded in `FOLDER/did.txt`, one per line.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from callboard import Agent, Request, Session, Workflow, tool, workflow
from callboard.sdk.errors import StepUnknown

FOLDER = Path(sys.argv[1])
POINT = sys.argv[2]
REDO = sys.argv[3:]


def record_effect(effect: str) -> None:
    with (FOLDER / "did.txt").open("a") as file:
        file.write(f"{effect}\n")


def point(name: str) -> None:
    if name == POINT:
        os.kill(os.getpid(), signal.SIGKILL)


def count() -> int:
    record_effect("count")
    point("count")
    return 3


def pay(amount: int) -> str:
    record_effect(f"pay {amount}")
    point("pay")
    return f"paid {amount}"


@tool
def touch(what: str) -> str:
    """Touch a thing."""
    record_effect(f"touch {what}")
    point(f"touch {what}")
    return f"touched {what}"


async def look(flow: Workflow, what: str) -> str:
    said = await flow.agent(LOOKER, f"Touch {what}")
    record_effect(f"after {what}")
    return said


@workflow
async def journey(flow: Workflow, amount: int) -> list[str]:
    number = await flow.repeatable("count", count)
    point("between")
    chance = flow.random()
    paid = await flow.step("pay", pay, amount)
    seen = await flow.map(["one", "two"], look, limit=1)
    name = await flow.ask_person("Who?")
    point("end")
    return [str(number), paid, *seen, name, f"{chance:.6f}"]


LOOKER = Agent("looker", "Touches things.", "Touch what you are told.", tools=[touch])


async def answer(request: Request) -> str | bool:
    point("ask")
    return "Ann" if request.kind == "question" else True


async def main() -> None:
    given = {"agents": [LOOKER], "approver": answer, "allow": ["touch"]}
    model = f"rehearsal:{FOLDER / 'looker.yaml'}"
    begun = FOLDER / "session"
    made = (
        Session.resume(FOLDER, begun.read_text(), **given) if begun.exists() else Session(FOLDER, model=model, **given)
    )
    async with made as session:
        begun.write_text(session.id)
        try:
            if REDO:
                result = await session.resume_workflow(journey, "trip", redo=REDO)
            else:
                result = await session.workflow(journey.named("trip"), amount=5)
        except StepUnknown as unknown:
            sys.stdout.write(json.dumps({"unknown": unknown.step, "why": str(unknown)}))
            return
        agents = sorted(one.kind for one in session.team())
        sys.stdout.write(json.dumps({"result": result, "agents": agents}))


asyncio.run(main())
