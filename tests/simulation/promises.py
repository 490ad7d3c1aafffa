"""Promises of the whole that a chaos holds against what was left: money, tasks, requests, reports, hosts, states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tests.simulation.chaos_service import Bill, Service
from tests.simulation.chaos_store import Looks
from tests.simulation.evidence import Evidence, Life, broken, buried
from tests.simulation.outside import Outside

from callboard.core.agent.snapshot import dump, load
from callboard.core.agent.state import AgentState
from callboard.types import events as ev
from callboard.types.records import Envelope, Usage

_FOR_THE_OLD = frozenset({"command", "shutdown_request"})
"""Mail that ends with the life that it was for."""


@dataclass
class Seen:
    """What a run saw of its processes."""

    live: dict[tuple[str, int], AgentState] = field(default_factory=dict[tuple[str, int], AgentState])
    """The states of the newest process that came to rest."""
    died: set[int] = field(default_factory=set[int])
    """Processes that did not end by themselves."""
    bugs: list[str] = field(default_factory=list[str])
    """Agents whose code raised, once for each time."""
    frozen: bool = False


def broken_ever(evidence: Evidence, seen: Seen, service: Service) -> list[str]:
    """What must hold whenever a process dies."""
    found = broken(evidence, at_rest=False)
    found += _held(evidence)
    found += _money(evidence, seen, service)
    return found


def broken_at_rest(evidence: Evidence, seen: Seen, service: Service, outside: Outside, looks: Looks) -> list[str]:
    """What must hold when all is quiet."""
    found = broken(evidence)
    found += _held(evidence)
    found += _money(evidence, seen, service)
    found += service.complaints
    found += looks.broken
    found += [f"command {call} ran {times} times" for call, times in outside.commanded.items() if times > 1]
    most = 2 if seen.frozen else 1  # a frozen host may end what another has taken over: the same bytes again
    found += [f"call {call} wrote {times} times" for call, times in outside.written.items() if times > most]
    found += [f"{one.id} ({one.kind}) is pending for ever" for one in evidence.requests if one.status == "pending"]
    found += _rest(evidence)
    found += _told(evidence)
    found += _renewed(evidence)
    found += _states(evidence, seen)
    return found


def _rest(evidence: Evidence) -> Iterator[str]:
    """Everybody is idle, or over; the lead never is over."""
    for row in evidence.rows:
        state = evidence.life(row.name).state
        fresh = (
            row.life == "starting" and state.turns.count == 0 and all(one.mode == "queue" for one in state.inbox.mail)
        )
        if row.waiting_for or not (fresh or row.life in ("idle", "stopped", "crashed")):
            yield f"{row.name} is {row.life} for ever, waiting for {row.waiting_for!r}"
        if row.kind == "lead" and not (fresh or row.life == "idle"):
            yield f"the lead is {row.life} at the end"


def _held(evidence: Evidence) -> Iterator[str]:
    """A task in progress is held by one life, which knows it, and no life holds what is another's. A process may die
    before a life has heard that its task was taken: then the word of it waits in its mailbox, or for its next turn
    (seen with seed 3210 of six). The next process lets go of the task first."""
    rows = {row.name: row for row in evidence.rows}
    tasks = {task.id: task for task in evidence.tasks}
    for life in evidence.lives:
        row = rows[life.name]
        if (
            life.state.lifecycle.ended
            or life.parked
            or life.incarnation != row.incarnation
            or buried(life, evidence.rows)
        ):
            continue
        for name in life.state.work.tasks:
            task = tasks[name]
            theirs = (task.owner, task.owner_incarnation) == (life.name, life.incarnation)
            if not theirs and not any(name in mail.content for mail in _unheard(life)):
                yield f"{life.name} holds {name}, which is {task.status} of {task.owner}"


def _unheard(life: Life) -> Iterator[Envelope]:
    heard = {id for event in life.events if isinstance(event, ev.EnvelopesDelivered) for id in event.ids}
    yield from (mail for mail in life.mail if mail.id not in heard)


def _uses(life: Life) -> Iterator[tuple[str, Usage]]:
    """What each record counted: of one call, or of a summary in all."""
    for event in life.events:
        match event:
            case ev.ModelReplied() | ev.ReplyDropped():
                yield "call", event.usage
            case ev.CallFailed() if event.fault.usage is not None:
                yield "call", event.fault.usage
            case ev.ContextEdited() | ev.SummaryFailed():
                yield "summary", event.usage
            case _:
                pass


def _tokens(usage: Usage) -> tuple[int, int]:
    return usage.prompt_tokens, usage.output_tokens


def _money(evidence: Evidence, seen: Seen, service: Service) -> Iterator[str]:
    """What was billed is counted once. What a process that died, or a bug, took with it is not known."""
    by_agent: dict[str, list[Bill]] = {}
    for bill in service.bills:
        by_agent.setdefault(bill.agent, []).append(bill)
    counted: dict[str, Counter[tuple[int, int]]] = {}
    summaries = Counter[str]()
    for life in evidence.lives:
        total = Usage()
        for kind, usage in _uses(life):
            total = total.plus(usage)
            if kind == "call":
                counted.setdefault(life.name, Counter())[_tokens(usage)] += 1
            else:
                summaries[life.name] += usage.output_tokens
        if _tokens(total) != _tokens(life.state.budget.usage):
            yield f"{life.name}.{life.incarnation}: its records count {total}, its state {life.state.budget.usage}"
    for name in {*by_agent, *counted}:
        yield from _balanced(name, by_agent.get(name, []), counted.get(name, Counter()), summaries[name], seen)


def _balanced(
    name: str, bills: list[Bill], counted: Counter[tuple[int, int]], summaries: int, seen: Seen
) -> Iterator[str]:
    turns = {_tokens(bill.usage): bill for bill in bills if bill.purpose == "turn" or bill.failed}
    for usage, times in counted.items():
        if times != 1 or usage not in turns:
            yield f"{name}: {usage} was counted {times} times, billed: {usage in turns}"
    missing = [bill for usage, bill in turns.items() if usage not in counted]
    lost = Counter(bill.process for bill in missing if bill.process in seen.died)
    bugs = seen.bugs.count(name)
    unknown = [bill for bill in missing if bill.process not in seen.died]
    if len(unknown) > bugs or any(times > 2 + bugs for times in lost.values()):
        yield f"{name}: billed and never counted: {[(bill.process, bill.usage.output_tokens) for bill in missing]}"
    billed = sum(bill.usage.output_tokens for bill in bills if bill.purpose == "summary" and not bill.failed)
    if summaries > billed or (summaries < billed and not seen.died and not bugs):
        yield f"{name}: summaries cost {billed} tokens, counted are {summaries}"


def _told(evidence: Evidence) -> Iterator[str]:
    """The lead has heard of every teammate that failed, was parked, or ended while it owed a report."""
    heard = Counter[str]()
    known = set[str]()
    for life in evidence.lives:
        if life.name == "lead":
            for one in life.mail:
                if one.type == "error" and one.id not in known:
                    known.add(one.id)
                    heard[one.sender] += 1
    wanted = Counter[str]()
    for life in evidence.lives:
        if life.state.identity.spec is None or life.state.me.kind != "teammate":
            continue
        bad = ("failed", "overflow", "refused", "limit")
        wanted[life.name] += sum(1 for e in life.events if isinstance(e, ev.TurnEnded) and e.reason in bad)
        wanted[life.name] += bool(life.state.lifecycle.ended and life.state.work.assignment) + life.parked
    for name, times in wanted.items():
        if heard[name] < times:
            yield f"{name} failed {times} times, and the lead heard of {heard[name]}"


def _renewed(evidence: Evidence) -> Iterator[str]:
    """What the old life of the lead had not taken, the new one was given."""
    leads = [life for life in evidence.lives if life.name == "lead"]
    for old, new in pairwise(leads):
        there = {one.id for one in new.mail}
        waiting = {one.id for one in old.state.inbox.mail}
        left = [one for one in old.mail if one.seq > old.state.inbox.position or one.id in waiting]
        yield from (f"{one.type} {one.id} got lost with an old lead" for one in left if _lost(one.type, one.id, there))


def _lost(kind: str, name: str, there: set[str]) -> bool:
    return kind not in _FOR_THE_OLD and name not in there


def _states(evidence: Evidence, seen: Seen) -> Iterator[str]:
    """The state folded from the journal is the one that lived, and a snapshot of it is it again."""
    for life in evidence.lives:
        lived = seen.live.get((life.name, life.incarnation))
        if lived is not None and lived != life.state and not life.parked:
            yield f"{life.name}.{life.incarnation}: the state that lived is not what its journal says"
        if load(dump(life.state)) != life.state:
            yield f"{life.name}.{life.incarnation}: a snapshot of its state is not its state"
