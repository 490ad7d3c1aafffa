"""The launcher leaves nothing behind, whichever process dies first, and hides secrets from commands."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import textwrap
import time
import tracemalloc
from pathlib import Path

import anyio
import pytest
from tests.adapters.shell.outside_world import ENVIRONMENT
from tests.warm import STDERR, Process

from callboard.adapters.processes.launcher import ShellLauncher, exit_code, find_process
from callboard.adapters.processes.pids import is_same, open_pid, started_at
from callboard.adapters.processes.programs import clean_environment, find_program
from callboard.ports.tool import Finished
from callboard.types.errors import CommandNotRun

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Place:
    """A folder to work in, and its launcher."""

    def __init__(self, base: Path, **environment: str) -> None:
        self.folder = base / "work"
        self.folder.mkdir()
        os.mkfifo(self.folder / "ready")
        os.mkfifo(self.folder / "gate")
        self.keep = base / "out" / "call.txt"
        self.launcher = ShellLauncher(self.folder, ENVIRONMENT | environment)

    async def run(self, command: str, timeout: float = 20) -> Finished:
        return await self.launcher.run(command, self.folder, timeout=timeout, keep=self.keep)

    def pids(self, name: str) -> list[int]:
        return [int(word) for word in (self.folder / name).read_text().split()]

    async def ready(self) -> None:
        """Wait until the command has run `echo > ready`."""
        await anyio.to_thread.run_sync((self.folder / "ready").read_text)

    async def open_gate(self) -> None:
        """Release a command that waits in `read line < gate`."""
        await anyio.to_thread.run_sync((self.folder / "gate").write_text, "go\n")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def has_ended(pid: int) -> bool:
    """Return whether the process has ended, or ends within three minutes."""
    started = started_at(pid)
    descriptor = None if started is None else open_pid(pid, started)
    if descriptor is None:
        return True
    try:
        with anyio.move_on_after(180):
            await anyio.wait_readable(descriptor)
            return True
    finally:
        os.close(descriptor)
    return False


async def test_both_streams_come_in_order_with_the_exit_code(place: Place) -> None:
    finished = await place.run("echo one; echo two >&2; echo three; exit 3")
    assert (finished.output, finished.exit_code, finished.cut) == ("one\ntwo\nthree\n", 3, False)
    assert not place.keep.exists(), "a short output leaves no file"


async def test_writing_to_dev_stderr_truncates_nothing(place: Place) -> None:
    finished = await place.run("echo one; echo two > /dev/stderr; echo three | tee /dev/stderr")
    assert finished.output == "one\ntwo\nthree\nthree\n"


async def test_a_child_sees_no_credentials(tmp_path: Path) -> None:
    secrets = {
        "ANTHROPIC_API_KEY": "sk-1",
        "GITHUB_TOKEN": "sk-2",
        "AWS_SECRET_ACCESS_KEY": "sk-3",
        "LC_API_KEY": "sk-4",
        "DATABASE_URL": "sk-5",
        "SSH_AUTH_SOCK": "sk-6",
        "HTTPS_PROXY": "http://user:sk-7@proxy",
        "CALLBOARD_MODEL": "sk-8",
    }
    finished = await Place(tmp_path, **secrets).run("env; cat /proc/$PPID/environ | tr '\\0' '\\n'")
    assert finished.exit_code == 0
    assert "sk-" not in finished.output
    assert "CALLBOARD_TOOL=1" in finished.output


async def test_a_credential_passes_by_its_name_alone_and_the_services_own_never() -> None:
    ours = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_AUTH_TOKEN": "k", "CALLBOARD_MODEL": "m"}
    source = {"PATH": "/bin:.:relative", "EDITOR": "vi", "NPM_TOKEN": "t", "HTTPS_PROXY": "http://proxy:80", **ours}
    kept = clean_environment(source, ["EDITOR", *ours])
    assert not {"NPM_TOKEN", *ours} & set(kept)
    assert clean_environment(source, ["NPM_TOKEN"])["NPM_TOKEN"] == "t", "a person named it"
    assert (kept["EDITOR"], kept["HTTPS_PROXY"], kept["PATH"]) == ("vi", "http://proxy:80", "/bin")


async def test_the_command_runs_at_level_l0(place: Place, tmp_path: Path) -> None:
    with (tmp_path / "stray").open("w") as stray:
        os.set_inheritable(stray.fileno(), True)
        finished = await place.run(
            "umask; ulimit -c; ulimit -n; grep NoNewPrivs /proc/self/status;"
            "ls /proc/self/fd | wc -l; readlink /proc/self/fd/0"
        )
    umask, core, files, privileges, descriptors, stdin = finished.output.split("\n")[:6]
    assert (umask, core, privileges.split()[1], stdin) == ("0077", "0", "1", "/dev/null")
    assert int(files) <= 4096
    assert int(descriptors) == 4, "0, 1, 2, and the folder that ls reads"


async def test_it_has_a_session_and_a_process_group_of_its_own(place: Place) -> None:
    finished = await place.run("ps -o sid=,pgid= -p $$")
    session, group = (int(word) for word in finished.output.split())
    assert session != os.getsid(0)
    assert group not in (os.getpgrp(), session)


async def test_a_closed_pipe_ends_a_writer_as_in_any_shell(place: Place) -> None:
    finished = await place.run("yes | head -1; echo ${PIPESTATUS[0]}")
    assert finished.output == "y\n141\n"


async def test_a_time_out_ends_grandchildren_in_sessions_of_their_own(place: Place) -> None:
    stubborn = "trap '' TERM; echo $$ >> pids; sleep 300"
    for patience in (1.5, 6.0, 24.0):  # on a slow machine the processes may not have started in time
        (place.folder / "pids").unlink(missing_ok=True)
        finished = await place.run(
            f'echo $$ >> pids; setsid bash -c "{stubborn.replace("$", chr(92) + "$")}; sleep 300" &\n'
            "(setsid sleep 300 & echo $! >> pids); sleep 300",
            timeout=patience,
        )
        if len(place.pids("pids")) == 3:
            break
    assert finished.timed_out
    assert finished.exit_code == 128 + signal.SIGTERM
    assert len(place.pids("pids")) == 3
    assert [await has_ended(pid) for pid in place.pids("pids")] == [True] * 3


async def test_a_cancelled_command_is_ended(place: Place) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(place.run, "echo $$ > pids; echo > ready; sleep 300")
        await place.ready()
        group.cancel_scope.cancel()
    assert await has_ended(place.pids("pids")[0])


async def test_what_a_command_leaves_behind_is_ended_and_told(place: Place) -> None:
    finished = await place.run("sleep 300 & echo $! > pids; echo done")
    assert finished.exit_code == 0
    assert finished.output.startswith("done\n")
    assert "were ended (1)" in finished.output
    assert "run_in_background" in finished.output
    assert await has_ended(place.pids("pids")[0])


async def test_what_ends_by_itself_a_moment_later_is_waited_for(place: Place) -> None:
    finished = await place.run("echo one > >(sleep 0.1; cat; echo two)")
    assert finished.output == "one\ntwo\n"


async def test_a_command_that_kills_its_watcher_does_not_escape(place: Place) -> None:
    finished = await place.run("echo $$ > pids; kill -9 $PPID; sleep 300")
    assert finished.exit_code == 137
    assert await has_ended(place.pids("pids")[0])


async def test_a_long_output_keeps_head_and_tail_and_the_whole_in_its_file(place: Place) -> None:
    finished = await place.run("seq 1 200000")
    whole = place.keep.read_text()
    assert whole == "".join(f"{number}\n" for number in range(1, 200001))
    mark = f"\n[Output cut: 50000 of {len(whole)} characters. Whole: {place.keep}]\n"
    head, tail = finished.output.split(mark)
    assert (head, tail) == (whole[:25000], whole[-25000:])
    assert (finished.cut, finished.characters, finished.whole) == (True, len(whole), str(place.keep))


async def test_ten_megabytes_of_output_are_held_in_bounded_memory(place: Place) -> None:
    tracemalloc.start()
    try:
        finished = await place.run("head -c 10000000 /dev/zero | tr '\\0' x")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert finished.characters == 10_000_000
    assert peak < 6_000_000


async def test_bytes_that_are_no_text_are_shown_and_break_nothing(place: Place) -> None:
    finished = await place.run(r"printf 'a\xff\xc3(\0b\xe2\x82'; exit 0")
    assert finished.output == "a\ufffd\ufffd(\ufffdb\ufffd"
    assert finished.exit_code == 0


async def test_a_command_whose_folder_is_gone_is_not_run(place: Place) -> None:
    with pytest.raises(CommandNotRun, match="No such file or directory"):
        await place.launcher.run("echo hi", place.folder / "no", timeout=10, keep=place.keep)


async def test_an_output_file_that_cannot_be_made_is_told(place: Place) -> None:
    place.keep.parent.mkdir()
    place.keep.symlink_to("/nowhere/file")
    finished = await place.run("touch done")
    assert finished.exit_code == 125
    assert "could not be written" in finished.output
    assert not (place.folder / "done").exists()


@pytest.mark.slow
async def test_many_commands_at_once_keep_their_outputs_apart(place: Place) -> None:
    told: dict[int, str] = {}

    async def one(number: int) -> None:
        keep = place.keep.with_name(f"{number}.txt")
        finished = await place.launcher.run(f"echo {number}", place.folder, timeout=30, keep=keep)
        told[number] = finished.output

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(one, number)
    assert told == {number: f"{number}\n" for number in range(20)}


async def test_a_background_command_is_waited_for_and_leaves_its_exit_code(place: Place) -> None:
    pid, started = await place.launcher.start("echo hi; read line < gate; exit 3", place.folder, place.keep)
    codes: list[int | None] = []

    async def wait() -> None:
        codes.append(await place.launcher.wait(pid, started, place.keep))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await place.open_gate()
    assert codes == [3]
    assert place.keep.read_text().startswith("hi\n")
    assert await place.launcher.wait(pid, started, place.keep) == 3, "also after its end"


async def test_ending_a_background_command_ends_all_of_it(place: Place) -> None:
    command = "setsid sleep 300 & echo $! $$ > pids; echo > ready; sleep 300"
    pid, started = await place.launcher.start(command, place.folder, place.keep)
    await place.ready()
    assert find_process(place.keep) == (pid, started)
    assert await place.launcher.end(pid, started)
    assert [await has_ended(one) for one in place.pids("pids")] == [True, True]
    assert exit_code(place.keep) == 143
    assert not await place.launcher.end(pid, started), "it has already ended"


async def test_whoever_waits_hears_of_an_end_that_somebody_else_made(place: Place) -> None:
    pid, started = await place.launcher.start("echo > ready; sleep 300", place.folder, place.keep)
    await place.ready()
    codes: list[int | None] = []

    async def wait() -> None:
        codes.append(await place.launcher.wait(pid, started, place.keep))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(wait)
            group.start_soon(place.launcher.end, pid, started)
    assert codes == [143] * 3


async def test_a_pid_that_was_given_away_is_never_ended(place: Place) -> None:
    pid, started = await place.launcher.start("sleep 300", place.folder, place.keep)
    assert not await place.launcher.end(pid, started - 1)
    assert is_same(pid, started)
    assert await place.launcher.end(pid, started)


HOST = """
import anyio, os, signal, sys
from pathlib import Path
from callboard.adapters.processes.launcher import ShellLauncher

async def main(mode, base):
    launcher = ShellLauncher(base, {"PATH": os.environ["PATH"]})
    if mode == "free":
        command = "echo $$ > pids; echo > ready; read line < gate; echo late; exit 5"
        await launcher.start(command, base, base / "out.txt")
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "moved":
        command = "echo > ready; read line < gate; echo late; exit 5"
        moved = anyio.Event()
        moved.set()
        await launcher.attend(command, base, timeout=60, keep=base / "out.txt", moved=moved)
        os.kill(os.getpid(), signal.SIGKILL)
    command = "echo $$ > pids; kill -9 %d; sleep 300" % os.getpid()
    await launcher.run(command, base, timeout=60, keep=base / "out.txt")

anyio.run(main, sys.argv[1], Path(sys.argv[2]))
"""


def run_killed_host(mode: str, base: Path) -> None:
    """Run a host that is killed while its command runs."""
    host = subprocess.run([sys.executable, "-c", textwrap.dedent(HOST), mode, str(base)], check=False)
    assert host.returncode == -signal.SIGKILL


@pytest.mark.slow
async def test_a_background_command_outlives_its_host_and_its_end_is_known(place: Place) -> None:
    await anyio.to_thread.run_sync(run_killed_host, "free", place.folder)
    output = place.folder / "out.txt"
    await place.ready()
    process = find_process(output)
    assert process is not None, "another process finds it again"
    await place.open_gate()
    assert await place.launcher.wait(*process, output) == 5
    assert output.read_text() == "late\n"
    assert not Path(f"{output}.pid").exists()


@pytest.mark.slow
async def test_a_foreground_command_ends_with_its_host(place: Place) -> None:
    await anyio.to_thread.run_sync(run_killed_host, "hold", place.folder)
    assert await has_ended(place.pids("pids")[0])


async def test_a_command_that_was_moved_to_the_background_leaves_its_exit_code(place: Place) -> None:
    moved = anyio.Event()
    ends = list[Finished | tuple[int, float]]()

    async def attend() -> None:
        command = "echo begun; echo > ready; read line < gate; echo ended; exit 3"
        keep = place.keep
        ends.append(await place.launcher.attend(command, place.folder, timeout=60, keep=keep, moved=moved))

    async with anyio.create_task_group() as group:
        group.start_soon(attend)
        await place.ready()
        moved.set()
    (process,) = ends
    assert not isinstance(process, Finished)
    assert find_process(place.keep) == process
    await place.open_gate()
    assert await place.launcher.wait(*process, place.keep) == 3
    assert exit_code(place.keep) == 3
    assert place.keep.read_text() == "begun\nended\n"


async def test_a_command_that_ends_is_not_moved(place: Place) -> None:
    finished = await place.launcher.attend("echo hi", place.folder, timeout=60, keep=place.keep, moved=anyio.Event())
    assert isinstance(finished, Finished)
    assert (finished.output, place.keep.exists()) == ("hi\n", False)


@pytest.mark.slow
async def test_a_command_that_was_moved_to_the_background_outlives_its_host(place: Place) -> None:
    await anyio.to_thread.run_sync(run_killed_host, "moved", place.folder)
    output = place.folder / "out.txt"
    await place.ready()
    process = find_process(output)
    assert process is not None, "another process finds it"
    await place.open_gate()
    assert await place.launcher.wait(*process, output) == 5
    assert output.read_text() == "late\n"


@pytest.mark.parametrize("kills", [10, pytest.param(100 * int(os.environ.get("SOAK", "1")), marks=pytest.mark.soak)])
def test_a_host_killed_at_any_moment_leaves_no_foreground_command(tmp_path: Path, kills: int) -> None:
    dice = random.Random(7)
    program = tmp_path / "host.py"
    program.write_text(SLOW_HOST)
    for number in range(kills):
        mark = f"LC_CALLBOARD_TEST={tmp_path}/{number}"
        folder = tmp_path / str(number)
        folder.mkdir()
        os.mkfifo(folder / "begun")
        host = Process([str(program), str(folder), mark], tmp_path, os.environ, stderr=STDERR)
        assert host.stdout is not None
        host.stdout.readline()
        if number % 2:
            (folder / "begun").read_text()
        else:
            time.sleep(dice.random() * 0.04)  # the moment is random: anywhere in the start of a command
        host.kill()
        host.wait()
        assert all_ended(mark), f"kill {number}"


SLOW_HOST = """
import anyio, os, sys
from pathlib import Path
from callboard.adapters.processes.launcher import ShellLauncher

async def main(base, mark):
    name, _, value = mark.partition("=")
    launcher = ShellLauncher(base, {"PATH": os.environ["PATH"], name: value})
    print("go", flush=True)
    command = "sleep 300 & echo > begun; setsid sleep 300"
    await launcher.run(command, base, timeout=60, keep=base / "o")

anyio.run(main, Path(sys.argv[1]), sys.argv[2])
"""


def all_ended(mark: str) -> bool:
    """Return whether all processes whose environment contains the mark end within three minutes."""
    end = time.monotonic() + 180
    while marked := [path for path in Path("/proc").glob("[0-9]*/environ") if contains_mark(path, mark)]:
        if time.monotonic() > end:
            return False
        pid = int(marked[0].parent.name)
        started = started_at(pid)
        descriptor = None if started is None else open_pid(pid, started)
        if descriptor is not None:
            select.select([descriptor], [], [], 1)
            os.close(descriptor)
    return True


def contains_mark(path: Path, mark: str) -> bool:
    try:
        return mark.encode() in path.read_bytes().split(b"\0")
    except OSError:
        return False


async def test_programs_are_found_outside_the_workspace_only(tmp_path: Path) -> None:
    work, tools, links = tmp_path / "work", tmp_path / "work-tools", tmp_path / "links"
    for folder in (work, tools, links):
        folder.mkdir()
    for folder in (work, tools):
        (folder / "rg").write_text("#!/bin/sh\n")
        (folder / "rg").chmod(0o755)
    (links / "rg").symlink_to(work / "rg")
    path = f".:{work}:{links}:{tools}"
    assert find_program("rg", work, path) == str(tools / "rg"), "a sibling with the same prefix is outside"
    assert find_program("rg", tmp_path, path) is None
