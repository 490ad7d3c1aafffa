"""Every decision on a tool call of an agent's life, read from its journal: who, what, the verdict, by what. Pure.

The journal is the log: a verdict stands in it before its call changes anything; of a call that only reads, with the
agent's next reply (decision 0007).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from callboard.core.apply import apply
from callboard.core.context.told.explain import SUBJECTS
from callboard.core.state import AgentState
from callboard.words import events as ev
from callboard.words.values import Json

MOST_SHOWN = 200
"""Characters of a call's short form."""


@dataclass(frozen=True, slots=True)
class AnswerTold:
    """How a question was answered: `approved`, `rejected`, `expired` or `withdrawn`; when (Unix seconds), by whom."""

    at: float
    status: str
    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """One verdict. `runs` is what came of it: yes, no, or not known yet, since its answer is outstanding."""

    at: float
    """Unix seconds."""
    agent: str
    incarnation: int
    kind: str
    agent_type: str
    seq: int
    """Its position in the agent's journal."""
    call: str
    tool: str
    about: str
    """The input in short: its path, command or the like, first line only."""
    digest: str
    """sha256 of the whole input as it would run, as JSON with sorted names."""
    verdict: Literal["allow", "ask", "deny"]
    by: str
    """The rule, letter, hook or mode that decided."""
    why: str
    mode: str
    level: int
    authority: str
    """Of the turn: who caused it in the end."""
    request: str = ""
    answer: AnswerTold | None = None
    runs: bool | None = None


def decisions_in(events: Iterable[ev.Event]) -> list[Decision]:
    """The decisions of one journal, in its order."""
    state, found = AgentState(), dict[int, Decision]()
    asked: dict[str, int] = {}
    for seq, event in enumerate(events, 1):
        before, state = state, apply(state, event)
        match event:
            case ev.CallJudged():
                found[seq] = _of(seq, event, state, event.verdict, event.by)
            case ev.ApprovalNeeded():
                found[seq] = _of(seq, event, state, "ask", event.rule)
                asked[event.request_id] = seq
            case ev.AnswerTaken() if event.request_id in asked:
                at = asked[event.request_id]
                found[at] = _answered(found[at], event, before, state)
            case _:
                continue
    return list(found.values())


def _of(
    seq: int,
    event: ev.CallJudged | ev.ApprovalNeeded,
    state: AgentState,
    verdict: Literal["allow", "ask", "deny"],
    by: str,
) -> Decision:
    one = next((one.call for one in state.calls if one.call.id == event.call), None)
    given: Json = one.input if one is not None else {}
    me = state.me
    return Decision(
        at=event.at,
        agent=me.name,
        incarnation=state.incarnation,
        kind=me.kind,
        agent_type=me.agent_type,
        seq=seq,
        call=event.call,
        tool=one.name if one is not None else "",
        about=about(given),
        digest=digest(given),
        verdict=verdict,
        by=by,
        why=event.why,
        mode=event.mode,
        level=event.level,
        authority=state.authority,
        request=event.request_id if isinstance(event, ev.ApprovalNeeded) else "",
        runs={"allow": True, "ask": None, "deny": False}[verdict],
    )


def _answered(asked: Decision, event: ev.AnswerTaken, before: AgentState, after: AgentState) -> Decision:
    """An approval does not count where the gate has closed or the content has changed: the call tells."""
    waited = any(one.call.id == asked.call and one.stage == "asking" for one in before.calls)
    allowed = any(one.call.id == asked.call and one.stage == "allowed" for one in after.calls)
    answer = AnswerTold(event.at, event.status, event.by, event.reason)
    return replace(asked, answer=answer, runs=allowed if waited else False)


def about(given: Json) -> str:
    """An input in short."""
    value = next((given[name] for name in SUBJECTS if given.get(name)), None)
    text = value if isinstance(value, str) else json.dumps(given, ensure_ascii=False) if given else ""
    first = text.strip().partition("\n")[0]
    return first if len(first) <= MOST_SHOWN else f"{first[: MOST_SHOWN - 1]}…"


def digest(given: Json) -> str:
    """sha256 (hex) of an input, the same whatever the order of its names."""
    text = json.dumps(given, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
