"""The property list of `callboard serve` for launchd. No test here starts it: launchd exists on macOS only."""

from __future__ import annotations

import plistlib
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands.command import Command

from callboard.adapters.processes.launchd import LaunchAgent
from callboard.adapters.processes.systemd import is_own_unit, remove_unit, write_unit


def agent_of(folder: Path, workspace: str = "work", **environ: str) -> LaunchAgent:
    return LaunchAgent(
        "callboard-work-1a2b",
        folder / workspace,
        ("/opt/call board/bin/callboard",),
        folder / "service.env",
        environ,
        home=folder,
    )


@pytest.mark.parametrize("name", ["plain", "two words", "</string><true/>&amp;", '$HOME "q" é\'s `id`'])
def test_the_list_is_read_back_with_any_workspace(tmp_path: Path, name: str) -> None:
    agent = agent_of(tmp_path, name, PATH="/usr/bin:/bin", ANTHROPIC_API_KEY="sk-secret")
    text = agent.text()
    content = plistlib.loads(text.encode())
    assert content["Label"] == "callboard-work-1a2b"
    serve = ["/opt/call board/bin/callboard", "serve", "--cwd", str(tmp_path / name)]
    assert content["ProgramArguments"][:2] == ["/bin/sh", "-c"]
    assert content["ProgramArguments"][3:] == [str(tmp_path / "service.env"), *serve]
    assert content["EnvironmentVariables"] == {"PATH": "/usr/bin:/bin"}
    assert (content["RunAtLoad"], content["KeepAlive"]) == (True, {"SuccessfulExit": False})
    assert content["StandardErrorPath"] == str(tmp_path / "Library/Logs/callboard/callboard-work-1a2b.log")
    assert content["Umask"] == 0o077
    assert "sk-secret" not in text


def test_the_shell_reads_the_key_and_becomes_the_command(tmp_path: Path) -> None:
    agent = LaunchAgent("x", tmp_path, ("/bin/sh", "-c", 'echo "$KEY" "$@"', "sh"), tmp_path / "a b.env", {})
    line = plistlib.loads(agent.text().encode())["ProgramArguments"]
    without = subprocess.run(line, capture_output=True, text=True, check=True, env={})
    assert without.stdout == f" serve --cwd {tmp_path}\n"
    (tmp_path / "a b.env").write_text("KEY=sk-1\n")
    assert subprocess.run(line, capture_output=True, text=True, check=True, env={}).stdout.startswith("sk-1 serve")


def test_only_a_list_of_callboard_is_replaced_or_removed(tmp_path: Path) -> None:
    agent = agent_of(tmp_path)
    file = agent.file()
    assert file == tmp_path / "Library/LaunchAgents/callboard-work-1a2b.plist"
    assert write_unit(file, agent.text())
    assert is_own_unit(file)
    assert not write_unit(file, agent.text())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert remove_unit(file)
    file.write_bytes(plistlib.dumps({"Label": "other"}))
    assert not is_own_unit(file)


def test_the_command_writes_an_agent_on_macos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = Command(tmp_path)
    monkeypatch.setattr(sys, "platform", "darwin")
    ran = command.run_inline("service", "install", PATH="/nowhere")
    assert ran.code == 0, ran.err
    assert "launchctl bootstrap gui/" in ran.out
    assert "systemctl" not in ran.out
    (file,) = (tmp_path / "Library" / "LaunchAgents").iterdir()
    assert plistlib.loads(file.read_bytes())["ProgramArguments"][-1] == str(command.workspace)
    told = command.run_inline("service", "status", PATH="/nowhere").out
    assert "is installed" in told
    assert "there is no launchctl here" in told
    assert command.run_inline("service", "uninstall", PATH="/nowhere").code == 0
    assert not file.exists()
