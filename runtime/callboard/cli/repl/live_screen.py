"""Screen for the prompt line: the lead's text appears block by block while it streams, rendered if there is colour. The
activity of each agent and the unfinished sentence are shown at the line.

Each text appears once: the reply does not repeat streamed text, but decides what is still to be printed. Discarded text
is marked as void. This module does not draw: the owner of the line requests the texts.

The second part decides which part of a streaming text may be printed: whole blocks of Markdown, each once. Pure.

A stream is only provisional: pieces may be lost, and a reply may turn out to be void. The complete text at the end
decides what is still to be printed, and whether the text on the screen has gaps. This part does not print or render.
"""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from callboard.cli.terminal.screen import Screen
from callboard.cli.terminal.terminal import Block, Line, Terminal, block, columns, plain
from callboard.cli.views.events import call_words, shorten, text_of
from callboard.ports.model import Delta
from callboard.ports.notifier import Notifier
from callboard.types.events import (
    AgentStopped,
    CallFailed,
    Event,
    ModelCalled,
    ModelReplied,
    ReplyDropped,
    ReplyInterrupted,
    ToolStarted,
    TurnEnded,
)
from callboard.types.records import ToolCall

_DOING_WIDTH = 30
_DOING_SHOWN = 3
_TAIL_ROWS = 4
_TAIL_KEPT = 4_000
"""Most characters of an unfinished sentence that are shown."""
_GAPS = "[parts of the text above were lost on their way; from there on it reads:]"


class LiveScreen(Screen):
    """Prints events, and keeps the texts around the prompt line."""

    def __init__(self, terminal: Terminal, *, verbose: bool) -> None:
        super().__init__(terminal, result_apart=False, verbose=verbose)
        self._detail = "whole" if verbose else "folded"
        self.redraw: Callable[[], None] = _nothing
        self._doing: dict[str, str] = {}
        self._streamed = Streamed()
        self._apart = False
        """True if something else streamed since the last text."""
        self._turn_ends = Notifier()

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Print the blocks that are complete; mark the streamed text as void if the service reports that."""
        if agent == "lead" and delta.kind == "dropped" and self._streamed.begun:
            text = f"partial reply dropped: {delta.text}. What lead said above since its last whole reply is void"
            self._print(block(text, "warn", name=agent))
        else:
            super().on_delta(agent, delta)
        if agent != "lead":
            return
        match delta.kind:
            case "text":
                self._stream_text(delta.text)
                self.redraw()
            case "dropped":
                self._streamed.drop()
                self.redraw()
            case "tool" | "thinking":
                self._apart = True
            case _:
                return

    def _stream_text(self, text: str) -> None:
        if self._apart and self._streamed.text:
            text = f"\n{text}"
        self._apart = False
        begun = self._streamed.begun
        if (piece := self._streamed.add(text)) is not None:
            self._print(self._piece_block("lead", piece, first=not begun))

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        """Print the event's lines; a streaming text is now complete or void."""
        super().on_event(agent, seq, event)
        if agent == "lead" and isinstance(event, ReplyDropped | CallFailed | TurnEnded):
            self._streamed.drop()
        match event:
            case ModelCalled():
                self._doing[agent] = "thinks" if event.purpose == "turn" else "summarises"
            case ToolStarted():
                call = self.call(agent, event.call)
                self._doing[agent] = call_words(call) if call else "works"
            case TurnEnded() | AgentStopped():
                self._doing.pop(agent, None)
                self._turn_ends.notify()
            case _:
                pass
        self.redraw()

    async def turn_over(self) -> None:
        """Wait until the next turn of an agent ends."""
        await self._turn_ends.changed(self._turn_ends.changes)

    def note_at_work(self, at_work: Sequence[str]) -> None:
        """Note the agents that were working when this screen attached; their next events show their activity."""
        for agent in at_work:
            self._doing.setdefault(agent, "at work")

    def doing(self) -> list[str]:
        """Return a short description of each agent's work."""
        visible = [
            f"{agent}: {shorten(activity, _DOING_WIDTH)}"
            for agent, activity in list(self._doing.items())[:_DOING_SHOWN]
        ]
        hidden = len(self._doing) - len(visible)
        return [*visible, *([f"{hidden} more"] if hidden > 0 else [])]

    def tail(self, width: int, rows: int) -> str:
        """Return the end of the lead's unfinished output, in rows of that width."""
        return tail_rows(self._streamed.tail, width, max(1, min(_TAIL_ROWS, rows // 6)))

    def _lines(self, agent: str, event: Event, calls: Mapping[str, ToolCall]) -> Block | None:
        match event:
            case ModelReplied():
                text = text_of([item for item in event.blocks if item.get("type") == "text" and item.get("text")])
                return self._remaining(agent, text)
            case ReplyInterrupted():
                remaining = self._remaining(agent, event.text)
                mark = Line("[interrupted]", "warn", "" if remaining else agent)
                return Block((*(remaining.lines if remaining else ()), mark)) if event.text else None
            case _:
                return super()._lines(agent, event, calls)

    def _remaining(self, agent: str, text: str) -> Block | None:
        """Return the part of the text that is not on the screen yet."""
        if agent != "lead":
            return self._said_block(agent, text.strip("\n")) if text.strip() else None
        begun = self._streamed.begun
        piece, lost = self._streamed.end(text)
        if lost:
            lines = self._piece_block(agent, piece, first=True).lines if piece else ()
            return Block((Line(_GAPS, "warn", agent), *lines))
        return self._piece_block(agent, piece, first=not begun) if piece else None

    def _said_block(self, agent: str, text: str) -> Block:
        return self._piece_block(agent, PrintablePart(text), first=True)

    def _piece_block(self, agent: str, piece: PrintablePart, *, first: bool) -> Block:
        """Return a piece as it is shown here. The lead's name precedes the first piece of a text; later pieces begin
        with an empty line if the text has one."""
        text = plain(piece.text).rstrip("\n")
        content = text.lstrip("\n")
        gap = (Line(""),) * (not first and content != text)
        if not self._terminal.paints:
            lines = block(content).lines
        else:
            # rich takes 200 ms to import, and a screen without colour never needs it.
            rendering = importlib.import_module("callboard.cli.terminal.markdown")
            whole = f"{piece.inside}\n{content}" if piece.inside else content
            width = shutil.get_terminal_size().columns - columns(agent) - 1
            lines = rendering.rendered(whole, width)
        named = replace(lines[0], name=agent) if lines else Line("", name=agent)
        return Block((*gap, named if first else lines[0], *lines[1:]) if lines else gap)


def tail_rows(text: str, width: int, rows: int) -> str:
    """Return the last rows of a text, broken at the edge, with one column left free."""
    lines = [line for line in plain(text[-_TAIL_KEPT:]).expandtabs(4).split("\n") if line.strip()]
    tail: list[str] = []
    for line in reversed(lines):
        tail[:0] = _broken(line, max(1, width - 1))
        if len(tail) >= rows:
            break
    return "\n".join(tail[-rows:])


def _broken(line: str, width: int) -> list[str]:
    rows = [""]
    used = 0
    for char in line:
        wide = columns(char)
        if used + wide > width:
            rows.append("")
            used = 0
        rows[-1] += char
        used += wide
    return rows


def _nothing() -> None:
    return


LONG = 40
"""Lines after which a block is printed in parts, so that a long listing is not held back until its end."""
_FENCE = re.compile(r"(\s*)(`{3,}|~{3,})(.*)")
_ITEM = re.compile(r"([-*+]|\d{1,9}[.)]) ")


@dataclass(frozen=True, slots=True)
class PrintablePart:
    """Part of a text that may be printed. `inside`: the line that opened the code block in which it begins."""

    text: str
    inside: str = ""


@dataclass(slots=True)
class Streamed:
    """Streaming text. `more` and `end` return the part to be printed now."""

    text: str = ""
    _done: int = 0
    """Number of printed characters of `text`."""
    _inside: str = ""
    _ends: list[int] = field(default_factory=list[int])
    """Ends of the printed pieces."""

    @property
    def tail(self) -> str:
        """Return the received text that is not printed yet."""
        return self.text[self._done :]

    @property
    def begun(self) -> bool:
        """Return True if part of the text is on the screen."""
        return self._done > 0

    def add(self, text: str) -> PrintablePart | None:
        """Add this text, and return the part that is complete now."""
        looks = "\n" in self.text[-1:] + text
        self.text += text
        if not looks:
            return None
        cut, inside = whole_until(self.tail, self._inside)
        if not self.text[self._done : self._done + cut].strip():
            return None
        piece = PrintablePart(self.text[self._done : self._done + cut], self._inside)
        self._done, self._inside = self._done + cut, inside
        self._ends.append(self._done)
        return piece

    def end(self, whole: str) -> tuple[PrintablePart | None, bool]:
        """Return the part of the complete text still to be printed, and True if the printed text has gaps from some
        position on: then the rest begins there. The stream ends."""
        printed = self.text[: self._done]
        inside = self._inside
        agreed, at = _matched(printed, whole)
        lost = agreed < len(printed)
        if lost:
            before = max((end for end in self._ends if end <= agreed), default=0)
            _, at = _matched(printed[:before], whole)
            inside = ""
        at += printed.endswith("\n") and whole[at : at + 1] == "\n"
        self.text = ""
        self._done = 0
        self._inside = ""
        self._ends = []
        remaining = whole[at:].rstrip()
        return (
            PrintablePart(remaining if printed and not lost else remaining.lstrip("\n"), inside)
            if remaining.strip()
            else None
        ), lost

    def drop(self) -> bool:
        """Mark the text as void; return True if part of it is on the screen."""
        begun = self.begun
        self.text = ""
        self._done = 0
        self._inside = ""
        self._ends = []
        return begun


def whole_until(text: str, inside: str = "") -> tuple[int, str]:
    """Return how many characters of a text are whole blocks, and the line that opened the code block at that position,
    if any.

    A block ends before an empty line that is followed by an unindented line (an indented one may belong to a list),
    before and after an unindented code block, and, when it is long, before the next item or line of code.
    """
    scan = _Scan(inside=inside, fence=inside)
    at = 0
    while (end := text.find("\n", at)) >= 0:
        line = text[at:end]
        at = end + 1
        scan.begins(line)
        scan.ended(line, at)
    if at < len(text):
        scan.begins(text[at:])
    return scan.cut, scan.inside


@dataclass(slots=True)
class _Scan:
    """Positions where a text may be cut, found line by line. `inside`: the opening line of the code block at `cut`;
    `fence`: of the one at the current position."""

    inside: str
    fence: str
    cut: int = 0
    lines: int = 0
    """Number of lines since `cut`."""
    text_end: int = 0
    """End of the last line that is not empty."""
    empty: bool = False
    """True if the previous line was empty."""

    def begins(self, line: str) -> None:
        """Process the start of a line, which may be incomplete."""
        if self.fence or not self.text_end or not line or line[0].isspace():
            return
        if self.empty or _opens(line) or (self.lines >= LONG and _ITEM.match(line)):
            self._cut(self.text_end, "")

    def ended(self, line: str, end: int) -> None:
        """Process the end of that line; `end` is the position after its line break."""
        self.lines += 1
        if self.fence:
            self._in_code(line, end)
        elif _opens(line):
            self.fence = line
        self.empty = not line.strip() and not self.fence
        if not self.empty:
            self.text_end = end

    def _in_code(self, line: str, end: int) -> None:
        at_margin = not self.fence[0].isspace()
        if _closes(line, self.fence):
            self.fence = ""
        elif self.lines < LONG:
            return
        if at_margin:
            self._cut(end, self.fence)

    def _cut(self, at: int, inside: str) -> None:
        self.cut = at
        self.inside = inside
        self.lines = 0


def _opens(line: str) -> bool:
    match = _FENCE.match(line)
    return match is not None and not (match[2][0] == "`" and "`" in match[3])


def _closes(line: str, opened: str) -> bool:
    opener = _FENCE.match(opened)
    closer = _FENCE.match(line)
    if opener is None or closer is None or closer[3].strip():
        return False
    return closer[2].startswith(opener[2])


def _matched(printed: str, whole: str) -> tuple[int, int]:
    """Return how far the printed text agrees with the complete one, ignoring white space, and the corresponding
    position in the complete one."""
    printed_at = whole_at = 0
    while True:
        while printed_at < len(printed) and printed[printed_at].isspace():
            printed_at += 1
        if printed_at == len(printed):
            return printed_at, whole_at
        step = whole_at
        while step < len(whole) and whole[step].isspace():
            step += 1
        if step == len(whole) or whole[step] != printed[printed_at]:
            return printed_at, whole_at
        printed_at += 1
        whole_at = step + 1
