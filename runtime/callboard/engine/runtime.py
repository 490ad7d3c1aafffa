"""State shared by all agents of a session in this process: the store under one fence, the row cache, and the ports.

This module owns no agent (the supervisor, `engine/team/supervisor.py`, does) and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from callboard.core.agent.rules.final_report import state_block
from callboard.core.agent.rules.limits import planned_call
from callboard.core.agent.state import AgentState, ExpectedDeliveries, ToolFacts
from callboard.core.budgets.tree import BudgetRefusal
from callboard.core.keys import MAILBOXES, claim_envelope_id, mailbox, rows_prefix
from callboard.core.mcp.catalog import Deferral
from callboard.core.tasks.board import Holder, ready_for, without_old
from callboard.core.tool_access import AgentKind
from callboard.engine.agent_lock import AgentLockHolder
from callboard.engine.approvals.answer_guard import AnswerGuard
from callboard.engine.audience import Audience
from callboard.engine.awake_time import AwakeTime, Deadlines
from callboard.engine.budgets.budgets import Budgets
from callboard.engine.cache_watch import CacheNews
from callboard.engine.hooks.registry import HookRegistry
from callboard.engine.messaging.mailboxes import UNCONFIGURED_LIMIT, Mailboxes
from callboard.engine.rate_limits.limiter import KeyLimiter, catch_up
from callboard.engine.row_cache import RowCache
from callboard.ports.environment import (
    Approver,
    Archive,
    Clock,
    DeliveryScript,
    Dice,
    Instructions,
    NoteSource,
    Observer,
    PermissionPolicy,
    Prompts,
    Surroundings,
)
from callboard.ports.mcp import PromptSource, Servers
from callboard.ports.model import Delta, Model, OnStreaming, StreamingReply
from callboard.ports.store import Append, Fence, Put, Row, Store, Write
from callboard.ports.store_reading import rows_of
from callboard.ports.tool import Launcher, Skills, Tool, ToolSpec
from callboard.ports.worktrees import WorktreeKeeper
from callboard.types.agent_spec import AgentSpec
from callboard.types.events import Event
from callboard.types.hook_events import Caller, HookEvent
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import ServerEntry
from callboard.types.messages import OwnStage, StateBlock
from callboard.types.operations import Operation
from callboard.types.records import AgentRow, Budget, Envelope, ToolCall


@dataclass(frozen=True, slots=True)
class Services:
    """External services, as chosen by the composition root."""

    store: Store
    model: Model
    clock: Clock
    dice: Dice
    tools: Mapping[str, Tool]
    judge: PermissionPolicy
    prompts: Prompts
    archive: Archive
    launcher: Launcher
    skills: Skills
    hooks: HookRegistry
    observers: Sequence[Observer] = ()
    approvers: Sequence[Approver] = ()
    stages: Mapping[str, OwnStage] = field(default_factory=dict[str, OwnStage])
    """The user's own stages of the context pipeline, by name."""
    surroundings: Surroundings | None = None
    """Source of the reminders; None: the session has none."""
    instructions: Instructions | None = None
    """Instruction files that are not in the prompt; None: the session has none."""
    remembered: NoteSource | None = None
    """Notes of memory; None: the session has none."""
    script: DeliveryScript | None = None
    """Recording in progress, or the recorded run that is replayed."""
    worktrees: WorktreeKeeper | None = None
    """Keeper of worktrees; None: the session has none."""
    prompt_source: PromptSource | None = None
    """Prompts of MCP servers, which the user types as slash commands."""
    own: tuple[str, ...] = ()
    """Names of the tools that the program that opened the session gives to every agent."""
    servers: Servers | None = None
    """MCP servers, whose tools appear in `tools`; None: the session has none."""
    own_servers: Callable[[AgentSpec], Sequence[ServerEntry]] = field(default=lambda me: ())
    """Function that returns the servers that an agent's own type defines. They connect when the agent starts, for
    agents of that type only."""
    key_limiter: KeyLimiter | None = None
    """Rate limiter shared by all sessions of the process with the same key; None: the session has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Functions that are called when something happens in a session. `Team` names all of them in one place."""

    inform: Callable[[HookEvent], None] = field(default=lambda event: None)
    """Notify hooks without waiting for them."""
    caller_of: Callable[[str], Caller] = field(default=lambda name: Caller(name=name))
    """Function that returns an agent, by name, in the form for hooks."""
    on_event: Sequence[Mapping[type, Callable[[str, Any], None]]] = ()
    """Functions for recorded events of an agent, by class of event. Called in this order."""
    on_change: Callable[[str, str], None] = field(default=lambda kind, name: None)
    """Called with the kind and the name of a row that changed."""
    on_operation: Callable[[str, int, Operation], None] = field(default=lambda name, incarnation, operation: None)
    """Called when an operation of this life starts."""


_SHARED = 64
"""Prompts and tool lists to remember for other agents. An agent keeps its own, however many there are."""


class SharedBytes:
    """Bytes that agents have in common, such as the tool list of a type: the newest values, by their digests."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._digests: dict[bytes, str] = {}

    def of(self, digest: str, value: bytes) -> bytes:
        """Return the object that others have of this value, or this one."""
        shared = self._values.pop(digest, value)
        self._values[digest] = shared  # at the end: the newest
        self._digests[shared] = digest
        if len(self._values) > _SHARED:
            del self._digests[self._values.pop(next(iter(self._values)))]
        return shared

    def digest_of(self, value: bytes) -> str | None:
        """Return the digest of a value that an agent of this process has, so that the store has it too."""
        return self._digests.get(value)


@dataclass(slots=True)
class SessionRuntime:
    """Shared state of a session."""

    session: str
    services: Services
    fence: Fence | None
    types: Callable[[str, str, AgentSpec, AgentKind], AgentSpec]
    """Function (agent type, name, parent, kind) that returns the spec of a new agent. Raises `ToolRefused` for an
    unknown type."""
    max_agents: int = 32
    """Most agents of the team that live at once, including the lead. Subagents do not count."""
    budget: Budget = Budget()
    """Budget of the whole session."""
    grants: Callable[[str, str], Budget] = field(default=lambda agent_type, kind: Budget())
    """Function (agent type, kind) that returns the budget of a new agent from the settings."""
    mailbox_limit: int = UNCONFIGURED_LIMIT
    """Most unread envelopes in a mailbox before tools that send to it are refused."""
    max_depth: int = 3
    """Greatest depth of an agent below the lead."""
    deferral: Deferral = Deferral()
    """Conditions under which tools of MCP servers are deferred behind the search."""
    server_wait: float | None = None
    """Seconds that the first prompt waits for MCP servers; None: until each has connected or failed."""
    moved: bool = False
    """True if another folder was the workspace before: prompts are composed again, with the new path."""
    servers_until: float | None = None
    """Time until which prompts wait for MCP servers (Unix seconds); None: no prompt has waited yet, or there is no
    limit."""
    private_servers: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """MCP server of an agent type -> the living agents of that type, which alone have its tools."""
    mailboxes: Mailboxes = field(init=False)
    offered_tasks: dict[str, str] = field(default_factory=dict[str, str])
    """Idle agent -> the ready task that it was woken for, so that agents woken together claim different tasks."""
    audience: Audience = field(init=False)
    awake: AwakeTime = field(init=False)
    deadlines: Deadlines = field(init=False)
    """Deadlines on the clock for time limits."""
    budgets: Budgets = field(init=False)
    key_limiter: KeyLimiter = field(init=False)
    """Rate limiter of the API key: a shared one, or one for this host."""
    rows: RowCache = field(init=False)
    cache_news: CacheNews = field(default_factory=CacheNews)
    folder_turns: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    """(name, incarnation) -> the turn in which its folder was last checked."""
    newest_turns: dict[tuple[str, int], tuple[str, float]] = field(
        default_factory=dict[tuple[str, int], tuple[str, float]]
    )
    """(name, incarnation) -> its newest turn, and the start of that turn on the clock for time limits."""
    mail_count_times: dict[tuple[str, int], tuple[float, float]] = field(
        default_factory=dict[tuple[str, int], tuple[float, float]]
    )
    """(name, incarnation) -> the time of its mail counts, by the wall clock and on the clock for time limits."""
    start_hooks_ran: dict[tuple[str, int], bool] = field(default_factory=dict[tuple[str, int], bool])
    """(name, incarnation) -> True once its SessionStart or SubagentStart hooks ran here; False after a later
    summary."""
    call_paths: dict[tuple[str, int], dict[str, tuple[ToolCall, str]]] = field(
        default_factory=dict[tuple[str, int], dict[str, tuple[ToolCall, str]]]
    )
    """(name, incarnation) -> call id -> the call and the path that it reads or changes, for the newest reply."""
    pausing: bool = False
    """True if no agent begins another step, because another process is to host the session."""
    prompt_bytes: SharedBytes = field(init=False, default_factory=SharedBytes)
    """Prompts and tool lists, which agents of a type have in common."""
    replies: dict[str, StreamingReply] = field(default_factory=dict[str, StreamingReply])
    """Replies that stream now, by the names of their agents."""
    on_streaming: OnStreaming | None = None
    """Receiver of all replies for followers in other processes; None while there are none."""
    known_tools: dict[str, tuple[ToolSpec, ToolFacts]] = field(
        init=False, default_factory=dict[str, tuple[ToolSpec, ToolFacts]]
    )
    """Facts of tools, by name, each with the specification that they were made from."""
    guard: AnswerGuard | None = None
    """Guard of the person's answers against commands that can write to the store; None: no command can."""
    listeners: Listeners = field(init=False, default=Listeners())
    """Listeners of the supervisor, which needs this object first: see `listen`."""

    def __post_init__(self) -> None:
        self.audience = Audience(self.services.observers)
        self.awake = AwakeTime(self.services.clock)
        self.deadlines = Deadlines(self.services.clock, self.awake)
        self.key_limiter = self.services.key_limiter or KeyLimiter(self.services.clock)
        self.mailboxes = Mailboxes(self.mailbox_limit)
        self.rows = RowCache(self.session, self._row_changed)
        self.budgets = Budgets(self.awake, self.budget, self.rows)

    @property
    def clock(self) -> Clock:
        return self.services.clock

    async def load(self) -> None:
        """Read the session's rows once, before anything else."""
        self.rows.take(*await rows_of(self.services.store, rows_prefix(self.session)))
        await catch_up(self.key_limiter, self.services.store)

    async def follow(self) -> None:
        """Apply changes of other processes until cancelled."""
        async with self.services.store.watch(rows_prefix(self.session)) as rows:
            async for row in rows:
                await self._take(row, *rows.at_hand())

    async def _take(self, *rows: Row) -> None:
        """Apply rows of the store, which another process may have written."""
        if self.guard is None:
            self.rows.take(*rows)
        else:
            await self.guard.take(*rows)

    async def check_answers(self) -> None:
        """Undo what a command has written to the store in the person's name."""
        if self.guard is not None:
            await self.guard.check()

    async def commit(self, *writes: Write, agent: AgentRow | None = None) -> tuple[int, ...]:
        """Commit under this process's fence. The row cache has the new rows when it returns.

        `agent`: the value of the agent's row that `writes` put, if the caller has it.
        """
        if self.guard is not None:
            self.guard.expect(writes)
        numbers = await self.services.store.commit(*writes, fence=self.fence)
        rows = list[Row]()
        sent = list[tuple[Append, int]]()
        for write, number in zip(writes, numbers, strict=True):
            if isinstance(write, Put):
                rows.append(Row(write.key, write.value, number))
            elif isinstance(write, Append) and write.stream.startswith(MAILBOXES):
                sent.append((write, number))
        # The watch delivers this commit later, and the next decision must already use it.
        self.rows.take(*rows, agent=agent)
        for write, number in sent:
            envelope = Envelope.model_validate_json(write.record)
            self.mailboxes.note_sent(write.stream, number, envelope.sender)
            self.report_mail(envelope)
        return numbers

    async def refresh(self, key: str) -> None:
        """Read a row again after another process changed it first, so that the next decision uses it."""
        row = await self.services.store.get(key)
        if row is not None:
            await self._take(row)

    def note_folder_checked(self, state: AgentState) -> None:
        """Note that the agent's folder exists."""
        if state.turn is not None:
            self.folder_turns[state.me.name, state.identity.incarnation] = state.turn.id

    def state_block(self, state: AgentState) -> StateBlock:
        """Return the known state of this agent's world, for the text after a compaction."""
        lead = state.me.kind == "lead"
        own = (task for task in self.rows.tasks() if task.owner == state.me.name)
        tasks = [
            f"{task.id} [{task.status}] {task.subject}" + (f" ({task.owner})" if task.owner else "")
            for task in (self.rows.open_tasks() if lead else without_old(own))
        ]
        rows = self.rows
        block = state_block(state, rows.agents(), schedules=rows.schedules(), tasks=tasks, requests=rows.requests())
        script = self.services.script
        return (
            script.known_state(state.me.name, state.identity.incarnation, state.compaction.count, block)
            if script
            else block
        )

    def report_events(self, holder: AgentLockHolder, first: int, events: Sequence[Event]) -> None:
        """Report recorded events of an agent to the observers. Raises `AgentLockError` without the agent's lock.

        `first`: position of the first event in the agent's journal.
        """
        agent = holder.open_block()
        for seq, event in enumerate(events, first):
            self.audience.on_event(agent, seq, event)
            for handlers in self.listeners.on_event:
                handle = handlers.get(type(event))
                if handle is not None:
                    handle(agent, event)

    def report_output(self, holder: AgentLockHolder, delta: Delta, reply: StreamingReply | None = None) -> None:
        """Report a piece of an agent's output to the observers. Raises `AgentLockError` without the agent's lock.

        `reply`: the reply that it is part of.
        """
        agent = holder.open_block()
        self.audience.on_delta(agent, delta)
        if self.on_streaming is not None and reply is not None:
            self.on_streaming(reply, delta)

    def notice(self, agent: str, text: str) -> None:
        """Report a line of the runtime about an agent to the observers.

        It is not output of the agent, and needs no lock.
        """
        self.audience.on_delta(agent, Delta("notice", text))

    def listen(self, listeners: Listeners) -> None:
        """Set the listeners. The supervisor calls this once, before the session is read."""
        self.listeners = listeners

    def _row_changed(self, kind: str, name: str) -> None:
        self.listeners.on_change(kind, name)

    def report_mail(self, envelope: Envelope) -> None:
        """Report an envelope to the observers."""
        self.audience.on_mail(envelope)

    def address(self, name: str) -> str:
        """Return the mailbox stream of the newest incarnation of a name."""
        row = self.rows.agent(name)
        return mailbox(self.session, name, row[0].incarnation if row else 1)

    def task_holder(self, state: AgentState) -> Holder:
        """Return an agent in the form for the task board: its life, this process, its abilities and its tasks.

        An agent that was stopped because it repeated itself takes no open task until it gets a message: each task would
        begin the same turn again, and such a turn can make further tasks. A replay claims the recorded tasks.
        """
        me = state.me
        lease = self.fence or Fence("", 0)
        picks = me.claims_tasks and (state.turns.last_limit != "repetition" or self.services.script is not None)
        return Holder(me.name, state.identity.incarnation, lease.lease, lease.number, "bash" in me.tools, picks)

    def claimable_task(self, state: AgentState, expected: ExpectedDeliveries | None = None) -> str | None:
        """Return the ready task that an idle agent would claim now.

        None if the agent is working or would claim none.
        """
        if state.turn is not None or state.lifecycle.ended or state.me.kind == "subagent" or state.work.tasks:
            return None
        if state.work.gate.gate == "pending":
            return None
        ready = ready_for(self.rows.at_stake(), self.task_holder(state))
        if not ready:
            return None
        plan = planned_call(state, self.budgets.path_of(state), self.awake.now())
        # The agent could only give the task back, and would be woken for it again.
        if isinstance(plan, BudgetRefusal) and not plan.waits:
            return None
        if expected is not None:  # claim the recorded tasks
            recorded = {envelope_id for delivery in expected.deliveries for envelope_id in delivery.ids}
            ready = [t for t in ready if claim_envelope_id(t.id, t.attempts + 1, state.me.name) in recorded]
        return self._choose_task([task.id for task in ready], ready[0].reserved_for, state.me.name) if ready else None

    def _choose_task(self, ready: Sequence[str], reserved_for: str, name: str) -> str:
        """Choose a task from the ready ones.

        The first choice is a task reserved for the agent, then the one that the agent was woken for, then one for which
        no other agent was woken.
        """
        # Several agents may be woken at once, each for its own task.
        offer = self.offered_tasks.get(name, "")
        others = set(self.offered_tasks.values())
        if reserved_for:
            return ready[0]
        return offer if offer in ready else next((task for task in ready if task not in others), ready[0])
