"""The slash command about schedules."""

from __future__ import annotations

import time

from callboard.faces.commands.here import Here, nothing_more
from callboard.faces.pages.schedules import cron_page
from callboard.faces.terminal import Block


async def cron(here: Here, words: str) -> Block:
    nothing_more(words, "/cron")
    return cron_page(here.session.schedules(), time.time())
