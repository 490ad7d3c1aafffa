"""Result of a tool call on the screen: one line, then a few lines of its changes or of the end of its output. Pure.

`brief` is for a screen on which nobody types (one line, so that a log stays a log); `folded` is for the prompt line;
`whole` is the version for `--verbose` there. Omitted lines are counted. Only output for the screen is shortened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from callboard.cli.terminal.terminal import Block, Line, Style, plain
from callboard.cli.views.events import WIDTH, call_words, shorten, text_of
from callboard.core.keys import count_words
from callboard.types.events import ToolFinished
from callboard.types.records import ToolCall

Detail = Literal["brief", "folded", "whole"]

DIFF_LINES = 8
LAST_LINES = 3
WHOLE_LINES = 400
"""Most lines of a change, of a command's output, and with `--verbose`."""
_INDENT = "    "
_LAST = frozenset({"bash", "task_output"})
"""Tools whose last lines are the most useful ones."""


def result_block(agent: str, event: ToolFinished, call: ToolCall | None, detail: Detail = "folded") -> Block:
    """Return a finished call, as progress, which `--quiet` hides."""
    text = plain(text_of(event.content))
    style: Style = "bad" if event.is_error else "dim"
    name = call_words(call) if call else event.call
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    below = () if detail == "brief" else tuple(_below(call.name if call else "", text, detail))
    head = _head(lines, call.name if call else "", len(below), style)
    return Block((Line(f"{name} => {head}", style, agent), *below), progress=True)


def diff_lines(text: str, most: int = DIFF_LINES) -> list[Line]:
    """Return the changed lines of a unified diff, coloured; omitted lines are counted. Empty if it has none."""
    lines = text.split("\n")
    begin = next((at for at, line in enumerate(lines) if line.startswith("@@ ")), None)
    if begin is None:
        return []
    hunks = lines[begin:]
    changed = [line for line in hunks if line[:1] in ("+", "-")]
    visible = [Line(f"{_INDENT}{shorten(line, WIDTH)}", "good" if line[0] == "+" else "bad") for line in changed[:most]]
    return [*visible, *_omitted_line(len(changed) - len(visible))]


def counted(text: str) -> str:
    """Return `+3 -1` of a unified diff; empty if it has no changes."""
    lines = text.split("\n")
    begin = next((at for at, line in enumerate(lines) if line.startswith("@@ ")), len(lines))
    signs = [line[:1] for line in lines[begin:]]
    added = signs.count("+")
    removed = signs.count("-")
    return f"+{added} -{removed}" if added or removed else ""


def _head(lines: Sequence[str], tool: str, below: int, style: Style) -> str:
    """Return the first line of the result and a count of the others; also the last line, if no line is shown below."""
    if not lines:
        return "(nothing)"
    first = shorten(lines[0], WIDTH)
    if tool == "edit_file" and below:
        return counted("\n".join(lines)) or first
    if len(lines) == 1:
        return first
    if below:
        return (
            count_words(len(lines), "line")
            if tool in _LAST
            else f"{first} … {count_words(len(lines) - 1, 'more line')}"
        )
    between = f" … {count_words(len(lines) - 2, 'line')} … " if len(lines) > 2 else " / "
    return f"{first}{between}{shorten(lines[-1], WIDTH)}"


def _below(tool: str, text: str, detail: Detail) -> list[Line]:
    lines = [line.rstrip() for line in text.strip("\n").split("\n")]
    if detail == "whole":
        changes = diff_lines(text, WHOLE_LINES) if tool == "edit_file" else []
        visible = [Line(f"{_INDENT}{line}", "dim") for line in lines[:WHOLE_LINES]] if len(lines) > 1 else []
        return changes or [*visible, *_omitted_line(len(lines) - WHOLE_LINES)]
    if tool in ("edit_file", "write_file"):
        return diff_lines(text)
    last = [line for line in lines if line.strip()]
    if tool in _LAST and len(last) > 1:
        return [Line(f"{_INDENT}{shorten(line, WIDTH)}", "dim") for line in last[-LAST_LINES:]]
    return []


def _omitted_line(count: int) -> list[Line]:
    return [Line(f"{_INDENT}… {count} more {'line' if count == 1 else 'lines'}", "dim")] if count > 0 else []
