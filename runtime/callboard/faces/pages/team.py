"""The team as a tree that fits the screen, as lines of what changed, and as JSON. Pure: values in, lines out.

The lead, below it its teammates, below each its subagents: state, what it does or waits for, since when, when that runs
out, tokens, cost. Times are of this machine's clock. On a narrow screen columns go from the right, then what it does is
shortened; a row never takes more columns than there are. Subagents that have ended are counted, not listed; what they
used is in the first line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import reduce
from typing import Any

from callboard.desks.team import AgentSeen, TeamSeen
from callboard.faces.lines import call_words, columns, first_line, shorten, usage_words
from callboard.faces.terminal import Block, Line, Style, plain
from callboard.words.values import Usage

Agents = Sequence[AgentSeen]

_STYLES: Mapping[str, Style] = {"waiting": "warn", "crashed": "bad", "idle": "dim", "stopped": "dim", "stopping": "dim"}
_NAMES, _LEAST = 28, 14
"""Columns of the tree of names at most, beside a fifth of the screen; of what an agent does, at least."""
_HEADS = ("SINCE", "UNTIL", "TOKENS", "COST")
_WIDTHS = (8, 8, 6, 7)
_STATE = 8
_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class _Row:
    """One agent as cells."""

    name: str
    state: str
    does: str
    rest: tuple[str, ...]
    style: Style


def tree_block(seen: TeamSeen, width: int, height: int | None = None) -> Block:
    """The whole team; of more rows than `height` the last is a count of the others."""
    rows = [_row(seen, pad, one) for pad, one in _tree(seen.agents)]
    names = min(_NAMES, max(_LEAST, width // 5), max([len("AGENT"), *(columns(row.name) for row in rows)]))
    shown = _columns_shown(width - names - _STATE - 4)
    does = max(width - names - _STATE - 4 - sum(_WIDTHS[:shown]) - 2 * shown, 0)
    widths = (names, _STATE, does, *_WIDTHS[:shown])
    heads = _line(("AGENT", "STATE", "DOES OR WAITS FOR", *_HEADS[:shown]), widths, "dim")
    lines = [_line((row.name, row.state, row.does, *row.rest[:shown]), widths, row.style) for row in rows]
    top = [*(Line(words, "strong") for words in _summary(seen)), heads]
    room = None if height is None else max(height - len(top), 1)
    if room is not None and len(lines) > room:
        left = len(lines) - room + 1
        lines = [*lines[: room - 1], Line(f"and {left} more agent{'' if left == 1 else 's'}", "dim")]
    return Block(tuple(Line(shorten(line.text, width), line.style) for line in (*top, *lines)))


def changes_block(before: TeamSeen | None, seen: TeamSeen) -> Block:
    """A line for each agent that does something else than before, for where there is no screen to paint."""
    known = {(one.row.name, one.row.incarnation): _state_of(one) for one in before.agents} if before else {}
    news = [one for one in seen.agents if known.get((one.row.name, one.row.incarnation)) != _state_of(one)]
    lines = [_change(one, seen.at) for one in news]
    host = [Line(_hosted(seen), "dim")] if before is None or before.host != seen.host else []
    return Block((*host, *lines))


def _change(one: AgentSeen, now: float) -> Line:
    state, does = _state_of(one)
    at = moment(one.row.since or now, now)
    return Line(f"{at} {state} {does}".rstrip(), _STYLES.get(one.row.life, "plain"), one.row.name)


def team_json(seen: TeamSeen) -> dict[str, Any]:
    """Everything of the team at one moment. Times are Unix seconds, money is US dollars."""
    agents = [agent_json(one) for one in seen.agents]
    return {"type": "team", "session": seen.session, "at": seen.at, "host": seen.host, "agents": agents}


def agent_json(one: AgentSeen) -> dict[str, Any]:
    """One agent: what is known of it, and what it does now."""
    row, does = one.row, one.doing
    call = {"id": does.call.id, "tool": does.call.name, "input": does.call.input} if does.call else None
    summary = {**asdict(one.summary), "usage": one.summary.usage.model_dump(mode="json")}
    return {
        **summary,
        "incarnation": row.incarnation,
        "agent_type": row.agent_type,
        "role": row.role,
        "parent": row.parent,
        "depth": row.depth,
        "worktree": row.worktree,
        "waiting_for": row.waiting_for,
        "since": row.since,
        "doing": does.what,
        "doing_since": does.since,
        "until": does.until,
        "call": call,
        "beside": does.others,
        "about": does.subject,
        "tasks": list(one.tasks),
    }


def moment(at: float, now: float) -> str:
    """A time of the day; a date, where that is longer ago or ahead than a day. Empty for none."""
    if not at:
        return ""
    local = datetime.fromtimestamp(at).astimezone()
    return f"{local:%H:%M:%S}" if abs(now - at) < _DAY else f"{local:%m-%d %Hh}"


def short_number(count: int) -> str:
    """`950`, `12.3k`, `4.5M`."""
    if count < 1_000:
        return str(count)
    return f"{count / 1_000:.1f}k" if count < 999_950 else f"{count / 1_000_000:.1f}M"


def _summary(seen: TeamSeen) -> Iterator[str]:
    usage = reduce(Usage.plus, (one.summary.usage for one in seen.agents), Usage())
    lives = Counter(one.row.life for one in seen.agents if one.row.life != "stopped")
    yield f"{seen.session}: {_hosted(seen)}"
    yield f"{', '.join(f'{count} {word}' for word, count in lives.items()) or 'nobody is here'} | {usage_words(usage)}"


def _hosted(seen: TeamSeen) -> str:
    if seen.host is None:
        return "no process hosts it, everything is as it was left"
    return f"hosted by process {seen.host}"


def _tree(agents: Agents) -> Iterator[tuple[str, AgentSeen | tuple[int, str]]]:
    """Each agent below who started it, with what stands before its name; and how many subagents have ended."""
    below: dict[str, list[AgentSeen]] = {}
    names = {one.row.name for one in agents}
    for one in agents:
        parent = one.row.parent if one.row.parent in names and one.row.parent != one.row.name else ""
        below.setdefault(parent or "", []).append(one)
    yield from _below("", below, "")


def _below(
    parent: str, below: dict[str, list[AgentSeen]], pad: str
) -> Iterator[tuple[str, AgentSeen | tuple[int, str]]]:
    mine = below.get(parent, [])
    gone = [one for one in mine if one.row.kind == "subagent" and one.row.life == "stopped"]
    shown = [one for one in mine if one not in gone]
    for place, one in enumerate(shown):
        last = place == len(shown) - 1 and not gone
        yield (pad + ("└─ " if last else "├─ ") if parent else ""), one
        yield from _below(one.row.name, below, pad + ("   " if last else "│  ") if parent else "")
    if gone:
        yield (pad + "└─ " if parent else ""), (len(gone), "subagent ended" if len(gone) == 1 else "subagents ended")


def _row(seen: TeamSeen, pad: str, one: AgentSeen | tuple[int, str]) -> _Row:
    if isinstance(one, tuple):
        count, words = one
        return _Row(f"{pad}{count} {words}", "", "", ("", "", "", ""), "dim")
    state, does = _state_of(one)
    usage, doing = one.summary.usage, one.doing
    tokens = usage.prompt_tokens + usage.output_tokens
    rest = (
        moment(doing.since or one.row.since, seen.at),
        moment(doing.until or 0.0, seen.at),
        short_number(tokens),
        f"${usage.cost_usd:.2f}",
    )
    return _Row(plain(pad + one.row.name), state, does, rest, _STYLES.get(one.row.life, "plain"))


def _state_of(one: AgentSeen) -> tuple[str, str]:
    """Its state in a word, and what it does or waits for."""
    row, doing = one.row, one.doing
    if row.life in ("stopped", "crashed"):
        return (row.outcome or row.life) if row.life == "stopped" else "crashed", first_line(one.summary.what)
    if row.life == "idle" or not doing.what:
        waits = "no prompt yet" if row.life == "starting" and row.kind == "lead" else ""
        return row.life, ", ".join(one.tasks) or waits
    if doing.call is not None:
        beside = f" (+{doing.others})" if doing.others else ""
        return row.life, f"{call_words(doing.call)}{beside}"
    if doing.subject:
        return row.life, f"{row.waiting_for}: {first_line(doing.subject)}"
    return row.life, doing.what


def _columns_shown(room: int) -> int:
    """How many of the columns to the right fit beside what an agent does."""
    shown = len(_WIDTHS)
    while shown and room - sum(_WIDTHS[:shown]) - 2 * shown < _LEAST:
        shown -= 1
    return shown


def _line(cells: Sequence[str], widths: Sequence[int], style: Style) -> Line:
    shown = [shorten(plain(cell), width) for cell, width in zip(cells, widths, strict=True)]
    padded = [cell + " " * (width - columns(cell)) for cell, width in zip(shown, widths, strict=True)]
    return Line("  ".join(padded).rstrip(), style)
