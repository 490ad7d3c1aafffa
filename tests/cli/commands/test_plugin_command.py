"""`callboard plugin`: install from a folder, a repository, and a marketplace; switch; remove."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.cli.commands.command import Command


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def make_plugin(folder: Path, name: str) -> Path:
    (folder / ".claude-plugin").mkdir(parents=True)
    (folder / ".claude-plugin" / "plugin.json").write_text(json.dumps({"name": name, "version": "1.0.0"}))
    (folder / "agents").mkdir()
    (folder / "agents" / "scout.md").write_text("---\nname: scout\ndescription: Finds places\n---\nYou scout.\n")
    return folder


def test_a_folder_is_copied_loaded_switched_and_removed(command: Command, tmp_path: Path) -> None:
    source = make_plugin(tmp_path / "source", "acme")
    ran = command.run("plugin", "install", str(source), "--yes")
    assert (ran.code, ran.out) == (0, f"installed acme 1.0.0: enabled, from {source}\n"), ran.err
    (entry,) = json.loads(command.run("plugin", "list", "--json").out)
    assert Path(entry["path"], "agents", "scout.md").is_file()
    assert command.run("plugin", "disable", "acme").code == 0
    assert json.loads(command.run("plugin", "list", "--json").out)[0]["enabled"] is False
    assert command.run("plugin", "enable", "acme").code == 0
    assert "acme 1.0.0: enabled" in command.run("plugin").out
    assert command.run("plugin", "remove", "acme").out == "removed acme\n"
    assert not Path(entry["path"]).exists()
    gone = command.run("plugin", "remove", "acme")
    assert (gone.code, "no plugin is installed" in gone.err) == (2, True)


def test_a_note_on_a_file_names_it_in_the_plugin(command: Command, tmp_path: Path) -> None:
    source = make_plugin(tmp_path / "source", "acme")
    (source / "commands").mkdir()
    (source / "commands" / "loop.md").write_text("---\ndescription: Start\nodd-field: 1\n---\nGo.\n")
    ran = command.run_inline("plugin", "install", str(source), "--yes")
    assert "\n  commands/loop.md:3: odd-field: ignored" in ran.err, ran.err


def test_a_marketplace_names_folders_and_repositories(command: Command, tmp_path: Path) -> None:
    market = tmp_path / "market"
    make_plugin(market / "plugins" / "near", "near")
    far = make_plugin(tmp_path / "far", "far")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(far)]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *arguments], check=True)
    (market / ".claude-plugin").mkdir()
    plugins = [
        {"name": "near", "source": "./plugins/near"},
        {"name": "far", "source": {"source": "url", "url": f"file://{far}"}},
        {"name": "out", "source": "../far"},
    ]
    (market / ".claude-plugin" / "marketplace.json").write_text(json.dumps({"name": "m", "plugins": plugins}))
    for name in ("near", "far"):
        ran = command.run("plugin", "install", name, "--marketplace", str(market), "--yes")
        assert (ran.code, f"installed {name}@m 1.0.0: enabled" in ran.out) == (0, True), ran.err
    entries = json.loads(command.run("plugin", "list", "--json").out)
    assert [entry["name"] for entry in entries] == ["far@m", "near@m"]
    assert not Path(entries[0]["path"], ".git").exists()
    (market / "plugins" / "near" / "agents" / "guide.md").write_text("---\nname: guide\ndescription: Leads\n---\nGo.\n")
    ran = command.run_inline("plugin", "update", "near", "--yes")
    assert (ran.code, f"installed near@m 1.0.0: enabled, from {market}" in ran.out) == (0, True), ran.err
    ran = command.run_inline("plugin", "update")
    assert ran.out.count("installed already, with exactly these files") == 2, ran.err
    out = command.run("plugin", "install", "out", "--marketplace", str(market))
    assert (out.code, "leads out of" in out.err) == (2, True)
    unknown = command.run("plugin", "install", "neer", "--marketplace", str(market))
    assert (unknown.code, "near" in unknown.err) == (2, True)


def test_what_is_no_plugin_is_refused_and_an_agent_cannot_install(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ran = command.run("plugin", "install", str(tmp_path / "empty"))
    assert (ran.code, "is not a plugin" in ran.err) == (2, True)
    ran = command.run("plugin", "install", "nowhere")
    assert (ran.code, "no such folder, and it is no address" in ran.err) == (2, True)
    source = make_plugin(tmp_path / "source", "acme")
    ran = command.run("plugin", "install", str(source), CALLBOARD_TOOL="1")
    assert (ran.code, "Installing a plugin is for a person" in ran.err) == (2, True)


def test_a_session_loads_the_enabled_plugin(command: Command, tmp_path: Path) -> None:
    assert command.run("plugin", "install", str(make_plugin(tmp_path / "source", "acme")), "--yes").code == 0
    model = command.scenario("agents: {lead: [{otherwise: true, reply: done}]}")
    ran = command.run("-p", "go", "--model", model, "--output-format", "stream-json", "--verbose")
    assert ran.code == 0, ran.err
    assert "acme:scout" in next(message for message in ran.messages if message.get("subtype") == "init")["agents"]
