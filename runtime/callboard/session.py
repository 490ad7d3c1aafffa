"""A session that is open in this process, hosted by it or by another: what a face may see of it and do to it."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Literal

from callboard import assembly
from callboard.assembly import Places
from callboard.core.asking.plans import AS_IT_STANDS, Word
from callboard.core.asking.session_rules import Always
from callboard.core.recovery.turns import model_in_use
from callboard.core.state import AgentState
from callboard.desks.desk import Desk
from callboard.ending import AgentSummary, End, summarise
from callboard.engine.asking.requests import answer_request
from callboard.engine.board import SessionBoard
from callboard.engine.sessions import Action, Command, send_command, sessions_of
from callboard.ports.mcp import Servers
from callboard.ports.store import Fence, Store
from callboard.ports.world import Answer, Clock
from callboard.words.mcp import ServerNow
from callboard.words.schedules import Schedule
from callboard.words.skills import PersonCommand
from callboard.words.values import Budget, Request, SessionRow, Task, ToolCall, Usage


class OpenSession(ABC):
    """What `Session` and `AttachedSession` share. `began`: what went unanswered before (Unix seconds) is not its
    fault."""

    def __init__(self, row: SessionRow, places: Places, store: Store, board: SessionBoard, clock: Clock) -> None:
        self.id, self.places = row.id, places
        self.model = row.model
        self._row, self._store, self._board, self._clock = row, store, board, clock
        self._began = clock.now()

    @property
    def workspace(self) -> Path:
        return self.places.workspace

    @abstractmethod
    def state(self, name: str, incarnation: int | None = None) -> AgentState | None:
        """The state of an agent of that name, its newest life if none is named; None where it is not known here."""

    @abstractmethod
    async def say(self, text: str, to: str = "lead") -> None:
        """A person's words. Raises `UsageError` for an unknown agent."""

    @abstractmethod
    async def renew(self, *, carry: bool) -> None:
        """Begin the lead's conversation anew; `carry`: with the person's words, the state and a hand-off note."""

    @abstractmethod
    async def finished(self) -> End:
        """Wait until nothing is left to do, then say how the session ended."""

    async def command(self, action: Action, to: str = "lead", text: str = "") -> None:
        """`interrupt` a turn, `stop` an agent, `compact` its context (`text`: what to keep)."""
        nonce = secrets.token_hex(8)
        await send_command(self._store, self.id, Command(action, to, text), now=self._now, nonce=nonce)

    async def interrupt(self, name: str | None = None) -> None:
        """Stop the turn of the lead, and of everyone who is at work: the lead waits for them. `name`: of this agent
        alone, and of the subagents that it started."""
        for row in self._board.agents():
            at_work = row.life in ("starting", "working", "waiting")
            mine = row.name == name or (row.kind == "subagent" and row.parent == name and at_work)
            if mine if name is not None else row.name == "lead" or at_work:
                await self.command("interrupt", to=row.name)

    async def use_model(self, name: str, to: str = "lead") -> None:
        """Have an agent ask this model from its next call on. Raises `UnknownModel` for one whose limits or prices are
        not known, and `UsageError` for one that the session's service does not have, or an unknown agent."""
        await self.desk.use_model(name, to)

    def model_of(self, name: str = "lead") -> str:
        """The model that an agent asks at the moment, a fallback included; the session's, where it is not known."""
        state = self.state(name)
        return self.model if state is None or state.spec is None else model_in_use(state.recovery, state.spec)

    def models_of(self, name: str = "lead") -> tuple[str, ...]:
        """The models that are known to an agent, with limits and prices."""
        state = self.state(name)
        return () if state is None or state.spec is None else tuple(state.spec.models)

    async def sessions(self) -> Sequence[SessionRow]:
        """All sessions of this workspace, newest first."""
        return await sessions_of(self._store)

    @property
    def desk(self) -> Desk:
        """The same session as another process sees it: windows and edits, as the journals have them."""
        return Desk(self._store, self._row, self._board, self._budget)

    async def answer(
        self,
        request_id: str,
        status: Literal["approved", "rejected", "answered"],
        reason: str = "",
        word: Word = AS_IT_STANDS,
        always: Always | None = None,
    ) -> str | None:
        """Answer a request as the person. None: it counts; else why it does not."""
        answer = Answer(status, "person", reason, word, always)
        return await answer_request(self._store, self.id, request_id, answer, self._now, self._fence)

    async def moved(self, request: Request) -> str:
        """What has changed round a plan since it was submitted; empty: nothing."""
        return await self.desk.moved(request)

    def team(self) -> list[AgentSummary]:
        """Every agent that is known here, the lead first."""
        return [summarise(row, self.state(row.name, row.incarnation)) for row in self._board.agents()]

    def usage(self) -> Usage:
        """What all agents have used."""
        return reduce(Usage.plus, (one.usage for one in self.team()), Usage())

    def tasks(self) -> list[Task]:
        return list(self._board.tasks())

    def requests(self, *, pending_only: bool = True) -> list[Request]:
        return [r for r in self._board.requests() if not pending_only or r.status == "pending"]

    def schedules(self) -> list[Schedule]:
        return list(self._board.schedules())

    @abstractmethod
    def commands(self) -> Sequence[PersonCommand]:
        """What a person may say with a slash: skills, command files, prompts of MCP servers. `say` takes them as they
        are typed."""

    def call(self, agent: str, call: str) -> ToolCall | None:
        """A tool call that an agent has under way, by our id: also one that was begun before a resume."""
        states = (self.state(row.name, row.incarnation) for row in self._board.agents() if row.name == agent)
        return next((one.call for state in states if state for one in state.calls if one.call.id == call), None)

    @property
    def servers(self) -> Servers | None:
        """The MCP servers that this process holds for it; None: there are none, or another process hosts it."""
        return None

    def servers_now(self) -> Sequence[ServerNow]:
        """How they stand, by name."""
        return self.servers.now() if self.servers is not None else ()

    @property
    def damage(self) -> tuple[str, ...]:
        """What its store set aside as damaged, and what to do, a line each; empty when it is sound."""
        return assembly.damage_told(self._store)

    @property
    def notes(self) -> tuple[str, ...]:
        """Which settings and files are heeded in another way than they say, or not at all, a line each with what it is
        about; empty where nothing is hosted."""
        return ()

    @property
    def _fence(self) -> Fence | None:
        """Of the lease under which this process writes; None: it hosts nothing."""
        return None

    @property
    def _budget(self) -> Budget | None:
        """Of the session, as its host has it; None: as the settings and the session's flags say."""
        return None

    @property
    def _now(self) -> float:
        return self._clock.now()
