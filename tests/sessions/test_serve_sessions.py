"""Sessions of a `callboard serve`: those whose host died, that cannot be opened, that end meanwhile, and its limit."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncGenerator
from itertools import accumulate
from pathlib import Path

import anyio
import pytest
from tests.sessions.serving_here import DEAD, LIMIT, ServingHere, serving_here

from callboard.adapters.processes.pids import started_at
from callboard.adapters.system.clock import SystemClock
from callboard.core.decoding import read_value
from callboard.core.keys import host_key, host_lease, queue_key, schedule_key
from callboard.core.scheduling.due import EXPIRED
from callboard.core.scheduling.history import FireProgress, ended_fire
from callboard.engine.commands import queue_write
from callboard.ports.store import Delete, LeaseHolder, Put
from callboard.sessions import serve_sessions
from callboard.sessions.fleet import drain_in
from callboard.sessions.inspect.hosts import ABOUT_TO_TAKE, read_hosts
from callboard.sessions.inspect.inspector import handle_of
from callboard.sessions.serve_options import fire_line, local_time
from callboard.types.errors import StoreBusy
from callboard.types.records import HostAbout, HostRow
from callboard.types.schedules import Fire, Schedule

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[ServingHere]:
    monkeypatch.setenv("HOME", str(tmp_path))
    for kind in ("STATE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    monkeypatch.setattr(serve_sessions, "REMOVAL_TIMEOUT", 0.05)  # no host here removes its row late
    async with serving_here(tmp_path) as here:
        yield here


# A session whose host died


async def test_a_session_that_a_budget_ended_says_how_to_continue(here: ServingHere) -> None:
    settings = here.folder / "config" / "callboard" / "settings.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text("budget: {steps: 0}\n")
    session = await here.detached()
    async with here.serving(here.server()):
        await here.until(lambda: bool(here.texts("left")))
    (text,) = here.texts("left")
    assert text.startswith("it ended with exit code 5: the budget of model calls of the session is used up")
    assert text.endswith(f"; raise the budget, then `callboard resume {session}` continues it")


def test_the_line_of_a_retry_names_the_try_once_and_the_next_one() -> None:
    schedule = Schedule(id="cron_roof", cron="@daily", prompt="Look.", retries=1)
    fire_id = "schedule:cron_roof:1"
    sent = Fire(id=fire_id, session="s", schedule="cron_roof", nominal=0.0, at=0.0, outcome="running", agent="lead")
    course = FireProgress("env", "ended", own=True, began_at=1.0, ended_at=2.0, reason="failed", why="no roof " * 40)
    line = fire_line(ended_fire(sent, course, schedule), "s")
    assert line is not None
    assert (line.kind, line.text.count("try 1")) == ("retry", 1)
    assert line.text.startswith(f"due {local_time(0.0)}: try 1 failed: no roof")
    assert line.text.endswith("; the next follows in 1 min")


ASKS = """
agents:
  lead:
    - {reply: [{tool_use: {name: ask_person, input: {question: May I?}}}]}
    - {reply: I wait., when: {result_of: ask_person}}
    - {reply: I decided., repeat: forever}
"""


async def test_a_question_that_nobody_answers_is_decided_by_its_agent(here: ServingHere) -> None:
    settings = here.folder / "config" / "callboard" / "settings.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text("ask: {deadline: 1}\n")
    (here.folder / "scenario.yaml").write_text(ASKS)
    session = await here.detached()
    async with here.serving(here.server()):
        await here.until(lambda: bool(here.texts("left")))
    assert [line.kind for line in here.lines] == ["hosting", "waits", "answer", "left"]
    (waits,), (answer,), (left,) = here.texts("waits"), here.texts("answer"), here.texts("left")
    assert " of lead waits for you until " in waits
    assert waits.endswith(": May I?")
    assert answer.endswith(" of lead is expired: nobody answered in time")
    assert left.startswith("it ended with exit code 4: nobody answered req_")
    assert (await here.row(session)).exit_code == 4


async def test_a_request_that_waits_is_reported_again_by_the_next_host(here: ServingHere) -> None:
    (here.folder / "scenario.yaml").write_text(ASKS)
    await here.detached()
    for _ in range(2):
        here.lines.clear()
        async with here.serving(here.server()):
            await here.until(lambda: bool(here.texts("waits")))
        assert len(here.texts("waits")) == 1


async def test_a_session_of_a_dead_host_ends_with_its_exit_code(here: ServingHere) -> None:
    session = await here.orphan()
    async with here.serving(here.server()):
        await here.until(lambda: bool(here.texts("left")))
    assert here.texts("left") == ["its work is done, exit code 0"]
    row = await here.row(session)
    assert (row.exit_code, row.ended_at is None) == (0, False)
    assert (await here.is_queued(session), await here.is_hosted(session)) == (False, False)


async def test_a_session_of_a_dead_host_that_is_handed_over_waits_for_another_one(here: ServingHere) -> None:
    here.scenario(latency=100_000)
    session, leaving = await here.orphan(), anyio.Event()
    async with here.serving(here.server(leaving=leaving)):
        await here.until(lambda: bool(here.texts("hosting")))
        leaving.set()
        await here.until(lambda: bool(here.texts("left")))
    assert here.texts("left") == ["handed over: another host continues it"]
    assert await here.is_queued(session)


async def test_a_session_of_a_dead_host_that_cannot_be_opened_still_needs_a_host(here: ServingHere) -> None:
    session = await here.orphan()
    (here.folder / "scenario.yaml").unlink()
    async with here.serving(here.server()):
        await here.until(lambda: bool(here.texts("trouble")))
    assert await here.is_queued(session)


# A session that cannot be opened

PARENT = os.getppid()
OTHER = HostRow(pid=PARENT, started=started_at(PARENT) or 0.0, machine=socket.gethostname(), unattended=True)
"""Row of another serving host."""


async def _with_one_that_fails(here: ServingHere) -> str:
    """Create a session whose scenario is gone."""
    session = await here.detached(here.scenario(name="gone"))
    (here.folder / "gone.yaml").unlink()
    return session


async def _another_ends(here: ServingHere) -> None:
    """Let another session come and end: what happened before it has been noticed by then."""
    ended_fire = len(here.texts("left"))
    await here.detached()
    await here.until(lambda: len(here.texts("left")) > ended_fire)


async def test_a_session_that_cannot_be_opened_is_tried_again_only_after_a_change_that_matters(
    here: ServingHere,
) -> None:
    session = await _with_one_that_fails(here)
    async with here.serving(here.server()):
        await here.until(lambda: bool(here.texts("trouble")))
        await _another_ends(here)
        (text,) = here.texts("trouble")
        assert "tried again in 60 s" in text
        await here.store.commit(queue_write(session, {}, now=1.0))  # as `callboard send` does
        await here.until(lambda: len(here.texts("trouble")) == 2)
        await _another_ends(here)
        assert "tried again in 120 s" in here.texts("trouble")[-1]
        person = OTHER.model_copy(update={"unattended": False})
        await here.store.commit(Put(host_key(session), person.encode()))
        await here.until(lambda: len(here.texts("trouble")) == 3)
        await _another_ends(here)
    assert len(here.texts("trouble")) == 3


async def test_two_hosts_that_cannot_open_a_session_do_not_wake_each_other(here: ServingHere) -> None:
    session = await _with_one_that_fails(here)
    async with here.serving(here.server()):
        await here.until(lambda: bool(here.texts("trouble")))
        for _ in range(3):
            await here.store.commit(Put(host_key(session), OTHER.encode()))
            await _another_ends(here)
            await here.store.commit(Delete(host_key(session)))
            await _another_ends(here)
    assert len(here.texts("trouble")) == 1


async def test_a_host_that_keeps_a_session_shows_that_it_can_be_opened(
    here: ServingHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_sessions, "OPENED_AFTER", 0.05)
    session = await _with_one_that_fails(here)
    async with here.serving(here.server()):
        await here.until(lambda: bool(here.texts("trouble")))
        lease = await here.store.acquire(host_lease(session))
        assert not isinstance(lease, LeaseHolder)
        await here.store.commit(Put(host_key(session), OTHER.encode()))
        await _another_ends(here)
        assert len(here.texts("trouble")) == 1, "another host has it"
        await lease.release()
        await here.store.commit(Delete(host_key(session)))
        await here.until(lambda: len(here.texts("trouble")) == 2)


# A session that ends while a host starts


@pytest.mark.parametrize("kind", ["queue", "schedule", "host"])
async def test_a_session_that_ends_while_a_host_starts_is_not_hosted(here: ServingHere, kind: str) -> None:
    """The row by which it needed a host is the only one of its kind: nothing follows it in the first read."""
    session = await here.detached()
    scheduled = Schedule(id="cron_daily", cron="@daily", prompt="Look.", created_at=1.0)
    values = {
        queue_key(session): (await here.store.keys(queue_key(session)))[0].value or b"",
        schedule_key(session, scheduled.id): scheduled.encode(),
        host_key(session): DEAD.encode(),
    }
    key = next(key for key in values if f"{kind}/" in key)
    await here.store.commit(Delete(queue_key(session)))
    await here.store.commit(Put(key, values[key]))
    async with here.serving(here.server(), Delete(key)):
        await _another_ends(here)
        await _another_ends(here)
    assert session not in {line.session for line in here.lines}


# The limit of a host


def _most_at_once(here: ServingHere) -> int:
    """Return the largest number of sessions that were hosted at a time."""
    counts = accumulate({"hosting": 1, "left": -1}.get(line.kind, 0) for line in here.lines)
    return max(counts)


@pytest.mark.parametrize("once", [False, True], ids=["serve", "once"])
async def test_a_host_with_a_limit_hosts_no_more_sessions_than_that(here: ServingHere, once: bool) -> None:
    here.scenario(latency=100)
    for _ in range(3):
        await here.detached()
    server = here.server(sessions=1, once=once)
    if once:
        await server.read_rows()
        assert await server.once() == 0
    else:
        async with here.serving(server):
            await here.until(lambda: len(here.texts("left")) == 3)
    assert (len(here.texts("left")), _most_at_once(here)) == (3, 1)


async def test_a_session_that_cannot_be_opened_takes_no_place(here: ServingHere) -> None:
    await _with_one_that_fails(here)
    async with here.serving(here.server(sessions=1)):
        await here.until(lambda: bool(here.texts("trouble")))
        await _another_ends(here)


# Orders while the store is away


async def test_an_order_to_drain_that_cannot_be_announced_ends_nothing(
    here: ServingHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce, failed, told = here.store.announce, anyio.Event(), anyio.Event()

    async def announce_or_fail(about: bytes) -> None:
        draining = read_value(HostAbout, about, "hosts").draining
        if draining and not failed.is_set():
            failed.set()
            raise StoreBusy("the server is away")
        await announce(about)
        if draining:
            told.set()

    monkeypatch.setattr(here.store, "announce", announce_or_fail)
    async with here.serving(here.server()):
        (own,) = await drain_in(here.store, f"{socket.gethostname()}:{os.getpid()}", drain=True)
        with anyio.fail_after(LIMIT):
            await told.wait()
        assert failed.is_set()
        assert [host.state for host in (await read_hosts(here.store)).hosts] == ["draining"]
        await drain_in(here.store, own, drain=False)
        await _another_ends(here)


# A clock that was ahead of time


def _expired(session: str, moment: float) -> Put:
    """Return the row of a schedule that a clock ahead of time ended, although it expires an hour after `moment`."""
    schedule = Schedule(id="cron_roof", cron="0 * * * *", prompt="Look.", created_at=moment, expires=moment + 3_600)
    ended_fire = schedule.model_copy(update={"state": "ended", "paused_why": EXPIRED, "last_slot": moment + 86_400})
    return Put(schedule_key(session, schedule.id), ended_fire.encode())


async def test_a_session_whose_only_schedule_a_fast_clock_ended_is_hosted_and_corrected(here: ServingHere) -> None:
    session = await here.orphan()
    async with here.serving(here.server()):
        await here.until(lambda: bool(here.texts("left")))
    await here.store.commit(_expired(session, time.time()))
    here.lines.clear()
    async with here.serving(here.server()):
        await here.until(lambda: any(text.startswith("corrected") for text in here.texts("note")))
    assert here.texts("hosting")[0].startswith("1 schedule, next ")


async def test_a_clock_that_is_put_back_while_nothing_is_hosted_is_noticed(
    here: ServingHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await here.orphan()
    ahead = 7_200.0
    monkeypatch.setattr(serve_sessions, "LOOK_AGAIN", 0.01)
    monkeypatch.setattr(SystemClock, "now", lambda _: time.time() + ahead)
    async with here.serving(here.server()):
        await here.until(lambda: bool(here.texts("left")))
        here.lines.clear()
        await here.store.commit(_expired(session, time.time()))
        await _another_ends(here)
        assert not here.texts("note"), "it has expired for this clock"
        ahead = 0.0
        await here.until(lambda: any(text.startswith("corrected") for text in here.texts("note")))


# Words about a session between two hosts


async def test_a_session_with_schedules_that_a_serving_host_takes_next_does_not_count_as_left_alone(
    here: ServingHere,
) -> None:
    session = await here.orphan()
    daily = Schedule(id="cron_roof", cron="@daily", prompt="Look.", created_at=time.time())
    await here.store.commit(Put(schedule_key(session, daily.id), daily.encode()))
    assert (await (await handle_of(here.store, session)).hosting_words()).startswith("no process hosts it")
    here.server()
    async with here.fleet.announce():  # a `callboard serve` between its start and its first session
        assert await (await handle_of(here.store, session)).hosting_words() == ABOUT_TO_TAKE
