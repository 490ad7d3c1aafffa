"""Real `callboard serve` processes on one store: schedules put there, processes killed, and what came of each slot."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from signal import SIGKILL

import anyio
from tests.cli.commands.command import Command
from tests.simulation.processes import Running

from callboard.adapters.storage.sqlite import open_store
from callboard.core.keys import fires_prefix, journal, mailbox, schedule_key
from callboard.ports.store import Put, Store
from callboard.types.errors import Conflict
from callboard.types.events import TurnBegan, decode_event
from callboard.types.records import Envelope
from callboard.types.schedules import Fire, Schedule

SCENARIO = """
latency_ms: {latency}
agents:
  lead:
    - when: {{contains: Plan the roof}}
      reply: [{{tool_use: {{name: submit_plan, input: {{plan: Rebuild the roof.}}}}}}]
    - {{reply: Done as asked., repeat: forever}}
"""


def new_session(command: Command, *args: str, latency: int = 0) -> str:
    """A session whose lead answers anything, a moment later; its id."""
    ran = command.run("run", *args, "--model", command.scenario(SCENARIO.format(latency=latency)), "Hello.")
    assert ran.code == 0, ran.err
    folder = Path(command.env["XDG_STATE_HOME"])
    logs = [path for path in folder.rglob("log/*.jsonl") if path.stem != "serve"]
    return max(logs, key=lambda path: path.stat().st_mtime_ns).stem


def at(moment: float) -> str:
    """The expression of a one-shot."""
    return f"at {datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%SZ}"


def one_shot(number: int, moment: float) -> Schedule:
    """Fires at a whole second."""
    now = time.time()
    return Schedule(
        id=f"cron_shot{number:03}", cron=at(moment), prompt=f"Look {number}.", recurring=False, created_at=now
    )


@contextmanager
def serves(command: Command, count: int) -> Generator[list[Running]]:
    """So many processes; whatever stands in the list at the end is killed."""
    with ExitStack() as stack:
        running = [serve(command) for _ in range(count)]
        stack.callback(lambda: [end(one) for one in running])
        for one in running:
            one.wait_for("serving")
        yield running


def serve(command: Command, *options: str) -> Running:
    """Start one. It needs no key, since no session here does."""
    model = f"rehearsal:{command.workspace.parent / 'scenario.yaml'}"
    return Running(command, ("serve", "--model", model, *options), {})


async def hosting(running: Sequence[Running], session: str) -> Running:
    """Which of them hosts the session."""
    with anyio.fail_after(180):
        while True:
            for one in running:
                if f"hosting  {session}" in one.said():
                    return one
            await anyio.sleep(0.05)


def end(one: Running) -> None:
    """Kill it, if it still runs."""
    if one.process.poll() is None:
        one.signal(SIGKILL)
        one.process.wait(180)


def kill_and_start(command: Command, running: list[Running], dice: Random) -> None:
    """Kill any one of them, and start another in its place."""
    place = dice.randrange(len(running))
    end(running[place])
    running[place] = serve(command)


@dataclass
class Became:
    """What stands of the slots of one session."""

    fires: list[Fire] = field(default_factory=list[Fire])
    envelopes: Counter[str] = field(default_factory=Counter[str])
    turns: Counter[str] = field(default_factory=Counter[str])
    """Turns that each envelope began, by the lead's journal."""
    schedules: list[Schedule] = field(default_factory=list[Schedule])

    def rests(self) -> bool:
        """Whether every fire is over."""
        return len(self.over()) == len(self.fires)

    def over(self) -> set[str]:
        """The fires that are over."""
        return {one.id for one in self.fires if one.outcome not in ("waiting", "running")}


class Stand:
    """The store of a command's workspace, looked at from here."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def put(self, session: str, schedules: Sequence[Schedule]) -> None:
        """Add schedules, as `cron add` does."""
        for one in schedules:
            await self.store.commit(Put(schedule_key(session, one.id), one.encode(), 0))

    async def pause(self, session: str, schedule: str) -> None:
        """Keep one from firing again."""
        while (row := await self.store.get(schedule_key(session, schedule))) is not None:
            now = Schedule.model_validate_json(row.value or b"").model_copy(update={"state": "paused"})
            try:
                await self.store.commit(Put(row.key, now.encode(), row.revision))
            except Conflict:
                continue
            return

    async def became(self, session: str) -> Became:
        """How it stands now."""
        found = Became()
        rows = await self.store.keys(fires_prefix(session))
        found.fires = [Fire.model_validate_json(row.value or b"") for row in rows]
        rows = await self.store.keys(schedule_key(session, ""))
        found.schedules = [Schedule.model_validate_json(row.value or b"") for row in rows]
        for record in await self.store.read(mailbox(session, "lead", 1)):
            found.envelopes[Envelope.model_validate_json(record.data).id] += 1
        for record in await self.store.read(journal(session, "lead", 1)):
            event = decode_event(record.data)
            if isinstance(event, TurnBegan):
                found.turns[event.cause] += 1
        return found


@asynccontextmanager
async def stand_of(command: Command) -> AsyncGenerator[Stand]:
    """The store of the command's workspace, for as long as the block lasts."""
    (database,) = Path(command.env["XDG_STATE_HOME"]).rglob("callboard.db")
    store = await open_store(database.parent)
    try:
        yield Stand(store)
    finally:
        await store.aclose()
