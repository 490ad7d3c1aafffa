"""The servers of a session come from all sources that may define some."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from callboard.adapters.extensions.claude_settings import read_claude
from callboard.adapters.mcp.config import Configured, ServerSources, inline_servers, read_servers
from callboard.types.errors import UsageError
from callboard.types.skills import Plugin


def entries(found: Configured) -> dict[str, tuple[str, str]]:
    return {one.name: (one.scope, one.command or one.url) for one in found.entries}


def test_the_whole_entry_of_the_first_source_counts(tmp_path: Path) -> None:
    home, config, workspace = tmp_path / "home", tmp_path / "config", tmp_path / "work"
    for folder in (home, config, workspace):
        folder.mkdir()
    everywhere = {"command": "claude-person", "env": {"A": "b"}}
    mine = {"mcpServers": {"a": {"command": "local"}}}
    (home / ".claude.json").write_text(
        json.dumps({"mcpServers": dict.fromkeys("abcde", everywhere), "projects": {str(workspace): mine}}), "utf-8"
    )
    (config / "mcp.json").write_text(
        json.dumps({"mcpServers": {name: {"command": "person"} for name in "abcd"}}), "utf-8"
    )
    workspace_text = json.dumps({"mcpServers": {name: {"command": "workspace"} for name in "abc"}})
    given = json.dumps({"mcpServers": {"b": {"command": "run"}, "s": {"type": "sdk"}}})
    sources = ServerSources(workspace, {}, config, home, workspace_text, True, command_line=(given,))
    found = read_servers(sources)
    assert entries(found) == {
        "b": ("run", "run"),
        "s": ("run", ""),
        "a": ("local", "local"),
        "c": ("workspace", "workspace"),
        "d": ("person", "person"),
        "e": ("person", "claude-person"),
    }
    assert not found.held
    assert all("counts" in note.reason for note in found.notes)
    strict = read_servers(
        ServerSources(workspace, {}, config, home, workspace_text, True, command_line=(given,), strict=True)
    )
    assert list(entries(strict)) == ["b", "s"]


def test_what_nobody_trusted_is_listed_not_expanded_and_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"a": {"command": "mine"}}}', "utf-8")
    workspace_text = '{"mcpServers": {"a": {"command": "theirs"}, "b": {"command": "${SECRET}"}}}'
    found = read_servers(ServerSources(tmp_path, {"SECRET": "s3cret"}, tmp_path, workspace_text=workspace_text))
    assert entries(found) == {"a": ("person", "mine"), "b": ("workspace", "${SECRET}")}
    assert found.held["b"][0] == "untrusted"
    assert "callboard trust" in found.held["b"][1]
    assert "a" not in found.held


def test_plugins_servers_go_by_the_plugins_name_and_know_its_folder(tmp_path: Path) -> None:
    file = tmp_path / ".mcp.json"
    file.write_text('{"mcpServers": {"db": {"command": "${CLAUDE_PLUGIN_ROOT}/run"}}}', "utf-8")
    bare = tmp_path / "bare.json"
    bare.write_text('{"x": {"command": "x"}}', "utf-8")
    plugin = Plugin("tools", tmp_path, mcp=(file, bare), mcp_inline={"in": {"command": "inline"}})
    found = {one.name: one for one in read_servers(ServerSources(tmp_path, plugins=(plugin,))).entries}
    assert found["plugin:tools:db"].command == f"{tmp_path}/run"
    assert found["plugin:tools:db"].env == {"CLAUDE_PLUGIN_ROOT": str(tmp_path)}
    assert {"plugin:tools:x", "plugin:tools:in"} < set(found)


def test_settings_switch_off_and_say_where(tmp_path: Path) -> None:
    raw = b'{"disabledMcpjsonServers": ["a"],\n "enabledMcpjsonServers": ["a", "b"]}'
    claude = read_claude(raw, ".claude/settings.json", person=False, trusted=True)
    assert [told.verdict for told in claude.verdicts] == ["honored", "honored"]
    workspace_text = (
        '{"mcpServers": {"a": {"command": "x"}, "b": {"command": "x"}, "c": {"command": "x", "disabled": true}}}'
    )
    found = read_servers(
        ServerSources(tmp_path, workspace_text=workspace_text, trusted=True, approvals=claude.servers, off=("b",))
    )
    assert found.held["a"] == ("off", "disabledMcpjsonServers names it (.claude/settings.json:1)")
    assert found.held["b"] == ("off", "settings switch it off (mcp.off)")
    assert found.held["c"] == ("off", "its entry says `disabled`")
    theirs = read_claude(raw, ".claude/settings.json", person=False, trusted=False)
    assert [told.verdict for told in theirs.verdicts] == ["honored", "ignored"]


@pytest.mark.parametrize("text", ["{", "[1", '{"mcpServers": 5}', "", "\x00", "{}", '"' * 50, "[" * 100_000])
def test_a_broken_file_is_one_note_and_breaks_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"a": {"command": "x"}}}', "utf-8")
    found = read_servers(ServerSources(tmp_path, config=tmp_path, workspace_text=text, trusted=True))
    assert list(entries(found)) == ["a"]
    (note,) = found.notes
    assert (note.path, note.verdict) == (".mcp.json", "refused")


def test_a_file_that_cannot_be_read_is_told_and_one_of_the_command_line_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").mkdir()
    (note,) = read_servers(ServerSources(tmp_path, config=tmp_path)).notes
    assert "cannot be read" in note.reason
    for given in ("nothing.json", "{", "[1]"):
        with pytest.raises(UsageError, match="--mcp-config"):
            read_servers(ServerSources(tmp_path, command_line=(given,)))
    (tmp_path / "s.json").write_text('{"mcpServers": {"a": {"command": "x"}}}', "utf-8")
    assert list(entries(read_servers(ServerSources(Path("/"), command_line=("s.json",), folder=tmp_path)))) == ["a"]


def test_an_agents_file_names_servers_or_writes_them_out(tmp_path: Path) -> None:
    listed = ["github", {"db": {"command": "${P:-psql}"}}, 5]
    names, found = inline_servers(listed, "agents/a.md", tmp_path, {})
    assert names == ("github",)
    assert entries(found) == {"db": ("agent", "psql")}
    assert len(found.notes) == 1


@pytest.mark.slow
def test_reading_the_configuration_loads_no_sdk() -> None:
    code = "import sys, callboard.adapters.mcp.config; sys.exit('mcp' in sys.modules or 'httpx2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
