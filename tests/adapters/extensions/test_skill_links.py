"""A skill that is replaced by a link during a session is checked again before it is shown or loaded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from callboard.adapters.extensions.discovery import ExtensionPaths
from callboard.adapters.extensions.skills import SkillLibrary


@pytest.mark.parametrize("part", ["git/SKILL.md", "git", ".", ".."])
def test_what_was_swapped_for_a_link_out_is_noticed_at_the_next_look(tmp_path: Path, part: str) -> None:
    workspace = tmp_path / "work"
    skills = workspace / ".callboard/skills"
    (skills / "git").mkdir(parents=True)
    (skills / "git/SKILL.md").write_text("body")
    library = SkillLibrary(ExtensionPaths(workspace, trusted=True, bundled=False))
    assert library.load("git").body == "body"
    moved = Path(os.path.normpath(skills / part))
    moved.rename(tmp_path / "outside")  # the same file: same time, size, and inode
    moved.symlink_to(tmp_path / "outside")
    assert library.catalogue() == []
    assert [note.verdict for note in library.notes] == ["refused"]
