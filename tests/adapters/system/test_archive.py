"""Agents' files that grow are archived with each line exactly once, and whole."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from callboard.adapters.system.archive import FileArchive, SharedTranscripts, project_name
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import StoreFull

pytestmark = pytest.mark.anyio
T = TypeVar("T")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def adding(*lines: bytes) -> Callable[[], tuple[None, Sequence[bytes]]]:
    return lambda: (None, lines)


async def test_a_file_grows_by_whole_lines_through_crashes_and_a_full_disk(tmp_path: Path) -> None:
    archive, path = FileArchive(tmp_path, tmp_path / "data", ()), tmp_path / "data" / "transcripts" / "lead.jsonl"
    await archive.extend(str(path), 0, adding(b"one\n", b"two\n"))
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open("ab") as torn:
        torn.write(b"thr")
    again = FileArchive(tmp_path, tmp_path / "data", ())
    await again.extend(str(path), 0, adding(b"one\n", b"two\n", b"three\n"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 2, before[1]))
    try:
        with pytest.raises(StoreFull):
            await again.extend(str(path), 3, adding(b"four\n"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    await again.extend(str(path), 3, adding(b"four\n"))
    assert path.read_bytes() == b"one\ntwo\nthree\nfour\n"


def shared_archive(base: Path) -> tuple[FileArchive, Path]:
    copies = SharedTranscripts(base / ".claude", base / "my project", "s1")
    return FileArchive(base, base / "data", (), shared=copies), base / "data" / "transcripts"


async def test_copies_are_where_other_programs_look_for_them(tmp_path: Path) -> None:
    archive, folder = shared_archive(tmp_path)
    for name in ("lead", "lead.2", "alice", "alice.3"):
        await archive.extend(str(folder / f"{name}.jsonl"), 0, adding(name.encode() + b"\n"))
    project = tmp_path / ".claude" / "projects" / project_name(str(tmp_path / "my project"))
    assert {str(path.relative_to(project)): path.read_text() for path in project.rglob("*.jsonl")} == {
        "s1.jsonl": "lead\n",
        "s1.2.jsonl": "lead.2\n",
        "s1/subagents/agent-alice.jsonl": "alice\n",
        "s1/subagents/agent-alice.3.jsonl": "alice.3\n",
    }
    assert (project / "s1.jsonl").stat().st_mode & 0o777 == 0o600
    assert project.stat().st_mode & 0o777 == 0o700


async def test_lines_are_made_and_added_to_both_files_in_one_piece_of_work(tmp_path: Path) -> None:
    pieces = 0

    async def run(work: Callable[[], T]) -> T:
        nonlocal pieces
        pieces += 1
        return work()

    copies = SharedTranscripts(tmp_path / ".claude", tmp_path, "s1")
    archive = FileArchive(tmp_path, tmp_path / "data", (), run=run, shared=copies)
    path = tmp_path / "data" / "transcripts" / "alice.jsonl"
    assert await archive.extend(str(path), 0, lambda: ("made", [b"one\n"])) == "made"
    assert (path.read_bytes(), Path(copies.copy_of(str(path))).read_bytes(), pieces) == (b"one\n", b"one\n", 1)


async def test_old_copies_are_removed_and_transcripts_of_other_programs_stay(tmp_path: Path) -> None:
    archive, folder = shared_archive(tmp_path)
    for name in ("lead", "alice"):
        await archive.extend(str(folder / f"{name}.jsonl"), 0, adding(b"x\n"))
    project = tmp_path / ".claude" / "projects" / project_name(str(tmp_path / "my project"))
    (project / "other.jsonl").write_text("of another program")
    copies = SharedTranscripts(tmp_path / ".claude", tmp_path / "my project", "s2")
    (tmp_path / "data" / "s1").mkdir()
    written = (project / "s1.jsonl").stat().st_mtime
    copies.remove_old(tmp_path / "data", written - 1)
    assert (project / "s1.jsonl").exists()
    copies.remove_old(tmp_path / "data", written + 1)
    assert [path.name for path in project.iterdir()] == ["other.jsonl"]
    SharedTranscripts(tmp_path / "none", tmp_path, "s3").remove_old(tmp_path, 0.0)


async def test_a_copy_that_was_deleted_or_cut_has_every_later_line_once(tmp_path: Path) -> None:
    archive, folder = shared_archive(tmp_path)
    await archive.extend(str(folder / "lead.jsonl"), 0, adding(b"one\n", b"two\n"))
    (copy,) = (tmp_path / ".claude").rglob("s1.jsonl")
    with copy.open("ab") as torn:
        torn.write(b"thr")
    again, _ = shared_archive(tmp_path)
    await again.extend(str(folder / "lead.jsonl"), 1, adding(b"two\n", b"three\n"))
    assert copy.read_bytes() == b"one\ntwo\nthree\n"


async def test_a_copy_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    archive, folder = shared_archive(tmp_path)
    (tmp_path / ".claude").write_text("a file, not a folder")
    await archive.extend(str(folder / "lead.jsonl"), 0, adding(b"one\n"))
    assert (folder / "lead.jsonl").read_bytes() == b"one\n"
    assert not archive.shares


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("/home/me/my_app.v2", "-home-me-my-app-v2"),
        ("/srv/Bücher", "-srv-B-cher"),
        ("/" + "a" * 199, "-" + "a" * 199),
        ("/" + "a" * 300, "-" + "a" * 199 + "-vtkmfl"),
        ("/home/é/" * 40, "-home---" * 25 + "-ichmoo"),
    ],
)
def test_the_name_of_a_project_is_its_path_with_hyphens(folder: str, name: str) -> None:
    assert project_name(folder) == name


async def test_the_folder_of_an_agents_large_results_is_made_by_the_first_of_them(tmp_path: Path) -> None:
    archive = FileArchive(tmp_path, tmp_path / "data", ())
    results = archive.folders(AgentSpec(name="alice", kind="subagent", agent_type="explore", model="m")).tool_results
    assert not results.exists()
    await archive.keep(str(results / "one.txt"), "large")
    assert (results / "one.txt").read_text("utf-8") == "large"
    assert results.stat().st_mode & 0o777 == 0o700
