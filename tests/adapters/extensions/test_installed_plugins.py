"""Lists of installed plugins: Callboard's and that of Claude Code, and the switches of settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from callboard.adapters.extensions.installed_plugins import (
    OWN_LIST,
    InstalledPlugin,
    enabled_folders,
    installed_plugins,
    own_plugins,
    write_own,
)
from callboard.adapters.extensions.plugins import read_plugins
from callboard.types.errors import UsageError


def claude_list(folder: Path, **plugins: object) -> None:
    file = folder / "plugins" / "installed_plugins.json"
    file.parent.mkdir(parents=True)
    named = {name.replace("_", "@"): entry for name, entry in plugins.items()}
    file.write_text(json.dumps({"version": 2, "plugins": named}))


def test_settings_enable_the_plugins_of_both_lists(tmp_path: Path) -> None:
    workspace, config, claude = (tmp_path / name for name in ("ws", "config", "claude"))
    project = {"scope": "project", "installPath": "/p/d", "projectPath": str(workspace)}
    elsewhere = {"scope": "project", "installPath": "/p/e", "projectPath": "/elsewhere"}
    user = {"scope": "user", "installPath": "/p/a", "version": "1.2.0"}
    claude_list(claude, a_m=[user], b_m={"installPath": "/p/b"}, d_m=[project], e_m=[elsewhere])
    write_own(config, {"own": InstalledPlugin("own", "/p/own"), "off": InstalledPlugin("off", "/p/off", enabled=False)})
    switches = {"a@m": True, "b@m": False, "d@m": True, "e@m": True, "gone@m": True, "off": True}
    plugins, notes = installed_plugins(config, claude, workspace, switches)
    assert list(enabled_folders(plugins)) == [Path(f"/p/{name}") for name in ("a", "d", "off", "own")]
    assert plugins["a@m"].version == "1.2.0"
    assert [note.field for note in notes] == ["e@m", "gone@m"]
    assert "is not installed" in str(notes[0])
    plugins, notes = installed_plugins(config, claude, workspace, {})
    assert list(enabled_folders(plugins)) == [Path("/p/own")]
    assert notes == ()


def test_the_own_list_is_private_and_comes_back_as_it_was_written(tmp_path: Path) -> None:
    plugins = {"a@m": InstalledPlugin("a@m", "/p/a", "1.0", "https://example.org/a.git", enabled=False)}
    write_own(tmp_path, plugins)
    assert own_plugins(tmp_path) == plugins
    assert (tmp_path / OWN_LIST).stat().st_mode & 0o777 == 0o600
    assert own_plugins(tmp_path / "none") == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"plugins": []}', r'{"plugins": {"a": {"path": "/a\u0000"}}}'])
def test_a_damaged_list_is_a_note_for_a_session_and_an_error_for_a_change(tmp_path: Path, text: str) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / OWN_LIST).write_text(text)
    with pytest.raises(UsageError, match=r"installed\.json: .* install the plugins again"):
        own_plugins(tmp_path)
    plugins, notes = installed_plugins(tmp_path, tmp_path / "claude", tmp_path, {})
    assert (plugins, len(notes)) == ({}, 1)


def test_a_path_with_half_of_an_emoji_is_a_plugin_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / OWN_LIST).write_text(r'{"plugins": {"a": {"path": "/a\ud83d"}}}')
    plugins, notes = installed_plugins(tmp_path, tmp_path / "claude", tmp_path, {})
    loaded, told = read_plugins(enabled_folders(plugins))
    assert (loaded, notes) == ((), ())
    assert "cannot be read" in str(told[0])


def test_wrong_entries_of_the_lists_are_told_one_by_one(tmp_path: Path) -> None:
    config, claude = tmp_path / "config", tmp_path / "claude"
    entries = {"a": {"path": 3}, "b": "/p/b", "c": {"path": "/p/c", "enabled": "no"}, "d": {"path": "/p/d"}}
    (config / "plugins").mkdir(parents=True)
    (config / OWN_LIST).write_text(json.dumps({"plugins": entries}))
    claude_list(claude, e_m=[{"scope": "user"}], f_m=7)
    plugins, notes = installed_plugins(config, claude, tmp_path, {})
    assert list(enabled_folders(plugins)) == [Path("/p/c"), Path("/p/d")]
    assert [(note.field, note.verdict) for note in notes] == [
        ("e@m", "refused"),
        ("f@m", "refused"),
        ("a", "refused"),
        ("b", "refused"),
        ("c.enabled", "ignored"),
    ]
    (claude / "plugins/installed_plugins.json").write_text('{"plugins": []}')
    notes = installed_plugins(config, claude, tmp_path, {})[1]
    assert "`plugins` is not an object" in str(notes[0])
