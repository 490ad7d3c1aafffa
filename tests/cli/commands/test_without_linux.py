"""Callboard in a simulation of macOS (`without_linux.py`): no /proc, no pidfd, no epoll, no inotify, no Landlock.

This is a simulation on Linux, not macOS. It shows that nothing is imported or used without a guard.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.cli.commands.without_linux import HERE

SITE = f"import sys\nsys.path.insert(0, {str(Path(HERE).parent)!r})\nimport without_linux\nwithout_linux.install()\n"
SCENARIO = """
agents:
  lead:
    - reply:
        - tool_use: {name: bash, input: {command: "echo made > made.txt; (sleep 300 &); exit 3"}}
    - when: {result_of: bash}
      reply:
        - tool_use: {name: read_file, input: {path: made.txt}}
    - when: {result_of: read_file}
      reply:
        - tool_use: {name: bash, input: {command: "echo behind > behind.txt", run_in_background: true}}
    - when: {result_of: bash}
      reply: It says made.
    - otherwise: true
      reply: done
"""
ASKED = """
agents:
  lead:
    - reply: [{tool_use: {name: bash, input: {command: touch asked.txt}}}]
    - when: {result_of: bash}
      reply: It was allowed.
"""
HOOK = {"matcher": "Bash", "hooks": [{"type": "command", "command": 'echo hooked > "$HOME/hooked"'}]}
IMPORTS = """
import importlib, pkgutil, callboard
for module in pkgutil.walk_packages(callboard.__path__, "callboard."):
    if not module.name.endswith(("_child", "__main__", ".inside")):
        importlib.import_module(module.name)
"""


@pytest.fixture
def simulated(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    command.env = {name: value for name, value in command.env.items() if not name.startswith("XDG_")}
    command.env["PYTHONPATH"] = str(site)
    return command


def ran(command: Command, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program of its own, because the simulation changes the whole process."""
    return subprocess.run(
        arguments,
        cwd=command.workspace,
        env={**command.env, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_simulation_takes_away_what_only_linux_has(simulated: Command) -> None:
    probe = "import os, select, signal, sys\nprint(sys.platform, os.path.exists('/proc/self/stat'), "
    probe += "[hasattr(*each) for each in ((os, 'pidfd_open'), (select, 'epoll'), (signal, 'pidfd_send_signal'))])"
    assert ran(simulated, sys.executable, "-c", probe).stdout == "darwin False [False, False, False]\n"


@pytest.mark.slow
def test_every_module_can_be_imported_without_linux(simulated: Command) -> None:
    done = ran(simulated, sys.executable, "-c", IMPORTS, PYTHONWARNINGS="default")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_run_with_tools_and_a_hook_works_without_linux(simulated: Command) -> None:
    hooks = simulated.workspace.parent / "Library" / "Application Support" / "callboard" / "hooks" / "hooks.json"
    hooks.parent.mkdir(parents=True)
    hooks.write_text(json.dumps({"hooks": {"PostToolUse": [HOOK]}}))
    (hooks.parent.parent / "settings.yaml").write_text("sandbox: {unattended: any}\n")
    arguments = ["--model", simulated.scenario(SCENARIO), "--permission-mode", "bypassPermissions", "What is in it?"]
    done = ran(simulated, *simulated.argv, "run", *arguments)
    assert done.returncode == 0, done.stderr
    assert "It says made." in done.stdout + done.stderr
    assert "were ended (1)" in done.stderr
    assert (simulated.workspace / "made.txt").read_text() == "made\n"
    assert (simulated.workspace / "behind.txt").read_text() == "behind\n"
    assert (simulated.workspace.parent / "hooked").read_text() == "hooked\n"
    assert " done " in ran(simulated, *simulated.argv, "sessions").stdout


@pytest.mark.slow
def test_help_and_doctor_work_without_linux(simulated: Command) -> None:
    assert "Decide:" in ran(simulated, *simulated.argv, "--help").stdout
    told = ran(simulated, *simulated.argv, "doctor").stdout
    assert "macOS: Callboard is written for it, and has not been tested on it" in told
    assert "level 0" in told
    assert "sandbox-exec does not work here" in told


@pytest.mark.slow
def test_a_person_approves_from_another_process_without_linux(simulated: Command) -> None:
    person, terminal = os.openpty()
    argv = [*simulated.argv, "run", "--model", simulated.scenario(ASKED), "touch it"]
    run = subprocess.Popen(
        argv, cwd=simulated.workspace, env=simulated.env, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    try:
        read_until(person, b"allow this?")
        (request,) = json.loads(ran(simulated, *simulated.argv, "plans", "--json").stdout)
        approved = ran(simulated, *simulated.argv, "approve", request["id"])
        assert approved.returncode == 0, approved.stderr
        read_until(person, b"It was allowed.")
        assert run.wait(60) == 0
    finally:
        run.kill()
        run.wait()
        os.close(person)
    assert (simulated.workspace / "asked.txt").exists()


@pytest.mark.slow
def test_serve_begins_and_leaves_in_order_without_linux(simulated: Command) -> None:
    argv = [*simulated.argv, "serve", "--model", simulated.scenario(ASKED)]
    reader, writer = os.pipe()
    serve = subprocess.Popen(argv, cwd=simulated.workspace, env=simulated.env, stdout=writer, stderr=writer)
    os.close(writer)
    try:
        read_until(reader, b"serving ")
        serve.send_signal(signal.SIGTERM)
        read_until(reader, b"hands its sessions over at SIGTERM")
        assert serve.wait(60) == 143
    finally:
        serve.kill()
        serve.wait()
        os.close(reader)


def read_until(terminal: int, text: bytes) -> None:
    """Read what a program writes on its terminal up to this text."""
    data = b""
    while text not in data:
        ready, _, _ = select.select([terminal], [], [], 60)
        assert ready, data
        read = os.read(terminal, 65_536)
        assert read, f"it ended, and said only {data.decode()}"
        data += read
