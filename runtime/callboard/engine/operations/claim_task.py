"""Claims of tasks in a store, and the choice of the agents to wake for ready tasks.

A claim is a compare-and-swap under the lease of a process, and is freed when that process is gone.
`core/tasks/board.py` has the rules; this module turns them into writes. An agent claims a task in its own commit
(`claim_task`), tasks of dead processes are freed (`free_abandoned`), a resumed agent's tasks move to its new process
(`align_tasks`), and tasks that the board reassigned are released (`release_tasks`). `claimed_task` and `free_abandoned`
need no agent: any process with its own lease may use them.

Waking a whole idle team for one task would make all but one agent lose the race. So each change of the board wakes as
many agents as there are ready tasks (`callboard.core.tasks.board`). A woken agent has no reservation: it claims like
any other, or finds the task gone. No task may stay unclaimed while an agent could take it: if a woken agent begins a
turn for another reason, or ends, the offer passes to another agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from callboard.core.keys import claim_envelope_id, mailbox, task_key
from callboard.core.messaging import authority
from callboard.core.messaging.envelopes import envelope_write
from callboard.core.tasks import board as task_rules
from callboard.core.tasks.board import Holder, by_id, held_by, offers
from callboard.core.tasks.format import owner_words
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.operations.cleanup import task_writes
from callboard.engine.row_cache import RowCache
from callboard.engine.runtime import SessionRuntime
from callboard.ports.store import Fence, Put, Row, Store, Write
from callboard.types import events as ev
from callboard.types import steps as st
from callboard.types.errors import Conflict, ToolRefused
from callboard.types.records import AgentRow, Envelope, Task

GONE = "The process that worked on it is gone, and no agent continues its work."


def claimed_task(session: str, rows: RowCache, task_id: str, *, holder: Holder, now: float) -> tuple[Task, Put]:
    """Return the task as claimed by this life, and the write that claims it.

    Raises `ToolRefused`, also for an unknown task.
    """
    row = rows.task(task_id)
    if row is None:
        raise ToolRefused(f"no task {task_id} on the board")
    task = task_rules.claim(row[0], holder, rows.at_stake(), now)
    return task, Put(task_key(session, task_id), task.encode(), expected=row[1])


async def free_abandoned(
    store: Store,
    session: str,
    rows: RowCache,
    *,
    own_fence: Fence | None,
    now: float,
    resumed: Callable[[Task], bool],
) -> list[Task]:
    """Free the tasks whose owner's process is gone, and return them.

    No process holds the lease of the claim, and `resumed` does not say that the owner continues here.

    `own_fence`: this process's own lease. If another process frees a task at the same time, the compare-and-swap fails
    here, and nothing is freed twice.
    """
    freed: list[Task] = []
    for task_id in [task.id for task in rows.open_tasks()]:
        row = rows.task(task_id)  # read now: other agents change the board while this function waits
        if (
            row is None
            or row[0].status != "in_progress"
            or resumed(row[0])
            or await _is_owner_alive(store, row[0], own_fence)
        ):
            continue
        free = task_rules.free(row[0], now, GONE)
        key = task_key(session, task_id)
        try:
            (revision,) = await store.commit(Put(key, free.encode(), expected=row[1]), fence=own_fence)
        except Conflict:
            newest = await store.get(key)
        else:
            newest = Row(key, free.encode(), revision)
            freed.append(free)
        if newest is not None:
            rows.take(newest)
    return freed


async def _is_owner_alive(store: Store, task: Task, own_fence: Fence | None) -> bool:
    """Return True if the process in which the task was claimed still holds its lease."""
    if own_fence is not None and task.lease == own_fence.lease:
        return task.lease_number == own_fence.number
    return bool(task.lease) and await store.holder(task.lease) is not None


async def free_at_start(runtime: SessionRuntime, resumed: Callable[[AgentRow], bool]) -> None:
    """Free tasks before a session's agents are resumed: its own agents keep theirs, all others are freed."""

    def goes_on(task: Task) -> bool:
        row = runtime.rows.agent(task.owner or "")
        return row is not None and row[0].incarnation == task.owner_incarnation and resumed(row[0])

    await free_abandoned(
        runtime.services.store,
        runtime.session,
        runtime.rows,
        own_fence=runtime.fence,
        now=runtime.clock.now(),
        resumed=goes_on,
    )


def is_stranded(rows: RowCache, task: Task) -> bool:
    """Return True if a pending task is reserved for an agent that has ended or is parked.

    A lead that has ended gets it in its next life.
    """
    if task.status != "pending" or not task.reserved_for:
        return False
    row = rows.agent(task.reserved_for)
    return row is not None and row[0].kind != "lead" and row[0].life in ("stopped", "crashed")


async def free_stranded(runtime: SessionRuntime) -> None:
    """Let any agent claim the tasks reserved for agents that can claim nothing.

    An agent's own end frees the tasks that it knows of. A task can be reserved in the same moment, in any process.
    """
    while stranded := [task for task in runtime.rows.open_tasks() if is_stranded(runtime.rows, task)]:
        try:
            await runtime.commit(
                *task_writes(runtime, (task_rules.assign(t, "", "lead", runtime.clock.now()) for t in stranded))
            )
            return
        except Conflict as lost:
            await runtime.refresh(lost.what)


async def align_tasks(agent: AgentRuntime) -> None:
    """Align an agent's tasks with the board at the start of a life or at a resume, under this process's lease.

    Tasks given with the agent's assignment are added; tasks freed by parking are dropped.
    """
    runtime = agent.runtime
    now = agent.runtime.clock.now()
    held_before = agent.state.work.tasks
    holder = runtime.task_holder(agent.state)
    held = held_by(runtime.rows.at_stake(), holder)
    writes: list[Write] = []
    for task in held:
        row = runtime.rows.task(task.id)
        own = task_rules.take_up(task, holder)
        if row is not None and own != task:
            writes.append(Put(task_key(runtime.session, task.id), own.encode(), expected=row[1]))
    events = [ev.TaskHeld(at=now, task=task.id, subject=task.subject) for task in held if task.id not in held_before]
    gone = sorted(held_before.keys() - {task.id for task in held})
    events += [ev.TaskHeld(at=now, task=task_id, subject=held_before[task_id], held=False) for task_id in gone]
    if not events and not writes:
        return
    try:
        await agent.record(*events, writes=writes)
    except Conflict as lost:  # a task was changed at this moment: read again
        await runtime.refresh(lost.what)
        await align_tasks(agent)


async def claim_task(agent: AgentRuntime, step: st.ClaimTask) -> None:
    """Claim a task by a compare-and-swap in the claimer's own commit, with an envelope to itself.

    Mail comes before the board: while mail is on its way to the agent, it does not count as idle.
    """
    runtime = agent.runtime
    state = agent.state
    now = runtime.clock.now()
    session = runtime.session
    # The store is asked, because mail of another process may not have been received yet.
    if (
        await runtime.services.store.last(mailbox(session, agent.name, state.identity.incarnation))
        > state.inbox.position
    ):
        await agent.begin(st.Wait(None, "mail"))
        return
    try:
        task, write = claimed_task(session, runtime.rows, step.task, holder=runtime.task_holder(state), now=now)
        envelope = _task_envelope(agent, task, now)
        held = ev.TaskHeld(at=now, task=task.id, subject=task.subject)
        await agent.record(held, writes=[write, envelope_write(session, envelope)])
    except (Conflict, ToolRefused):
        await runtime.refresh(task_key(session, step.task))


async def release_tasks(agent: AgentRuntime, step: st.ReleaseTasks) -> None:
    """Release tasks that the board reassigned to another agent."""
    subjects = agent.state.work.tasks
    now = agent.runtime.clock.now()
    gone = [ev.TaskHeld(at=now, task=task_id, subject=subjects.get(task_id, ""), held=False) for task_id in step.tasks]
    await agent.note(*gone, unless=lambda state: not set(step.tasks) <= state.work.tasks.keys())


def _task_envelope(agent: AgentRuntime, task: Task, now: float) -> Envelope:
    details = owner_words(task, by_id(agent.runtime.rows.tasks()))
    text = f"You claimed {task.id} from the board: {task.subject}" + (f"\n{details}" if details else "")
    return Envelope(
        id=claim_envelope_id(task.id, task.attempts, agent.name),
        sender="board",
        recipient=agent.name,
        incarnation=agent.state.identity.incarnation,
        type="message",
        content=text + "\nCarry it out, then call complete_task (or fail_task, release_task).",
        cause=authority.claimed_authority("board", task.cause),
        metadata={"assignment": True, "task": task.id},
        sent_at=now,
    )


class TaskOffers:
    """Ready tasks of a hosted session, and the agent woken for each. `living`: the agents that live here."""

    def __init__(self, runtime: SessionRuntime, living: Callable[[], Iterable[AgentRuntime]]) -> None:
        self._runtime = runtime
        self._living = living
        self._offered = runtime.offered_tasks

    def handle_task(self, task: str) -> None:
        """Handle a changed task: its owner checks whether it still owns it, and ready tasks are offered."""
        for agent in self._living():
            if task in agent.state.work.tasks:
                agent.wake()
        self.offer_tasks()

    def offer_tasks(self) -> None:
        """Wake the agents for the ready tasks."""
        idle = {agent.name: agent for agent in self._living() if agent.state.identity.spec and agent.state.turn is None}
        if self._runtime.services.script is not None:  # a replay: each agent claims its recorded tasks
            for agent in idle.values():
                agent.wake()
            return
        rows = self._runtime.rows.at_stake()
        stale = [
            name for name, task in self._offered.items() if not self._is_offer_open(idle.get(name), rows.get(task))
        ]
        for name in stale:
            del self._offered[name]
        others = (agent for name, agent in idle.items() if name not in self._offered)
        self._offered |= offers(rows, self._idle_holders(others), list(self._offered.values()))
        for name in list(self._offered):
            idle[name].wake()

    def handle_agent(self, agent: AgentRuntime) -> None:
        """Handle a change of an agent. If it was woken and is now working or has ended, its offer passes to others."""
        if agent.name in self._offered and (agent.state.turn is not None or agent.state.lifecycle.ended is not None):
            del self._offered[agent.name]
            self.offer_tasks()

    def _is_offer_open(self, agent: AgentRuntime | None, task: Task | None) -> bool:
        """Return True if an offer can still be taken."""
        return task is not None and task.status == "pending" and agent is not None and self._would_claim(agent)

    def _idle_holders(self, idle: Iterable[AgentRuntime]) -> Iterable[Holder]:
        """Yield idle agents one by one, so that no more agents of a large team are examined than there are tasks."""
        return (self._runtime.task_holder(agent.state) for agent in idle if self._would_claim(agent))

    def _would_claim(self, agent: AgentRuntime) -> bool:
        return self._runtime.claimable_task(agent.state) is not None
