"""An agent's window as a small bar table, and its edits in a few lines each; both as JSON for a script. Pure.

Everything fits 80 columns except paths and reasons, which are never cut, so that they can be copied and read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any

from callboard.cli.terminal.terminal import Block, Line, Style, columns, plain
from callboard.cli.views.events import first_line, shorten
from callboard.core.keys import count_words
from callboard.core.reports.context import EditEffect, EditReport, WindowMap, WindowPart
from callboard.core.reports.metrics import Metrics
from callboard.sessions.handle import Context
from callboard.sessions.inspect.resources import plain_row, when

_WIDTH = 80
_LABEL = 26
_BAR = 34
_SHOWN = 6
"""Number of changed items of an edit that are listed; the others are counted."""
_EMPTY = frozenset({"output reserve", "free"})
"""Parts of the window without content."""


def context_block(context: Context) -> Block:
    """Return the window of one agent, by source, and its usage so far."""
    window = context.window
    head = (
        f"{window.agent}, {window.model}: {window.used:,} of {window.window:,} tokens ({_share(window.used, window)})"
    )
    heads = f"{'SOURCE':<{_LABEL}}  {'TOKENS':>9}  {'SHARE':>6}"
    return Block(
        (
            Line(head, "strong"),
            *(Line(text, "dim") for text in _notes(window)),
            Line(heads, "dim"),
            *(Line(_part(part), _style(part)) for part in window.parts),
            *(Line(text, "dim") for text in metrics_lines(context.metrics)),
        )
    )


def context_json(context: Context) -> dict[str, Any]:
    """Return the window and the usage as JSON for a script; shares and rates are from 0 to 1."""
    return {
        "window": plain_row(context.window),
        "metrics": plain_row(context.metrics),
        "session_metrics": plain_row(context.session),
    }


def edits_block(edits: Sequence[EditReport], agent: str) -> Block:
    """Return every edit of an agent's view, newest last, with the command that undoes the last ones."""
    if not edits:
        return Block((Line(f"nothing was cut from {agent}'s conversation", "dim"),))
    lines = [line for edit in edits for line in _edit(edit)]
    standing = [edit.seq for edit in edits if edit.taken_back_by is None and not edit.refused and not edit.undoes]
    if standing:
        option = "" if agent == "lead" else f" --agent {agent}"
        lines.append(Line(f"undo one: callboard context undo {standing[-1]}{option}", "dim"))
    return Block(tuple(lines))


def undo_line(answer: EditReport | None, seqs: Sequence[int], agent: str) -> Line:
    """Return the line on the result of an undo."""
    named = ", ".join(str(seq) for seq in seqs)
    if answer is None:
        return Line(f"asked: {agent} undoes {named} when the current model call has ended", "warn")
    sizes = f"{answer.tokens_before:,} -> {answer.tokens_after:,} tokens"
    return Line(f"{agent} undid {named} ({sizes}), as edit {answer.seq}", "good")


def metrics_lines(metrics: Metrics) -> list[str]:
    """Return the usage, in two or three lines."""
    used = metrics.token_usage
    tokens = ", ".join(f"{used.get(kind, 0):,} {kind}" for kind in ("input", "write", "read", "output"))
    counts = ", ".join(f"{name} {count}" for name, count in metrics.compact_count.items()) or "none"
    return [
        f"cache: {metrics.cache_hit_rate:.0%} of the input was read from it; results read again: "
        f"{metrics.reread_count}",
        f"tokens: {tokens}",
        *wrap(f"compactions: {counts}", _WIDTH, subsequent_indent="  "),
    ]


def _notes(window: WindowMap) -> Iterator[str]:
    yield f"estimated: {window.estimate:,}"
    if window.counted is None:
        yield "counted: not yet by the service"
    else:
        yield f"counted: {window.counted:,} at the newest reply, estimated at {window.counted_estimate or 0:,} then"
    edits = "" if not window.revision else f", after {window.revision} {'edit' if window.revision == 1 else 'edits'}"
    yield f"messages: {window.messages}{edits}; they may take {window.budget:,}"


def _part(part: WindowPart) -> str:
    label = shorten(plain(f"results of {part.tool}" if part.tool else part.source), _LABEL)
    label += " " * (_LABEL - columns(label))
    mark = "." if part.source in _EMPTY else "#"
    bar = mark * max(1, round(min(part.share, 1.0) * _BAR)) if part.tokens else ""
    return f"{label}  {part.tokens:>9,}  {part.share:>6.1%}  {bar}".rstrip()


def _style(part: WindowPart) -> Style:
    return "dim" if part.source in _EMPTY else "plain"


def _share(tokens: int, window: WindowMap) -> str:
    return f"{tokens / window.window:.0%}" if window.window else "no window"


def _edit(edit: EditReport) -> Iterator[Line]:
    name = f"{edit.seq}  {when(edit.at)}  {edit.stage} ({edit.trigger})"
    if edit.refused:
        yield Line(f"{name}: refused", "warn")
        yield Line(f"    {plain(edit.why)}", "dim")
        return
    change = f"{edit.freed:,} freed" if edit.freed >= 0 else f"{-edit.freed:,} back"
    taken_back = edit.taken_back_by is not None
    yield Line(name, "dim" if taken_back else "strong")
    yield Line(f"    {edit.tokens_before:,} -> {edit.tokens_after:,} tokens, {change}")
    for text in edit_details(edit):
        yield Line(f"    {text}", "dim")
    if taken_back:
        yield Line(f"    undone by edit {edit.taken_back_by}", "warn")


def edit_details(edit: EditReport) -> Iterator[str]:
    """Yield the reason for an edit, what it changed, and what it cost."""
    if edit.why:
        yield plain(f"why: {edit.why}").replace("\n", " ")
    lines = [_touched(touched) for touched in edit.touched[:_SHOWN]]
    yield from (f"{line}" for line in lines)
    if len(edit.touched) > _SHOWN:
        yield f"and {len(edit.touched) - _SHOWN} more"
    if edit.repaired:
        yield f"restored: {', '.join(edit.repaired)}"
    if cost := _cost(edit):
        yield f"cost: {cost}"
    if edit.transcript:
        yield f"transcript: {edit.transcript}"


def _touched(touched: EditEffect) -> str:
    about = f" {first_line(touched.about)}" if touched.about else ""
    if touched.kind in ("cleared", "persisted"):
        return (
            shorten(plain(f"{touched.kind}: {touched.what}{about}"), 60) + f" ({count_words(touched.tokens, 'token')})"
        )
    count = f"{touched.messages} message{'' if touched.messages == 1 else 's'}"
    return plain(f"{touched.kind}: {count}, {count_words(touched.tokens, 'token')}: {touched.what}")


def _cost(edit: EditReport) -> str:
    parts = [f"{edit.rewritten:,} cached tokens to be stored again"] if edit.rewritten else []
    used = edit.usage
    if used.prompt_tokens or used.output_tokens:
        parts.append(f"a summary of {used.prompt_tokens:,} tokens in, {used.output_tokens:,} out")
    return f"{', '.join(parts)}: ${edit.cost_usd:.4f}" if parts else ""
