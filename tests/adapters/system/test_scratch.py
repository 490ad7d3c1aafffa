"""Temporary folders: nothing is left after a normal end, and what a killed process leaves is swept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
import pytest

from callboard.adapters.processes.sandbox.proxy import SessionProxies
from callboard.adapters.system.scratch import PREFIX, scratch_folder

KILLED = """
import os, signal, sys
from pathlib import Path
from callboard.adapters.system.scratch import scratch_folder

with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "kept").write_text("x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_after_the_block_even_if_it_raises(tmp_path: Path) -> None:
    def work() -> None:
        with scratch_folder(tmp_path) as folder:
            assert folder.stat().st_mode & 0o777 == 0o700
            (folder / "deep").mkdir()
            (folder / "deep/file").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    (abandoned,) = tmp_path.iterdir()
    assert abandoned.name.startswith(PREFIX)
    others = [tmp_path / "callboard-demo-x", tmp_path / f"{PREFIX}link"]
    others[0].mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "target/file").write_text("x")
    others[1].symlink_to(tmp_path / "target")
    with scratch_folder(tmp_path) as first, scratch_folder(tmp_path) as second:
        assert not abandoned.exists()
        assert first.exists(), "a folder in use stays"
        assert first != second
    assert sorted(path.name for path in tmp_path.iterdir()) == [*(path.name for path in others), "target"]
    assert (tmp_path / "target/file").exists()


def test_a_folder_that_is_swept_before_its_owner_has_locked_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    real = tempfile.mkdtemp

    def swept_once(prefix: str, dir: Path) -> str:
        made.append(real(prefix=prefix, dir=dir))
        if len(made) == 1:
            Path(made[0]).rmdir()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept_once)
    with scratch_folder(tmp_path) as folder:
        assert str(folder) == made[1]
        assert folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_stays(tmp_path: Path) -> None:
    other = tmp_path / f"{PREFIX}other"
    other.mkdir()
    os.chown(other, 12345, 12345)
    with scratch_folder(tmp_path):
        assert other.exists()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_a_session_makes_a_folder_for_its_proxies_only_when_a_command_needs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    proxies = SessionProxies()
    async with anyio.create_task_group() as group:
        await group.start(proxies.serve)
        assert list(tmp_path.iterdir()) == []
        path = await proxies.open(["example.org"])
        (folder,) = tmp_path.iterdir()
        assert Path(path).parent == folder
        group.cancel_scope.cancel()
    assert list(tmp_path.iterdir()) == []
