"""Real commands handle SIGHUP and lost terminals."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.command import Command
from tests.warm import Process

SLOW = """
agents:
  lead:
    - reply:
        - tool_use: {name: bash, input: {command: "touch begun; sleep 300", timeout_s: 400}}
    - reply: Done.
"""
LIMIT = 180
"""Seconds to wait for events that take one second on an idle machine."""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def wait_until(so: Callable[[], bool], words: str) -> None:
    limit = time.monotonic() + LIMIT
    while not so():
        assert time.monotonic() < limit, words
        time.sleep(0.02)


@contextmanager
def process(command: Command, *args: str, **how: Any) -> Generator[subprocess.Popen[Any]]:
    """Start a real process: signals can hit it during its imports, too."""
    base: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    started = subprocess.Popen([*command.argv, *args], cwd=command.workspace, env=command.env, **{**base, **how})
    try:
        yield started
    finally:
        started.kill()
        started.wait()


@pytest.mark.slow
def test_no_sighup_kills_serve_at_its_start_in_a_reload_or_while_it_leaves(command: Command) -> None:
    log = command.workspace.parent / "log"
    with log.open("wb") as errors, process(command, "serve", "--model", command.scenario(SLOW), stderr=errors) as serve:
        wait_until(lambda: int(_caught_signals(serve.pid), 16) & 1 > 0, "SIGHUP is not caught")
        began = time.monotonic()
        while b"serving" not in log.read_bytes():
            serve.send_signal(signal.SIGHUP)
            assert serve.poll() is None
            assert time.monotonic() - began < LIMIT
            time.sleep(0.01)
        for _ in range(5):
            serve.send_signal(signal.SIGHUP)
        wait_until(lambda: b"reads its settings again" in log.read_bytes(), "it did not reload")
        serve.send_signal(signal.SIGTERM)
        while serve.poll() is None:
            serve.send_signal(signal.SIGHUP)
            time.sleep(0.01)
        assert serve.wait() == 143, log.read_text()


def _caught_signals(pid: int) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith("SigCgt")).split()[1]


@contextmanager
def in_a_terminal(command: Command, *args: str) -> Generator[tuple[int, Process]]:
    """Start the command as the leader of its own terminal; yield the terminal's other end, and the process."""
    ours, theirs = pty.openpty()
    line = ["-m", "callboard", *args]
    started = Process(line, command.workspace, command.env, stdin=theirs, stdout=theirs, stderr=theirs, terminal=True)
    os.close(theirs)
    os.set_blocking(ours, False)
    try:
        yield ours, started
    finally:
        try:
            os.close(ours)
        except OSError:
            assert started.poll() is not None  # the test has closed it
        started.kill()
        started.wait()


def has_read(ours: int, words: bytes) -> Callable[[], bool]:
    seen = bytearray()

    def so() -> bool:
        try:
            seen.extend(part := os.read(ours, 65536))
            if b"\x1b[6n" in part:
                os.write(ours, b"\x1b[1;1R")  # the answer of a terminal to a query of its cursor position
        except BlockingIOError:
            return words in seen
        return words in seen

    return so


@pytest.mark.parametrize(
    "args", [("serve", "--model", "M"), ("run", "--permission-mode", "bypassPermissions", "--model", "M", "Go.")]
)
def test_a_command_leaves_in_order_when_its_terminal_is_closed(command: Command, args: tuple[str, ...]) -> None:
    model = command.scenario(SLOW)
    args = tuple(model if one == "M" else one for one in args)
    with in_a_terminal(command, *args) as (ours, started):
        ready = (command.workspace / "begun").exists if args[0] == "run" else has_read(ours, b"serving")
        wait_until(ready, "it has not begun")
        os.close(ours)
        assert started.wait(LIMIT) == 129
    crashes = Path(command.env["XDG_STATE_HOME"]) / "callboard" / "crashes"
    assert not crashes.exists() or not list(crashes.iterdir())
    if args[0] == "run":
        assert "lead" in command.run_inline("team").out
        assert command.run_inline("sessions").code == 0


ASKS = """
agents:
  lead:
    - reply:
        - tool_use: {name: bash, input: {command: "touch done-it"}}
    - otherwise: true
      reply: Done.
"""


def test_a_terminal_that_is_closed_at_a_question_answers_nothing(command: Command) -> None:
    with in_a_terminal(command, "run", "--model", command.scenario(ASKS), "Go.") as (ours, started):
        wait_until(has_read(ours, b"or y/n"), "no question is shown")
        os.close(ours)
        assert started.wait(LIMIT) == 129
    (request,) = json.loads(command.run_inline("plans", "--all", "--json").out)
    assert (request["kind"], request["status"]) == ("permission", "pending")


@pytest.mark.slow
def test_the_prompt_line_leaves_in_order_when_its_terminal_is_closed(command: Command) -> None:
    model = command.scenario(SLOW)
    with in_a_terminal(command, "--permission-mode", "bypassPermissions", "--model", model) as (ours, started):
        wait_until(has_read(ours, b"\x1b[?2004h"), "there is no prompt")
        os.write(ours, b"Go.\r")
        wait_until((command.workspace / "begun").exists, "it has not begun")
        os.close(ours)
        assert started.wait(LIMIT) in (0, 129)
    crashes = Path(command.env["XDG_STATE_HOME"]) / "callboard" / "crashes"
    assert not crashes.exists() or not list(crashes.iterdir())


@pytest.mark.slow
def test_a_command_under_nohup_outlives_its_terminal(command: Command) -> None:
    log = command.workspace.parent / "log"
    with (
        log.open("wb") as errors,
        process(
            command, "serve", "--model", command.scenario(SLOW), stderr=errors, preexec_fn=_ignore_hangups
        ) as serve,
    ):
        wait_until(lambda: b"serving" in log.read_bytes(), "it does not serve")
        serve.send_signal(signal.SIGHUP)
        wait_until(lambda: b"reads its settings again" in log.read_bytes(), "it did not reload")
        assert serve.poll() is None


def _ignore_hangups() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


IN_A_FINALIZER = """
import os, signal, sys
import callboard.__main__ as program

class Finalizer:
    def __del__(self):
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))

def command(**given):
    Finalizer()
    print("went on", flush=True)

program.cli.main = command
sys.exit(program.main([]))
"""


@pytest.mark.parametrize(("name", "code"), [("SIGHUP", 129), ("SIGTERM", 143)])
def test_a_signal_in_a_finalizer_ends_a_short_command_without_a_traceback(
    command: Command, name: str, code: int
) -> None:
    program = [command.argv[0], "-c", IN_A_FINALIZER, name]
    ran = subprocess.run(program, capture_output=True, env=command.env, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (code, "", "")
