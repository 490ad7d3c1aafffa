"""`callboard update`: what it says, and the command that it runs."""

from __future__ import annotations

import json
import os
import pty
import sys
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.warm import Process

UV = """#!/bin/sh
echo "ran: $*"
echo "in: $(pwd)"
echo "to stderr" >&2
exit ${CODE:-0}
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """The command, installed by uv as its metadata says, and a program `uv` that shows how it is called."""
    command = Command(tmp_path)
    files = tmp_path / "site" / "callboard-0.1.0.dist-info"
    files.mkdir(parents=True)
    (files / "METADATA").write_text("Metadata-Version: 2.1\nName: callboard\nVersion: 0.1.0\n")
    (files / "INSTALLER").write_text("uv\n")
    _program(tmp_path / "bin" / "uv")
    command.env["PYTHONPATH"] = str(tmp_path / "site")
    command.env["PATH"] = f"{tmp_path / 'bin'}:{command.env['PATH']}"
    return command


def _program(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(UV)
    path.chmod(0o755)


def test_it_says_how_it_was_installed_and_runs_nothing_without_a_terminal(command: Command) -> None:
    ran = command.run("update")
    update = f"uv pip install --python {sys.executable} --upgrade-package callboard callboard"
    assert ran.code == 0
    assert ran.out == (f"callboard 0.1.0\ninstalled with uv, in {sys.prefix}\nto update: {update}\n")
    shown = json.loads(command.run("update", "--json").out)
    assert (shown["version"], shown["command"]) == ("0.1.0", update.split())


@pytest.mark.parametrize("code", [0, 7])
def test_the_command_is_run_outside_the_workspace_and_its_exit_code_passed_on(command: Command, code: int) -> None:
    _program(command.workspace / "uv")
    path = f"{command.workspace}:.:{command.env['PATH']}"
    ran = command.run("update", "--run", CODE=str(code), PATH=path)
    assert ran.code == code
    assert "ran: pip install --python" in ran.out
    assert f"in: {Path(sys.prefix).resolve()}" in ran.out
    assert "to stderr" in ran.err
    assert ("failed with exit code 7" if code else "nothing newer was found") in ran.err


@pytest.mark.parametrize(("answer", "runs"), [(b"y\n", True), (b"n\n", False), (b"\n", False), (b"\x04", False)])
def test_a_person_is_asked_at_a_terminal(command: Command, answer: bytes, runs: bool) -> None:
    ours, theirs = pty.openpty()
    line = ["-m", "callboard", "update"]
    process = Process(line, command.workspace, command.env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while b"[y/N]" not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, answer)
        while piece := _read(ours):
            shown += piece
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert (b"ran: pip install" in shown) == runs


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other end is closed
        return b""


def test_a_missing_program_is_named(command: Command) -> None:
    ran = command.run("update", "--run", PATH="/nowhere")
    assert ran.code == 2
    assert "uv is not on PATH, so this cannot be run: uv pip install" in ran.err


def test_a_checkout_is_only_explained(command: Command) -> None:
    (metadata,) = (command.workspace.parent / "site").iterdir()
    (metadata / "direct_url.json").write_text('{"url": "file:///src/callboard", "dir_info": {"editable": true}}')
    ran = command.run("update")
    assert ran.code == 0
    assert "installed from the checkout /src/callboard" in ran.out
    assert "`git -C /src/callboard pull`" in ran.out
    ran = command.run("update", "--run")
    assert ran.code == 2
    assert "installed from the checkout /src/callboard" in ran.err
    assert "ran:" not in ran.out


def test_a_tool_updates_nothing(command: Command) -> None:
    ran = command.run("update", "--run", CALLBOARD_TOOL="1")
    assert ran.code == 2
    assert "Updating Callboard is for a person" in ran.err
    assert "ran:" not in ran.out
