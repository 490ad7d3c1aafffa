"""The supervisor: every agent of the session is one task of it.

It starts who has a row, restarts who crashed, ends who does not stop, and knows when all is quiet. It never looks into
a conversation. What it does about a crash stands in `restarting`, about a life that must end in `killing`, about one
that stalls in `stalling`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import anyio
import structlog
from anyio.abc import TaskGroup

from callboard.core.bus.dead_letters import over
from callboard.core.names import agent_key, mailbox
from callboard.core.state import AgentState
from callboard.engine.asking.deadlocks import Deadlocks
from callboard.engine.asking.requests import Desk
from callboard.engine.bus.dead_letters import DeadLetters
from callboard.engine.governor import share
from callboard.engine.hooks.informing import Informer
from callboard.engine.hooks.late import tend_hooks
from callboard.engine.host import Host
from callboard.engine.loop import Agent
from callboard.engine.money.budgets import recall_budgets
from callboard.engine.renewing import renew_if_due
from callboard.engine.schedules.cron import Autorun
from callboard.engine.supervision.killing import end_life
from callboard.engine.supervision.members import Around, Member, live_once
from callboard.engine.supervision.orders import Given, follow_orders
from callboard.engine.supervision.restarting import guarded, may_restart
from callboard.engine.supervision.stalling import Stalls
from callboard.engine.tasks.claiming import free_at_start
from callboard.engine.tasks.offering import Offers
from callboard.words.events import StopAsked
from callboard.words.values import AgentRow, Request

log = structlog.get_logger("callboard.team")


class Team:
    """All agents of one session, while this process hosts it."""

    def __init__(self, host: Host, pid: int) -> None:
        self.host = host
        self.members: dict[tuple[str, int], Member] = {}
        self.desk = Desk(host)
        self.autorun = Autorun(host)
        self.offers = Offers(host, self._living)
        self.dead_letters = DeadLetters(host, self.touched)
        self.stalls = Stalls(host, self.members)
        self.deadlocks = Deadlocks(host, self._waiting, self.touched)
        self._around = Around(host, pid, self.wait_ended, self._moved_on)
        self._group: TaskGroup | None = None
        self._moved = anyio.Event()
        self._hosting = False
        self.informer = Informer(host, self.agent, self.state)
        host.on_change = self._on_change
        host.on_operation = self.stalls.heed

    async def run(self, schedules: bool = True) -> None:
        """Host the session until cancelled. Raises what stops everything: a damaged or full store, a lost lease."""
        await self.host.load()
        await recall_budgets(self.host.budgets, self.host.ports.store, self.host.session, self.host.board.agents())
        if schedules:
            await self.autorun.recall()
        async with anyio.create_task_group() as group:
            self._group = self.dead_letters.group = self.informer.group = group
            group.start_soon(self.host.follow)
            group.start_soon(share, self.host.governor, self.host.ports.store)
            group.start_soon(self.desk.run)
            group.start_soon(self.dead_letters.recall)
            group.start_soon(self.stalls.run)
            group.start_soon(tend_hooks, self.host)
            if schedules:
                group.start_soon(self.autorun.run)
            await free_at_start(self.host, _goes_on)
            for row in self.host.board.agents():
                # A crashed mate stays parked: the lead knows. A crashed lead has nobody but the person who resumes.
                if row.life not in ("stopped", "crashed") or (row.life == "crashed" and row.kind == "lead"):
                    self._meet(row, resumed=True)
                elif row.kind == "lead":
                    await renew_if_due(self.host, row)
            for request in self.host.board.requests():
                self._heed_shutdown(request)
            group.start_soon(follow_orders, self.host, self._obey)
            self._hosting = True
            self.touched()
            await anyio.sleep_forever()

    async def quiet(self, also: Callable[[], bool] = lambda: True) -> None:
        """Return when in one snapshot nothing is left to do (docs/design.md, "Team": a headless run ends), and `also`
        holds, which is asked again whenever a row has changed."""
        while True:
            moved = self._moved
            if self._hosting and also() and await self._is_quiet() and moved is self._moved:
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

    def _moved_on(self, agent: Agent | None) -> None:
        if agent is not None:
            self.offers.moved_on(agent)
            if agent.state.turn is not None:  # in a turn nothing is quiet: whoever waits for that need not look
                return
        self.touched()

    async def wait_ended(self, name: str, incarnation: int) -> tuple[str, str]:
        """(outcome, result) of a life, once it is over."""
        found = self.host.board.agent(name)
        assert found is not None, "an agent that is waited for has a row"
        member = self.members.get((name, incarnation)) or self._meet(found[0])
        await member.ended.wait()
        return member.result

    # Members

    def _meet(self, row: AgentRow, *, resumed: bool = False) -> Member:
        """Take an agent into the team: a living one is started, one that has ended is read when asked for."""
        key = (row.name, row.incarnation)
        if key in self.members:
            return self.members[key]
        member = self.members[key] = Member(row, resumed)
        assert self._group is not None, "members join inside `run`"
        self._group.start_soon(self._life, member)
        return member

    async def _life(self, member: Member) -> None:
        """One agent from its journal to its end, through crashes of its code; an end is known to whoever waits."""
        try:
            with member.scope:
                await self._live(member)
        finally:
            member.left.set()
        if not member.killed:  # else whoever killed it does the rest
            await self._over(member)

    async def _live(self, member: Member) -> None:
        while True:
            lived = await guarded(live_once(member, self._around), member.row.name)
            if not isinstance(lived, Exception):
                member.result = lived
                return
            member.awake = False
            self.offers.offer()  # a task that it would have taken is for others
            if not await may_restart(self.host, member, lived):
                return

    async def _over(self, member: Member) -> None:
        await renew_if_due(self.host, member.row)
        row = self.host.board.agent(member.row.name)
        if row is not None and over(member.row.incarnation, row[0]):
            await self.dead_letters.take(row[0], member.row.incarnation)
        member.ended.set()
        self.touched()

    # Orders

    async def _obey(self, order: Given) -> None:
        """Do what a person ordered of one life of an agent, or of a schedule; nothing, if it is done already."""
        if order.what == "fire":
            await self.autorun.take_up(order.name)
            return
        await self.host.refresh(agent_key(self.host.session, order.name))  # who ordered may have seen it sooner
        found = self.host.board.agent(order.name)
        if found is None or found[0].incarnation != order.life:
            return
        if order.what == "kill":
            await self._kill(found[0], "person", order.why)
        elif found[0].life == "crashed":
            self.members.pop((order.name, order.life), None)
            self._meet(found[0], resumed=True)

    async def _kill(self, row: AgentRow, by: str, why: str) -> None:
        """End a life, whatever it does. The lead's is not ended so: its session goes with it."""
        key = (row.name, row.incarnation)
        member = self.members.get(key)
        if row.kind == "lead" or row.life == "stopped" or (member is not None and member.killed):
            return
        if member is None or member.ended.is_set():  # parked: nothing of it runs
            member = self.members[key] = Member(row)
            member.left.set()
        asked = StopAsked(at=self.host.clock.now(), by=by, why=why)
        member.result = await end_life(self.host, member, asked, self._around.pid)
        self.host.budgets.leave(row.name, row.incarnation)
        await self._over(member)

    def _heed_shutdown(self, request: Request) -> None:
        """A shutdown that was not answered in time is carried out."""
        if request.kind != "shutdown" or request.status != "expired" or self._group is None:
            return
        found = self.host.board.agent(str(request.payload.get("teammate")))
        if found is not None and found[0].incarnation == request.payload.get("incarnation"):
            self._group.start_soon(self._kill, found[0], "runtime", f"it did not stop in time ({request.id})")

    # Changes

    def _on_change(self, kind: str, name: str) -> None:
        """A row changed: start new agents, wake those whom it concerns."""
        self.touched()
        if kind == "agent":
            found = self.host.board.agent(name)
            if found and self._group is not None and found[0].life not in ("stopped", "crashed"):
                self._meet(found[0])
            if found and self._group is not None:
                self.deadlocks.heed(found[0], self._group)
        elif kind == "request":
            found_request = self.host.board.request(name)
            if found_request is not None:
                self.desk.heed(name)
                self.informer.heed_request(found_request[0])
                self._heed_shutdown(found_request[0])
                self._wake(found_request[0].asked_by)
        elif kind == "task":
            self.offers.changed(name)
        elif kind == "schedule":
            self.autorun.heed()
        elif kind == "rule":
            self.desk.heed_rules()

    def _waiting(self, name: str) -> AgentState | None:
        agent = self.agent(name)
        return agent.state if agent is not None else None

    def _wake(self, name: str) -> None:
        agent = self.agent(name)
        if agent is not None:
            agent.wake()

    def _living(self) -> Iterator[Agent]:
        return (one.agent for one in self.members.values() if one.agent and one.awake and not one.ended.is_set())

    async def _is_quiet(self) -> bool:
        if self.autorun.waiting:
            return False
        for member in list(self.members.values()):
            if member.ended.is_set():
                continue
            agent = member.agent
            if agent is None or not member.awake or not await self._rests(agent):
                return False
        return not self.deadlocks.looking and await self.dead_letters.empty()

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


def _goes_on(row: AgentRow) -> bool:
    """Whether its tasks wait for it: a lead that has ended to be followed by a new life hands them on."""
    return row.kind == "lead" or row.life not in ("stopped", "crashed")
