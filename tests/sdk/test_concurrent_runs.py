"""Several runs of one session, and runs where it is not hosted: each gets its own answer, or sends nothing."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from callboard import Session
from callboard.sdk import events
from callboard.sdk.errors import UsageError

SCENARIO = """\
agents:
  lead:
    - when: {contains: "repeat [a-z]+"}
      repeat: forever
      capture: {word: "repeat ([a-z]+)"}
      reply: '["${word}"]'
    - {otherwise: true, reply: "Done."}
"""


def test_each_of_several_runs_at_the_same_time_gets_its_own_answer(place: Path) -> None:
    async def streamed(session: Session, prompt: str) -> str:
        rested = [event async for event in session.stream(prompt)][-1]
        assert isinstance(rested, events.Rested)
        return rested.result.text

    async def go() -> None:
        async with Session(place) as session:
            plain, typed, stream = await asyncio.gather(
                session.run("repeat alpha"),
                session.run("repeat beta", result=list[str]),
                streamed(session, "repeat gamma"),
            )
            assert (plain.text, typed.value, stream) == ('["alpha"]', ["beta"], '["gamma"]')

    asyncio.run(go())


def test_a_stream_has_no_events_of_the_turn_that_it_waits_for(place: Path) -> None:
    async def texts(session: Session, word: str) -> list[str]:
        seen = [event async for event in session.stream(f"repeat {word}")]
        return [event.text for event in seen if isinstance(event, events.Replied)]

    async def go() -> None:
        async with Session(place) as session:
            words = ("alpha", "beta", "gamma")
            assert await asyncio.gather(*(texts(session, word) for word in words)) == [
                [f'["{word}"]'] for word in words
            ]

    asyncio.run(go())


def test_a_run_at_an_attached_session_sends_nothing(place: Path) -> None:
    async def go() -> None:
        async with Session(place) as session, Session.attach(place, session.id) as attached:
            with pytest.raises(UsageError, match=r"use session\.say"):
                await attached.run("Hello there")
            assert (await session.rest()).text == ""

    asyncio.run(go())


def test_a_run_from_another_event_loop_is_refused_and_sends_nothing(place: Path) -> None:
    async def go() -> None:
        async with Session(place) as session:
            with pytest.raises(UsageError, match="run_coroutine_threadsafe"):
                await asyncio.to_thread(asyncio.run, session.run("Hello there"))
            assert (await session.rest()).text == ""
            sent = partial(asyncio.run_coroutine_threadsafe, session.run("Hello there"), asyncio.get_running_loop())
            assert (await asyncio.to_thread(lambda: sent().result())).text == "Done."

    asyncio.run(go())
