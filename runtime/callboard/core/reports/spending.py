"""Report of spending by agent, model and purpose: a session's journals folded into a tree that adds up. Pure.

It counts the usage in the events, each once, by the rules of `BudgetUse.usage`: a life's total equals that state's.
Nothing is estimated: for a call that ended without reporting its usage, the reservation is reported separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import date, datetime
from typing import Literal, TypeVar

from callboard.core.budgets.tree import schedule_of
from callboard.types import events as ev
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Usage

QUARTER = 900
"""Seconds of the periods in which spending is summed up."""
Why = Literal["cut", "failed", "lost", "interrupted", "summary"]
"""Reasons why a billed call had no result: cut at the output limit and requested again; failed; lost, because its
process ended during the call; interrupted by a person; a summary that could not be used."""


@dataclass(frozen=True, slots=True)
class UnusedCalls:
    """Calls without a result that is kept."""

    calls: int = 0
    usage: Usage = Usage()
    """Known usage of the calls: it is billed."""
    unknown: int = 0
    """Number of calls that ended without reporting their usage."""
    at_most_usd: float = 0.0
    """Amount reserved for the calls of unknown usage: their maximum cost, 0 without a budget."""

    def plus(self, other: UnusedCalls) -> UnusedCalls:
        """Return the sum of both."""
        return UnusedCalls(
            self.calls + other.calls,
            self.usage.plus(other.usage),
            self.unknown + other.unknown,
            self.at_most_usd + other.at_most_usd,
        )


@dataclass(frozen=True, slots=True)
class CallTotals:
    """Total use of some calls."""

    calls: int = 0
    """Number of calls, including retries and summaries."""
    usage: Usage = Usage()
    """Usage of all calls, whatever their result."""
    summaries: Usage = Usage()
    """Part of `usage` for summaries that were used."""
    unused: Mapping[Why, UnusedCalls] = field(default_factory=dict[Why, UnusedCalls])
    """Part of `usage` that was billed and not used."""
    retries: int = 0
    """Number of retries that recovery decided on."""
    waits: int = 0
    """Number of waits for a rate or spend limit, which are not attempts."""
    switches: int = 0
    """Number of switches to another model of the chain."""
    refused: int = 0
    """Number of calls and agents that did not fit into a budget."""
    under_way: int = 0
    """Number of calls whose end is not in the journal: they are running, or their process ended."""
    reserved_usd: float = 0.0
    """Amount reserved for running calls."""

    def plus(self, other: CallTotals) -> CallTotals:
        """Return the sum of both."""
        unused = dict(self.unused)
        for reason, other_unused in other.unused.items():
            unused[reason] = unused.get(reason, UnusedCalls()).plus(other_unused)
        return CallTotals(
            calls=self.calls + other.calls,
            usage=self.usage.plus(other.usage),
            summaries=self.summaries.plus(other.summaries),
            unused=unused,
            retries=self.retries + other.retries,
            waits=self.waits + other.waits,
            switches=self.switches + other.switches,
            refused=self.refused + other.refused,
            under_way=self.under_way + other.under_way,
            reserved_usd=self.reserved_usd + other.reserved_usd,
        )

    @property
    def tokens(self) -> int:
        """Return the number of all tokens, including cached input."""
        return self.usage.prompt_tokens + self.usage.output_tokens

    @property
    def read_share(self) -> float:
        """Return the share (0..1) of all input that the service read from its prompt cache."""
        whole = self.usage.prompt_tokens
        return self.usage.cache_read_input_tokens / whole if whole else 0.0

    @property
    def all_unused(self) -> UnusedCalls:
        """Return everything that was billed and not used."""
        return _sum_unused(self.unused.values())


@dataclass(frozen=True, slots=True)
class Life:
    """Spending of one incarnation, by account and model.

    The account is `schedule:<id>`, or empty for the agent's own.
    """

    name: str
    incarnation: int = 1
    kind: str = ""
    parent: str | None = None
    charged_to: str = ""
    """`schedule:<id>` if a fire of that schedule started it; empty: only its parent."""
    booked: Mapping[tuple[str, str], CallTotals] = field(default_factory=dict[tuple[str, str], CallTotals])
    fires: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of turns that a fire began, by account."""
    times: Mapping[int, CallTotals] = field(default_factory=dict[int, CallTotals])
    """The same spending by the quarter of an hour in which it was recorded (Unix seconds of its beginning)."""

    @property
    def spent(self) -> CallTotals:
        """Return the total spending."""
        return total(self.booked.values())


@dataclass(frozen=True, slots=True)
class AgentSpending:
    """Spending of one name in all its lives, and of the agents that it started."""

    name: str
    kind: str
    lives: int
    own: CallTotals
    total: CallTotals
    """Spending including all agents below it."""
    models: Mapping[str, CallTotals]
    """Its own spending by model, the most expensive first."""
    children: tuple[AgentSpending, ...] = ()

    def flat(self, depth: int = 0) -> Iterator[tuple[int, AgentSpending]]:
        """Yield it and all agents below it with their depths, parents first."""
        yield depth, self
        for child in self.children:
            yield from child.flat(depth + 1)


@dataclass(frozen=True, slots=True)
class ScheduleSpent:
    """Usage by a schedule's fires: their turns, and the agents that they started. The tree includes it too."""

    id: str
    fires: int
    """Number of turns that it began."""
    spent: CallTotals


@dataclass(frozen=True, slots=True)
class Spending:
    """Spending of a session. `total` is the sum of `agents`, of `models`, and of all lives."""

    session: str
    total: CallTotals
    agents: tuple[AgentSpending, ...]
    """The lead, and all agents without a known parent."""
    models: Mapping[str, CallTotals]
    schedules: tuple[ScheduleSpent, ...] = ()
    times: Mapping[int, CallTotals] = field(default_factory=dict[int, CallTotals])
    """Spending by the quarter of an hour, which every time zone's days consist of."""

    def days(self, local: Callable[[float], datetime]) -> dict[date, CallTotals]:
        """Return the spending of each day, the newest first. `local`: returns the local time of a moment."""
        return by_day([self], local)


def by_day(spendings: Iterable[Spending], local: Callable[[float], datetime]) -> dict[date, CallTotals]:
    """Return the spending of some sessions on each day, the newest first. `local`: as of `Spending.days`."""
    days: dict[date, CallTotals] = {}
    for spending in spendings:
        for at, spent in spending.times.items():
            day = local(at).date()
            days[day] = days.get(day, CallTotals()).plus(spent)
    return {day: days[day] for day in sorted(days, reverse=True)}


def life_spent(name: str, incarnation: int, events: Iterable[ev.Event]) -> Life:
    """Return the spending in one journal."""
    fold = LifeFold(Life(name, incarnation))
    for event in events:
        fold.take(event)
    return fold.life()


def spending_of(session: str, lives: Sequence[Life]) -> Spending:
    """Return the tree of a session, from all lives of all its agents, in the order of creation."""
    newest = {life.name: life for life in lives}
    charged = [_charged(life, newest) for life in lives]
    below: dict[str | None, list[str]] = {}
    for name, life in newest.items():
        has_parent = life.parent in newest and name not in _line(life.parent, newest)
        below.setdefault(life.parent if has_parent else None, []).append(name)
    by_name = {name: [life for life in charged if life.name == name] for name in newest}
    return Spending(
        session=session,
        total=total(life.spent for life in charged),
        agents=tuple(_agent(name, by_name, below) for name in below.get(None, ())),
        models=_by_model(charged),
        schedules=_schedules(charged),
        times=_by_time(lives),
    )


def total(spent: Iterable[CallTotals]) -> CallTotals:
    """Return the sum of all."""
    whole = CallTotals()
    for part in spent:
        whole = whole.plus(part)
    return whole


class LifeFold:
    """Fold of a journal, event by event: the model called, the account, and the result."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._booked: dict[tuple[str, str], CallTotals] = {}
        self._times: dict[int, CallTotals] = {}
        self._fires: dict[str, int] = {}
        self._at = 0.0
        self._account = ""
        self._model = ""
        """Model of the newest call of a turn."""
        self._small: str | None = None
        self._call: ev.ModelCalled | None = None
        self._summary: ev.ModelCalled | None = None
        """Running call of a summary, if it was recorded because of a budget."""
        self._counted = False
        """True if the calls of the running summary were recorded one by one."""

    def take(self, event: ev.Event) -> None:
        """Add one event."""
        self._at = event.at
        match event:
            case ev.AgentStarted():
                self._started(event)
            case ev.SpecChanged():
                self._small = event.spec.small_model
                self._model = event.spec.model
            case ev.TurnBegan():
                self._account = schedule_of(event.cause)
                if self._account:
                    self._fires[self._account] = self._fires.get(self._account, 0) + 1
            case ev.TurnEnded():
                self._account = ""
            case ev.RetryPlanned():
                self._book(CallTotals(waits=1) if event.parked else CallTotals(retries=1))
            case ev.ModelSwitched():
                self._book(CallTotals(switches=1), event.model)
            case ev.BudgetReached():
                self._book(CallTotals(refused=1))
            case _:
                self._take_call(event)

    def life(self) -> Life:
        """Return the result so far, including running calls."""
        booked = dict(self._booked)
        times = dict(self._times)
        for call in (self._call, self._summary):
            if call is not None:
                running = CallTotals(under_way=1, reserved_usd=call.reserved_usd)
                _add(booked, (self._account, call.model or self._model), running)
                _add(times, _quarter_hour(call.at), running)
        return replace(self._life, booked=booked, fires=dict(self._fires), times=times)

    def _started(self, event: ev.AgentStarted) -> None:
        spec = event.spec
        self._small = spec.small_model
        self._model = spec.model
        charged = schedule_of(spec.charged_to.removeprefix("fire:"))
        self._life = replace(self._life, kind=spec.kind, parent=spec.parent, charged_to=charged)

    def _take_call(self, event: ev.Event) -> None:
        match event:
            case ev.ModelCalled(purpose="turn"):
                self._call = event
                self._model = event.model
                self._book(CallTotals(calls=1))
            case ev.ModelReplied():
                self._book(CallTotals(usage=event.usage))
                self._call = None
            case ev.ReplyDropped():
                self._add_unused("cut", event.usage)
                self._call = None
            case ev.ReplyInterrupted():
                self._add_unused("interrupted", None)
                self._call = None
            case ev.CallFailed():
                self._failed(event)
            case _:
                self._take_summary(event)

    def _take_summary(self, event: ev.Event) -> None:
        match event:
            case ev.ModelCalled():
                self._summary = event
                self._counted = True
                self._book(CallTotals(calls=1), event.model)
            case ev.AgentResumed() if self._summary is not None:  # the process of the call is gone
                unused: dict[Why, UnusedCalls] = {
                    "lost": UnusedCalls(1, unknown=1, at_most_usd=self._summary.reserved_usd)
                }
                self._book(CallTotals(unused=unused), self._summary.model)
                self._summary = None
            case ev.ContextEdited() if not event.undoes and _used(event.usage):
                self._book(
                    CallTotals(calls=self._new(), usage=event.usage, summaries=event.usage), self._small or self._model
                )
                self._summary = None
                self._counted = False
            case ev.SummaryFailed() if event.skipped is None:
                if _used(event.usage):
                    self._add_unused("summary", event.usage, self._small or self._model, calls=self._new())
                self._summary = None
                self._counted = False
            case _:
                pass

    def _failed(self, event: ev.CallFailed) -> None:
        fault = event.fault
        reason: Why = "lost" if fault.kind == "lost" else "failed"
        unknown = fault.usage is None and (fault.may_bill or reason == "lost")
        usage = None if unknown else fault.usage or Usage()
        if event.purpose == "summary":
            self._add_unused(reason, usage, event.model, calls=self._new())
            self._summary = None
        else:
            self._add_unused(reason, usage, event.model)
            self._call = None

    def _new(self) -> int:
        """Return the number of calls to count now.

        A summary's call that was not recorded when it was made is counted when it has ended.
        """
        return 0 if self._counted else 1

    def _add_unused(self, reason: Why, usage: Usage | None, model: str = "", *, calls: int = 0) -> None:
        """Add a call without a result. `usage` None: its usage is unknown."""
        if usage is None:
            call = self._call or self._summary
            lost = UnusedCalls(calls=1, unknown=1, at_most_usd=call.reserved_usd if call else 0.0)
        else:
            lost = UnusedCalls(calls=1, usage=usage)
        unused: dict[Why, UnusedCalls] = {reason: lost}
        self._book(CallTotals(calls=calls, usage=lost.usage, unused=unused), model)

    def _book(self, spent: CallTotals, model: str = "") -> None:
        _add(self._booked, (self._account, model or self._model), spent)
        _add(self._times, _quarter_hour(self._at), spent)


_Key = TypeVar("_Key")


def _add(totals: dict[_Key, CallTotals], key: _Key, spent: CallTotals) -> None:
    totals[key] = totals.get(key, CallTotals()).plus(spent)


def _quarter_hour(at: float) -> int:
    """Return the beginning of the quarter of an hour."""
    return int(at // QUARTER * QUARTER)


def _used(usage: Usage) -> bool:
    return bool(usage.prompt_tokens or usage.output_tokens)


def _sum_unused(parts: Iterable[UnusedCalls]) -> UnusedCalls:
    whole = UnusedCalls()
    for part in parts:
        whole = whole.plus(part)
    return whole


def _line(name: str | None, newest: Mapping[str, Life]) -> list[str]:
    """Return a name and its ancestors, as far as they are known."""
    line: list[str] = []
    while name is not None and name in newest and name not in line:
        line.append(name)
        name = newest[name].parent
    return line


def _charged(life: Life, newest: Mapping[str, Life]) -> Life:
    """Return a life with its own spending charged to the schedule for which it, or an ancestor, was started."""
    above = [life, *(newest[name] for name in _line(life.parent, newest))]
    account = next((ancestor.charged_to for ancestor in above if ancestor.charged_to), "")
    if not account:
        return life
    booked: dict[tuple[str, str], CallTotals] = {}
    for (own, model), spent in life.booked.items():
        key = own or account, model
        booked[key] = booked.get(key, CallTotals()).plus(spent)
    return replace(life, booked=booked)


def _agent(name: str, lives: Mapping[str, Sequence[Life]], below: Mapping[str | None, Sequence[str]]) -> AgentSpending:
    children = tuple(_agent(child, lives, below) for child in below.get(name, ()))
    own = total(life.spent for life in lives[name])
    return AgentSpending(
        name=name,
        kind=lives[name][-1].kind,
        lives=len(lives[name]),
        own=own,
        total=total([own, *(child.total for child in children)]),
        models=_by_model(lives[name]),
        children=children,
    )


def _by_model(lives: Iterable[Life]) -> dict[str, CallTotals]:
    spent_by_model: dict[str, CallTotals] = {}
    for life in lives:
        for (_, model), spent in life.booked.items():
            spent_by_model[model] = spent_by_model.get(model, CallTotals()).plus(spent)
    return dict(sorted(spent_by_model.items(), key=lambda item: (-item[1].usage.cost_usd, item[0])))


def _by_time(lives: Iterable[Life]) -> dict[int, CallTotals]:
    times: dict[int, CallTotals] = {}
    for life in lives:
        for at, spent in life.times.items():
            _add(times, at, spent)
    return times


def _schedules(lives: Iterable[Life]) -> tuple[ScheduleSpent, ...]:
    spent: dict[str, CallTotals] = {}
    fires: dict[str, int] = {}
    for life in lives:
        for account, count in life.fires.items():
            fires[account] = fires.get(account, 0) + count
        for (account, _), part in life.booked.items():
            spent[account] = spent.get(account, CallTotals()).plus(part)
    accounts = sorted((fires | spent).keys() - {""})
    return tuple(
        ScheduleSpent(account.removeprefix("schedule:"), fires.get(account, 0), spent.get(account, CallTotals()))
        for account in accounts
    )


def usage_words(usage: Usage) -> str:
    """Return `12,345 tokens in (90 % cached), 678 out, $0.12`."""
    cached = f" ({usage.cache_read_input_tokens * 100 // usage.prompt_tokens} % cached)" if usage.prompt_tokens else ""
    return f"{usage.prompt_tokens:,} tokens in{cached}, {usage.output_tokens:,} out, {cost_words(usage)}"


def cost_words(usage: Usage) -> str:
    """Return `$0.12`; if the price of some calls is unknown, `cost unknown`, or `over $0.12` if others are known."""
    amount = f"${usage.cost_usd:.2f}"
    if not usage.unpriced_tokens:
        return amount
    return f"over {amount}" if usage.cost_usd > 0 else "cost unknown"
