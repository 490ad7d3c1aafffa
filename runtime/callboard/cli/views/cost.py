"""Spending of a session, as a table of agents, models or days that fits 80 columns, and as JSON for a script. Pure.

Numbers of 100,000 and more are shortened for the screen; JSON contains them in full. `CACHED` is the share of all input
that was read from the service's prompt cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import reduce
from textwrap import wrap
from typing import Any, Literal

from callboard.cli.terminal.terminal import Block, Line, Style, columns, plain
from callboard.cli.views.events import shorten
from callboard.core.budgets.tree import SESSION, BudgetNode
from callboard.core.reports.spending import AgentSpending, CallTotals, ScheduleSpent, Spending, UnusedCalls, Why
from callboard.types.records import Usage

By = Literal["agent", "model", "day"]

_WIDTH = 80
_NAME = 24
_LEAVES = 20
"""Maximum number of subagents and ended agents of one agent with a row of their own. The others share a row."""

HEADS = ("CALLS", "INPUT", "WRITE", "READ", "OUTPUT", "CACHED", "COST")
_WIDTHS = (6, 8, 8, 8, 8, 8, 10)
_WHYS: Mapping[Why, tuple[str, str]] = {
    "cut": ("reply cut at the output limit", "replies cut at the output limit"),
    "failed": ("failed call", "failed calls"),
    "lost": ("call whose process ended", "calls whose process ended"),
    "interrupted": ("interrupted reply", "interrupted replies"),
    "summary": ("summary without use", "summaries without use"),
}


def cost_block(spending: Spending, by: By = "agent", budgets: Sequence[BudgetNode] = ()) -> Block:
    """Return the session's calls, tokens and money, by agent, by model or by day, and its budgets.

    The amount billed without use is included.
    """
    rows = {"agent": _by_agent, "model": _by_model, "day": _by_day}[by](spending)
    heads = f"{by.upper():<{_NAME}}{_cells(HEADS)}"
    return Block(
        (
            Line(_head(spending), "strong"),
            Line(heads, "dim"),
            *rows,
            _row("all", spending.total, "strong"),
            *(Line(text, "dim") for text in cost_notes(spending)),
            *budget_lines(budgets),
        )
    )


def budget_lines(budgets: Sequence[BudgetNode]) -> tuple[Line, ...]:
    """Return the used and the remaining amount of each budget."""
    return tuple(Line(text, style) for node in budgets for text, style in _budget(node))


def cost_json(spending: Spending, budgets: Sequence[BudgetNode] = ()) -> dict[str, Any]:
    """Return the cost as JSON for a script. Shares are from 0 to 1, money is US dollars."""
    return {
        "session": spending.session,
        "total": spent_json(spending.total),
        "agents": [_plain_agent(agent) for agent in spending.agents],
        "models": {name: spent_json(spent) for name, spent in spending.models.items()},
        "schedules": [
            {"id": schedule.id, "fires": schedule.fires, **spent_json(schedule.spent)}
            for schedule in spending.schedules
        ],
        "days": {day.isoformat(): spent_json(spent) for day, spent in spending.days(_local).items()},
        "budgets": [_plain_budget(node) for node in budgets],
    }


def _head(spending: Spending) -> str:
    spent = spending.total
    on = f", {next(iter(spending.models))}" if len(spending.models) == 1 else ""
    used = spent.usage
    tokens = f"{_number(used.prompt_tokens)} tokens in, {_number(used.output_tokens)} out"
    return plain(f"{spending.session}{on}: {tokens}, {_cost(used)}")


def _by_agent(spending: Spending) -> Iterator[Line]:
    several = len(spending.models) > 1
    for root in spending.agents:
        yield from _agent_rows(root, 0, several)


def _agent_rows(agent: AgentSpending, depth: int, several: bool) -> Iterator[Line]:
    """Yield the rows of an agent and of the agents below it. `several`: the session used several models."""
    pad = "  " * depth
    lives = f" ({agent.lives} lives)" if agent.lives > 1 else ""
    yield _row(f"{pad}{agent.name}{lives}", agent.own)
    if several:
        yield from _models_of(agent, f"{pad}  ")
    if agent.children and depth:
        yield _row(f"{pad}  with those below", agent.total, "dim")
    others = _cheap_children(agent)
    for child in agent.children:
        if child.name not in others:
            yield from _agent_rows(child, depth + 1, several)
    if others:
        yield _row(f"{pad}  {len(others)} other agents", _sum(others.values()), "dim")


def _cheap_children(agent: AgentSpending) -> Mapping[str, CallTotals]:
    """Return the spending of the children that get no row of their own, by name.

    If more than 20 have no agents below them, only the 20 that spent most get one.
    """
    leaves = [child for child in agent.children if not child.children]
    by_cost = sorted(leaves, key=lambda child: _amount(child.own), reverse=True)
    return {child.name: child.own for child in by_cost[_LEAVES:]}


def _amount(spent: CallTotals) -> tuple[float, int]:
    return spent.usage.cost_usd, spent.tokens


def _sum(parts: Iterable[CallTotals]) -> CallTotals:
    return reduce(CallTotals.plus, parts, CallTotals())


def _models_of(agent: AgentSpending, pad: str) -> Iterator[Line]:
    """Yield a row for each model of an agent, or only its name if there is just one."""
    if len(agent.models) == 1:
        yield Line(_label(f"{pad}on {next(iter(agent.models))}").rstrip(), "dim")
        return
    for model, spent in agent.models.items():
        yield _row(f"{pad}on {model}", spent, "dim")


def _by_model(spending: Spending) -> Iterator[Line]:
    agents = [agent for root in spending.agents for _, agent in root.flat()]
    for model, spent in spending.models.items():
        yield _row(model, spent)
        users = [agent for agent in agents if model in agent.models]
        by_cost = sorted(users, key=lambda agent: _amount(agent.models[model]), reverse=True)
        others = {agent.name: agent.models[model] for agent in by_cost[_LEAVES + 1 :]}
        yield from (_row(f"  {agent.name}", agent.models[model], "dim") for agent in users if agent.name not in others)
        if others:
            yield _row(f"  {len(others)} other agents", _sum(others.values()), "dim")


def _by_day(spending: Spending) -> Iterator[Line]:
    for day, spent in spending.days(_local).items():
        yield _row(day.isoformat(), spent)


def _local(at: float) -> datetime:
    return datetime.fromtimestamp(at).astimezone()


def _row(name: str, spent: CallTotals, style: Style = "plain") -> Line:
    return Line(f"{_label(name)}{_cells(spent_cells(spent))}", style)


def spent_cells(spent: CallTotals) -> tuple[str, ...]:
    """Return the texts of the columns `HEADS`."""
    used = spent.usage
    tokens = (used.input_tokens, used.cache_creation_input_tokens, used.cache_read_input_tokens, used.output_tokens)
    share = f"{spent.read_share:.0%}" if used.prompt_tokens else "-"
    return (_number(spent.calls), *map(_number, tokens), share, _cost(used))


def _label(name: str) -> str:
    label = shorten(plain(name), _NAME)
    return label + " " * (_NAME - columns(label))


def _cells(cells: tuple[str, ...]) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))


def cost_notes(spending: Spending, width: int = _WIDTH) -> Iterator[str]:
    """Yield what was billed without use, what runs, and what recovery did, in lines of this width."""
    spent = spending.total
    notes = (_unused(spent), _unknown(spent), _under_way(spent), _summaries(spent), _recovery(spent))
    for note in (*notes, *_schedules(spending)):
        yield from wrap(note, width, subsequent_indent="  ")


def _unused(spent: CallTotals) -> str:
    """Return `billed, not used: $0.0213: 2 failed calls $0.0113, 1 reply cut at the output limit $0.0100`."""
    parts = [
        f"{_counted(unused.calls, *_WHYS[cause])} {_cost(unused.usage)}"
        for cause, unused in _unused_by_reason(spent)
        if _tokens(unused.usage)
    ]
    return f"billed, not used: {_cost(spent.all_unused.usage)}: {', '.join(parts)}" if parts else ""


def _tokens(usage: Usage) -> str:
    """Return `1,234 in, 56 out`; empty for no tokens."""
    if not usage.prompt_tokens and not usage.output_tokens:
        return ""
    return f"{_number(usage.prompt_tokens)} in, {_number(usage.output_tokens)} out"


def _unknown(spent: CallTotals) -> str:
    """Return the calls that may be billed, but ended without reporting their usage."""
    parts = [_counted(unused.unknown, *_WHYS[cause]) for cause, unused in _unused_by_reason(spent) if unused.unknown]
    most = spent.all_unused.at_most_usd
    least = f"; at most {_money(most)}, as reserved" if most else ""
    return f"perhaps billed, not counted: {', '.join(parts)}{least}" if parts else ""


def _under_way(spent: CallTotals) -> str:
    if not spent.under_way:
        return ""
    reserved = f", {_money(spent.reserved_usd)} reserved" if spent.reserved_usd else ""
    return f"in progress: {_counted(spent.under_way, 'call', 'calls')}{reserved}"


def _summaries(spent: CallTotals) -> str:
    tokens = _tokens(spent.summaries)
    return f"for summaries: {tokens}, {_cost(spent.summaries)}" if tokens else ""


def _recovery(spent: CallTotals) -> str:
    counts = {
        "tries again": spent.retries,
        "waits for the service": spent.waits,
        "switches of model": spent.switches,
        "refused by a budget": spent.refused,
    }
    parts = [f"{name} {count}" for name, count in counts.items() if count]
    return ", ".join(parts)


def _schedules(spending: Spending) -> Iterator[str]:
    for schedule in spending.schedules:
        yield plain(f"of it for schedule {schedule.id}: {spent_words(schedule)}")


def spent_words(schedule: ScheduleSpent) -> str:
    """Return `3 turns, 12 calls, 45,678 tokens, $0.1234`."""
    turns = _counted(schedule.fires, "turn", "turns")
    calls = _counted(schedule.spent.calls, "call", "calls")
    return f"{turns}, {calls}, {_number(schedule.spent.tokens)} tokens, {_cost(schedule.spent.usage)}"


def _budget(node: BudgetNode) -> Iterator[tuple[str, Style]]:
    """Yield `budget of alice: $0.0226 of $0.5000, $0.4774 left; 3 of 9 calls, 6 left`.

    Amounts reserved by calls in progress count.
    """
    used = node.spent.plus(node.reserved)
    limits = node.budget
    parts: list[str] = []
    if limits.cost_usd is not None:
        remaining = max(0.0, limits.cost_usd - used.cost_usd)
        parts.append(f"{_money(used.cost_usd)} of {_money(limits.cost_usd)}, {_money(remaining)} left")
    for name, most, count in (("tokens", limits.tokens, used.tokens), ("calls", limits.steps, used.steps)):
        if most is not None:
            parts.append(f"{count:,} of {most:,} {name}, {max(0, most - count):,} left")
    if limits.seconds is not None:
        parts.append(f"{limits.seconds:,.0f} s since it began")
    if limits.agents is not None:
        parts.append(f"agents started: {node.agents:,} of {limits.agents:,}")
    style: Style = "warn" if any(part.endswith((" 0 left", "$0.0000 left")) for part in parts) else "dim"
    of = "the session" if node.name == SESSION else node.name.replace("schedule:", "schedule ")
    text = f"budget of {of}: {'; '.join(parts) or f'agents are at most {limits.depth} levels below it'}"
    for line in wrap(plain(text), _WIDTH, subsequent_indent="  "):
        yield line, style


def _plain_budget(node: BudgetNode) -> dict[str, Any]:
    spent = {"tokens": node.spent.tokens, "cost_usd": node.spent.cost_usd, "steps": node.spent.steps}
    held = {"tokens": node.reserved.tokens, "cost_usd": node.reserved.cost_usd, "steps": node.reserved.steps}
    limits = node.budget.model_dump(exclude_none=True)
    remaining = {kind: max(0, limits[kind] - used - held[kind]) for kind, used in spent.items() if kind in limits}
    return {
        "of": node.name,
        "limits": limits,
        "spent": spent,
        "reserved": held,
        "left": remaining,
        "agents": node.agents,
    }


def _counted(count: int, singular: str, plural: str) -> str:
    return f"{count:,} {singular if count == 1 else plural}"


def _number(count: int) -> str:
    """Return a number in at most seven columns: in full below 100,000."""
    if count < 100_000:
        return f"{count:,}"
    if count < 1_000_000:
        return f"{count / 1_000:.0f}k"
    return f"{count / 1_000_000:,.1f}M" if count < 1_000_000_000 else f"{count / 1_000_000_000:,.1f}G"


def _cost(usage: Usage) -> str:
    """Return dollars in at most nine columns: `unknown` without any price, `>$0.12` if some calls have none."""
    if not usage.unpriced_tokens:
        return _money(usage.cost_usd)
    return f">{_money(usage.cost_usd)}" if usage.cost_usd > 0 else "unknown"


def _money(dollars: float) -> str:
    """Return dollars in at most nine columns below ten million."""
    if dollars < 100:
        return f"${dollars:.4f}"
    return f"${dollars:,.2f}" if dollars < 10_000 else f"${dollars:,.0f}"


def spent_json(spent: CallTotals) -> dict[str, Any]:
    """Return the usage of some calls, for a script."""
    return {
        "calls": spent.calls,
        "usage": spent.usage.model_dump(),
        "cache_read_share": round(spent.read_share, 4),
        "summaries": spent.summaries.model_dump(),
        "billed_not_used": {cause: _plain_unused(unused) for cause, unused in _unused_by_reason(spent)},
        "retries": spent.retries,
        "waits": spent.waits,
        "switches": spent.switches,
        "refused": spent.refused,
        "under_way": spent.under_way,
        "reserved_usd": spent.reserved_usd,
    }


def _plain_unused(unused: UnusedCalls) -> dict[str, Any]:
    usage = unused.usage.model_dump()
    return {"calls": unused.calls, "usage": usage, "unknown": unused.unknown, "at_most_usd": unused.at_most_usd}


def _unused_by_reason(spent: CallTotals) -> list[tuple[Why, UnusedCalls]]:
    return [(cause, spent.unused[cause]) for cause in _WHYS if cause in spent.unused]


def _plain_agent(agent: AgentSpending) -> dict[str, Any]:
    return {
        "name": agent.name,
        "kind": agent.kind,
        "lives": agent.lives,
        "own": spent_json(agent.own),
        "total": spent_json(agent.total),
        "models": {name: spent_json(spent) for name, spent in agent.models.items()},
        "children": [_plain_agent(child) for child in agent.children],
    }
