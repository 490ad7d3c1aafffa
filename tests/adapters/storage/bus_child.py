"""A process with some of a session's agents, which only send and receive: what the stress test starts and kills.

The bus is the product's: envelopes are written with an event of their sender (`AgentRuntime.record`, `sending`), taken
by `listen` and delivered by `EnvelopesDelivered`. An agent's journal says how far it came, so that a successor of a
killed process goes on there. Whom the agents write to is drawn from their names: everyone knows who gets how much.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import anyio

from callboard.adapters.storage.sqlite import open_store
from callboard.core.keys import short_id
from callboard.core.messaging.envelopes import sending
from callboard.engine.agent_lock import AgentLock
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.operations.receive import listen
from callboard.engine.recall import recall
from callboard.engine.runtime import Host
from callboard.engine.step_handlers import begin
from callboard.ports.store import LeaseHolder
from callboard.testing import ScriptedModel, World
from callboard.types import events as ev
from callboard.types.records import AgentRow, Envelope, Todo

SESSION = "s1"


def recipients(name: str, agents: int, count: int) -> Iterator[str]:
    """Whom an agent writes to, one after the other."""
    chance = random.Random(name)
    return (f"a{chance.randrange(agents)}" for _ in range(count))


def expected(agents: int, count: int) -> Counter[str]:
    """How many envelopes each agent gets when each has sent `count`."""
    found: Counter[str] = Counter()
    for number in range(agents):
        found.update(recipients(f"a{number}", agents, count))
    return found


async def live_on_mail(host: Host, name: str, agents: int, count: int, due: int) -> None:
    """Send what is left to send, take what comes, and end when all is sent and all has come."""
    row = AgentRow(name=name, kind="teammate")
    agent = AgentRuntime(host, row, await recall(host.ports.store, SESSION, name, 1), begin, lock=AgentLock(name))
    if agent.state.identity.spec is None:
        spec = host.types("teammate", name, host.types("lead", "lead", None))  # type: ignore[arg-type]
        await agent.record(ev.AgentStarted(at=host.clock.now(), spec=spec, session=SESSION, incarnation=1))
    async with anyio.create_task_group() as group:
        group.start_soon(listen, agent)
        group.start_soon(send_all, agent, agents, count)
        while agent.state.inbox.position < due or agent.state.inbox.mail or sent(agent) < count:
            if mail := agent.state.inbox.mail:
                ids = tuple(one.id for one in mail)  # no blocks: nobody reads a conversation that only grows
                await agent.record(ev.EnvelopesDelivered(at=host.clock.now(), ids=ids, blocks=()))
            else:
                await agent.change()
        group.cancel_scope.cancel()


def sent(agent: AgentRuntime) -> int:
    """How many it has sent, by its journal."""
    return int(agent.state.work.todos[0].content) if agent.state.work.todos else 0


async def send_all(agent: AgentRuntime, agents: int, count: int) -> None:
    """One envelope after the other, each in one commit with the event that counts it."""
    for number, to in enumerate(recipients(agent.name, agents, count)):
        if number < sent(agent):
            continue
        envelope = Envelope(
            id=short_id("env", agent.name, number),
            sender=agent.name,
            recipient=to,
            type="message",
            content=f"{number}",
            cause="teammate",
            sent_at=agent.host.clock.now(),
        )
        counted = ev.TodosSet(at=envelope.sent_at, todos=(Todo(content=str(number + 1)),))
        await agent.record(counted, writes=[sending(SESSION, envelope)])


async def main(folder: str, place: int, processes: int, agents: int, count: int) -> None:
    store = await open_store(Path(folder))
    lease = await store.acquire(f"bus-{place}")
    assert not isinstance(lease, LeaseHolder), "the one before it is dead"
    host = World(ScriptedModel({}), store=store).host(SESSION)
    host.fence = lease.fence
    due = expected(agents, count)
    async with anyio.create_task_group() as group:
        for number in range(place, agents, processes):
            group.start_soon(live_on_mail, host, f"a{number}", agents, count, due[f"a{number}"])
    await store.aclose()


def serve(folder: str, *about: str) -> None:
    """Fork a process for each `start PLACE` on standard input and say its id; `reap PID` says how it ended. What all of
    them import is imported once, before any of them."""
    for line in iter(sys.stdin.readline, ""):
        command, number = line.split()
        if command == "reap":
            said = os.waitstatus_to_exitcode(os.waitpid(int(number), 0)[1])
        elif (said := os.fork()) == 0:
            work(folder, int(number), about)
        sys.stdout.write(f"{said}\n")
        sys.stdout.flush()


def work(folder: str, place: int, about: Sequence[str]) -> NoReturn:
    """The forked process, to its end."""
    code, (processes, agents, count) = 1, map(int, about)
    try:
        anyio.run(main, folder, place, processes, agents, count)
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(*sys.argv[1:])
