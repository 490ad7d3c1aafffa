"""One agent of the session in this process: its life from its journal to its end, through crashes, or until a kill.

An agent whose code crashed continues from its journal, with back-off. After too many crashes it is parked. Each crash
is an event in its journal, written here because the agent no longer runs. If its journal cannot be folded, only its row
states that it is parked. The background commands of a parked agent end as at the end of a life. Otherwise no process
would enforce their deadline, receive their end, or know about them when another agent begins their task again.

A life that does not end by itself is ended here: the user killed it, or it did not stop within the time of its
shutdown. Its task is cancelled, which ends the process groups of its tools. An object that receives no more mail then
settles the open items of the journal, by the same rules as after a stop: calls get results, the turn ends, background
commands end, tasks are freed, requests withdrawn, subagents stopped, and the last record is written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from functools import partial
from typing import TypeVar, cast

import anyio
import structlog

from callboard.core.agent.apply import fold
from callboard.core.agent.authority import own_authority
from callboard.core.agent.rules.final_report import unreported_end
from callboard.core.agent.state import AgentState
from callboard.core.keys import agent_key, journal
from callboard.core.mcp.tool_names import PREFIX
from callboard.core.messaging.envelopes import envelope_write
from callboard.core.team.lifecycle import row_after
from callboard.engine.agent_lock import AgentLock, AgentLockHolder
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.loop import live
from callboard.engine.operations import model_call
from callboard.engine.operations.background import (
    end_command,
    notification,
    parked_subagent_notification,
    stopped_subagent,
)
from callboard.engine.operations.claim_task import align_tasks
from callboard.engine.operations.cleanup import notify_lead, release_all
from callboard.engine.operations.elicit import take_back_orphans
from callboard.engine.operations.mcp_tools import add_own_servers, remove_own_servers, wait_for_servers
from callboard.engine.operations.prompt import queue_first_reminders, set_prompt
from callboard.engine.operations.receive import listen, receive_rest
from callboard.engine.recall import load_spec, recall
from callboard.engine.runtime import SessionRuntime
from callboard.engine.step_handlers import begin
from callboard.engine.team.birth import Births
from callboard.engine.team.spawner import AgentSpawner
from callboard.ports.notifier import Latch
from callboard.ports.store import Append, Put, Write
from callboard.types.errors import Conflict, NobodyCanAct, SessionUnreadable
from callboard.types.events import (
    AgentCrashed,
    AgentResumed,
    AgentStarted,
    BackgroundEnded,
    BackgroundStarted,
    Event,
    StopAsked,
)
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import AgentRow
from callboard.types.steps import LifeDone

T = TypeVar("T")

log = structlog.get_logger("callboard.team")


@dataclass(slots=True)
class Member:
    """One agent of the session in this process."""

    row: AgentRow
    lock: AgentLock
    resumed: bool = False
    """True if the user resumed the session: a lead that had crashed lives again."""
    agent: AgentRuntime | None = None
    awake: bool = False
    """True once its first records in this process are written and its code has not crashed since."""
    ended: Latch = field(default_factory=Latch)
    result: tuple[str, str] = ("", "")
    crashes: list[float] = field(default_factory=list[float])
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Scope that cancels its task here."""
    gone: Latch = field(default_factory=Latch)
    """Event that is set when its task has ended."""
    killed: bool = False


@dataclass(frozen=True, slots=True)
class TeamContext:
    """Services of the team for an incarnation."""

    runtime: SessionRuntime
    pid: int
    births: Births
    wait_ended: Callable[[str, int], Awaitable[tuple[str, str]]]
    """Function (name, incarnation) that waits for the end of a life and returns (outcome, result)."""
    on_change: Callable[[AgentRuntime | None], None]
    """Called when something happened to an agent, or (None) to all agents."""


async def live_once(member: Member, team: TeamContext) -> tuple[str, str]:
    """Run an agent from its journal to its end and return (outcome, result).

    A life that has ended or is parked is only read.
    """
    row = member.row = current_row(team.runtime, member.row)
    newborn = await team.births.take(row)
    agent = newborn or await _recalled_agent(member, team.runtime)
    if not isinstance(agent, AgentRuntime):
        return agent
    member.agent = agent
    agent.spawner = AgentSpawner(agent, team.births.create, team.wait_ended)
    agent.on_wake = partial(team.on_change, agent)
    done: list[LifeDone] = []
    try:
        async with anyio.create_task_group() as group:
            agent.group = group
            if newborn is None:
                await _record_wake_up(agent, team.pid)
            elif agent.state.turn is not None:
                await queue_first_reminders(agent)
            if agent.begins_alone:  # before the first decision, so that the assignment joins the first commit
                await receive_rest(agent)
            group.start_soon(listen, agent)
            member.awake = True
            member.resumed = False
            team.on_change(None)
            done.append(await live(agent))
            group.cancel_scope.cancel()
    finally:
        agent.group = None  # an agent that has crashed starts no further operation
        await remove_own_servers(agent)
    return done[0].outcome, done[0].result


async def _recalled_agent(member: Member, runtime: SessionRuntime) -> AgentRuntime | tuple[str, str]:
    """Return an agent from its journal, or (outcome, result) of a life that is over or parked."""
    row = member.row
    state = await recall(runtime.services.store, runtime.session, row.name, row.incarnation)
    if state.lifecycle.ended is not None:
        return state.lifecycle.ended.outcome, state.lifecycle.ended.result
    if row.life == "crashed" and not member.resumed:
        return "failed", f"{row.name} crashed again and again and is parked"
    # It was killed and its journal cannot be continued. A caller that repeats its call must not revive it
    # (test_a_subagent_that_was_buried_does_not_live_again_for_a_caller_that_asks_anew).
    if row.life == "stopped":
        return row.outcome or "stopped", f"{row.name} was ended"
    return AgentRuntime(runtime, row, state, begin, lock=member.lock)


def current_row(runtime: SessionRuntime, row: AgentRow) -> AgentRow:
    """Return the current row of this life."""
    match = runtime.rows.agent(row.name)
    return match[0] if match is not None and match[0].incarnation == row.incarnation else row


async def _record_wake_up(agent: AgentRuntime, pid: int) -> None:
    """Write the first records of this process: the start or the resume, and the prompt in use."""
    now = agent.runtime.clock.now()
    runtime = agent.runtime
    if agent.state.identity.spec is None:
        await record_start(agent)
        runtime.budgets.join(agent.state)
    else:
        runtime.budgets.join(agent.state)
        await agent.record(AgentResumed(at=now, pid=pid))
        await take_back_orphans(runtime, agent.name)
        await model_call.remember_sent(agent)
    await align_tasks(agent)
    await add_own_servers(agent)
    # Calls in progress need the tools of their servers.
    if any(call.call.name.startswith(PREFIX) for call in agent.state.calls):
        await wait_for_servers(runtime)
    await set_prompt(agent)


async def record_start(agent: AgentRuntime) -> None:
    """Write the first record of a journal."""
    runtime = agent.runtime
    row = agent.row
    spec = await load_spec(runtime.services.store, runtime.session, row.spec)
    now = runtime.clock.now()
    event = AgentStarted(at=now, spec=spec, session=runtime.session, incarnation=row.incarnation)
    # A subagent's start joins the commit of its first turn, unless it has joined that of its birth (`Births`). After a
    # crash before that, the row without a journal starts again.
    if row.kind == "subagent":
        await agent.note(event)
    else:
        await agent.record(event)


RESTARTS = 3
RESTART_WINDOW = 60.0
"""Seconds in which the restarts of a crashed agent are counted. After too many, it is parked and the lead is informed.
"""
BACK_OFF = 0.5
"""Seconds before the first restart. Each later one waits twice as long."""


async def may_restart(runtime: SessionRuntime, member: Member, crash: Exception) -> bool:
    """Wait and return True to restart the agent from its journal; or park it, inform the lead, and return False."""
    now = runtime.clock.now()
    member.crashes = [at for at in member.crashes if now - at < RESTART_WINDOW] + [now]
    count = len(member.crashes)
    reason = _first_error_line(crash)
    log.error("agent crashed", agent=member.row.name, crashes=count, exc_info=crash)
    if count <= RESTARTS and not _is_damaged(crash):
        again_at = now + BACK_OFF * 2 ** (count - 1)
        await _record_crash(runtime, member, (AgentCrashed(at=now, why=reason, count=count, again_at=again_at),))
        # Meanwhile the row states that the agent is starting, and since when
        # (test_in_its_back_off_an_agent_is_starting_and_its_row_says_since_when).
        await runtime.clock.sleep_until(again_at)
        return True
    await _park(runtime, member, AgentCrashed(at=now, why=str(crash) if _is_damaged(crash) else reason, count=count))
    runtime.budgets.leave(member.row.name, member.row.incarnation)
    member.result = (
        "failed",
        f"{member.row.name} crashed {count} times: {reason}" if not _is_damaged(crash) else str(crash),
    )
    return False


async def _park(runtime: SessionRuntime, member: Member, crash: AgentCrashed) -> None:
    """Park an agent: end its background commands; then, in one commit, release everything and inform the lead.

    The commit frees the agent's tasks, withdraws its requests, and stops its subagents.
    """
    row = current_row(runtime, member.row)
    note = f"{member.row.name} crashed and is parked"
    state = await _state(runtime, row)
    cause = own_authority(state) if state is not None and state.identity.spec is not None else "tool"
    ended, mail = await end_commands(runtime, row, state) if state is not None else ([], [])
    repeated = "crashed again and again and " if crash.count > RESTARTS else ""
    text = f"{row.name} {repeated}is parked: {crash.why}. Its tasks are free again; a person can resume it."
    if ended:
        text += f" Its background commands are ended ({', '.join(record.id for record in ended)})."
    while True:
        returned = release_all(runtime, row, note)
        alarm = notify_lead(runtime, row, text, status="crashed", at=crash.at, cause=cause)
        try:
            await _record_crash(runtime, member, (*ended, crash), [*returned, *mail, *alarm])
            return
        except Conflict as lost:
            # Other agents may change the tasks and requests at the same time
            # (test_a_parking_that_loses_a_race_is_tried_again_on_fresh_rows).
            await runtime.refresh(lost.what)


async def _record_crash(
    runtime: SessionRuntime, member: Member, events: Sequence[Event], writes: Sequence[Write] = ()
) -> None:
    """Write the crash, the events before it, the row and `writes` in one commit, under the agent's lock.

    The crashed life of the agent has freed the lock. Raises the exceptions of `Store.commit`.
    """
    with AgentLockHolder(member.lock) as holder:
        await _write(runtime, current_row(runtime, member.row), holder, events=events, writes=writes)


async def _write(
    runtime: SessionRuntime, row: AgentRow, holder: AgentLockHolder, *, events: Sequence[Event], writes: Sequence[Write]
) -> None:
    crash = events[-1]
    assert isinstance(crash, AgentCrashed), "a crash comes last"
    state = await _state(runtime, row)
    # Read from the journal, because the object of the crashed agent may be in any state.
    recordable = state is not None and state.identity.spec is not None and state.lifecycle.ended is None
    if state is None or not recordable:  # there is no journal to continue: only the row states it
        parked = row.model_copy(update={"life": "crashed", "outcome": "failed", "waiting_for": "", "since": crash.at})
        rows = [] if crash.again_at else [Put(agent_key(runtime.session, row.name), parked.encode())]
        await runtime.commit(*rows, *writes)
        return
    after = row_after(row, fold(events, state), crash.at)
    stream = journal(runtime.session, row.name, row.incarnation)
    appends = [Append(stream, event.encode(), expected=state.seq + place) for place, event in enumerate(events)]
    await runtime.commit(*appends, Put(agent_key(runtime.session, row.name), after.encode()), *writes)
    try:
        runtime.report_events(holder, state.seq + 1, events)
    except Exception:  # a failing observer must not end the session
        log.exception("a crash could not be shown", agent=row.name)


async def _state(runtime: SessionRuntime, row: AgentRow) -> AgentState | None:
    try:
        return await recall(runtime.services.store, runtime.session, row.name, row.incarnation)
    except SessionUnreadable as wrong:
        if wrong.newer:
            raise
        return None
    except NobodyCanAct:
        raise
    except Exception:  # a bug in folding may be the cause of the crash
        log.exception("journal cannot be folded", agent=row.name)
        return None


async def result_or_exception(work: Awaitable[T], agent: str) -> T | Exception:
    """Return the result of an agent's code, or its exception, which must not end other agents.

    Raises faults on which no one can act (damage, a full disk) and cancellations.
    """
    try:
        return await work
    except BaseException as raised:
        stops = _fatal_error(raised)
        (crash, cancelled) = _crash_and_cancellation(raised)
        if stops is not None:
            raise stops from raised
        # If both happened, the crash must not replace the cancellation that closes the session.
        if crash is None or cancelled is not None:
            if crash is not None:  # it crashed while the session was closed: its journal has its progress
                log.exception("agent crashed", agent=agent, exc_info=crash)
            assert cancelled is not None, "what is no crash is a cancellation or an exit"
            raise cancelled from None
        return crash


def _fatal_error(crash: BaseException) -> NobodyCanAct | None:
    """Return the error in a crash that stops everything, if there is one."""
    if isinstance(crash, NobodyCanAct):
        return None if _is_damaged(crash) else crash
    fatal_errors = (_fatal_error(inner) for inner in _grouped_errors(crash))
    return next((error for error in fatal_errors if error is not None), None)


def _is_damaged(crash: BaseException) -> bool:
    """Return True if the agent's own journal is damaged: its team continues without it."""
    return isinstance(crash, SessionUnreadable) and not crash.newer


def _crash_and_cancellation(raised: BaseException) -> tuple[Exception | None, BaseException | None]:
    """Split an exception into its crash and its cancellation or exit: both are set if they happened together."""
    if isinstance(raised, Exception):
        return raised, None
    inside = [_crash_and_cancellation(inner) for inner in _grouped_errors(raised)]
    if not inside:
        return None, raised
    crash = next((fault for fault, _ in inside if fault is not None), None)
    return crash, next((end for _, end in inside if end is not None), None)


def _first_error_line(crash: BaseException) -> str:
    """Return the first exception of a crash, in one line."""
    inside = _grouped_errors(crash)
    return _first_error_line(inside[0]) if inside else f"{type(crash).__name__}: {crash}"


def _grouped_errors(crash: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions of a group; none for any other exception."""
    if isinstance(crash, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", crash).exceptions
    return ()


COMMANDS_GRACE = 10.0
"""Seconds for all commands together. A process group ends within 2 s. A command that still runs is recorded as running,
and is watched again when the user resumes the agent.
"""
PARKED = "It was ended when you crashed again and again and were parked."


async def end_commands(
    runtime: SessionRuntime, row: AgentRow, state: AgentState
) -> tuple[list[BackgroundEnded], list[Write]]:
    """End the running commands and the subagents in the background.

    Return, for one commit, their records and a message that the agent reads when it is resumed.
    """
    running = [command.began for command in state.work.background.values() if command.status == "running"]
    commands = [began for began in running if not began.agent]
    # The commit that parks its agent stops a subagent.
    ended = {began.id: stopped_subagent(runtime, began) for began in running if began.agent}
    # The lead must learn of the crash even if a command does not end
    # (test_what_cannot_be_ended_holds_no_parking_up_and_is_still_said_to_run).
    with anyio.move_on_after(COMMANDS_GRACE):
        async with anyio.create_task_group() as group:
            for began in commands:
                group.start_soon(partial(_end_logged, runtime, began, ended))
    records = [ended[command.id] for command in running if command.id in ended]
    mail = [
        (parked_subagent_notification if command.agent else notification)(row, command, ended[command.id], PARKED)
        for command in running
        if command.id in ended
    ]
    return records, [envelope_write(runtime.session, envelope) for envelope in mail]


async def _end_logged(runtime: SessionRuntime, began: BackgroundStarted, ended: dict[str, BackgroundEnded]) -> None:
    try:
        ended[began.id] = await end_command(runtime, began)
    except Exception:  # the parking must not fail for this reason
        log.exception("a background command could not be ended", command=began.id)


KILL_GRACE = 10.0
"""Seconds for its operations to end. A process group ends within 2 s. An operation that blocks a thread for longer is
abandoned and can record nothing.
"""
SETTLING = 60.0
"""Seconds for the settling. After that, only the row states that the life is over."""
SETTLINGS = 3
"""Attempts of the settling. After a crash the journal has the rest of the work for the next attempt."""


async def end_life(runtime: SessionRuntime, member: Member, order: StopAsked, pid: int) -> tuple[str, str]:
    """Cancel a life, settle it, write its last record, and return (outcome, result).

    Raises the exceptions of `Store.commit`.
    """
    # Set before the cancellation: the supervisor leaves the end of a killed life to this function.
    member.killed = True
    member.scope.cancel()
    # A thread cannot be cancelled (test_what_cannot_even_be_cancelled_is_left_behind_and_writes_nothing_any_more).
    with anyio.move_on_after(KILL_GRACE):
        await member.gone.wait()
    if member.agent is not None:
        member.agent.retire()
    row = current_row(runtime, member.row)
    with anyio.move_on_after(SETTLING):
        # Each attempt continues from the journal
        # (test_a_killed_teammate_is_settled_although_its_settling_crashes_once).
        for _ in range(SETTLINGS):
            settled = await result_or_exception(_settle_stopped(runtime, member, order, pid), row.name)
            if not isinstance(settled, Exception):
                return settled
            log.error("a killed agent could not be settled", agent=row.name, exc_info=settled)
    # The row must end in any case. Otherwise the session would never become quiet
    # (test_the_lead_is_told_of_a_killed_teammate_that_could_not_be_settled).
    await _end_lost_life(runtime, row, order)
    return "stopped", f"ended by {order.by}"


async def _settle_stopped(runtime: SessionRuntime, member: Member, order: StopAsked, pid: int) -> tuple[str, str]:
    """Settle a stopped life from its journal, once none of its operations runs."""
    row = current_row(runtime, member.row)
    state = await recall(runtime.services.store, runtime.session, row.name, row.incarnation)
    if state.lifecycle.ended is not None:
        return state.lifecycle.ended.outcome, state.lifecycle.ended.result
    agent = AgentRuntime(runtime, row, state, begin, lock=member.lock)
    done = list[LifeDone]()
    async with anyio.create_task_group() as group:
        agent.group = group
        # It was killed before its first record, and still owes its lead a report
        # (test_a_teammate_that_is_killed_before_its_first_record_is_reported_to_the_lead).
        if state.identity.spec is None:
            await record_start(agent)
        await receive_rest(agent)  # an assignment that it never read is owed a report too
        resumed = AgentResumed(at=order.at, pid=pid)
        # An earlier attempt may have recorded the order before it crashed.
        already_asked = state.lifecycle.stop == "asked" and (state.lifecycle.stop_by, state.lifecycle.stop_request) == (
            order.by,
            order.request_id,
        )
        await agent.record(*([resumed] if already_asked else [order, resumed]))
        done.append(await live(agent))
        group.cancel_scope.cancel()
    return done[0].outcome, done[0].result


async def _end_lost_life(runtime: SessionRuntime, row: AgentRow, order: StopAsked) -> None:
    """End a life whose journal cannot be continued, in one commit.

    The row ends, the tasks are freed, and the lead is informed. The caller of a subagent learns of the end when its
    wait ends.
    """
    ended = {"life": "stopped", "outcome": "stopped", "waiting_for": "", "since": order.at}
    note = f"{row.name} was ended by {order.by}"
    while True:
        ended_row = current_row(runtime, row).model_copy(update=ended)
        writes = release_all(runtime, row, note)
        writes += notify_lead(runtime, row, unreported_end(row.name, note), status="stopped", at=order.at)
        try:
            await runtime.commit(Put(agent_key(runtime.session, row.name), ended_row.encode()), *writes)
            return
        except Conflict as lost:
            await runtime.refresh(lost.what)
