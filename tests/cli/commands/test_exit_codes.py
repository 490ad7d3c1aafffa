"""Each exit code of the table, from a process, with its message, which is never a traceback."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.warm import NOTHING, Process

HELLO = "agents: {lead: [{reply: Hello.}, {otherwise: true, reply: Hello again.}]}"
REFUSED = "agents: {lead: [{reply: No., fault: {status: 400, message: 'that is no good', times: 99}}]}"
UNAVAILABLE = "agents: {lead: [{reply: No., fault: {status: 500, times: 999}}]}"
SLOW = "agents: {lead: [{reply: Late., latency_ms: 30000}]}"
ASKS = "agents: {lead: [{reply: [{tool_use: {name: bash, input: {command: touch x}}}]}, {otherwise: true, reply: No.}]}"
LOOKS = "agents: {lead: [{reply: [{tool_use: {name: read_file, input: {path: x}}}]}, {otherwise: true, reply: No.}]}"


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("code", "scenario", "args"),
    [
        (0, HELLO, []),
        (1, REFUSED, []),
        (2, HELLO, ["--max-turns", "none"]),
        (3, "agents: {lead: [{rply: Hello.}]}", []),
        (4, ASKS, []),
        (5, LOOKS, ["--max-turns", "1"]),
        (6, UNAVAILABLE, []),
        (124, SLOW, ["--max-seconds", "0.2"]),
    ],
)
def test_a_run_ends_with_the_code_of_the_table(code: int, scenario: str, args: list[str], command: Command) -> None:
    env = {"CALLBOARD_RECOVERY__UNATTENDED_ATTEMPTS": "1"}
    ran = command.run("run", *args, "--model", command.scenario(scenario), "Go.", **env)
    assert ran.code == code, ran.err
    assert "Traceback" not in ran.err
    assert (ran.out == "Hello.\n") is (code == 0)
    assert (len(ran.err.splitlines()) > 0) is True, "it gives the reason, or its usage"


@pytest.mark.parametrize(
    "listing",
    ["sessions", "worktrees", "cron list", "cron history", "cron stats", "workflow list", "memory list", "rate"],
)
def test_a_listing_of_a_workspace_without_a_session_is_empty(command: Command, listing: str) -> None:
    ran = command.run_inline(*listing.split(), "--json")
    assert (ran.code, ran.out) == (0, "[]\n"), ran.err
    plain = command.run_inline(*listing.split())
    assert (plain.code, plain.out.startswith("no ")) == (0, True), plain.err


@pytest.mark.parametrize(
    "listing", ["team", "tasks", "plans", "inbox", "cost", "context", "policy log", "policy rules", "cron history x"]
)
def test_a_listing_of_one_session_is_an_error_without_a_session(command: Command, listing: str) -> None:
    for form in ((), ("--json",)):
        ran = command.run_inline(*listing.split(), *form)
        assert (ran.code, ran.out) == (2, "")
        assert "there is no session in" in ran.err


BUG = """
import sys
from callboard.__main__ import main
from callboard.cli.commands.root import RootGroup
def deep(*given):
    return deep(*given)
RootGroup.resolve_command = {}
sys.exit(main(["tasks"]))
"""


@pytest.mark.parametrize("fails", ["lambda *given: 1 / 0", "deep"])
def test_a_bug_is_70_and_says_where_the_details_are(fails: str, command: Command) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", BUG.format(fails)],
        capture_output=True,
        text=True,
        env=command.env,
        cwd=command.workspace,
        timeout=180,
        check=False,
    )
    assert ran.returncode == 70
    assert "Traceback" not in ran.stderr
    assert "a bug in Callboard" in ran.stderr
    (kept,) = (command.workspace.parent / "state" / "callboard" / "crashes").iterdir()
    assert str(kept) in ran.stderr


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_a_pipe_is_full_ends_the_process(sent: signal.Signals, code: int, command: Command) -> None:
    long = f"agents: {{lead: [{{reply: '{'word ' * 6_000}'}}, {{otherwise: true, reply: x}}]}}"
    reader, writer = os.pipe()
    stuffing = b"x" * 4096
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, stuffing)
    except BlockingIOError:
        os.set_blocking(writer, True)
    args = [*command.argv[1:], "run", "--model", command.scenario(long), "Go."]
    process = Process(args, command.workspace, command.env, stdin=NOTHING, stdout=writer)
    try:
        deadline = time.monotonic() + 180
        while "done" not in command.run_inline("sessions").out:
            assert time.monotonic() < deadline, "the run waits for the reader"
            time.sleep(0.1)  # another process reports the progress, so there is no event
        assert process.poll() is None, "its exit waits for the reader"
        process.send_signal(sent)
        # A shell sees 143 either way: after the end of the event loop, the default action of SIGTERM applies.
        assert process.wait(180) in {code, -signal.SIGTERM}
        assert "Fatal" not in (process.stderr.read() if process.stderr else "")
    finally:
        process.kill()
        os.close(reader)
        os.close(writer)


# Messages to a person


def error_message(ran_err: str) -> str:
    assert "Traceback" not in ran_err
    assert ran_err.startswith("callboard: ")
    return ran_err


def test_broken_settings_name_file_and_line(command: Command) -> None:
    folder = command.workspace.parent / "config" / "callboard"
    folder.mkdir(parents=True)
    (folder / "settings.yaml").write_text("model: [unclosed\n")
    ran = command.run_inline("run", "--model", command.scenario(HELLO), "Go.")
    assert ran.code == 3
    assert "settings.yaml:" in error_message(ran.err)


def test_a_state_folder_that_cannot_be_made_is_told(command: Command) -> None:
    (command.workspace.parent / "state").write_text("a file")
    ran = command.run_inline("run", "--model", command.scenario(HELLO), "Go.")
    assert ran.code == 3
    assert str(command.workspace.parent / "state") in error_message(ran.err)


def test_a_store_of_a_newer_version_is_told_and_left_alone(command: Command) -> None:
    model = command.scenario(HELLO)
    assert command.run_inline("run", "--model", model, "Go.").code == 0
    (database,) = (command.workspace.parent / "state").rglob("callboard.db")
    with sqlite3.connect(database) as store:
        store.execute("PRAGMA user_version = 99")
    store.close()
    ran = command.run_inline("run", "--model", model, "Go.")
    assert ran.code == 3
    assert "newer Callboard" in error_message(ran.err)
    assert "upgrade" in ran.err


@pytest.mark.slow(keep=1)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("args", [["sessions"], ["completion", "bash"], ["--help"]])
def test_a_full_disk_is_told_once(args: list[str], command: Command) -> None:
    line = f"exec {' '.join([*command.argv, *args])} > /dev/full"
    ran = subprocess.run(
        ["sh", "-c", line],
        cwd=command.workspace,
        env=command.env,
        stderr=subprocess.PIPE,
        text=True,
        timeout=180,
        check=False,
    )
    assert "Traceback" not in ran.stderr
    assert "a bug in Callboard" not in ran.stderr
    assert ran.stderr.count("No space left") == 1
    assert ran.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("args", ["completion bash", "--help", "policy explain --stdin < lines"])
def test_a_reader_that_goes_away_is_no_failure(args: str, command: Command) -> None:
    (command.workspace / "lines").write_text("{}\n" * 500)
    line = f"set -o pipefail; {' '.join(command.argv)} {args} | true"
    ran = subprocess.run(
        ["bash", "-c", line],
        cwd=command.workspace,
        env=command.env,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
