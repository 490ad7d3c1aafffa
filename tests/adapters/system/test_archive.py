"""Files of agents that grow: each line once, and whole."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from callboard.adapters.system.archive import FileArchive
from callboard.types.errors import StoreFull

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_file_grows_by_whole_lines_through_crashes_and_a_full_disk(tmp_path: Path) -> None:
    archive, path = FileArchive(tmp_path, tmp_path / "data", ()), tmp_path / "data" / "transcripts" / "lead.jsonl"
    await archive.append(str(path), 0, [b"one\n", b"two\n"])
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open("ab") as torn:
        torn.write(b"thr")
    again = FileArchive(tmp_path, tmp_path / "data", ())
    await again.append(str(path), 0, [b"one\n", b"two\n", b"three\n"])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 2, before[1]))
    try:
        with pytest.raises(StoreFull):
            await again.append(str(path), 3, [b"four\n"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    await again.append(str(path), 3, [b"four\n"])
    assert path.read_bytes() == b"one\ntwo\nthree\nfour\n"
