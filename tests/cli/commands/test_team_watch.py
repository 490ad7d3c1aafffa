"""`callboard team` beside a hosting process: watched as a page, as lines, and as JSON; agents killed from outside."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.warm import Process

from callboard.cli.terminal.terminal import columns

TEAM = """
models:
  big: {window: 60000, max_output: 8000}
agents:
  lead:
    - reply:
        - tool_use: {name: spawn_teammate, input: {name: alice, role: 終わり, prompt: do it}}
    - reply: I wait for Alice.
    - repeat: forever
      reply: I see.
  alice:
    - reply:
        - tool_use: {name: bash, input: {command: "sleep 300", timeout_s: 400}}
    - reply: Slept.
"""
SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LIMIT = 180
"""Seconds to wait for events that take one second on an idle machine."""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@contextmanager
def run_team(command: Command) -> Generator[Process]:
    """Start a team in another process; alice sleeps."""
    model = command.scenario(TEAM)
    host = command.start("run", "--permission-mode", "bypassPermissions", "--model", model, "Go.")
    try:
        wait_for(command, "alice", "working")
        yield host
    finally:
        host.kill()
        host.communicate()


def wait_for(command: Command, name: str, life: str) -> None:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        ran = command.run_inline("team", "--json")
        found = [one for one in json.loads(ran.out) if one["name"] == name] if ran.code == 0 else []
        if found and found[0]["life"] == life and (life != "working" or found[0]["call"]):
            return
        time.sleep(0.2)
    raise AssertionError(f"{name} is not {life}")


class Screen:
    """A terminal of this size, with a command in it."""

    def __init__(self, command: Command, columns: int, rows: int, *args: str) -> None:
        self.ours, theirs = pty.openpty()
        self._size(columns, rows)
        env = {**command.env, "LANG": "C.UTF-8"}
        line = [*command.argv[1:], *args]
        self.child = Process(line, command.workspace, env, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self.text = ""

    def resize(self, columns: int, rows: int) -> None:
        """Resize the window, and send the signal here: the terminal does not control the child."""
        self._size(columns, rows)
        self.child.send_signal(signal.SIGWINCH)

    def _size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, words: str) -> str:
        """Return the output up to this text, with everything that followed at once."""
        deadline = time.monotonic() + LIMIT
        while words not in self.text and time.monotonic() < deadline:
            if select.select([self.ours], [], [], 1)[0]:
                self.text += os.read(self.ours, 65_536).decode(errors="replace")
        assert words in self.text, self.text
        return self.text

    def rest(self) -> str:
        try:
            while more := os.read(self.ours, 65_536):
                self.text += more.decode(errors="replace")
        except OSError:
            pass  # the terminal is closed: there is no more output
        return self.text


@pytest.mark.slow
def test_a_team_is_watched_on_a_screen_as_lines_and_as_json_and_an_agent_of_it_is_killed(command: Command) -> None:
    with run_team(command):
        objects, lines = start_watch(command, "--json"), start_watch(command)
        assert json.loads(first_line(objects))["type"] == "team"
        objects.send_signal(signal.SIGINT)
        assert objects.wait(LIMIT) == 130
        assert "hosted by process" in first_line(lines), "the next lines are not read"
        screen = Screen(command, 90, 12, "team", "--watch")
        assert screen.until("bash sleep 300").startswith("\x1b[?1049h\x1b[?25l")
        screen.text = ""
        screen.resize(40, 4)
        page = screen.until("and 2 more agents").split("\x1b[H")[-1]
        assert all(columns(line.strip("\r")) <= 40 for line in SEQUENCES.sub("", page).split("\n"))
        screen.resize(90, 12)
        ended = command.run_inline("team", "kill", "alice", "--why", "enough")
        assert (ended.code, ended.out) == (0, "alice is ended\n"), ended.err
        screen.until("stopped")
        screen.child.send_signal(signal.SIGINT)
        left = screen.rest()
        assert screen.child.wait(LIMIT) == 130
        assert "\x1b[?25h\x1b[?1049l" in left
        assert "alice" in left.split("\x1b[?1049l")[1], "the last page stays"
        assert lines.wait(LIMIT) == 0, "it ends when nothing reads its output"
        again = command.run_inline("team", "kill", "alice")
        assert (again.code, "already stopped" in again.err) == (2, True)


def start_watch(command: Command, *args: str) -> Process:
    """Start a watch whose output is a pipe."""
    return command.start("team", "--watch", *args)


def first_line(watching: Process) -> str:
    """Return its first line; the next ones are not read."""
    assert watching.stdout is not None
    with watching.stdout as out:
        return out.readline()


@pytest.mark.slow
def test_what_is_no_agent_or_not_parked_is_refused_and_so_is_a_tools_process(command: Command) -> None:
    model = command.scenario(TEAM.replace("sleep 300", "true"))
    assert command.run_inline("run", "--permission-mode", "bypassPermissions", "--model", model, "Go.").code == 0
    told = command.run_inline("team")
    assert (told.code, "no process hosts it" in told.out) == (0, True)
    for args, why in (
        (("kill", "nobody"), "unknown agent 'nobody'"),
        (("resume", "alice"), "alice is not parked: it is idle"),
        (("stop", "lead"), "the lead ends with its session"),
    ):
        ran = command.run_inline("team", *args)
        assert (ran.code, why in ran.err) == (2, True), ran.err
    inside = command.run_inline("team", "kill", "alice", CALLBOARD_TOOL="1")
    assert (inside.code, "Killing an agent is for a person" in inside.err) == (2, True), inside.err
    waits = command.run_inline("team", "kill", "alice")
    assert "No process hosts the session" in waits.out
