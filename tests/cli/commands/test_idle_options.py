"""Options that have no effect together: each is refused with the reason, before anything is done."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.cli.commands.command import Command

HELLO = """
agents:
  lead:
    - reply: Hello.
      repeat: forever
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run -c -r x Go", "--continue is the current session, and --resume names one"),
        ("-c -r x -p Go", "--continue is the current session, and --resume names one"),
        ("run -c --placement gpu=a100 Go", "--placement has no effect on a session that goes on"),
        ("run --live-tools Go", "--live-tools requires --model cassette:FILE"),
        ("run --system-prompt x --system-prompt-file y Go", "--system-prompt and --system-prompt-file are two prompts"),
        ("run --input-format stream-json --output-format stream-json --detach", "--detach has no effect"),
        ("run --input-format stream-json --output-format stream-json -y", "--yes has no effect"),
        ("policy explain --folder nope ls", "--folder nope: there is no such folder in"),
        ("policy explain --stdin ls", "CALL has no effect with --stdin"),
        ("policy explain --stdin --mode plan", "--mode has no effect with --stdin"),
        ("cron next --stdin --timezone UTC", "--timezone has no effect with --stdin"),
        ("web --add-user ann --new-proxy-secret", "--new-proxy-secret has no effect with --add-user"),
        ("web --new-proxy-secret --port 0", "--port has no effect with --new-proxy-secret"),
        ("mcp test x --input {}", "--input has no effect without --call"),
        ("doctor --trust", "--trust has no effect without --compat"),
        ("link req_x --revoke --qr", "--qr has no effect with --revoke"),
        ("config get -g --trust model", "--trust has no effect with --global"),
        ("config list -g --all", "--all has no effect with --global"),
        ("serve --dry-run --web", "--web has no effect with --dry-run"),
        ("serve --once --hand-over 3", "--hand-over has no effect with --once"),
        ("tasks --session x cancel task_x", "--session has no effect before `cancel`"),
        ("team --json ended", "--json has no effect before `ended`"),
        ("hosts --json drain x", "--json has no effect before `drain`"),
        ("rate --json reset", "--json has no effect before `reset`"),
        ("store --json check", "--json has no effect before `check`"),
        ("worktrees --json remove x", "--json has no effect before `remove`"),
        ("trust --yes show", "--yes has no effect before `show`"),
    ],
)
def test_an_option_without_effect_is_refused_with_the_reason(command: Command, line: str, message: str) -> None:
    ran = command.run_inline(*line.split(), CALLBOARD_MODEL=command.scenario(HELLO))
    assert (ran.code, ran.out) == (2, "")
    assert message in " ".join(ran.err.split())
    assert not (command.workspace.parent / "config").exists()


def test_options_of_every_command_may_come_before_a_command_of_a_group(command: Command) -> None:
    ran = command.run_inline("trust", "-q", "--color", "never", "show")
    assert ran.code == 0, ran.err


def test_limits_of_a_session_that_another_process_hosts_are_refused(command: Command) -> None:
    model = command.scenario("agents: {lead: [{reply: Late., latency_ms: 60000}]}")
    hosting = command.start("run", "--model", model, "Go.")
    try:
        while "hosted by process" not in command.run_inline("team").out:
            time.sleep(0.05)
        for option in (("--max-turns", "5"), ("--mcp-config", '{"mcpServers": {}}')):
            ran = command.run_inline("resume", *option)
            assert (ran.code, "is hosted by process" in ran.err) == (3, True), ran.err
    finally:
        hosting.kill()
        hosting.communicate()


def test_a_fork_of_nothing_is_reported(command: Command) -> None:
    ran = command.run_inline("run", "--fork-session", "--model", command.scenario(HELLO), "Go.")
    assert (ran.code, "--fork-session is ignored: it requires -c or -r" in ran.err) == (0, True), ran.err


def test_the_labels_of_a_new_session_are_those_of_its_next_host(command: Command) -> None:
    """A serving host hosts the session if the process of the run dies, so the option has an effect without --detach."""
    ran = command.run_inline("run", "--placement", "gpu=a100", "--model", command.scenario(HELLO), "Go.")
    assert ran.code == 0, ran.err
