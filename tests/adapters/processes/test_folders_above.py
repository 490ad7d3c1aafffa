"""Agents and skills come from the folders above a workspace, up to the repository's root; the nearest wins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from callboard.adapters.extensions.agents import load_agents
from callboard.adapters.extensions.discovery import ExtensionPaths, folders_above
from callboard.adapters.extensions.skills import load_skills
from callboard.adapters.extensions.trust import read_claims


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExtensionPaths:
    work = tmp_path / "repo/apps/web"
    work.mkdir(parents=True)
    (tmp_path / "repo/.git").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    for number, folder in enumerate((work, work.parent, tmp_path / "repo", tmp_path)):
        for name in ("same", f"only{number}"):
            _agent(folder, name, f"at {number}")
    (tmp_path / "repo/.claude/skills/maps").mkdir(parents=True)
    (tmp_path / "repo/.claude/skills/maps/SKILL.md").write_text("---\nname: maps\ndescription: d\n---\n", "utf-8")
    return ExtensionPaths(work, home=None, trusted=True, bundled=False)


def _agent(folder: Path, name: str, description: str) -> None:
    (folder / ".claude/agents").mkdir(parents=True, exist_ok=True)
    text = f"---\nname: {name}\ndescription: {description}\n---\n"
    (folder / f".claude/agents/{name}.md").write_text(text, "utf-8")


@pytest.mark.parametrize("read", [False, True])
def test_the_nearest_wins_and_nothing_above_the_repository_counts(places: ExtensionPaths, read: bool) -> None:
    assert places.workspace is not None
    if read:
        places = replace(places, workspace_claims=read_claims(places.workspace))
    loaded = load_agents(places)
    assert {name: one.description for name, one in loaded.items.items()} == {
        "same": "at 0",
        "only0": "at 0",
        "only1": "at 1",
        "only2": "at 2",
    }
    assert [Path(one.path).parts[-4] for one, _ in loaded.hidden] == ["apps", "repo"]
    assert set(load_skills(places).items) == {"maps"}


def test_what_stands_above_is_part_of_what_is_trusted(places: ExtensionPaths) -> None:
    assert places.workspace is not None
    before = read_claims(places.workspace)
    assert "../../.claude/agents/only2.md" in before.content
    _agent(places.workspace.parents[1], "only2", "other words")
    assert read_claims(places.workspace).digest != before.digest
    assert load_agents(replace(places, workspace_claims=before)).items["only2"].description == "at 2"


def test_an_untrusted_workspace_has_nothing_of_it(places: ExtensionPaths) -> None:
    loaded = load_agents(replace(places, trusted=False))
    assert loaded.items == {}
    assert len(loaded.notes) == 3


def test_outside_of_a_repository_there_is_no_way_up(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    assert folders_above(tmp_path / "a/b") == ()
    (tmp_path / ".git").mkdir()
    assert folders_above(tmp_path / "a/b") == (tmp_path / "a", tmp_path)
    assert folders_above(tmp_path / "a/b", home=tmp_path) == (tmp_path / "a",)
