"""What a person reads of an agent at a moment: what it does or waits for, since when, until when; as a table."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.agent.agent_states import Life, judged, started

from callboard.core.reports.activity import Activity, activity_of
from callboard.core.team.lifecycle import row_after
from callboard.types import events as ev
from callboard.types.records import AgentRow, Request

BEGAN, NOW = 100.0, 130.0
"""When the row came into its state, and the agent's newest event."""
TOOLS = {"bash": 120.0}
ALICE = AgentRow(name="alice", kind="teammate", parent="lead", since=BEGAN)


def begun(**spec: Any) -> Life:
    return Life.begun(total=900.0, **spec)


def seen(of: Life, /, *requests: Request, **row: Any) -> Activity:
    """What it does by its own row, or by one with these fields."""
    now = row_after(ALICE, of.state, BEGAN).model_copy(update={"since": BEGAN, **row})
    return activity_of(now, of.state, NOW, requests={one.id: one for one in requests}, longest=TOOLS.get)


def told(what: Activity) -> tuple[str, float, float | None]:
    return what.what, what.since, what.until


PROMPTED = begun().prompted("go")
WAITS: dict[str, tuple[str, tuple[str, float, float | None]]] = {
    "a request": ("permission req_1", ("permission", 110.0, 500.0)),
    "a request that is gone": ("plan req_9", ("plan req_9", BEGAN, None)),
    "the rate": ("rate", ("the service's rate", BEGAN, None)),
    "money": ("budget", ("money reserved for other calls", BEGAN, None)),
    "a restart": ("restart", ("its restart after a crash", BEGAN, None)),
    "no subagent yet": ("subagents", ("0 subagents", BEGAN, None)),
}
WORKS: dict[str, tuple[Life, tuple[str, float, float | None]]] = {
    "not begun": (Life(), ("", BEGAN, None)),
    "idle": (PROMPTED.said("done").on(ev.TurnEnded, turn="turn_0", reason="end", text="done"), ("", BEGAN, None)),
    "wants a reply": (PROMPTED, ("model call", NOW, NOW + 900)),
    "a call that its journal tells of": (PROMPTED.asked(), ("model call", BEGAN, BEGAN + 900)),
    "a tool with a time-out": (started(judged(PROMPTED.called("bash"), "c1"), "c1"), ("tool", BEGAN, BEGAN + 120)),
    "a tool without one": (started(judged(PROMPTED.called("look"), "c1"), "c1"), ("tool", BEGAN, None)),
    "a call that is not begun": (PROMPTED.called("bash"), ("tool", NOW, None)),
    "a turn that ends soon": (begun(limits={"seconds": 60}).prompted("go"), ("model call", NOW, BEGAN + 60)),
    "another try": (
        PROMPTED.on(ev.RetryPlanned, until=NOW + 8, attempt=1, parked=False, why="busy"),
        ("another try of one", NOW, NOW + 8),
    ),
}


@pytest.mark.parametrize("case", WAITS)
def test_what_a_row_waits_for_is_told_with_its_times(case: str) -> None:
    waiting_for, expected = WAITS[case]
    asked = Request(id="req_1", kind="permission", asked_by="alice", subject="rm x", created_at=110.0, expires_at=500.0)
    found = seen(PROMPTED, asked, life="waiting", waiting_for=waiting_for)
    assert told(found) == expected
    assert found.subject == ("rm x" if case == "a request" else "")


@pytest.mark.parametrize("case", WORKS)
def test_what_is_under_way_is_told_with_its_times(case: str) -> None:
    life, expected = WORKS[case]
    assert told(seen(life)) == expected


def test_calls_beside_each_other_are_counted_and_subagents_told_as_such() -> None:
    both = started(judged(PROMPTED.called("bash", "look"), "c1", "c2"), "c2")
    found = seen(both)
    assert found.call is not None
    assert (found.call.name, found.others) == ("look", 1), "the one that has begun"
    children = started(judged(PROMPTED.called("task", "task"), "c1", "c2"), "c1", "c2")
    assert told(seen(children)) == ("2 subagents", BEGAN, None)


@pytest.mark.parametrize("life", ["stopped", "crashed", "idle"])
def test_who_is_over_or_parked_does_nothing_whatever_its_journal_says(life: str) -> None:
    assert seen(PROMPTED.asked(), life=life) == Activity(since=BEGAN)
