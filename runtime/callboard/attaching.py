"""A session that another process hosts, followed from here: its rows and journals as they change, answers and words.

    async with open_attached(Options(Path("."), session="..."), observers=[screen]) as session:
        await session.say("And the tests?")
        end = await session.finished()

It hosts nothing, and leaving it leaves the host alone. What streams while a model speaks is not in a journal: a
follower sees a reply when it is whole.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import anyio
from anyio.abc import TaskGroup

from callboard.adapters.clock import SystemClock
from callboard.adapters.files import Places as FilePlaces
from callboard.adapters.skill_files import SkillLibrary
from callboard.app import open_session
from callboard.assembly import Places, find_places, open_store
from callboard.core.apply import apply
from callboard.core.names import host_key, host_lease, journal, rows_prefix, session_key
from callboard.core.state import AgentState
from callboard.desks.persons import refuse_inside_tool
from callboard.ending import DONE, FAILED, End, exit_code_of
from callboard.engine.asking.requests import answer_request
from callboard.engine.board import SessionBoard
from callboard.engine.memory import recall
from callboard.engine.sessions import find_session, send_prompt
from callboard.opening import Options
from callboard.ports.model import Delta
from callboard.ports.store import LeaseHolder, Record, Store
from callboard.ports.world import Approver, Observer
from callboard.session import OpenSession
from callboard.settings import load_settings
from callboard.taking_over import host_died
from callboard.trusting import standing
from callboard.words.errors import SessionHosted, StoreDamaged, UsageError, heart_of
from callboard.words.events import EnvelopeReceived, decode_event
from callboard.words.skills import PersonCommand
from callboard.words.values import AgentRow, HostRow, Request, SessionRow

TAKEN_OVER_WITHIN = 30.0
"""Seconds that a process which takes over may need, from the leaving of the old host to its own row."""


class AttachedSession(OpenSession):
    """A session that another process hosts. `pid` is that process's, and after a take-over the next one's."""

    def __init__(
        self,
        row: SessionRow,
        places: Places,
        store: Store,
        observers: Sequence[Observer],
        approvers: Sequence[Approver],
    ) -> None:
        super().__init__(row, places, store, SessionBoard(row.id, self._row_changed), SystemClock())
        self.model = str(row.settings.get("model", row.model))
        self.pid = 0
        self._observers, self._approvers = observers, approvers
        self._states: dict[tuple[str, int], AgentState] = {}
        self._followed: set[tuple[str, int]] = set()
        self._asked: dict[str, anyio.CancelScope] = {}
        self._group: TaskGroup | None = None
        self._moved, self._gone, self._died = anyio.Event(), anyio.Event(), False
        self._skills: SkillLibrary | None = None
        self._host: HostRow | None = None
        """What the host says of itself; None: it has left, or has said nothing yet."""
        self._seen: set[LeaseHolder] = set()
        self._asked_to_leave: set[LeaseHolder] = set()

    def state(self, name: str, incarnation: int | None = None) -> AgentState | None:
        lives = [life for who, life in self._states if who == name and incarnation in (None, life)]
        return self._states[name, max(lives)] if lives else None

    async def say(self, text: str, to: str = "lead") -> None:
        await send_prompt(self._store, self.id, text, to=to, now=self._now, nonce=secrets.token_hex(8))

    def commands(self) -> Sequence[PersonCommand]:
        if self._skills is None:
            trust = standing(self.workspace, self.places.config)
            trusted, brought = trust.trusted, trust.brought
            files = FilePlaces(self.workspace, self.places.config, Path.home(), trusted=trusted, brought=brought)
            self._skills = SkillLibrary(files)
        return self._skills.commands()

    async def renew(self, *, carry: bool) -> None:
        row = self._board.agent("lead")
        life = row[0].incarnation if row else 1
        await self.command("new", text="carry" if carry else "")
        while not self._gone.is_set():
            moved, state = self._moved, self._states.get(("lead", life + 1))
            if state is not None and state.system:
                return
            await moved.wait()

    async def finished(self) -> End:
        """Wait until the host has left, then say how the session stands."""
        await self._gone.wait()
        lead, row = self.state("lead"), self._board.agent("lead")
        text = (lead.turn.text if lead.turn else lead.last_text) if lead else ""
        if self._died:
            why = (
                f"process {self.pid}, which hosted the session, has died: `callboard resume {self.id}` goes on with it"
            )
            return End(FAILED, text, why, self.usage(), self.team())
        code = await self._noted_code()
        told, why = exit_code_of(row[0] if row else None, lead, self.requests(pending_only=False))
        return End(code, text, why if code == told else "", self.usage(), self.team())

    async def _noted_code(self) -> int:
        """How the host said that its run ended; 0 when it just left."""
        row = await self._store.get(session_key(self.id))
        if row is None or row.value is None:
            return DONE
        now = SessionRow.model_validate_json(row.value)
        return now.exit_code or DONE if now.ended_at is not None and now.ended_at >= self._began else DONE

    # Following

    async def follow(
        self, holder: LeaseHolder, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Follow the session until cancelled; it is as it stands now when `task_status` is told."""
        self._board.take(*await self._store.keys(rows_prefix(self.id)))
        for row in self._board.agents():
            self._states[row.name, row.incarnation] = await recall(self._store, self.id, row.name, row.incarnation)
        self.pid = holder.pid
        async with anyio.create_task_group() as group:
            self._group = group
            for row in self._board.agents():
                self._row_changed("agent", row.name)
            for request in self.requests():
                self._row_changed("request", request.id)
            group.start_soon(self._heed_hosts)
            group.start_soon(self._follow_hosts, holder)
            task_status.started()
            async with self._store.watch(rows_prefix(self.id)) as rows:
                async for row in rows:
                    self._board.take(row, *rows.at_hand())

    def _row_changed(self, kind: str, name: str) -> None:
        if self._group is None:
            return
        if kind == "agent" and (found := self._board.agent(name)):
            key = (name, found[0].incarnation)
            if key not in self._states or self._states[key].ended is None:
                self._follow_once(found[0])
        elif kind == "request" and (asked := self._board.request(name)):
            self._heed(asked[0])

    def _follow_once(self, row: AgentRow) -> None:
        key = (row.name, row.incarnation)
        if self._group is not None and key not in self._followed:
            self._followed.add(key)
            self._group.start_soon(self._follow_agent, key)

    async def _follow_agent(self, key: tuple[str, int]) -> None:
        """The journal of one life, event by event, to its last."""
        state = self._states.setdefault(key, AgentState())
        stream = journal(self.id, *key)
        async with self._store.follow(stream, state.seq) as records:
            async for record in records:
                if self._take(key, stream, record).ended is not None:
                    return

    def _take(self, key: tuple[str, int], stream: str, record: Record) -> AgentState:
        state = self._states[key]
        if record.seq != state.seq + 1:
            raise StoreDamaged(f"{stream} has no readable record {state.seq + 1}: `callboard doctor` tells more")
        event = decode_event(record.data)
        state = self._states[key] = apply(state, event)
        for observer in self._observers:
            if isinstance(event, EnvelopeReceived):
                observer.on_mail(event.envelope)
            observer.on_event(key[0], record.seq, event)
        self._touched()
        return state

    def _touched(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()

    # Requests

    def _heed(self, request: Request) -> None:
        """A request is new, or has changed."""
        if request.status != "pending":
            scope = self._asked.pop(request.id, None)
            if scope is not None:
                scope.cancel()
        elif request.id not in self._asked and self._group is not None:
            scope = self._asked[request.id] = anyio.CancelScope()
            self._group.start_soon(self._ask_all, request, scope)

    async def _ask_all(self, request: Request, scope: anyio.CancelScope) -> None:
        with scope:
            async with anyio.create_task_group() as group:
                for approver in self._approvers:
                    group.start_soon(self._ask, approver, request)

    async def _ask(self, approver: Approver, request: Request) -> None:
        answer = await approver.answer(request)
        if answer is None:
            return
        answer = replace(answer, word=replace(answer.word, seen=request.digest))
        with anyio.CancelScope(shield=True):  # it was given: whoever gave it hears what came of it
            lost = await answer_request(self._store, self.id, request.id, answer, self._now)
            if lost is not None:
                answer.refused(lost)

    # The host

    async def _follow_hosts(self, holder: LeaseHolder) -> None:
        """From one host to the next: where a host leaves since another process takes over, that one is followed."""
        while True:
            self.pid = holder.pid
            self._died = await self._host_gone(holder)
            following = await self._next_host(holder)
            if following is None:
                break
            holder = following
            words = f"process {holder.pid} takes over the session from process {self.pid}; this screen follows it"
            for observer in self._observers:
                observer.on_delta("lead", Delta("notice", words))
        self._gone.set()
        self._touched()

    async def _host_gone(self, holder: LeaseHolder) -> bool:
        """Wait until the host has left. True: it has died; one that leaves in order takes its row away."""
        died = list[bool]()

        async def dies() -> None:
            await host_died(self._store, self.id, holder)
            row = await self._store.get(host_key(self.id))
            said = HostRow.model_validate_json(row.value) if row is not None and row.value is not None else None
            died.append(_hosts(said, holder))
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(dies)
            await self._until(lambda: holder in self._seen and not _hosts(self._host, holder))
            group.cancel_scope.cancel()
        return any(died)

    async def _next_host(self, before: LeaseHolder) -> LeaseHolder | None:
        """Who hosts it after a host that was asked to leave, or was held for dead; None where nobody took over."""
        if before in self._asked_to_leave:
            with anyio.move_on_after(TAKEN_OVER_WITHIN):
                await self._until(lambda: self._host is not None and not _hosts(self._host, before))
        return (
            LeaseHolder(self._host.pid, self._host.started) if self._host and not _hosts(self._host, before) else None
        )

    async def _heed_hosts(self) -> None:
        """The row of the session's host, as it changes."""
        async with self._store.watch(host_key(self.id)) as rows:
            async for row in rows:
                if row.key != host_key(self.id):
                    continue
                said = None if row.value is None else HostRow.model_validate_json(row.value)
                self._host = None if said is None or said.left else said
                if said is not None:
                    holder = LeaseHolder(said.pid, said.started)
                    self._seen.add(holder)
                    self._asked_to_leave |= {holder} if said.asked_by else set()
                self._touched()

    async def _until(self, so: Callable[[], bool]) -> None:
        while not so():
            await self._moved.wait()


def _hosts(row: HostRow | None, holder: LeaseHolder) -> bool:
    """Whether the row is of this process."""
    return row is not None and (row.pid, row.started) == (holder.pid, holder.started)


@asynccontextmanager
async def open_attached(
    options: Options, *, observers: Sequence[Observer] = (), approvers: Sequence[Approver] = ()
) -> AsyncGenerator[AttachedSession]:
    """Follow a session that another process hosts for as long as the block lasts.

    Raises `UsageError` when there is no such session, when nobody hosts it, and inside a tool's process.
    """
    refuse_inside_tool("attach to a session")
    places = find_places(options.workspace, writable=False)
    store = await open_store(places, load_settings(os.environ).settings.durability)
    try:
        row = await find_session(store, options.session)
        holder = await store.holder(host_lease(row.id))
        if holder is None:
            raise UsageError(f"no process hosts session {row.id}: `callboard resume {row.id}` goes on with it")
        session = AttachedSession(row, places, store, observers, approvers)
        async with _following(session, holder):
            yield session
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


@asynccontextmanager
async def _following(session: AttachedSession, holder: LeaseHolder) -> AsyncGenerator[None]:
    """What nobody can act on leaves as itself, not as a group."""
    try:
        async with anyio.create_task_group() as group:
            await group.start(session.follow, holder)
            yield
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failed:
        raise heart_of(failed) from failed


Attach = Literal["never", "if hosted", "only"]
"""What to do of a session that another process may host: host it or fail, host or follow it, follow it or fail."""


def opened(
    attach: Attach, options: Options, observers: Sequence[Observer], approvers: Sequence[Approver]
) -> AbstractAsyncContextManager[OpenSession]:
    """The session, hosted or followed as `attach` says."""
    ways = {"never": open_session, "if hosted": open_or_attach, "only": open_attached}
    return ways[attach](options, observers=observers, approvers=approvers)


@asynccontextmanager
async def open_or_attach(
    options: Options, *, observers: Sequence[Observer] = (), approvers: Sequence[Approver] = ()
) -> AsyncGenerator[OpenSession]:
    """Host a session, or follow it where another process hosts it. Raises what `open_session` raises."""
    async with AsyncExitStack() as stack:
        try:
            hosted = open_session(options, observers=observers, approvers=approvers)
            session: OpenSession = await stack.enter_async_context(hosted)
        except SessionHosted:
            attached = open_attached(options, observers=observers, approvers=approvers)
            session = await stack.enter_async_context(attached)
        yield session
