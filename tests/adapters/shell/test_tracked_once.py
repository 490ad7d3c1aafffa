"""All paths of one call are judged with a single read of git's index."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from callboard.adapters.git import premise
from callboard.adapters.shell.paths import PathJudge
from callboard.core.permissions.effects import WHOLE_REPOSITORY, tracked_in


def test_the_index_is_read_once_for_all_paths_and_again_for_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.py", ".env", "b/c.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "-f", "a.py", ".env"], cwd=tmp_path, check=True)
    read: list[Path] = []
    tracked_paths = premise.tracked_paths
    monkeypatch.setattr(premise, "tracked_paths", lambda folder: [read.append(folder), tracked_paths(folder)][1])
    judge = PathJudge(tmp_path)
    queries = [WHOLE_REPOSITORY, tracked_in("."), tracked_in("b"), tracked_in("a.py")]
    facts = judge.look(queries)
    assert len(read) == 1
    assert facts[tracked_in(".")].secrets == (str(tmp_path.resolve() / ".env"),)
    assert facts[tracked_in("b")].beneath == ()
    subprocess.run(["git", "add", "-f", "b/c.py"], cwd=tmp_path, check=True)
    assert judge.look(queries)[tracked_in("b")].beneath == (str(tmp_path.resolve() / "b" / "c.py"),)
    assert len(read) == 2
