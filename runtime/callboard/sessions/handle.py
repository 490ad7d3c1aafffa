"""A session on top of the workspace's store: queries, commands and session rules, available in any process.

The store's doorbell notifies the host of each change. This module appends to an agent's journal in one case only: an
undo in a session without a host, under the session's lease.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import anyio

from callboard.adapters.extensions.trust import read_claims
from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.adapters.system.clock import SystemClock
from callboard.config.settings import LoadedSettings, load_settings
from callboard.core.agent.state import AgentState
from callboard.core.approvals.plans import PLAIN_ANSWER, AnswerDetails, commit_change
from callboard.core.approvals.session_rules import AlwaysAllow, end_state
from callboard.core.budgets.tree import BudgetNode
from callboard.core.keys import host_lease, one_by_id, rule_key, short_id
from callboard.core.permissions.rules import parse_rule
from callboard.core.reports.context import EditReport, WindowMap, undoable
from callboard.core.reports.decisions import Decision
from callboard.core.reports.metrics import Metrics, metrics_of, together
from callboard.core.reports.receipts import EnvelopeTrace, Receipt, trace
from callboard.core.reports.spending import Spending
from callboard.engine.budgets.spending import session_budgets, session_spending
from callboard.engine.commands import PLACEMENT, Action, AgentCommand, model_command, sessions_of
from callboard.engine.recall import edits_of, recall, recall_readable, window_of
from callboard.engine.row_cache import RowCache
from callboard.ports.environment import Answer, Clock
from callboard.ports.store import Fence, LeaseHolder, Store
from callboard.ports.store_reading import rows_of
from callboard.sessions.answer_links import MadeLink, make_link, revoke_links
from callboard.sessions.compose import session_budget, stated_limits
from callboard.sessions.inspect.decisions import DecisionReader
from callboard.sessions.inspect.hosts import about_to_take, waiting_reason
from callboard.sessions.inspect.schedules import ScheduleInspector
from callboard.sessions.inspect.serving import fires_again
from callboard.sessions.inspect.tasks import TaskInspector
from callboard.sessions.inspect.team import TeamInspector
from callboard.sessions.lease import process_words
from callboard.sessions.person_actions import (
    answer_as_person,
    command_as_person,
    note_as_person,
    say_as_person,
    write_rule_as_person,
)
from callboard.sessions.result import AgentSummary, summarise
from callboard.sessions.stores import damage_lines
from callboard.types.agent_spec import BYPASS, READ_AS, ModelLimits, ThinkingChoice
from callboard.types.choices import unknown
from callboard.types.errors import PersonCanAct, UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.model_names import OPUS_PLAN, newest_of, without_long
from callboard.types.records import (
    AgentRow,
    Budget,
    Json,
    PermissionMode,
    Request,
    RuleEffect,
    SessionRow,
    SessionRule,
    Task,
)
from callboard.types.schedules import Schedule

UNDO_WAIT = 5.0
"""Seconds that an undo waits for the host's answer, which is immediate unless a model call is in progress."""


@dataclass(frozen=True, slots=True)
class Context:
    """Content of an agent's window, and the usage of the agent and its session so far."""

    window: WindowMap
    metrics: Metrics
    session: Metrics


class UsedModel(NamedTuple):
    """Model that was chosen during a session."""

    name: str
    """The model's id."""
    assumed: str
    """Reason for assumed limits, for the user; empty if the limits are stated."""


class SessionHandle:
    """One session on top of a store and its rows: queries, and the actions of a person.

    A plain handle is the view of a process that does not host the session: its rows are those at the time of opening,
    and agents' states are read from their journals. `HostedSession` adds a lifetime, `AttachedSession` follows the
    rows.
    """

    beside_host: bool = True
    """True if this process does not host the session."""

    def __init__(self, row: SessionRow, store: Store, rows: RowCache, clock: Clock | None = None) -> None:
        self.id = row.id
        self.row = row
        self._store = store
        self._rows = rows
        self._clock = clock or SystemClock()
        self.cron = ScheduleInspector(store, row.id, rows)
        self.agents = TeamInspector(store, row.id, rows)
        self.board = TaskInspector(store, row.id, rows)
        self.rules = RuleInspector(store, row.id, rows)

    async def summaries(self) -> list[AgentSummary]:
        """Return every agent with its usage: from the journal of a living agent, or the row of an ended one."""
        agents: list[AgentSummary] = []
        for row in self._rows.agents():
            state = None
            if row.life != "stopped" or row.kind == "lead":
                state = (await recall_readable(self._store, self.id, row.name, row.incarnation)).state
            agents.append(summarise(row, state if state is not None and state.identity.spec is not None else None))
        return agents

    def tasks(self) -> list[Task]:
        return list(self._rows.tasks())

    def requests(self, *, pending_only: bool = True) -> list[Request]:
        return list(self._rows.pending_requests() if pending_only else self._rows.requests())

    def schedules(self) -> list[Schedule]:
        return list(self._rows.schedules())

    async def inbox(self, agent: str | None = None) -> list[Receipt]:
        """Return the history of the mail of the team, or of one agent, oldest first.

        Raises `UsageError` as `context` does.
        """
        rows = (
            [row for row in self._rows.agents() if row.kind != "subagent"] if agent is None else [self.agent_row(agent)]
        )
        return await self._mail(rows)

    async def _mail(self, rows: Sequence[AgentRow]) -> list[Receipt]:
        from callboard.engine.messaging.dead_letters import mail_of

        return await mail_of(self._store, self.id, rows)

    async def trace(self, prefix: str) -> EnvelopeTrace:
        """Trace the origin and the effects of an envelope, named by its id or a prefix of it.

        Raises `UsageError` if no envelope of the session matches, or several do.
        """
        envelopes = await self._mail(self._rows.agents())
        ids = dict.fromkeys(mail.envelope.id for mail in envelopes)
        return trace(envelopes, one_by_id("envelope", ids, prefix, where=f"of session {self.id}"))

    async def answer(
        self,
        request_id: str,
        status: Literal["approved", "rejected", "answered"],
        reason: str = "",
        *,
        word: AnswerDetails = PLAIN_ANSWER,
        always: AlwaysAllow | None = None,
        tool_input: Json | None = None,
    ) -> str | None:
        """Answer a request as the person. `tool_input`: the whole input with which an allowed call is to run instead.

        Returns None if the answer is accepted, otherwise the reason. Raises `UsageError` inside a tool's process.
        """
        answer = Answer(status, "person", reason, word, always, tool_input)
        return await answer_as_person(self._store, self.id, request_id, answer, now=self._now, fence=self._fence)

    async def make_link(self, request: Request, *, seconds: float, user: str = "") -> MadeLink:
        """Make an answer link to a request. Raises `UsageError` as `make_link` of `answer_links` does."""
        return await make_link(self._store, self.id, request, seconds=seconds, user=user)

    async def revoke_links(self, request: Request) -> int:
        """Revoke the answer links to a request, and return their number."""
        return await revoke_links(self._store, self.id, request.id)

    async def commit_change(self, request: Request) -> str:
        """Return the change since a plan was submitted, such as another checked-out commit. Empty if there is none."""
        folder = str(request.payload.get("folder") or "")
        if request.kind != "plan" or not folder or not request.payload.get("base"):
            return ""
        from callboard.adapters.git.surroundings import WorkspaceSurroundings

        around = WorkspaceSurroundings(Path(self.row.workspace), os.environ)
        return commit_change(request, await around.commit(folder, request.id))

    async def say(self, text: str, to: str = "lead") -> None:
        """Send a person's prompt to an agent. Raises `UsageError` for an unknown agent, and inside a tool's process."""
        await say_as_person(self._store, self.id, text, to=to, now=self._now)

    async def add_context(self, text: str) -> None:
        """Send the lead a text for its next step, or with the next prompt. Starts no turn."""
        await note_as_person(self._store, self.id, text, now=self._now)

    async def host(self) -> int | None:
        """Return the process that hosts the session now; None if no process does."""
        holder = await self._store.holder(host_lease(self.id))
        return None if holder is None else holder.pid

    async def hosting_words(self) -> str:
        """Return which process hosts the session, what it waits for, or how to continue it."""
        holder = await self._store.holder(host_lease(self.id))
        waits = None
        if holder is None:
            waits = await waiting_reason(self._store, self.id) or await self._fired_by()
            # A host may have taken it since, and its reason to wait with it.
            holder = await self._store.holder(host_lease(self.id)) if waits is None else None
        if holder is not None:
            return f"{process_words(holder)} hosts the session"
        return f"no process hosts it: `callboard resume {self.id}`" if waits is None else waits

    async def _fired_by(self) -> str | None:
        """Return that a serving host is about to take the session for its schedules; None if none is."""
        if not any(schedule.durable and fires_again(schedule) for schedule in self._rows.schedules()):
            return None
        return await about_to_take(self._store, self.row.settings.get(PLACEMENT) or {})

    async def command(self, action: Action, to: str = "lead", text: str = "") -> None:
        """Send a command: `interrupt` a turn, `stop` an agent, `compact` its context (`text`: what to keep)."""
        command = AgentCommand(action, to, text)
        await command_as_person(self._store, self.id, command, now=self._now, hosted=not self.beside_host)

    async def interrupt(self, name: str | None = None) -> None:
        """Stop the turn of the lead and of every working agent, because the lead waits for them.

        With `name`: only of this agent and its subagents. Raises `UsageError` for an unknown agent.
        """
        if name is not None:
            self.agent_row(name)
        for row in self._rows.agents():
            at_work = row.life in ("starting", "working", "waiting")
            concerned = row.name == name or (row.kind == "subagent" and row.parent == name and at_work)
            if concerned if name is not None else row.name == "lead" or at_work:
                await self.command("interrupt", to=row.name)

    async def context(self, agent: str = "lead") -> Context:
        """Return the content of an agent's window.

        Raises `UsageError` for an unknown agent, or one that has not begun.
        """
        _, state = await self._agent(agent)
        team = [agent.metrics for agent in await self.summaries()]
        return Context(await window_of(self._store, state), metrics_of(state), together(team))

    async def cost(self) -> Spending:
        """Return the session's spending so far, from the journals of all its agents."""
        return await session_spending(self._store, self.id, self._rows.agents())

    async def budgets(self) -> tuple[BudgetNode, ...]:
        """Return the budgets of the session, its agents and schedules, with the used amount of each."""
        budget = self._session_budget() if self._hosted_budget is None else self._hosted_budget
        return await session_budgets(self._store, self.id, self._rows, clock=self._clock, budget=budget)

    async def use_model(self, name: str, to: str = "lead") -> UsedModel:
        """Switch an agent to this model, an id or an alias, from its next call on.

        Raises `UsageError` for a model that this session's service does not have and for an unknown agent, and
        `UnknownModel` for a model without a price if there is a budget in dollars.
        """
        refuse_inside_tool("Choosing a model")
        _, state = await self._agent(to)
        models = state.me.models if state.identity.spec is not None else {}
        plan_name = self._plan_model_of(name)
        name = name if name in models else self._model_id(name, models)
        limits = models.get(name) or await self._limits_of(name, state)
        plan_limits = (models.get(plan_name) or await self._limits_of(plan_name, state)) if plan_name else None
        for model_name, model_limits in ((name, limits), (plan_name, plan_limits)):
            if model_limits and not model_limits.priced and self._session_budget().cost_usd is not None:
                raise self._settings().settings.price_needed(model_name or name)
        command = model_command(name, limits, to, plan_name=plan_name, plan_limits=plan_limits)
        await command_as_person(self._store, self.id, command, now=self._now)
        return UsedModel(name, limits.assumed)

    def _plan_model_of(self, name: str) -> str | None:
        """Return the model in plan mode that belongs to a model; None if it is the same.

        A session whose replies come from a file has none.
        """
        from_file = ":" in str(self.row.settings.get("model", self.row.model))
        return (
            None
            if from_file or without_long(name)[0].lower() != OPUS_PLAN
            else self._settings().settings.plan_model_of(name)
        )

    def _model_id(self, name: str, models: Mapping[str, ModelLimits]) -> str:
        """Return the id behind an alias.

        A session whose replies come from a file has only its own models: the first of that family.
        """
        if ":" in str(self.row.settings.get("model", self.row.model)):
            return newest_of(without_long(name)[0].lower(), models) or name
        return self._settings().settings.model_id(name)

    async def use_thinking(self, choice: ThinkingChoice | None) -> None:
        """Change the thinking of the lead from the next call on; None: the service's default.

        Raises `UsageError` inside a tool's process.
        """
        refuse_inside_tool("Choosing how much a model thinks")
        await self.command("thinking", text="" if choice is None else choice.model_dump_json())

    async def use_mode(self, mode: str, *, may_bypass: bool | None = None) -> str:
        """Switch the permission mode for the lead's next calls. Return Callboard's name of the mode.

        Raises `UsageError` for an unknown mode, for `bypassPermissions` unless `may_bypass` (default: True if the
        session was started with it), and inside a tool's process.
        """
        refuse_inside_tool("Choosing a permission mode")
        mode_name = READ_AS.get(mode, mode)
        if mode_name not in get_args(PermissionMode):
            raise UsageError(unknown("mode", mode, get_args(PermissionMode)))
        if mode_name == BYPASS and not (self.may_bypass if may_bypass is None else may_bypass):
            raise UsageError(
                "bypassPermissions must be requested at the start: --permission-mode bypassPermissions or "
                "--allow-dangerously-skip-permissions"
            )
        await self.command("mode", text=mode_name)
        return mode_name

    @property
    def may_bypass(self) -> bool:
        """Return True if the user may set the mode `bypassPermissions`: the session was started in it."""
        return self._first_mode == BYPASS

    @property
    def _first_mode(self) -> str:
        return str(self.row.settings.get("flags", {}).get("permission.mode") or "default")

    async def _limits_of(self, name: str, state: AgentState) -> ModelLimits:
        service, _, file = str(self.row.settings.get("model", self.row.model)).partition(":")
        if file:
            models = ", ".join(state.me.models) if state.identity.spec is not None else ""
            raise UsageError(f"a {service} has no model {name!r}; its file has: {models or 'none yet'}")
        if ":" in name:
            raise UsageError(
                f"{name} is another service; a session keeps its service. Start a new session: callboard --model {name}"
            )
        return await stated_limits(self._settings(), name)

    def _session_budget(self) -> Budget:
        return session_budget(self._settings(), self.row.settings.get("max_cost_usd"))

    def configuration(self) -> LoadedSettings:
        """Return the settings in force, without the variables of this run's `--settings`. Reads the disk."""
        return self._settings()

    def _settings(self) -> LoadedSettings:
        """Return the settings of the session's host, as far as another process can read them."""
        stored = self.row.settings
        workspace = Path(self.row.workspace)
        workspace_claims = read_claims(workspace)  # the host's trust applies while the content is unchanged
        trusted = stored.get("trust") == workspace_claims.digest
        flags = stored.get("flags")
        return load_settings(
            os.environ, workspace=workspace, trusted=trusted, flags=flags, workspace_claims=workspace_claims
        )

    async def decisions(self, agent: str | None = None) -> list[Decision]:
        """Return the decisions on the calls of all agents, or of one, oldest first.

        Those of all agents include the refused requests of agents' processes to the web page.
        Raises `UsageError` as `context` does.
        """
        rows = self._rows.agents() if agent is None else [self.agent_row(agent)]
        return await DecisionReader(self._store, self.id).read(rows, refused=agent is None)

    async def edits(self, agent: str = "lead") -> Sequence[EditReport]:
        """Return every edit of an agent's view, oldest first. Raises as `context` does."""
        _, state = await self._agent(agent)
        return await edits_of(self._store, state)

    async def undo(self, edits: Sequence[int], agent: str = "lead", wait: float = UNDO_WAIT) -> EditReport | None:
        """Undo edits by their journal positions: through the host, or directly if there is none.

        Returns None if the host undoes them only after the current model call. Raises `UsageError` for a position that
        is not an edit, and `PersonCanAct` with the reason if the undo is refused.
        """
        refuse_inside_tool("Undoing an edit")
        row, state = await self._agent(agent)
        positions = undoable(await edits_of(self._store, state), edits)
        if state.lifecycle.ended is not None:
            raise UsageError(f"{agent} has ended: its window is no longer sent")
        command = AgentCommand("undo", agent, " ".join(map(str, positions)))
        envelope = await command_as_person(self._store, self.id, command, now=self._now)
        from callboard.engine.operations.undo import undo_answer

        await self._undo_unhosted(row)
        seq = None
        with anyio.move_on_after(wait) as waiting:
            seq = await undo_answer(self._store, row, self.id, after=state.seq, envelope=envelope)
        if waiting.cancelled_caught:
            return None
        answer = next((edit for edit in await self.edits(agent) if edit.seq == seq), None)
        if answer is None or answer.refused:
            raise PersonCanAct(f"not undone: {answer.why if answer else f'{agent} has ended'}")
        return answer

    async def _undo_unhosted(self, row: AgentRow) -> None:
        """Undo the edits here, under the session's lease, if no process hosts the session."""
        from callboard.engine.operations.undo import undo_unhosted

        lease = await self._store.acquire(host_lease(self.id))
        if isinstance(lease, LeaseHolder):
            return
        try:
            await undo_unhosted(self._store, lease.fence, self.id, row, now=self._now)
        finally:
            with anyio.CancelScope(shield=True):
                await lease.release()

    async def _agent(self, name: str) -> tuple[AgentRow, AgentState]:
        """Return an agent and its state from its journal. Raises `UsageError` with the existing names."""
        row = self.agent_row(name)
        return row, await recall(self._store, self.id, name, row.incarnation)

    def agent_rows(self) -> Sequence[AgentRow]:
        """Return the rows of all agents, oldest first, including ended ones."""
        return self._rows.agents()

    def agent_row(self, name: str) -> AgentRow:
        """Return the row of an agent. Raises `UsageError` with the existing names."""
        match = self._rows.agent(name)
        if match is None:
            names = [agent.name for agent in self._rows.agents()]
            raise UsageError(unknown("agent", name, names, where=f"in session {self.id}"))
        return match[0]

    @property
    def cost_limit_by_option(self) -> bool:
        """Return True if an option set the limit of the session in dollars, which a resume prefers to the settings."""
        return self.row.settings.get("max_cost_usd") is not None

    async def sessions(self) -> Sequence[SessionRow]:
        """Return all sessions of this workspace, newest first."""
        return await sessions_of(self._store)

    @property
    def damage(self) -> tuple[str, ...]:
        """Return a line for each record that the store set aside as damaged, with the remedy.

        Empty if there are none.
        """
        return damage_lines(self._store)

    @property
    def _fence(self) -> Fence | None:
        """Return the fence of the lease under which this process writes; None if it hosts nothing."""
        return None

    @property
    def _hosted_budget(self) -> Budget | None:
        """Return the budget of the session at its host; None for that of the settings and the session's flags."""
        return None

    @property
    def _now(self) -> float:
        return self._clock.now()


class RuleInspector:
    """Session rules of one session."""

    def __init__(self, store: Store, session: str, rows: RowCache) -> None:
        self._store = store
        self._session = session
        self._rows = rows
        self._clock = SystemClock()

    def all(self) -> Sequence[SessionRule]:
        """Return every rule that was created, oldest first."""
        return self._rows.rules()

    def active_rules(self) -> Sequence[SessionRule]:
        """Return the rules in force."""
        now = self._clock.now()
        return [rule for rule in self._rows.rules() if not end_state(rule, now)]

    async def made_by(self, request_id: str) -> Sequence[SessionRule]:
        """Return the rules that the answer to a permission created, in their current state in the store."""
        await self._look()
        return [rule for rule in self._rows.rules() if rule.request_id == request_id]

    async def add(self, text: str, effect: RuleEffect = "allow") -> None:
        """Allow, ask about, or deny a class of calls in this session. A rule that is in force is not added again.

        Raises `UsageError` for a text that is no rule, and inside a tool's process.
        """
        refuse_inside_tool("Creating a session rule")
        try:
            parse_rule(text)
        except ValueError as error:
            raise UsageError(f"{text} is not a rule: {error}") from error
        now = self._clock.now()
        for rule in self.active_rules():
            if (rule.rule, rule.effect, rule.agent, rule.expires_at) == (text, effect, "", None):
                return
        rule = SessionRule(
            id=short_id("rule", self._session, text, effect, now), rule=text, effect=effect, created_at=now
        )
        await write_rule_as_person(self._store, self._session, rule, expected=0)

    async def _look(self) -> None:
        self._rows.take(*await rows_of(self._store, rule_key(self._session, "")))

    async def revoke(self, prefix: str) -> SessionRule:
        """Revoke a rule by its id or a prefix of it: from now on it has no effect.

        Raises `UsageError` for an id that matches no rule or several, for a rule that has ended, and inside a tool's
        process.
        """
        refuse_inside_tool("Revoking a session rule")
        await self._look()
        ids = [rule.id for rule in self._rows.rules()]
        match = self._rows.rule(one_by_id("session rule", ids, prefix, where=f"of session {self._session}"))
        assert match is not None, "it was found among them"
        rule, revision = match
        if reason := end_state(rule, self._clock.now()):
            raise UsageError(f"{rule.id} is already {reason}: it has no effect")
        revoked = rule.model_copy(update={"revoked_at": self._clock.now()})
        await write_rule_as_person(self._store, self._session, revoked, expected=revision)
        return revoked
