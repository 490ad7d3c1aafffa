"""Waiting for a condition misses no change, on both event loops."""

from __future__ import annotations

from random import Random

import anyio
import pytest
from anyio.lowlevel import checkpoint

from callboard.ports.notifier import Latch, Notifier

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_each_waiter_wakes_at_the_next_change() -> None:
    notifier = Notifier()
    woken: list[int] = []

    async def wait(number: int) -> None:
        assert await notifier.changed(notifier.changes) == 1
        woken.append(number)

    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(wait, number)
        await anyio.wait_all_tasks_blocked()
        assert woken == []
        notifier.notify()
    assert sorted(woken) == [0, 1, 2]


async def test_a_change_between_the_look_and_the_wait_is_seen() -> None:
    notifier = Notifier()
    seen = notifier.changes
    notifier.notify()
    await checkpoint()
    with anyio.fail_after(10):
        assert await notifier.changed(seen) == seen + 1


async def test_changes_before_the_look_do_not_end_the_wait() -> None:
    notifier = Notifier()
    notifier.notify()
    with anyio.move_on_after(0) as scope:
        await notifier.changed(notifier.changes)
    assert scope.cancelled_caught


async def test_a_waiter_sees_changes_that_come_before_it_runs_again() -> None:
    notifier = Notifier()
    seen: list[int] = []

    async def follow() -> None:
        changes = notifier.changes
        while changes < 3:
            changes = await notifier.changed(changes)
            seen.append(changes)

    async with anyio.create_task_group() as group:
        group.start_soon(follow)
        await anyio.wait_all_tasks_blocked()
        notifier.notify()
        notifier.notify()  # the waiter is scheduled, but has not run
        await anyio.wait_all_tasks_blocked()
        notifier.notify()
    assert seen == [2, 3]


async def test_a_wait_that_has_nothing_to_wait_for_lets_others_run_and_can_be_cancelled() -> None:
    notifier = Notifier()
    notifier.notify()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await notifier.changed(0)
        raise AssertionError("a cancelled wait does not return")
    assert scope.cancelled_caught


async def test_a_cancelled_waiter_leaves_the_others_waiting() -> None:
    notifier = Notifier()
    ended: list[str] = []

    async def wait(name: str, scope: anyio.CancelScope) -> None:
        with scope:
            await notifier.changed(0)
            ended.append(name)

    impatient = anyio.CancelScope()
    async with anyio.create_task_group() as group:
        group.start_soon(wait, "impatient", impatient)
        group.start_soon(wait, "patient", anyio.CancelScope())
        await anyio.wait_all_tasks_blocked()
        impatient.cancel()
        await anyio.wait_all_tasks_blocked()
        assert ended == []
        notifier.notify()
    assert ended == ["patient"]


async def test_until_checks_the_condition_first_and_after_each_change() -> None:
    notifier = Notifier()
    level = 0
    checks: list[int] = []

    def is_full() -> bool:
        checks.append(level)
        return level == 2

    async with anyio.create_task_group() as group:
        group.start_soon(notifier.until, is_full)
        for _ in range(3):
            await anyio.wait_all_tasks_blocked()
            level += 1
            notifier.notify()
        await anyio.wait_all_tasks_blocked()
        assert checks == [0, 1, 2]
        await notifier.until(lambda: True)  # it needs no change


@pytest.mark.parametrize("seed", range(20))
async def test_no_interleaving_of_looks_and_changes_loses_the_last_change(seed: int) -> None:
    notifier = Notifier()
    dice = Random(seed)
    value = 0

    async def pause() -> None:
        for _ in range(dice.randrange(3)):
            await checkpoint()

    async def change() -> None:
        nonlocal value
        for _ in range(20):
            await pause()
            value += 1
            notifier.notify()

    async def look() -> None:
        while True:
            changes = notifier.changes
            if value == 20:
                return
            await pause()  # the time of one check while changes arrive
            await notifier.changed(changes)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for work in (look, look, look, change):
                group.start_soon(work)


def test_a_change_without_a_waiter_needs_no_event_loop() -> None:
    notifier = Notifier()
    for _ in range(3):
        notifier.notify()
    assert notifier.changes == 3


async def test_a_latch_wakes_who_waited_and_holds_nobody_who_comes_later() -> None:
    latch, woken = Latch(), list[str]()

    async def wait(name: str) -> None:
        await latch.wait()
        woken.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(wait, "early")
        await anyio.wait_all_tasks_blocked()
        assert not latch.is_set()
        assert woken == []
        latch.set()
    await wait("late")
    assert (latch.is_set(), woken) == (True, ["early", "late"])
