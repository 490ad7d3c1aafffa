"""Supervisor: every agent of the session is one of its tasks.

It starts agents that have a row, restarts crashed ones, ends those that do not stop, and detects when the whole team is
quiet. It never reads a conversation. `member` handles crashes and lives that must end, `watchdogs` stalls and
deadlocks.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence

import anyio
import structlog
from anyio.abc import TaskGroup

from callboard.core.agent.state import AgentState, BackgroundCommand
from callboard.core.decoding import read_envelope
from callboard.core.keys import agent_key, mailbox, orders_key
from callboard.core.messaging.dead_letters import over
from callboard.core.team.open_work import StoppedCommand
from callboard.core.team.subagents import in_background
from callboard.engine.agent_lock import AgentLock
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.approvals.broker import HostBroker
from callboard.engine.budgets.spending import recall_budgets
from callboard.engine.facts import facts_of
from callboard.engine.hooks.notify import HookNotifier, tend_hooks
from callboard.engine.messaging.dead_letters import DeadLetters
from callboard.engine.operations.background import end_with_run
from callboard.engine.operations.claim_task import TaskOffers, free_at_start, free_stranded, is_stranded
from callboard.engine.rate_limits.limiter import share
from callboard.engine.runtime import Listeners, SessionRuntime
from callboard.engine.scheduling.scheduler import SessionScheduler
from callboard.engine.step_handlers import begin
from callboard.engine.team.admin_orders import SUPERVISOR, AdminOrder, read_order
from callboard.engine.team.birth import Births
from callboard.engine.team.member import Member, TeamContext, end_life, live_once, may_restart, result_or_exception
from callboard.engine.team.renew import renew_if_due
from callboard.engine.team.watchdogs import Deadlocks, Stalls
from callboard.ports.notifier import Notifier
from callboard.ports.store import Put
from callboard.types.errors import CallboardError, Conflict, SessionUnreadable
from callboard.types.events import BackgroundStarted, StopAsked
from callboard.types.lazy_dataclass import dataclass
from callboard.types.operations import Operation
from callboard.types.records import AgentRow, Request, Task

KEPT_WITHIN = 2.0
"""Most seconds for the last snapshots."""
log = structlog.get_logger("callboard.team")


@dataclass(frozen=True, slots=True)
class PastLife:
    """Ended life of an agent of this process, without what only a living agent needs."""

    row: AgentRow
    state: AgentState


@dataclass(frozen=True, slots=True)
class AwaitedWork:
    """Work in the background that must end before a team counts as quiet."""

    commands: bool
    subagents: bool
    moved: bool = True
    """False: commands that a person moved to the background may still run."""

    def includes(self, task: BackgroundCommand | None) -> bool:
        """Return True if this task must have ended."""
        if task is not None and task.began.agent:
            return self.subagents
        return self.commands and (self.moved or task is None or not task.began.moved)


class Team:
    """All agents of one session, while this process hosts it."""

    def __init__(self, runtime: SessionRuntime, pid: int) -> None:
        self.runtime = runtime
        self.members: dict[tuple[str, int], Member] = {}
        """Agents that live, are parked, or are about to be freed, by name and incarnation."""
        self.past: dict[str, dict[int, PastLife]] = {}
        """Ended lives of this process, by name and incarnation. Nothing walks over them."""
        self.broker = HostBroker(runtime)
        self.scheduler = SessionScheduler(runtime)
        self.offers = TaskOffers(runtime, self._living)
        self.dead_letters = DeadLetters(runtime, self.notify_changed, self._start_task)
        self.stalls = Stalls(runtime, self._running)
        self.deadlocks = Deadlocks(runtime, self._state_of_living, self.notify_changed)
        self._team_context = TeamContext(
            runtime, pid, Births(runtime, self._lock_of, begin), self.wait_ended, self._handle_agent_change
        )
        self._group: TaskGroup | None = None
        self._locks: dict[tuple[str, int], AgentLock] = {}
        self._activity = Notifier()
        self._hosting = False
        self.hook_notifier = HookNotifier(runtime, self.agent, self.state, self._start_task)
        runtime.services.hooks.update_transcripts_by(self.hook_notifier.transcribe)
        runtime.listen(
            Listeners(
                inform=self.hook_notifier.tell,
                caller_of=self.hook_notifier.caller,
                on_event=(self.hook_notifier.handlers, self.scheduler.fires.handlers),
                on_change=self._on_change,
                on_operation=self._on_operation,
            )
        )

    async def run(self, schedules: bool = True) -> None:
        """Host the session until cancelled.

        Raises errors that end the session: a damaged or full store, a lost lease.
        """
        await self.runtime.load()
        await recall_budgets(
            self.runtime.budgets, self.runtime.services.store, self.runtime.session, self.runtime.rows.agents()
        )
        if schedules:
            await self.scheduler.recall()
        async with anyio.create_task_group() as group:
            self._group = group
            group.start_soon(self.runtime.follow)
            group.start_soon(share, self.runtime.key_limiter, self.runtime.services.store, self._wake_rate_waiters)
            group.start_soon(self.broker.run)
            group.start_soon(self.dead_letters.recall)
            group.start_soon(self.stalls.run)
            group.start_soon(tend_hooks, self.runtime)
            if schedules:
                group.start_soon(self.scheduler.run)
            # Before any agent runs, so that no agent claims a task that a crashed one still holds
            # (test_a_resume_keeps_what_its_own_agents_hold_and_frees_what_nobody_goes_on_with).
            await free_at_start(self.runtime, _keeps_tasks)
            await free_stranded(self.runtime)
            for row in self.runtime.rows.agents():
                # A crashed teammate stays parked, because the lead is informed. Only the user who resumes can act for a
                # crashed lead.
                if row.life not in ("stopped", "crashed") or (row.life == "crashed" and row.kind == "lead"):
                    self._add_member(row, resumed=True)
                elif row.kind == "lead":
                    # The last process may have ended between the two lives
                    # (test_a_process_that_dies_between_the_lives_leaves_the_new_one_to_the_next_host).
                    await renew_if_due(self.runtime, row)
            for request in self.runtime.rows.requests():
                self._kill_if_overdue(request)
            group.start_soon(self._follow_orders)
            self._hosting = True
            self.notify_changed()
            await anyio.sleep_forever()

    async def quiet(
        self,
        also: Callable[[], bool] = lambda: True,
        *,
        commands: bool = True,
        subagents: bool = True,
        moved: bool = True,
    ) -> None:
        """Return when one snapshot shows no work left and `also` holds, which is checked whenever a row changes.

        A headless run then ends (docs/design.md, "Team"). `commands`, `subagents`: those in the background must have
        ended too. `moved`: also the commands that a person moved there.
        """
        awaited = AwaitedWork(commands, subagents, moved)
        while True:
            changes = self._activity.changes
            # The check awaits the store. If something happened meanwhile, its answer is outdated.
            quiet = self._hosting and also() and await self._is_quiet(awaited)
            if quiet and changes == self._activity.changes:
                return
            await self._activity.changed(changes)

    async def pause(self) -> None:
        """Let no agent begin another step; return when none is in progress.

        A call without a limit of time (one that waits for a subagent) and commands in the background go on.
        """
        self.runtime.pausing = True
        await self._activity.until(self._is_paused)

    def _is_paused(self) -> bool:
        return not any(
            self.stalls.limit(agent, operation) is not None
            for agent in self._running()
            for operation in agent.operations
        )

    async def taken_up(self, name: str) -> None:
        """Wait until an agent is in a turn, or has nothing to do: its mail from before has no turn to start then."""
        while True:
            changes = self._activity.changes
            agent = self.agent(name)
            if (
                agent is None
                or agent.state.turn is not None
                or await self._is_at_rest(agent, AwaitedWork(False, False))
            ):
                return
            await self._activity.changed(changes)

    def commands(self, *, moved: bool = True) -> list[StoppedCommand]:
        """Return the running background commands, without subagents, which end by themselves.

        `moved`: with those that a person moved to the background.
        """
        return [
            StoppedCommand(command.began.id, agent.name, command.began.command)
            for agent in self._living()
            for command in agent.state.work.background.values()
            if command.status == "running" and not command.began.agent and (moved or not command.began.moved)
        ]

    def subagents(self) -> list[BackgroundStarted]:
        """Return the running subagents for which no call waits."""
        return [began for agent in self._living() for began in in_background(agent.state)]

    async def end_commands(self) -> Sequence[StoppedCommand]:
        """End all background commands and return them. None of them runs when this returns."""
        commands = self.commands()
        async with anyio.create_task_group() as group:
            for command in commands:
                if (agent := self.agent(command.agent)) is not None:
                    group.start_soon(end_with_run, agent, command.id)
        return commands

    def agent(self, name: str) -> AgentRuntime | None:
        """Return the living agent with this name in this process."""
        return next((m.agent for m in self._lives(name) if m.agent and not m.ended.is_set()), None)

    def state(self, name: str, incarnation: int | None = None) -> AgentState | None:
        """Return the state of an agent that lives, or lived, in this process; None for any other."""
        past = self.past.get(name, {})
        if incarnation is not None:
            member = self.members.get((name, incarnation))
            if member is not None and member.agent is not None:
                return member.agent.state
            return past[incarnation].state if incarnation in past else None
        agent = next((member.agent for member in self._lives(name) if member.agent is not None), None)
        return agent.state if agent is not None else past[max(past)].state if past else None

    def _lives(self, name: str) -> Iterator[Member]:
        """Yield the lives of a name that are not freed, newest first, without a walk over all members."""
        row = self.runtime.rows.agent(name)
        lives = range(row[0].incarnation, 0, -1) if row is not None else ()
        return (self.members[name, life] for life in lives if (name, life) in self.members)

    def lives(self) -> Sequence[PastLife]:
        """Return every life of this process that has begun, also those that have ended."""
        ended = [life for lives in self.past.values() for life in lives.values()]
        here = [member.agent for member in self.members.values() if member.agent is not None]
        return [*ended, *(PastLife(agent.row, agent.state) for agent in here)]

    async def wait_for_begin(self, name: str, incarnation: int) -> None:
        """Wait until this life of the name, or a later one, has its first records."""

        def has_begun() -> bool:
            agent = self.agent(name)
            return agent is not None and agent.row.incarnation >= incarnation and bool(agent.state.context.system)

        await self._activity.until(has_begun)

    async def keep(self) -> None:
        """Write a snapshot of each living agent, because this process leaves.

        Bounded in time; cancellation waits for the end.
        """
        # Shielded: the host leaves by cancellation, and these snapshots protect against later damage of older records.
        with anyio.move_on_after(KEPT_WITHIN, shield=True):
            for agent in list(self._living()):
                try:
                    await agent.write_snapshot()
                except CallboardError:  # the journal has everything; a snapshot only saves time
                    log.warning("no snapshot at the end", agent=agent.name)
                    return

    def notify_changed(self) -> None:
        """Make waiters for quiet check again, because something happened."""
        self._activity.notify()

    def _wake_rate_waiters(self) -> None:
        """Make agents that wait for a key decide again, because it was parked, was refused or works again."""
        for member in self.members.values():
            agent = member.agent
            if agent is not None and (agent.state.model.recovery.parked or agent.state.waits.held == "rate"):
                agent.wake()

    def _handle_agent_change(self, agent: AgentRuntime | None) -> None:
        if agent is not None:
            self.offers.handle_agent(agent)
            # During a turn nothing is quiet: waiters need not check.
            if agent.state.turn is not None and not self.runtime.pausing:
                return
        self.notify_changed()

    async def wait_ended(self, name: str, incarnation: int) -> tuple[str, str]:
        """Wait for the end of a life and return (outcome, result)."""
        match = self.runtime.rows.agent(name)
        assert match is not None, "an agent that is waited for has a row"
        past = self.past.get(name, {}).get(incarnation)
        if past is not None and past.state.lifecycle.ended is not None:
            return past.state.lifecycle.ended.outcome, past.state.lifecycle.ended.result
        member = self.members.get((name, incarnation)) or self._add_member(match[0])
        await member.ended.wait()
        return member.result

    # Members

    def _add_member(self, row: AgentRow, *, resumed: bool = False) -> Member:
        """Add an agent to the team: a living one is started, an ended one is read on demand."""
        key = (row.name, row.incarnation)
        if key in self.members:
            return self.members[key]
        member = self.members[key] = Member(row, self._lock_of(row), resumed)
        started = self._start_task(self._run_member, member)
        assert started, "members join inside `run`"
        return member

    def _start_task(self, function: Callable[..., Coroutine[None, None, object]], *arguments: object) -> bool:
        """Run a function beside the agents, until it returns or the team ends. Return False before the team runs."""
        if self._group is not None:
            self._group.start_soon(function, *arguments)
        return self._group is not None

    def _lock_of(self, row: AgentRow) -> AgentLock:
        """Return the lock of a life, which it keeps when it is resumed or ended after a crash."""
        return self._locks.setdefault((row.name, row.incarnation), AgentLock(row.name))

    async def _run_member(self, member: Member) -> None:
        """Run one agent from its journal to its end, through crashes of its code, and inform the waiters of the end."""
        try:
            with member.scope:
                await self._live_through_crashes(member)
        finally:
            member.gone.set()
        if not member.killed:  # else the function that killed it does the rest
            await self._finish_life(member)
            await self._free_memory(member)

    async def _live_through_crashes(self, member: Member) -> None:
        while True:
            lived = await result_or_exception(live_once(member, self._team_context), member.row.name)
            if not isinstance(lived, Exception):
                member.result = lived
                return
            if isinstance(lived, SessionUnreadable) and member.row.kind == "lead":
                raise lived  # a session cannot continue without its lead
            if member.killed:  # a late commit of a killed life failed: the life is already settled
                return
            member.awake = False
            self.offers.offer_tasks()  # other agents may take the task that was offered to it
            if not await may_restart(self.runtime, member, lived):
                return

    async def _finish_life(self, member: Member) -> None:
        await renew_if_due(self.runtime, member.row)
        row = self.runtime.rows.agent(member.row.name)
        if row is not None and over(member.row.incarnation, row[0]):
            await self.dead_letters.take(row[0], member.row.incarnation)
        member.ended.set()
        self.notify_changed()

    async def _free_memory(self, member: Member) -> None:
        """Complete the transcript of an ended life, and free the memory of the life if that was possible."""
        agent = member.agent
        if agent is None or agent.state.lifecycle.ended is None or member.row.kind == "lead":
            return
        await self.hook_notifier.share_transcript(agent)
        if agent.release():
            row = agent.row
            self.runtime.mailboxes.leave(mailbox(self.runtime.session, row.name, row.incarnation))
            self.members.pop((row.name, row.incarnation), None)
            self.past.setdefault(row.name, {})[row.incarnation] = PastLife(row, agent.state)

    # Orders

    async def _follow_orders(self) -> None:
        """Perform each order as it arrives, from the stored position. Never returns."""
        runtime = self.runtime
        key = orders_key(runtime.session)
        orders = mailbox(runtime.session, SUPERVISOR, 1)
        row = await runtime.services.store.get(key)
        position = int(row.value) if row is not None and row.value is not None else 0
        async with runtime.services.store.follow(orders, position) as records:
            async for record in records:
                order = read_order(read_envelope(record.data, orders, record.seq))
                if order is not None:
                    log.info("order", what=order.what, agent=order.name, why=order.why)
                    await self._carry_out(order)
                # After the order, because a repetition after a crash changes nothing.
                await runtime.commit(Put(key, str(record.seq).encode()))

    async def _carry_out(self, order: AdminOrder) -> None:
        """Perform the user's order about one life of an agent, or about a schedule.

        Does nothing if it is already done.
        """
        if order.what == "fire":
            await self.scheduler.take_up(order.name)
            return
        # The order arrives by mail and the row by the watch, in no fixed order
        # (test_a_parked_agent_can_be_ended_and_an_order_that_is_given_while_nobody_hosts_is_kept).
        await self.runtime.refresh(agent_key(self.runtime.session, order.name))  # the author may know a newer row
        match = self.runtime.rows.agent(order.name)
        if match is None or match[0].incarnation != order.life:
            return
        if order.what == "kill":
            await self._kill(match[0], "person", order.why)
        elif match[0].life == "crashed":
            # In the store before the order counts as performed: this process may end before the agent's first record
            # (test_an_order_to_resume_survives_the_end_of_its_host).
            row = match[0].model_copy(update={"life": "starting", "since": self.runtime.clock.now()})
            parked = self.members.pop((order.name, order.life), None)
            try:
                await self.runtime.commit(
                    Put(agent_key(self.runtime.session, row.name), row.encode(), expected=match[1])
                )
            except Conflict:
                # An overdue shutdown ends the parked agent in the same moment
                # (test_an_order_to_resume_that_loses_a_race_is_tried_again).
                if parked is not None:
                    self.members[order.name, order.life] = parked
                await self._carry_out(order)
                return
            self._add_member(row)

    async def _kill(self, row: AgentRow, by: str, reason: str) -> None:
        """End a life, whatever it does. The lead's life ends only with its session."""
        key = (row.name, row.incarnation)
        member = self.members.get(key)
        if row.kind == "lead" or row.life == "stopped" or (member is not None and member.killed):
            return
        if member is None or member.ended.is_set():  # parked: no part of it runs
            member = self.members[key] = Member(row, self._lock_of(row))
            member.gone.set()
        order = StopAsked(at=self.runtime.clock.now(), by=by, why=reason)
        member.result = await end_life(self.runtime, member, order, self._team_context.pid)
        self.runtime.budgets.leave(row.name, row.incarnation)
        await self._finish_life(member)
        self._start_task(self._free_memory, member)  # slow hooks before it do not delay the next order

    def _kill_if_overdue(self, request: Request) -> None:
        """Carry out a shutdown that was not answered in time."""
        if request.kind != "shutdown" or request.status != "expired" or self._group is None:
            return
        match = self.runtime.rows.agent(str(request.payload.get("teammate")))
        if match is not None and match[0].incarnation == request.payload.get("incarnation"):
            self._start_task(self._kill, match[0], "runtime", f"it did not stop in time ({request.id})")

    # Changes

    def _on_change(self, kind: str, name: str) -> None:
        """Handle a changed row: start new agents, and wake the agents that it concerns."""
        self.notify_changed()
        if kind == "agent":
            match = self.runtime.rows.agent(name)
            if match and self._group is not None and match[0].life not in ("stopped", "crashed"):
                self._add_member(match[0])
            if match and self._group is not None:
                self.deadlocks.handle_agent(match[0], self._group)
            if match and match[0].life in ("stopped", "crashed"):
                self._free_stranded(self.runtime.rows.open_tasks())
        elif kind == "request":
            found_request = self.runtime.rows.request(name)
            if found_request is not None:
                self.broker.handle_request(name)
                self.hook_notifier.handle_request(found_request[0])
                self._kill_if_overdue(found_request[0])
                self._wake(found_request[0].asked_by)
        elif kind == "task":
            self.offers.handle_task(name)
            found_task = self.runtime.rows.task(name)
            self._free_stranded([found_task[0]] if found_task is not None else [])
        elif kind == "schedule":
            self.scheduler.handle_change()
        elif kind == "rule":
            self.broker.handle_rules()

    def _free_stranded(self, changed: Sequence[Task]) -> None:
        """Free the tasks reserved for ended agents if one of these is."""
        if any(is_stranded(self.runtime.rows, task) for task in changed):
            self._start_task(free_stranded, self.runtime)

    def _state_of_living(self, name: str) -> AgentState | None:
        agent = self.agent(name)
        return agent.state if agent is not None else None

    def _wake(self, name: str) -> None:
        agent = self.agent(name)
        if agent is not None:
            agent.wake()

    def _on_operation(self, name: str, incarnation: int, operation: Operation) -> None:
        member = self.members.get((name, incarnation))
        if member is not None and member.agent is not None:
            self.stalls.handle_operation(member.agent, operation)

    def _running(self) -> Iterator[AgentRuntime]:
        """Return the agents whose lives have not ended, including those that are still loading."""
        return (member.agent for member in self.members.values() if member.agent and not member.ended.is_set())

    def _living(self) -> Iterator[AgentRuntime]:
        return (
            member.agent
            for member in self.members.values()
            if member.agent and member.awake and not member.ended.is_set()
        )

    async def _is_quiet(self, awaited: AwaitedWork) -> bool:
        if self.scheduler.waiting:
            return False
        not_awaited = () if awaited.subagents else {task.agent for task in self.subagents()}
        for member in list(self.members.values()):
            if member.ended.is_set() or member.row.name in not_awaited:
                continue
            agent = member.agent
            # An agent that waits for its restart still has work
            # (test_a_team_is_not_quiet_while_one_of_it_waits_for_its_restart).
            if agent is None or not member.awake or not await self._is_at_rest(agent, awaited):
                return False
        return not self.deadlocks.looking and await self.dead_letters.empty()

    async def _is_at_rest(self, agent: AgentRuntime, awaited: AwaitedWork) -> bool:
        """Return True if the agent is idle.

        An idle agent has no operation that anything waits for, an empty mailbox, and no ready task to claim.
        """
        state = agent.state
        if state.identity.spec is None:
            return False  # its journal has not begun
        background = state.work.background
        under_way = any(
            operation.kind != "bg" or awaited.includes(background.get(operation.subject))
            for operation in agent.operations
        )
        if (
            state.turn is not None
            or state.lifecycle.stop
            or state.compaction.focus is not None
            or state.compaction.undo
            or under_way
        ):
            return False
        if any(task.status == "running" and awaited.includes(task) for task in background.values()):
            return False  # after a resume no operation watches it yet
        if any(e.mode == "wake" for e in state.inbox.mail) or facts_of(self.runtime, state, frozenset()).claimable:
            return False
        # The store is asked, because mail of another process may not have reached the listener yet.
        stream = mailbox(self.runtime.session, agent.name, agent.row.incarnation)
        return await self.runtime.services.store.last(stream) <= state.inbox.position


def _keeps_tasks(row: AgentRow) -> bool:
    """Return True if the agent's tasks wait for it.

    They also wait for a lead that has ended: its next incarnation gets them.
    """
    return row.kind == "lead" or row.life not in ("stopped", "crashed")
