"""What another process does to a session without hosting it: look at rows, answer requests, send words, keep schedules.

A desk attaches to the workspace's store; the host hears of each change by the store's doorbell. It appends to an
agent's journal in one case alone: an undo in a session that nobody hosts, under the session's lease.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio

from callboard.adapters.clock import SystemClock
from callboard.adapters.surroundings import WorkspaceSurroundings
from callboard.adapters.trust import read_brought
from callboard.assembly import Places, find_places, open_store, session_budget
from callboard.core.asking.decided import Decision
from callboard.core.asking.plans import AS_IT_STANDS, Word, moved
from callboard.core.asking.session_rules import Always
from callboard.core.budget.spending import Spending
from callboard.core.budget.tree import Node
from callboard.core.bus.receipts import Receipt, Traced, trace
from callboard.core.context.told.explain import EditTold, WindowMap, undoable
from callboard.core.context.told.metrics import Metrics, metrics_of, together
from callboard.core.names import host_lease, one_by_id, rows_prefix
from callboard.core.state import AgentState
from callboard.desks.persons import refuse_inside_tool
from callboard.desks.rules import RuleDesk
from callboard.desks.schedules import CronDesk
from callboard.desks.tasks import TaskDesk
from callboard.desks.team import TeamDesk
from callboard.ending import AgentSummary, summarise
from callboard.engine.asking.decided import decisions_of
from callboard.engine.asking.requests import answer_request
from callboard.engine.board import SessionBoard
from callboard.engine.bus.receipts import mail_of
from callboard.engine.explaining import edits_of, window_of
from callboard.engine.memory import recall
from callboard.engine.money.spending import session_budgets, session_spending
from callboard.engine.sessions import (
    Action,
    Command,
    find_session,
    model_command,
    send_command,
    send_prompt,
    sessions_of,
)
from callboard.engine.undoing import undo_answer, undo_unhosted
from callboard.ports.store import LeaseHolder, Store
from callboard.ports.world import Answer
from callboard.settings import Loaded, load_settings
from callboard.words.errors import PersonCanAct, UsageError
from callboard.words.schedules import Schedule
from callboard.words.specs import ModelLimits
from callboard.words.values import AgentRow, Budget, Request, SessionRow

UNDO_WAIT = 5.0
"""Seconds that an undo waits for the host's answer: it comes at once, unless a model call is under way."""


@dataclass(frozen=True, slots=True)
class Context:
    """What fills an agent's window, and what it and its session used so far."""

    window: WindowMap
    metrics: Metrics
    session: Metrics


class Desk:
    """One session of a workspace, as an outside process sees it. Rows are as they were when the desk was opened."""

    def __init__(self, store: Store, session: SessionRow, board: SessionBoard, budget: Budget | None = None) -> None:
        """`budget`: of the session, as its host has it; None: as the settings and the session's flags say."""
        self.session = session
        self._store, self._board, self._clock, self._budget = store, board, SystemClock(), budget
        self.cron = CronDesk(store, session.id, board)
        self.agents = TeamDesk(store, session.id, board)
        self.board = TaskDesk(store, session.id, board)
        self.rules = RuleDesk(store, session.id, board)

    async def team(self) -> list[AgentSummary]:
        """Every agent, with what its journal says it used."""
        found: list[AgentSummary] = []
        for row in self._board.agents():
            state = await recall(self._store, self.session.id, row.name, row.incarnation)
            found.append(summarise(row, state if state.spec is not None else None))
        return found

    def requests(self, *, pending_only: bool = True) -> list[Request]:
        return [r for r in self._board.requests() if not pending_only or r.status == "pending"]

    def schedules(self) -> list[Schedule]:
        return list(self._board.schedules())

    async def inbox(self, agent: str | None = None) -> list[Receipt]:
        """What became of the mail of the team, or of one agent, oldest first. Raises `UsageError` as `context` does."""
        rows = [row for row in self._board.agents() if row.kind != "subagent"] if agent is None else [self._row(agent)]
        return await mail_of(self._store, self.session.id, rows)

    async def trace(self, wanted: str) -> Traced:
        """Where an envelope came from, and what it caused. `wanted`: its id, or a beginning of it. Raises `UsageError`
        for one that fits no envelope of the session, or several."""
        known = await mail_of(self._store, self.session.id, self._board.agents())
        ids = dict.fromkeys(one.envelope.id for one in known)
        return trace(known, one_by_id("envelope", ids, wanted, where=f"of session {self.session.id}"))

    async def answer(
        self,
        request_id: str,
        status: Literal["approved", "rejected", "answered"],
        reason: str = "",
        word: Word = AS_IT_STANDS,
        always: Always | None = None,
    ) -> str | None:
        """Answer as the person. None: it counts; else why not. Raises `UsageError` inside a tool's process."""
        refuse_inside_tool("answer a request")
        answer = Answer(status, "person", reason, word, always)
        return await answer_request(self._store, self.session.id, request_id, answer, self._clock.now())

    async def moved(self, request: Request) -> str:
        """What has changed round a plan since it was submitted: another commit is checked out; empty when none is."""
        folder = str(request.payload.get("folder") or "")
        if request.kind != "plan" or not folder or not request.payload.get("base"):
            return ""
        around = WorkspaceSurroundings(Path(self.session.workspace), os.environ)
        return moved(request, await around.commit(folder, request.id))

    async def send(self, text: str, to: str = "lead") -> None:
        """A person's words. Raises `UsageError` for an unknown agent, and inside a tool's process."""
        refuse_inside_tool("speak as the person")
        nonce = secrets.token_hex(8)
        await send_prompt(self._store, self.session.id, text, to=to, now=self._clock.now(), nonce=nonce)

    async def host(self) -> int | None:
        """The process that hosts the session now; None: no process does."""
        holder = await self._store.holder(host_lease(self.session.id))
        return None if holder is None else holder.pid

    async def command(self, action: Action, to: str = "lead", text: str = "") -> None:
        """Interrupt, stop or compact an agent."""
        refuse_inside_tool(f"{action} an agent")
        nonce = secrets.token_hex(8)
        await send_command(self._store, self.session.id, Command(action, to, text), now=self._clock.now(), nonce=nonce)

    async def context(self, agent: str = "lead") -> Context:
        """What fills an agent's window. Raises `UsageError` for an unknown agent, or one that has not begun."""
        _, state = await self._agent(agent)
        team = [one.metrics for one in await self.team()]
        return Context(await window_of(self._store, state), metrics_of(state), together(team))

    async def cost(self) -> Spending:
        """What the session spent so far, by the journals of all its agents."""
        return await session_spending(self._store, self.session.id, self._board.agents())

    async def budgets(self) -> tuple[Node, ...]:
        """The budgets that are set for the session, its agents and schedules, with what was used of each."""
        budget = self._session_budget() if self._budget is None else self._budget
        return await session_budgets(self._store, self.session.id, self._board, self._clock, budget)

    async def use_model(self, name: str, agent: str = "lead") -> None:
        """Have an agent ask this model from its next call on. Raises `UnknownModel` for one whose limits or prices are
        not known, and `UsageError` for one that this session's service does not have, or an unknown agent."""
        refuse_inside_tool("choose a model")
        _, state = await self._agent(agent)
        limits = state.me.models.get(name) if state.spec is not None else None
        command = model_command(name, limits or self._limits_of(name, state), agent)
        nonce, now = secrets.token_hex(8), self._clock.now()
        await send_command(self._store, self.session.id, command, now=now, nonce=nonce)

    def _limits_of(self, name: str, state: AgentState) -> ModelLimits:
        service, _, file = str(self.session.settings.get("model", self.session.model)).partition(":")
        if file:
            known = ", ".join(state.me.models) if state.spec is not None else ""
            raise UsageError(f"a {service} has no model {name!r}; its file has: {known or 'none yet'}")
        if ":" in name:
            raise UsageError(f"{name} is another service; a session keeps its own. Begin one: callboard --model {name}")
        return self._settings().settings.limits_of(name)

    def _session_budget(self) -> Budget:
        return session_budget(self._settings(), self.session.settings.get("max_cost_usd"))

    def _settings(self) -> Loaded:
        """As the session's host has them, as far as another process can know."""
        kept = self.session.settings
        workspace = Path(self.session.workspace)
        brought = read_brought(workspace)  # what the host trusted holds while it is still the same
        trusted, flags = kept.get("trust") == brought.digest, kept.get("flags")
        return load_settings(os.environ, workspace=workspace, trusted=trusted, flags=flags, brought=brought)

    async def decisions(self, agent: str | None = None) -> list[Decision]:
        """What was decided on all agents' calls, or on one's, oldest first. Raises `UsageError` as `context` does."""
        rows = self._board.agents() if agent is None else [self._row(agent)]
        return await decisions_of(self._store, self.session.id, rows)

    async def edits(self, agent: str = "lead") -> Sequence[EditTold]:
        """Every edit of an agent's view, oldest first. Raises as `context` does."""
        _, state = await self._agent(agent)
        return await edits_of(self._store, state)

    async def undo(self, edits: Sequence[int], agent: str = "lead", wait: float = UNDO_WAIT) -> EditTold | None:
        """Take edits back, by their journal positions: by the host, or at once where there is none.

        None: the host takes them back once a model call that is under way has ended. Raises `UsageError` for what is
        no edit, `PersonCanAct` with the reason when it is refused.
        """
        refuse_inside_tool("take an edit back")
        row, state = await self._agent(agent)
        wanted = undoable(await edits_of(self._store, state), edits)
        if state.ended is not None:
            raise UsageError(f"{agent} has ended: nothing will be sent of its window any more")
        command = Command("undo", agent, " ".join(map(str, wanted)))
        nonce, now = secrets.token_hex(8), self._clock.now()
        envelope = await send_command(self._store, self.session.id, command, now=now, nonce=nonce)
        await self._undo_unhosted(row)
        seq = None
        with anyio.move_on_after(wait) as waiting:
            seq = await undo_answer(self._store, row, self.session.id, state.seq, envelope)
        if waiting.cancelled_caught:
            return None
        answer = next((one for one in await self.edits(agent) if one.seq == seq), None)
        if answer is None or answer.refused:
            raise PersonCanAct(f"not taken back: {answer.why if answer else f'{agent} has ended'}")
        return answer

    async def _undo_unhosted(self, row: AgentRow) -> None:
        """Do it here, under the session's lease, if no process hosts the session."""
        lease = await self._store.acquire(host_lease(self.session.id))
        if isinstance(lease, LeaseHolder):
            return
        try:
            await undo_unhosted(self._store, lease.fence, self.session.id, row, self._clock.now())
        finally:
            with anyio.CancelScope(shield=True):
                await lease.release()

    async def _agent(self, name: str) -> tuple[AgentRow, AgentState]:
        """An agent and its state by its journal. Raises `UsageError` naming those there are."""
        row = self._row(name)
        return row, await recall(self._store, self.session.id, name, row.incarnation)

    def _row(self, name: str) -> AgentRow:
        """Raises `UsageError` naming those there are."""
        found = self._board.agent(name)
        if found is None:
            known = ", ".join(one.name for one in self._board.agents())
            raise UsageError(f"there is no agent {name!r} in session {self.session.id}; there are: {known or 'none'}")
        return found[0]


@asynccontextmanager
async def open_desk(workspace: Path, session: str | None = None) -> AsyncGenerator[Desk]:
    """A desk at the newest session of a workspace, or at the one named. Raises `UsageError` when there is none."""
    places = find_places(workspace, writable=False)
    async with _open(places) as store:
        row = await find_session(store, session)
        board = SessionBoard(row.id, lambda kind, name: None)
        board.take(*await store.keys(rows_prefix(row.id)))
        yield Desk(store, row, board)


async def list_sessions(workspace: Path) -> list[SessionRow]:
    """All sessions of a workspace, newest first."""
    places = find_places(workspace, writable=False)
    if not _has_store(places):
        return []
    async with _open(places) as store:
        return list(await sessions_of(store))


def _has_store(places: Places) -> bool:
    return (places.state / "callboard.db").exists()


@asynccontextmanager
async def _open(places: Places) -> AsyncGenerator[Store]:
    if not _has_store(places):
        raise UsageError(f"there is no session in {places.workspace} yet: start one with `callboard run`")
    loaded = load_settings(os.environ)
    store = await open_store(places, loaded.settings.durability)
    try:
        yield store
    finally:
        await store.aclose()
