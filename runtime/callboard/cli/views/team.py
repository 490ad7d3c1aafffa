"""The team as a tree that fits the screen, as lines of changes, and as JSON. Pure: values in, lines out.

The lead, its teammates below it, and their subagents below each: state, activity or wait, its start, its deadline,
tokens, cost. Times are in this machine's time zone. On a narrow screen columns are dropped from the right, then the
activity is shortened; a row never exceeds the width. Ended subagents, and all but the newest of the other ended agents,
are counted but not listed; the first line includes their usage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from callboard.cli.terminal.terminal import Block, Line, Style, columns, plain, stacked
from callboard.cli.views.events import call_words, first_line, shorten
from callboard.cli.views.listings import render_listing
from callboard.cli.views.rate import rate_brief, rate_json
from callboard.core.reports.activity import Activity
from callboard.core.reports.spending import usage_words
from callboard.sessions.inspect.resources import AGENTS, ENDED_AGENTS, AgentStatus, agent_record, moment
from callboard.sessions.inspect.team import ENDED_LISTED, AgentOverview, EndedAgents, TeamOverview
from callboard.sessions.result import AgentSummary
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import AgentRow, Usage

Agents = Sequence[AgentOverview]

_STYLES: Mapping[str, Style] = {"waiting": "warn", "crashed": "bad", "idle": "dim", "stopped": "dim", "stopping": "dim"}
_NAMES = 28
_LEAST = 14
"""Columns: maximum of the names in the tree, in addition to a fifth of the screen, and minimum of an agent's
activity."""
_HEADS = ("SINCE", "UNTIL", "TOKENS", "COST")
_WIDTHS = (8, 8, 6, 7)
_STATE = 8
_INDENT = 3
"""Columns of one level of the tree."""


@dataclass(frozen=True, slots=True)
class TeamRow:
    """One agent as cells."""

    agent: AgentOverview
    depth: int
    """Number of agents above it in the tree."""
    name: str
    state: str
    does: str
    cells: tuple[str, ...]
    style: Style


def tree_block(seen: TeamOverview, width: int, height: int | None = None) -> Block:
    """Return the whole team; if there are more rows than `height`, the last one is a count of the others."""
    top = [Line(text, "strong") for text in summary_texts(seen)]
    lines = tree_lines(seen, width)
    room = None if height is None else max(height - len(top) - 1, 1)
    if room is not None and len(lines) - 1 > room:
        hidden = len(lines) - room
        lines = [*lines[:room], Line(f"and {hidden} more agent{'' if hidden == 1 else 's'}", "dim")]
    shortened = (Line(shorten(line.text, width), line.style) for line in (*top, *lines))
    return Block((*shortened, *(Line(text, "bad") for text in seen.troubles)))


def tree_lines(seen: TeamOverview, width: int, *, labels: bool = False) -> list[Line]:
    """Return the heads, a line for each agent, and a count of the ended agents that are not listed.

    `labels`: name subagents for people (`explore 2`).
    """
    rows = team_rows(seen, labels=labels)
    names = min(_NAMES, max(_LEAST, width // 5), max([len("AGENT"), *(columns(row.name) for row in rows)]))
    count = _columns_shown(width - names - _STATE - 4)
    does = max(width - names - _STATE - 4 - sum(_WIDTHS[:count]) - 2 * count, 0)
    widths = (names, _STATE, does, *_WIDTHS[:count])
    heads = _line(("AGENT", "STATE", "DOES OR WAITS FOR", *_HEADS[:count]), widths, "dim")
    lines = [_line((row.name, row.state, row.does, *row.cells[:count]), widths, row.style) for row in rows]
    unlisted = seen.ended.count - sum(agent.row.life == "stopped" and _is_listed(agent) for agent in seen.agents)
    if unlisted > 0:
        text = "1 agent has ended" if unlisted == 1 else f"{unlisted:,} agents have ended"
        lines.append(Line(f"{text}: `callboard team ended` lists them", "dim"))
    return [heads, *lines]


def team_rows(seen: TeamOverview, *, labels: bool = False) -> list[TeamRow]:
    """Return the listed agents, each below the one that started it. `labels`: as of `tree_lines`."""
    return [_row(seen, pad, agent, labels=labels) for pad, agent in _tree(seen.agents)]


def changes_block(before: TeamOverview | None, seen: TeamOverview) -> Block:
    """Return a line for each agent whose activity changed, for output without a screen to paint."""
    previous = {(agent.row.name, agent.row.incarnation): _state_of(agent) for agent in before.agents} if before else {}
    news = [agent for agent in seen.agents if previous.get((agent.row.name, agent.row.incarnation)) != _state_of(agent)]
    lines = [_change(agent, seen.at) for agent in news]
    host = [Line(_hosted(seen), "dim")] if before is None or _hosted(before) != _hosted(seen) else []
    return Block((*host, *lines))


def _change(agent: AgentOverview, now: float) -> Line:
    state, does = _state_of(agent)
    at = moment(agent.row.since or now, now)
    return Line(f"{at} {state} {does}".rstrip(), _STYLES.get(agent.row.life, "plain"), agent.row.name)


def team_json(seen: TeamOverview) -> dict[str, Any]:
    """Return all data of the team at one moment. Times are Unix seconds, money is US dollars."""
    agents = [agent_record(agent) for agent in seen.agents]
    rates = {"rates": [rate_json(rate) for rate in seen.rates]} if seen.rates else {}
    rates |= {"troubles": list(seen.troubles)} if seen.troubles else {}
    team = {"type": "team", "session": seen.session, "at": seen.at, "host": seen.host, "agents": agents}
    team |= {name: text for name, text in (("machine", seen.machine), ("waits", seen.waits)) if text}
    return {**team, "ended": ended_json(seen.ended), **rates}


def ended_block(agents: Agents, skip: int, count: int, now: float) -> Block:
    """Return ended agents as a table, and how to see the next ones.

    `count`: the total number; `skip`: the number before these.
    """
    if not agents:
        return Block((Line("no agent has ended" if not count else f"there are {count:,} ended agents", "dim"),))
    listed = render_listing(ENDED_AGENTS, [AgentStatus(agent, now) for agent in agents])
    last = skip + len(agents)
    hint = f"; `--skip {last}` shows older ones" if last < count else ""
    return stacked(listed, Line(f"{skip + 1:,} to {last:,} of {count:,} ended agents{hint}", "dim"))


def ended_json(ended: EndedAgents) -> dict[str, Any]:
    """Return the number of ended agents, and their usage."""
    return {"count": ended.count, "usage": ended.usage.model_dump(mode="json"), "uncounted": ended.uncounted}


def short_number(count: int) -> str:
    """Return `950`, `12.3k`, `4.5M`."""
    if count < 1_000:
        return str(count)
    return f"{count / 1_000:.1f}k" if count < 999_950 else f"{count / 1_000_000:.1f}M"


def summary_texts(seen: TeamOverview) -> Iterator[str]:
    """Yield the session with its host, what blocks its calls, and the numbers of its agents and their usage."""
    living = [agent for agent in seen.agents if agent.row.life != "stopped"]
    usage = reduce(Usage.plus, (agent.summary.usage for agent in living), seen.ended.usage)
    lives = Counter(agent.row.life for agent in living)
    yield f"{seen.session}: {_hosted(seen)}"
    for notice in seen.rates:
        yield rate_brief(notice, seen.at)
    omitted = ""
    older = seen.ended.uncounted
    if older:
        omitted = f" without {older:,} ended agent{'' if older == 1 else 's'} (`callboard cost` has their part)"
    text = ", ".join(f"{count} {word}" for word, count in lives.items()) or "no agents"
    yield f"{text} | {usage_words(usage)}{omitted}"


def _hosted(seen: TeamOverview) -> str:
    if seen.host is None:
        return f"{seen.waits}; this is its last state" if seen.waits else "no process hosts it, this is its last state"
    return f"hosted by process {seen.host}" + (f" on {seen.machine}" if seen.machine else "")


def _is_listed(agent: AgentOverview) -> bool:
    return agent.row.kind != "subagent" or agent.row.life != "stopped"


def _tree(agents: Agents) -> Iterator[tuple[str, AgentOverview]]:
    """Yield each listed agent, below the one that started it, with the prefix before its name."""
    listed = [agent for agent in agents if _is_listed(agent)]
    below: dict[str, list[AgentOverview]] = {}
    names = {agent.row.name for agent in listed}
    for agent in listed:
        parent = agent.row.parent if agent.row.parent in names and agent.row.parent != agent.row.name else ""
        below.setdefault(parent or "", []).append(agent)
    yield from _descendants("", below, "")


def _descendants(parent: str, below: dict[str, list[AgentOverview]], pad: str) -> Iterator[tuple[str, AgentOverview]]:
    children = below.get(parent, [])
    for place, agent in enumerate(children):
        last = place == len(children) - 1
        yield (pad + ("└─ " if last else "├─ ") if parent else ""), agent
        yield from _descendants(agent.row.name, below, pad + ("   " if last else "│  ") if parent else "")


def _row(seen: TeamOverview, pad: str, agent: AgentOverview, *, labels: bool) -> TeamRow:
    state, does = _state_of(agent)
    usage = agent.summary.usage
    doing = agent.doing
    tokens = usage.prompt_tokens + usage.output_tokens
    cells = (
        moment(doing.since or agent.row.since, seen.at),
        moment(doing.until or 0.0, seen.at),
        short_number(tokens),
        "?" if usage.unpriced_tokens and not usage.cost_usd else f"${usage.cost_usd:.2f}",
    )
    name = agent.label or agent.row.name if labels else agent.row.name
    return TeamRow(
        agent, len(pad) // _INDENT, plain(pad + name), state, does, cells, _STYLES.get(agent.row.life, "plain")
    )


def _state_of(agent: AgentOverview) -> tuple[str, str]:
    """Return the agent's state in a word, and its activity or wait."""
    row = agent.row
    doing = agent.doing
    if row.life in ("stopped", "crashed"):
        return (row.outcome or row.life) if row.life == "stopped" else "crashed", first_line(agent.summary.what)
    if row.life == "idle" or not doing.what:
        # A lead without a prompt has nothing to do, as the status line says.
        unused = row.life == "starting" and row.kind == "lead"
        return "idle" if unused else row.life, ", ".join(agent.tasks) or ("no prompt yet" if unused else "")
    return row.life, activity_words(row, doing)


def activity_words(row: AgentRow, doing: Activity, home: str = "") -> str:
    """Return an agent's activity or wait: `bash pytest -q (+1)`. `home`: the folder to which paths are relative."""
    if doing.call is not None:
        suffix = f" (+{doing.others})" if doing.others else ""
        return f"{call_words(doing.call, home)}{suffix}"
    if doing.subject:
        return f"{row.waiting_for}: {first_line(doing.subject)}"
    return doing.what


def _columns_shown(room: int) -> int:
    """Return how many of the columns to the right fit next to an agent's activity."""
    count = len(_WIDTHS)
    while count and room - sum(_WIDTHS[:count]) - 2 * count < _LEAST:
        count -= 1
    return count


def _line(cells: Sequence[str], widths: Sequence[int], style: Style) -> Line:
    shortened = [shorten(plain(cell), width) for cell, width in zip(cells, widths, strict=True)]
    padded = [cell + " " * (width - columns(cell)) for cell, width in zip(shortened, widths, strict=True)]
    return Line("  ".join(padded).rstrip(), style)


def team_table(rows: Sequence[AgentSummary]) -> Block:
    """Return the name, activity and usage of each agent.

    Of the ended agents the newest are listed, the others are counted.
    """
    over = [row for row in rows if row.life == "stopped" and row.kind != "lead"]
    hidden = {row.name for row in over[:-ENDED_LISTED]}
    listed = render_listing(AGENTS, [row for row in rows if row.name not in hidden])
    if not hidden:
        return listed
    text = f"{len(hidden):,} more {'has' if len(hidden) == 1 else 'have'} ended: `callboard team ended` lists them"
    return stacked(listed, Line(text, "dim"))
