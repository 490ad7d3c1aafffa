"""Resources that front ends list: columns and JSON forms, each declared once."""

from __future__ import annotations

from typing import Any

import pytest

from callboard.cli.mcp_server.tools import LISTED, REQUEST_SUMMARY
from callboard.sessions.inspect import resources
from callboard.sessions.inspect.resources import REQUESTS, SCHEDULES, SESSIONS, Column, Resource, ScheduleStatus
from callboard.types.records import Request, SessionRow
from callboard.types.schedules import Schedule

PAIR: Resource[tuple[str, str]] = Resource(
    (
        Column("NAME", lambda row: row[0]),
        Column("NOTE", lambda row: row[1], "filled"),
        Column("PLACE", lambda row: row[1], "varied"),
    ),
    "none",
)


@pytest.mark.parametrize(
    ("rows", "heads"),
    [
        ([], ["NAME"]),
        ([("a", "")], ["NAME"]),
        ([("a", "x"), ("b", "x")], ["NAME", "NOTE"]),
        ([("a", "x"), ("b", "")], ["NAME", "NOTE", "PLACE"]),
    ],
)
def test_a_column_is_shown_where_it_says_something(rows: list[tuple[str, str]], heads: list[str]) -> None:
    listed, cells = PAIR.cells(rows)
    assert listed == heads
    assert [len(row) for row in cells] == [len(heads)] * len(rows)


def test_a_listing_may_have_some_of_the_columns() -> None:
    request = Request(id="req_1", kind="question", asked_by="alice", subject="Which one?", created_at=0)
    assert REQUESTS.cells([request], ("REQUEST", "ABOUT")) == (["REQUEST", "ABOUT"], [["req_1", "Which one?"]])


@pytest.mark.parametrize(
    ("resource", "schema"), [(REQUESTS, REQUEST_SUMMARY), (SESSIONS, LISTED["properties"]["sessions"]["items"])]
)
def test_a_client_gets_the_fields_that_the_schema_of_its_tool_declares(resource: Resource[Any], schema: Any) -> None:
    assert list(resource.summary or ()) == schema["required"] == list(schema["properties"])


def test_the_json_form_of_a_schedule_has_its_session_and_next_times() -> None:
    schedule = Schedule(id="cron_1", cron="0 9 * * *", timezone="UTC", prompt="look", created_at=0)
    record = SCHEDULES.record(ScheduleStatus(schedule, "s1", 0.0, "serve"))
    assert (record["session"], record["fired_by"], len(record["next"])) == ("s1", "serve", 3)


@pytest.mark.parametrize(("fires", "shown"), [(0, False), (1, True)])
def test_a_schedule_that_never_fired_has_no_last_time(fires: int, shown: bool) -> None:
    """A correction of the clock, an edit, and a resume set `last_slot` of a schedule that never fired."""
    schedule = Schedule(id="cron_1", cron="0 9 * * *", timezone="UTC", prompt="look", last_slot=90.0, fires=fires)
    heads, cells = SCHEDULES.cells([ScheduleStatus(schedule, "s1", 100.0, "serve")], ("SCHEDULE", "LAST"))
    assert heads == ["SCHEDULE", "LAST"]
    assert bool(cells[0][1]) is shown


def test_each_resource_has_its_heads_once() -> None:
    declared = [value for value in vars(resources).values() if isinstance(value, Resource)]
    assert len(declared) == 11
    for resource in declared:
        heads = [column.head for column in resource.columns]
        assert len(set(heads)) == len(heads)


def test_a_session_is_summarized_by_how_it_ended() -> None:
    row = SessionRow(id="s1", workspace="/w", created_at=1.0, ended_at=2.0, exit_code=5)
    assert SESSIONS.summarize(row)["state"] == "failed"
    assert SESSIONS.cells([row])[1][0][2] == "ended with 5"
