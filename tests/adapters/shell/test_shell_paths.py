"""Opening a path beneath a folder never leaves the folder, even while links are swapped."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from callboard.adapters.git.premise import git_is_quiet
from callboard.adapters.shell.paths import PathJudge
from callboard.adapters.system.regular_files import open_beneath, open_by_walking
from callboard.core.permissions.values import PathQuery

Opener = Callable[[int, str, int], int]


@pytest.fixture(params=[open_beneath, open_by_walking], ids=["openat2", "walk"])
def opener(request: pytest.FixtureRequest) -> Opener:
    return request.param


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "in"
    (inside / "sub").mkdir(parents=True)
    (inside / "sub/file").write_text("inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("outside")
    return inside


@pytest.fixture
def root_fd(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def read(fd: int) -> str:
    try:
        return os.read(fd, 100).decode()
    finally:
        os.close(fd)


def test_a_file_inside_is_opened(root_fd: int, opener: Opener) -> None:
    assert read(opener(root_fd, "sub/file", os.O_RDONLY)) == "inside"
    assert read(opener(root_fd, "./sub//file", os.O_RDONLY)) == "inside"


def test_links_and_dots_that_lead_out_are_refused(root_fd: int, folder: Path, opener: Opener) -> None:
    (folder / "link").symlink_to(folder.parent / "outside")
    (folder / "file").symlink_to("../outside/file")
    (folder / "self").symlink_to("/proc/self/cwd")
    for path in ("link/file", "file", "../outside/file", "sub/../../outside/file", "self/x"):
        with pytest.raises(OSError, match="Errno") as raised:
            opener(root_fd, path, os.O_RDONLY)
        assert raised.value.errno in (errno.EXDEV, errno.ELOOP, errno.ENOTDIR), path


def test_pipes_are_refused_without_waiting_and_absolute_paths_too(root_fd: int, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        open_beneath(root_fd, "pipe", os.O_RDONLY)
    with pytest.raises(OSError, match="absolute"):
        open_beneath(root_fd, str(folder / "sub/file"), os.O_RDONLY)
    with pytest.raises(ValueError, match="NUL"):
        open_beneath(root_fd, "a\0", os.O_RDONLY)


def test_a_link_that_leads_out_is_named_as_such(root_fd: int, folder: Path) -> None:
    (folder / "out").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="a link leads out of its folder"):
        open_beneath(root_fd, "out", os.O_RDONLY)


def test_writing_creates_and_truncates_inside(root_fd: int, folder: Path) -> None:
    fd = open_beneath(root_fd, "sub/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    os.write(fd, b"long text")
    os.close(fd)
    os.close(open_beneath(root_fd, "sub/new", os.O_WRONLY | os.O_TRUNC))
    assert (folder / "sub/new").read_bytes() == b""


def test_a_link_swapped_in_a_loop_never_shows_what_is_outside(root_fd: int, folder: Path, opener: Opener) -> None:
    real, link, name = folder / "real", folder / "link", folder / "swap"
    real.mkdir()
    (real / "file").write_text("inside")
    link.symlink_to(folder.parent / "outside")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(real, name)
            os.rename(name, real)
            os.symlink("../outside", name)
            os.rename(name, folder / "other")
            os.unlink(folder / "other")

    thread = threading.Thread(target=swap)
    thread.start()
    seen: set[str] = set()
    try:
        for _ in range(3_000):
            for path in ("swap/file", "real/file", "other/file"):
                try:
                    seen.add(read(opener(root_fd, path, os.O_RDONLY)))
                except OSError:
                    seen.add("refused")
    finally:
        stop.set()
        thread.join()
    assert "inside" in seen
    assert "outside" not in seen


def test_globs_and_trees_are_judged_by_their_worst_match(folder: Path) -> None:
    judge = PathJudge(folder, home=Path("/home/me"))
    (folder / "link").symlink_to(folder.parent / "outside")
    (folder / "sub/.env").write_text("x")
    facts = judge.look(
        [PathQuery("s*", glob=True), PathQuery("*", glob=True), PathQuery("sub", tree=True), PathQuery("sub")]
    )
    assert [fact.place for fact in facts.values()] == ["inside", "outside", "secret", "inside"]


def test_git_configuration_is_quiet_only_when_every_key_is_known(tmp_path: Path) -> None:
    assert git_is_quiet(tmp_path)
    (tmp_path / ".git").mkdir()
    assert not git_is_quiet(tmp_path)
    quiet = '[core]\n\tbare = false\n[remote "origin"]\n\turl = x\n\tfetch = y\n[branch "main"]\n\tremote = origin\n'
    (tmp_path / ".git/config").write_text(quiet)
    assert git_is_quiet(tmp_path)
    loud = [
        "[core]\nfsmonitor=x",
        "[core] fsmonitor = x",
        "[include]\npath=x",
        '[filter "x"]\nclean=x',
        "[alias]\nstatus=!x",
        "[diff]\nexternal=x",
    ]
    loud += [
        "[core]\npager=x",
        "[core]\nbare = x\\\n",
        "junk x",
        "[extensions]\nworktreeconfig = true",
        '[diff "x"]\ntextconv = y',
    ]
    for text in loud:
        (tmp_path / ".git/config").write_text(quiet + text)
        assert not git_is_quiet(tmp_path), text
    (tmp_path / ".git/config").write_text(quiet)
    (tmp_path / ".git/modules").mkdir()
    assert not git_is_quiet(tmp_path)
