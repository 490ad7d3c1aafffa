"""The place of a store: a private folder on a local disk, and the errors if that disk refuses."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import anyio
import pytest

from callboard.adapters.storage.sqlite import open_store
from callboard.adapters.storage.sqlite.place import file_system, refuse_network
from callboard.ports.store import Append, LeaseHolder, Put
from callboard.types.errors import StoreDamaged, StoreFull, WorkspaceUnusable

pytestmark = pytest.mark.anyio

CHILD = Path(__file__).with_name("store_child.py")
MOUNTS = """\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 21 0:40 / /home rw shared:9 - nfs4 server:/home rw
31 30 0:41 / /home/me/local\\040disk rw shared:9 - xfs /dev/sdb1 rw
32 21 0:42 / /mnt/drive rw - fuse.sshfs me@there: rw
33 21 0:43 / /mnt/glass rw - fuse.gocryptfs /x rw
34 21 0:44 / /mnt/glass rw - cifs //x/y rw
nonsense
"""


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Generator[Path, None, None]:
    """Mount a small in-memory file system, or skip the test if that is not allowed."""
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(place)], check=False, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/x", "ext4"),
        ("/home/me", "nfs4"),
        ("/home/me/local disk/x", "xfs"),
        ("/homestead", "ext4"),
        ("/mnt/drive", "fuse.sshfs"),
        ("/mnt/glass/x", "cifs"),
    ],
)
def test_the_innermost_and_latest_mount_tells_the_file_system(folder: str, kind: str) -> None:
    assert file_system(Path(folder), MOUNTS) == kind


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "lustre"])
def test_network_file_systems_are_refused_with_what_to_do(kind: str) -> None:
    with pytest.raises(WorkspaceUnusable, match=f"{kind}.*XDG_STATE_HOME"):
        refuse_network(Path("/x"), kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuse.gocryptfs", ""])
def test_local_file_systems_are_taken(kind: str) -> None:
    refuse_network(Path("/x"), kind)


async def test_everything_in_the_folder_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir(mode=0o755)
    store = await open_store(folder)
    await store.acquire("host")
    await store.commit(Append("s", b"x"))
    await store.put_blob(b"x")
    async with store.follow("s") as records:
        await anext(records)
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}
    for path, mode in modes.items():
        assert mode & 0o077 == 0 or path.is_socket(), f"{path} {mode:o}"
    await store.aclose()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
async def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    with pytest.raises(WorkspaceUnusable, match="belongs to user 12345"):
        await open_store(folder)


def a_file(place: Path) -> Path:
    place.write_text("")
    return place


def below_a_file(place: Path) -> Path:
    place.write_text("")
    return place / "s"


def in_proc(_place: Path) -> Path:
    return Path("/proc/callboard")


@pytest.mark.parametrize("make", [a_file, below_a_file, in_proc])
async def test_what_cannot_be_a_folder_is_refused_with_what_to_do(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with pytest.raises(WorkspaceUnusable, match="writable folder"):
        await open_store(make(tmp_path / "x"))


async def test_a_full_disk_refuses_loses_nothing_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "size=1m") as disk:
        store = await open_store(disk / "s")
        (disk / "ballast").write_bytes(bytes(300_000))
        kept, refused = 0, 0
        while refused < 3:
            try:
                await store.commit(Append("s", f"{kept:04}".encode() * 2_000), Put(f"k{kept}", b""))
                kept += 1
            except StoreFull:
                refused += 1
        assert kept > 3
        with pytest.raises(StoreFull, match="Free some space"):
            await store.commit(Append("s", bytes(900_000)))
        with pytest.raises(StoreFull):
            await store.put_blob(bytes(500_000))
        records = await store.read("s")
        assert [record.data[:4].decode() for record in records] == [f"{number:04}" for number in range(kept)]
        (disk / "ballast").unlink()
        assert await store.commit(Append("s", b"again")) == (kept + 1,)
        assert not isinstance(await store.acquire("host"), LeaseHolder)
        await store.aclose()
        store = await open_store(disk / "s")
        assert (len(await store.read("s")), len(await store.keys("k")), store.damage) == (kept + 1, kept, ())
        assert not list((disk / "s" / "blobs").rglob("*.new"))
        await store.aclose()


async def test_one_commit_too_large_for_the_disk_does_not_fail_the_others(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "size=2m") as disk:
        store = await open_store(disk / "s")
        refused: list[str] = []

        async def append(name: str, size: int) -> None:
            try:
                await store.commit(Append("s", name.encode() + os.urandom(size)))
            except StoreFull:
                refused.append(name)

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(append, f"{number:02}", 8_000_000 if number == 7 else 100)
        assert refused == ["07"]
        assert len(await store.read("s")) == 19
        await store.aclose()


async def test_opening_on_a_full_disk_says_so(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "size=64k") as disk:
        with contextlib.suppress(OSError):
            (disk / "ballast").write_bytes(bytes(65_536))
        with pytest.raises((StoreFull, WorkspaceUnusable)) as raised:
            await open_store(disk / "s")
        assert str(disk) in str(raised.value)
        (disk / "ballast").unlink()
        subprocess.run(["mount", "-o", "remount,size=2m", str(disk)], check=True)
        store = await open_store(disk / "s")
        assert store.damage == ()
        await store.aclose()


async def test_a_read_only_disk_is_refused_with_what_to_do_and_left_as_it_is(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "size=4m") as disk:
        store = await open_store(disk / "s")
        await store.commit(Append("s", b"x"))
        await store.aclose()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(WorkspaceUnusable, match=r"(?i)read-?only"):
            await open_store(disk / "s")
        with pytest.raises(WorkspaceUnusable, match=r"(?i)read-?only"):
            await open_store(disk / "new")
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        store = await open_store(disk / "s")
        assert len(await store.read("s")) == 1
        await store.aclose()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("call", ["pwrite64", "fsync,fdatasync"])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
async def test_an_error_of_the_disk_is_told_and_the_store_goes_on(tmp_path: Path, call: str, error: str) -> None:
    for when in ("12..14", "25+9"):
        folder = tmp_path / when
        store = await open_store(folder)  # create the files without the obstacle
        await store.aclose()
        inject = f"inject={call}:error={error}:when={when}"
        strace = ["strace", "-qq", "-f", "-o", os.devnull, "-e", f"trace={call}", "-e", inject]
        line = [*strace, sys.executable, str(CHILD), str(folder), "append_despite_refusals", "60"]
        done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr
        said = [line.split() for line in done.stdout.splitlines()]
        kept, refused = ([number for what, number in said if what == which] for which in ("kept", "refused"))
        assert len(said) == 60
        assert refused
        assert kept
        store = await open_store(folder)
        there = [record.data.decode() for record in await store.read("s")]
        assert store.damage == ()
        assert [number for number in there if number in kept] == kept
        await store.aclose()


@pytest.mark.parametrize("lose", [lambda file: file.unlink(), lambda file: file.rename(file.with_name("elsewhere"))])
async def test_a_database_that_vanished_while_open_takes_no_more_writes(
    tmp_path: Path, lose: Callable[[Path], object]
) -> None:
    store = await open_store(tmp_path / "s")
    await store.commit(Append("s", b"x"))
    lose(tmp_path / "s" / "callboard.db")
    with pytest.raises(StoreDamaged, match="moved or deleted"):
        await store.commit(Append("s", b"would vanish"))
    with pytest.raises(StoreDamaged, match="gone"):
        await open_store(tmp_path / "s")
    await store.aclose()
