"""An agent's window as a small bar table, and its edits in a few lines each; JSON of both for a script. Pure.

Everything fits 80 columns but paths and a reason's words, which are never cut: they are there to be copied and read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any

from callboard.core.context.told.explain import EditTold, Part, Touched, WindowMap
from callboard.core.context.told.metrics import Metrics
from callboard.desks.desk import Context
from callboard.faces.lines import columns, first_line, shorten
from callboard.faces.pages.listings import plain_row, when
from callboard.faces.terminal import Block, Line, Style, plain

_WIDTH = 80
_LABEL, _BAR = 26, 34
_SHOWN = 6
"""Things that an edit touched, before the rest is only counted."""
_EMPTY = frozenset({"output reserve", "free"})
"""Parts of the window that hold nothing."""


def context_block(context: Context) -> Block:
    """The window of one agent, by source, and what it used so far."""
    found = context.window
    head = f"{found.agent}, {found.model}: {found.used:,} of {found.window:,} tokens ({_share(found.used, found)})"
    heads = f"{'SOURCE':<{_LABEL}}  {'TOKENS':>9}  {'SHARE':>6}"
    return Block(
        (
            Line(head, "strong"),
            *(Line(words, "dim") for words in _notes(found)),
            Line(heads, "dim"),
            *(Line(_part(part), _style(part)) for part in found.parts),
            *(Line(words, "dim") for words in metrics_lines(context.metrics)),
        )
    )


def context_json(context: Context) -> dict[str, Any]:
    """The same for a script; shares and rates are from 0 to 1."""
    return {
        "window": plain_row(context.window),
        "metrics": plain_row(context.metrics),
        "session_metrics": plain_row(context.session),
    }


def edits_block(edits: Sequence[EditTold], agent: str) -> Block:
    """Every edit of an agent's view, the newest last, with how to take the last ones back."""
    if not edits:
        return Block((Line(f"nothing was cut from {agent}'s conversation", "dim"),))
    lines = [line for edit in edits for line in _edit(edit)]
    standing = [edit.seq for edit in edits if edit.taken_back_by is None and not edit.refused and not edit.undoes]
    if standing:
        who = "" if agent == "lead" else f" --agent {agent}"
        lines.append(Line(f"take one back: callboard context undo {standing[-1]}{who}", "dim"))
    return Block(tuple(lines))


def undo_line(answer: EditTold | None, wanted: Sequence[int], agent: str) -> Line:
    """What came of an undo."""
    named = ", ".join(str(seq) for seq in wanted)
    if answer is None:
        return Line(f"asked: {agent} takes back {named} when the model call under way has ended", "warn")
    sizes = f"{answer.tokens_before:,} -> {answer.tokens_after:,} tokens"
    return Line(f"{agent} took back {named} ({sizes}), as edit {answer.seq}", "good")


def metrics_lines(metrics: Metrics) -> list[str]:
    """What was used, in two or three lines."""
    used = metrics.token_usage
    tokens = ", ".join(f"{used.get(kind, 0):,} {kind}" for kind in ("input", "write", "read", "output"))
    counts = ", ".join(f"{name} {count}" for name, count in metrics.compact_count.items()) or "none"
    return [
        f"cache: {metrics.cache_hit_rate:.0%} of the input was read from it; results read again: "
        f"{metrics.reread_count}",
        f"tokens: {tokens}",
        *wrap(f"compactions: {counts}", _WIDTH, subsequent_indent="  "),
    ]


def _notes(found: WindowMap) -> Iterator[str]:
    yield f"estimated: {found.estimate:,}"
    if found.counted is None:
        yield "counted: not yet by the service"
    else:
        yield f"counted: {found.counted:,} at the newest reply, estimated at {found.counted_estimate or 0:,} then"
    edits = "" if not found.revision else f", after {found.revision} {'edit' if found.revision == 1 else 'edits'}"
    yield f"messages: {found.messages}{edits}; they may take {found.budget:,}"


def _part(part: Part) -> str:
    label = shorten(plain(f"results of {part.tool}" if part.tool else part.source), _LABEL)
    label += " " * (_LABEL - columns(label))
    mark = "." if part.source in _EMPTY else "#"
    bar = mark * max(1, round(min(part.share, 1.0) * _BAR)) if part.tokens else ""
    return f"{label}  {part.tokens:>9,}  {part.share:>6.1%}  {bar}".rstrip()


def _style(part: Part) -> Style:
    return "dim" if part.source in _EMPTY else "plain"


def _share(tokens: int, found: WindowMap) -> str:
    return f"{tokens / found.window:.0%}" if found.window else "no window"


def _edit(edit: EditTold) -> Iterator[Line]:
    name = f"{edit.seq}  {when(edit.at)}  {edit.stage} ({edit.trigger})"
    if edit.refused:
        yield Line(f"{name}: refused", "warn")
        yield Line(f"    {plain(edit.why)}", "dim")
        return
    change = f"{edit.freed:,} freed" if edit.freed >= 0 else f"{-edit.freed:,} back"
    taken_back = edit.taken_back_by is not None
    yield Line(name, "dim" if taken_back else "strong")
    yield Line(f"    {edit.tokens_before:,} -> {edit.tokens_after:,} tokens, {change}")
    for words in _details(edit):
        yield Line(f"    {words}", "dim")
    if taken_back:
        yield Line(f"    taken back by edit {edit.taken_back_by}", "warn")


def _details(edit: EditTold) -> Iterator[str]:
    if edit.why:
        yield plain(f"why: {edit.why}").replace("\n", " ")
    shown = [_touched(one) for one in edit.touched[:_SHOWN]]
    yield from (f"{one}" for one in shown)
    if len(edit.touched) > _SHOWN:
        yield f"and {len(edit.touched) - _SHOWN} more"
    if edit.repaired:
        yield f"put back: {', '.join(edit.repaired)}"
    if cost := _cost(edit):
        yield f"cost: {cost}"
    if edit.transcript:
        yield f"transcript: {edit.transcript}"


def _touched(one: Touched) -> str:
    about = f" {first_line(one.about)}" if one.about else ""
    if one.kind in ("cleared", "persisted"):
        return shorten(plain(f"{one.kind}: {one.what}{about}"), 60) + f" ({one.tokens:,} tokens)"
    count = f"{one.messages} message{'' if one.messages == 1 else 's'}"
    return plain(f"{one.kind}: {count}, {one.tokens:,} tokens: {one.what}")


def _cost(edit: EditTold) -> str:
    parts = [f"{edit.rewritten:,} cached tokens to be stored anew"] if edit.rewritten else []
    used = edit.usage
    if used.prompt_tokens or used.output_tokens:
        parts.append(f"a summary of {used.prompt_tokens:,} tokens in, {used.output_tokens:,} out")
    return f"{', '.join(parts)}: ${edit.cost_usd:.4f}" if parts else ""
