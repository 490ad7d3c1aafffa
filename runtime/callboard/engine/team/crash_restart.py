"""Restart of an agent whose code crashed: it continues from its journal, with back-off. After too many crashes it is
parked.

Each crash is an event in its journal, written here because the agent is gone. If its journal cannot be folded, only its
row says that it is parked.

End of the background commands of a parked agent, as at the end of a life.

Otherwise no process would watch them: enforce their deadline, receive their end, or know about them when another agent
begins their task again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TypeVar, cast

import anyio
import structlog

from callboard.core.agent.apply import fold
from callboard.core.agent.authority import spoken
from callboard.core.agent.state import AgentState
from callboard.core.keys import agent_key, journal
from callboard.core.messaging.envelopes import sending
from callboard.core.team.lifecycle import row_after
from callboard.engine.operations.background import ended_now, notification
from callboard.engine.operations.cleanup import all_given_back, lead_told
from callboard.engine.recall import recall
from callboard.engine.runtime import Host
from callboard.engine.team.member import Member, current
from callboard.ports.store import Append, Put, Write
from callboard.types.errors import Conflict, NobodyCanAct, SessionUnreadable
from callboard.types.events import AgentCrashed, BackgroundEnded, BackgroundStarted, Event
from callboard.types.records import AgentRow, Cause

RESTARTS = 3
RESTART_WINDOW = 60.0
"""Seconds in which the restarts of a crashed agent are counted, before it is parked and the lead is informed."""
BACK_OFF = 0.5
"""Seconds before the first restart. Each later one waits twice as long."""

log = structlog.get_logger("callboard.team")

T = TypeVar("T")


async def may_restart(host: Host, member: Member, crash: Exception) -> bool:
    """Wait and return True to restart the agent from its journal; or park it, inform the lead, and return False."""
    now = host.clock.now()
    member.crashes = [at for at in member.crashes if now - at < RESTART_WINDOW] + [now]
    count = len(member.crashes)
    reason = _first(crash)
    log.error("agent crashed", agent=member.row.name, crashes=count, exc_info=crash)
    if count <= RESTARTS and not _damaged(crash):
        again_at = now + BACK_OFF * 2 ** (count - 1)
        await _written(host, member.row, (AgentCrashed(at=now, why=reason, count=count, again_at=again_at),))
        # Meanwhile the row says that the agent is starting, and since when
        # (test_in_its_back_off_an_agent_is_starting_and_its_row_says_since_when).
        await host.clock.sleep_until(again_at)
        return True
    await _park(host, member, AgentCrashed(at=now, why=str(crash) if _damaged(crash) else reason, count=count))
    host.budgets.leave(member.row.name, member.row.incarnation)
    member.result = (
        "failed",
        f"{member.row.name} crashed {count} times: {reason}" if not _damaged(crash) else str(crash),
    )
    return False


async def _park(host: Host, member: Member, crash: AgentCrashed) -> None:
    """Park an agent: its background commands are ended; then, in one commit, its tasks are freed, its requests
    withdrawn, its subagents stopped, and the lead informed."""
    row = current(host, member.row)
    note = f"{member.row.name} crashed and is parked"
    state = await _state(host, row)
    cause = spoken(state) if state is not None and state.spec is not None else "tool"
    ended, mail = await commands_ended(host, row, state) if state is not None else ([], [])
    while True:
        returned = all_given_back(host, row, note)
        alarm = _alarm(host, row, crash, cause=cause, commands=[record.id for record in ended])
        try:
            await _written(host, row, (*ended, crash), [*returned, *mail, *alarm])
            return
        except Conflict as lost:
            # The tasks and requests change under other agents
            # (test_a_parking_that_loses_a_race_is_tried_again_on_fresh_rows).
            await host.refresh(lost.what)


async def _written(host: Host, row: AgentRow, events: Sequence[Event], writes: Sequence[Write] = ()) -> None:
    """Write the crash, the events before it, the row and `writes` in one commit. Raises the exceptions of
    `Store.commit`."""
    row, crash = current(host, row), events[-1]
    assert isinstance(crash, AgentCrashed), "a crash comes last"
    state = await _state(host, row)
    # From the journal, because the object of the crashed agent may be in any state.
    recordable = state is not None and state.spec is not None and state.ended is None
    if state is None or not recordable:  # nothing to add to: the row says it
        parked = row.model_copy(update={"life": "crashed", "outcome": "failed", "waiting_for": "", "since": crash.at})
        rows = [] if crash.again_at else [Put(agent_key(host.session, row.name), parked.encode())]
        await host.commit(*rows, *writes)
        return
    after = row_after(row, fold(events, state), crash.at)
    stream = journal(host.session, row.name, row.incarnation)
    appends = [Append(stream, event.encode(), expected=state.seq + place) for place, event in enumerate(events)]
    await host.commit(*appends, Put(agent_key(host.session, row.name), after.encode()), *writes)
    try:
        for place, event in enumerate(events):
            host.observed(row.name, state.seq + 1 + place, event)
    except Exception:  # who only looks on must not end the session with it
        log.exception("a crash could not be shown", agent=row.name)


async def _state(host: Host, row: AgentRow) -> AgentState | None:
    try:
        return await recall(host.ports.store, host.session, row.name, row.incarnation)
    except SessionUnreadable as wrong:
        if wrong.newer:
            raise
        return None
    except NobodyCanAct:
        raise
    except Exception:  # a bug in folding is perhaps what made it crash
        log.exception("journal cannot be folded", agent=row.name)
        return None


def _alarm(host: Host, row: AgentRow, crash: AgentCrashed, *, cause: Cause, commands: Sequence[str]) -> list[Write]:
    ended = f"Its background commands are ended ({', '.join(commands)}). " if commands else ""
    repeated = "crashed again and again and " if crash.count > RESTARTS else ""
    text = f"{row.name} {repeated}is parked: {crash.why}. Its tasks are free again; a person can "
    return lead_told(host, row, f"{text}resume it. {ended}".rstrip(), status="crashed", at=crash.at, cause=cause)


async def guarded(work: Awaitable[T], agent: str) -> T | Exception:
    """Return the result of an agent's code, or the exception that it raised, which must not end other agents. Raises
    faults on which no one can act (damage, a full disk) and cancellations."""
    try:
        return await work
    except BaseException as raised:
        stops = _fatal(raised)
        (crash, cancelled) = _parted(raised)
        if stops is not None:
            raise stops from raised
        # Both at once: the crash must not replace the cancellation, or the session would fail instead of closing
        # (test_an_agent_that_crashes_as_its_session_closes_does_not_fail_the_session).
        if crash is None or cancelled is not None:
            if crash is not None:  # in the moment in which the session is closed: its journal says how far it came
                log.exception("agent crashed", agent=agent, exc_info=crash)
            assert cancelled is not None, "what is no crash is a cancellation or an exit"
            raise cancelled from None
        return crash


def _fatal(crash: BaseException) -> NobodyCanAct | None:
    """The error in a crash that stops everything, if there is one."""
    if isinstance(crash, NobodyCanAct):
        return None if _damaged(crash) else crash
    fatal_errors = (_fatal(inner) for inner in _inside(crash))
    return next((error for error in fatal_errors if error is not None), None)


def _damaged(crash: BaseException) -> bool:
    """Return True if the agent's own journal is damaged: its team continues without it."""
    return isinstance(crash, SessionUnreadable) and not crash.newer


def _parted(raised: BaseException) -> tuple[Exception | None, BaseException | None]:
    """Split an exception into its crash and its cancellation or exit: both are set if they happened together."""
    if isinstance(raised, Exception):
        return raised, None
    inside = [_parted(inner) for inner in _inside(raised)]
    if not inside:
        return None, raised
    crash = next((fault for fault, _ in inside if fault is not None), None)
    return crash, next((end for _, end in inside if end is not None), None)


def _first(crash: BaseException) -> str:
    """Return the first exception of a crash, in one line."""
    inside = _inside(crash)
    return _first(inside[0]) if inside else f"{type(crash).__name__}: {crash}"


def _inside(crash: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions of a group; none for any other exception."""
    if isinstance(crash, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", crash).exceptions
    return ()


COMMANDS_GRACE = 10.0
"""Seconds for all commands together. A process group ends within 2 s. A command that still runs stays in the journal as
running, and is watched again when the user resumes the agent."""
PARKED = "It was ended when you crashed again and again and were parked."


async def commands_ended(host: Host, row: AgentRow, state: AgentState) -> tuple[list[BackgroundEnded], list[Write]]:
    """End the running commands. Return their records and a message to the agent, which it reads when it is resumed, for
    one commit."""
    running = [command.began for command in state.background.values() if command.status == "running"]
    ended: dict[str, BackgroundEnded] = {}
    # The lead must learn of the crash even if a command does not end
    # (test_what_cannot_be_ended_holds_no_parking_up_and_is_still_said_to_run).
    with anyio.move_on_after(COMMANDS_GRACE):
        async with anyio.create_task_group() as group:
            for began in running:
                group.start_soon(partial(_end, host, began, ended))
    records = [ended[command.id] for command in running if command.id in ended]
    mail = [notification(row, command, ended[command.id], PARKED) for command in running if command.id in ended]
    return records, [sending(host.session, envelope) for envelope in mail]


async def _end(host: Host, began: BackgroundStarted, ended: dict[str, BackgroundEnded]) -> None:
    try:
        ended[began.id] = await ended_now(host, began)
    except Exception:  # the parking must not fail with it
        log.exception("a background command could not be ended", command=began.id)
