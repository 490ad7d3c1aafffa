"""The composition root: opens a session on a workspace, hosts its team, and hands faces what they may see and do.

    async with open_session(Options(Path("."), model="claude-..."), observers=[...]) as session:
        await session.say("Mend the failing test")
        end = await session.finished()

Nothing is decided here that a rule could decide; what is chosen here is chosen once.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Literal

import anyio

from callboard import assembly
from callboard.adapters.agent_files import load_agents
from callboard.adapters.archive import FileArchive, make_private
from callboard.adapters.clock import SystemClock, SystemDice
from callboard.adapters.files import Places as FilePlaces
from callboard.adapters.judging import PolicyJudge, parse_rules
from callboard.adapters.launcher import ShellLauncher
from callboard.adapters.logs import EventLog, log_metrics, logging_to
from callboard.adapters.memory import MemoryStore
from callboard.adapters.prompting import WorkspacePrompts
from callboard.adapters.skill_files import SkillLibrary
from callboard.adapters.surroundings import WorkspaceSurroundings
from callboard.assembly import AgentTypes, Places, all_tools, find_places, open_store, own_stages, session_budget
from callboard.core.names import host_lease, schedule_key, session_key
from callboard.core.permission.values import Floor
from callboard.desk import Desk
from callboard.ending import DONE, FAILED, AgentSummary, End, exit_code_of, summarise, was_cut_short
from callboard.engine.governor import Governors
from callboard.engine.host import Host, Ports
from callboard.engine.requests import answer_request
from callboard.engine.sessions import (
    Action,
    Command,
    create_session,
    find_session,
    mark_ended,
    named,
    prompt_envelope,
    send_command,
    send_prompt,
)
from callboard.engine.team import Team
from callboard.hooking import fill_registry
from callboard.ports.store import Lease, LeaseHolder, Put, Store
from callboard.ports.world import Answer, Approver, Observer
from callboard.settings import Loaded, load_settings
from callboard.taping import CASSETTE, Replay, Wiring, find_replay, wired, wired_for_replay
from callboard.words.errors import SessionHosted, UsageError, heart_of
from callboard.words.values import Json, Request, Schedule, SessionRow, Task, ToolCall, Usage

__all__ = ["AgentSummary", "End", "Options", "Session", "open_session"]


@dataclass(frozen=True, slots=True)
class Options:
    """What a person asked for. `flags` are settings by dotted name (`permission.mode`)."""

    workspace: Path
    flags: Mapping[str, object] = field(default_factory=dict[str, object])
    session: str | None = None
    """Which session to resume; None with `resume`: the newest."""
    resume: bool = False
    trust: bool = False
    record: Path | None = None
    live_tools: bool = False
    """A replay runs the tools, instead of taking their recorded results."""
    model: str | None = None
    """A model's name, `rehearsal:FILE` or `cassette:FILE`; None: as the session or the settings say."""
    attended: bool = False
    """A person is there to answer."""
    disallowed: tuple[str, ...] = ()
    """Tools that the lead does not have."""
    appended: str = ""
    """A text at the end of every system prompt."""
    max_cost_usd: float | None = None
    """For the whole session."""
    prompt: str | None = None
    """What the person says first: a new session begins to exist with it, a resumed one hears it."""
    carry: bool = False
    """With `resume`: the lead goes on in a fresh conversation, with what matters of the one before."""
    governors: Governors | None = None
    """Those of the process, where it hosts several sessions; None: this session has one of its own."""


GO_ON = "Go on where you stopped."
"""What `callboard resume` says for the person to a lead whose last turn was cut short."""


class Session:
    """A hosted session, as a face sees it."""

    def __init__(self, host: Host, team: Team, places: Places, wiring: Wiring, *, cut_short: bool) -> None:
        self.id, self.model, self.places = host.session, wiring.chosen.name, places
        self._host, self._team, self._wiring, self._cut_short = host, team, wiring, cut_short
        self._store, self._began = host.ports.store, host.clock.now()  # what went unanswered before is not its fault

    @property
    def workspace(self) -> Path:
        return self.places.workspace

    async def say(self, text: str, to: str = "lead") -> None:
        """A person's words. Raises `UsageError` for an unknown agent."""
        await self._name_session(text)
        nonce = self._wiring.nonce(secrets.token_hex(8))
        await send_prompt(self._store, self.id, text, to=to, now=self._now, nonce=nonce)

    async def add_schedule(self, schedule: Schedule) -> None:
        """A schedule of this session. Raises `Conflict` when there is one of its id."""
        await self._store.commit(Put(schedule_key(self.id, schedule.id), schedule.encode(), 0), fence=self._host.fence)

    async def go_on(self) -> None:
        """Go on with a turn that failed, reached a limit or was interrupted before this process hosted the session.
        What was merely cut off by the end of its process goes on by itself."""
        if self._cut_short:
            await self.say(GO_ON)

    async def renew(self, *, carry: bool) -> None:
        """Begin the lead's conversation anew; `carry`: with the person's words, the state and a hand-off note."""
        row = self._host.board.agent("lead")
        life = row[0].incarnation if row else 1
        await self.command("new", text="carry" if carry else "")
        await self._team.begun("lead", life + 1)

    async def command(self, action: Action, to: str = "lead", text: str = "") -> None:
        """`interrupt` a turn, `stop` an agent, `compact` its context (`text`: what to keep)."""
        nonce = secrets.token_hex(8)
        await send_command(self._store, self.id, Command(action, to, text), now=self._now, nonce=nonce)

    async def interrupt(self) -> None:
        """Stop the turn of the lead, and of everyone who is at work: the lead waits for them."""
        for row in self._host.board.agents():
            if row.name == "lead" or row.life in ("starting", "working", "waiting"):
                await self.command("interrupt", to=row.name)

    @property
    def desk(self) -> Desk:
        """The same session as another process sees it: windows and edits, as the journals have them."""
        row = SessionRow(id=self.id, workspace=str(self.workspace), created_at=self._began)
        return Desk(self._store, row, self._host.board, self._host.budget)

    async def answer(
        self, request_id: str, status: Literal["approved", "rejected", "answered"], reason: str = ""
    ) -> str | None:
        """Answer a request as the person. None: it counts; else why it does not."""
        answer = Answer(status, "person", reason)
        return await answer_request(self._store, self.id, request_id, answer, self._now, self._host.fence)

    async def finished(self) -> End:
        """Wait until nothing is left to do, then say how the session ended."""
        await self._team.quiet()
        return self.end()

    def end(self) -> End:
        """How the session stands now, as the end of a run."""
        lead = self._team.state("lead")
        row = self._host.board.agent("lead")
        asked = [r for r in self.requests(pending_only=False) if (r.expires_at or r.created_at) >= self._began]
        code, why = exit_code_of(row[0] if row else None, lead, asked)
        crashed = [one.name for one in self._host.board.agents() if one.life == "crashed"]
        if crashed and code == DONE:
            code, why = FAILED, f"{', '.join(crashed)} crashed again and again: the session's log has the details"
        text = (lead.turn.text if lead.turn else lead.last_text) if lead else ""
        if lead and lead.last_reason == "overflow":
            why = f"{why}; `callboard resume {self.id} --carry` goes on in a fresh conversation with what matters"
        differs = self._wiring.verdict()
        if differs:
            code, why = code or FAILED, differs
        return End(code, text, why, self.usage(), self.team())

    def team(self) -> list[AgentSummary]:
        """Every agent that lived in this process, the lead first."""
        return [summarise(row, self._team.state(row.name, row.incarnation)) for row in self._host.board.agents()]

    def usage(self) -> Usage:
        """What all agents have used."""
        return reduce(Usage.plus, (one.usage for one in self.team()), Usage())

    def tasks(self) -> list[Task]:
        return list(self._host.board.tasks())

    def requests(self, *, pending_only: bool = True) -> list[Request]:
        return [r for r in self._host.board.requests() if not pending_only or r.status == "pending"]

    def call(self, agent: str, call: str) -> ToolCall | None:
        """A tool call that an agent has under way, by our id: also one that was begun before a resume."""
        states = (self._team.state(row.name, row.incarnation) for row in self._host.board.agents() if row.name == agent)
        return next((one.call for state in states if state for one in state.calls if one.call.id == call), None)

    @property
    def damage(self) -> tuple[str, ...]:
        """What its store set aside as damaged, and what to do, a line each; empty when it is sound."""
        return assembly.damage_told(self._store)

    def schedules(self) -> list[Schedule]:
        return list(self._host.board.schedules())

    async def _name_session(self, text: str) -> None:
        """The first words of the person stand in the session's row, for lists."""
        row = await self._store.get(session_key(self.id))
        if row is not None and row.value is not None:
            now = SessionRow.model_validate_json(row.value)
            if not now.prompt:
                put = Put(row.key, named(now, text).encode(), expected=row.revision)
                await self._store.commit(put, fence=self._host.fence)

    async def mark_ended(self, code: int) -> None:
        """Note in the session's row how this run ended."""
        row = await self._store.get(session_key(self.id))
        if row is not None and row.value is not None:
            now = SessionRow.model_validate_json(row.value)
            await self._store.commit(mark_ended(now, row.revision, self._now, code), fence=self._host.fence)

    @property
    def _now(self) -> float:
        return self._host.clock.now()


@asynccontextmanager
async def open_session(
    options: Options, *, observers: Sequence[Observer] = (), approvers: Sequence[Approver] = ()
) -> AsyncGenerator[Session]:
    """Host a session, new or resumed, for as long as the block lasts; its journals stay for the next time.

    Raises the errors of `PersonCanAct` for what a person can mend, `SessionHosted` when another process hosts it,
    and `NobodyCanAct` when the store is damaged, full or taken over: before the block, or out of it.
    """
    async with AsyncExitStack() as stack:
        opened = await _open(options, find_places(options.workspace), stack)
        row, places = opened.row, opened.places
        lease = await _host_lease(opened.store, row.id)
        stack.push_async_callback(lease.release)
        make_private(places.session_data(row.id))
        wiring = await stack.enter_async_context(_wired(options, opened))
        host = await _host(options, opened, wiring, lease)
        log = places.session_data(row.id) if opened.replay else places.state / "log"
        stack.enter_context(logging_to(log / f"{row.id}.jsonl"))
        host.ports = wiring.wrap(replace(host.ports, observers=(*observers, EventLog(row.id)), approvers=approvers))
        cut_short = options.resume and not options.carry and await was_cut_short(host.ports.store, row.id)
        team = Team(host, os.getpid())
        await host.load()  # what a face asks at once, it is told
        session = Session(host, team, places, wiring, cut_short=cut_short)
        carries = options.resume and options.carry
        if carries:
            await session.command("new", text="carry")
        if options.resume and (carries or options.prompt is not None):
            await session.say(options.prompt or GO_ON)
        stack.callback(lambda: log_metrics(row.id, {one.name: one.metrics for one in session.team()}))
        async with _hosting(team, wiring):
            yield session


@dataclass(frozen=True)
class _Opened:
    """A session before anyone hosts it."""

    places: Places
    row: SessionRow
    store: Store
    loaded: Loaded
    attended: bool
    """Whether a person is there to answer, or was when it was recorded."""
    replay: Replay | None = None


async def _open(options: Options, places: Places, stack: AsyncExitStack) -> _Opened:
    """The session to be hosted: a replay, a new one or the one to be resumed. Raises `UsageError` for two at once."""
    flags = {name: value for name, value in options.flags.items() if value is not None}
    loaded = load_settings(os.environ, workspace=places.workspace, trusted=options.trust, flags=flags)
    replay = await find_replay(options.model or ("" if options.resume else loaded.settings.model), stack)
    if options.record is not None and (replay or options.resume):
        raise UsageError("--record goes with a new session: one is recorded from its beginning")
    if replay is None:
        return await _open_row(options, places, loaded, stack)
    if options.resume:
        raise UsageError("a replay is a session of its own, which begins anew: leave --continue and --resume out")
    store = MemoryStore()
    stack.push_async_callback(store.aclose)
    row = SessionRow(
        id=replay.session,
        workspace=str(places.workspace),
        created_at=SystemClock().now(),
        model=f"{CASSETTE}:{replay.file}",
        settings={"max_cost_usd": options.max_cost_usd},
    )
    attended = options.attended if options.live_tools else replay.attended
    return _Opened(replace(places, data=replay.data), row, store, loaded, attended, replay)


def _wired(options: Options, opened: _Opened) -> AbstractAsyncContextManager[Wiring]:
    """The model of the session, with what records or replays it."""
    places, row = opened.places, opened.row
    if opened.replay is not None:
        return wired_for_replay(opened.replay, opened.loaded, places, options.live_tools)
    model = str(row.settings["model"])
    return wired(model, opened.loaded, places, row.id, options.record, options.attended)


async def _open_row(options: Options, places: Places, loaded: Loaded, stack: AsyncExitStack) -> _Opened:
    """The session's row, a new one or the one to be resumed, with the store and the settings in force."""
    flags = {name: value for name, value in options.flags.items() if value is not None}
    store = await open_store(places, loaded.settings.durability)
    stack.push_async_callback(store.aclose)
    if not options.resume:
        model = options.model or loaded.settings.model
        settings = {"model": model, "flags": flags, "trust": options.trust, "max_cost_usd": options.max_cost_usd}
        now = SystemClock().now()
        name = datetime.fromtimestamp(now, UTC).strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)
        row = SessionRow(id=name, workspace=str(places.workspace), created_at=now, model=model, settings=settings)
        return _Opened(places, row, store, loaded, options.attended)
    row = await find_session(store, options.session)
    kept = {**row.settings.get("flags", {}), **flags}  # what the session was begun with, and what is said now
    loaded = load_settings(os.environ, workspace=places.workspace, trusted=options.trust, flags=kept)
    update: Json = {**row.settings, "flags": kept, "model": options.model or row.settings.get("model", row.model)}
    if options.max_cost_usd is not None:
        update["max_cost_usd"] = options.max_cost_usd
    return _Opened(places, row.model_copy(update={"settings": update}), store, loaded, options.attended)


async def _host_lease(store: Store, session: str) -> Lease:
    """The right to host this session. Raises `SessionHosted` with the process that has it."""
    lease = await store.acquire(host_lease(session))
    if isinstance(lease, LeaseHolder):
        raise SessionHosted(
            f"session {session} is hosted by process {lease.pid}: use `callboard plans`, `approve` and `team` beside "
            "it, or stop that process first",
            lease.pid,
        )
    return lease


async def _host(options: Options, opened: _Opened, wiring: Wiring, lease: Lease) -> Host:
    """Everything that the agents of the session share; a new session gets its first records."""
    places, row, store, loaded = opened.places, opened.row, opened.store, opened.loaded
    settings = loaded.settings
    files = FilePlaces(workspace=places.workspace, config=places.config, home=Path.home(), trusted=options.trust)
    definitions = load_agents(files).items
    types = AgentTypes(definitions, loaded, wiring.chosen, opened.attended)
    spec = types.lead("lead", options.disallowed)
    kept = await store.get(session_key(row.id))
    if kept is not None and options.max_cost_usd is not None:  # a later resume keeps it
        await store.commit(Put(kept.key, row.encode(), expected=kept.revision), fence=lease.fence)
    elif kept is None:
        first = None
        if options.prompt is not None:
            row = named(row, options.prompt)
            nonce = wiring.nonce(secrets.token_hex(8))
            first = prompt_envelope(row.id, options.prompt, now=SystemClock().now(), nonce=nonce)
        await create_session(store, row, spec, lease.fence, first)
    permission = settings.permission
    floor = Floor(frozenset(permission.never), frozenset(permission.always_ask), permission.classic_dd)
    skills = SkillLibrary(files)
    ports = Ports(
        store=store,
        model=wiring.chosen.model,
        clock=SystemClock(),
        dice=SystemDice(),
        tools=all_tools(types.descriptions(), places.workspace),
        judge=PolicyJudge(
            parse_rules(permission.allow, "permission.allow"),
            parse_rules(permission.ask, "permission.ask"),
            parse_rules(permission.deny, "permission.deny"),
            floor,
        ),
        surroundings=WorkspaceSurroundings(places.workspace, os.environ),
        prompts=WorkspacePrompts(places.workspace, skills, options.appended, wiring.facts),
        archive=FileArchive(places.workspace, places.session_data(row.id), (places.state, places.config)),
        launcher=ShellLauncher(places.workspace, os.environ),
        skills=skills,
        hooks=fill_registry(loaded, places.workspace, dict(os.environ), trusted=options.trust),
        stages=own_stages(loaded, places),
        governor=(options.governors or Governors(SystemClock(), settings.rate.calls_at_once)).of(wiring.chosen.key),
    )
    budget = session_budget(loaded, row.settings.get("max_cost_usd"))
    return Host(row.id, ports, lease.fence, types.spawned, settings.team.max_agents, budget, types.budget_of)


@asynccontextmanager
async def _hosting(team: Team, wiring: Wiring) -> AsyncGenerator[None]:
    """The team lives while the block lasts. What nobody can act on leaves as itself, not as a group."""
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(team.run, wiring.schedules)
            group.start_soon(wiring.feed, team.host)
            yield
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failed:
        raise heart_of(failed) from failed
