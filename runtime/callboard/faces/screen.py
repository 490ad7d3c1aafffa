"""An observer that tells a session on the terminal, as it happens.

It remembers what one event does not say: the call behind a result, envelopes already shown, the text that may still
turn out to be the result. It refuses to decide what is worth a line (`lines.py`) and to write (`terminal.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from callboard.core.recovery.turns import KNOWN_STOPS
from callboard.faces.lines import call_words, lines_of, mail_line, text_of, usage_words
from callboard.faces.results import result_block
from callboard.faces.terminal import Block, Line, Terminal, block
from callboard.ports.model import Delta
from callboard.words.events import (
    Event,
    GateSet,
    ModelCalled,
    ModelReplied,
    ResultsMerged,
    ToolFinished,
    ToolStarted,
    TurnBegan,
    TurnEnded,
)
from callboard.words.values import Envelope, Request, ToolCall

_MAIL_REMEMBERED = 4_096


class Known(Protocol):
    """What a session knows, and the events that a screen has seen do not say."""

    def call(self, agent: str, call: str) -> ToolCall | None:
        """A tool call under way, by our id."""
        ...

    @property
    def damage(self) -> Sequence[str]:
        """What its store set aside, a line each."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Which settings are heeded in another way than they say, a line each."""
        ...

    def requests(self) -> Sequence[Request]:
        """Those that wait for an answer."""
        ...


class Screen:
    """Prints what happens. `result_apart`: the lead's last text is left to the caller, who prints it as the result.
    `verbose`: each model call has a line too."""

    def __init__(self, terminal: Terminal, *, result_apart: bool, verbose: bool = False) -> None:
        self._terminal, self._result_apart, self._verbose = terminal, result_apart, verbose
        self._calls: dict[str, dict[str, ToolCall]] = {}
        self._mail: dict[str, None] = {}
        self._said: dict[str, str] = {}
        self._held: Block | None = None
        self._odd_stops: set[str] = set()
        """Stop reasons that nobody knows, and that were told."""
        self._known: Known | None = None
        self._asks_plans = False

    def attach(self, session: Known, *, asks_plans: bool = False) -> None:
        """The session that is told of, and the damage of its store, which `--quiet` does not hide. `asks_plans`: plans
        for a person are shown where that person is asked."""
        self._known, self._asks_plans = session, asks_plans
        if session.notes:
            self._terminal.terminal_print(Block(tuple(Line(one, "warn") for one in session.notes)))
        if session.damage:
            self._terminal.terminal_print(Block(tuple(Line(f"the store: {one}", "warn") for one in session.damage)))

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        """Print the event's lines."""
        calls = self._calls.setdefault(agent, {})
        self._learn(agent, event, calls)
        if self._verbose and (words := _at_work(event, calls)):
            self._terminal.terminal_print(block(words, "dim", name=agent, progress=True))
        if isinstance(event, GateSet) and self._is_asked(event):
            event = event.model_copy(update={"plan": ""})
        shown = self._lines(agent, event, calls)
        if isinstance(event, ResultsMerged):
            calls.clear()
        if isinstance(event, TurnBegan) and agent == "lead":
            self._release()
        if isinstance(event, TurnEnded):
            self._end_of_turn(agent, event)
        if shown is None:
            return
        if self._may_be_result(agent, event):
            self._release()
            self._held = shown
        else:
            self._terminal.terminal_print(shown)

    def _tell_stop(self, agent: str, reason: str) -> None:
        """A stop reason that this version does not know, once."""
        if reason and reason not in KNOWN_STOPS and reason not in self._odd_stops:
            self._odd_stops.add(reason)
            words = f"the service ended a reply with {reason!r}, which is not known here: taken by what is in the reply"
            self._terminal.terminal_print(block(words, "warn", name=agent, progress=True))

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Tell that what was streaming is void, and what is to be noticed; a reply is shown when it is whole."""
        if delta.kind == "notice":
            self._terminal.terminal_print(block(delta.text, "warn", name=agent))
        if delta.kind == "dropped":
            self._terminal.terminal_print(
                block(f"partial reply dropped: {delta.text}", "warn", name=agent, progress=True)
            )

    def on_mail(self, envelope: Envelope) -> None:
        """Print an envelope's line, once though it is seen by sender and recipient."""
        if envelope.id in self._mail:
            return
        self._mail[envelope.id] = None
        if len(self._mail) > _MAIL_REMEMBERED:
            del self._mail[next(iter(self._mail))]
        if (shown := mail_line(envelope)) is not None:
            self._terminal.terminal_print(shown)

    def call(self, agent: str, call: str) -> ToolCall | None:
        """An agent's tool call under way, by our id."""
        return self._calls.get(agent, {}).get(call)

    def _learn(self, agent: str, event: Event, calls: dict[str, ToolCall]) -> None:
        """The calls of a reply. Those of a reply that came before this process the session has."""
        match event:
            case ModelReplied():
                calls.update({call.id: call for call in event.calls})
                self._tell_stop(agent, event.stop_reason)
                self._said[agent] = text_of([one for one in event.blocks if one.get("type") == "text"])
            case ToolStarted() | ToolFinished() if event.call not in calls and self._known is not None:
                if (known := self._known.call(agent, event.call)) is not None:
                    calls[event.call] = known
            case _:
                pass

    def _is_asked(self, event: GateSet) -> bool:
        """The plan is about to be shown whole by the question for it."""
        if event.gate != "pending" or not self._asks_plans or self._known is None:
            return False
        return any(one.id == event.request_id and "person" in one.may_answer for one in self._known.requests())

    def finish(self, result: str) -> None:
        """The session is over and `result` is about to be printed: say what was held back and is something else."""
        if self._held is not None and self._said.get("lead", "").strip() == result.strip():
            self._held = None
        self._release()

    def _may_be_result(self, agent: str, event: Event) -> bool:
        return self._result_apart and agent == "lead" and isinstance(event, ModelReplied) and not event.calls

    def _end_of_turn(self, agent: str, event: TurnEnded) -> None:
        """The final text is always shown, also when no reply of this process carried it."""
        said = self._said.pop(agent, "") if not self._result_apart else self._said.get(agent, "")
        if self._result_apart and agent == "lead":
            return
        if event.text and event.text.strip() != said.strip():
            self._terminal.terminal_print(self._said_block(agent, event.text))

    def _lines(self, agent: str, event: Event, calls: Mapping[str, ToolCall]) -> Block | None:
        """What an event looks like here."""
        if isinstance(event, ToolFinished):
            return result_block(agent, event, calls.get(event.call), "whole" if self._verbose else "brief")
        return lines_of(agent, event)

    def _said_block(self, agent: str, text: str) -> Block:
        """What an agent's words look like here."""
        return block(text, name=agent)

    def _release(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._terminal.terminal_print(held)


def _at_work(event: Event, calls: Mapping[str, ToolCall]) -> str:
    """What only `--verbose` tells; empty for what it does not."""
    match event:
        case ModelReplied():
            return f"{event.model}: {usage_words(event.usage)}, {event.stop_reason}"
        case ModelCalled():
            return f"asks {event.model} ({event.purpose}, attempt {event.attempt})"
        case ToolStarted() if event.call in calls:
            return f"tool {call_words(calls[event.call])}"
        case _:
            return ""
