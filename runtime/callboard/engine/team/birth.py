"""Births of subagents: row, assignment, start, prompt, and the beginning of the turn in one commit.

The call that waits for a subagent composes its first records before the subagent exists, and commits them with its row.
A call that is cancelled before that commit leaves nothing. After it, the agent is on the board, and lives like any
other agent with a journal: a later process resumes it. Its life in this process continues from the object that was made
here, so that nothing is read or composed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

import anyio

from callboard.core.agent.decide import decide
from callboard.core.agent.state import AgentState
from callboard.core.agent.turn_start import first_records
from callboard.core.keys import agent_key, journal, mailbox
from callboard.core.team.lifecycle import row_after
from callboard.engine.agent_lock import AgentLock
from callboard.engine.agent_runtime import AgentRuntime, Begin
from callboard.engine.facts import facts_of
from callboard.engine.operations.mcp_tools import has_own_servers
from callboard.engine.operations.prompt import compose_first_prompt, store_prompt
from callboard.engine.runtime import SessionRuntime
from callboard.ports.environment import PromptParts
from callboard.ports.notifier import Latch
from callboard.ports.store import Append, Put
from callboard.types.agent_spec import AgentSpec
from callboard.types.events import AgentStarted, Event, PromptSet
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import AgentRow, Envelope
from callboard.types.steps import Step, Wait


@dataclass(slots=True)
class _PendingBirth:
    over: Latch = field(default_factory=Latch)
    """Event that is set when the commit has succeeded or failed."""
    agent: AgentRuntime | None = None


class Births:
    """Subagents of this process between the commit of their birth and the beginning of their life."""

    def __init__(self, runtime: SessionRuntime, lock_of: Callable[[AgentRow], AgentLock], begin: Begin) -> None:
        self._runtime = runtime
        self._begin = begin
        self._lock_of = lock_of
        self._births: dict[tuple[str, int], _PendingBirth] = {}

    async def create(self, row: AgentRow, spec: AgentSpec, assignment: Envelope) -> bool:
        """Commit the birth, unless the agent exists. Cancellation before the commit leaves nothing.

        Return False, and do nothing, for an agent that brings servers: they end with its life, so it begins by itself.
        Raises the exceptions of `Store.commit`: `Conflict` if another process was faster.
        """
        runtime = self._runtime
        if has_own_servers(runtime, spec):
            return False
        parts = await compose_first_prompt(runtime, spec)
        prompt = await store_prompt(runtime, parts)
        # The store finishes a commit although the call was cancelled. Without the shield the agent would not be on the
        # board when the children of the call are stopped, and would work for nobody.
        with anyio.CancelScope(shield=True):
            if runtime.rows.agent(row.name) is None:
                await self._commit(row, spec, assignment, prompt=prompt, parts=parts)
        return True

    async def _commit(
        self, row: AgentRow, spec: AgentSpec, assignment: Envelope, *, prompt: PromptSet, parts: PromptParts
    ) -> None:
        runtime = self._runtime
        started = AgentStarted(at=prompt.at, spec=spec, session=runtime.session, incarnation=row.incarnation)
        received = assignment.model_copy(update={"seq": 1})  # the mailbox is new
        events, state = first_records(row, started, prompt, received, next_step=self._next_step)
        born = row_after(row, state, started.at)
        stream = journal(runtime.session, row.name, row.incarnation)
        appends = [Append(stream, event.encode(), expected=place) for place, event in enumerate(events)]
        # The life may begin before this commit returns, because the store reports new rows by itself.
        birth = self._births[row.name, row.incarnation] = _PendingBirth()
        try:
            await runtime.commit(
                Put(agent_key(runtime.session, row.name), born.encode(), expected=0),
                # Before the journal, which then grows at the end of the table of records.
                Append(
                    mailbox(runtime.session, row.name, row.incarnation),
                    assignment.encode(),
                    expected=0,
                    id=assignment.id,
                ),
                *appends,
                agent=born,
            )
        except BaseException:
            self._births.pop((row.name, row.incarnation), None)
            raise
        else:
            birth.agent = self._runtime_of(born, state, events, parts)
        finally:
            birth.over.set()

    def _runtime_of(
        self, row: AgentRow, state: AgentState, events: tuple[Event, ...], parts: PromptParts
    ) -> AgentRuntime:
        agent = AgentRuntime(self._runtime, row, state, self._begin, lock=self._lock_of(row))
        agent.cache_prompt(parts.system, parts.tools)
        self._runtime.budgets.join(state)
        agent.announce(events)
        return agent

    def _next_step(self, state: AgentState) -> Step:
        runtime = self._runtime
        return Wait(None, "idle") if runtime.pausing else decide(state, facts_of(runtime, state, frozenset()))

    async def take(self, row: AgentRow) -> AgentRuntime | None:
        """Return, once, the agent that was born in this process and has not begun its life; None for any other."""
        birth = self._births.pop((row.name, row.incarnation), None)
        if birth is None:
            return None
        await birth.over.wait()
        return birth.agent
