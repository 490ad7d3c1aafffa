"""A screen for the prompt line: the lead's words appear block by block while they stream, rendered where there is
colour; what each agent is at, and the sentence that is not whole yet, stand at the line.

Text appears once: what streamed is not said again by the reply, which decides what is still to be said. What streamed
in vain is marked as void. It refuses to draw: whoever owns the line asks for the words.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from callboard.faces.lines import call_words, columns, shorten, text_of
from callboard.faces.prompt.streaming import Piece, Streamed
from callboard.faces.results import result_block
from callboard.faces.screen import Screen
from callboard.faces.terminal import Block, Line, Terminal, block, plain
from callboard.ports.model import Delta
from callboard.words.events import (
    AgentStopped,
    CallFailed,
    Event,
    ModelCalled,
    ModelReplied,
    ReplyDropped,
    ReplyInterrupted,
    ToolFinished,
    ToolStarted,
    TurnEnded,
)
from callboard.words.values import ToolCall

_DOING_WIDTH, _DOING_SHOWN = 30, 3
_TAIL_ROWS, _TAIL_KEPT = 4, 4_000
"""Rows and characters of a sentence under way that are shown at most."""
_GAPS = "[parts of the text above were lost on their way; from there on it reads:]"


class LiveScreen(Screen):
    """Prints what happens, and keeps what stands round the prompt line."""

    def __init__(self, terminal: Terminal, *, verbose: bool) -> None:
        super().__init__(terminal, result_apart=False, verbose=verbose)
        self.redraw: Callable[[], None] = _nothing
        self._doing: dict[str, str] = {}
        self._streamed = Streamed()
        self._apart = False
        """Something else streamed since the last text."""

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Print the blocks that are whole now; what streamed before is void when the service says so."""
        if agent == "lead" and delta.kind == "dropped" and self._streamed.begun:
            words = f"partial reply dropped: {delta.text}. What lead said above since its last whole reply is void"
            self._terminal.terminal_print(block(words, "warn", name=agent))
        else:
            super().on_delta(agent, delta)
        if agent != "lead":
            return
        match delta.kind:
            case "text":
                self._heard(delta.text)
                self.redraw()
            case "dropped":
                self._streamed.drop()
                self.redraw()
            case "tool" | "thinking":
                self._apart = True
            case _:
                return

    def _heard(self, text: str) -> None:
        if self._apart and self._streamed.text:
            text = f"\n{text}"
        self._apart = False
        begun = self._streamed.begun
        if (piece := self._streamed.more(text)) is not None:
            self._terminal.terminal_print(self._piece_block("lead", piece, first=not begun))

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        """Print the event's lines; what was streaming is whole now, or void."""
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
            case _:
                pass
        self.redraw()

    def found(self, at_work: Sequence[str]) -> None:
        """These were at work when this screen attached; what at, the next of their events tells."""
        for agent in at_work:
            self._doing.setdefault(agent, "at work")

    def doing(self) -> str:
        """What each agent is at, in a few words."""
        shown = [f"{agent}: {shorten(what, _DOING_WIDTH)}" for agent, what in list(self._doing.items())[:_DOING_SHOWN]]
        more = len(self._doing) - len(shown)
        return " | ".join([*shown, *([f"{more} more"] if more > 0 else [])])

    def tail(self, width: int, rows: int) -> str:
        """The end of what the lead is in the middle of, in rows of that width."""
        return tail_rows(self._streamed.tail, width, max(1, min(_TAIL_ROWS, rows // 6)))

    def _lines(self, agent: str, event: Event, calls: Mapping[str, ToolCall]) -> Block | None:
        match event:
            case ModelReplied():
                said = text_of([one for one in event.blocks if one.get("type") == "text" and one.get("text")])
                return self._rest(agent, said)
            case ReplyInterrupted():
                rest = self._rest(agent, event.text)
                mark = Line("[interrupted]", "warn", "" if rest else agent)
                return Block((*(rest.lines if rest else ()), mark)) if event.text else None
            case ToolFinished():
                return result_block(agent, event, calls.get(event.call), "whole" if self._verbose else "folded")
            case _:
                return super()._lines(agent, event, calls)

    def _rest(self, agent: str, said: str) -> Block | None:
        """What of these words does not stand on the screen yet."""
        if agent != "lead":
            return self._said_block(agent, said.strip("\n")) if said.strip() else None
        begun = self._streamed.begun
        piece, lost = self._streamed.end(said)
        if lost:
            rest = self._piece_block(agent, piece, first=True).lines if piece else ()
            return Block((Line(_GAPS, "warn", agent), *rest))
        return self._piece_block(agent, piece, first=not begun) if piece else None

    def _said_block(self, agent: str, text: str) -> Block:
        return self._piece_block(agent, Piece(text), first=True)

    def _piece_block(self, agent: str, piece: Piece, *, first: bool) -> Block:
        """A piece as it looks here. The lead's name stands before what it begins to say; the pieces that follow have
        an empty line before them where the text has one."""
        text = plain(piece.text).rstrip("\n")
        words = text.lstrip("\n")
        gap = (Line(""),) * (not first and words != text)
        if not self._terminal.paints:
            lines = block(words).lines
        else:
            # rich takes 200 ms to import, and a screen without colour never needs it.
            rendering = importlib.import_module("callboard.faces.rendering")
            whole = f"{piece.inside}\n{words}" if piece.inside else words
            width = shutil.get_terminal_size().columns - columns(agent) - 1
            lines = rendering.rendered(whole, width)
        named = replace(lines[0], name=agent) if lines else Line("", name=agent)
        return Block((*gap, named if first else lines[0], *lines[1:]) if lines else gap)


def tail_rows(text: str, width: int, rows: int) -> str:
    """The last rows of a text, broken at the edge, one column left free."""
    lines = [line for line in plain(text[-_TAIL_KEPT:]).expandtabs(4).split("\n") if line.strip()]
    found: list[str] = []
    for line in reversed(lines):
        found[:0] = _broken(line, max(1, width - 1))
        if len(found) >= rows:
            break
    return "\n".join(found[-rows:])


def _broken(line: str, width: int) -> list[str]:
    rows, used = [""], 0
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
