"""What is due: slots and their ids, missed runs, jitter, one-shots, the wait after failures."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.core import scheduling as core
from callboard.core.scheduling import DueSlots, ScheduleDefaults, Slot
from callboard.core.scheduling.due import EXPIRED, clock_corrections, is_correction
from callboard.types.schedules import Schedule

SOAK = int(os.environ.get("SOAK", "1"))
HOUR = 3_600.0
DAY = 24 * HOUR
MADE = 1_774_569_600.0  # 2026-03-27 00:00 UTC, a Friday
NINE = MADE + 9 * HOUR


NO_JITTER = ScheduleDefaults(jitter=0.0)


def schedule(cron: str = "0 9 * * *", **fields: object) -> Schedule:
    return Schedule.model_validate(
        {"id": "cron_a", "cron": cron, "prompt": "look around", "created_at": MADE, **fields}
    )


def due(row: Schedule, now: float, *, not_before: float = 0.0) -> DueSlots:
    """What is due without jitter, which has tests of its own."""
    return core.find_due_slots(row, now, not_before=not_before, rules=NO_JITTER)


def next_wake(row: Schedule, *, not_before: float = 0.0) -> float | None:
    return core.next_wake(row, not_before=not_before, rules=NO_JITTER)


def considered(row: Schedule, found: DueSlots) -> Schedule:
    """The schedule after the commit that fires."""
    return row.model_copy(update={"last_slot": found.last_slot})


def nominals(found: DueSlots) -> list[float]:
    return [slot.nominal for slot in found.slots]


def test_nothing_is_due_before_its_time() -> None:
    assert due(schedule(), NINE - 0.001) == DueSlots((), None)
    assert next_wake(schedule()) == NINE


def test_a_slot_is_due_at_its_time_and_its_id_names_it() -> None:
    found = due(schedule(), NINE)
    assert [slot.id for slot in found.slots] == ["schedule:cron_a:2026-03-27T09:00:00Z"]
    assert found.last_slot == NINE
    assert found.missed is None


def test_a_slot_that_was_considered_is_not_due_again() -> None:
    fired = considered(schedule(), due(schedule(), NINE))
    assert due(fired, NINE + 1) == DueSlots((), NINE)
    assert next_wake(fired) == NINE + DAY


def test_a_slot_keeps_its_id_whatever_its_jitter() -> None:
    row, late = schedule(timezone="Asia/Kolkata"), NINE + 2 * 60
    jittered = core.find_due_slots(row, late, rules=ScheduleDefaults(jitter=60.0))
    assert [slot.id for slot in due(row, late).slots] == [slot.id for slot in jittered.slots]


def test_a_busy_half_hour_leaves_one_run_not_thirty() -> None:
    found = due(schedule("* * * * *"), MADE + 30 * 60 + 5)
    assert nominals(found) == [MADE + 30 * 60]
    assert found.last_slot == MADE + 30 * 60
    assert found.missed is not None
    assert found.missed.nominal == MADE + 60


@pytest.mark.parametrize(
    ("misfire", "late", "runs", "told"),
    [
        ("skip", 60.0, 1, False),
        ("skip", 61.0, 0, True),
        ("latest", HOUR, 1, False),
        ("latest", HOUR + 1, 0, True),
        ("all", HOUR, 1, False),
        ("all", HOUR + 1, 0, True),
    ],
)
def test_how_late_a_slot_may_run(misfire: str, late: float, runs: int, told: bool) -> None:
    found = due(schedule(misfire=misfire), NINE + late)
    assert len(found.slots) == runs
    assert (found.missed is not None) == told
    assert found.last_slot == NINE, "run or passed over, it is considered"


def test_all_missed_runs_come_in_order_up_to_the_cap_the_newest_kept() -> None:
    now = MADE + 65 * 60
    found = due(schedule("*/10 * * * *", misfire="all", misfire_cap=3), now)
    assert nominals(found) == [MADE + minutes * 60 for minutes in (40, 50, 60)]
    assert found.missed == Slot("cron_a", MADE + 600, MADE + 600)
    assert len(due(schedule("*/10 * * * *", misfire="all", misfire_cap=99), now).slots) == 6, "all six of the last hour"


def test_a_year_away_is_answered_at_once_and_runs_only_what_is_fresh() -> None:
    found = due(schedule("* * * * *", misfire="all", misfire_cap=5), MADE + 365 * DAY)
    assert len(found.slots) == 5


def test_a_one_shot_that_was_missed_is_told_and_does_not_run_a_year_later() -> None:
    row = schedule("0 9 27 3 *", recurring=False)
    assert nominals(due(row, NINE + 60)) == [NINE]
    found = due(row, NINE + 2 * DAY)
    assert found.slots == ()
    assert found.missed is not None
    assert found.missed.nominal == NINE


def test_a_one_shot_runs_its_first_slot_only_and_without_jitter() -> None:
    found = core.find_due_slots(schedule("* * * * *", recurring=False), MADE + 30 * 60)
    assert found.slots == (Slot("cron_a", MADE + 60, MADE + 60),)


@pytest.mark.parametrize("off", [{"enabled": False}, {"state": "paused"}, {"state": "fired"}, {"state": "cancelled"}])
def test_a_schedule_that_is_off_is_never_due(off: dict[str, object]) -> None:
    row = schedule(**off)
    assert due(row, NINE) == DueSlots((), None)
    assert core.next_slot(row) is None
    assert next_wake(row) is None


def test_a_schedule_that_failed_waits() -> None:
    row, wait = schedule(), NINE + 120
    assert due(row, wait - 1, not_before=wait) == DueSlots((), None)
    assert next_wake(row, not_before=wait) == wait
    assert nominals(due(row, wait, not_before=wait)) == [NINE]


def test_a_failing_schedule_waits_longer_and_is_paused_at_the_third() -> None:
    assert [core.backoff(failures) for failures in (1, 2, 3, 4)] == [60.0, 120.0, None, None]


def test_a_schedule_that_cannot_be_read_says_so() -> None:
    with pytest.raises(core.CronInvalid):
        due(schedule("61 * * * *"), NINE)


def test_jitter_spreads_schedules_of_one_time_and_never_wanders() -> None:
    rows = [schedule(id=f"cron_{number}") for number in range(50)]
    first = [at for row in rows if (at := core.next_wake(row)) is not None]
    assert first == [core.next_wake(row) for row in rows]
    assert len(set(first)) == 50
    assert all(NINE <= at < NINE + 60 for at in first)
    assert max(first) - NINE > 45, "the whole span is used"


def test_a_slot_that_still_waits_for_its_jitter_leaves_the_one_before_it_due() -> None:
    row = schedule("* * * * *")
    first = core.next_slot(row)
    assert first is not None
    assert first.fire_at > first.nominal
    assert core.find_due_slots(row, first.nominal + 60) == DueSlots((first,), first.nominal)


@settings(max_examples=60, deadline=None)
@given(
    name=st.text(min_size=1, max_size=8),
    cron=st.sampled_from(["* * * * *", "*/5 * * * *", "0,1 * * * *", "0 9 * * *", "@monthly"]),
    rules=st.builds(ScheduleDefaults, jitter=st.floats(-5, 1_000)),
)
def test_jitter_is_at_most_a_tenth_of_the_period_and_a_minute(name: str, cron: str, rules: ScheduleDefaults) -> None:
    row = schedule(cron, id=name)
    for _ in range(4):
        slot = core.next_slot(row, rules=rules)
        assert slot is not None
        row = row.model_copy(update={"last_slot": slot.nominal})
        following = core.next_slot(row, rules=rules)
        assert following is not None
        assert 0 <= slot.fire_at - slot.nominal <= min(60.0, (following.nominal - slot.nominal) / 10)


CRONS = st.sampled_from(["* * * * *", "*/7 * * * *", "0,1 3 * * *", "30 2 * * *"])
MISFIRES = st.sampled_from(["skip", "latest", "all"])
NAPS = st.lists(st.floats(0.5, 3 * HOUR), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(cron=CRONS, misfire=MISFIRES, naps=NAPS)
def test_no_slot_runs_twice_and_none_vanishes_untold(cron: str, misfire: str, naps: list[float]) -> None:
    agree_on_every_slot(cron, misfire, naps)


@pytest.mark.soak
@settings(max_examples=200 * SOAK, deadline=None)
@given(cron=CRONS, misfire=MISFIRES, naps=NAPS)
def test_no_slot_runs_twice_and_none_vanishes_untold_soak(cron: str, misfire: str, naps: list[float]) -> None:
    agree_on_every_slot(cron, misfire, naps)


def agree_on_every_slot(cron: str, misfire: str, naps: list[float]) -> None:
    """Wake after each nap: every slot that has passed is run once, or told as missed."""
    row = schedule(cron, misfire=misfire, misfire_cap=4, timezone="Europe/Berlin")
    now, seen = MADE, set[str]()
    for nap in naps:
        now += nap
        expected = core.next_slot(row)
        found = core.find_due_slots(row, now)
        ids = [slot.id for slot in found.slots]
        assert not seen & set(ids)
        assert all(slot.fire_at <= now for slot in found.slots)
        assert expected is not None
        if expected.fire_at <= now:
            assert expected in found.slots or found.missed == expected
        else:
            assert found == DueSlots((), row.last_slot)
        seen |= set(ids)
        row = considered(row, found)


@pytest.mark.parametrize(
    "fields",
    [
        {"last_slot": MADE + 5 * 365 * DAY},
        {"last_slot": MADE + 5 * 365 * DAY, "state": "ended", "cron": "at 2027-01-15T16:00", "recurring": False},
        {"last_slot": MADE, "state": "ended", "expires": MADE + 9 * DAY, "paused_why": EXPIRED},
    ],
)
def test_a_correction_of_a_fast_clock_is_recognized_and_no_other_change(fields: dict[str, object]) -> None:
    before = schedule(**fields)
    changes = clock_corrections(before, NINE, core.when_of(before))
    assert changes
    assert is_correction(before, before.model_copy(update=dict(changes)))
    fired = {"last_slot": before.last_slot + DAY} if before.last_slot else {}
    for other in ({}, {"state": "paused"}, {"cron": "0 10 * * *", "state": "active"}, fired):
        assert not is_correction(before, before.model_copy(update=other)), other
