"""Several `callboard serve` on one store, killed, stopped and left: each slot is fired once, and answered."""

from __future__ import annotations

import json
import math
import random
import signal
import time
from pathlib import Path

import anyio
import pytest
from tests.cli.commands.command import Command
from tests.simulation.processes import no_traceback
from tests.simulation.serving import Stand, hosting, kill_and_start, new_session, one_shot, serve, serves, stand_of

from callboard.types.schedules import Schedule

pytestmark = pytest.mark.anyio

LIMIT = 180.0
"""Seconds after which something that should have happened counts as hung."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


async def all_over(stand: Stand, session: str, slots: int) -> None:
    """Wait until the history has so many fires that are over."""
    with anyio.fail_after(LIMIT):
        while len((await stand.became(session)).over()) < slots:
            await anyio.sleep(0.1)


async def each_exactly_once(stand: Stand, session: str, slots: set[str]) -> None:
    """One envelope, one turn, one row of the history for each slot, and none beside them."""
    became = await stand.became(session)
    scheduled = {name: count for name, count in became.envelopes.items() if name.startswith("schedule:")}
    turns = {name: count for name, count in became.turns.items() if name.startswith("schedule:")}
    assert scheduled == dict.fromkeys(slots, 1)
    assert turns == dict.fromkeys(slots, 1)
    assert {one.id: one.outcome for one in became.fires} == dict.fromkeys(slots, "done")


def slot(schedule: Schedule) -> str:
    """The id of the only slot of a one-shot."""
    return f"schedule:{schedule.id}:{schedule.cron.removeprefix('at ')}"


@pytest.mark.slow
async def test_four_processes_killed_at_random_fire_each_slot_exactly_once(command: Command) -> None:
    """The sample of the long one below: one-shots a second apart in two sessions, a process killed each second."""
    dice, sessions = random.Random(29), [new_session(command, latency=150) for _ in range(2)]
    async with stand_of(command) as stand:
        with serves(command, 4) as running:
            began = time.time()
            shots = [one_shot(number, began + 2 + number) for number in range(6)]
            for number, session in enumerate(sessions):
                await stand.put(session, shots[number::2])
            while time.time() < began + 9:
                await anyio.sleep(dice.uniform(0.5, 1.5))
                kill_and_start(command, running, dice)
            for number, session in enumerate(sessions):
                mine = shots[number::2]
                await all_over(stand, session, len(mine))
                await each_exactly_once(stand, session, {slot(one) for one in mine})


async def test_a_slot_whose_time_comes_while_its_host_is_stopped_is_fired_when_it_goes_on(command: Command) -> None:
    """SIGSTOP is as near to a machine that sleeps as a test comes. The lease of a stopped process is no other's."""
    session = new_session(command)
    async with stand_of(command) as stand:
        with serves(command, 2) as running:
            await stand.put(session, [one_shot(0, time.time() + 3_600)])
            host = await hosting(running, session)
            shots: list[Schedule] = []
            for number, ahead in enumerate((3, 12, 48), 1):  # on a slow machine, it may be stopped after the time
                due = math.ceil(time.time() + ahead)
                shots.append(one_shot(number, due))
                await stand.put(session, shots[-1:])
                await anyio.sleep(ahead / 3)  # it has read the schedule, and waits for its time
                host.signal(signal.SIGSTOP)
                if stopped := time.time() < due:
                    break
                host.signal(signal.SIGCONT)
            assert stopped
            fired = len((await stand.became(session)).fires)
            await anyio.sleep(max(0.0, due + 1 - time.time()))
            assert len((await stand.became(session)).fires) == fired, "it is stopped"
            host.signal(signal.SIGCONT)
            await all_over(stand, session, len(shots))
            await each_exactly_once(stand, session, {slot(one) for one in shots})


async def test_a_process_killed_between_fire_and_turn_leaves_the_fire_to_another(command: Command) -> None:
    """The lead waits for a person when the slot comes: the fire waits in its mailbox, and the process dies. Whoever
    serves next has the person's answer, ends that turn and begins the one of the fire."""
    session = new_session(command, "--permission-mode", "plan")
    async with stand_of(command) as stand:
        with serves(command, 1) as running:
            later = one_shot(0, time.time() + 3_600)
            await stand.put(session, [later])
            host = await hosting(running, session)
            assert command.run("send", "--to", "lead", "Plan the roof.").code == 0
            with anyio.fail_after(LIMIT):
                while not (asked := json.loads(command.run("plans", "--json").out)):
                    await anyio.sleep(0.1)
            shot = one_shot(1, time.time() + 1)
            await stand.put(session, [shot])
            with anyio.fail_after(LIMIT):
                while [one.outcome for one in (await stand.became(session)).fires] != ["waiting"]:
                    await anyio.sleep(0.05)
            host.signal(signal.SIGKILL)
            host.end()
            await stand.pause(session, later.id)
            became = await stand.became(session)
            assert (became.envelopes[slot(shot)], became.turns[slot(shot)]) == (1, 0)
            assert [one.state for one in became.schedules] == ["paused", "fired"], "no schedule here fires again"
            assert command.run("approve", asked[0]["id"]).code == 0
            running[0] = serve(command)
            await all_over(stand, session, 1)
            await each_exactly_once(stand, session, {slot(shot)})
            running[0].wait_for("none of its schedules fires again")
            running[0].signal(signal.SIGTERM)
            ended = running[0].end()
    assert ended.code == 143
    no_traceback(ended)


@pytest.mark.soak
async def test_four_processes_over_two_minutes(command: Command, soak: int) -> None:
    """One-shots every second and schedules of each minute in three sessions; a process killed at random moments."""
    dice, sessions = random.Random(soak), [new_session(command, latency=200) for _ in range(3)]
    async with stand_of(command) as stand:
        with serves(command, 4) as running:
            began = time.time()
            shots = [one_shot(number, began + 3 + number) for number in range(110)]
            steady = [
                Schedule(
                    id=f"cron_steady{number}",
                    cron="* * * * *",
                    prompt=f"Again {number}.",
                    created_at=began,
                    misfire="all",
                    overlap="queue",
                    jitter=0.0,
                )
                for number in range(3)
            ]
            for number, session in enumerate(sessions):
                await stand.put(session, [*shots[number::3], steady[number]])
            while time.time() < began + 120:
                await anyio.sleep(dice.uniform(0.05, 2.5))
                kill_and_start(command, running, dice)
            for number, session in enumerate(sessions):
                await steady_and_once(stand, session, steady[number], {slot(one) for one in shots[number::3]}, began)


async def steady_and_once(stand: Stand, session: str, steady: Schedule, mine: set[str], began: float) -> None:
    """Each one-shot exactly once, and the one of each minute exactly once in each minute until it is paused."""
    await all_over(stand, session, len(mine) + 2)
    await stand.pause(session, steady.id)
    with anyio.fail_after(LIMIT):
        while not (became := await stand.became(session)).rests():
            await anyio.sleep(0.1)
    minutes = {one.id for one in became.fires if one.schedule == steady.id}
    times = sorted(one.nominal for one in became.fires if one.schedule == steady.id)
    assert times == [times[0] + 60 * step for step in range(len(times))]
    assert times[0] - began <= 60
    await each_exactly_once(stand, session, mine | minutes)
