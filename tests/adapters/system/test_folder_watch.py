"""Watches of folders: each wakes for its own folders only, and all share the kernel's scarce resources."""

from __future__ import annotations

import os
import select
import sys
import threading
from pathlib import Path

import anyio
import pytest

from callboard.adapters.system.folder_watch import WatchFactory

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux" and not hasattr(select, "kqueue"), reason="needs inotify or kqueue"),
]

INOTIFY = "anon_inode:inotify"


def watch_descriptors() -> set[tuple[str, str]]:
    """Return the number and kind of each descriptor of this process that belongs to a watch.

    Compare these instead of the number of descriptors: those left open by an earlier test may close at any moment.
    """
    parts = {(name, _target(name)) for name in os.listdir("/proc/self/fd")}
    return {(name, kind) for name, kind in parts if kind in (INOTIFY, "anon_inode:[eventfd]")}


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except FileNotFoundError:  # the descriptor of the listing itself
        return ""


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is a part of Linux")
async def test_all_watches_of_a_process_share_one_instance_and_leave_nothing(tmp_path: Path) -> None:
    parts = watch_descriptors()
    threads = set(threading.enumerate())
    (tmp_path / "agents").mkdir()
    made = WatchFactory()
    watches = [made.watch([tmp_path / "agents"]) for _ in range(200)]
    assert [kind for _, kind in watch_descriptors() - parts].count(INOTIFY) == 1
    (tmp_path / "agents" / "new.md").write_text("x")
    with anyio.fail_after(180):
        async with anyio.create_task_group() as tasks:
            for watch in watches:
                tasks.start_soon(watch.wait_changed)
    for watch in watches:
        watch.close()
    assert watch_descriptors() <= parts
    assert not [thread for thread in set(threading.enumerate()) - threads if thread.name == "callboard-folders"]


async def test_a_watch_wakes_for_its_own_folders_also_after_another_of_the_same_folder_was_closed(
    tmp_path: Path,
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    watches = WatchFactory()
    one, other, elsewhere = (watches.watch([folder]) for folder in (here, here, there))
    try:
        other.close()
        (here / "new").write_text("x")
        with anyio.fail_after(180):
            await one.wait_changed()
        with anyio.move_on_after(0.5) as quiet:
            await elsewhere.wait_changed()
        assert quiet.cancelled_caught
    finally:
        one.close()
        elsewhere.close()


async def test_a_folder_that_is_made_deleted_and_made_again_is_watched_each_time(tmp_path: Path) -> None:
    folder = tmp_path / "skills"
    watch = WatchFactory().watch([folder])
    try:
        for _ in range(2):
            for act in (folder.mkdir, (folder / "one").touch, (folder / "one").unlink, folder.rmdir):
                act()
                with anyio.fail_after(180):
                    await watch.wait_changed()
    finally:
        watch.close()


async def test_a_missing_folder_is_awaited_by_name_so_that_other_files_above_it_wake_nothing(tmp_path: Path) -> None:
    watches = WatchFactory()
    all_files, awaited = watches.watch([tmp_path]), watches.watch([tmp_path / ".claude" / "agents"])
    try:
        (tmp_path / "result.txt").write_text("x")
        with anyio.fail_after(180):
            await all_files.wait_changed()  # the same event, so it has reached both watches
        with anyio.move_on_after(0.5) as quiet:
            await awaited.wait_changed()
        assert quiet.cancelled_caught
        for step in ("mkdir .claude", "mkdir .claude/agents", "touch .claude/agents/new.md", "rm -r .claude"):
            await anyio.run_process(step.split(), cwd=tmp_path)
            with anyio.fail_after(180):
                await awaited.wait_changed()
    finally:
        all_files.close()
        awaited.close()
