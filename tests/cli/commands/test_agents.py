"""`callboard agents`: the list of types, the source of each field, and a new file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from callboard.cli.commands.root import cli
from callboard.types.errors import SettingsError


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("CONFIG", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
    monkeypatch.delenv("CALLBOARD_TOOL", raising=False)
    return work


def _call(workspace: Path, *line: str) -> Result:
    return CliRunner().invoke(cli, [*line, "-C", str(workspace)], standalone_mode=False, catch_exceptions=True)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_a_list_tells_whose_each_type_is_and_which_one_is_hidden(workspace: Path) -> None:
    person = Path.home() / ".claude/agents/review.md"
    _write(person, "---\nname: review\ndescription: Mine\nmodel: haiku\ntools: Read, mcp__db\n---\nBody\n")
    plugin = workspace.parent / "plug"
    _write(plugin / ".claude-plugin/plugin.json", '{"name": "plug"}')
    _write(plugin / "agents/deep/a.md", "---\nname: a\ndescription: Of a plugin\n---\n")
    rows = json.loads(_call(workspace, "agents", "list", "--json", "--plugin", str(plugin)).stdout)
    found = {(row["name"], row["source"]): row for row in rows}
    mine = found["review", "person"]
    assert (mine["model"], mine["tools"], mine["shadowed_by"]) == ("haiku", ["Read", "mcp__db"], "")
    assert found["review", "bundled"]["shadowed_by"] == str(person)
    assert found["plug:deep:a", "plugin plug"]["description"] == "Of a plugin"


def test_show_tells_the_line_of_each_field_and_the_tools_of_each_kind(workspace: Path) -> None:
    person = Path.home() / ".claude/agents/db.md"
    _write(person, "---\nname: db\ndescription: D\ntools: Read, Agent\nmaxTurns: x\n---\nBody\n")
    shown = json.loads(_call(workspace, "agents", "show", "db", "--json").stdout)[0]
    where = {one["name"]: one["where"] for one in shown["fields"]}
    assert where["tools"] == f"{person}:4"
    assert where["model"] == "default"
    assert "read_file" in shown["tools"]["subagent"]
    assert "task" not in shown["tools"]["subagent"]
    assert "task" in shown["tools"]["lead"]
    assert shown["notes"] == [f"{person}:5: maxTurns: ignored: write a whole number from 1"]


def test_a_new_file_loads_without_a_note_and_is_never_overwritten(workspace: Path) -> None:
    assert _call(workspace, "agents", "new", "db").exception is None
    path = workspace / ".callboard/agents/db.md"
    shown = json.loads(_call(workspace, "agents", "show", "db", "--trust", "--json").stdout)[0]
    assert (shown["path"], shown["notes"]) == (str(path), [])
    path.write_text("mine", encoding="utf-8")
    refused = _call(workspace, "agents", "new", "db")
    assert "already exists" in str(refused.exception)
    assert path.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("name", ["Db", "../x", "a b", "-a", ""])
def test_what_is_no_name_is_refused(workspace: Path, name: str) -> None:
    assert _call(workspace, "agents", "new", "--", name).exception is not None
    assert not (workspace / ".callboard").exists()


def test_a_tool_writes_no_agent_file(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_TOOL", "1")
    assert "for a person" in str(_call(workspace, "agents", "new", "db").exception)


@pytest.mark.parametrize(("kind", "name"), [("agents", "lead"), ("skills", "write-a-plan")])
def test_a_list_survives_settings_that_cannot_be_read(workspace: Path, kind: str, name: str) -> None:
    settings = Path.home() / "config/callboard/settings.yaml"
    _write(settings, "nope: 3\n")
    for line in ((kind,), (kind, "list"), (kind, "list", "--json")):
        ran = _call(workspace, *line)
        assert isinstance(ran.exception, SettingsError), "the process then ends with exit code 3"
        assert f"{settings}:1: nope: unknown setting" in str(ran.exception)
        assert name in ran.stdout
    rows = json.loads(ran.stdout)
    assert name in {row["name"] for row in rows}
