"""The slash command about schedules."""

from __future__ import annotations

from callboard.faces.commands.here import Here, nothing_more
from callboard.faces.pages.listings import schedules_table
from callboard.faces.terminal import Block


async def cron(here: Here, words: str) -> Block:
    nothing_more(words, "/cron")
    return schedules_table(here.session.schedules())
