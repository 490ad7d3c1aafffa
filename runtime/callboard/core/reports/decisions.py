"""Every decision on a tool call of an agent's life, read from its journal: agent, call, verdict, and its rule. Pure.

The journal is the log: a verdict is journalled before its call changes anything. The verdict of a call that only reads
is journalled with the agent's next reply (decision 0007).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from callboard.core.agent.apply import apply, apply_behind_hole
from callboard.core.agent.state import AgentState
from callboard.core.call_words import input_words
from callboard.core.reports.context import Numbered
from callboard.types import events as ev
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json, RefusedRequest

MOST_SHOWN = 200
"""Maximum characters of a call's short form."""


@dataclass(frozen=True, slots=True)
class AnswerReport:
    """Answer to a question: `approved`, `rejected`, `expired` or `withdrawn`, with time (Unix seconds) and author."""

    at: float
    status: str
    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """One verdict. `runs`: yes, no, or unknown while its answer is outstanding."""

    at: float
    """Unix seconds."""
    agent: str
    incarnation: int
    kind: str
    agent_type: str
    seq: int
    """Position in the agent's journal."""
    call: str
    tool: str
    about: str
    """Short form of the input: its path, command or similar, first line only."""
    digest: str
    """sha256 of the whole input as it would run, as JSON with sorted names."""
    verdict: Literal["allow", "ask", "deny"]
    by: str
    """The rule, letter, hook or mode that decided."""
    why: str
    mode: str
    level: int
    authority: str
    """Authority of the turn: its original cause."""
    request: str = ""
    answer: AnswerReport | None = None
    runs: bool | None = None


def decisions_in(events: Iterable[Numbered]) -> list[Decision]:
    """Return the decisions of one journal, in order.

    After a gap, events that do not fit are skipped. Nothing is returned if the record that names the agent was lost.
    """
    fold = DecisionFold()
    for seq, event in events:
        fold.take(seq, event)
    return fold.decisions()


class DecisionFold:
    """Fold of a journal, event by event, to the decisions in it."""

    def __init__(self) -> None:
        self._state = AgentState()
        self._decisions: dict[int, Decision] = {}
        self._asked_at: dict[str, int] = {}
        self._holes = 0

    @property
    def position(self) -> int:
        """Return the number of the newest event."""
        return self._state.seq

    def decisions(self) -> list[Decision]:
        """Return the decisions so far, in order."""
        return list(self._decisions.values())

    def take(self, seq: int, event: ev.Event) -> None:
        """Add one event."""
        self._holes += seq != self._state.seq + 1
        before = self._state
        state = apply_behind_hole(before, seq, event) if self._holes else apply(before, event)
        self._state = state
        if state.identity.spec is None:
            return
        match event:
            case ev.CallJudged():
                self._decisions[seq] = _decision_from(seq, event, state, verdict=event.verdict, by=event.by)
            case ev.ApprovalNeeded():
                self._decisions[seq] = _decision_from(seq, event, state, verdict="ask", by=event.rule)
                self._asked_at[event.request_id] = seq
            case ev.AnswerTaken() if event.request_id in self._asked_at:
                at = self._asked_at[event.request_id]
                self._decisions[at] = _answered(self._decisions[at], event, before, state)
            case _:
                return


def refusal(seq: int, request: RefusedRequest) -> Decision:
    """Return a refused request of an agent's process as a decision. The agent is unknown: only its process was seen."""
    by_process = f" by process {request.pid} ({request.program})" if request.pid else ""
    return Decision(
        at=request.at,
        agent="",
        incarnation=0,
        kind="",
        agent_type="",
        seq=seq,
        call="",
        tool="web",
        about=f"{request.action}{by_process}"[:MOST_SHOWN],
        digest="",
        verdict="deny",
        by="person only",
        why=request.why,
        mode="",
        level=0,
        authority="tool",
        runs=False,
    )


def _decision_from(
    seq: int,
    event: ev.CallJudged | ev.ApprovalNeeded,
    state: AgentState,
    *,
    verdict: Literal["allow", "ask", "deny"],
    by: str,
) -> Decision:
    item = state.calls.find(event.call)
    call = item.call if item else None
    tool_input: Json = call.input if call is not None else {}
    me = state.me
    return Decision(
        at=event.at,
        agent=me.name,
        incarnation=state.identity.incarnation,
        kind=me.kind,
        agent_type=me.agent_type,
        seq=seq,
        call=event.call,
        tool=call.name if call is not None else "",
        about=about(tool_input),
        digest=digest(tool_input),
        verdict=verdict,
        by=by,
        why=event.why,
        mode=event.mode,
        level=event.level,
        authority=state.turns.authority,
        request=event.request_id if isinstance(event, ev.ApprovalNeeded) else "",
        runs={"allow": True, "ask": None, "deny": False}[verdict],
    )


def _answered(decision: Decision, event: ev.AnswerTaken, before: AgentState, after: AgentState) -> Decision:
    """Return the decision with its answer.

    An approval does not count if the gate has closed or the content has changed; the state of the call shows this.
    """
    waited = any(item.call.id == decision.call and item.stage == "asking" for item in before.calls)
    allowed = any(item.call.id == decision.call and item.stage == "allowed" for item in after.calls)
    answer = AnswerReport(event.at, event.status, event.by, event.reason)
    return replace(decision, answer=answer, runs=allowed if waited else False)


def about(tool_input: Json) -> str:
    """Return the short form of an input."""
    first = input_words(tool_input)
    return first if len(first) <= MOST_SHOWN else f"{first[: MOST_SHOWN - 1]}…"


def digest(tool_input: Json) -> str:
    """Return the sha256 (hex) of an input, independent of the order of its names."""
    text = json.dumps(tool_input, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
