"""What all agents of a session share in this process: the store under one fence, the board, the world's ports.

The host owns no agent; the supervisor (`engine/supervision/team.py`) does. It refuses nothing and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from callboard.core.budget.limits import planned_call
from callboard.core.budget.tree import Refusal
from callboard.core.context.situation import OwnStage
from callboard.core.hooks.moments import start_source
from callboard.core.mcp.catalogue import Deferral
from callboard.core.names import MAILBOXES, claim_envelope_id, mailbox, rows_prefix
from callboard.core.recovery.turns import model_in_use
from callboard.core.state import AgentState, Expected, Facts, ToolFacts
from callboard.core.tasks.laws import Holder, by_id
from callboard.core.tasks.offers import ready_for
from callboard.core.team.moving import wanted
from callboard.core.team.standing import state_block
from callboard.engine.board import SessionBoard
from callboard.engine.bus.mailboxes import LIMIT, Mailboxes
from callboard.engine.governor import Governor, catch_up
from callboard.engine.hooks.registry import HookRegistry
from callboard.engine.model.cache_watch import CacheNews
from callboard.engine.money.budgets import Budgets
from callboard.ports.commands import PromptSource
from callboard.ports.guidance import Instructions, Remembered
from callboard.ports.mcp import Servers
from callboard.ports.model import Delta, Model
from callboard.ports.store import Append, Fence, Put, Row, Store, Write
from callboard.ports.tool import Launcher, Skills, Tool
from callboard.ports.worktrees import WorktreeKeeper
from callboard.ports.world import Approver, Archive, Clock, Dice, Judge, Observer, Prompts, Script, Surroundings
from callboard.words.context import StateBlock
from callboard.words.events import Event
from callboard.words.hook_events import Caller, HookEvent, StartSource
from callboard.words.mcp import ServerEntry
from callboard.words.specs import AgentSpec
from callboard.words.values import Budget, Envelope, Request, Task

AT_WORK = frozenset({"starting", "working", "waiting", "stopping"})
"""Lives of an agent that somebody may watch; who waits for an answer goes on when it comes."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The world, as the composition root chose it."""

    store: Store
    model: Model
    clock: Clock
    dice: Dice
    tools: Mapping[str, Tool]
    judge: Judge
    prompts: Prompts
    archive: Archive
    launcher: Launcher
    skills: Skills
    hooks: HookRegistry
    observers: Sequence[Observer] = ()
    approvers: Sequence[Approver] = ()
    stages: Mapping[str, OwnStage] = field(default_factory=dict[str, OwnStage])
    """A person's own stages of the context pipeline, by name."""
    surroundings: Surroundings | None = None
    """What is told in reminders; None: nothing is."""
    instructions: Instructions | None = None
    """Instruction files beside those of the prompt; None: there are none."""
    remembered: Remembered | None = None
    """Notes of memory; None: there are none."""
    script: Script | None = None
    """A recording under way, or the recorded run that is replayed."""
    worktrees: WorktreeKeeper | None = None
    """None: this session has none."""
    prompt_source: PromptSource | None = None
    """Prompts of MCP servers, which a person types as slash commands."""
    own: tuple[str, ...] = ()
    """Of the tools those of the program that opened the session which are for everybody, by name."""
    servers: Servers | None = None
    """Its MCP servers, whose tools stand in `tools` as they come; None: it has none."""
    brought: Callable[[AgentSpec], Sequence[ServerEntry]] = field(default=lambda me: ())
    """The servers that an agent's own type brings: they connect when it begins, and are there for such agents alone."""
    governor: Governor | None = None
    """Shared by all sessions of the process that use one key; None: the session has its own."""


@dataclass(slots=True)
class Host:
    """The shared part. `on_change` is set by the supervisor: what to do when a row changed."""

    session: str
    ports: Ports
    fence: Fence | None
    types: Callable[[str, str, AgentSpec], AgentSpec]
    """(agent type, name, parent) -> spec of a new agent. Raises `ToolRefused` for an unknown type."""
    max_agents: int = 32
    """Agents of the team that live at once, the lead included; subagents do not count."""
    budget: Budget = Budget()
    """Of the whole session."""
    grants: Callable[[str, str], Budget] = field(default=lambda agent_type, kind: Budget())
    """(agent type, kind) -> what the settings grant a new agent."""
    mailbox_limit: int = LIMIT
    """Envelopes that may wait in a mailbox, before tools are refused that send to it."""
    max_depth: int = 3
    """How far below the lead an agent may stand."""
    deferral: Deferral = Deferral()
    """When tools of MCP servers are deferred behind the search."""
    server_wait: float | None = None
    """Seconds that the first prompt waits for MCP servers; None: until each has connected or failed."""
    servers_until: float | None = None
    """Until when (Unix seconds) prompts wait for them; None: none has waited yet, or they wait as long as it takes."""
    private: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """MCP server that an agent's type brought -> the living agents of that type, which alone have its tools."""
    mailboxes: Mailboxes = field(init=False)
    offered: dict[str, str] = field(default_factory=dict[str, str])
    """Idle agent -> the ready task that it was woken for: several that are woken at once take different ones."""
    budgets: Budgets = field(init=False)
    governor: Governor = field(init=False)
    """Of the API key: the one that was handed in, or one for this host alone."""
    board: SessionBoard = field(init=False)
    cache_news: CacheNews = field(default_factory=CacheNews)
    settled: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    """(name, incarnation) -> the turn in which its folder was last looked at."""
    begun: dict[tuple[str, int], bool] = field(default_factory=dict[tuple[str, int], bool])
    """(name, incarnation) -> its SessionStart or SubagentStart hooks were asked here; False: summarised since."""
    inform: Callable[[HookEvent], None] = field(default=lambda event: None)
    """Tell hooks of something that is as it is: nobody waits for them."""
    caller_of: Callable[[str], Caller] = field(default=lambda name: Caller(name=name))
    """An agent, by name, as hooks are told of it."""
    on_event: Callable[[str, Event], None] = field(default=lambda agent, event: None)
    on_change: Callable[[str, str], None] = field(default=lambda kind, name: None)
    on_operation: Callable[[str, int, str], None] = field(default=lambda name, incarnation, operation: None)
    """An operation of this life begins."""
    on_course: Callable[[str, Event], None] = field(default=lambda agent, event: None)
    """The same events, for who follows the fires of schedules."""

    def __post_init__(self) -> None:
        self.governor = self.ports.governor or Governor(self.ports.clock)
        self.mailboxes = Mailboxes(self.mailbox_limit)
        self.board = SessionBoard(self.session, self._row_changed)
        self.budgets = Budgets(self.ports.clock, self.budget, self.board)

    @property
    def clock(self) -> Clock:
        return self.ports.clock

    async def load(self) -> None:
        """Read the session's rows once, before anything else."""
        self.board.take(*await self.ports.store.keys(rows_prefix(self.session)))
        await catch_up(self.governor, self.ports.store)

    async def follow(self) -> None:
        """Heed what other processes change, for as long as the session is hosted."""
        async with self.ports.store.watch(rows_prefix(self.session)) as rows:
            async for row in rows:
                self.board.take(row, *rows.at_hand())

    async def commit(self, *writes: Write) -> tuple[int, ...]:
        """Commit under this process's fence; its rows are known here as soon as it returns."""
        numbers = await self.ports.store.commit(*writes, fence=self.fence)
        done = list(zip(writes, numbers, strict=True))
        self.board.take(*(Row(one.key, one.value, number) for one, number in done if isinstance(one, Put)))
        for write, number in done:
            if isinstance(write, Append) and write.stream.startswith(MAILBOXES):
                self.mailboxes.sent(write.stream, number)
                self.mailed(Envelope.model_validate_json(write.record))
        return numbers

    async def refresh(self, key: str) -> None:
        """Somebody else was faster: read the row, so that the next decision knows."""
        row = await self.ports.store.get(key)
        if row is not None:
            self.board.take(row)

    def facts(self, state: AgentState, running: frozenset[str]) -> Facts:
        """What `decide` may know of the world now."""
        ports = self.ports
        folders = ports.archive.folders(state.me)
        expected = self._expected(state)
        tools = {name: self._tool_facts(name) for name in {one.call.name for one in state.calls}}
        return Facts(
            now=ports.clock.now(),
            running=running,
            requests=self._requests(state),
            tools=tools,
            keys=self._keys(state) if any(one.concurrency == "keyed" for one in tools.values()) else {},
            others_at_work=self._others_at_work(state),
            claimable=self.claimable(state, expected),
            taken=self._taken(state),
            budgets=self.budgets.path_of(state),
            parked_until=self.governor.parked_until(model_in_use(state.recovery, state.me)),
            worktree=self._worktree(state),
            settled=state.turn is not None and self.settled.get(_life(state)) == state.turn.id,
            folder=str(folders.tool_results),
            transcripts=str(folders.transcripts),
            known=self.known(state) if state.recovery.react or state.tried else None,
            hooks=self._end_hooks(state),
            starts=self._starts(state),
            batch=ports.hooks.has("PostToolBatch"),
            stages=ports.stages,
            expected=expected,
        )

    def _end_hooks(self, state: AgentState) -> bool:
        """Whether hooks are asked before a turn of this agent ends."""
        has, kind = self.ports.hooks.has, state.me.kind
        if kind == "subagent":
            return has("SubagentStop")
        return has("Stop") or (kind == "teammate" and has("TeammateIdle"))

    def _starts(self, state: AgentState) -> StartSource | None:
        event = "SubagentStart" if state.me.kind == "subagent" else "SessionStart"
        return start_source(state, self.begun.get(_life(state))) if self.ports.hooks.has(event) else None

    def settle(self, state: AgentState) -> None:
        """The agent's folder is there."""
        if state.turn is not None:
            self.settled[_life(state)] = state.turn.id

    def _worktree(self, state: AgentState) -> str | None:
        if self.ports.worktrees is None or state.spec is None:
            return None

        def task(one: str) -> Task | None:
            row = self.board.task(one)
            return row[0] if row else None

        return wanted(state.me, state.tasks, task)

    def known(self, state: AgentState) -> StateBlock:
        """What the runtime knows of this agent's world, for the words after a compaction."""
        lead = state.me.kind == "lead"
        tasks = [
            f"{task.id} [{task.status}] {task.subject}" + (f" ({task.owner})" if task.owner else "")
            for task in self.board.tasks()
            if task.owner == state.me.name or (lead and task.status not in ("completed", "cancelled"))
        ]
        board = self.board
        known = state_block(state, board.agents(), board.schedules(), tasks, board.requests())
        script = self.ports.script
        return script.known(state.me.name, state.incarnation, state.compactions, known) if script else known

    def observed(self, agent: str, seq: int, event: Event) -> None:
        for observer in self.ports.observers:
            observer.on_event(agent, seq, event)
        self.on_event(agent, event)
        self.on_course(agent, event)

    def streamed(self, agent: str, delta: Delta) -> None:
        for observer in self.ports.observers:
            observer.on_delta(agent, delta)

    def _row_changed(self, kind: str, name: str) -> None:
        self.on_change(kind, name)

    def mailed(self, envelope: Envelope) -> None:
        """Tell the observers of an envelope."""
        for observer in self.ports.observers:
            observer.on_mail(envelope)

    def address(self, name: str) -> str:
        """The mailbox stream of the newest incarnation of a name."""
        row = self.board.agent(name)
        return mailbox(self.session, name, row[0].incarnation if row else 1)

    def _requests(self, state: AgentState) -> dict[str, Request]:
        ids = [one.request_id for one in state.calls if one.request_id]
        if state.gate.request_id:
            ids.append(state.gate.request_id)
        found = {request_id: self.board.request(request_id) for request_id in ids}
        return {request_id: row[0] for request_id, row in found.items() if row}

    def _tool_facts(self, name: str) -> ToolFacts:
        tool = self.ports.tools.get(name)
        return ToolFacts(tool.spec.concurrency, tool.spec.barrier, tool.spec.watches) if tool else ToolFacts("shared")

    def _others_at_work(self, state: AgentState) -> bool:
        """Looked at only where all calls of the reply watch and are over: a team may be large."""
        if not state.calls or any(one.stage != "settled" for one in state.calls):
            return False
        tools = [self.ports.tools.get(one.call.name) for one in state.calls]
        if not all(tool and tool.spec.watches for tool in tools):
            return False
        me = state.me.name
        if any(row.name != me and row.life in AT_WORK for row in self.board.agents()):
            return True
        return any(one.asked_by == me and one.status == "pending" for one in self.board.requests())

    def _keys(self, state: AgentState) -> dict[str, str]:
        keys: dict[str, str] = {}
        for one in state.calls:
            tool = self.ports.tools.get(one.call.name)
            if tool is not None and tool.spec.concurrency == "keyed" and one.open:
                keys[one.call.id] = tool.key(one.call.input)
        return keys

    def _expected(self, state: AgentState) -> Expected | None:
        script = self.ports.script
        return script.expected(state.me.name, state.incarnation, state.asked, state.heard) if script else None

    def holder(self, state: AgentState) -> Holder:
        """An agent as the board knows it: its life, this process, what it can and does."""
        me, lease = state.me, self.fence or Fence("", 0)
        return Holder(me.name, state.incarnation, lease.lease, lease.number, "bash" in me.tools, me.claims_tasks)

    def _taken(self, state: AgentState) -> tuple[str, ...]:
        if not state.tasks:
            return ()
        me = self.holder(state)
        rows = {task: self.board.task(task) for task in state.tasks}
        return tuple(task for task, row in rows.items() if row is None or not me.holds(row[0]))

    def claimable(self, state: AgentState, expected: Expected | None = None) -> str | None:
        """The ready task that an idle agent would take now; None for one that is at work, or would take none."""
        if state.turn is not None or state.ended or state.me.kind == "subagent" or state.tasks:
            return None
        if state.gate.gate == "pending":
            return None
        found = ready_for(by_id(self.board.tasks()), self.holder(state))
        if not found:
            return None
        plan = planned_call(state, self.budgets.path_of(state), self.clock.now())
        if isinstance(plan, Refusal) and not plan.waits:
            return None  # it could do nothing with it but give it back
        if expected is not None:  # each takes the task that it took then
            told = {one for delivery in expected.deliveries for one in delivery.ids}
            found = [t for t in found if claim_envelope_id(t.id, t.attempts + 1, state.me.name) in told]
        return self._chosen([task.id for task in found], found[0].reserved_for, state.me.name) if found else None

    def _chosen(self, found: Sequence[str], kept: str, name: str) -> str:
        """Of the tasks that it may take: what is kept for it, what it was woken for, what nobody else was woken for."""
        mine, others = self.offered.get(name, ""), set(self.offered.values())
        if kept:
            return found[0]
        return mine if mine in found else next((task for task in found if task not in others), found[0])


def _life(state: AgentState) -> tuple[str, int]:
    return state.me.name, state.incarnation
