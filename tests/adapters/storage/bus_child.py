"""Process with some agents of a session that only send and receive; the stress test starts and kills it.

The product's code does the work: envelopes are written with an event of their sender (`AgentRuntime.record`,
`envelope_write`), received by `listen`, and delivered by `EnvelopesDelivered`. An agent's journal contains its
progress, so the successor of a killed process continues there. The recipients are drawn from the agents' names, so the
expected number of envelopes is known everywhere.
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
from callboard.core.messaging.envelopes import envelope_write
from callboard.engine.agent_lock import AgentLock
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.operations.receive import listen
from callboard.engine.recall import recall
from callboard.engine.runtime import SessionRuntime
from callboard.engine.step_handlers import begin
from callboard.ports.store import LeaseHolder
from callboard.testing import ScriptedModel, World
from callboard.types import events as ev
from callboard.types.records import AgentRow, Envelope, Todo

SESSION = "s1"


def recipients(name: str, agents: int, count: int) -> Iterator[str]:
    """Yield the recipients of an agent, in order."""
    chance = random.Random(name)
    return (f"a{chance.randrange(agents)}" for _ in range(count))


def expected(agents: int, count: int) -> Counter[str]:
    """Return the number of envelopes that each agent gets after each has sent `count`."""
    found: Counter[str] = Counter()
    for number in range(agents):
        found.update(recipients(f"a{number}", agents, count))
    return found


async def exchange_mail(runtime: SessionRuntime, name: str, agents: int, count: int, due: int) -> None:
    """Send the remaining envelopes, receive mail, and end when everything is sent and received."""
    row = AgentRow(name=name, kind="teammate")
    agent = AgentRuntime(
        runtime, row, await recall(runtime.services.store, SESSION, name, 1), begin, lock=AgentLock(name)
    )
    if agent.state.identity.spec is None:
        world = World(ScriptedModel({}))
        spec = world.spec_of("teammate", name, world.spec_of("lead", "lead", None))
        await agent.record(ev.AgentStarted(at=runtime.clock.now(), spec=spec, session=SESSION, incarnation=1))
    async with anyio.create_task_group() as group:
        group.start_soon(listen, agent)
        group.start_soon(send_all, agent, agents, count)
        while agent.state.inbox.position < due or agent.state.inbox.mail or sent_count(agent) < count:
            if mail := agent.state.inbox.mail:
                ids = tuple(one.id for one in mail)  # no blocks: the conversation would only grow, and nothing reads it
                await agent.record(ev.EnvelopesDelivered(at=runtime.clock.now(), ids=ids, blocks=()))
            else:
                await agent.change()
        group.cancel_scope.cancel()


def sent_count(agent: AgentRuntime) -> int:
    """Return the number of envelopes sent, by the agent's journal."""
    return int(agent.state.work.todos[0].content) if agent.state.work.todos else 0


async def send_all(agent: AgentRuntime, agents: int, count: int) -> None:
    """Send one envelope after another, each in one commit with the event that counts it."""
    for number, to in enumerate(recipients(agent.name, agents, count)):
        if number < sent_count(agent):
            continue
        envelope = Envelope(
            id=short_id("env", agent.name, number),
            sender=agent.name,
            recipient=to,
            type="message",
            content=f"{number}",
            cause="teammate",
            sent_at=agent.runtime.clock.now(),
        )
        counted = ev.TodosSet(at=envelope.sent_at, todos=(Todo(content=str(number + 1)),))
        await agent.record(counted, writes=[envelope_write(SESSION, envelope)])


async def main(folder: str, place: int, processes: int, agents: int, count: int) -> None:
    store = await open_store(Path(folder))
    lease = await store.acquire(f"bus-{place}")
    assert not isinstance(lease, LeaseHolder), "the previous holder is dead"
    runtime = World(ScriptedModel({}), store=store).runtime(SESSION)
    runtime.fence = lease.fence
    due = expected(agents, count)
    async with anyio.create_task_group() as group:
        for number in range(place, agents, processes):
            group.start_soon(exchange_mail, runtime, f"a{number}", agents, count, due[f"a{number}"])
    await store.aclose()


def serve(folder: str, *about: str) -> None:
    """Fork a process for each `start PLACE` on stdin and print its pid; `reap PID` prints its exit status.

    The common imports happen once, before the first fork.
    """
    for line in iter(sys.stdin.readline, ""):
        command, number = line.split()
        if command == "reap":
            answer = os.waitstatus_to_exitcode(os.waitpid(int(number), 0)[1])
        elif (answer := os.fork()) == 0:
            work(folder, int(number), about)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def work(folder: str, place: int, about: Sequence[str]) -> NoReturn:
    """Run the forked process to its end."""
    code, (processes, agents, count) = 1, map(int, about)
    try:
        anyio.run(main, folder, place, processes, agents, count)
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(*sys.argv[1:])
