"""After a crash of an agent's code: it goes on from its journal, with back-off; too often in a row, it is parked.

Each crash is an event in its journal, written here, since the agent itself is gone. Where even its journal cannot be
folded any more, its row alone says that it is parked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TypeVar, cast

import structlog

from callboard.core.apply import fold
from callboard.core.bus.authority import spoken
from callboard.core.names import agent_key, journal
from callboard.core.state import AgentState
from callboard.core.team.lives import row_after
from callboard.engine.host import Host
from callboard.engine.memory import recall
from callboard.engine.supervision.commands import commands_ended
from callboard.engine.supervision.leaving import all_given_back, lead_told
from callboard.engine.supervision.members import Member, current
from callboard.ports.store import Append, Put, Write
from callboard.words.errors import Conflict, NobodyCanAct
from callboard.words.events import AgentCrashed, Event
from callboard.words.values import AgentRow, Cause

RESTARTS, RESTART_WINDOW = 3, 60.0
"""Restarts of a crashed agent within so many seconds, before it is parked and the lead is told."""
BACK_OFF = 0.5
"""Seconds before the first of them; each later one waits twice as long."""

log = structlog.get_logger("callboard.team")

T = TypeVar("T")


async def may_restart(host: Host, member: Member, crash: Exception) -> bool:
    """Wait, and let it go on from its journal (True); or park it, and tell the lead (False)."""
    now = host.clock.now()
    member.crashes = [at for at in member.crashes if now - at < RESTART_WINDOW] + [now]
    count, why = len(member.crashes), _first(crash)
    log.error("agent crashed", agent=member.row.name, crashes=count, exc_info=crash)
    if count <= RESTARTS:
        again = now + BACK_OFF * 2 ** (count - 1)
        await _written(host, member.row, (AgentCrashed(at=now, why=why, count=count, again_at=again),))
        await host.clock.sleep_until(again)
        return True
    await _park(host, member, AgentCrashed(at=now, why=why, count=count))
    host.budgets.leave(member.row.name, member.row.incarnation)
    member.result = ("failed", f"{member.row.name} crashed {count} times: {why}")
    return False


async def _park(host: Host, member: Member, crash: AgentCrashed) -> None:
    """It runs no more: its background commands are ended, its tasks come free, its requests are withdrawn, its
    subagents are stopped, and the lead is told, all in one commit."""
    row, note = current(host, member.row), f"{member.row.name} crashed and is parked"
    state = await _state(host, row)
    cause = spoken(state) if state is not None and state.spec is not None else "tool"
    ended, mail = await commands_ended(host, row, state) if state is not None else ([], [])
    while True:
        left = all_given_back(host, row, note)
        alarm = _alarm(host, row, crash, cause, [one.id for one in ended])
        try:
            await _written(host, row, (*ended, crash), [*left, *mail, *alarm])
            return
        except Conflict as lost:
            await host.refresh(lost.what)


async def _written(host: Host, row: AgentRow, events: Sequence[Event], writes: Sequence[Write] = ()) -> None:
    """The crash in its journal, and what came before it, its row and `writes`, in one commit. Raises what
    `Store.commit` raises."""
    row, crash = current(host, row), events[-1]
    assert isinstance(crash, AgentCrashed), "a crash comes last"
    state = await _state(host, row)
    told = state is not None and state.spec is not None and state.ended is None
    if state is None or not told:  # nothing to add to: the row says it
        parked = row.model_copy(update={"life": "crashed", "outcome": "failed", "waiting_for": "", "since": crash.at})
        rows = [] if crash.again_at else [Put(agent_key(host.session, row.name), parked.encode())]
        await host.commit(*rows, *writes)
        return
    after = row_after(row, fold(events, state), crash.at)
    stream = journal(host.session, row.name, row.incarnation)
    appends = [Append(stream, one.encode(), expected=state.seq + place) for place, one in enumerate(events)]
    await host.commit(*appends, Put(agent_key(host.session, row.name), after.encode()), *writes)
    try:
        for place, one in enumerate(events):
            host.observed(row.name, state.seq + 1 + place, one)
    except Exception:  # who only looks on must not end the session with it
        log.exception("a crash could not be shown", agent=row.name)


async def _state(host: Host, row: AgentRow) -> AgentState | None:
    try:
        return await recall(host.ports.store, host.session, row.name, row.incarnation)
    except NobodyCanAct:
        raise
    except Exception:  # a bug in folding is perhaps what made it crash
        log.exception("journal cannot be folded", agent=row.name)
        return None


def _alarm(host: Host, row: AgentRow, crash: AgentCrashed, cause: Cause, commands: Sequence[str]) -> list[Write]:
    ended = f"Its background commands are ended ({', '.join(commands)}). " if commands else ""
    text = f"{row.name} crashed again and again and is parked: {crash.why}. Its tasks are free again; a person can "
    return lead_told(host, row, f"{text}resume it. {ended}".rstrip(), "crashed", crash.at, cause)


async def guarded(work: Awaitable[T], agent: str) -> T | Exception:
    """What an agent's code returned, or what it raised, which must not end its team-mates. What nobody can act on
    (damage, a full disk) is raised, and so is a cancellation."""
    try:
        return await work
    except BaseException as raised:
        stops, (crash, cancelled) = _fatal(raised), _parted(raised)
        if stops is not None:
            raise stops from raised
        if crash is None or cancelled is not None:
            if crash is not None:  # in the moment in which the session is closed: its journal says how far it came
                log.exception("agent crashed", agent=agent, exc_info=crash)
            assert cancelled is not None, "what is no crash is a cancellation or an exit"
            raise cancelled from None
        return crash


def _fatal(crash: BaseException) -> NobodyCanAct | None:
    """The error in a crash that stops everything, if there is one."""
    if isinstance(crash, NobodyCanAct):
        return crash
    found = (_fatal(one) for one in _inside(crash))
    return next((one for one in found if one is not None), None)


def _parted(raised: BaseException) -> tuple[Exception | None, BaseException | None]:
    """What of it is a crash, and what is a cancellation or an exit: both come at once where one meets the other."""
    if isinstance(raised, Exception):
        return raised, None
    inside = [_parted(one) for one in _inside(raised)]
    if not inside:
        return None, raised
    crash = next((one for one, _ in inside if one is not None), None)
    return crash, next((one for _, one in inside if one is not None), None)


def _first(crash: BaseException) -> str:
    """The first exception of a crash, in a line."""
    inside = _inside(crash)
    return _first(inside[0]) if inside else f"{type(crash).__name__}: {crash}"


def _inside(crash: BaseException) -> tuple[BaseException, ...]:
    """The exceptions of a group; none for any other exception."""
    if isinstance(crash, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", crash).exceptions
    return ()
