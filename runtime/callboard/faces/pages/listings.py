"""Rows of the store as listings: a table for a person, JSON for a script. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from callboard.app import AgentSummary, OpenSession
from callboard.attaching import AttachedSession
from callboard.core.names import one_by_id
from callboard.faces.approvals import request_block
from callboard.faces.lines import columns, first_line, shorten, usage_words
from callboard.faces.terminal import Block, Line
from callboard.words.values import Request, SessionRow

_CELL = 60
"""Columns that one cell may take."""


def as_json(rows: Sequence[object]) -> str:
    """A JSON array of the rows. ASCII only: no control character reaches a screen through it."""
    return json.dumps([plain_row(row) for row in rows], indent=2)


def plain_row(row: object) -> Any:
    """A row as JSON's own types."""
    if isinstance(row, BaseModel):
        return row.model_dump(mode="json")
    if is_dataclass(row) and not isinstance(row, type):
        return {name: plain_row(value) for name, value in asdict(row).items()}
    return row


def attached_block(session: AttachedSession) -> Block:
    """What a person is told who did not get the session itself, but a place beside its host."""
    words = f"process {session.pid} hosts session {session.id}; this screen follows it, and leaving it stops nothing"
    shown = (Line("is at work: a reply is shown here when it is whole", "dim", name) for name in at_work(session))
    return Block((Line(words, "dim"), *shown))


def at_work(session: OpenSession) -> list[str]:
    """Who is in the middle of a turn, by the rows: a model call under way is not in a journal yet (decision 0007)."""
    return [row.name for row in session.team() if row.life == "working"]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], nothing: str) -> Block:
    """Rows under their heads, aligned; `nothing` is said when there are none."""
    if not rows:
        return Block((Line(nothing, "dim"),))
    cells = [[shorten(first_line(cell), _CELL) for cell in row] for row in rows]
    widths = [max(columns(row[at]) for row in [list(heads), *cells]) for at in range(len(heads))]
    head = Line(_aligned(heads, widths), "dim")
    return Block((head, *(Line(_aligned(row, widths)) for row in cells)))


def when(at: float | None) -> str:
    """A moment on this machine's clock; empty for none."""
    return "" if at is None else f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"


def status_words(session: OpenSession) -> str:
    """What the session is doing, in one line: `2 working, 1 idle | 1 waits for you | 12,345 tokens in, ...`."""
    lives = Counter(row.life for row in session.team() if row.life != "stopped")
    parts = [", ".join(f"{count} {life}" for life, count in lives.items()) or "nobody is here yet"]
    waiting = len(session.requests())
    if waiting:
        parts.append(f"{waiting} {'waits' if waiting == 1 else 'wait'} for you (/plans)")
    return " | ".join([*parts, usage_words(session.usage())])


def sessions_table(rows: Sequence[SessionRow]) -> Block:
    """Id, when it began, how it ended, the first words."""
    cells = [[row.id, when(row.created_at), _ended(row), row.model, row.prompt] for row in rows]
    return table(["SESSION", "BEGAN", "STATE", "MODEL", "PROMPT"], cells, 'no session yet: callboard run "what to do"')


def team_table(rows: Sequence[AgentSummary]) -> Block:
    """Name, what it is doing, what it used."""
    cells = [
        [
            row.name,
            row.kind,
            row.life if not row.outcome else row.outcome,
            str(row.steps),
            usage_words(row.usage),
            row.what,
        ]
        for row in rows
    ]
    return table(["AGENT", "KIND", "STATE", "STEPS", "USED", "WHAT"], cells, "no agents")


def _ended(row: SessionRow) -> str:
    if row.ended_at is None:
        return "open"
    return "done" if not row.exit_code else f"ended with {row.exit_code}"


def requests_table(rows: Sequence[Request]) -> Block:
    """Id, kind, who asks, revision of a plan, since when, until when, one line. Plain ones wait; others say how they
    ended."""
    cells = [
        [
            row.id,
            row.kind,
            row.asked_by,
            str(row.revision) if row.kind == "plan" else "",
            when(row.created_at),
            when(row.expires_at) if row.status == "pending" else row.status,
            row.subject,
        ]
        for row in rows
    ]
    heads = ["REQUEST", "KIND", "FROM", "REV", "SINCE", "UNTIL", "ABOUT"]
    shown = table(heads, cells, "nothing waits for an answer")
    return Block((*shown.lines, Line("in full: callboard show ID", "dim"))) if rows else shown


def requests_block(rows: Sequence[Request]) -> Block:
    """Each request in full, with how to answer it while it waits."""
    if not rows:
        return Block((Line("nothing waits for an answer", "dim"),))
    lines: list[Line] = []
    for row in rows:
        lines += request_block(row).lines
        lines += [_hint(row), Line("")]
    return Block(tuple(lines[:-1]))


def find_request(rows: Sequence[Request], wanted: str) -> Request:
    """The request of that id, or the only one whose id begins so. Raises `UsageError`."""
    by_id = {row.id: row for row in rows}
    waiting = (row.id for row in rows if row.status == "pending")
    return by_id[one_by_id("request", by_id, wanted, offered=waiting)]


def _hint(row: Request) -> Line:
    if row.status != "pending":
        return Line(f"  {row.status} by {row.answered_by or 'nobody'}{': ' + row.reason if row.reason else ''}", "dim")
    if row.kind == "question":
        return Line(f'  callboard answer {row.id} "…"', "dim")
    return Line(f'  callboard approve {row.id}  |  callboard reject {row.id} --why "…"', "dim")


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell + " " * (width - columns(cell)) for cell, width in zip(cells, widths, strict=True)]
    return "  ".join(padded).rstrip()
