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


def test_a_folder_and_the_links_to_it_are_one_skill(tmp_path: Path) -> None:
    mine, workspace = tmp_path / "home/.claude/skills", tmp_path / "work"
    for folder in (mine / "pdf", workspace / ".callboard/skills/git"):
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text("body")
    (mine / "a-pdf").symlink_to("pdf")
    (mine / "zip").symlink_to("a-pdf")
    (workspace / ".claude").mkdir()
    (workspace / ".claude/skills").symlink_to("../.callboard/skills")
    library = SkillLibrary(ExtensionPaths(workspace, home=tmp_path / "home", trusted=True, bundled=False))
    assert [text.name for text in library.catalogue()] == ["git", "pdf"]
    assert [text.name for text in library.commands()] == ["git", "pdf"]
    told = {note.path.removeprefix(f"{tmp_path}/"): note.reason for note in library.notes}
    leads = f"leads to {mine}/pdf/SKILL.md, which counts"
    assert told == {
        "home/.claude/skills/a-pdf/SKILL.md": leads,
        "home/.claude/skills/zip/SKILL.md": leads,
        "work/.claude/skills/git/SKILL.md": f"leads to {workspace}/.callboard/skills/git/SKILL.md, which counts",
    }
