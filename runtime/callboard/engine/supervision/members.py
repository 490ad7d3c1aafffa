"""One agent of the session in this process: its life from its journal to its end, and its first records here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import anyio

from callboard.core.mcp.catalogue import kept
from callboard.core.mcp.rights import PREFIX
from callboard.core.mcp.search import Found
from callboard.engine.asking.eliciting import take_back_orphans
from callboard.engine.bus.listening import listen
from callboard.engine.host import Host
from callboard.engine.loop import Agent, live
from callboard.engine.memory import recall
from callboard.engine.model import thinking
from callboard.engine.specs import load_spec
from callboard.engine.supervision.spawner import AgentSpawner
from callboard.engine.tasks.claiming import take_up
from callboard.engine.tools.servers import bring, offer, reaches, take_along, until_ready
from callboard.engine.world import begin
from callboard.ports.world import PromptParts
from callboard.words.events import AgentResumed, AgentStarted, PromptSet
from callboard.words.specs import AgentSpec
from callboard.words.steps import Done
from callboard.words.values import AgentRow


@dataclass(slots=True)
class Member:
    """One agent of the session in this process."""

    row: AgentRow
    resumed: bool = False
    """It goes on though it was parked: a person said so."""
    agent: Agent | None = None
    awake: bool = False
    """Its first records in this process are written, and its code has not crashed since."""
    ended: anyio.Event = field(default_factory=anyio.Event)
    result: tuple[str, str] = ("", "")
    crashes: list[float] = field(default_factory=list[float])
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Ends its task here, whatever it does."""
    left: anyio.Event = field(default_factory=anyio.Event)
    """Its task is over."""
    killed: bool = False


@dataclass(frozen=True, slots=True)
class Around:
    """What a life needs of its team."""

    host: Host
    pid: int
    wait_ended: Callable[[str, int], Awaitable[tuple[str, str]]]
    """(name, incarnation) -> (outcome, result) once that life is over."""
    moved_on: Callable[[Agent | None], None]
    """Something happened to an agent, or to all of them."""


async def live_once(member: Member, around: Around) -> tuple[str, str]:
    """Live an agent from its journal to its end: (outcome, result). A life that is over, or parked, is only read."""
    host = around.host
    row = member.row = current(host, member.row)
    state = await recall(host.ports.store, host.session, row.name, row.incarnation)
    if state.ended is not None:
        return state.ended.outcome, state.ended.result
    if row.life == "crashed" and not member.resumed:
        return "failed", f"{row.name} crashed again and again and is parked"
    if row.life == "stopped":  # it was killed, and its journal could not be gone on with
        return row.outcome or "stopped", f"{row.name} was ended"
    agent = member.agent = Agent(host, row, state, begin)
    agent.spawner = AgentSpawner(agent, around.wait_ended)
    agent.on_wake = partial(around.moved_on, agent)
    done: list[Done] = []
    try:
        async with anyio.create_task_group() as group:
            agent.group = group
            await _wake_up(agent, around.pid)
            group.start_soon(listen, agent)
            member.awake, member.resumed = True, False
            around.moved_on(None)
            done.append(await live(agent))
            group.cancel_scope.cancel()
    finally:
        agent.group = None  # nobody starts anything for an agent that has crashed
        await take_along(agent)
    return done[0].outcome, done[0].result


def current(host: Host, row: AgentRow) -> AgentRow:
    """The row of this life as it stands now."""
    found = host.board.agent(row.name)
    return found[0] if found is not None and found[0].incarnation == row.incarnation else row


async def _wake_up(agent: Agent, pid: int) -> None:
    """The first records of this process: its start or its resume, and the prompt in use."""
    now, host = agent.host.clock.now(), agent.host
    if agent.state.spec is None:
        await started(agent)
        host.budgets.join(agent.state)
    else:
        host.budgets.join(agent.state)
        await agent.record(AgentResumed(at=now, pid=pid))
        await take_back_orphans(host, agent.name)
        await thinking.remember_sent(agent)
    await take_up(agent)
    await bring(agent)
    if any(one.call.name.startswith(PREFIX) for one in agent.state.calls):  # what is under way is theirs to go on with
        await until_ready(host)
    await _set_prompt(agent, agent.state.me)


async def started(agent: Agent) -> None:
    """The first record of a journal."""
    host, row = agent.host, agent.row
    spec = await load_spec(host.ports.store, host.session, row.spec)
    now = host.clock.now()
    await agent.record(AgentStarted(at=now, spec=spec, session=host.session, incarnation=row.incarnation))


async def _set_prompt(agent: Agent, spec: AgentSpec) -> None:
    """A resume renders the same bytes: the prompt is composed once, and again only when the tools have changed."""
    ports = agent.host.ports
    parts = None
    if agent.state.system:  # as it was, if the runtime's own tools still are: servers may take their time to come
        before = kept((await agent.prompt_bytes())[1])
        parts = await _composed(agent.host, spec, before)
        if agent.state.tools == await ports.store.put_blob(parts.tools):
            return
    if parts is None or reaches(agent.host, spec):
        await until_ready(agent.host)
        parts = await _composed(agent.host, spec, None)
    tools = await ports.store.put_blob(parts.tools)
    system = await ports.store.put_blob(parts.system)
    known = None if parts.instructions is None else dict(parts.instructions)
    now, tokens = agent.host.clock.now(), parts.tokens
    await agent.record(PromptSet(at=now, system=system, tools=tools, overhead_tokens=tokens, instructions=known))
    agent.has_prompt(parts.system, parts.tools)


async def _composed(host: Host, spec: AgentSpec, before: Sequence[Found] | None) -> PromptParts:
    offered = offer(host, spec, before)
    return await host.ports.prompts.compose(spec, offered.tools, offered.lines)
