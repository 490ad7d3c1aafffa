"""Commands that try to leave the sandbox.

Each attack really runs, and it succeeds at level 0 if that can be shown without harm. The tests check the machine
afterwards, never the output of the command.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import anyio
import pytest
from tests.adapters.processes.cage import VISIBLE, Cage, create_folders, machine, require_level, running_processes

from callboard.adapters.processes.pids import started_at
from callboard.adapters.processes.sandbox.restrictions import SandboxLimits

pytestmark = pytest.mark.anyio
PYTHON = sys.executable
LEVELS = (1, 2)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    VISIBLE.mkdir(exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="cage-", dir=VISIBLE))
    create_folders(made)
    yield made
    shutil.rmtree(made)


@pytest.fixture(params=LEVELS)
def cage(base: Path, request: pytest.FixtureRequest) -> Iterator[Cage]:
    require_level(request.param)
    yield Cage(base, request.param)
    kept = sorted(path.name for path in (base / "outside").iterdir())
    assert (kept, (base / "outside" / "kept").read_text()) == (["kept"], "kept\n")


@pytest.fixture
def open_cage(base: Path) -> Cage:
    return Cage(base, 0)


class Listener:
    """Listener on this machine: a socket, and the data that arrived."""

    def __init__(self, family: socket.AddressFamily, kind: socket.SocketKind, address: tuple[str, int] | str) -> None:
        self._socket = socket.socket(family, kind)
        self._socket.bind(address)
        if kind == socket.SOCK_STREAM:
            self._socket.listen()
        self._socket.setblocking(False)
        self.address = self._socket.getsockname()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._socket.close()

    @property
    def connected(self) -> bool:
        try:
            if self._socket.type == socket.SOCK_STREAM:
                self._socket.accept()[0].close()
            else:
                self._socket.recv(1)
        except BlockingIOError:
            return False
        return True


def python(code: str) -> str:
    """Return a command that runs this code."""
    return f"{PYTHON} -c '{code}'"


# Permitted actions


async def test_what_a_command_is_for_works(cage: Cage) -> None:
    ran = await cage.run(
        f"set -e; echo {cage.level} > file; mkdir -p new; echo x > new/x; mv new/x new/y; rm -r new; git add file;"
        "git -c user.name=n -c user.email=n@example.org commit -qm two; git log --oneline | wc -l; git status --short;"
        f"echo t > $TMPDIR/t; cat $TMPDIR/t; {PYTHON} -c 'print(6 * 7)'; cat /etc/os-release > /dev/null; echo $HOME"
    )
    assert (ran.exit_code, ran.output.split()[1:]) == (0, ["t", "42", str(cage.home)]), ran.output
    assert cage.git("status", "--short") == ""


async def test_results_of_the_session_can_be_read_again(cage: Cage) -> None:
    ran = await cage.run(f"cat {cage.base}/data/session/early.out")
    assert ran.output == "an earlier result\n"


# Writing outside


async def test_no_attack_is_stopped_at_level_0(open_cage: Cage) -> None:
    """Validate these tests: the same commands do harm where there is no sandbox."""
    ran = await open_cage.run(f"echo x > {open_cage.outside}/made && cat {open_cage.home}/.ssh/id_ed25519")
    assert "SECRET" in ran.output
    (open_cage.outside / "made").unlink()


@pytest.mark.slow(keep=8)
@pytest.mark.parametrize(
    "attack",
    [
        "echo x > {out}/made",
        "echo x >> {out}/kept",
        ": > {out}/kept",
        "truncate -s 0 {out}/kept",
        "rm {out}/kept",
        "mv {out}/kept {out}/moved",
        "mkdir {out}/made",
        "cd ../outside && echo x > made",
        "echo x > /proc/self/root{out}/made",
        "echo x > /proc/$$/cwd/../outside/made",
        "exec 9< {out}/kept; echo x > /proc/self/fd/9",
    ],
)
async def test_nothing_is_written_outside(cage: Cage, attack: str) -> None:
    ran = await cage.run(attack.format(out=cage.outside))
    assert ran.exit_code != 0


async def test_nothing_is_written_outside_by_a_link(cage: Cage) -> None:
    ran = await cage.run(
        f"ln -s {cage.outside} way; echo x > way/made; ln -sf {cage.outside}/kept file2; echo x > file2"
    )
    assert ran.exit_code != 0
    for name in ("way", "file2"):
        (cage.workspace / name).unlink()


async def test_nothing_is_written_outside_by_a_hard_link(cage: Cage) -> None:
    ran = await cage.run(f"ln {cage.outside}/kept twin && echo x > twin")
    assert ran.exit_code != 0
    assert not (cage.workspace / "twin").exists()


async def test_nothing_is_written_outside_by_what_was_left_behind(cage: Cage) -> None:
    await cage.run(
        f"(sleep 0.2; echo x > {cage.outside}/made) & setsid bash -c 'sleep 0.2; echo x > {cage.outside}/made' &"
    )


# Reading keys


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize(
    "path",
    ["home/.ssh/id_ed25519", "home/.config/gh/hosts.yml", "home/.netrc", "state/callboard.db", "data/other/call.out"],
)
async def test_keys_and_the_runtimes_own_files_cannot_be_read(cage: Cage, path: str) -> None:
    at = cage.base / path
    ran = await cage.run(
        f"cat {at}; cat /proc/self/root{at}; ln -s {at} link; cat link; rm link; cp -r {at.parent} got"
    )
    assert "SECRET" not in ran.output
    found = (
        [one for one in (cage.workspace / "got").rglob("*") if one.is_file()]
        if (cage.workspace / "got").exists()
        else []
    )
    shutil.rmtree(cage.workspace / "got", ignore_errors=True)
    assert not [one for one in found if "SECRET" in one.read_text()]


async def test_the_runtimes_own_files_cannot_be_changed(cage: Cage) -> None:
    await cage.run(f"echo x > {cage.state}/callboard.db; rm -rf {cage.state}; mv {cage.state} moved")
    assert (cage.state / "callboard.db").read_text() == "SECRET of the runtime\n"


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("folder", ["home/.claude", "claude"])
async def test_what_later_sessions_load_cannot_be_changed(cage: Cage, folder: str) -> None:
    at = cage.base / folder
    attacks = ["echo x > {at}/agents/a.md", "mkdir -p {at}/agents && echo x > {at}/agents/b.md", "rm -rf {at}/agents"]
    attacks += ["echo x > {at}/settings.json", "mv {at} {at}-moved", "cp file {at}/CLAUDE.md"]
    for attack in attacks:
        await cage.run(attack.format(at=at))
    assert [one.name for one in at.iterdir()] == ["agents"]
    assert [one.read_text() for one in (at / "agents").iterdir()] == ["SECRET of an agent file\n"]
    await cage.run(f"echo x > {cage.home}/.claude.json; mv {cage.home}/.claude.json moved")
    assert (cage.home / ".claude.json").read_text() == "SECRET of servers\n"
    assert "SECRET" not in (await cage.run(f"cat {at}/agents/a.md")).output


async def test_the_environment_of_others_cannot_be_read(cage: Cage, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = await cage.run(f"cat /proc/$PPID/environ /proc/{os.getpid()}/environ /proc/1/environ | tr '\\0' '\\n'; env")
    assert "PYTEST_CURRENT_TEST" not in ran.output
    assert "CALLBOARD_TOOL=1" in ran.output


# The network


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
async def test_no_listener_of_this_machine_is_reached(
    cage: Cage, open_cage: Cage, family: socket.AddressFamily
) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with Listener(family, socket.SOCK_STREAM, (host, 0)) as there:
        attack = f"exec 3<>/dev/tcp/{host}/{there.address[1]}"
        assert (await cage.run(attack)).exit_code != 0
        assert not there.connected
        await open_cage.run(attack)
        assert there.connected


async def test_no_datagram_gets_out(cage: Cage, open_cage: Cage) -> None:
    with Listener(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)) as there:
        attack = f"echo x > /dev/udp/127.0.0.1/{there.address[1]}"
        await cage.run(attack)
        assert not there.connected
        await open_cage.run(attack)
        assert there.connected


async def test_no_name_is_looked_up(cage: Cage) -> None:
    code = 'import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b"x", ("192.0.2.1", 53))'
    ran = await cage.run(python(code))
    assert ran.exit_code != 0


async def test_no_abstract_socket_of_this_machine_is_reached(cage: Cage, open_cage: Cage) -> None:
    name = f"cage-{os.getpid()}"
    with Listener(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + name) as there:
        attack = python(f'import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + "{name}")')
        assert (await cage.run(attack)).exit_code != 0
        assert not there.connected
        await open_cage.run(attack)
        assert there.connected


async def test_no_service_that_listens_in_a_file_is_reached(cage: Cage, open_cage: Cage) -> None:
    with tempfile.TemporaryDirectory(dir=VISIBLE.parent, prefix=".cage-") as folder:
        if len(folder) > 100:
            pytest.skip("the path of this folder is too long for a socket")
        with Listener(socket.AF_UNIX, socket.SOCK_STREAM, f"{folder}/s") as there:
            attack = python(f'import os, socket; os.chdir("{folder}"); socket.socket(socket.AF_UNIX).connect("s")')
            assert (await cage.run(attack)).exit_code != 0
            assert not there.connected
            await open_cage.run(attack)
            assert there.connected


@pytest.mark.parametrize("family", ["AF_PACKET", "AF_VSOCK", "AF_ALG"])
async def test_no_odd_kind_of_socket_is_made(cage: Cage, family: str) -> None:
    ran = await cage.run(python(f"import socket; socket.socket(socket.{family}, socket.SOCK_STREAM)"))
    assert "PermissionError" in ran.output


# Outliving the call


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize(
    "attack",
    [
        "setsid sleep {mark} &",
        "nohup sleep {mark} > /dev/null 2>&1 &",
        "(setsid bash -c 'sleep {mark} & disown' &)",
        "(bash -c 'trap \"\" TERM HUP; setsid sleep {mark}' &) &",
    ],
)
async def test_nothing_outlives_its_call(cage: Cage, attack: str) -> None:
    mark = f"300.{os.getpid()}"
    ran = await cage.run(attack.format(mark=mark))
    assert "were ended" in ran.output
    assert running_processes(mark) == []


async def test_a_time_out_ends_all_that_a_command_started(cage: Cage) -> None:
    mark = f"301.{os.getpid()}"
    ran = await cage.run(f"setsid sleep {mark} & trap '' TERM; sleep {mark}; sleep {mark}", timeout=1)
    assert ran.timed_out
    assert running_processes(mark) == []


# Processes of others


async def test_no_signal_reaches_anybody_else(cage: Cage) -> None:
    async with await anyio.open_process(["sleep", "60"]) as process:
        started = started_at(process.pid)
        attack = f"kill -9 {process.pid}; kill -0 {os.getpid()} && echo REACHED; kill -9 -{process.pid}; kill -0 $PPID"
        ran = await cage.run(attack)
        assert "REACHED" not in ran.output
        assert (process.returncode, started_at(process.pid)) == (None, started)
        process.kill()


async def test_nobody_else_is_traced_or_read(cage: Cage) -> None:
    code = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True);"
        f"print([libc.ptrace(16, {os.getpid()}, 0, 0), libc.ptrace(0x4206, {os.getpid()}, 0, 0)])"
    )
    ran = await cage.run(f"{python(code)}; cat /proc/{os.getpid()}/maps /proc/{os.getpid()}/mem | head -c 99")
    assert ran.output.startswith("[-1, -1]\n")
    assert "/lib" not in ran.output


async def test_the_command_cannot_end_who_watches_it(cage: Cage) -> None:
    mark = f"302.{os.getpid()}"
    await cage.run(f"kill -9 $PPID; kill -9 1; kill -9 2; kill -9 -1; sleep {mark}", timeout=1)
    assert running_processes(mark) == []


# Privileges


@pytest.mark.parametrize("attack", ["unshare -r true", "unshare -m true", "mount -t tmpfs none .", "chroot . true"])
async def test_no_namespace_and_no_mount_is_made(cage: Cage, attack: str) -> None:
    ran = await cage.run(attack)
    assert ran.exit_code != 0


async def test_what_is_read_only_is_not_mounted_anew(cage: Cage) -> None:
    ran = await cage.run(f"mount -o remount,rw / ; umount {cage.workspace}; mount -o remount,bind,rw {cage.outside}")
    assert ran.exit_code != 0


async def test_no_capability_is_left(cage: Cage) -> None:
    ran = await cage.run("grep -h ^Cap /proc/self/status; grep -h NoNewPrivs /proc/self/status; sudo -n true")
    caps = [line.split()[1] for line in ran.output.splitlines() if line.startswith("Cap")]
    assert (len(caps), {int(one, 16) for one in caps}) == (5, {0})
    assert "NoNewPrivs:\t1" in ran.output


async def test_no_set_user_id_file_is_made(cage: Cage) -> None:
    ran = await cage.run("cp /bin/sh sh; chmod 755 sh && chmod 4755 sh")
    assert ran.exit_code != 0
    assert (cage.workspace / "sh").stat().st_mode & 0o7777 == 0o755
    (cage.workspace / "sh").unlink()


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("number", [425, 321, 250, 323, 308])
async def test_system_calls_for_attacks_are_not_there(cage: Cage, number: int) -> None:
    """io_uring_setup, bpf, keyctl, userfaultfd, and setns, by their numbers on x86-64."""
    if os.uname().machine != "x86_64":
        pytest.skip("the system call numbers are those of x86-64")
    code = (
        f"import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.syscall({number}, 0, 0, 0), ctypes.get_errno())"
    )
    ran = await cage.run(python(code))
    assert ran.output in ("-1 1\n", "-1 38\n")


# Limits


async def test_memory_has_an_end(cage: Cage) -> None:
    tight = Cage(cage.base, cage.level, SandboxLimits(memory=200))
    ran = await tight.run(python("x = bytearray(10**9)"))
    assert "MemoryError" in ran.output


async def test_files_have_an_end(cage: Cage) -> None:
    tight = Cage(cage.base, cage.level, SandboxLimits(file_size=1))
    ran = await tight.run("head -c 3000000 /dev/zero > big")
    assert ran.exit_code != 0
    assert (cage.workspace / "big").stat().st_size == 1 << 20
    (cage.workspace / "big").unlink()


@pytest.mark.slow(keep=1)
async def test_processor_time_has_an_end(cage: Cage) -> None:
    ran = await Cage(cage.base, cage.level, SandboxLimits(seconds=1)).run("while :; do :; done", timeout=60)
    assert (ran.timed_out, ran.exit_code) in ((False, 128 + signal.SIGXCPU), (False, 128 + signal.SIGKILL))


async def test_a_fork_bomb_has_an_end(cage: Cage) -> None:
    if os.geteuid() == 0 and not machine().group:
        pytest.skip("the kernel does not count root's processes, and no control group can be created")
    tight = Cage(cage.base, cage.level, SandboxLimits(processes=40))
    mark = f"303.{os.getpid()}"
    bomb = (
        f"import subprocess\nname = bytes([115, 108, 101, 101, 112])\nwhile True: subprocess.Popen([name, str({mark})])"
    )
    ran = await tight.run(python(bomb))
    assert "Resource temporarily unavailable" in ran.output
    assert running_processes(mark) == []
