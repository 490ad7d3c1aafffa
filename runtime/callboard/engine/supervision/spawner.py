"""Makes agents: a teammate as writes that commit with the tool's result, a subagent as a child that is waited for.

Both are idempotent: what is made follows from the call, so that the same call after a crash finds the same agent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from callboard.core.budget.tree import beyond, fire_of, left, narrower
from callboard.core.bus.authority import spoken
from callboard.core.bus.mail import sending
from callboard.core.mcp.rights import bounded
from callboard.core.names import agent_key, short_id
from callboard.core.schedule.rights import in_turn, schedule_id
from callboard.core.team.moving import worktree_in_use
from callboard.engine.loop import Agent
from callboard.engine.money.budgets import reached
from callboard.engine.specs import spec_digest, spec_key
from callboard.ports.store import Put, Write
from callboard.words import events as ev
from callboard.words.errors import Conflict, ToolRefused
from callboard.words.specs import AgentSpec
from callboard.words.values import AgentRow, Budget, Envelope

WaitEnded = Callable[[str, int], Awaitable[tuple[str, str]]]
"""(name, incarnation) -> (outcome, result) once that life is over."""


class AgentSpawner:
    """The port `Spawner`, for one agent."""

    def __init__(self, agent: Agent, wait_ended: WaitEnded) -> None:
        self._agent = agent
        self._wait_ended = wait_ended

    def spec_for(self, agent_type: str, name: str, parent: AgentSpec) -> AgentSpec:
        return bounded(self._agent.host.types(agent_type, name, parent), parent)

    def grant(self, spec: AgentSpec, asked: Budget) -> AgentSpec | ev.BudgetReached:
        """The budget of a new agent, and its place in the tree. One that is made already keeps what it was given."""
        host, state = self._agent.host, self._agent.state
        row = host.board.agent(spec.name)
        if spec.kind != "subagent":
            self._refuse(spec)
        self._refuse_depth()
        cause = state.turn.cause if state.turn else ""
        spec = self._within_turn(spec, cause)
        granted = narrower(narrower(spec.budget, host.grants(spec.agent_type, spec.kind)), asked)
        spec = spec.model_copy(update={"budget": granted, "charged_to": fire_of(cause) or spec.charged_to})
        if row is not None and spec.kind == "subagent":  # the same call after a crash
            return spec
        rest = left(host.budgets.path_of(state), host.clock.now())
        over = beyond(asked, rest)
        if over:
            told = ", ".join(f"{kind} {getattr(rest, kind):g}" for kind in over)
            raise ToolRefused(f"budget: it is more than {state.me.name} has left itself ({told}): give less, or none")
        refused = host.budgets.enlist(spec, row[0].incarnation + 1 if row else 1)
        return spec if refused is None else reached(refused, host.clock.now())

    def teammate_writes(self, spec: AgentSpec, prompt: str, *, call: str, now: float) -> tuple[Write, ...]:
        """Row, spec and first envelope. A name whose life is over begins a new incarnation."""
        self._refuse(spec)
        found = self._agent.host.board.agent(spec.name)
        incarnation = found[0].incarnation + 1 if found else 1
        return self._writes(spec, prompt, call, now, incarnation, found[1] if found else 0)

    def _within_turn(self, spec: AgentSpec, cause: str) -> AgentSpec:
        """A new agent has no more rights than the turn of a schedule that starts it, or than its parent's."""
        unasked = spec.unasked or self._agent.state.me.unasked
        bound = spec if unasked == spec.unasked else spec.model_copy(update={"unasked": unasked})
        schedule = schedule_id(cause)
        return in_turn(bound, self._agent.host.board.schedule_row(schedule)) if schedule else bound

    def _depth(self) -> int:
        """How far below the lead a new agent stands."""
        found = self._agent.host.board.agent(self._agent.name)
        return (found[0].depth if found else self._agent.row.depth) + 1

    def _refuse_depth(self) -> None:
        """Raises `ToolRefused` where the caller stands too deep to start anybody."""
        host, depth = self._agent.host, self._depth()
        if depth > host.max_depth:
            raise ToolRefused(
                f"{self._agent.name} stands {depth - 1} below the lead, and nobody may stand deeper than "
                f"{host.max_depth} (team.max_depth): do this piece yourself, or send_message to lead and ask for an "
                "agent for it"
            )

    def _refuse(self, spec: AgentSpec) -> None:
        """Raises `ToolRefused` for a teammate whose name is taken, or for whom the team has no room."""
        host = self._agent.host
        found = host.board.agent(spec.name)
        if found is not None and found[0].life != "stopped":
            raise ToolRefused(f"there is a teammate {spec.name!r} already ({found[0].life}): choose another name")
        living = [row for row in host.board.agents() if row.kind != "subagent" and row.life != "stopped"]
        if len(living) >= host.max_agents:
            resting = [row.name for row in living if row.kind == "teammate" and row.life == "idle"]
            whom = f", for example {', '.join(resting[:3])}" if resting else ""
            raise ToolRefused(
                f"the team is full ({host.max_agents} agents, team.max_agents): give the work to one that is idle, or "
                f"end one by request_shutdown first{whom}"
            )

    def _writes(
        self, spec: AgentSpec, prompt: str, call: str, now: float, incarnation: int, revision: int
    ) -> tuple[Write, ...]:
        host, parent = self._agent.host, self._agent.state.me
        row = AgentRow(
            name=spec.name,
            incarnation=incarnation,
            kind=spec.kind,
            role=spec.role,
            agent_type=spec.agent_type,
            parent=parent.name,
            spec=spec_digest(spec),
            created_at=now,
            since=now,
            depth=self._depth(),
            worktree=worktree_in_use(spec),
        )
        envelope = Envelope(
            id=short_id("env", call, "assignment"),
            sender=parent.name,
            recipient=spec.name,
            incarnation=incarnation,
            type="message",
            content=prompt,
            cause=spoken(self._agent.state),
            caused_by=self._agent.state.turn.cause if self._agent.state.turn else "",
            sender_incarnation=self._agent.state.incarnation,
            metadata={"assignment": True},
            sent_at=now,
        )
        return (
            Put(agent_key(host.session, spec.name), row.encode(), expected=revision),
            Put(spec_key(host.session, row.spec), spec.encode()),
            sending(host.session, envelope),
        )

    async def subagent(self, spec: AgentSpec, prompt: str, *, call: str) -> tuple[str, str]:
        """The child of this call: made once, found again after a crash, waited for to its end."""
        host = self._agent.host
        if host.board.agent(spec.name) is None:
            try:
                await host.commit(*self._writes(spec, prompt, call, host.clock.now(), 1, 0))
            except Conflict:
                await host.refresh(agent_key(host.session, spec.name))
        return await self._wait_ended(spec.name, 1)
