"""Report of an agent's current activity or wait, its start and its time limit: for people who watch. Pure.

It depends only on the agent's row and journal, so any process can create it. A model call is only journalled when it
has ended, unless a budget applies (`engine/operations/model_call.py`): an agent that wants a reply and has no other
running operation has been making a call since its newest event.
"""

from __future__ import annotations

from collections.abc import Mapping

from callboard.core.agent.state import AgentState
from callboard.core.recovery.retry_policy import model_in_use
from callboard.core.team.lifecycle import RESTART, SUBAGENTS
from callboard.core.team.waits import Declared, stated_timeout
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import AgentRow, Request, ToolCall

MODEL = "model call"
SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Activity:
    """Current activity.

    `what`: a word or two; `call`: the tool call; `subject`: the subject of the request that it waits for. Times are
    Unix seconds.
    """

    what: str = ""
    since: float = 0.0
    until: float | None = None
    """Next time limit that ends it: a timeout, a deadline, the end of a wait."""
    call: ToolCall | None = None
    others: int = 0
    """Number of other running calls of the same reply."""
    subject: str = ""


def activity_of(
    row: AgentRow, state: AgentState, at: float, *, requests: Mapping[str, Request], longest: Declared
) -> Activity:
    """Return the agent's activity.

    `at`: time of its newest event; `longest`: tool -> the default seconds of its calls.
    """
    activity = _waits(row, state, requests) if row.life in ("waiting", "starting") else None
    if activity is None and row.life not in ("stopped", "crashed", "idle"):
        activity = _running_work(state, at, longest)
    if activity is None:
        return Activity(since=row.since)
    ends = [end for end in (activity.until, _end_of_turn(state)) if end is not None]
    return Activity(
        activity.what, activity.since, min(ends, default=None), activity.call, activity.others, activity.subject
    )


def _waits(row: AgentRow, state: AgentState, requests: Mapping[str, Request]) -> Activity | None:
    """Return the wait of the whole agent, by its row."""
    kind, _, about = row.waiting_for.partition(" ")
    if not kind:
        return None
    request = requests.get(about)
    if request is not None:
        return Activity(kind, request.created_at, request.expires_at, subject=request.subject)
    if kind == SUBAGENTS:
        begun = [child.started_at for child in state.calls.at("started")]
        return Activity(f"{len(begun)} subagent{'' if len(begun) == 1 else 's'}", min(begun, default=row.since))
    if kind == "rate":
        until = state.model.recovery.waiting_until or None
        return Activity("the service's rate", row.since, until)
    labels = {"budget": "money reserved for other calls", RESTART: "its restart after a crash"}
    return Activity(labels.get(kind, row.waiting_for), row.since)


def _running_work(state: AgentState, at: float, longest: Declared) -> Activity | None:
    """Return the agent's running work, by its journal."""
    if state.identity.spec is None or state.lifecycle.ended is not None:
        return None
    if state.model.call is not None:
        return Activity(MODEL, state.model.call.at, state.model.call.at + state.me.total)
    if state.compaction.summary is not None:
        return Activity(SUMMARY, at)
    under_way = [active for active in state.calls if active.open]
    if under_way:
        first = next((active for active in under_way if active.stage == "started"), under_way[0])
        since = first.started_at or at
        seconds = stated_timeout(first.call.input) or longest(first.call.name)
        return Activity(
            "tool", since, since + seconds if seconds and first.started_at else None, first.call, len(under_way) - 1
        )
    if state.model.recovery.waiting_until > at:
        return Activity(
            f"another try of {model_in_use(state.model.recovery, state.me)}", at, state.model.recovery.waiting_until
        )
    if state.turn is not None and state.context.wants_reply:
        return Activity(MODEL, at, at + state.me.total)
    return Activity("its turn", at) if state.turn is not None else None


def _end_of_turn(state: AgentState) -> float | None:
    if state.identity.spec is None or state.turn is None or state.me.limits.seconds is None:
        return None
    return state.turn.began_at + state.me.limits.seconds
