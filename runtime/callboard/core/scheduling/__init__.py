"""Cron arithmetic: the meaning of an expression, its fire times, and due slots. Pure: the time is an argument."""

from callboard.core.scheduling.budget import budget_words, delivery_of, no_more_fires, pause_schedule, resume_schedule
from callboard.core.scheduling.cron import Cron, CronInvalid, parse_cron
from callboard.core.scheduling.describe import describe, local_time
from callboard.core.scheduling.due import (
    DueSlots,
    ScheduleDefaults,
    Slot,
    backoff,
    find_due_slots,
    next_slot,
    next_wake,
)
from callboard.core.scheduling.fire_times import fires_between, last_fire, next_fire, next_three
from callboard.core.scheduling.trigger import OneTime, When, parse_when, when_of

__all__ = [
    "Cron",
    "CronInvalid",
    "DueSlots",
    "OneTime",
    "ScheduleDefaults",
    "Slot",
    "When",
    "backoff",
    "budget_words",
    "delivery_of",
    "describe",
    "find_due_slots",
    "fires_between",
    "last_fire",
    "local_time",
    "next_fire",
    "next_slot",
    "next_three",
    "next_wake",
    "no_more_fires",
    "parse_cron",
    "parse_when",
    "pause_schedule",
    "resume_schedule",
    "when_of",
]
