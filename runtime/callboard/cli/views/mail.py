"""Mail for a person: pending envelopes, their outcomes, and the tree of causes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.cli.terminal.terminal import Block, Line
from callboard.cli.views.events import first_line, shorten
from callboard.cli.views.listings import render_listing
from callboard.core.reports.receipts import WAITING, EnvelopeTrace, Receipt
from callboard.sessions.inspect.resources import MESSAGES, plain_row, when
from callboard.types.records import Json

_SAID = 100
"""Limit of the columns of an envelope's first line in a tree."""
_SHOWN = WAITING | {"delivered", "dead"}
"""States that `callboard inbox` shows without `--all`: the envelope has no result yet, or will never have one."""


def to_show(receipts: Sequence[Receipt], *, everything: bool) -> list[Receipt]:
    """Return the receipts of mail that waits, is being processed or is dead; or all."""
    return [receipt for receipt in receipts if everything or receipt.state in _SHOWN]


def inbox_table(receipts: Sequence[Receipt]) -> Block:
    """Return the id, sender, recipient, type, outcome with its time, and beginning of each envelope."""
    return render_listing(MESSAGES, receipts)


def trace_block(trace: EnvelopeTrace) -> Block:
    """Return the envelope's path from its root, with the envelope in bold, followed by the envelopes that it caused."""
    lines: list[Line] = []
    root = trace.path[0].envelope
    if root.caused_by:
        lines.append(Line(f"(it was caused by {root.caused_by}, which is not an envelope of this session)", "dim"))
    for depth, receipt in enumerate(trace.path):
        lines += _envelope_lines(depth, receipt, is_target=receipt is trace.path[-1])
    for depth, receipt in trace.caused:
        lines += _envelope_lines(len(trace.path) - 1 + depth, receipt, is_target=False)
    return Block(tuple(lines))


def trace_json(trace: EnvelopeTrace) -> Json:
    """Return `path` from the root to the envelope, and `caused`: each with its depth below it."""
    caused = [{"depth": depth, **plain_row(receipt)} for depth, receipt in trace.caused]
    return {"path": [plain_row(receipt) for receipt in trace.path], "caused": caused}


def _envelope_lines(depth: int, receipt: Receipt, *, is_target: bool) -> list[Line]:
    envelope = receipt.envelope
    pad = "  " * depth
    kind = envelope.type.replace("_", " ")
    head = f"{pad}{envelope.id}  {envelope.sender} -> {envelope.recipient}  {kind}  {receipt.state}{_times(receipt)}"
    lines = [Line(head, "strong" if is_target else "warn" if receipt.state in ("dropped", "dead") else "plain")]
    text = shorten(first_line(envelope.content), _SAID)
    if text:
        lines.append(Line(f"{pad}  {text}", "dim"))
    if receipt.why:
        lines.append(Line(f"{pad}  {receipt.state}: {receipt.why}", "dim"))
    if receipt.began and receipt.began != envelope.id:
        lines.append(Line(f"{pad}  read in the turn that {receipt.began} began: what it sent is listed there", "dim"))
    return lines


def _times(receipt: Receipt) -> str:
    """Return when the mail was sent, delivered and completed."""
    times = [
        ("sent", receipt.envelope.sent_at or None),
        ("delivered", receipt.delivered_at),
        (receipt.state, receipt.ended_at),
    ]
    return "".join(f", {label} {when(at)}" for label, at in times if at is not None)
