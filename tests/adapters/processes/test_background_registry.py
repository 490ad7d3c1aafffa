"""Background commands after a restart: found again by pid, start time, and boot, or reported as lost.

The tests use real processes. Whatever was killed, the exit code is correct or absent, and no foreign process is
touched.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from tests.adapters.processes.test_launcher import Place, has_ended, place, run_killed_host

from callboard.adapters.processes.launcher import exit_code, find_process
from callboard.adapters.processes.pids import is_same, kill_session, started_at, this_boot
from callboard.core.team.exit_status import exit_words, process_of, status_of

__all__ = ["place"]

pytestmark = pytest.mark.anyio

HELD = "setsid sleep 300 & echo $! $$ > pids; echo > ready; read line < gate; exit 3"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_command_whose_watcher_is_killed_is_lost_and_nothing_of_it_goes_on(place: Place) -> None:
    pid, started = await place.launcher.start("echo $$ > pids; echo > ready; sleep 300", place.folder, place.keep)
    await place.ready()
    os.kill(pid, signal.SIGKILL)
    assert await place.launcher.wait(pid, started, place.keep) is None
    assert [await has_ended(one) for one in place.pids("pids")] == [True]
    assert not Path(f"{place.keep}.pid").exists()


@pytest.mark.slow
async def test_a_watcher_killed_while_nobody_hosted_leaves_a_lost_command_and_nothing_of_it(place: Place) -> None:
    await anyio.to_thread.run_sync(run_killed_host, "free", place.folder)
    await place.ready()
    output = place.folder / "out.txt"
    process = find_process(output)
    assert process is not None
    os.kill(process[0], signal.SIGKILL)
    assert await has_ended(process[0])
    assert await place.launcher.wait(*process, output) is None
    assert [await has_ended(one) for one in place.pids("pids")] == [True]


async def test_what_a_reboot_cut_off_is_lost_and_what_ended_before_it_is_known(place: Place) -> None:
    """The same pid and start time in another boot is a different process, which is left alone."""
    pid, started = await place.launcher.start("echo > ready; sleep 300", place.folder, place.keep)
    await place.ready()
    mark = Path(f"{place.keep}.pid")
    mark.write_text(mark.read_text().replace(this_boot(), "another-boot"))
    assert find_process(place.keep) is None
    then = process_of(pid, started, "another-boot", place.launcher.boot)
    assert await place.launcher.wait(*then, place.keep) is None
    assert not await place.launcher.end(*then)
    assert is_same(pid, started)
    Path(f"{place.keep}.exit").write_text("3\n")
    assert await place.launcher.wait(*then, place.keep) == 3
    assert await place.launcher.end(pid, started)


async def test_a_pid_that_is_another_process_by_now_is_waited_for_by_nobody_and_never_ended(place: Place) -> None:
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as other:
        try:
            began = started_at(other.pid) or 0.0
            place.keep.parent.mkdir()
            Path(f"{place.keep}.pid").write_text(f"{other.pid} {began - 1} {this_boot()}\n")
            assert find_process(place.keep) is None
            assert await place.launcher.wait(other.pid, began - 1, place.keep) is None
            assert not await place.launcher.end(other.pid, began - 1)
            kill_session(other.pid, "CALLBOARD_TOOL=1")
            assert is_same(other.pid, began)
        finally:
            other.kill()


async def test_an_output_folder_that_is_removed_costs_the_output_and_not_the_exit_code(place: Place) -> None:
    keep = place.folder / "kept" / "out.txt"
    pid, started = await place.launcher.start(HELD, place.folder, keep)
    await place.ready()
    shutil.rmtree(keep.parent)
    codes: list[int | None] = []

    async def wait() -> None:
        codes.append(await place.launcher.wait(pid, started, keep))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await place.open_gate()
    assert codes == [3], "the host that started the process gets its exit code"
    assert await place.launcher.wait(pid, started, keep) is None, "a later host cannot know it"
    assert [await has_ended(one) for one in place.pids("pids")] == [True, True]


@pytest.mark.parametrize(("room", "noted"), [(8, 3), (0, None)])
async def test_a_full_disk_drops_output_and_keeps_the_exit_code(place: Place, room: int, noted: int | None) -> None:
    """A file size limit simulates a full disk: no byte can be written beyond it, except into space reserved before."""
    pid, started = await place.launcher.start(f"{HELD.replace('exit 3', 'seq 9999; exit 3')}", place.folder, place.keep)
    await place.ready()
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (room, room))
    codes: list[int | None] = []

    async def wait() -> None:
        codes.append(await place.launcher.wait(pid, started, place.keep))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await place.open_gate()
    assert codes == [3]
    assert exit_code(place.keep) == noted
    assert place.keep.stat().st_size <= room


def test_how_a_command_ended_in_words() -> None:
    assert [status_of(code) for code in (0, 1, 3, 137, None)] == ["completed", "failed", "failed", "failed", "lost"]
    assert exit_words(3) == "exit code 3"
    assert exit_words(137) == "exit code 137 (killed by SIGKILL)"
    assert exit_words(255) == "exit code 255"
    assert exit_words(None) == "exit code unknown"


def test_a_record_names_a_process_in_its_own_boot_only() -> None:
    assert process_of(7, 9.0, "a", "a") == (7, 9.0)
    assert process_of(7, 9.0, "a", "b") == (0, 0.0)
    assert process_of(7, 9.0, "", "b") == (7, 9.0), "an older version recorded no boot"
    assert process_of(7, 9.0, "a", "") == (7, 9.0), "a system without boot ids"
    assert sys.platform != "linux" or this_boot()
