"""Copies of files from before agents changed them, put back where a tool has changed the files."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from callboard.adapters.tools.backups import FileBackups, FileRestore
from callboard.adapters.tools.roots import RootCache
from callboard.ports.tool import Folders


def test_a_file_in_a_teammates_worktree_is_restored_unless_the_worktree_is_gone(tmp_path: Path) -> None:
    workspace, worktree = tmp_path / "workspace", tmp_path / "data" / "worktrees" / "parser"
    for folder in (workspace, worktree / "src"):
        folder.mkdir(parents=True)
    changed, new = worktree / "src" / "a.py", worktree / "new.py"
    changed.write_text("later\n")
    new.write_text("one\ntwo\n")
    backups = FileBackups(tmp_path / "copies", RootCache(workspace))
    backups.keep(b"before\n")
    digest = hashlib.sha256(b"before\n").hexdigest()
    lead = Folders(workspace, tmp_path / "results", tmp_path / "transcripts")

    assert backups.restore(str(changed), digest, lead, dry=True) == FileRestore(str(changed), 1, 1)
    assert changed.read_text() == "later\n"
    assert backups.restore(str(changed), digest, lead, dry=False) == FileRestore(str(changed), 1, 1)
    assert backups.restore(str(new), "", lead, dry=False) == FileRestore(str(new), 0, 2)
    assert (changed.read_text(), new.exists()) == ("before\n", False)

    shutil.rmtree(worktree)
    gone = FileRestore(str(changed), problem=f"{changed}: its folder was removed")
    assert backups.restore(str(changed), digest, lead, dry=False) == gone
    assert backups.restore(str(new), "", lead, dry=False) is None
    assert not worktree.exists()


def test_a_removed_folder_of_the_workspace_is_made_again(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    backups = FileBackups(tmp_path / "copies", RootCache(workspace))
    backups.keep(b"before\n")
    lead = Folders(workspace, tmp_path / "results", tmp_path / "transcripts")
    path = workspace / "src" / "a.py"
    assert backups.restore(str(path), hashlib.sha256(b"before\n").hexdigest(), lead, dry=False) is not None
    assert path.read_text() == "before\n"
