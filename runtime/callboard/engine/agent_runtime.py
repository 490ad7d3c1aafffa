"""One agent in this process: its state, its journal, and its running operations.

`loop.py` runs it. The end of an operation is an event, which is journalled before it changes the state (`record`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from typing import Literal, NamedTuple, assert_never

import anyio
from anyio import TaskHandle
from anyio.abc import TaskGroup

from callboard.core.agent.apply import apply
from callboard.core.agent.snapshot import dump, is_due
from callboard.core.agent.state import AgentState, without_history
from callboard.core.keys import agent_key, journal, snapshot_key
from callboard.core.reports.transcript_pages import TranscriptProgress
from callboard.core.team.lifecycle import row_after
from callboard.engine.agent_lock import AgentLock, AgentLockHolder
from callboard.engine.cache_watch import CacheWatch
from callboard.engine.runtime import SessionRuntime
from callboard.ports.model import Delta, StreamingReply
from callboard.ports.notifier import Notifier
from callboard.ports.store import Append, Put, Write
from callboard.ports.tool import ForegroundCalls, Spawner
from callboard.types.errors import Conflict, Fenced
from callboard.types.events import ContextEdited, Event, ModelReplied, WaitBegan
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import ViewMessage
from callboard.types.operations import Operation, OperationKind
from callboard.types.records import AgentRow
from callboard.types.steps import Step, Wait

Begin = Callable[["AgentRuntime", Step], Awaitable[None]]

SENT: frozenset[OperationKind] = frozenset({"model", "summary"})
"""Operations that may wait for the service before they are sent. Their time counts from the moment of sending."""


class OperationStart(NamedTuple):
    """Start time of an operation, on two clocks."""

    at: float
    """Unix seconds."""
    awake: float
    """The same moment on the clock for time limits."""


_MOST_REPLIES = 4_096
"""Most replies kept until the next lines of the transcript. With more, the journal is read."""


@dataclass(slots=True)
class RecentReplies:
    """The replies of a running agent since its last transcript lines, so that the next ones need no second fold."""

    since: int
    """Position in the journal from which every event was seen."""
    edited: int = 0
    """Position of the last edit of the conversation."""
    replies: dict[int, ModelReplied] = field(default_factory=dict[int, ModelReplied])
    """Newest reply of each assistant message, by the message's id."""

    @classmethod
    def of(cls, state: AgentState) -> RecentReplies:
        """Return the start for a state: the beginning of the journal if there are no messages yet."""
        return cls(state.seq if state.context.conversation.messages else 0)

    def add(self, events: Sequence[Event], state: AgentState) -> None:
        """Note the events that led to this state."""
        for event in events:
            # `isinstance` of pydantic's objects is slow if the class is another one.
            if type(event) is ContextEdited and event.edits:
                self.edited = state.seq
            elif type(event) is ModelReplied and event.blocks:
                last = state.context.conversation.messages.last
                if last is None or last.role != "assistant" or len(self.replies) >= _MOST_REPLIES:
                    self.replies.clear()
                    self.since = state.seq
                else:
                    self.replies[last.id] = event

    def next_messages(self, written: TranscriptProgress, state: AgentState) -> Sequence[ViewMessage] | None:
        """Return the messages from the newest written one on, or None if only the journal has them unedited."""
        newest = written.bare.context.conversation.messages.last
        if written.holes or self.since > written.bare.seq:
            return None
        messages = state.context.conversation.messages
        if newest is None:
            return None if self.edited else messages
        # An edit before the newest written message changed only older ones.
        if self.edited >= newest.id:
            return None
        place = messages.find(newest.id)
        return None if place is None else messages[place:]

    def drop_written(self, written: TranscriptProgress) -> None:
        """Drop the replies whose lines are written."""
        newest = written.bare.context.conversation.messages.last
        if newest is not None:
            self.replies = {id: reply for id, reply in self.replies.items() if id >= newest.id}
        self.since = max(self.since, written.bare.seq)


_NO_PROMPT = (("", ""), b"", b"")
"""Prompt of an agent that has none: what the journal says of it, the system prompt, and the tool list."""
_MOST_TOGETHER = 64
"""Most records of callers in one commit."""


@dataclass(slots=True, eq=False)
class _Recording:
    """Events and writes of one caller that wait for the commit before them."""

    events: tuple[Event, ...]
    writes: Sequence[Write]
    unless: Callable[[AgentState], bool] | None
    is_over: bool = False
    """True once they are recorded, void, or refused."""
    is_recorded: bool = False
    error: Exception | None = None


class AgentRuntime:
    """One agent: its state, its journal, and its running operations in this process."""

    def __init__(
        self, runtime: SessionRuntime, row: AgentRow, state: AgentState, begin: Begin, *, lock: AgentLock
    ) -> None:
        self.runtime = runtime
        self.lock = AgentLockHolder(lock)
        self.row: AgentRow = row
        self.name = row.name
        self.state = state
        self.operations: dict[Operation, TaskHandle[None] | None] = {}
        """Running operations, each with its task; None for one that is part of another task."""
        self.since: dict[Operation, OperationStart] = {}
        """Start time of each operation. For a model call: the time when it was sent; absent while it waits to
        be sent."""
        self.mark_call_urgent: Callable[[], None] = lambda: None
        """Function that lets a model call that waits for the rate limits try a parked key, because the user sent a
        prompt."""
        self.group: TaskGroup | None = None
        self.spawner: Spawner | None = None
        self.foreground = ForegroundCalls()
        self.watch = CacheWatch(runtime.cache_news)
        self.use_ids: set[str] | None = None
        """Ids by which the service knows the calls of the conversation, also removed ones; None before the first calls.
        """
        self.servers_seen = -1
        """Revision of the MCP servers about which the agent was last informed."""
        self.on_wake: Callable[[], None] = lambda: None
        self.written = TranscriptProgress()
        self.recent_replies = RecentReplies.of(state)
        self.transcribing = anyio.Lock(fast_acquire=True)
        self._prompt: tuple[tuple[str, str], bytes, bytes] = _NO_PROMPT
        self._unwritten: tuple[Event, ...] = ()
        self._begin = begin
        # One commit at a time, because each names the journal position before it.
        self._recording = anyio.Lock(fast_acquire=True)
        self._queue: list[_Recording] = []
        """Records of callers that wait for the commit in progress. The next commit has all of them."""
        self._retired = False
        self._changed = Notifier()
        self._changes_seen = 0
        """Number of changes when `decide` last ran."""

    @property
    def written_position(self) -> int:
        """Return the end of the agent's journal, without the events that are noted only."""
        return self.state.seq - len(self._unwritten)

    async def begin(self, step: Step) -> None:
        """Start an operation, record a decision, or wait for the next event; never do long work here."""
        if isinstance(step, Wait):
            if step.awaited == "budget":
                self.runtime.budgets.wake_later(self.wake)
            # Recorded once for each wait, so that the row and every list of agents show the reason for the wait
            # (test_a_call_that_waits_for_the_rate_is_an_event_and_its_row_says_so).
            if held := self._hold_reason(step):
                await self.record(WaitBegan(at=self.runtime.clock.now(), what=held, until=step.until))
                return
            await self._wait(step.until)
        elif self.runtime.pausing:
            await self._wait(None)  # the next host decides on the same step
        else:
            await self._begin(self, step)

    def _hold_reason(self, step: Wait) -> Literal["rate", "budget"] | None:
        """Return the reason why a call is held back, unless the journal already has it, as it has a planned retry."""
        if self.state.waits.held:
            return None
        match step.awaited:
            case "budget":
                return "budget"
            case "rate":
                return "rate" if self.state.model.recovery.waiting_until <= self.runtime.clock.now() else None
            case "model" | "tools" | "permission" | "plan" | "mail" | "more mail" | "recorded mail" | "idle":
                return None
            case "worktree" | "background commands" | "cancelled operations":
                return None
            case _:
                assert_never(step.awaited)

    def running_operations(self) -> frozenset[Operation]:
        """Return the running operations for the next decision.

        Any change after this call ends the wait that may follow the decision.
        """
        # Read before the decision, so that a change during the decision also ends the wait in `_wait`.
        self._changes_seen = self._changed.changes
        return frozenset(self.operations)

    def wake(self) -> None:
        """Let the loop look for the next step, because something changed."""
        self._changed.notify()
        self.on_wake()

    async def change(self) -> None:
        """Wait for the next record or the next end of an operation."""
        await self._changed.changed(self._changed.changes)

    async def prompt_bytes(self) -> tuple[bytes, bytes]:
        """Return the shared system blocks and the tool list in use, by what the journal says of them."""
        context = self.state.context
        if self._prompt[0] != (context.system, context.tools):
            store = self.runtime.services.store
            self.cache_prompt(await store.get_blob(context.system), await store.get_blob(context.tools))
        return self._prompt[1], self._prompt[2]

    def cache_prompt(self, shared: bytes, tools: bytes) -> None:
        """Cache the prompt in use, so that it need not be read from the store. `shared`: its shared system blocks."""
        context = self.state.context
        in_memory = self.runtime.prompt_bytes
        named = (context.system, context.tools)
        self._prompt = (named, in_memory.of(context.system, shared), in_memory.of(context.tools, tools))

    async def record(
        self,
        *events: Event,
        writes: Sequence[Write] = (),
        unless: Callable[[AgentState], bool] | None = None,
    ) -> bool:
        """Journal events, then update the state.

        Events and writes are one commit. Shielded from cancellation; one commit at a time. Records that wait for a
        commit are written together, because each commit costs a sync of the disk
        (test_results_that_wait_for_a_commit_share_the_next_one).

        If `unless(state)` is true, the events are void: nothing is recorded, and the result is False. Raises the
        exceptions of `Store.commit`.
        """
        # An operation that could not be cancelled may still return a result
        # (test_what_cannot_even_be_cancelled_is_left_behind_and_writes_nothing_any_more).
        if self._retired:
            await anyio.sleep_forever()  # until its operation is cancelled: another object writes its journal
        # The store finishes a commit although its caller was cancelled. Without the shield the state would lack those
        # events.
        recording = _Recording(events, writes, unless)
        with self.lock, anyio.CancelScope(shield=True):
            self._queue.append(recording)
            async with self._recording:
                if not recording.is_over:  # else it was in the commit of the caller before
                    await self._record_queue()
        if recording.error is not None:
            raise recording.error
        return recording.is_recorded

    async def _record_queue(self) -> None:
        """Record what waits, in one commit. After a conflict each caller has a commit of its own."""
        waiting, self._queue = self._queue[:_MOST_TOGETHER], self._queue[_MOST_TOGETHER:]
        try:
            await self._record_together(waiting)
            if len(waiting) > 1 and any(isinstance(recording.error, Conflict) for recording in waiting):
                for recording in waiting:
                    recording.error = None
                    await self._record_together([recording])
        finally:
            for recording in waiting:
                recording.is_over = True

    async def _record_together(self, recordings: Sequence[_Recording]) -> None:
        state = self.state
        valid = list[_Recording]()
        for recording in recordings:
            if recording.unless is None or not recording.unless(state):
                valid.append(recording)
                state = self._state_after(recording.events, state)
        if not valid:
            return
        events = tuple(event for recording in valid for event in recording.events)
        try:
            await self._write(events, [write for recording in valid for write in recording.writes], state)
        except Exception as error:  # noqa: BLE001 - each caller raises it
            for recording in valid:
                recording.error = error
            return
        for recording in valid:
            recording.is_recorded = True
        self._notify(events)

    async def note(
        self, *events: Event, unless: Callable[[AgentState], bool] | None = None, row_waits: bool = False
    ) -> bool:
        """Note decisions without an outside effect.

        They are written with the next commit, at the latest before the loop waits. After a crash before that commit,
        `decide` makes them again. `row_waits`: a change of the row waits for that commit, too.
        """
        if self._recording.locked():  # a commit is in progress, and its events come first
            return await self.record(*events, unless=unless)
        if unless is not None and unless(self.state):
            return False
        state = self._state_after(events, self.state)
        # Other agents and other processes decide by the row, so a change of the row does not wait for the next commit.
        if events and not row_waits and row_after(self.row, state, events[-1].at) is not self.row:
            return await self.record(*events, unless=unless)
        # No separate commit, because each one costs a sync of the disk (test_a_reminder_costs_no_commit_of_its_own).
        self._unwritten += events
        self._update_state(state, events)
        self._notify(events)
        return True

    def announce(self, events: Sequence[Event]) -> None:
        """Show the newest events, which were committed before this object existed."""
        self.recent_replies.add(events, self.state)
        self._notify(events)

    def stream(self, delta: Delta, reply: StreamingReply | None = None) -> None:
        """Show a piece of the agent's output. Shows nothing once another object runs the agent.

        `reply`: the reply that it is part of.
        """
        if not self._retired:
            self.runtime.report_output(self.lock, delta, reply)

    def show_progress(self, text: str) -> None:
        """Show the progress of a tool call.

        Shows nothing after the turn: a user's function may still report after its call ended.
        """
        if self.lock.holds:
            self.stream(Delta("tool", text))

    def retire(self) -> None:
        """Stop recording and give up the lock: the agent's life continues or ends without this object."""
        self._retired = True
        self.lock.give_up()

    def release(self) -> bool:
        """Free the memory of an ended life, which its journal keeps: conversation, prompt, file digests, last message.

        Its usage and outcome stay. Return True if its transcript is complete, so that nothing needs this object.
        """
        self.retire()
        is_written = self.written.bare.seq == self.state.seq  # else a later transcript continues from the progress
        self.state = without_history(self.state)
        self.watch = CacheWatch(self.runtime.cache_news)
        self.use_ids = None
        self._prompt = _NO_PROMPT
        self.spawner = None
        return is_written or not self.runtime.services.archive.shares

    @property
    def begins_alone(self) -> bool:
        """Return True before the first turn of a subagent: only the call that waits for it knows of it.

        Its start, its prompt, and its assignment are written with the beginning of that turn.
        """
        return self.row.kind == "subagent" and self.state.turn is None and not self.state.turns.count

    @property
    def is_flushed(self) -> bool:
        """Return True if the journal has all of the state."""
        return not self._unwritten

    async def flush(self) -> None:
        """Write the noted decisions."""
        if self._unwritten:
            await self.record()

    @property
    def retired(self) -> bool:
        """Return True if the agent no longer records."""
        return self._retired

    async def write_snapshot(self) -> None:
        """Write a snapshot of the state, so that later damage to older records does not affect the agent.

        Raises the exceptions of `Store.commit`.
        """
        async with self._recording:
            if self._retired or self.state.identity.spec is None or self.state.lifecycle.ended is not None:
                return
            key = snapshot_key(self.runtime.session, self.name, self.row.incarnation)
            await self._write((), [Put(key, dump(self.state))], self.state)

    def _state_after(self, events: Sequence[Event], state: AgentState) -> AgentState:
        for event in events:
            state = apply(state, event)
        return state

    async def _write(self, events: Sequence[Event], writes: Sequence[Write], state: AgentState) -> None:
        """Write all pending records, the agent's row and `writes` in one commit, then update the state.

        `state`: the state after the events.
        """
        stream = journal(self.runtime.session, self.name, self.row.incarnation)
        first = self.state.seq - len(self._unwritten)
        together = (*self._unwritten, *events)
        appends: list[Write] = [
            # The expected position refuses a second process that writes the same journal.
            Append(stream, event.encode(), expected=first + place)
            for place, event in enumerate(together)
        ]
        row = row_after(self.row, state, together[-1].at) if together else self.row
        if row is not self.row:
            appends.append(Put(agent_key(self.runtime.session, self.name), row.encode()))
        # A snapshot that cannot be read is skipped
        # (test_a_resume_from_a_snapshot_equals_folding_all_and_a_bad_one_is_passed_over).
        if is_due(first, state):
            appends.append(Put(snapshot_key(self.runtime.session, self.name, row.incarnation), dump(state)))
        await self._commit(stream, [*appends, *writes], row)
        self._unwritten = ()
        self.row = row
        self._update_state(state, events)

    def _update_state(self, state: AgentState, events: Sequence[Event]) -> None:
        before, self.state = self.state, state
        self.recent_replies.add(events, state)
        # Only these parts bear on the account: most events of a step change none of them.
        same = state.budget is before.budget and state.turn is before.turn and state.identity is before.identity
        if not same:
            self.runtime.budgets.follow(state)

    def _notify(self, events: Sequence[Event]) -> None:
        if events and not self._retired:  # else another object took over during the commit, and shows the rest
            with self.lock:
                self.runtime.report_events(self.lock, self.state.seq - len(events) + 1, events)
        self.wake()

    async def _commit(self, stream: str, writes: Sequence[Write], row: AgentRow) -> None:
        try:
            await self.runtime.commit(*writes, agent=row)
        except Conflict as lost:
            # After a kill, another object of this process writes the journal
            # (test_a_killed_agent_whose_commit_hangs_gives_its_lock_up).
            if lost.what == stream and not self._retired:
                # A race about a row would be decided again. A conflict in the journal means that this process has lost
                # the session.
                raise Fenced(f"another process writes the journal of {self.name}: {lost}") from lost
            raise

    def start(self, operation: Operation, work: Callable[[], Awaitable[None]]) -> None:
        """Start an operation in this agent's task group. Starting a running operation is a bug."""
        assert self.group is not None, "operations start inside `run`"
        assert operation not in self.operations, f"{operation.key} runs already"
        self.operations[operation] = self.group.create_task(self._run_operation(operation, work))
        if operation.kind not in SENT:
            self.mark_started(operation)

    async def _run_operation(self, operation: Operation, work: Callable[[], Awaitable[None]]) -> None:
        wakes = True
        try:
            await work()
        except Exception:
            # The exception ends the life: the loop could begin the same work once more
            # (test_a_crashed_lead_is_parked_and_goes_on_with_the_next_process).
            wakes = False
            raise
        finally:
            del self.operations[operation]
            self.since.pop(operation, None)
            if wakes:
                self.wake()

    def is_cancelled(self, operation: Operation) -> bool:
        """Return True if a rule has cancelled a running operation. The end of the process is no rule."""
        task = self.operations[operation]
        return task is not None and task.status is TaskHandle.Status.CANCELLING

    def mark_started(self, operation: Operation) -> None:
        """Start the timeout of an operation now."""
        self.since[operation] = OperationStart(self.runtime.clock.now(), self.runtime.awake.now())
        self.runtime.listeners.on_operation(self.name, self.row.incarnation, operation)

    async def _wait(self, until: float | None) -> None:
        resting = all(operation.kind == "bg" for operation in self.operations)
        if resting:
            await self.flush()  # else the operation's own record includes the notes
        if self._changes_seen != self._changed.changes:
            return  # the next decision may differ
        between_turns = resting and self.state.turn is None
        if between_turns:
            self.lock.release()
        try:
            if until is None:
                await self.change()
            else:
                with anyio.move_on_after(max(0.0, until - self.runtime.clock.now())):
                    await self.change()
        finally:
            if between_turns:
                self.lock.acquire()
