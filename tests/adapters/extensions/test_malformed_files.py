"""Each malformed file gets exactly one clear message with file, line, and field; everything else still loads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.adapters.extensions.malformed import AGENTS, PLUGINS, SKILLS, Case

from callboard.adapters.extensions.agents import load_agents
from callboard.adapters.extensions.discovery import DiscoveryNote, ExtensionPaths
from callboard.adapters.extensions.hooks import front_matter_hooks
from callboard.adapters.extensions.plugins import MANIFEST, read_plugin, read_plugins
from callboard.adapters.extensions.skills import load_skills
from callboard.adapters.extensions.trust import read_claims

GOOD = "---\nname: good\ndescription: d\n---\nBody\n"


def _ids(cases: Iterable[Case]) -> list[str]:
    return [one.name for one in cases]


def _check_message(bad: Case, notes: Iterable[DiscoveryNote], path: Path) -> None:
    """Check that there is exactly one message, and that it is about this file."""
    (note,) = notes
    assert note.path == str(path)
    assert (note.line, note.field) == (bad.line, bad.field)
    assert bad.words in note.reason
    text = str(note)
    assert text.count(str(path)) == 1
    assert "\n" not in text
    assert "None" not in text


@pytest.fixture
def places(tmp_path: Path) -> ExtensionPaths:
    (tmp_path / "work").mkdir()
    return ExtensionPaths(tmp_path / "work", tmp_path / "config", tmp_path / "home", trusted=True, bundled=False)


def test_there_are_enough_of_them() -> None:
    assert len(AGENTS) + len(SKILLS) + len(PLUGINS) >= 60


@pytest.mark.parametrize("bad", AGENTS, ids=_ids(AGENTS))
@pytest.mark.parametrize("scope", ["person", "workspace"])
def test_a_bad_agent_file_is_told_once_and_breaks_nothing(places: ExtensionPaths, bad: Case, scope: str) -> None:
    assert places.home is not None
    assert places.workspace is not None
    folder = (places.home if scope == "person" else places.workspace) / ".claude/agents"
    folder.mkdir(parents=True)
    (folder / "a_good.md").write_text(GOOD, encoding="utf-8")
    path = folder / "bad.md"
    bad.make(path)
    if scope == "workspace":
        places = replace(places, workspace_claims=read_claims(places.workspace))
    loaded = load_agents(places)
    assert sorted(loaded.items) == (["bad", "good"] if bad.loads else ["good"])
    hooks = [note for one in front_matter_hooks(loaded.items.values(), (), "") for note in one.read.notes]
    notes = [*loaded.notes, *hooks]
    if scope == "person" or path.is_file():
        _check_message(bad, notes, path)
    else:  # the kernel's message: the file is opened beneath the workspace, and no link may lead out
        assert [note.path for note in notes] == [str(path)]


@pytest.mark.parametrize("bad", SKILLS, ids=_ids(SKILLS))
def test_a_bad_skill_is_told_once_and_breaks_nothing(places: ExtensionPaths, bad: Case) -> None:
    assert places.home is not None
    folder = places.home / ".claude/skills"
    for name in ("good", "bad"):
        (folder / name).mkdir(parents=True)
    (folder / "good/SKILL.md").write_text(GOOD, encoding="utf-8")
    path = folder / "bad/SKILL.md"
    bad.make(path)
    loaded = load_skills(places)
    assert sorted(loaded.items) == (["bad", "good"] if bad.loads else ["good"])
    (note,) = loaded.notes
    assert note.path == str(path)
    assert bad.words in str(note)
    assert str(note).count(str(path)) == 1


@pytest.mark.parametrize("bad", PLUGINS, ids=_ids(PLUGINS))
def test_a_bad_manifest_is_told_once_and_the_other_plugins_load(tmp_path: Path, bad: Case) -> None:
    good, wrong = tmp_path / "good", tmp_path / "bad"
    for root in (good, wrong):
        (root / "agents").mkdir(parents=True)
        (root / ".claude-plugin").mkdir()
    (good / MANIFEST).write_text('{"name": "good"}', encoding="utf-8")
    bad.make(wrong / MANIFEST)
    found, notes = read_plugins([wrong, good])
    assert [one.name for one in found] == (["bad", "good"] if bad.loads else ["good"])
    (note,) = notes
    assert (note.path, note.line, note.field) == (str(wrong / MANIFEST), bad.line, bad.field)
    assert bad.words in note.reason


def test_a_folder_that_is_no_plugin_is_told(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("", encoding="utf-8")
    for path in (tmp_path, tmp_path / "x", tmp_path / "missing"):
        plugin, (note,) = read_plugin(path)
        assert plugin is None
        assert note.verdict == "refused"


def test_all_of_them_at_once_are_told_each_by_itself(places: ExtensionPaths) -> None:
    assert places.home is not None
    folder = places.home / ".claude/agents"
    for number, bad in enumerate(AGENTS):
        (folder / str(number)).mkdir(parents=True)
        bad.make(folder / str(number) / "bad.md")
    (folder / "good.md").write_text(GOOD, encoding="utf-8")
    loaded = load_agents(places)
    assert "good" in loaded.items
    told = {note.path for note in loaded.notes}
    assert told >= {str(folder / str(number) / "bad.md") for number, bad in enumerate(AGENTS) if not bad.loads}
