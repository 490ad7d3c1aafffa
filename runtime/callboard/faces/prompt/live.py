"""A screen that also keeps what stands at the prompt line: the sentence that the lead is in the middle of, and what
each agent is at.

It refuses to draw: whoever owns the line asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from callboard.faces.lines import call_words, shorten
from callboard.faces.screen import Screen
from callboard.faces.terminal import Terminal
from callboard.ports.model import Delta
from callboard.words.events import (
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

_DOING_WIDTH, _DOING_SHOWN = 30, 3


class LiveScreen(Screen):
    """A screen that also shows the sentence that the lead is in the middle of, just above the prompt line."""

    def __init__(self, terminal: Terminal, *, verbose: bool) -> None:
        super().__init__(terminal, result_apart=False, verbose=verbose)
        self.tail = ""
        self.redraw: Callable[[], None] = _nothing
        self._doing: dict[str, str] = {}

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Keep the last line of what streams; the whole text is printed when its reply is whole."""
        super().on_delta(agent, delta)
        if agent != "lead" or delta.kind == "thinking":
            return
        self.tail = "" if delta.kind != "text" else (self.tail + delta.text)[-4_000:].rpartition("\n")[2]
        self.redraw()

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        """Print the event's lines; what was streaming is whole now, or void."""
        if agent == "lead" and isinstance(event, ModelReplied | ReplyDropped | ReplyInterrupted | CallFailed):
            self.tail = ""
        super().on_event(agent, seq, event)
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


def _nothing() -> None:
    return
