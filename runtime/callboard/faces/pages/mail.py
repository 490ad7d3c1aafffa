"""Mail for a person to read: what waits, what became of it, and the tree of what caused what. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from callboard.core.bus.receipts import WAITING, Receipt, Traced
from callboard.faces.lines import first_line, shorten
from callboard.faces.pages.listings import plain_row, table
from callboard.faces.terminal import Block, Line
from callboard.words.values import Json

_SAID = 100
"""Columns of an envelope's first line in a tree."""
_SHOWN = WAITING | {"delivered", "dead"}
"""States that `callboard inbox` shows without `--all`: nothing has come of the envelope yet, or nothing will."""


def to_show(receipts: Sequence[Receipt], *, everything: bool) -> list[Receipt]:
    """What waits, what is being worked on and what is dead; or all."""
    return [one for one in receipts if everything or one.state in _SHOWN]


def inbox_table(receipts: Sequence[Receipt]) -> Block:
    """Id, from whom, to whom, what it is, what became of it and when, how it begins."""
    cells = [
        [
            one.envelope.id,
            one.envelope.sender,
            one.envelope.recipient,
            one.envelope.type,
            one.state,
            _clock(_newest(one)),
            one.why or first_line(one.envelope.content),
        ]
        for one in receipts
    ]
    return table(["ENVELOPE", "FROM", "TO", "TYPE", "STATE", "SINCE", "SAYS"], cells, "no mail waits")


def trace_block(found: Traced) -> Block:
    """The envelope's way from its root, itself in bold, and below it what it caused."""
    lines: list[Line] = []
    root = found.path[0].envelope
    if root.caused_by:
        lines.append(Line(f"(it was caused by {root.caused_by}, which is no envelope of this session)", "dim"))
    for depth, one in enumerate(found.path):
        lines += _envelope_lines(depth, one, wanted=one is found.path[-1])
    for depth, one in found.caused:
        lines += _envelope_lines(len(found.path) - 1 + depth, one, wanted=False)
    return Block(tuple(lines))


def trace_json(found: Traced) -> Json:
    """`path` from the root to the envelope, and `caused`: each with its depth below it."""
    caused = [{"depth": depth, **plain_row(one)} for depth, one in found.caused]
    return {"path": [plain_row(one) for one in found.path], "caused": caused}


def _envelope_lines(depth: int, one: Receipt, *, wanted: bool) -> list[Line]:
    envelope, pad = one.envelope, "  " * depth
    kind = envelope.type.replace("_", " ")
    head = f"{pad}{envelope.id}  {envelope.sender} -> {envelope.recipient}  {kind}  {one.state}{_times(one)}"
    lines = [Line(head, "strong" if wanted else "warn" if one.state in ("dropped", "dead") else "plain")]
    said = shorten(first_line(envelope.content), _SAID)
    if said:
        lines.append(Line(f"{pad}  {said}", "dim"))
    if one.why:
        lines.append(Line(f"{pad}  {one.state}: {one.why}", "dim"))
    if one.began and one.began != envelope.id:
        lines.append(Line(f"{pad}  read in the turn that {one.began} began: what that turn sent stands there", "dim"))
    return lines


def _times(one: Receipt) -> str:
    """When it was sent, delivered and done with."""
    times = [("sent", one.envelope.sent_at or None), ("delivered", one.delivered_at), (one.state, one.ended_at)]
    return "".join(f", {what} {_clock(at)}" for what, at in times if at is not None)


def _newest(one: Receipt) -> float:
    return one.ended_at or one.delivered_at or one.received_at or one.envelope.sent_at


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"
