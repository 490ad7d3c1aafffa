"""A session that another process hosts: its rows and journals as they change, and commands and answers to it.

    async with open_attached(options, observers=[screen]) as session:
        await session.say("And the tests?")
        end = await session.wait_finished()

An attached session hosts nothing, and leaving it does not affect the host. Parts of a reply are not journalled: they
come through the host's private socket (`live/`) if it is on this machine. Without it, a follower sees whole replies.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import assert_never

import anyio
from anyio.abc import TaskGroup

from callboard.adapters.extensions.discovery import ExtensionPaths
from callboard.adapters.extensions.skills import SkillLibrary
from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.adapters.system.clock import SystemClock
from callboard.config.trust import stored_trust
from callboard.core.agent.apply import apply
from callboard.core.agent.state import AgentState, without_history
from callboard.core.decoding import read_event, read_value
from callboard.core.keys import host_key, host_lease, journal, rows_prefix, screen_leases, session_key
from callboard.core.live.following import LiveGate
from callboard.core.live.frames import LiveFrame, LiveRequest
from callboard.engine.approvals.broker import ApproverBroker
from callboard.engine.audience import Audience
from callboard.engine.commands import find_session
from callboard.engine.recall import JournalGap, lost_words, recall
from callboard.engine.row_cache import RowCache
from callboard.ports.environment import Answer, Approver, Observer
from callboard.ports.model import Delta
from callboard.ports.notifier import Notifier
from callboard.ports.store import LeaseHolder, Record, Store
from callboard.ports.store_reading import rows_of
from callboard.sessions.base import OpenSession
from callboard.sessions.inspect.hosts import ABOUT_TO_TAKE, waiting_reason
from callboard.sessions.lease import holder_of, host_died, is_row_of, process_words
from callboard.sessions.live.follower import read_live
from callboard.sessions.options import SessionOptions
from callboard.sessions.person_actions import answer_as_person
from callboard.sessions.places import WorkspacePaths, find_places
from callboard.sessions.result import DONE, FAILED, RunEnd, advice_after, outcome_of
from callboard.sessions.stores import open_store, own_settings
from callboard.types.errors import SessionUnreadable, UsageError, heart_of
from callboard.types.events import EnvelopeReceived
from callboard.types.records import AgentRow, HostRow, Request, SessionRow
from callboard.types.skills import PersonCommand

TAKEN_OVER_WITHIN = 30.0
"""Seconds from the exit of the old host until the new host has written its row."""
REPLACED_WITHIN = 30.0
"""Seconds until a serving host has replaced one that died or handed the session over. A follower then asks again
whether one will."""


class AttachedSession(OpenSession):
    """Session that another process, `pid`, hosts. `pid` changes when another process takes over."""

    def __init__(
        self,
        row: SessionRow,
        places: WorkspacePaths,
        store: Store,
        *,
        observers: Sequence[Observer],
        approvers: Sequence[Approver],
        live_text: bool = False,
    ) -> None:
        rows = RowCache(row.id, self._row_changed)
        model = str(row.settings.get("model", row.model))
        super().__init__(row, places, store, rows=rows, clock=SystemClock(), model=model)
        self.pid = 0
        self._machine = ""
        self._audience = Audience(observers)
        self._broker = ApproverBroker(self._rows, approvers, self._send_answer)
        self._states: dict[tuple[str, int], AgentState] = {}
        self._followed: set[tuple[str, int]] = set()
        self._group: TaskGroup | None = None
        self._changed = Notifier()
        self._gone = anyio.Event()
        self._died = False
        self._skills: SkillLibrary | None = None
        self._host: HostRow | None = None
        """Row of the host; None: the host has left, or has written nothing yet."""
        self._live: dict[tuple[str, int], LiveGate] | None = {} if live_text else None
        """Live text of each life; None if no observer wants it."""
        self._announced: list[HostRow] = []
        """Rows of the hosts that have announced themselves, also those with the request to leave."""

    @property
    def where(self) -> str:
        """Return which process hosts the session: `process 4711`, and its machine if that is another one."""
        return process_words(LeaseHolder(self.pid, 0.0, self._machine))

    def state(self, name: str, incarnation: int | None = None) -> AgentState | None:
        if incarnation is not None:
            return self._states.get((name, incarnation))
        lives = [life for agent, life in self._states if agent == name]
        return self._states[name, max(lives)] if lives else None

    def commands(self) -> Sequence[PersonCommand]:
        return self._library().commands()

    def awaits_trust(self, name: str) -> bool:
        return self._library().awaits_trust(name)

    def _library(self) -> SkillLibrary:
        if self._skills is None:
            trust = stored_trust(self.workspace, self.places.config)
            trusted = trust.trusted
            workspace_claims = trust.workspace_claims
            files = ExtensionPaths(
                self.workspace, self.places.config, Path.home(), trusted=trusted, workspace_claims=workspace_claims
            )
            self._skills = SkillLibrary(files)
        return self._skills

    def move_to_background(self, use_id: str = "") -> bool:
        """Return False: the calls wait in the process that hosts the session."""
        return False

    async def renew(self, *, carry: bool) -> None:
        row = self._rows.agent("lead")
        life = row[0].incarnation if row else 1
        await self.command("new", text="carry" if carry else "")

        def is_renewed() -> bool:
            state = self._states.get(("lead", life + 1))
            return self._gone.is_set() or (state is not None and bool(state.context.system))

        await self._changed.until(is_renewed)

    async def wait_finished(self) -> RunEnd:
        """Wait until the host has left, then return the state of the session."""
        await self._gone.wait()
        lead = self.state("lead")
        row = self._rows.agent("lead")
        text = (lead.turn.text if lead.turn else lead.turns.last_text) if lead else ""
        if self._died and not await self._was_finished():
            reason = f"{self.where}, which hosted the session, has died: `callboard resume {self.id}` continues it"
            return RunEnd(FAILED, text, reason, self.usage(), self.team(), self.open_work())
        code = await self._recorded_code()
        outcome = outcome_of(row[0] if row else None, lead, self.requests(pending_only=False))
        advice = advice_after(self.id, lead.turns.last_reason, outcome.limit) if lead else ""
        usage = self.usage()
        team = self.team()
        open_work = self.open_work()
        end = RunEnd(outcome.exit_code, text, outcome.why, usage, team, open_work, outcome.limit, advice)
        end = end if end.exit_code == code else end.of_run()
        return end if end.exit_code == code else replace(end, exit_code=code, why="", limit="", advice="")

    async def _was_finished(self) -> bool:
        """Return True if a host that this process has not seen has finished the work of one that died."""
        row = await self._store.get(session_key(self.id))
        now = read_value(SessionRow, row.value, row.key) if row is not None and row.value is not None else None
        return now is not None and self._ended_since(now) and await waiting_reason(self._store, self.id) is None

    async def _recorded_code(self) -> int:
        """Return the exit code that the host recorded for its run; 0 if the host just left."""
        row = await self._store.get(session_key(self.id))
        if row is None or row.value is None:
            return DONE
        now = read_value(SessionRow, row.value, row.key)
        return now.exit_code or DONE if self._ended_since(now) else DONE

    def _ended_since(self, now: SessionRow) -> bool:
        """Return True if a run has ended since this process attached.

        Not by the clock: that of the host's machine may be behind
        (test_a_follower_whose_clock_is_ahead_ends_with_the_code_of_the_run).
        """
        return now.ended_at is not None and now.ended_at != self.row.ended_at

    # Following

    async def follow(
        self, holder: LeaseHolder, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Follow the session until cancelled. `task_status` is set when it has caught up."""
        self._rows.take(*await rows_of(self._store, rows_prefix(self.id)))
        for row in self._rows.agents():
            key = (row.name, row.incarnation)
            if row.life == "stopped" and row.kind != "lead":
                self._followed.add(key)  # it ended before this process attached: its row contains its usage
            else:
                self._states[key] = await recall(self._store, self.id, *key)
        self.pid = holder.pid
        self._machine = holder.machine
        async with anyio.create_task_group() as group:
            self._group = group
            for row in self._rows.agents():
                self._row_changed("agent", row.name)
            group.start_soon(self._broker.run)
            group.start_soon(self._follow_host)
            group.start_soon(self._follow_hosts, holder)
            task_status.started()
            async with self._store.watch(rows_prefix(self.id)) as rows:
                async for row in rows:
                    self._rows.take(row, *rows.at_hand())

    def _row_changed(self, kind: str, name: str) -> None:
        if self._group is None:
            return
        if kind == "agent" and (match := self._rows.agent(name)):
            key = (name, match[0].incarnation)
            if key not in self._states or self._states[key].lifecycle.ended is None:
                self._follow_once(match[0])
        elif kind == "request":
            self._broker.handle_request(name)

    def _follow_once(self, row: AgentRow) -> None:
        key = (row.name, row.incarnation)
        if self._group is not None and key not in self._followed:
            self._followed.add(key)
            self._group.start_soon(self._follow_agent, key)

    async def _follow_agent(self, key: tuple[str, int]) -> None:
        """Follow the journal of one life, event by event, to its end."""
        state = self._states.setdefault(key, AgentState())
        stream = journal(self.id, *key)
        async with self._store.follow(stream, state.seq) as records:
            async for record in records:
                if self._take(key, stream, record).lifecycle.ended is not None:
                    break
        if key[0] != "lead" and self._states[key].lifecycle.ended is not None:
            self._states[key] = without_history(self._states[key])

    def _take(self, key: tuple[str, int], stream: str, record: Record) -> AgentState:
        state = self._states[key]
        # A gap is damage. A state that is folded past it would be silently wrong.
        if record.seq != state.seq + 1:
            raise SessionUnreadable(lost_words(JournalGap(stream, state.seq + 1, record.seq, ())), self.id)
        event = read_event(record.data, stream, record.seq)
        gate = self._gate(key)
        if gate is not None and (reason := gate.void_reason(event)):
            self._show(key[0], Delta("dropped", reason))
        state = self._states[key] = apply(state, event)
        if isinstance(event, EnvelopeReceived):
            self._audience.on_mail(event.envelope)
        self._audience.on_event(key[0], record.seq, event)
        if gate is not None:
            self._show_live(gate.handle_event(record.seq, event))
        self._changed.notify()
        return state

    # Live text

    async def _follow_live(self, holder: LeaseHolder) -> None:
        """Follow the text of replies as it streams, whenever the host offers it."""
        seen = self._changed.changes
        while await read_live(self.places.live, self.id, holder, LiveRequest(), take=self._take_live):
            # A host that has only begun has no socket yet. It has one before an agent begins.
            seen = await self._changed.changed(seen)

    def _gate(self, key: tuple[str, int]) -> LiveGate | None:
        if self._live is None:
            return None
        gate = self._live.get(key)
        if gate is None:
            gate = self._live[key] = LiveGate(self._states[key].seq)
        return gate

    def _take_live(self, frame: LiveFrame) -> None:
        key = (frame.reply.agent, frame.reply.life)
        gate = self._gate(key) if key in self._states else None
        if gate is not None:
            self._show_live(gate.take(frame))

    def _show_live(self, frames: Sequence[LiveFrame]) -> None:
        for frame in frames:
            self._show(frame.reply.agent, _delta_of(frame))

    def _show(self, agent: str, delta: Delta) -> None:
        self._audience.on_delta(agent, delta)

    # Requests

    async def _send_answer(self, request: Request, answer: Answer) -> str | None:
        return await answer_as_person(self._store, self.id, request.id, answer, now=self._now)

    # The host

    async def _follow_hosts(self, holder: LeaseHolder) -> None:
        """Follow from one host to the next if another process takes over."""
        while True:
            self.pid = holder.pid
            self._machine = holder.machine
            async with anyio.create_task_group() as group:
                if self._live is not None:
                    group.start_soon(self._follow_live, holder)
                self._died = await self._host_gone(holder)
                group.cancel_scope.cancel()
            following = await self._next_host(holder)
            if following is None:
                break
            holder = following
            message = f"{process_words(holder)} takes over the session from {self.where}; this screen follows it"
            self._show("lead", Delta("notice", message))
        self._gone.set()
        self._changed.notify()

    async def _host_gone(self, holder: LeaseHolder) -> bool:
        """Wait until the host has left. Return True if it died; a host that leaves in order removes its row."""
        died = list[bool]()

        async def dies() -> None:
            await host_died(self._store, self.id, holder)
            row = await self._store.get(host_key(self.id))
            host = read_value(HostRow, row.value, row.key) if row is not None and row.value is not None else None
            # A host that leaves in order removes its row first; a killed host cannot
            # (test_a_follower_is_told_when_its_host_was_killed).
            died.append(is_row_of(host, holder))
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(dies)
            await self._changed.until(
                lambda: any(is_row_of(row, holder) for row in self._announced) and not is_row_of(self._host, holder)
            )
            group.cancel_scope.cancel()
        return any(died)

    async def _next_host(self, before: LeaseHolder) -> LeaseHolder | None:
        """Return the new host after one that was asked to leave, or seemed dead; None if no process took over."""
        if any(row.asked_by and is_row_of(row, before) for row in self._announced):
            # For a moment between two hosts, no process holds the lease
            # (test_who_follows_a_session_follows_it_to_the_process_that_takes_over).
            await self._until_other_host(before, TAKEN_OVER_WITHIN)
        else:
            await self._until_replaced(before)
        if self._host is None:
            return None
        if not is_row_of(self._host, before):
            return holder_of(self._host)
        # The next host has the lease before its row (test_a_host_with_the_same_pid_and_start_time_is_another_one).
        holder = await self._store.holder(host_lease(self.id))
        return None if holder == before else holder

    async def _until_replaced(self, before: LeaseHolder) -> None:
        """Wait for the next serving host, for as long as there is one that will take the session.

        A host that takes over all sessions of another one needs more than `REPLACED_WITHIN` for the last of them
        (test_a_follower_waits_while_a_serving_host_is_about_to_take_the_session).
        """
        while (reason := await waiting_reason(self._store, self.id)) is not None:
            if await self._until_other_host(before, REPLACED_WITHIN) or reason != ABOUT_TO_TAKE:
                return

    async def _until_other_host(self, before: LeaseHolder, seconds: float) -> bool:
        """Return True if there is another host, or False after so many seconds."""
        with anyio.move_on_after(seconds) as late:
            await self._changed.until(lambda: self._host is not None and not is_row_of(self._host, before))
        return not late.cancelled_caught

    async def _follow_host(self) -> None:
        """Follow the row of the session's host."""
        async with self._store.watch(host_key(self.id)) as rows:
            async for row in rows:
                if row.key != host_key(self.id):
                    continue
                host = None if row.value is None else read_value(HostRow, row.value, row.key)
                self._host = None if host is None or host.left else host
                if host is not None:
                    self._announced.append(host)
                self._changed.notify()


def _delta_of(frame: LiveFrame) -> Delta:
    """Return a piece of a reply in the form for observers."""
    match frame.kind:
        case "text" | "thinking":
            return Delta(frame.kind, frame.text)
        case "call" | "input":
            return Delta("tool", frame.text, names_tool=frame.kind == "call")
        case "lost":
            return Delta("notice", "this process is too slow for the text of a reply: it follows when it is complete")
        case _:
            assert_never(frame.kind)


@asynccontextmanager
async def open_attached(
    options: SessionOptions, *, observers: Sequence[Observer] = (), approvers: Sequence[Approver] = ()
) -> AsyncGenerator[AttachedSession]:
    """Follow a session that another process hosts until the block ends.

    Raises `UsageError` if there is no such session, if no process hosts it, and inside a tool's process.
    """
    refuse_inside_tool("Attaching to a session")
    places = find_places(options.workspace.folder, writable=False)
    store = await open_store(places, own_settings(), options.hosting.notice)
    try:
        row = await find_session(store, options.identity.session)
        holder = await store.holder(host_lease(row.id))
        if holder is None:
            holder = await _coming_host(store, row.id)
        live_text = options.hosting.live_text
        session = AttachedSession(row, places, store, observers=observers, approvers=approvers, live_text=live_text)
        async with _present(store, row.id, bool(approvers)), _following(session, holder):
            yield session
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


async def _coming_host(store: Store, session: str) -> LeaseHolder:
    """Return the serving host that is about to take a session. Raises `UsageError` if none is."""
    waits = await waiting_reason(store, session)
    if waits is None:
        raise UsageError(f"no process hosts session {session}: `callboard resume {session}` continues it")
    holder: LeaseHolder | None = None
    with anyio.move_on_after(REPLACED_WITHIN):
        async with store.watch(host_key(session)) as rows:
            while holder is None and await anext(rows, None) is not None:
                holder = await store.holder(host_lease(session))
    if holder is not None:
        return holder
    raise UsageError(f"no process hosts session {session}: {waits}")


@asynccontextmanager
async def _present(store: Store, session: str, asks: bool) -> AsyncGenerator[None]:
    """Hold a lease by which the host knows that a person can be asked here. It ends with this process."""
    lease = None
    # A lease, because it also ends if this process is killed
    # (test_a_plan_that_its_lead_left_is_put_to_whoever_is_attached_to_a_headless_run).
    for name in screen_leases(session) if asks else ():
        held = await store.acquire(name)
        if not isinstance(held, LeaseHolder):
            lease = held
            break
    try:
        yield
    finally:
        if lease is not None:
            with anyio.CancelScope(shield=True):
                await lease.release()


@asynccontextmanager
async def _following(session: AttachedSession, holder: LeaseHolder) -> AsyncGenerator[None]:
    """Follow the session inside the block. An error on which no one can act is raised by itself, not in a group."""
    try:
        async with anyio.create_task_group() as group:
            await group.start(session.follow, holder)
            yield
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failed:
        raise heart_of(failed) from failed
