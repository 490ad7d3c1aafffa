"""Creation of agents by an agent: teammates, and subagents that it waits for or that run in the background.

A teammate and a subagent in the background are writes that commit with the tool's result; any other subagent is a child
to wait for. All are idempotent: their ids are derived from the call, so that the same call after a crash finds the same
agent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from callboard.core.agent.authority import own_authority
from callboard.core.agent.rules.worktree import worktree_in_use
from callboard.core.budgets.tree import beyond, fire_of, has_limits, narrower, remaining_budget
from callboard.core.keys import agent_key, short_id
from callboard.core.mcp.tool_names import limit_tools
from callboard.core.messaging.envelopes import envelope_write
from callboard.core.scheduling.permissions import in_turn, schedule_id
from callboard.core.team.subagents import report_text
from callboard.core.tool_access import AgentKind
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.budgets.budgets import refusal_record
from callboard.engine.operations.cleanup import child_stopped
from callboard.engine.operations.tool_context import worktrees_for
from callboard.engine.recall import spec_digest, spec_key
from callboard.ports.store import Put, Write
from callboard.ports.worktrees import WorktreeActor
from callboard.types import events as ev
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import Conflict, ToolRefused
from callboard.types.records import AgentRow, Budget, Envelope, Usage

WaitEnded = Callable[[str, int], Awaitable[tuple[str, str]]]
"""Function (name, incarnation) that waits for the end of a life and returns (outcome, result)."""
CreateSubagent = Callable[[AgentRow, AgentSpec, Envelope], Awaitable[bool]]
"""Function (row, spec, assignment) that commits a birth, or returns False for an agent that begins by itself."""


class AgentSpawner:
    """Creator of agents for one agent. Implements the port `Spawner`."""

    def __init__(self, agent: AgentRuntime, create: CreateSubagent, wait_ended: WaitEnded) -> None:
        self._agent = agent
        self._create_newborn = create
        self._wait_ended = wait_ended

    def spec_for(self, agent_type: str, name: str, parent: AgentSpec, kind: AgentKind) -> AgentSpec:
        return limit_tools(self._agent.runtime.types(agent_type, name, parent, kind), parent)

    def grant(self, spec: AgentSpec, requested: Budget) -> AgentSpec | ev.BudgetReached:
        """Return the spec with the budget of a new agent, and add the agent to the tree of budgets.

        An existing agent keeps its budget.
        """
        runtime = self._agent.runtime
        state = self._agent.state
        row = runtime.rows.agent(spec.name)
        if spec.kind != "subagent":
            self._refuse(spec)
        self._refuse_depth()
        cause = state.turn.cause if state.turn else ""
        spec = self._within_turn(spec, cause)
        granted = narrower(narrower(spec.budget, runtime.grants(spec.agent_type, spec.kind)), requested)
        charged_to = fire_of(cause) or spec.charged_to
        if (granted, charged_to) != (spec.budget, spec.charged_to):
            spec = spec.model_copy(update={"budget": granted, "charged_to": charged_to})
        if row is not None and spec.kind == "subagent":  # the same call after a crash
            return spec
        if has_limits(requested):
            self._refuse_beyond(requested)
        # Reserved before the agent exists. Otherwise two calls of one reply would each get the whole remaining budget
        # (test_two_children_at_once_cannot_both_take_the_last_money).
        refused = runtime.budgets.enlist(spec, row[0].incarnation + 1 if row else 1)
        return spec if refused is None else refusal_record(refused, runtime.clock.now())

    def _refuse_beyond(self, requested: Budget) -> None:
        """Raise `ToolRefused` if the caller has not that much left."""
        runtime = self._agent.runtime
        own_room = remaining_budget(runtime.budgets.path_of(self._agent.state), runtime.awake.now())
        over = beyond(requested, own_room)
        if over:
            limits = ", ".join(f"{kind} {getattr(own_room, kind):g}" for kind in over)
            raise ToolRefused(
                f"budget: it is more than {self._agent.name} has left itself ({limits}): give less, or none"
            )

    def take_back(self, name: str) -> None:
        row = self._agent.runtime.rows.agent(name)
        self._agent.runtime.budgets.unlist(name, row[0].incarnation + 1 if row else 1)

    def teammate_writes(self, spec: AgentSpec, prompt: str, *, call: str, now: float) -> tuple[Write, ...]:
        """Return the writes of row, spec and first envelope. A name whose life has ended gets a new incarnation."""
        self._refuse(spec)
        match = self._agent.runtime.rows.agent(spec.name)
        incarnation = match[0].incarnation + 1 if match else 1
        return self._writes(spec, prompt, call, now=now, incarnation=incarnation, revision=match[1] if match else 0)

    def _within_turn(self, spec: AgentSpec, cause: str) -> AgentSpec:
        """Limit a new agent to the rights of its parent, and of the schedule whose turn starts it."""
        unasked = spec.unasked or self._agent.state.me.unasked
        bound = spec if unasked == spec.unasked else spec.model_copy(update={"unasked": unasked})
        schedule = schedule_id(cause)
        return in_turn(bound, self._agent.runtime.rows.schedule_row(schedule)) if schedule else bound

    def _depth(self) -> int:
        """Return the depth of a new agent below the lead."""
        match = self._agent.runtime.rows.agent(self._agent.name)
        return (match[0].depth if match else self._agent.row.depth) + 1

    def _refuse_depth(self) -> None:
        """Raise `ToolRefused` if the caller is too deep to start an agent."""
        runtime = self._agent.runtime
        depth = self._depth()
        if depth > runtime.max_depth:
            raise ToolRefused(
                f"{self._agent.name} is {depth - 1} below the lead, and no agent may be deeper than "
                f"{runtime.max_depth} (team.max_depth): do this piece yourself, or send_message to lead and ask for an "
                "agent for it"
            )

    def _refuse(self, spec: AgentSpec) -> None:
        """Raise `ToolRefused` if the teammate's name is taken, or the team is full."""
        runtime = self._agent.runtime
        match = runtime.rows.agent(spec.name)
        if match is not None and match[0].life != "stopped":
            raise ToolRefused(f"there is a teammate {spec.name!r} already ({match[0].life}): choose another name")
        living = [row for row in runtime.rows.agents() if row.kind != "subagent" and row.life != "stopped"]
        if len(living) >= runtime.max_agents:
            resting = [row.name for row in living if row.kind == "teammate" and row.life == "idle"]
            whom = f", for example {', '.join(resting[:3])}" if resting else ""
            raise ToolRefused(
                f"the team is full ({runtime.max_agents} agents, team.max_agents): give the work to one that is idle, "
                f"or end one by request_shutdown first{whom}"
            )

    def _writes(
        self, spec: AgentSpec, prompt: str, call: str, *, now: float, incarnation: int, revision: int
    ) -> tuple[Write, ...]:
        session = self._agent.runtime.session
        row = self._row(spec, incarnation, now).model_copy(update={"spec": spec_digest(spec)})
        return (
            Put(agent_key(session, spec.name), row.encode(), expected=revision),
            Put(spec_key(session, row.spec), spec.encode()),
            envelope_write(session, self._assignment(spec, prompt, call, now=now, incarnation=incarnation)),
        )

    def _row(self, spec: AgentSpec, incarnation: int, now: float) -> AgentRow:
        return AgentRow(
            name=spec.name,
            incarnation=incarnation,
            kind=spec.kind,
            role=spec.role,
            agent_type=spec.agent_type,
            parent=self._agent.state.me.name,
            created_at=now,
            since=now,
            depth=self._depth(),
            worktree=worktree_in_use(spec),
            earlier=self._used_before(spec.name),
        )

    def _assignment(self, spec: AgentSpec, prompt: str, call: str, *, now: float, incarnation: int) -> Envelope:
        return Envelope(
            # Derived from the call, so that the same call after a crash sends no second assignment.
            id=short_id("env", call, "assignment"),
            sender=self._agent.state.me.name,
            recipient=spec.name,
            incarnation=incarnation,
            type="message",
            content=prompt,
            cause=own_authority(self._agent.state),
            caused_by=self._agent.state.turn.cause if self._agent.state.turn else "",
            sender_incarnation=self._agent.state.identity.incarnation,
            metadata={"assignment": True},
            sent_at=now,
        )

    def _used_before(self, name: str) -> Usage:
        """Return the usage of the ended lives of this name."""
        found = self._agent.runtime.rows.agent(name)
        if found is None:
            return Usage()
        row = found[0]
        return row.earlier.plus(row.totals.usage) if row.totals is not None else row.earlier

    async def subagent(self, spec: AgentSpec, prompt: str, *, call: str) -> tuple[str, str]:
        """Run the child of this call until its end. It is created once, and found again after a crash."""
        await self._create(spec, prompt, call)
        return await self._end_of(spec.name)

    async def _end_of(self, name: str) -> tuple[str, str]:
        """Wait for the end of a subagent, and return (outcome, result).

        A worktree of its own is removed, unless there is work in it: then the result says where.
        """
        outcome, text = await self._wait_ended(name, 1)
        keeper = worktrees_for(self._agent)
        row = self._agent.runtime.rows.agent(name)
        worktree = row[0].worktree if row is not None else ""
        # A subagent without a worktree of its own works in that of its parent.
        if keeper is None or not worktree.startswith(name):
            return outcome, text
        try:
            if worktree not in {tree.name for tree in await keeper.worktrees()}:
                return outcome, text
            if not await keeper.losses(worktree):
                author = WorktreeActor(self._agent.name, self._agent.runtime.session, why=f"{name} changed nothing")
                await keeper.remove(worktree, author)
                return outcome, text
        except ToolRefused as refused:
            return outcome, f"{text}\n\n[Its git worktree {worktree} is kept: {refused}]"
        return outcome, f"{text}\n\n[Its work is in the git worktree {worktree}, on the branch wt/{worktree}.]"

    async def isolated(self, spec: AgentSpec, *, call: str) -> AgentSpec:
        runtime = self._agent.runtime
        if spec.isolation != "worktree" or runtime.rows.agent(spec.name) is not None:
            return spec  # an existing agent has its folder, also if it has ended and the call runs again
        keeper = worktrees_for(self._agent)
        if keeper is None:
            raise ToolRefused(f"{spec.agent_type} works in a git worktree, and this session has none")
        name = await keeper.name_for(spec.name, call)
        if name in {tree.name for tree in await keeper.worktrees()}:
            await keeper.open(name)
        else:
            await keeper.create(name, WorktreeActor(self._agent.name, runtime.session, call, f"for {spec.name}"))
        return spec.model_copy(update={"worktree": name, "folder": str(keeper.path(name))})

    async def _create(self, spec: AgentSpec, prompt: str, call: str) -> None:
        runtime = self._agent.runtime
        if runtime.rows.agent(spec.name) is not None:
            return
        now = runtime.clock.now()
        try:
            assignment = self._assignment(spec, prompt, call, now=now, incarnation=1)
            if not await self._create_newborn(self._row(spec, 1, now), spec, assignment):
                with anyio.CancelScope(shield=True):  # for the reason in `Births.create`
                    await runtime.commit(*self._writes(spec, prompt, call, now=now, incarnation=1, revision=0))
        except Conflict:
            await runtime.refresh(agent_key(runtime.session, spec.name))
        except BaseException:  # cancelled: the budgets must not count an agent that does not exist
            if runtime.rows.agent(spec.name) is None:
                self.take_back(spec.name)
            raise

    async def attend(self, spec: AgentSpec, prompt: str, *, call: str) -> tuple[str, str] | None:
        await self._create(spec, prompt, call)
        with anyio.CancelScope() as scope, self._agent.foreground.waiting(call, scope.cancel):
            return await self._end_of(spec.name)
        return None

    def subagent_writes(self, spec: AgentSpec, prompt: str, *, call: str, now: float) -> tuple[Write, ...]:
        if self._agent.runtime.rows.agent(spec.name) is not None:
            return ()
        return self._writes(spec, prompt, call, now=now, incarnation=1, revision=0)

    async def ended(self, name: str) -> tuple[str, str]:
        outcome, text = await self._end_of(name)
        archive = self._agent.runtime.services.archive
        path = archive.folders(self._agent.state.me).output_of(name)
        await archive.keep(str(path), f"{report_text(outcome, text)}\n")
        return outcome, text

    def stop_writes(self, name: str) -> tuple[Write, ...]:
        return tuple(child_stopped(self._agent.runtime, name, f"{self._agent.name} stopped it"))
