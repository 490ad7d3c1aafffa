"""Read this first: how an agent lives. `live` asks `decide` for the next step and begins it, until it is done.

The loop decides nothing and never does long work. What a step asks for becomes an operation in the agent's task group
(`callboard.engine.world`); its end is an event; an event is journalled before it changes the state (`record`). So an
agent hears its mail, interrupts and answers while a tool runs for ten minutes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio
from anyio.abc import TaskGroup

from callboard.core.apply import apply
from callboard.core.budget.limits import BUDGET
from callboard.core.decide import decide
from callboard.core.names import agent_key, journal, snapshot_key
from callboard.core.snapshot import due, dump
from callboard.core.state import AgentState, Facts
from callboard.core.team.lives import row_after
from callboard.engine.host import Host
from callboard.engine.model.cache_watch import CacheWatch
from callboard.ports.store import Append, Put, Write
from callboard.ports.tool import Spawner
from callboard.words.errors import Conflict, Fenced
from callboard.words.events import Event, WaitBegan
from callboard.words.steps import Done, Step, Wait
from callboard.words.values import AgentRow

Begin = Callable[["Agent", Step], Awaitable[None]]

SENT = frozenset({"model", "summary"})
"""Operations that wait for their turn at the service before their time counts."""


async def live(agent: Agent) -> Done:
    """Live one agent's life: until `decide` says that it is done."""
    while not isinstance(step := agent.next_step(), Done):
        await agent.begin(step)
    return step


class Agent:
    """One agent: its state, its journal, and what it has under way in this process."""

    def __init__(self, host: Host, row: AgentRow, state: AgentState, begin: Begin) -> None:
        self.host = host
        self.row: AgentRow = row
        self.state = state
        self.operations: dict[str, anyio.CancelScope] = {}
        """What runs now, by name; the scope ends it."""
        self.since: dict[str, float] = {}
        """When each operation began (Unix seconds); a model call: when it was sent, absent while it waits for that."""
        self.group: TaskGroup | None = None
        self.spawner: Spawner | None = None
        self.watch = CacheWatch(host.cache_news)
        self.servers_seen = -1
        """The revision of the MCP servers at which the agent was last told of them."""
        self.on_wake: Callable[[], None] = lambda: None
        self._prompt: tuple[str, bytes, bytes] = ("", b"", b"")
        self._unwritten: tuple[Event, ...] = ()
        self._begin = begin
        # One commit at a time: each names the journal position before it.
        self._recording = anyio.Lock(fast_acquire=True)
        self._retired = False
        self._changes = self._seen = 0
        """Changes so far, and how many there were when `decide` last looked."""
        self._changed: anyio.Event | None = None
        """Set at the next change; there is one only while somebody waits for it."""

    @property
    def name(self) -> str:
        return self.row.name

    def next_step(self) -> Step:
        """What `decide` says now."""
        self._seen = self._changes
        return decide(self.state, self.facts())

    async def begin(self, step: Step) -> None:
        """Start an operation, record a decision, or wait for the next event; never do long work here."""
        if isinstance(step, Wait):
            if step.what == BUDGET:
                self.host.budgets.wake_later(self.wake)
            if self._untold(step):
                await self.record(
                    WaitBegan(
                        at=self.host.clock.now(), what="budget" if step.what == BUDGET else "rate", until=step.until
                    )
                )
                return
            await self._wait(step.until)
        else:
            await self._begin(self, step)

    def _untold(self, step: Wait) -> bool:
        """A call waits that its journal does not say yet to wait; a retry that is planned stands there already."""
        if step.what not in ("rate", BUDGET) or self.state.waits.held:
            return False
        return step.what == BUDGET or self.state.recovery.waiting_until <= self.host.clock.now()

    def facts(self) -> Facts:
        """A frozen snapshot of what is not in the journal."""
        return self.host.facts(self.state, frozenset(self.operations))

    def wake(self) -> None:
        """Something changed: the loop looks again."""
        self._changes += 1
        if self._changed is not None:
            self._changed.set()
            self._changed = None
        self.on_wake()

    async def change(self) -> None:
        """Wait for the next record, or the next end of an operation."""
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    async def prompt_bytes(self) -> tuple[bytes, bytes]:
        """System prompt and tool list in use, as the journal names them."""
        state = self.state
        if self._prompt[0] != state.system + state.tools:
            store = self.host.ports.store
            system, tools = await store.get_blob(state.system), await store.get_blob(state.tools)
            self._prompt = (state.system + state.tools, system, tools)
        return self._prompt[1], self._prompt[2]

    def has_prompt(self, system: bytes, tools: bytes) -> None:
        """What the journal names as the prompt in use is at hand: nobody reads it from the store."""
        self._prompt = (self.state.system + self.state.tools, system, tools)

    async def record(
        self,
        *events: Event,
        writes: Sequence[Write] = (),
        unless: Callable[[AgentState], bool] | None = None,
    ) -> bool:
        """Journal first, then state; events and writes are one commit. Shielded from cancellation, one at a time.

        `unless(state)` true: it has become void, and nothing is recorded (False). Raises what `Store.commit` raises.
        """
        if self._retired:
            await anyio.sleep_forever()  # until its operation is cancelled: another one writes its journal
        with anyio.CancelScope(shield=True):
            async with self._recording:
                if unless is not None and unless(self.state):
                    return False
                await self._write(events, writes)
        self._tell(events)
        return True

    async def note(self, *events: Event, unless: Callable[[AgentState], bool] | None = None) -> bool:
        """Record decisions that nobody outside can have seen: they are written with the next commit, at the latest
        before the loop waits. After a crash in between `decide` takes them again."""
        if self._recording.locked():  # a commit is under way, and its events come first
            return await self.record(*events, unless=unless)
        if unless is not None and unless(self.state):
            return False
        state = self._after(events)
        if events and row_after(self.row, state, events[-1].at) is not self.row:
            return await self.record(*events, unless=unless)
        self._unwritten += events
        self.state = state
        self.host.budgets.follow(state)
        self._tell(events)
        return True

    def retire(self) -> None:
        """Record nothing any more: its life goes on, or ends, without this object."""
        self._retired = True

    async def flush(self) -> None:
        """Write what was only noted."""
        if self._unwritten:
            await self.record()

    def _after(self, events: Sequence[Event]) -> AgentState:
        state = self.state
        for event in events:
            state = apply(state, event)
        return state

    async def _write(self, events: Sequence[Event], writes: Sequence[Write]) -> None:
        """One commit of all that is not written yet, the agent's row and `writes`; then the state follows."""
        state = self._after(events)
        stream = journal(self.host.session, self.name, self.row.incarnation)
        first = self.state.seq - len(self._unwritten)
        together = (*self._unwritten, *events)
        appends: list[Write] = [
            Append(stream, event.encode(), expected=first + place) for place, event in enumerate(together)
        ]
        row = row_after(self.row, state, together[-1].at) if together else self.row
        if row is not self.row:
            appends.append(Put(agent_key(self.host.session, self.name), row.encode()))
        if due(first, state):
            appends.append(Put(snapshot_key(self.host.session, self.name, row.incarnation), dump(state)))
        await self._commit(stream, [*appends, *writes])
        self._unwritten, self.state, self.row = (), state, row
        self.host.budgets.follow(state)

    def _tell(self, events: Sequence[Event]) -> None:
        first = self.state.seq - len(events) + 1
        for place, event in enumerate(events):
            self.host.observed(self.name, first + place, event)
        self.wake()

    async def _commit(self, stream: str, writes: Sequence[Write]) -> None:
        try:
            await self.host.commit(*writes)
        except Conflict as lost:
            if lost.what == stream:
                raise Fenced(f"another process writes the journal of {self.name}: {lost}") from lost
            raise

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Start an operation in this agent's task group. A second one of a name that runs is a bug."""
        assert self.group is not None, "operations start inside `run`"
        assert name not in self.operations, f"{name} runs already"
        scope = anyio.CancelScope()
        self.operations[name] = scope
        if name not in SENT:
            self.begun(name)
        self.group.start_soon(self._operate, name, scope, work)

    async def _operate(self, name: str, scope: anyio.CancelScope, work: Callable[[], Awaitable[None]]) -> None:
        try:
            with scope:
                await work()
        finally:
            del self.operations[name]
            self.since.pop(name, None)
            self.wake()

    def begun(self, name: str) -> None:
        """An operation begins now, as far as its time-out is concerned."""
        self.since[name] = self.host.clock.now()
        self.host.on_operation(self.name, self.row.incarnation, name)

    async def _wait(self, until: float | None) -> None:
        if all(name.startswith("bg:") for name in self.operations):
            await self.flush()  # else the operation's own record takes along what was noted
        if self._seen != self._changes:
            return  # there is something new to decide on
        if until is None:
            await self.change()
            return
        with anyio.move_on_after(max(0.0, until - self.host.clock.now())):
            await self.change()
