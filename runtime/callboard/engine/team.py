"""The supervisor: every agent of the session is one task of it.

It starts who has a row, restarts who crashed, and knows when all is quiet. It never looks into a conversation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import cast

import anyio
import structlog
from anyio.abc import TaskGroup

from callboard.core.mail import sending
from callboard.core.names import agent_key, mailbox, short_id
from callboard.core.state import AgentState
from callboard.core.tasks import Holder, by_id, held_by
from callboard.engine import thinking
from callboard.engine.budgets import recall_budgets
from callboard.engine.bus import listen
from callboard.engine.cron import Autorun
from callboard.engine.governor import share
from callboard.engine.host import Host
from callboard.engine.leaving import requests_withdrawn, tasks_freed
from callboard.engine.loop import Agent, live
from callboard.engine.memory import recall
from callboard.engine.renewing import renew_if_due
from callboard.engine.requests import Desk
from callboard.engine.spawner import AgentSpawner
from callboard.engine.specs import load_spec
from callboard.engine.world import begin
from callboard.ports.store import Append, Put
from callboard.words.errors import Conflict, NobodyCanAct
from callboard.words.events import AgentResumed, AgentStarted, PromptSet, TaskHeld
from callboard.words.specs import AgentSpec
from callboard.words.steps import Done
from callboard.words.values import AgentRow, Envelope

RESTARTS, RESTART_WINDOW = 3, 60.0
"""Restarts of a crashed agent within so many seconds, before it is parked and the lead is told."""

log = structlog.get_logger("callboard.team")


@dataclass(slots=True)
class Member:
    """One agent of the session in this process."""

    row: AgentRow
    agent: Agent | None = None
    awake: bool = False
    """Its first records in this process are written, and its code has not crashed since."""
    ended: anyio.Event = field(default_factory=anyio.Event)
    result: tuple[str, str] = ("", "")
    crashes: list[float] = field(default_factory=list[float])


class Team:
    """All agents of one session, while this process hosts it."""

    def __init__(self, host: Host, pid: int) -> None:
        self.host = host
        self.members: dict[tuple[str, int], Member] = {}
        self.desk = Desk(host)
        self.autorun = Autorun(host)
        self._pid = pid
        self._group: TaskGroup | None = None
        self._moved = anyio.Event()
        self._hosting = False
        host.on_change = self._on_change
        host.busy_schedules = self._busy

    async def run(self, schedules: bool = True) -> None:
        """Host the session until cancelled. Raises what stops everything: a damaged or full store, a lost lease."""
        await self.host.load()
        await recall_budgets(self.host.budgets, self.host.ports.store, self.host.session, self.host.board.agents())
        async with anyio.create_task_group() as group:
            self._group = group
            group.start_soon(self.host.follow)
            group.start_soon(share, self.host.governor, self.host.ports.store)
            group.start_soon(self.desk.run)
            if schedules:
                group.start_soon(self.autorun.run)
            for row in self.host.board.agents():
                # A crashed mate stays parked: the lead knows. A crashed lead has nobody but the person who resumes.
                if row.life not in ("stopped", "crashed") or (row.life == "crashed" and row.kind == "lead"):
                    self._meet(row)
                elif row.kind == "lead":
                    await renew_if_due(self.host, row)
            self._hosting = True
            self.touched()
            await anyio.sleep_forever()

    async def quiet(self) -> None:
        """Return when in one snapshot nothing is left to do (docs/design.md, "Team": a headless run ends)."""
        while True:
            moved = self._moved
            if self._hosting and await self._is_quiet() and moved is self._moved:
                return
            await moved.wait()

    def agent(self, name: str) -> Agent | None:
        """The living agent of that name in this process."""
        found = [m.agent for (who, _), m in self.members.items() if who == name and m.agent and not m.ended.is_set()]
        return found[-1] if found else None

    def state(self, name: str, incarnation: int | None = None) -> AgentState | None:
        """The state of an agent that lives, or lived, in this process; None for any other."""
        for (who, life), member in reversed(self.members.items()):
            if who == name and incarnation in (None, life) and member.agent is not None:
                return member.agent.state
        return None

    async def begun(self, name: str, incarnation: int) -> None:
        """Wait until this life of the name, or a later one, has its first records."""
        while True:
            moved, agent = self._moved, self.agent(name)
            if agent is not None and agent.row.incarnation >= incarnation and agent.state.system:
                return
            await moved.wait()

    def touched(self) -> None:
        """Something happened somewhere: whoever waits for quiet looks again."""
        self._moved.set()
        self._moved = anyio.Event()

    def _moved_on(self, agent: Agent) -> None:
        if agent.state.turn is None:  # in a turn nothing is quiet: whoever waits for that need not look
            self.touched()

    async def wait_ended(self, name: str, incarnation: int) -> tuple[str, str]:
        """(outcome, result) of a life, once it is over."""
        found = self.host.board.agent(name)
        assert found is not None, "an agent that is waited for has a row"
        member = self.members.get((name, incarnation)) or self._meet(found[0])
        await member.ended.wait()
        return member.result

    # Members

    def _meet(self, row: AgentRow) -> Member:
        """Take an agent into the team: a living one is started, one that has ended is read when asked for."""
        key = (row.name, row.incarnation)
        if key in self.members:
            return self.members[key]
        member = self.members[key] = Member(row)
        assert self._group is not None, "members join inside `run`"
        self._group.start_soon(self._life, member)
        return member

    async def _life(self, member: Member) -> None:
        """One agent from its journal to its end, through crashes of its code; an end is known to whoever waits."""
        while True:
            crash = await self._try_life(member)
            if crash is None or not await self._may_restart(member, crash):
                break
        await renew_if_due(self.host, member.row)
        member.ended.set()
        self.touched()

    async def _try_life(self, member: Member) -> Exception | None:
        """Live; a crash of its code is returned. What nobody can act on (damage, a full disk) ends the session."""
        try:
            member.result = await self._live_once(member)
        except BaseException as raised:  # whatever an agent's code raises must not end its team-mates
            member.awake = False
            fatal, crash, cancelled = _fatal(raised), *_parted(raised)
            if fatal is not None:
                raise fatal from raised
            if cancelled is None:
                return crash
            if crash is not None:  # in the moment in which the session is closed: its journal says how far it came
                log.exception("agent crashed", agent=member.row.name, exc_info=crash)
            raise cancelled from None
        return None

    async def _live_once(self, member: Member) -> tuple[str, str]:
        host, row = self.host, member.row
        state = await recall(host.ports.store, host.session, row.name, row.incarnation)
        if state.ended is not None:
            return state.ended.outcome, state.ended.result
        agent = member.agent = Agent(host, row, state, begin)
        agent.spawner = AgentSpawner(agent, self.wait_ended)
        agent.on_wake = partial(self._moved_on, agent)
        done: list[Done] = []
        async with anyio.create_task_group() as group:
            agent.group = group
            await self._wake_up(agent)
            group.start_soon(listen, agent)
            member.awake = True
            self.touched()
            done.append(await live(agent))
            group.cancel_scope.cancel()
        return done[0].outcome, done[0].result

    async def _wake_up(self, agent: Agent) -> None:
        """The first records of this process: its start or its resume, and the prompt in use."""
        now, host = self.host.clock.now(), self.host
        if agent.state.spec is None:
            spec = await load_spec(host.ports.store, host.session, agent.row.spec)
            await agent.record(AgentStarted(at=now, spec=spec, session=host.session, incarnation=agent.row.incarnation))
            host.budgets.join(agent.state)
        else:
            host.budgets.join(agent.state)
            await agent.record(AgentResumed(at=now, pid=self._pid))
            await thinking.remember_sent(agent)
        held = held_by(by_id(self.host.board.tasks()), Holder(agent.name, agent.row.incarnation))
        new = [task for task in held if task.id not in agent.state.tasks]
        if new:  # given to it with its assignment, in the commit that made it
            await agent.record(*(TaskHeld(at=now, task=task.id, subject=task.subject) for task in new))
        gone = agent.state.tasks.keys() - {task.id for task in held}
        if gone:  # it was parked, which freed its tasks, and a person has resumed it
            subjects = agent.state.tasks
            freed = [TaskHeld(at=now, task=one, subject=subjects[one], held=False) for one in sorted(gone)]
            await agent.record(*freed)
        await self._set_prompt(agent, agent.state.me)

    async def _set_prompt(self, agent: Agent, spec: AgentSpec) -> None:
        """A resume renders the same bytes: the prompt is composed once, and again only when the tools have changed."""
        ports = self.host.ports
        specs = [ports.tools[name].spec for name in sorted(spec.tools) if name in ports.tools]
        parts = await ports.prompts.compose(spec, specs)
        tools = await ports.store.put_blob(parts.tools)
        if agent.state.system and agent.state.tools == tools:
            return
        system = await ports.store.put_blob(parts.system)
        await agent.record(
            PromptSet(at=self.host.clock.now(), system=system, tools=tools, overhead_tokens=parts.tokens)
        )

    async def _may_restart(self, member: Member, crash: Exception) -> bool:
        """Restart from the journal, with back-off; too often in a row: park it, and tell the lead."""
        now = self.host.clock.now()
        member.crashes = [at for at in member.crashes if now - at < RESTART_WINDOW] + [now]
        log.error("agent crashed", agent=member.row.name, crashes=len(member.crashes), exc_info=crash)
        if len(member.crashes) <= RESTARTS:
            await self.host.clock.sleep_until(now + 0.5 * 2 ** (len(member.crashes) - 1))
            return True
        found = self.host.board.agent(member.row.name)
        row = (found[0] if found else member.row).model_copy(
            update={"life": "crashed", "outcome": "failed", "waiting_for": ""}
        )
        await self._park(row, crash)
        self.host.budgets.leave(row.name, row.incarnation)
        member.result = ("failed", f"{row.name} crashed {len(member.crashes)} times: {_first(crash)}")
        return False

    async def _park(self, row: AgentRow, crash: Exception) -> None:
        """It runs no more: its tasks come free, its requests are withdrawn, the lead is told, all in one commit."""
        host, note = self.host, f"{row.name} crashed and is parked"
        while True:
            left = tasks_freed(host, Holder(row.name, row.incarnation), note)
            left += requests_withdrawn(host, row.name, note)
            try:
                await host.commit(Put(agent_key(host.session, row.name), row.encode()), *left, *self._alarm(row, crash))
                return
            except Conflict as lost:
                await host.refresh(lost.what)

    def _alarm(self, row: AgentRow, crash: Exception) -> list[Append]:
        lead = self.host.board.agent("lead")
        if row.kind != "teammate" or lead is None:
            return []
        envelope = Envelope(
            id=short_id("env", row.name, row.incarnation, "crashed", self.host.clock.now()),
            sender=row.name,
            recipient="lead",
            incarnation=lead[0].incarnation,
            type="error",
            content=f"{row.name} crashed again and again and is parked: {_first(crash)}",
            sender_incarnation=row.incarnation,
            metadata={"status": "crashed"},
            cause="teammate",
            sent_at=self.host.clock.now(),
        )
        return [sending(self.host.session, envelope)]

    # Changes

    def _on_change(self, kind: str, name: str) -> None:
        """A row changed: start new agents, wake those whom it concerns."""
        self.touched()
        if kind == "agent":
            found = self.host.board.agent(name)
            if found and self._group is not None and found[0].life not in ("stopped", "crashed"):
                self._meet(found[0])
        elif kind == "request":
            found_request = self.host.board.request(name)
            if found_request is not None:
                self.desk.heed(name)
                self._wake(found_request[0].asked_by)
        elif kind == "task":
            self._wake_idle()
        elif kind == "schedule":
            self.autorun.heed()

    def _wake(self, name: str) -> None:
        agent = self.agent(name)
        if agent is not None:
            agent.wake()

    def _wake_idle(self) -> None:
        for member in self.members.values():
            agent = member.agent
            if agent and not member.ended.is_set() and agent.state.spec and agent.state.me.claims_tasks:
                agent.wake()

    def _busy(self, schedule_id: str) -> bool:
        """Whether an earlier fire of a schedule still waits or runs."""
        lead = self.agent("lead")
        if lead is None:
            return False
        mine = [e for e in lead.state.mail if e.metadata.get("schedule") == schedule_id]
        turn = lead.state.turn
        return bool(mine) or bool(turn and turn.cause.startswith(f"schedule:{schedule_id}:"))

    async def _is_quiet(self) -> bool:
        for member in list(self.members.values()):
            if member.ended.is_set():
                continue
            agent = member.agent
            if agent is None or not member.awake or not await self._rests(agent):
                return False
        return True

    async def _rests(self, agent: Agent) -> bool:
        """Idle, nothing under way that anybody waits for, nothing in the mailbox, no ready task it would claim."""
        state = agent.state
        if state.turn is not None or state.stop or state.compact is not None or state.undo or agent.operations:
            return False
        if any(one.status == "running" for one in state.background.values()):
            return False  # after a resume nobody watches it yet
        if any(e.mode == "wake" for e in state.mail) or agent.facts().claimable:
            return False
        stream = mailbox(self.host.session, agent.name, agent.row.incarnation)
        return await self.host.ports.store.last(stream) <= state.position


def _fatal(crash: BaseException) -> NobodyCanAct | None:
    """The error in a crash that stops everything, if there is one."""
    if isinstance(crash, NobodyCanAct):
        return crash
    found = (_fatal(one) for one in _inside(crash))
    return next((one for one in found if one is not None), None)


def _parted(raised: BaseException) -> tuple[Exception | None, BaseException | None]:
    """What of it is a crash, and what is a cancellation or an exit: both come at once where one meets the other."""
    if isinstance(raised, Exception):
        return raised, None
    inside = [_parted(one) for one in _inside(raised)]
    if not inside:
        return None, raised
    crash = next((one for one, _ in inside if one is not None), None)
    return crash, next((one for _, one in inside if one is not None), None)


def _first(crash: BaseException) -> str:
    inside = _inside(crash)
    return _first(inside[0]) if inside else f"{type(crash).__name__}: {crash}"


def _inside(crash: BaseException) -> tuple[BaseException, ...]:
    """The exceptions of a group; none for any other exception."""
    if isinstance(crash, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", crash).exceptions
    return ()
