"""States for the tests of the core: a life told event by event, in sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from callboard.core.agent.apply import apply
from callboard.core.agent.state import AgentState, Facts, ToolFacts
from callboard.core.messaging.envelopes import envelope_block
from callboard.types import events as ev
from callboard.types.agent_spec import AgentSpec
from callboard.types.records import Envelope, Json, ToolCall, Usage

TOOLS = {
    "read_file": ToolFacts("read"),
    "task": ToolFacts("delegate"),
    "write_file": ToolFacts("write"),
    "bash": ToolFacts("exclusive"),
    "submit_plan": ToolFacts("exclusive", barrier=True),
    "compact": ToolFacts("exclusive"),
}


def facts(now: float = 100.0, **more: Any) -> Facts:
    return Facts(**{"now": now, "tools": TOOLS, "folder": "/out", "transcripts": "/t", **more})


@dataclass(frozen=True)
class Life:
    """A state and the events that made it. Every method returns the life one thing later."""

    state: AgentState = field(default_factory=AgentState)
    events: tuple[ev.Event, ...] = ()
    mails: int = 0

    @staticmethod
    def begun(kind: str = "teammate", **spec: Any) -> Life:
        """An agent that has started and has its prompt."""
        given = {"name": "alice", "kind": kind, "agent_type": "worker", "model": "one", "parent": "lead", **spec}
        life = Life().on(ev.AgentStarted, spec=AgentSpec.model_validate(given), session="s1", incarnation=1)
        return life.on(ev.PromptSet, system="s", tools="t", overhead_tokens=100)

    def on(self, kind: type[Any], /, at: float = 100.0, **fields: Any) -> Life:
        event = kind(at=at, **fields)
        return replace(self, state=apply(self.state, event), events=(*self.events, event))

    def again(self, event: ev.Event) -> Life:
        """An event as it was written."""
        return replace(self, state=apply(self.state, event), events=(*self.events, event))

    def mailed(self, text: str, **fields: Any) -> Life:
        """An envelope has come."""
        number = self.mails + 1
        given = {"id": f"env_{number}", "sender": "lead", "recipient": "alice", "type": "prompt", **fields}
        envelope = Envelope.model_validate({**given, "content": text, "seq": number})
        return replace(self.on(ev.EnvelopeReceived, envelope=envelope), mails=number)

    def turned(self, cause: str = "env_1") -> Life:
        return self.on(ev.TurnBegan, turn=f"turn_{self.state.turns.count}", cause=cause)

    def delivered(self, *ids: str) -> Life:
        """All mail, or these envelopes, into the conversation."""
        taken = [one for one in self.state.inbox.mail if not ids or one.id in ids]
        blocks = tuple(envelope_block(one) for one in taken)
        return self.on(ev.EnvelopesDelivered, ids=tuple(one.id for one in taken), blocks=blocks)

    def prompted(self, text: str) -> Life:
        """Mail, a turn, and the words in the conversation: the model is to speak."""
        return self.mailed(text).turned(f"env_{self.mails + 1}").delivered()

    def asked(self) -> Life:
        ordinal = self.state.model.ordinal + 1
        return self.on(ev.ModelCalled, ordinal=ordinal, attempt=1, model="one", max_tokens=8_000)

    def replied(self, *blocks: Json, stop: str = "end_turn", calls: Sequence[ToolCall] = (), **more: Any) -> Life:
        given = {
            "ordinal": self.state.model.ordinal + 1,
            "model": "one",
            "stop_reason": stop,
            "usage": Usage(output_tokens=1),
        }
        life = self if self.state.model.call else self.asked()
        return life.on(ev.ModelReplied, blocks=blocks, calls=tuple(calls), **{**given, **more})

    def said(self, text: str, stop: str = "end_turn") -> Life:
        return self.replied({"type": "text", "text": text}, stop=stop)

    def called(self, *names: str) -> Life:
        """A reply that calls these tools: calls `c1`, `c2` ..."""
        at = self.state.model.ordinal + 1
        calls = [ToolCall(id=f"c{n}", use_id=f"u{at}_{n}", name=name, input={}) for n, name in enumerate(names, 1)]
        blocks = [{"type": "tool_use", "id": one.use_id, "name": one.name, "input": {}} for one in calls]
        return self.replied(*blocks, stop="tool_use", calls=calls)


def judged(life: Life, *calls: str, verdict: str = "allow") -> Life:
    for call in calls:
        life = life.on(ev.CallJudged, call=call, verdict=verdict, why="no")
    return life


def started(life: Life, *calls: str, effect: str = "read") -> Life:
    for call in calls:
        life = life.on(ev.ToolStarted, call=call, effect=effect)
    return life


def finished(life: Life, *calls: str, **more: Any) -> Life:
    for call in calls:
        life = life.on(ev.ToolFinished, call=call, content=({"type": "text", "text": f"did {call}"},), **more)
    return life


def settled(life: Life, *calls: str) -> Life:
    for call in calls:
        life = life.on(ev.ToolSettled, call=call)
    return life


def done(life: Life, *calls: str) -> Life:
    """Judged, started, finished and settled."""
    return settled(finished(started(judged(life, *calls), *calls), *calls), *calls)


def table(doc: str | None) -> list[tuple[str, str, str]]:
    """The rows of a table in a docstring: lines of three columns under a line of dashes, up to an empty one."""
    lines = [line.strip() for line in (doc or "").splitlines()]
    rule = next(place for place, line in enumerate(lines) if line.startswith("----"))
    cells = [re.split(r"  +", row) for row in lines[rule + 1 : lines.index("", rule)]]
    assert all(len(row) == 3 for row in cells), "two blanks between columns, none inside one"
    return [(what, when, action) for what, when, action in cells]
