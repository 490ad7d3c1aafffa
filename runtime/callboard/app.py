"""The composition root: opens a session on a workspace, hosts its team, and hands faces what they may see and do.

    async with open_session(Options(Path("."), model="claude-..."), observers=[...]) as session:
        await session.say("Mend the failing test")
        end = await session.finished()

Nothing is decided here that a rule could decide; what is chosen here is chosen once (`opening.py`, `hosting.py`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import anyio
import anyio.to_thread

from callboard.adapters.archive import make_private
from callboard.adapters.clock import SystemClock
from callboard.adapters.logs import EventLog, log_file, log_metrics, logging_beside, logging_to
from callboard.assembly import find_places
from callboard.connecting import connecting
from callboard.core.names import schedule_key, session_key
from callboard.core.state import AgentState
from callboard.desks.serving import fires_again
from callboard.ending import DONE, FAILED, AgentSummary, End, exit_code_of, was_cut_short
from callboard.engine.hooks.registry import HookRegistry
from callboard.engine.host import Host
from callboard.engine.memory import recall
from callboard.engine.sessions import mark_ended, model_command, named, send_prompt
from callboard.engine.supervision.team import Team
from callboard.hosting import definitions_of, host_of, hosting
from callboard.opening import Opened, Options, open_row, wiring_of
from callboard.ports.mcp import Servers
from callboard.ports.store import Fence, Put, Store, Write
from callboard.ports.world import Approver, Observer
from callboard.sandboxing import launcher_of, with_told
from callboard.session import OpenSession
from callboard.taking_over import TakeOver, announced, take_lease
from callboard.taping import Wiring
from callboard.words.errors import UsageError
from callboard.words.schedules import Schedule
from callboard.words.skills import PersonCommand
from callboard.words.specs import AgentSpec
from callboard.words.values import Budget, SessionRow
from callboard.working import Work, work

__all__ = ["AgentSummary", "End", "OpenSession", "Options", "Session", "TakeOver", "open_session"]

BEGINS_WITHIN = 10.0
"""Seconds in which a lead that can begin has begun."""
GO_ON = "Go on where you stopped."
"""What `callboard resume` says for the person to a lead whose last turn was cut short."""


class Session(OpenSession):
    """A session that this process hosts, as a face sees it."""

    def __init__(self, opened: Opened, host: Host, team: Team, wiring: Wiring, *, cut_short: bool) -> None:
        super().__init__(opened.row, opened.places, host.ports.store, host.board, host.clock)
        self.model = wiring.chosen.name
        self._host, self._team, self._wiring, self._cut_short = host, team, wiring, cut_short
        self._notes = tuple(f"configuration: {one}" for one in opened.loaded.notes)
        self.refused: tuple[str, ...] = ()
        """Files of agents, skills and plugins that are not used as they stand, a line each."""
        self.level = 0
        """The sandbox level of its commands, 0 to 3."""
        self.with_schedules = False
        """It is not finished before its schedules have fired for the last time."""

    def state(self, name: str, incarnation: int | None = None) -> AgentState | None:
        return self._team.state(name, incarnation)

    async def say(self, text: str, to: str = "lead") -> None:
        await self._name_session(text)
        nonce = self._wiring.nonce(secrets.token_hex(8))
        await send_prompt(self._store, self.id, text, to=to, now=self._now, nonce=nonce)

    def commands(self) -> Sequence[PersonCommand]:
        source = self._host.ports.prompt_source
        return (*self._host.ports.skills.commands(), *(source.prompts() if source is not None else ()))

    async def add_schedule(self, schedule: Schedule) -> None:
        """A schedule of this session. Raises `Conflict` when there is one of its id."""
        await self._store.commit(Put(schedule_key(self.id, schedule.id), schedule.encode(), 0), fence=self._fence)

    async def go_on(self) -> None:
        """Go on with a turn that failed, reached a limit or was interrupted before this process hosted the session.
        What was merely cut off by the end of its process goes on by itself."""
        if self._cut_short:
            await self.say(GO_ON)

    async def work(self, asked: Work) -> tuple[str, str]:
        """Hand a piece of work to an agent and wait for its end: (outcome, last words). The same `call` is the same
        agent. Raises `UsageError`, `LimitReached`."""
        if await self.begun() is None:
            raise UsageError("the lead of this session has ended: start a new session")
        return await work(self._team, asked)

    async def commit(self, *writes: Write) -> None:
        """Write under the lease of this process. Raises what `Store.commit` raises."""
        await self._store.commit(*writes, fence=self._fence)

    @property
    def store(self) -> Store:
        """Where the session is kept."""
        return self._store

    @property
    def hooks(self) -> HookRegistry:
        """The hooks of the session: more can be added, and taken away again."""
        return self._host.ports.hooks

    async def take_model(self) -> None:
        """A resume that names another model than the lead asks: it asks that one from its next call on."""
        row, chosen = self._board.agent("lead"), self._wiring.chosen
        state = await recall(self._store, self.id, "lead", row[0].incarnation) if row else AgentState()
        if state.spec is not None and state.spec.model != chosen.name:
            command = model_command(chosen.name, chosen.limits[chosen.name])
            await self.command(command.action, text=command.text)

    async def renew(self, *, carry: bool) -> None:
        row = self._board.agent("lead")
        life = row[0].incarnation if row else 1
        await self.command("new", text="carry" if carry else "")
        await self._team.begun("lead", life + 1)

    async def begun(self) -> AgentSpec | None:
        """The lead's spec, once its life has its first records; None for one that has ended, or that does not begin."""
        row = self._board.agent("lead")
        if row is None or row[0].life == "stopped":
            return None
        with anyio.move_on_after(BEGINS_WITHIN):
            await self._team.begun("lead", row[0].incarnation)
        state = self.state("lead")
        return state.spec if state is not None else None

    async def finished(self) -> End:
        await self._team.quiet(self._fires_no_more if self.with_schedules else lambda: True)
        return self.end()

    def _fires_no_more(self) -> bool:
        return not any(fires_again(one) for one in self._board.schedules())

    def end(self) -> End:
        """How the session stands now, as the end of a run."""
        lead = self.state("lead")
        row = self._board.agent("lead")
        asked = [r for r in self.requests(pending_only=False) if (r.expires_at or r.created_at) >= self._began]
        code, why = exit_code_of(row[0] if row else None, lead, asked)
        crashed = [one.name for one in self._board.agents() if one.life == "crashed"]
        if crashed and code == DONE:
            code, why = FAILED, f"{', '.join(crashed)} crashed again and again: the session's log has the details"
        text = (lead.turn.text if lead.turn else lead.last_text) if lead else ""
        if lead and lead.last_reason == "overflow":
            why = f"{why}; `callboard resume {self.id} --carry` goes on in a fresh conversation with what matters"
        differs = self._wiring.verdict()
        if differs:
            code, why = code or FAILED, differs
        return End(code, text, why, self.usage(), self.team())

    async def _name_session(self, text: str) -> None:
        """The first words of the person stand in the session's row, for lists."""
        row = await self._store.get(session_key(self.id))
        if row is not None and row.value is not None:
            now = SessionRow.model_validate_json(row.value)
            if not now.prompt:
                put = Put(row.key, named(now, text).encode(), expected=row.revision)
                await self._store.commit(put, fence=self._fence)

    async def mark_ended(self, code: int) -> None:
        """Note in the session's row how this run ended."""
        row = await self._store.get(session_key(self.id))
        if row is not None and row.value is not None:
            now = SessionRow.model_validate_json(row.value)
            await self._store.commit(mark_ended(now, row.revision, self._now, code), fence=self._fence)

    @property
    def servers(self) -> Servers | None:
        return self._host.ports.servers

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self._notes, *self.refused)

    @property
    def _fence(self) -> Fence | None:
        return self._host.fence

    @property
    def _budget(self) -> Budget | None:
        return self._host.budget


@asynccontextmanager
async def open_session(
    options: Options, *, observers: Sequence[Observer] = (), approvers: Sequence[Approver] = ()
) -> AsyncGenerator[Session]:
    """Host a session, new or resumed, for as long as the block lasts; its journals stay for the next time.

    Raises the errors of `PersonCanAct` for what a person can mend, `SessionHosted` when another process hosts it and
    `SessionTakenOver` when another is to host it (`Options.take_over` of that one),
    and `NobodyCanAct` when the store is damaged, full or taken over: before the block, or out of it.
    """
    async with AsyncExitStack() as stack:
        opened = await open_row(options, find_places(options.workspace), stack)
        row, places = opened.row, opened.places
        lease = await take_lease(opened.store, row.id, options.take_over)
        mine = await stack.enter_async_context(announced(opened.store, row.id, lease, SystemClock().now()))
        make_private(places.session_data(row.id))
        wiring = await stack.enter_async_context(wiring_of(options, opened))
        launcher = await launcher_of(places, opened.loaded, row.id, attended=opened.attended, runs=opened.runs(options))
        opened = replace(opened, loaded=with_told(opened.loaded, launcher))
        read = await anyio.to_thread.run_sync(definitions_of, options, opened)
        servers = await connecting(options, opened, read.files, read.types)
        opened = replace(opened, loaded=replace(opened.loaded, notes=(*opened.loaded.notes, *servers.told)))
        host = await host_of(options, opened, wiring, lease, launcher, read)
        servers.into(host, opened, patient=options.mcp_wait or not opened.attended)
        log = places.session_data(row.id) if opened.replay else places.state / "log"
        logged = log_file if options.shared is not None else logging_beside if options.embedded else logging_to
        lines = EventLog(row.id, stack.enter_context(logged(log / f"{row.id}.jsonl")))
        host.ports = wiring.wrap(replace(host.ports, observers=(*observers, lines), approvers=approvers))
        cut_short = options.resume and not options.carry and await was_cut_short(host.ports.store, row.id)
        team = Team(host, os.getpid())
        await host.load()  # what a face asks at once, it is told
        session = Session(opened, host, team, wiring, cut_short=cut_short)
        session.level = launcher.level
        session.refused = read.told_at_first()
        session.with_schedules = options.with_schedules
        if options.resume and options.model is not None:
            await session.take_model()
        carries = options.resume and options.carry
        if carries:
            await session.command("new", text="carry")
        if options.resume and (carries or options.prompt is not None):
            await session.say(options.prompt or GO_ON)
        stack.callback(lambda: log_metrics(row.id, {one.name: one.metrics for one in session.team()}))
        async with hosting(team, wiring, mine, launcher, None if opened.replay else read, servers.servers):
            yield session
