"""Cron arithmetic: what an expression means, when it fires, what is due. Pure: the time comes in as an argument."""

from callboard.core.schedule.cron import Cron, CronInvalid, parse_cron
from callboard.core.schedule.describe import describe, local_time
from callboard.core.schedule.due import Due, Rules, Slot, backoff, due, next_slot, next_wake
from callboard.core.schedule.fires import fires_between, last_fire, next_fire, next_three
from callboard.core.schedule.spending import budget_words, delivered, no_more_fires, paused, resumed
from callboard.core.schedule.when import Once, When, parse_when, when_of

__all__ = [
    "Cron",
    "CronInvalid",
    "Due",
    "Once",
    "Rules",
    "Slot",
    "When",
    "backoff",
    "budget_words",
    "delivered",
    "describe",
    "due",
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
    "paused",
    "resumed",
    "when_of",
]
