"""The result of a tool call on the screen: one line, then a few lines of what it changed or said last. Pure.

`brief` is for a screen where nobody types (a line, so that a log stays a log); `folded` is the prompt line's; `whole`
is what `--verbose` shows there. What is left out is counted. It refuses to shorten for anyone but the screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from callboard.faces.lines import WIDTH, call_words, shorten, text_of
from callboard.faces.terminal import Block, Line, Style, plain
from callboard.words.events import ToolFinished
from callboard.words.values import ToolCall

Detail = Literal["brief", "folded", "whole"]

DIFF_LINES, LAST_LINES, WHOLE_LINES = 8, 3, 400
"""Lines that are shown of a change, of a command's output, and with `--verbose`."""
_INDENT = "    "
_LAST = frozenset({"bash", "task_output"})
"""Their last lines tell most."""


def result_block(agent: str, event: ToolFinished, call: ToolCall | None, detail: Detail = "folded") -> Block:
    """A finished call. Progress, which `--quiet` hides."""
    text = plain(text_of(event.content))
    style: Style = "bad" if event.is_error else "dim"
    name = call_words(call) if call else event.call
    said = [line.strip() for line in text.split("\n") if line.strip()]
    below = () if detail == "brief" else tuple(_below(call.name if call else "", text, detail))
    head = _head(said, call.name if call else "", len(below), style)
    return Block((Line(f"{name} => {head}", style, agent), *below), progress=True)


def diff_lines(text: str, most: int = DIFF_LINES) -> list[Line]:
    """The changed lines of a unified diff, coloured; those that are left out are counted. None for what holds none."""
    lines = text.split("\n")
    begin = next((at for at, line in enumerate(lines) if line.startswith("@@ ")), None)
    if begin is None:
        return []
    hunks = lines[begin:]
    changed = [line for line in hunks if line[:1] in ("+", "-")]
    shown = [Line(f"{_INDENT}{shorten(line, WIDTH)}", "good" if line[0] == "+" else "bad") for line in changed[:most]]
    return [*shown, *_more(len(changed) - len(shown))]


def counted(text: str) -> str:
    """`+3 -1` of a unified diff; empty where there is none."""
    lines = text.split("\n")
    begin = next((at for at, line in enumerate(lines) if line.startswith("@@ ")), len(lines))
    signs = [line[:1] for line in lines[begin:]]
    added, removed = signs.count("+"), signs.count("-")
    return f"+{added} -{removed}" if added or removed else ""


def _head(said: Sequence[str], tool: str, below: int, style: Style) -> str:
    """The first line of the result and what follows; the last one too, where no line stands below that holds it."""
    if not said:
        return "(nothing)"
    first = shorten(said[0], WIDTH)
    if tool == "edit_file" and below:
        return counted("\n".join(said)) or first
    if len(said) == 1:
        return first
    if below:
        return f"{len(said)} lines" if tool in _LAST else f"{first} … {len(said) - 1} more lines"
    between = f" … {len(said) - 2} lines … " if len(said) > 2 else " / "
    return f"{first}{between}{shorten(said[-1], WIDTH)}"


def _below(tool: str, text: str, detail: Detail) -> list[Line]:
    lines = [line.rstrip() for line in text.strip("\n").split("\n")]
    if detail == "whole":
        changes = diff_lines(text, WHOLE_LINES) if tool == "edit_file" else []
        shown = [Line(f"{_INDENT}{line}", "dim") for line in lines[:WHOLE_LINES]] if len(lines) > 1 else []
        return changes or [*shown, *_more(len(lines) - WHOLE_LINES)]
    if tool in ("edit_file", "write_file"):
        return diff_lines(text)
    last = [line for line in lines if line.strip()]
    if tool in _LAST and len(last) > 1:
        return [Line(f"{_INDENT}{shorten(line, WIDTH)}", "dim") for line in last[-LAST_LINES:]]
    return []


def _more(count: int) -> list[Line]:
    return [Line(f"{_INDENT}… {count} more {'line' if count == 1 else 'lines'}", "dim")] if count > 0 else []
