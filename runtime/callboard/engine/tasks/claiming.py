"""Claims of tasks on a store: taken by compare-and-swap, held under the lease of a process, freed when it is gone.

The laws are `core/tasks/laws.py`; here they become writes. An agent claims in its own commit (`claim`), what dead
processes held comes free (`free_abandoned`), what a resumed agent still holds goes on under its new process
(`take_up`), and what the board gave to somebody else is let go (`let_go`). `claimed` and `free_abandoned` need no
agent: any process with a lease of its own may work on a board by them.
"""

from __future__ import annotations

from collections.abc import Callable

from callboard.core.bus import authority
from callboard.core.bus.mail import sending
from callboard.core.names import claim_envelope_id, mailbox, task_key
from callboard.core.tasks import laws
from callboard.core.tasks.laws import Holder, by_id, held_by
from callboard.core.tasks.wording import owner_words
from callboard.engine.board import SessionBoard
from callboard.engine.host import Host
from callboard.engine.loop import Agent
from callboard.ports.store import Fence, Put, Row, Store, Write
from callboard.words import events as ev
from callboard.words import steps as st
from callboard.words.errors import Conflict, ToolRefused
from callboard.words.values import AgentRow, Envelope, Task

GONE = "The process that worked on it has gone, and nobody goes on where it was."


def claimed(session: str, board: SessionBoard, task_id: str, holder: Holder, now: float) -> tuple[Task, Put]:
    """The task in this life's hands, and the write that makes it so. Raises `ToolRefused`, also for an unknown one."""
    row = board.task(task_id)
    if row is None:
        raise ToolRefused(f"no task {task_id} on the board")
    task = laws.claim(row[0], holder, by_id(board.tasks()), now)
    return task, Put(task_key(session, task_id), task.encode(), expected=row[1])


async def free_abandoned(
    store: Store, session: str, board: SessionBoard, mine: Fence | None, now: float, resumed: Callable[[Task], bool]
) -> list[Task]:
    """Free the tasks whose owners' processes are gone: nobody holds the lease they were claimed under, and `resumed`
    does not say that their owner goes on here. Returns those that this call freed. `mine`: this process's own lease.

    Who frees a task at the same moment makes this one lose its compare-and-swap, and nothing is freed twice.
    """
    freed: list[Task] = []
    for task_id in [task.id for task in board.tasks()]:
        row = board.task(task_id)  # as it stands now: others change the board while this one waits
        if row is None or row[0].status != "in_progress" or resumed(row[0]) or await _alive(store, row[0], mine):
            continue
        free, key = laws.free(row[0], now, GONE), task_key(session, task_id)
        try:
            (revision,) = await store.commit(Put(key, free.encode(), expected=row[1]), fence=mine)
        except Conflict:
            found = await store.get(key)
        else:
            found = Row(key, free.encode(), revision)
            freed.append(free)
        if found is not None:
            board.take(found)
    return freed


async def _alive(store: Store, task: Task, mine: Fence | None) -> bool:
    """Whether the process that the task was claimed in still holds its lease."""
    if mine is not None and task.lease == mine.lease:
        return task.lease_number == mine.number
    return bool(task.lease) and await store.holder(task.lease) is not None


async def free_at_start(host: Host, resumed: Callable[[AgentRow], bool]) -> None:
    """Before a session's agents are resumed: what its own agents hold stays theirs, all else comes free."""

    def kept(task: Task) -> bool:
        row = host.board.agent(task.owner or "")
        return row is not None and row[0].incarnation == task.owner_incarnation and resumed(row[0])

    await free_abandoned(host.ports.store, host.session, host.board, host.fence, host.clock.now(), kept)


async def take_up(agent: Agent) -> None:
    """At the beginning of a life, and where it is resumed: what it holds by the board is what it knows to hold, under
    this process's lease. What was given to it with its assignment is new to it; what parking it freed is gone."""
    host, now, known = agent.host, agent.host.clock.now(), agent.state.tasks
    holder = host.holder(agent.state)
    held = held_by(by_id(host.board.tasks()), holder)
    writes: list[Write] = []
    for task in held:
        row = host.board.task(task.id)
        mine = laws.take_up(task, holder)
        if row is not None and mine != task:
            writes.append(Put(task_key(host.session, task.id), mine.encode(), expected=row[1]))
    events = [ev.TaskHeld(at=now, task=one.id, subject=one.subject) for one in held if one.id not in known]
    gone = sorted(known.keys() - {task.id for task in held})
    events += [ev.TaskHeld(at=now, task=one, subject=known[one], held=False) for one in gone]
    if not events and not writes:
        return
    try:
        await agent.record(*events, writes=writes)
    except Conflict as lost:  # somebody changed a task at this very moment: look again
        await host.refresh(lost.what)
        await take_up(agent)


async def claim(agent: Agent, step: st.Claim) -> None:
    """The claim is a compare-and-swap in the claimer's own commit, with the envelope that tells it to itself.

    Inbox before board: while mail is on its way into the agent, it is not taken for idle.
    """
    host, state = agent.host, agent.state
    now, session = host.clock.now(), host.session
    if await host.ports.store.last(mailbox(session, agent.name, state.incarnation)) > state.position:
        await agent.begin(st.Wait(None, "mail"))
        return
    try:
        task, write = claimed(session, host.board, step.task, host.holder(state), now)
        envelope = _task_envelope(agent, task, now)
        held = ev.TaskHeld(at=now, task=task.id, subject=task.subject)
        await agent.record(held, writes=[write, sending(session, envelope)])
    except (Conflict, ToolRefused):
        await host.refresh(task_key(session, step.task))


async def let_go(agent: Agent, step: st.LetGo) -> None:
    """The board gave these to somebody else: the agent no longer knows them as its own."""
    subjects, now = agent.state.tasks, agent.host.clock.now()
    gone = [ev.TaskHeld(at=now, task=one, subject=subjects.get(one, ""), held=False) for one in step.tasks]
    await agent.note(*gone, unless=lambda state: not set(step.tasks) <= state.tasks.keys())


def _task_envelope(agent: Agent, task: Task, now: float) -> Envelope:
    more = owner_words(task, by_id(agent.host.board.tasks()))
    text = f"You claimed {task.id} from the board: {task.subject}" + (f"\n{more}" if more else "")
    return Envelope(
        id=claim_envelope_id(task.id, task.attempts, agent.name),
        sender="board",
        recipient=agent.name,
        incarnation=agent.state.incarnation,
        type="message",
        content=text + "\nCarry it out, then call complete_task (or fail_task, release_task).",
        cause=authority.claim("board", task.cause),
        metadata={"assignment": True, "task": task.id},
        sent_at=now,
    )
